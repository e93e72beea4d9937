//! HTTP/1.1 to a backend: one exchange after another over one connection, driven by the task that waits for
//! the answer.
//!
//! No task stands between the request and the socket, so it is known on the spot how much of the request was
//! sent, and a request costs only the wake-up for its answer. Only an answer that arrives before its request
//! is fully sent gets a task, which goes on sending; see [`overtaken`].
//!
//! Deliberately absent: pipelining, time limits (the layer owns them), and watching idle connections. A
//! connection is checked just before the next request is sent.

use std::{
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncReadExt, AsyncWrite};

use super::transport::{Peer, Transport};
use crate::cores;
use onlyonce::{Body, BoxError, DispatchGuard};
use onlyonce_store::failpoint;

mod decoder;
mod head;
mod overtaken;
mod upload;

use decoder::{Decoded, Decoder};
use overtaken::Overtaken;
use upload::Upload;

/// The buffer for one read, in bytes: at first, and at most. It grows as long as every read fills it.
const FIRST_READ: usize = 4 << 10;
const LARGEST_READ: usize = 64 << 10;

/// Why an exchange has no answer, or only part of one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Broken {
    /// The backend closed the connection in the middle of the exchange.
    #[error("the connection ended before the answer did")]
    Ended,
    /// The connection failed.
    #[error("the connection failed")]
    Io(#[source] io::Error),
    /// The head of the answer, or its trailers, cannot be read.
    #[error("the head of the answer is not HTTP/1.1")]
    Head(#[source] httparse::Error),
    /// The head of the answer is too large.
    #[error("the head of the answer is larger than {} KiB", head::MAX_BYTES >> 10)]
    TooLarge,
    /// The body of the answer does not match its head.
    #[error("the body of the answer cannot be told apart: {0}")]
    Framing(&'static str),
    /// The body of the request failed before its end.
    #[error("the request's own body failed")]
    Request(#[source] BoxError),
}

/// How an exchange failed.
pub(super) enum Failed {
    /// The connection had already ended; the request is returned for another one.
    Ended(Box<Request<Body>>),
    /// The guard refused.
    Refused,
    /// No byte of the request was sent.
    Unsent(Broken),
    /// A byte was sent.
    Lost(Broken),
}

/// A connection, between two exchanges or in one.
pub(super) struct Connection {
    transport: Transport,
    /// Bytes received and not yet consumed.
    coming: BytesMut,
    /// The buffer size of the next read.
    read_size: usize,
    upload: Upload,
    /// Whether it carried an exchange before the current one.
    used: bool,
    /// Whether the backend stopped taking the request before its end.
    shut: bool,
    /// Whether all of the current request was sent, and flushed from a TLS stream's buffer.
    has_sent_all: bool,
    /// The core whose event loop drives the connection.
    core: Option<usize>,
}

/// An exchange whose answer's head has not arrived yet.
struct Exchange {
    method: Method,
    guard: Option<DispatchGuard>,
    /// Whether a byte was sent.
    sent: bool,
    lines: head::Lines,
    /// Bytes of informational (1xx) heads so far.
    informed: usize,
}

impl Connection {
    pub(super) fn new(transport: Transport) -> Box<Self> {
        Box::new(Self {
            transport,
            coming: BytesMut::new(),
            read_size: FIRST_READ,
            upload: Upload::default(),
            used: false,
            shut: false,
            has_sent_all: false,
            core: cores::here(),
        })
    }

    /// The core whose event loop drives the connection, if there is one.
    pub(super) fn core(&self) -> Option<usize> {
        self.core
    }

    /// Sends `request`, which is fit for HTTP/1.1, and waits for the head of its answer. `guard` is checked
    /// just before the first byte.
    pub(super) async fn exchange(
        mut self: Box<Self>,
        request: Request<Body>,
        guard: Option<DispatchGuard>,
    ) -> Result<Response<Answer>, Failed> {
        // Requests that arrived together are sent together: a backend that is awake for the first need not be
        // woken for the others.
        tokio::task::yield_now().await;
        let is_there = poll_fn(|cx| Poll::Ready(self.is_there(cx)));
        if !is_there.await {
            return Err(Failed::Ended(Box::new(request)));
        }
        let mut exchange = Exchange {
            method: request.method().clone(),
            guard,
            sent: false,
            lines: head::Lines::default(),
            informed: 0,
        };
        self.upload.begin(request);
        self.has_sent_all = false;
        let head = poll_fn(|cx| self.poll_head(cx, &mut exchange)).await?;
        self.used = true;
        failpoint!("upstream.answered");
        let (head, ()) = head.into_parts();
        let decoder = Decoder::new(&head, &exchange.method).map_err(Failed::Lost)?;
        let answer = Answer::new(self, decoder, head.status);
        Ok(Response::from_parts(head, answer))
    }

    /// Whether the backend is still connected, and silent.
    ///
    /// tokio reads only after its event loop has seen the socket become readable, which lags behind under
    /// load, so the kernel is asked as well. Otherwise the gateway would write to a connection whose end
    /// arrived long ago, and every such write has an unknown outcome.
    ///
    /// After an answer nothing may arrive: waiting bytes are a second answer, or the start of a shutdown. On
    /// a new TLS connection, messages of TLS itself may still arrive.
    fn is_there(&mut self, cx: &mut Context<'_>) -> bool {
        self.poll_read(cx).is_pending() && self.is_silent()
    }

    /// The kernel's part of this check.
    pub(super) fn is_silent(&self) -> bool {
        let may_speak = self.transport.is_secured() && !self.used;
        matches!(self.transport.peer(may_speak), Ok(Peer::Silent))
    }

    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut Exchange,
    ) -> Poll<Result<Response<()>, Failed>> {
        if !exchange.sent {
            ready!(self.poll_first_write(cx, exchange))?;
        }
        if !self.has_sent_all
            && let Poll::Ready(sent) = self.poll_upload(cx)
        {
            sent.map_err(Failed::Lost)?;
            self.has_sent_all = true;
        }
        loop {
            let head = exchange.next_head(&mut self.coming).map_err(Failed::Lost)?;
            if let Some(head) = head {
                return Poll::Ready(Ok(head));
            }
            match ready!(self.poll_read(cx)).map_err(|error| Failed::Lost(Broken::Io(error)))? {
                0 => return Poll::Ready(Err(Failed::Lost(Broken::Ended))),
                _ => self.transport.acknowledge(),
            }
        }
    }

    /// Writes the first bytes, if the guard still allows it. The guard is checked again if an earlier try
    /// wrote no byte: what counts is the lease at the moment of the first byte.
    fn poll_first_write(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut Exchange,
    ) -> Poll<Result<(), Failed>> {
        if let Poll::Ready(Err(error)) = self.upload.poll_fill(cx) {
            return Poll::Ready(Err(Failed::Unsent(Broken::Request(error))));
        }
        failpoint!("upstream.guard.before");
        if exchange
            .guard
            .as_ref()
            .is_some_and(|guard| guard.check().is_err())
        {
            return Poll::Ready(Err(Failed::Refused));
        }
        failpoint!("upstream.first_byte.before");
        let wrote = self.upload.poll_write(cx, &mut self.transport);
        failpoint!("upstream.first_byte.after");
        match ready!(wrote) {
            Ok(()) => {
                exchange.sent = true;
                exchange.guard = None;
                Poll::Ready(Ok(()))
            }
            // A plain socket that fails has written nothing; a TLS stream may have failed on its second try.
            Err(error) if self.transport.is_secured() => {
                Poll::Ready(Err(Failed::Lost(Broken::Io(error))))
            }
            Err(error) => Poll::Ready(Err(Failed::Unsent(Broken::Io(error)))),
        }
    }

    /// Writes the rest of the request; ready when all of it was sent. A backend that takes no more of it may
    /// still answer, so that is not an error here.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        loop {
            if self.shut {
                return Poll::Pending;
            }
            if self.upload.is_done() {
                break;
            }
            if let Poll::Ready(Err(error)) = self.upload.poll_fill(cx) {
                return Poll::Ready(Err(Broken::Request(error)));
            }
            if !self.upload.has_bytes() {
                break;
            }
            failpoint!("upstream.more_bytes.before");
            let wrote = self.upload.poll_write(cx, &mut self.transport);
            failpoint!("upstream.more_bytes.after");
            match ready!(wrote) {
                Ok(()) => {}
                Err(_) => self.shut = true,
            }
        }
        match ready!(Pin::new(&mut self.transport).poll_flush(cx)) {
            Ok(()) if self.upload.is_done() => Poll::Ready(Ok(())),
            Ok(()) => Poll::Pending,
            Err(_) => {
                self.shut = true;
                Poll::Pending
            }
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.coming.reserve(self.read_size);
        let room = self.coming.capacity() - self.coming.len();
        let count = ready!(pin!(self.transport.read_buf(&mut self.coming)).poll(cx))?;
        if count == room {
            self.read_size = (2 * self.read_size).min(LARGEST_READ);
        }
        Poll::Ready(Ok(count))
    }

    /// The next part of the body that `decoder` reads.
    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        decoder: &mut Decoder,
    ) -> Poll<Result<Decoded, Broken>> {
        loop {
            match decoder.decode(&mut self.coming)? {
                Decoded::More => {}
                decoded => return Poll::Ready(Ok(decoded)),
            }
            match ready!(self.poll_read(cx)).map_err(Broken::Io)? {
                0 => return Poll::Ready(decoder.ends_here().map(|()| Decoded::End)),
                _ => self.transport.acknowledge(),
            }
        }
    }
}

