//! The answer: its head as the client may see it, and a body that keeps its connection until the
//! last byte.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, Method, Response, StatusCode, Version,
    header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING},
    response::Parts,
};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::{connect::Link, pool::Pool};
use onlyonce::{
    BoxError, EndedByClose,
    body::{Framing, Whole},
    layer::strip_hop_by_hop,
};

/// The body of an answer.
///
/// It fails if the upstream stopped short of what it announced: before the end of Content-Length, before
/// the last chunk, or before END_STREAM. An answer that announced none of these ends where the connection
/// ends, and says so by [`EndedByClose`].
///
/// Read to its end, it returns its connection to the pool; dropped before, it closes it.
pub(crate) struct UpstreamBody {
    incoming: Whole<Incoming>,
    /// Held even if it is to be closed, because it must live until the body has been read.
    link: Option<Link>,
    /// Where the link goes, if it may be used again.
    home: Option<Arc<Pool>>,
}

/// Marks an answer as an upstream's own, as a response extension. A replay has none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FromUpstream;

/// Turns what hyper received into what may be passed on.
pub(super) fn receive(
    response: Response<Incoming>,
    method: &Method,
    link: Link,
    pool: Option<&Arc<Pool>>,
) -> Response<UpstreamBody> {
    let (mut head, incoming) = response.into_parts();
    let framing = Framing::of_answer(&head, method);
    if is_ended_by_close(&head, &incoming) {
        head.extensions.insert(EndedByClose);
    }
    // An HTTP/1.0 peer is not asked twice: hyper would speak HTTP/1.0 to it from now on.
    let reusable = head.version != Version::HTTP_10
        && head.status != StatusCode::SWITCHING_PROTOCOLS
        && !announces_close(&head.headers);
    if head.headers.contains_key(TRANSFER_ENCODING) {
        // It has decided where the body ends (RFC 9112 6.3); a Content-Length beside it is a lie
        // that our own listener would repeat as framing.
        head.headers.remove(CONTENT_LENGTH);
    }
    strip_hop_by_hop(&mut head.headers);
    head.version = Version::HTTP_11;
    head.extensions.insert(FromUpstream);

    let home = pool.filter(|_| reusable).map(Arc::clone);
    let mut body = UpstreamBody {
        incoming: Whole::new(framing, incoming),
        link: Some(link),
        home,
    };
    if body.incoming.is_end_stream() {
        body.release();
    }
    Response::from_parts(head, body)
}

/// Whether nothing but the end of the connection will tell where the body ends.
fn is_ended_by_close(head: &Parts, incoming: &Incoming) -> bool {
    head.version != Version::HTTP_2
        && !incoming.is_end_stream()
        && incoming.size_hint().exact().is_none()
        && !is_chunked(&head.headers)
}

/// Whether the body is sent as it is: in chunks at most, or by the old word for no coding at all.
pub(super) fn is_plainly_coded(headers: &HeaderMap) -> bool {
    words(headers, &TRANSFER_ENCODING)
        .all(|word| word.eq_ignore_ascii_case(b"chunked") || word.eq_ignore_ascii_case(b"identity"))
}

/// Whether `chunked` is the last transfer coding, as hyper reads it.
fn is_chunked(headers: &HeaderMap) -> bool {
    let last = words(headers, &TRANSFER_ENCODING).last();
    last.is_some_and(|coding| coding.eq_ignore_ascii_case(b"chunked"))
}

fn announces_close(headers: &HeaderMap) -> bool {
    words(headers, &CONNECTION).any(|option| option.eq_ignore_ascii_case(b"close"))
}

/// The members of a list, over all lines of a header.
fn words<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(name).iter();
    lines
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
}

impl UpstreamBody {
    /// The body is at its end: the connection is free.
    fn release(&mut self) {
        if let (Some(link), Some(home)) = (self.link.take(), self.home.take()) {
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
        match ready!(Pin::new(&mut self.incoming).poll_frame(cx)) {
            Some(Ok(frame)) => {
                // A reader that knows the length does not ask again after the last byte.
                if self.incoming.is_end_stream() {
                    self.release();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                self.link = None;
                Poll::Ready(Some(Err(error)))
            }
            None => {
                self.release();
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UpstreamBody")
    }
}
