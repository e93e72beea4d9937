//! Accepts connections, finds out which HTTP they speak, and ends them in good order.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::Request;
use hyper::{body::Incoming, server::conn::http1, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
};

use super::{Current, patience::Unstalled};
use crate::{auth::Peer, config::Config};

/// Connections at once; further ones wait in the listener's queue.
const MAX_CONNECTIONS: usize = 10_000;
/// How long to wait before accepting again when the system is out of something.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// What an HTTP/2 connection begins with, as far as it is needed to tell.
const HTTP2_BEGINS: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 250;
/// Header lines of one request.
const MAX_HEADERS: usize = 128;

/// Serves until told to stop; returns when every connection has ended.
pub(crate) async fn serve(
    current: Arc<Current>,
    listener: TcpListener,
    mut stopping: watch::Receiver<bool>,
) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = room.clone().acquire_owned().await else {
            break;
        };
        let accepted = tokio::select! {
            biased;
            () = told_to_stop(&mut stopping) => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok((stream, peer)) => (stream, peer.ip()),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (current, stopping) = (current.clone(), stopping.clone());
        connections.spawn(async move {
            let _place = place;
            let config = current.config();
            connection(current, &config, (stream, Peer(peer)), stopping).await;
        });
        // Ended ones are let go of as they end.
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(
    current: Arc<Current>,
    config: &Config,
    (stream, peer): (TcpStream, Peer),
    mut stopping: watch::Receiver<bool>,
) {
    // Without it small answers wait for the acknowledgement of the ones before.
    let _ = stream.set_nodelay(true);
    let version = tokio::select! {
        () = told_to_stop(&mut stopping) => return,
        version = tokio::time::timeout(config.header_timeout, speaks_http2(&stream)) => version,
    };
    // A peer that says nothing for so long is shown the door.
    let Ok(Ok(is_http2)) = version else { return };
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let edge = current.edge();
        async move { Ok::<_, Infallible>(edge.handle(request).await) }
    });
    let io = Unstalled::new(TokioIo::new(stream), config.send_timeout);
    // How a connection fails is the peer's affair; what was executed does not depend on it.
    if is_http2 {
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(u32::try_from(config.max_header_bytes).unwrap_or(u32::MAX))
            .keep_alive_interval(Some(config.header_timeout))
            .keep_alive_timeout(config.header_timeout)
            .serve_connection(io, service);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            _ = connection.as_mut() => {}
            () = told_to_stop(&mut stopping) => {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
        }
    } else {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(config.header_timeout)
            .max_buf_size(config.max_header_bytes)
            .max_headers(MAX_HEADERS)
            .serve_connection(io, service);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            _ = connection.as_mut() => {}
            () = told_to_stop(&mut stopping) => {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
        }
    }
}

/// Resolves when the gateway is to stop, or has nobody left to say so.
async fn told_to_stop(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// Looks at the first bytes without taking them.
async fn speaks_http2(stream: &TcpStream) -> std::io::Result<bool> {
    let mut begins = [0_u8; HTTP2_BEGINS.len()];
    loop {
        let seen = stream.peek(&mut begins).await?;
        if seen == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if begins[..seen] != HTTP2_BEGINS[..seen] {
            return Ok(false);
        }
        if seen == begins.len() {
            return Ok(true);
        }
        // A part of the preface: `peek` would return at once with the same bytes.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
