//! The slot map, read from the servers themselves or from Sentinels.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::{Instant, timeout_at};

use super::{
    Net,
    view::{Master, View},
};
use crate::redis::{
    address::{Host, Kind},
    failure::Failure,
};

/// The shortest interval between requests for the slot map, unless a newer answer is needed.
const REFRESH_EVERY: Duration = Duration::from_millis(50);
/// The polling interval of the map while nothing seems wrong, if a master may be replaced.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// The first and the last slot of a range, and the server that has it.
pub(super) type Range = (u16, u16, Host);

/// Which server has which slots.
#[derive(Clone, Debug, Default)]
pub(super) struct Map(pub(super) Vec<Range>);

impl Map {
    pub(super) fn owner(&self, slot: u16) -> Option<&Host> {
        let range = self
            .0
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot));
        range.map(|(_, _, host)| host)
    }
}

impl Net {
    /// Requests the slot map, unless that was just done.
    pub(super) async fn refresh(&self, deadline: Instant) -> Result<(), Failure> {
        let now = Instant::now();
        let since = now.checked_sub(REFRESH_EVERY).unwrap_or(now);
        self.refresh_since(since, deadline).await
    }

    /// Requests the slot map, unless a request was started after `since`: one request serves everybody who
    /// came before it.
    pub(super) async fn refresh_since(
        &self,
        since: Instant,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let late = || Failure::refused("nobody said in time which server has what");
        let lock = timeout_at(deadline, self.refreshing.lock()).await;
        let mut last = lock.map_err(|_| late())?;
        if last.is_some_and(|began| began >= since) {
            return Ok(());
        }
        *last = Some(Instant::now());
        let view = match &self.address.kind {
            Kind::Sentinel(name) => self.ask_sentinels(name, deadline).await,
            _ if !self.is_one_server() => self.ask_cluster(deadline).await,
            Kind::Server | Kind::Cluster => self.ask_server(deadline).await,
        };
        let view = view?;
        self.nodes.lock().retain(|host, node| {
            let stays = view.masters.contains_key(host);
            if !stays {
                // Callers that wait for its answer would wait in vain.
                node.gone.send_replace(true);
            }
            stays
        });
        *self.view.write() = Arc::new(view);
        Ok(())
    }

    /// The one server of the URL that answers, or the cluster that it belongs to.
    async fn ask_server(&self, deadline: Instant) -> Result<View, Failure> {
        let mut candidates = self.owners();
        candidates.extend(self.address.hosts.iter().cloned());
        let mut last = Failure::refused("no server answers");
        let count = u32::try_from(candidates.len()).unwrap_or(1).max(1);
        let asked_at = Instant::now();
        for (index, host) in (0..).zip(candidates) {
            // A server that does not answer must leave time for the others.
            let left = deadline.saturating_duration_since(Instant::now());
            let until = Instant::now() + left / count.saturating_sub(index).max(1);
            let node = self.node(&host)?;
            match node.link(self, until).await {
                Ok(link) if link.server.is_cluster => {
                    if self.address.database != 0 {
                        return Err(Failure::refused("a cluster has the database 0 only"));
                    }
                    self.is_cluster.store(true, Ordering::Relaxed);
                    return self.ask_cluster(deadline).await;
                }
                Ok(link) if !link.server.is_master => {
                    node.drop_link(link.number);
                    last = Failure::refused("this server is a replica and takes no writes");
                }
                Ok(_) => {
                    return Ok(View {
                        map: Map(vec![(0, u16::MAX, host.clone())]),
                        masters: [(host, Master::default())].into(),
                        asked_at: Some(asked_at),
                    });
                }
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    /// Keeps the map current, for ever, so that no call has to fail before another master is found.
    pub(in crate::redis) async fn watch(self: Arc<Self>) {
        loop {
            let _ = tokio::time::timeout(WATCH_EVERY, self.doubt.notified()).await;
            // An old map is better than none.
            let _ = self.refresh(self.deadline()).await;
        }
    }
}
