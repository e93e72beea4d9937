//! Wake-ups between nodes, sent as published messages. A cluster forwards them to all servers.

use std::sync::Arc;

use futures_util::StreamExt as _;
use tokio::sync::mpsc;

use super::{Inner, net::Does, script::Call};
use crate::wake::{RECONNECT_PAUSE, WORDS_PER_NOTICE, Word, notice};

/// Publishes queued words, all that have collected at once.
pub(super) async fn speak(inner: Arc<Inner>, mut words: mpsc::Receiver<Word>) {
    let channel = inner.names.channel(inner.net.database());
    let mut gathered = Vec::with_capacity(WORDS_PER_NOTICE);
    while words.recv_many(&mut gathered, WORDS_PER_NOTICE).await > 0 {
        let notice = notice(gathered.drain(..));
        let call = Call::plain("PUBLISH").arg(&channel).arg(notice);
        // A node that is not told polls.
        let _ = inner.net.call(inner.meta_slot, &call, Does::Tell).await;
    }
}

/// Listens for ever.
pub(super) async fn listen(inner: Arc<Inner>) {
    let channel = inner.names.channel(inner.net.database());
    loop {
        if let Some(client) = inner.net.any_client() {
            let subscribe = async {
                let mut heard = client.get_async_pubsub().await?;
                heard.subscribe(&channel).await?;
                Ok::<_, redis::RedisError>(heard)
            };
            let subscribed = tokio::time::timeout(inner.net.timeout(), subscribe).await;
            if let Ok(Ok(heard)) = subscribed {
                let mut messages = heard.into_on_message();
                while let Some(message) = messages.next().await {
                    if let Ok(text) = std::str::from_utf8(message.get_payload_bytes()) {
                        inner.wake.heard(text);
                    }
                }
            }
        }
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}