impl Exchange {
    /// The head of the answer, once it has arrived. Informational (1xx) heads before it are skipped, except
    /// for the 101 that ends HTTP on this connection.
    fn next_head(&mut self, coming: &mut BytesMut) -> Result<Option<Response<()>>, Broken> {
        loop {
            let before = coming.len();
            let Some(head) = head::take(coming, &mut self.lines)? else {
                if self.informed + before > head::MAX_BYTES {
                    return Err(Broken::TooLarge);
                }
                return Ok(None);
            };
            self.informed += before - coming.len();
            if self.informed > head::MAX_BYTES {
                return Err(Broken::TooLarge);
            }
            let status = head.status();
            if !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS {
                return Ok(Some(head));
            }
        }
    }
}

/// The body of an answer, with the connection that it arrives over.
pub(super) struct Answer {
    source: Source,
    decoder: Decoder,
}

enum Source {
    /// `None` after an error, or once the connection was taken out.
    Connection(Option<Box<Connection>>),
    Overtaken(Overtaken),
}

impl Answer {
    fn new(connection: Box<Connection>, decoder: Decoder, status: StatusCode) -> Self {
        let stays = connection.has_sent_all || status == StatusCode::SWITCHING_PROTOCOLS;
        let source = if stays {
            Source::Connection(Some(connection))
        } else {
            Source::Overtaken(Overtaken::start(*connection, decoder.clone()))
        };
        Self { source, decoder }
    }

