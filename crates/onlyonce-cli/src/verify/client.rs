//! The client of the checks: it times every exchange, and can behave like a failing client.

use onlyonce_gateway::http_client::{self, Outgoing};
use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Barrier,
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_rustls::rustls::ClientConfig;

use super::exchange::Exchange;

/// How long the server may take to end a request that broke off.
const BROKEN_OFF_FOR: Duration = Duration::from_secs(2);

/// Sends requests and times them.
#[derive(Clone)]
pub(super) struct Client {
    http: http_client::Client,
    started: Instant,
    /// From connecting to the end of the answer.
    timeout: Duration,
}

impl Client {
    pub(super) fn new(timeout: Duration, tls: Arc<ClientConfig>) -> Self {
        Self {
            http: http_client::Client::new(timeout, tls),
            started: Instant::now(),
            timeout,
        }
    }

    /// Sends `request` and reads its answer.
    pub(super) async fn send(&self, label: &'static str, request: Outgoing) -> Exchange {
        self.clone().send_after(label, request, None).await
    }

    /// Sends all requests at the same moment: every connection is open before the first byte is sent.
    pub(super) async fn send_at_once(
        &self,
        label: &'static str,
        requests: Vec<Outgoing>,
    ) -> Vec<Exchange> {
        let barrier = Arc::new(Barrier::new(requests.len()));
        let mut running = JoinSet::new();
        for request in requests {
            let barrier = Arc::clone(&barrier);
            running.spawn(self.clone().send_after(label, request, Some(barrier)));
        }
        let mut done = Vec::new();
        while let Some(exchange) = running.join_next().await {
            done.extend(exchange);
        }
        done.sort_by_key(|exchange| exchange.ended);
        done
    }

    async fn send_after(
        self,
        label: &'static str,
        request: Outgoing,
        barrier: Option<Arc<Barrier>>,
    ) -> Exchange {
        let connected = self.http.connect(&request.endpoint).await;
        if let Some(barrier) = barrier {
            barrier.wait().await;
        }
        let sent = self.started.elapsed();
        let answer = match connected {
            Ok(stream) => self.http.send_on(stream, &request).await,
            Err(error) => Err(error),
        };
        Exchange {
            label,
            request,
            sent,
            ended: self.started.elapsed(),
            answer,
        }
    }

    /// Sends `request` with a declared length one byte longer than its body, and stops there. Returns when
    /// the server has also ended the connection, or had time to.
    pub(super) async fn break_off(&self, label: &'static str, request: Outgoing) -> Exchange {
        let sent = self.started.elapsed();
        let outcome = async {
            let mut stream = self.http.connect(&request.endpoint).await?;
            let bytes = wire_form(&request, request.body.len() + 1);
            let broken = |error: std::io::Error| error.to_string();
            stream.write_all(&bytes).await.map_err(broken)?;
            stream.shutdown().await.map_err(broken)?;
            let mut ignored = Vec::new();
            let ended = stream.read_to_end(&mut ignored);
            // How and whether it ends does not matter.
            let _ = timeout(BROKEN_OFF_FOR, ended).await;
            Ok::<_, String>(())
        };
        let why = match timeout(self.timeout, outcome).await {
            Ok(Ok(())) => "we sent a part".to_owned(),
            Ok(Err(error)) => error,
            Err(_) => "no connection in time".to_owned(),
        };
        Exchange {
            label,
            request,
            sent,
            ended: self.started.elapsed(),
            answer: Err(why),
        }
    }

    /// Sends `request`, waits for `after`, and hangs up without reading.
    pub(super) async fn hang_up(
        &self,
        label: &'static str,
        request: Outgoing,
        after: Duration,
    ) -> Exchange {
        let sent = self.started.elapsed();
        let outcome = async {
            let mut stream = self.http.connect(&request.endpoint).await?;
            let written = stream
                .write_all(&wire_form(&request, request.body.len()))
                .await;
            written.map_err(|error| error.to_string())?;
            stream.flush().await.map_err(|error| error.to_string())?;
            // An answer that arrives earlier stays unread, as with a client that died.
            tokio::time::sleep(after).await;
            drop(stream);
            Ok::<_, String>(())
        };
        let why = match timeout(self.timeout, outcome).await {
            Ok(Ok(())) => "we hung up".to_owned(),
            Ok(Err(error)) => error,
            Err(_) => "no connection in time".to_owned(),
        };
        Exchange {
            label,
            request,
            sent,
            ended: self.started.elapsed(),
            answer: Err(why),
        }
    }
}

/// The request as bytes, with this declared length, for a client that only writes.
fn wire_form(outgoing: &Outgoing, declared: usize) -> Vec<u8> {
    let mut bytes = format!(
        "{} {} HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n",
        outgoing.method,
        outgoing.endpoint.target(),
        outgoing.endpoint.authority,
        declared
    )
    .into_bytes();
    let keys = outgoing.keys.iter().map(|key| (&outgoing.key_header, key));
    let headers = outgoing.headers.iter().map(|(name, value)| (name, value));
    for (name, value) in headers.chain(keys) {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&outgoing.body);
    bytes
}
