//! Who holds bytes, and executions that nobody waits for.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use onlyonce_core::CallerMark;

use super::Client;

/// One connection of a client. A server inserts one for each connection into the extensions of its
/// requests; without it, requests of clients that are not authenticated are counted one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(u64);

impl ConnectionId {
    /// One that no other connection of this process has.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Whose share is taken: an authenticated client's, else its connection's. Of bytes, credentials that nobody
/// checks are not enough, since a client could make up a new one for each request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// An authenticated client, by its id.
    Client(Arc<str>),
    /// A caller that is told apart by what it sends.
    Marked(CallerMark),
    /// A connection of somebody who is not authenticated.
    Connection(ConnectionId),
}

impl Holder {
    /// The holder of what a request takes; `None` where nothing is known of its sender.
    pub fn of(client: Option<&Client>, connection: Option<ConnectionId>) -> Option<Self> {
        match client {
            Some(Client::Named(id)) => Some(Self::Client(id.clone())),
            Some(Client::Marked(_)) | None => connection.map(Self::Connection),
        }
    }
}
