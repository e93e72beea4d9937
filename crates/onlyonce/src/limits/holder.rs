//! The holder of bytes and of detached executions.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use onlyonce_core::CallerMark;

use super::Client;

/// One connection of a client. A server inserts one per connection into the extensions of its requests.
/// Without it, requests of unauthenticated clients are counted individually.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(u64);

impl ConnectionId {
    /// An id that no other connection of this process has.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Whose share is taken: an authenticated client's, otherwise its connection's. For bytes an unchecked
/// credential is not enough, since a client could make up a new one for each request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// An authenticated client, by its id.
    Client(Arc<str>),
    /// A caller distinguished by what it sends.
    Marked(CallerMark),
    /// A connection of an unauthenticated client.
    Connection(ConnectionId),
}

impl Holder {
    /// The holder of what a request takes; `None` if nothing is known of its sender.
    pub fn of(client: Option<&Client>, connection: Option<ConnectionId>) -> Option<Self> {
        match client {
            Some(Client::Named(id)) => Some(Self::Client(id.clone())),
            Some(Client::Marked(_)) | None => connection.map(Self::Connection),
        }
    }
}
