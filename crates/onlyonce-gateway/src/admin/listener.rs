//! The admin listener: a bounded number of connections, each with timeouts.

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::Router;
use http::Request;
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use onlyonce::ConnectionId;
use tokio::net::TcpListener;
use tower::ServiceExt;

use crate::edge::{ClientSocket, Current, Line, Lingering, Seats, Timely};

/// The connection limit. One more closes the connection that has been without an authorized request for the
/// longest; if all have one, the new connection waits.
const MAX_CONNECTIONS: usize = 256;
/// The largest head of a request, in bytes.
const MAX_HEADER_BYTES: usize = 64 << 10;
/// The pause before accepting again when the system is out of a resource.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The address that a request came from, as a request extension.
#[derive(Clone, Copy)]
pub(super) struct Peer(pub(super) IpAddr);

/// Serves `app` for as long as the process lives. As on the data listener, `header_timeout` limits the head
/// of a request, `body_timeout` its body, and `send_timeout` the time until the client takes more of an
/// answer.
pub(super) async fn serve(listener: TcpListener, app: Router, current: &Current) {
    let seats = Seats::new(MAX_CONNECTIONS);
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok((stream, peer)) => (stream, Peer(peer.ip())),
            Err(error) => {
                tracing::warn!(%error, "a connection to the admin API could not be accepted");
                seats.close_one();
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let seat = seats.take().await;
        let (id, activity) = (ConnectionId::unique(), seat.activity());
        let config = current.config();
        let body_timeout = config.body_timeout;
        let app = app
            .clone()
            .map_request(move |mut request: Request<Incoming>| {
                let extensions = request.extensions_mut();
                extensions.insert(id);
                extensions.insert(peer);
                extensions.insert(activity.clone());
                let request = Lingering::request(request);
                request.map(|body| Timely::new(body, body_timeout, None))
            });
        let app = TowerToHyperService::new(app);
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            let line = Arc::new(Line::default());
            let socket = ClientSocket::new(stream, config.send_timeout, line);
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(config.header_timeout)
                .max_buf_size(MAX_HEADER_BYTES)
                .serve_connection(TokioIo::new(socket), app);
            // Connection errors are the peer's concern.
            tokio::select! {
                _ = connection => {}
                () = seat.wanted() => {}
            }
        });
    }
}
