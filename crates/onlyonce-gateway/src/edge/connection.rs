//! Accepts connections, secures them if configured, detects their HTTP version, and closes them gracefully.

use std::{
    convert::Infallible,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use http::{HeaderValue, Request, StatusCode, header};
use hyper::{body::Incoming, server::conn::http1, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use onlyonce::ConnectionId;
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest},
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::watch,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use super::{
    Came, Current, KeptSeat, Seats, Worked,
    explained::{Explained, date},
    line::{ClientSocket, Line},
    linger::Lingering,
    seats::Seat,
    streams::{InParts, Streams},
};
use crate::{
    config::Config,
    cores::{Cores, Place},
    tls,
};

/// How long to wait before accepting again when the system is out of a resource.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The HTTP/2 connection preface.
const HTTP2_BEGINS: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Concurrent requests on one HTTP/2 connection.
const MAX_STREAMS: u32 = 250;
/// How long an HTTP/2 connection may be without a request after its first one.
const IDLE_HTTP2: Duration = Duration::from_secs(300);

/// How long after the stop signal connections are still accepted and idle ones are left open: a request may
/// be on its way, and would be closed without an answer.
const LAST_REQUEST: Duration = Duration::from_secs(1);

/// Serves until told to stop; returns when every connection has ended.
pub(crate) async fn serve(
    current: Arc<Current>,
    listener: TcpListener,
    cores: Arc<Cores>,
    stopping: watch::Receiver<bool>,
) {
    let mut door = Door {
        cores,
        seats: Seats::new(current.config().max_connections),
        connections: JoinSet::new(),
        waiting: None,
        current,
        listener,
        stopping: stopping.clone(),
    };
    door.open_until(told_to_stop(stopping)).await;
    if !door.connections.is_empty() {
        door.open_until(tokio::time::sleep(LAST_REQUEST)).await;
    }
    door.let_in_the_last();
    let Door {
        listener,
        mut connections,
        ..
    } = door;
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Accepts connections.
struct Door {
    cores: Arc<Cores>,
    current: Arc<Current>,
    listener: TcpListener,
    seats: Arc<Seats>,
    connections: JoinSet<()>,
    /// A connection that was accepted and has no seat yet.
    waiting: Option<(TcpStream, IpAddr)>,
    stopping: watch::Receiver<bool>,
}

impl Door {
    /// Accepts connections until `closed`.
    async fn open_until(&mut self, closed: impl Future<Output = ()>) {
        let mut closed = std::pin::pin!(closed);
        loop {
            // Connections that have ended are dropped here.
            while self.connections.try_join_next().is_some() {}
            if self.waiting.is_none() {
                let accepted = tokio::select! {
                    biased;
                    () = &mut closed => return,
                    accepted = self.listener.accept() => accepted,
                };
                match accepted {
                    Ok((stream, peer)) => self.waiting = Some((stream, peer.ip())),
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        // If the system is out of a resource, an idle connection may hold it.
                        self.seats.close_one();
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                }
            }
            let seat = tokio::select! {
                biased;
                () = &mut closed => return,
                seat = self.seats.take() => seat,
            };
            self.let_in(seat);
        }
    }

    /// Gives the waiting connection its seat.
    fn let_in(&mut self, seat: Seat) {
        let Some((stream, peer)) = self.waiting.take() else {
            return;
        };
        let (core, place) = self.cores.next();
        let (current, stopping) = (self.current.clone(), self.stopping.clone());
        let accepting = Handle::current();
        // An event loop polls only sockets that are registered with it.
        let socket = stream.into_std();
        let connection = async move {
            let home = Home {
                place: Arc::new(place),
                accepting,
            };
            match socket.and_then(TcpStream::from_std) {
                Ok(stream) => connection((current, home), (stream, peer), seat, stopping).await,
                Err(error) => tracing::warn!(%error, "a connection could not be taken over"),
            }
        };
        self.connections.spawn_on(connection.boxed(), &core);
    }

    /// Accepts connections that have already arrived while seats last: closing the listener would reset them.
    fn let_in_the_last(&mut self) {
        loop {
            if self.waiting.is_none() {
                let Some(Ok((stream, peer))) = self.listener.accept().now_or_never() else {
                    return;
                };
                self.waiting = Some((stream, peer.ip()));
            }
            let Some(seat) = self.seats.take().now_or_never() else {
                return;
            };
            self.let_in(seat);
        }
    }
}

/// Where a connection is served.
struct Home {
    /// Its place on its core.
    place: Arc<Place>,
    /// The runtime that accepted the connection.
    accepting: Handle,
}

async fn connection(
    served: (Arc<Current>, Home),
    (stream, peer): (TcpStream, IpAddr),
    seat: Seat,
    stopping: watch::Receiver<bool>,
) {
    let seat = Arc::new(seat);
    let talking = talk(served, stopping, (stream, peer), seat.clone());
    tokio::select! {
        () = talking => {}
        () = seat.wanted() => tracing::debug!("a silent connection made room for another"),
    }
}

async fn talk(
    (current, home): (Arc<Current>, Home),
    stopping: watch::Receiver<bool>,
    (stream, peer): (TcpStream, IpAddr),
    seat: Arc<Seat>,
) {
    let config = current.config();
    // Without `TCP_NODELAY` small answers wait for the acknowledgement of earlier ones.
    let _ = stream.set_nodelay(true);
    let served = config.tls.as_ref().map(|tls| tls.served.config());
    let is_secure = served.is_some();
    let line = Arc::new(Line::default());
    let talk = Talk {
        current,
        home,
        config: config.clone(),
        came: Came { peer, is_secure },
        seat,
        line: line.clone(),
        stopping: stopping.clone(),
    };
    // A peer that is silent for this long is disconnected.
    let Some(served) = served else {
        let version = tokio::select! {
            () = last_request(stopping) => return,
            version = tokio::time::timeout(config.header_timeout, speaks_http2(&stream)) => version,
        };
        let Ok(Ok(is_http2)) = version else { return };
        let stream = ClientSocket::new(stream, config.send_timeout, line);
        return talk.over(stream, is_http2).await;
    };
    let stream = ClientSocket::new(stream, config.send_timeout, line);
    let handshake = TlsAcceptor::from(served).accept(stream);
    let secured = tokio::select! {
        () = last_request(stopping) => return,
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

/// The turns of a connection on its core. Each turn serves one request: a client that has pipelined a
/// thousand requests waits for the other connections between them.
#[derive(Default)]
struct Turns {
    begun: AtomicU64,
    used: AtomicU64,
}

impl Turns {
    fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether this turn has already served a request. It has from now on.
    fn is_over(&self) -> bool {
        let turn = self.begun.load(Ordering::Relaxed);
        self.used.swap(turn, Ordering::Relaxed) == turn
    }
}

/// A connection that is ready for HTTP.
struct Talk {
    current: Arc<Current>,
    home: Home,
    config: Arc<Config>,
    came: Came,
    seat: Arc<Seat>,
    line: Arc<Line>,
    stopping: watch::Receiver<bool>,
}

impl Talk {
    /// Serves requests until the connection ends. Errors of the connection are ignored; an execution does not
    /// depend on them.
    async fn over<T>(self, stream: T, is_http2: bool)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        if is_http2 {
            self.http2(TokioIo::new(stream)).await;
        } else {
            let explained = Explained::new(stream, self.current.clone());
            self.http1(TokioIo::new(explained)).await;
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
            line,
            stopping,
            home,
        } = self;
        let id = ConnectionId::unique();
        let stops = stopping.clone();
        let turns = Arc::new(Turns::default());
        let turn = turns.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            let waits = turn.is_over();
            request.extensions_mut().insert(came);
            request.extensions_mut().insert(id);
            request.extensions_mut().insert(line.presence.clone());
            let (version, line) = (request.version(), line.clone());
            let activity = seat.activity();
            if request.headers().contains_key(header::UPGRADE) {
                let kept = (seat.clone(), home.place.clone(), activity.work());
                request.extensions_mut().insert(KeptSeat(Arc::new(kept)));
            }
            let working = activity.work();
            request.extensions_mut().insert(activity);
            let edge = current.edge();
            let request = Lingering::request(request);
            let stops = stops.clone();
            async move {
                if waits {
                    tokio::task::yield_now().await;
                }
                let mut answer = edge.handle(request).await;
                date(answer.headers_mut());
                if *stops.borrow() && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
                    let close = HeaderValue::from_static("close");
                    answer.headers_mut().insert(header::CONNECTION, close);
                }
                let answer = answer.map(|body| Worked::new(body, working).over(line, version));
                Ok::<_, Infallible>(answer)
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(config.header_timeout)
            // At most a hundred lines, hyper's default: for more it would allocate its table on the heap.
            .max_buf_size(config.max_header_size)
            .auto_date_header(false)
            // A client that has closed its sending side may still read.
            .half_close(true)
            .serve_connection(io, service)
            .with_upgrades();
        let mut connection = std::pin::pin!(connection);
        let in_turns = std::future::poll_fn(|cx| {
            turns.begin();
            connection.as_mut().poll(cx)
        });
        tokio::select! {
            _ = in_turns => {}
            () = last_request(stopping) => {
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
            home,
            config,
            came,
            stopping,
            seat,
            ..
        } = self;
        let id = ConnectionId::unique();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(came);
            request.extensions_mut().insert(id);
            let activity = seat.activity();
            let working = activity.work();
            request.extensions_mut().insert(activity);
            let edge = current.edge();
            let request = Lingering::request(request);
            async move {
                let answer = edge.handle(request).await;
                let answer = answer.map(|body| Worked::new(body, working));
                Ok::<_, Infallible>(answer.map(InParts::new))
            }
        });
        let streams = Streams::new(config.send_timeout, home.accepting.clone());
        let connection = http2::Builder::new(streams.clone())
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(u32::try_from(config.max_header_size).unwrap_or(u32::MAX))
            .keep_alive_interval(Some(config.header_timeout))
            .keep_alive_timeout(config.header_timeout)
            .serve_connection(io, service);
        let mut connection = std::pin::pin!(connection);
        // GOAWAY loses no request, but a connection whose first request is on its way cannot be sent one yet.
        let first = last_request(stopping.clone());
        let told = async {
            told_to_stop(stopping).await;
            if !streams.are_used() {
                first.await;
            }
        };
        tokio::select! {
            _ = connection.as_mut() => return,
            () = told => {}
            () = streams.none_yet(config.header_timeout) => return,
            () = streams.none_left(IDLE_HTTP2) => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}

/// Resolves when the gateway is told to stop, or its control channel is gone.
async fn told_to_stop(mut stopping: watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// Resolves when no further request is waited for: [`LAST_REQUEST`] after the gateway was told to stop.
async fn last_request(stopping: watch::Receiver<bool>) {
    told_to_stop(stopping).await;
    tokio::time::sleep(LAST_REQUEST).await;
}

/// Peeks at the first bytes.
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
        // Part of the preface, and the peer sends no more.
        if stream.ready(Interest::READABLE).await?.is_read_closed() {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        // `peek` would return immediately with the same bytes.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_turn_has_one_request() {
        let turns = Turns::default();
        for _ in 0..3 {
            turns.begin();
            assert!(!turns.is_over(), "the first of its turn");
            assert!(turns.is_over());
            assert!(turns.is_over());
        }
        turns.begin();
        turns.begin();
        assert!(!turns.is_over(), "one without a request");
    }
}
