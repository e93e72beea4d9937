//! The body type on both sides of the layer: shared bytes, or a stream.

mod whole;

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};

pub use whole::{Declared, Framing, NotWhole, Whole, may_be_cut};

/// Any error, boxed.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request or response body.
/// A request with a key reaches the inner service as complete [`Body::from`] bytes; other requests are
/// streamed. Stored answers are bytes that all replays share.
pub struct Body(Kind);

enum Kind {
    Full {
        bytes: Option<Bytes>,
        trailers: Option<Box<HeaderMap>>,
    },
    Stream(UnsyncBoxBody<Bytes, BoxError>),
}

impl Body {
    /// An empty body.
    pub fn empty() -> Self {
        Self(Kind::Full {
            bytes: None,
            trailers: None,
        })
    }

    /// Bytes, followed by trailers if there are any.
    pub fn full(bytes: Bytes, trailers: Option<HeaderMap>) -> Self {
        let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
        Self(Kind::Full {
            bytes,
            trailers: trailers.map(Box::new),
        })
    }

    /// A body that is still arriving.
    pub fn stream<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Kind::Stream(body.map_err(Into::into).boxed_unsync()))
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::full(bytes, None)
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::empty()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Full { .. } => "Body(full)",
            Kind::Stream(_) => "Body(stream)",
        })
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Kind::Full { bytes, trailers } => Poll::Ready(match bytes.take() {
                Some(bytes) => Some(Ok(Frame::data(bytes))),
                None => trailers
                    .take()
                    .map(|trailers| Ok(Frame::trailers(*trailers))),
            }),
            Kind::Stream(stream) => Pin::new(stream).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Full { bytes, trailers } => bytes.is_none() && trailers.is_none(),
            Kind::Stream(stream) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Full {
                bytes,
                trailers: None,
            } => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            // An exact length would make HTTP/1 send Content-Length, which leaves no room for
            // trailers.
            Kind::Full { .. } => SizeHint::default(),
            Kind::Stream(stream) => stream.size_hint(),
        }
    }
}
