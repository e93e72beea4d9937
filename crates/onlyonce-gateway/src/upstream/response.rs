//! The answer: its head as the client may see it, and a body that keeps its connection until the last byte.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version,
    header::{CONNECTION, CONTENT_LENGTH, TRAILER, TRANSFER_ENCODING},
};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::{connect::Link, http1::Answer, pool::Pool, transport::Transport};
use onlyonce::{
    BoxError, EndedByClose,
    body::{Framing, Whole},
    layer::strip_hop_by_hop,
};

/// The body of an answer.
///
/// It fails if the upstream stops before the end that it announced: Content-Length, the last chunk, or
/// END_STREAM. An answer that announced none of these ends with its connection, and is marked
/// [`EndedByClose`].
///
/// A body that was read to its end returns its connection to the pool; a body dropped before closes it.
pub(crate) struct UpstreamBody {
    coming: Whole<Coming>,
    /// The pool that the connection returns to, if it may be used again.
    home: Option<Arc<Pool>>,
}

/// The body as received, over either HTTP version, with its connection.
pub(super) enum Coming {
    Http1(Answer),
    /// The link must live until the body was read.
    Http2(Incoming, Option<Link>),
    /// No body: the connection has become a tunnel.
    Nothing,
}

/// Response extension that marks an answer as the upstream's own. A replay has none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FromUpstream;

/// Turns what hyper received into an answer for the layer. Hop-by-hop headers are still there: what an
/// upstream says of the operation is for this hop, and `Connection` may name it. See [`pass_on`].
pub(super) fn receive(
    response: Response<Coming>,
    method: &Method,
    pool: Option<&Arc<Pool>>,
) -> Response<UpstreamBody> {
    let (mut head, coming) = response.into_parts();
    let framing = Framing::of_answer(&head, method);
    if coming.ends_by_close() {
        head.extensions.insert(EndedByClose);
    }
    // A connection to an HTTP/1.0 peer is not reused.
    let reusable = head.version != Version::HTTP_10
        && head.status != StatusCode::SWITCHING_PROTOCOLS
        && !announces_close(&head.headers);
    if head.headers.contains_key(TRANSFER_ENCODING) {
        // The transfer coding delimits the body (RFC 9112 6.3). A Content-Length beside it is wrong, and our
        // own listener would repeat it as framing.
        head.headers.remove(CONTENT_LENGTH);
    }
    plain_length(&mut head.headers);
    head.version = Version::HTTP_11;
    head.extensions.insert(FromUpstream);

    let home = pool.filter(|_| reusable).map(Arc::clone);
    let mut body = UpstreamBody {
        coming: Whole::new(framing, coming),
        home,
    };
    if body.coming.is_end_stream() {
        body.release();
    }
    Response::from_parts(head, body)
}

/// Removes from an upstream's answer what concerns only its connection, once the layer has read it. Trailers
/// are passed on, and so is their announcement.
pub(crate) fn pass_on(response: &mut Response<onlyonce::Body>) {
    let is_upstreams = response.extensions().get::<FromUpstream>().is_some();
    // Those of a switch of protocols are the gateway's own.
    if !is_upstreams || response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return;
    }
    let headers = response.headers_mut();
    let announced: Vec<HeaderValue> = headers.get_all(TRAILER).iter().cloned().collect();
    strip_hop_by_hop(headers);
    for names in announced {
        headers.append(TRAILER, names);
    }
}

/// Makes one number of a length that is said several times, which the reader of the body has found to be the
/// same: a client would have to repeat that check.
fn plain_length(headers: &mut HeaderMap) {
    let mut lengths = words(headers, &CONTENT_LENGTH);
    let length = lengths.next().map(HeaderValue::from_bytes);
    if let (Some(Ok(length)), Some(_)) = (length, lengths.next()) {
        drop(lengths);
        headers.insert(CONTENT_LENGTH, length);
    }
}

/// Whether the body is sent as it is, or in chunks: once, and in nothing else.
pub(super) fn is_plainly_coded(headers: &HeaderMap) -> bool {
    let mut codings = words(headers, &TRANSFER_ENCODING);
    codings
        .next()
        .is_none_or(|first| first.eq_ignore_ascii_case(b"chunked") && codings.next().is_none())
}

/// Whether `chunked` is the last transfer coding.
pub(super) fn is_chunked(headers: &HeaderMap) -> bool {
    let last = words(headers, &TRANSFER_ENCODING).last();
    last.is_some_and(|coding| coding.eq_ignore_ascii_case(b"chunked"))
}

fn announces_close(headers: &HeaderMap) -> bool {
    words(headers, &CONNECTION).any(|option| option.eq_ignore_ascii_case(b"close"))
}

/// The members of a list header, over all its lines.
fn words<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(name).iter();
    lines
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
}

impl UpstreamBody {
    /// Returns the connection to the pool at the end of the body.
    fn release(&mut self) {
        if let (Some(home), Some(link)) = (self.home.take(), self.coming.get_mut().take_link()) {
            home.give_back(link);
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.coming).poll_frame(cx));
        match &frame {
            // A reader that knows the length does not poll again after the last byte.
            Some(Ok(_)) if !self.coming.is_end_stream() => {}
            Some(Ok(_)) | None => self.release(),
            Some(Err(_)) => drop(self.coming.get_mut().take_link()),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.coming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.coming.size_hint()
    }
}

impl Coming {
    /// Whether only the end of the connection delimits the body.
    fn ends_by_close(&self) -> bool {
        match self {
            Self::Http1(answer) => answer.ends_by_close(),
            Self::Http2(..) | Self::Nothing => false,
        }
    }

    /// The connection, if it can be used again after its body was read.
    fn take_link(&mut self) -> Option<Link> {
        match self {
            Self::Http1(answer) => answer.take_idle().map(Link::http1),
            Self::Http2(_, link) => link.take(),
            Self::Nothing => None,
        }
    }

    /// The connection, and the bytes received after the head, when it stops being HTTP.
    pub(super) fn into_tunnel(self) -> Option<(Transport, Bytes)> {
        match self {
            Self::Http1(answer) => answer.into_tunnel(),
            Self::Http2(..) | Self::Nothing => None,
        }
    }
}

impl Body for Coming {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Http1(answer) => Pin::new(answer).poll_frame(cx).map_err(Into::into),
            Self::Http2(body, _) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Nothing => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(answer) => answer.is_end_stream(),
            Self::Http2(body, _) => body.is_end_stream(),
            Self::Nothing => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(answer) => answer.size_hint(),
            Self::Http2(body, _) => body.size_hint(),
            Self::Nothing => SizeHint::with_exact(0),
        }
    }
}

impl fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UpstreamBody")
    }
}
