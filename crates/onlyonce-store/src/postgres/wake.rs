//! Wake-ups between nodes, sent as notifications.

use std::sync::Arc;

use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::sync::mpsc;

use super::server::Shared;
use crate::{
    sql::line::{Dial as _, abandon},
    wake::{RECONNECT_PAUSE, WORDS_PER_NOTICE, Word, notice},
};

/// The notification channel.
const CHANNEL: &str = "onlyonce";

/// Sends queued words, all that have collected at once, in statements of its own: within a batch, every
/// commit would take a lock that all databases of the server share.
pub(super) async fn speak(shared: Arc<Shared>, mut words: mpsc::Receiver<Word>) {
    let mut connection = None;
    let mut gathered = Vec::with_capacity(WORDS_PER_NOTICE);
    while words.recv_many(&mut gathered, WORDS_PER_NOTICE).await > 0 {
        let notice = notice(gathered.drain(..));
        if connection.is_none() {
            connection = shared
                .line
                .connect()
                .await
                .ok()
                .map(|(connection, _)| connection);
        }
        let Some(open) = &mut connection else {
            tokio::time::sleep(RECONNECT_PAUSE).await;
            continue;
        };
        let statement = sqlx::query("SELECT pg_notify($1, $2)")
            .bind(CHANNEL)
            .bind(notice);
        let said = tokio::time::timeout(shared.target().timeout(), statement.execute(open)).await;
        if !matches!(said, Ok(Ok(_)))
            && let Some(lost) = connection.take()
        {
            abandon(lost);
        }
    }
}

/// Listens for ever.
pub(super) async fn listen(shared: Arc<Shared>) {
    loop {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(shared.target().timeout())
            .connect_lazy_with(shared.target().options());
        if let Ok(mut listener) = PgListener::connect_with(&pool).await
            && listener.listen(CHANNEL).await.is_ok()
        {
            // `None` is a lost connection: the next one may be to another host.
            while let Ok(Some(notice)) = listener.try_recv().await {
                shared.wake.heard(notice.payload());
            }
        }
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}