    /// Whether only the end of the connection delimits the body.
    pub(super) fn ends_by_close(&self) -> bool {
        self.decoder == Decoder::Close
    }

    /// The connection, after the body was read to its end, if another exchange may follow.
    pub(super) fn take_idle(&mut self) -> Option<Box<Connection>> {
        let Source::Connection(connection) = &mut self.source else {
            return None;
        };
        let mut connection = connection.take()?;
        // Bytes after the answer belong to no request.
        if !self.decoder.is_done() || !connection.coming.is_empty() {
            return None;
        }
        connection.read_size = FIRST_READ;
        Some(connection)
    }

    /// The connection, and the bytes received after the head, when it stops being HTTP.
    pub(super) fn into_tunnel(self) -> Option<(Transport, Bytes)> {
        match self.source {
            Source::Connection(connection) => {
                connection.map(|it| (it.transport, it.coming.freeze()))
            }
            Source::Overtaken(_) => None,
        }
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = self.get_mut();
        let connection = match &mut this.source {
            Source::Connection(Some(connection)) => connection,
            Source::Connection(None) => return Poll::Ready(None),
            Source::Overtaken(answer) => return answer.poll_frame(cx),
        };
        match ready!(connection.poll_body(cx, &mut this.decoder)) {
            Ok(Decoded::Frame(frame)) => Poll::Ready(Some(Ok(frame))),
            Ok(_) => Poll::Ready(None),
            Err(error) => {
                this.source = Source::Connection(None);
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.source, Source::Connection(_)) && self.decoder.is_done()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.decoder {
            Decoder::Length(left) => SizeHint::with_exact(*left),
            Decoder::Chunked(_) | Decoder::Close => SizeHint::default(),
        }
    }
}
