//! HTTP/1.1 to a backend: one exchange after the other over one connection, driven by whoever waits for
//! the answer.
//!
//! No task stands between the request and the socket, so what has left of the request is known where it
//! is asked, and a request costs no wake-up but that of its answer. Only an answer that overtakes the end
//! of its request is given a task, which goes on sending; see [`overtaken`].
//!
//! Deliberately absent: pipelining, time limits (the layer owns them), and watching idle connections. A
//! connection is asked how it is just before the next request leaves.

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

/// What is read at once, in bytes: at first, and at most, where every read finds more than there is room
/// for.
const FIRST_READ: usize = 4 << 10;
const LARGEST_READ: usize = 64 << 10;

/// Why an exchange has no answer, or only a part of one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Broken {
    /// The backend closed the connection in the middle of it.
    #[error("the connection ended before the answer did")]
    Ended,
    /// The connection failed.
    #[error("the connection failed")]
    Io(#[source] io::Error),
    /// The head of the answer, or its trailers, cannot be read.
    #[error("the head of the answer is not HTTP/1.1")]
    Head(#[source] httparse::Error),
    /// The head of the answer does not come to an end.
    #[error("the head of the answer is larger than {} KiB", head::MAX_BYTES >> 10)]
    TooLarge,
    /// The body of the answer is not what its head says.
    #[error("the body of the answer cannot be told apart: {0}")]
    Framing(&'static str),
    /// The body of the request failed before its end.
    #[error("the request's own body failed")]
    Request(#[source] BoxError),
}

/// How an exchange failed.
pub(super) enum Failed {
    /// The connection had ended before; the request is here for another one.
    Ended(Box<Request<Body>>),
    /// The guard said no.
    Refused,
    /// No byte of the request has left.
    Unsent(Broken),
    /// A byte has left.
    Lost(Broken),
}

/// A connection, between two exchanges or in one.
pub(super) struct Connection {
    transport: Transport,
    /// What has come and was not taken yet.
    coming: BytesMut,
    /// What the next read has room for.
    read_size: usize,
    upload: Upload,
    /// Whether it has carried an exchange before the current one.
    used: bool,
    /// Whether it failed to take all of a request.
    shut: bool,
    /// Whether all of the current request has left, and not only as far as a secured stream's buffer.
    has_sent_all: bool,
    /// The core whose event loop it belongs to.
    core: Option<usize>,
}

/// An exchange in which the head of the answer has not come yet.
struct Exchange {
    method: Method,
    guard: Option<DispatchGuard>,
    /// Whether a byte has left.
    sent: bool,
    lines: head::Lines,
    /// Bytes of informational heads so far.
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

    /// The core whose event loop it belongs to, where there is one.
    pub(super) fn core(&self) -> Option<usize> {
        self.core
    }

    /// Sends `request`, which is fit for HTTP/1.1, and waits for the head of its answer. `guard` is asked
    /// when the first byte is due.
    pub(super) async fn exchange(
        mut self: Box<Self>,
        request: Request<Body>,
        guard: Option<DispatchGuard>,
    ) -> Result<Response<Answer>, Failed> {
        // Requests that came together leave together: a backend that is awake for the first of them need
        // not be woken for the others.
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

    /// Whether the backend is still there, and silent.
    ///
    /// tokio reads only after its event loop has seen the socket become readable, which lags behind under
    /// load, so the kernel is asked as well. Without that question a connection whose end has long arrived
    /// would be written to, and each such write is an outcome that nobody can know.
    ///
    /// After an answer nothing may come: bytes that wait are a second answer, or the beginning of a
    /// farewell. A fresh secured connection may still have something to say about itself.
    fn is_there(&mut self, cx: &mut Context<'_>) -> bool {
        self.poll_read(cx).is_pending() && self.is_silent()
    }

    /// The kernel's part of that question.
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

    /// Writes the first bytes, if the guard still allows it. The guard is asked again if an earlier try
    /// could not write a single byte: what counts is the lease at the moment when the first byte leaves.
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
            // A plain socket that fails has taken nothing; a secured one may have failed on its second try.
            Err(error) if self.transport.is_secured() => {
                Poll::Ready(Err(Failed::Lost(Broken::Io(error))))
            }
            Err(error) => Poll::Ready(Err(Failed::Unsent(Broken::Io(error)))),
        }
    }

    /// Writes what is left of the request; ready when all of it has left. A backend that takes no more of it
    /// may still answer, so that is not an error here.
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

    /// What comes next of the body that `decoder` reads.
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
    /// The head of the answer, once it is there. Informational ones before it are left out, but for the
    /// one that ends HTTP on this connection.
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

/// The body of an answer, on the connection that it comes over.
pub(super) struct Answer {
    source: Source,
    decoder: Decoder,
}

enum Source {
    /// `None` once something has gone wrong, or somebody else has the connection.
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

    /// Whether nothing but the end of the connection will tell where the body ends.
    pub(super) fn ends_by_close(&self) -> bool {
        self.decoder == Decoder::Close
    }

    /// The connection, after the body has been read to its end, if another exchange may follow.
    pub(super) fn take_idle(&mut self) -> Option<Box<Connection>> {
        let Source::Connection(connection) = &mut self.source else {
            return None;
        };
        let mut connection = connection.take()?;
        // What has come behind the answer belongs to nobody.
        if !self.decoder.is_done() || !connection.coming.is_empty() {
            return None;
        }
        connection.read_size = FIRST_READ;
        Some(connection)
    }

    /// The connection and what has come over it behind the head, when it stops being HTTP.
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
