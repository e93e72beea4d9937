//! Wake-ups for waiters. These servers have no notifications, so the keys that somebody on this node may be
//! waiting for are polled together, often and cheaply. Each waiter also polls by itself, more and more
//! rarely, and relies on that alone.

use std::{collections::HashMap, sync::Arc, time::Duration};

use onlyonce_core::{Record, RecordId};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, broadcast},
    time::Instant,
};

use super::{scan::Scanners, server::Shared};
use crate::WAKEUP_BACKLOG;

/// The pause between two polls of the watched keys.
const LOOK_EVERY: Duration = Duration::from_millis(40);
/// The pause after a failed poll.
const AFTER_A_FAILURE: Duration = Duration::from_millis(500);
/// How long a key is watched after it was met in flight: a waiter meets it every second.
const WATCHED_FOR: Duration = Duration::from_secs(3);
/// The most keys watched at the same time. Waiters for further keys poll by themselves.
const MAX_WATCHED: usize = 512;

/// The keys watched on this node.
pub(super) struct Watch {
    local: broadcast::Sender<RecordId>,
    /// The end of each watch.
    watched: Mutex<HashMap<RecordId, Instant>>,
    something: Notify,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self {
            local: broadcast::Sender::new(WAKEUP_BACKLOG),
            watched: Mutex::default(),
            something: Notify::new(),
        }
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<RecordId> {
        self.local.subscribe()
    }

    /// The record has changed.
    pub(super) fn settled(&self, id: RecordId) {
        self.watched.lock().remove(&id);
        // Having no receivers is not a failure.
        let _ = self.local.send(id);
    }

    /// This node has found this record: if an attempt is running, somebody may wait for it.
    pub(super) fn met(&self, record: &Record) {
        if record.times.lease_until.is_none() {
            return;
        }
        let until = Instant::now() + WATCHED_FOR;
        let mut watched = self.watched.lock();
        if watched.len() < MAX_WATCHED || watched.contains_key(&record.id) {
            watched.insert(record.id, until);
            drop(watched);
            self.something.notify_one();
        }
    }

    /// The keys watched now.
    fn watched(&self) -> Vec<RecordId> {
        let now = Instant::now();
        let mut watched = self.watched.lock();
        watched.retain(|_, until| *until > now);
        watched.keys().copied().collect()
    }
}

/// Polls for ever, whenever a key is watched.
pub(super) async fn look(shared: Arc<Shared>) {
    let scanner = Scanners::apart(shared.clone(), 1);
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let ids = shared.watch.watched();
        if ids.is_empty() {
            shared.watch.something.notified().await;
            continue;
        }
        match scanner.no_longer_running(&ids).await {
            Ok(settled) => settled.into_iter().for_each(|id| shared.watch.settled(id)),
            // A waiter that is not woken polls.
            Err(_) => tokio::time::sleep(AFTER_A_FAILURE).await,
        }
    }
}
