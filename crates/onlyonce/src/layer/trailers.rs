//! A body whose trailers carry nothing that its sender is not entitled to say.
//!
//! Trailers arrive long after the head has been judged, so nobody has checked them. They still reach the
//! other side: an HTTP/2 backend, a client that reads them, the header `Trailer`. Whatever is removed from
//! headers is removed from trailers too, on every path.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderName;
use http_body::{Body, Frame, SizeHint};
use onlyonce_core::Policy;

use super::headers::{Speaker, strip_lookalikes, strip_trailers};

/// A request header, besides those that the layer knows, that is trusted wherever it appears. It is removed
/// from trailers, where nobody has checked it. A request extension.
#[derive(Clone, Debug)]
pub struct NotInTrailers(pub HeaderName);

pin_project_lite::pin_project! {
    /// `B` without forbidden trailers. Trailers that become empty are dropped.
    pub(super) struct OwnTrailers<B> {
        #[pin]
        body: B,
        speaker: Speaker,
        policy: Arc<Policy>,
        more: Option<NotInTrailers>,
        has_ended: bool,
    }
}

impl<B> OwnTrailers<B> {
    pub(super) fn of_client(body: B, policy: Arc<Policy>, more: Option<NotInTrailers>) -> Self {
        Self {
            body,
            speaker: Speaker::Client,
            policy,
            more,
            has_ended: false,
        }
    }

    pub(super) fn of_upstream(body: B, policy: Arc<Policy>) -> Self {
        Self {
            body,
            speaker: Speaker::Upstream,
            policy,
            more: None,
            has_ended: false,
        }
    }
}

impl<B: Body<Data = Bytes>> Body for OwnTrailers<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        if *this.has_ended {
            return Poll::Ready(None);
        }
        let frame = match ready!(this.body.poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            end_or_error => return Poll::Ready(end_or_error),
        };
        let mut trailers = match frame.into_trailers() {
            Ok(trailers) => trailers,
            Err(frame) => return Poll::Ready(Some(Ok(frame))),
        };
        *this.has_ended = true;
        strip_trailers(&mut trailers, *this.speaker, this.policy);
        if let Some(NotInTrailers(name)) = this.more {
            trailers.remove(&*name);
            strip_lookalikes(&mut trailers, std::iter::once(&*name));
        }
        let left = Some(trailers).filter(|trailers| !trailers.is_empty());
        Poll::Ready(left.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
