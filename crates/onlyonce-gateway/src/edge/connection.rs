//! Accepts connections, secures them where that is configured, finds out which HTTP they speak, and
//! ends them in good order.

use std::{convert::Infallible, net::IpAddr, sync::Arc, time::Duration};

use http::Request;
use hyper::{body::Incoming, server::conn::http1, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use super::{
    Came, Current, Seat,
    linger::Lingering,
    patience::Unstalled,
    streams::{InParts, Streams},
};
use crate::{config::Config, tls};

/// How long to wait before accepting again when the system is out of something.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// What an HTTP/2 connection begins with, as far as it is needed to tell.
const HTTP2_BEGINS: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 250;
/// Header lines of one request.
const MAX_HEADERS: usize = 128;
/// How long an HTTP/2 connection may be without a request after its first one.
const IDLE_HTTP2: Duration = Duration::from_secs(300);

/// Serves until told to stop; returns when every connection has ended.
pub(crate) async fn serve(
    current: Arc<Current>,
    listener: TcpListener,
    mut stopping: watch::Receiver<bool>,
) {
    let room = Arc::new(Semaphore::new(current.config().max_connections));
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
        connections.spawn(connection(current, (stream, peer), place, stopping));
        // Ended ones are let go of as they end.
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(
    current: Arc<Current>,
    (stream, peer): (TcpStream, IpAddr),
    place: OwnedSemaphorePermit,
    mut stopping: watch::Receiver<bool>,
) {
    let config = current.config();
    // Without it small answers wait for the acknowledgement of the ones before.
    let _ = stream.set_nodelay(true);
    let seat = Seat(Arc::new(place));
    let served = config.tls.as_ref().map(|tls| tls.served.config());
    let is_secure = served.is_some();
    let talk = Talk {
        current,
        config: config.clone(),
        came: Came { peer, is_secure },
        seat,
        stopping: stopping.clone(),
    };
    // A peer that says nothing for so long is shown the door.
    let Some(served) = served else {
        let version = tokio::select! {
            () = told_to_stop(&mut stopping) => return,
            version = tokio::time::timeout(config.header_timeout, speaks_http2(&stream)) => version,
        };
        let Ok(Ok(is_http2)) = version else { return };
        let stream = Unstalled::new(stream, config.send_timeout);
        return talk.over(stream, is_http2).await;
    };
    // Below TLS, where every byte that the peer takes is seen.
    let stream = Unstalled::new(stream, config.send_timeout);
    let handshake = TlsAcceptor::from(served).accept(stream);
    let secured = tokio::select! {
        () = told_to_stop(&mut stopping) => return,
        secured = tokio::time::timeout(config.header_timeout, handshake) => secured,
    };
    match secured {
        Ok(Ok(stream)) => {
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(tls::HTTP2);
            Box::pin(talk.over(stream, is_http2)).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

/// A connection that is ready to be spoken over.
struct Talk {
    current: Arc<Current>,
    config: Arc<Config>,
    came: Came,
    seat: Seat,
    stopping: watch::Receiver<bool>,
}

impl Talk {
    /// Serves requests until the connection ends. How it fails is the peer's affair; what was executed
    /// does not depend on it.
    async fn over<T>(self, stream: T, is_http2: bool)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = TokioIo::new(stream);
        if is_http2 {
            self.http2(io).await;
        } else {
            self.http1(io).await;
        }
    }

    async fn http1<T>(self, io: TokioIo<T>)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self {
            current,
            config,
            came,
            seat,
            mut stopping,
        } = self;
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(came);
            request.extensions_mut().insert(seat.clone());
            let edge = current.edge();
            let request = Lingering::request(request);
            async move { Ok::<_, Infallible>(edge.handle(request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(config.header_timeout)
            .max_buf_size(config.max_header_bytes)
            .max_headers(MAX_HEADERS)
            .serve_connection(io, service)
            .with_upgrades();
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            _ = connection.as_mut() => {}
            () = told_to_stop(&mut stopping) => {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
        }
    }

    async fn http2<T>(self, io: TokioIo<T>)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self {
            current,
            config,
            came,
            mut stopping,
            // Held until the connection ends.
            seat: _seat,
        } = self;
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(came);
            let edge = current.edge();
            let request = Lingering::request(request);
            async move {
                let answer = edge.handle(request).await;
                Ok::<_, Infallible>(answer.map(InParts::new))
            }
        });
        let streams = Streams::new(config.send_timeout);
        let connection = http2::Builder::new(streams.clone())
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(u32::try_from(config.max_header_bytes).unwrap_or(u32::MAX))
            .keep_alive_interval(Some(config.header_timeout))
            .keep_alive_timeout(config.header_timeout)
            .serve_connection(io, service);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            _ = connection.as_mut() => return,
            () = told_to_stop(&mut stopping) => {}
            () = streams.none_yet(config.header_timeout) => return,
            () = streams.none_left(IDLE_HTTP2) => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
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
