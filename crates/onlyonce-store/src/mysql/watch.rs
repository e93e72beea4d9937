//! Wake-ups for waiters. These servers notify nobody, so keys that somebody on this node may be
//! waiting for are looked at together, often and cheaply; each waiter goes on polling by itself, more
//! and more seldom, and that is the truth.

use std::{collections::HashMap, sync::Arc, time::Duration};

use onlyonce_core::{Record, RecordId};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, broadcast},
    time::Instant,
};

use super::{scan::Scanners, server::Shared};
use crate::WAKEUP_BACKLOG;

/// The pause between two looks at what is watched.
const LOOK_EVERY: Duration = Duration::from_millis(40);
/// The pause after a look that failed.
const AFTER_A_FAILURE: Duration = Duration::from_millis(500);
/// How long a key is watched after somebody has met it in flight: a waiter meets it every second.
const WATCHED_FOR: Duration = Duration::from_secs(3);
/// Keys that are watched at once. Those beyond it are polled for.
const MAX_WATCHED: usize = 512;

/// What is watched on this node.
pub(super) struct Watch {
    local: broadcast::Sender<RecordId>,
    /// Until when.
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
        // No listener is no failure.
        let _ = self.local.send(id);
    }

    /// This node has found the record in this form: if an attempt is running, somebody may wait.
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

    /// What is watched now.
    fn watched(&self) -> Vec<RecordId> {
        let now = Instant::now();
        let mut watched = self.watched.lock();
        watched.retain(|_, until| *until > now);
        watched.keys().copied().collect()
    }
}

/// Looks for ever, whenever something is watched.
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
            // Whoever is not woken polls.
            Err(_) => tokio::time::sleep(AFTER_A_FAILURE).await,
        }
    }
}
