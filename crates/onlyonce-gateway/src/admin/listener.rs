//! The admin listener: a bounded number of connections, each with bounded patience.

use std::{sync::Arc, time::Duration};

use axum::Router;
use http::Request;
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{net::TcpListener, sync::Semaphore};
use tower::ServiceExt;

use crate::edge::{Current, Timely, Unstalled};

/// Connections at once; further ones wait in the listener's queue.
const MAX_CONNECTIONS: usize = 256;
/// The largest head of a request, in bytes.
const MAX_HEADER_BYTES: usize = 64 << 10;
/// How long to wait before accepting again when the system is out of something.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `app` for as long as the process lives. A client may take `header_timeout` to send the head of
/// a request, `body_timeout` for its body and `send_timeout` to take some of an answer, as on the data
/// listener.
pub(super) async fn serve(listener: TcpListener, app: Router, current: &Current) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = room.clone().acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection to the admin API could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let config = current.config();
        let body_timeout = config.body_timeout;
        let app = app.clone().map_request(move |request: Request<Incoming>| {
            request.map(|body| Timely::new(body, body_timeout))
        });
        let app = TowerToHyperService::new(app);
        tokio::spawn(async move {
            let _place = place;
            let _ = stream.set_nodelay(true);
            // How a connection fails is the peer's affair.
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(config.header_timeout)
                .max_buf_size(MAX_HEADER_BYTES)
                .serve_connection(
                    TokioIo::new(Unstalled::new(stream, config.send_timeout)),
                    app,
                )
                .await;
        });
    }
}
