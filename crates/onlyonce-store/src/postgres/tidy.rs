//! Keeps the table of live keys small.
//!
//! Every key passes through `live` and leaves a dead row there. The server's autovacuum runs once a minute at
//! best, and until then each new key takes fresh space; at thousands of keys a second that would be most of
//! the storage. So the node that settles many keys also vacuums after them.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use sqlx::Executor as _;

use super::server::Shared;
use crate::sql::line::abandon;

/// How often the count of settled keys is checked.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Dead rows that are worth a vacuum: less than a megabyte.
const WORTH_IT: u64 = 2_000;
/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(10);

/// Skips its turn while another node vacuums, and never returns pages to the file system, which would lock
/// the table.
const VACUUM: &str = "VACUUM (SKIP_LOCKED, TRUNCATE false) onlyonce.live";

/// Vacuums for ever. A role that does not own the table cannot, and leaves it to the server.
pub(super) async fn keep_small(shared: Arc<Shared>) {
    let mut connection = None;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if shared.settled.load(Ordering::Relaxed) < WORTH_IT {
            continue;
        }
        shared.settled.store(0, Ordering::Relaxed);
        if connection.is_none() {
            connection = shared
                .line
                .connect()
                .await
                .ok()
                .map(|(connection, _)| connection);
        }
        let done = match &mut connection {
            Some(connection) => connection.execute(VACUUM).await.is_ok(),
            None => false,
        };
        if !done {
            if let Some(connection) = connection.take() {
                abandon(connection);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
