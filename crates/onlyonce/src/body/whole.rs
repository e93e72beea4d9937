//! Decides whether a body is complete, for requests and answers, over both versions of HTTP. No other code
//! does.
//!
//! A protocol library reports the end of a body in two ways, as an end and as an error, and reports some
//! broken bodies as ended: an HTTP/2 stream that its peer resets with NO_ERROR looks complete. An end is
//! therefore believed only if the framing confirms it: the declared length was reached, and over HTTP/2
//! END_STREAM or trailers were seen. Everything else becomes an error, which no reader mistakes for an end.
//!
//! Deliberately absent: chunks. The decoder reports a missing last chunk as an error.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, Version, header, request, response};
use http_body::{Body, Frame, SizeHint};

use serde::de::IgnoredAny;

use super::BoxError;

/// Why a body that has ended is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotWhole {
    /// The HTTP/2 stream ended without END_STREAM and without trailers.
    #[error("the stream was reset before its end")]
    NoEndOfStream,
    /// The body was shorter or longer than its Content-Length.
    #[error("the body is not as long as its Content-Length says")]
    OtherLength,
}

/// What a head declares about the length of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// There is no body, whatever else the head says.
    NoBody,
    /// No length: a transfer coding or the end of the stream or connection delimits the body.
    Nothing,
    /// One length, possibly repeated.
    Exactly(u64),
    /// Several lengths, or one that is not a number: no body matches.
    Nonsense,
}

/// What must be seen before a body counts as complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    declared: Declared,
    is_http2: bool,
}

impl Framing {
    /// The framing of a request's body, from its head.
    pub fn of_request(head: &request::Parts) -> Self {
        Self {
            declared: declared(&head.headers),
            is_http2: head.version == Version::HTTP_2,
        }
    }

    /// The framing of an answer's body, from its head and the request's `method`.
    pub fn of_answer(head: &response::Parts, method: &Method) -> Self {
        // These have no body, whatever length they declare (RFC 9110 8.6).
        let bodiless = *method == Method::HEAD
            || head.status.is_informational()
            || matches!(
                head.status,
                StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
            )
            || (*method == Method::CONNECT && head.status.is_success());
        Self {
            declared: match bodiless {
                true => Declared::NoBody,
                false => declared(&head.headers),
            },
            is_http2: head.version == Version::HTTP_2,
        }
    }

    /// Whether only the end of the connection delimits a body with this `head`.
    pub fn ends_by_close(&self, head: &response::Parts) -> bool {
        self.declared == Declared::Nothing
            && !self.is_http2
            && !head.headers.contains_key(header::TRANSFER_ENCODING)
    }

    /// What the head declares about the body's length.
    pub fn declared(&self) -> Declared {
        self.declared
    }
}

/// Whether an answer that only the end of its connection delimits may be incomplete: it is JSON that does not
/// parse to its end. Encoded JSON cannot be parsed here, so nothing shows that it is complete.
pub fn may_be_cut(headers: &HeaderMap, bytes: &[u8]) -> bool {
    let is_encoded = headers.contains_key(header::CONTENT_ENCODING);
    is_json(headers) && (is_encoded || serde_json::from_slice::<IgnoredAny>(bytes).is_err())
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|value| value.to_str().ok());
    let kind = kind.and_then(|value| value.split(';').next());
    kind.is_some_and(|kind| {
        let kind = kind.trim().to_ascii_lowercase();
        kind == "application/json" || kind.ends_with("+json")
    })
}

fn declared(headers: &HeaderMap) -> Declared {
    // A transfer coding overrides a length, and its decoder checks the end (RFC 9112 6.3).
    if headers.contains_key(header::TRANSFER_ENCODING) {
        return Declared::Nothing;
    }
    let mut found = Declared::Nothing;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        for length in value.as_bytes().split(|byte| *byte == b',') {
            let length = length.trim_ascii();
            let digits = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
            let text = std::str::from_utf8(length).ok().filter(|_| digits);
            let length = text.and_then(|text| text.parse().ok());
            found = match (found, length) {
                (Declared::Nothing, Some(length)) => Declared::Exactly(length),
                (Declared::Exactly(known), Some(length)) if known == length => found,
                _ => return Declared::Nonsense,
            };
        }
    }
    found
}

pin_project_lite::pin_project! {
    /// A body that fails unless it ends where its framing says.
    ///
    /// Over HTTP/2 the body itself must report its end, through [`Body::is_end_stream`] or trailers. The
    /// bodies of hyper and axum, boxed or not, and [`http_body_util::Full`] do. A body whose wrapper hides
    /// the end (a stream made into a body, for example) counts as incomplete.
    #[derive(Debug)]
    pub struct Whole<B> {
        #[pin]
        body: B,
        framing: Framing,
        read: u64,
        // Whether the end was seen, as this version of HTTP reports it.
        has_end: bool,
        failed: bool,
    }
}

impl<B: Body> Whole<B> {
    /// Wraps `body`, which arrives with `framing`.
    pub fn new(framing: Framing, body: B) -> Self {
        Self {
            has_end: !framing.is_http2 || body.is_end_stream(),
            body,
            framing,
            read: 0,
            failed: false,
        }
    }

    /// The wrapped body.
    pub fn get_mut(&mut self) -> &mut B {
        &mut self.body
    }

    fn is_as_long_as_declared(&self) -> bool {
        match self.framing.declared {
            Declared::NoBody | Declared::Nothing => true,
            Declared::Exactly(length) => self.read == length,
            Declared::Nonsense => false,
        }
    }

    /// What is wrong with a body that ends here.
    fn complaint(&self) -> Option<NotWhole> {
        if !self.has_end {
            return Some(NotWhole::NoEndOfStream);
        }
        (!self.is_as_long_as_declared()).then_some(NotWhole::OtherLength)
    }
}

impl<B> Body for Whole<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.failed {
            return Poll::Ready(None);
        }
        let frame = ready!(self.as_mut().project().body.poll_frame(cx));
        // As soon as possible: what happens to the connection afterwards changes nothing.
        if !self.has_end && self.body.is_end_stream() {
            *self.as_mut().project().has_end = true;
        }
        let this = self.as_mut().project();
        let complaint = match frame {
            Some(Ok(frame)) => {
                match frame.data_ref() {
                    Some(data) => *this.read = this.read.saturating_add(data.len() as u64),
                    None => *this.has_end = true,
                }
                return match this.framing.declared {
                    Declared::Exactly(length) if *this.read > length => {
                        *this.failed = true;
                        Poll::Ready(Some(Err(NotWhole::OtherLength.into())))
                    }
                    _ => Poll::Ready(Some(Ok(frame))),
                };
            }
            Some(Err(error)) => {
                *this.failed = true;
                return Poll::Ready(Some(Err(error.into())));
            }
            None => self.complaint(),
        };
        match complaint {
            Some(complaint) => {
                *self.project().failed = true;
                Poll::Ready(Some(Err(complaint.into())))
            }
            None => Poll::Ready(None),
        }
    }

    /// Whether the body has ended complete. A reader then need not ask for another frame.
    fn is_end_stream(&self) -> bool {
        !self.failed && self.body.is_end_stream() && self.complaint().is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use http_body_util::{BodyExt, Empty, Full};

    use super::*;

    /// A body that ends, or is cut, as it is told.
    struct Told {
        frames: VecDeque<Frame<Bytes>>,
        says_end: bool,
    }

    impl Body for Told {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Ready(self.frames.pop_front().map(Ok))
        }

        fn is_end_stream(&self) -> bool {
            self.says_end && self.frames.is_empty()
        }
    }

    fn request(version: Version, lengths: &[&str]) -> Framing {
        let mut head = http::Request::builder().version(version);
        for length in lengths {
            head = head.header("content-length", *length);
        }
        Framing::of_request(&head.body(()).unwrap().into_parts().0)
    }

    fn answer(status: u16, method: Method, length: &str) -> Framing {
        let head = http::Response::builder()
            .status(status)
            .header("content-length", length);
        Framing::of_answer(&head.body(()).unwrap().into_parts().0, &method)
    }

    async fn is_whole<B>(framing: Framing, body: B) -> bool
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<BoxError>,
    {
        let mut body = Whole::new(framing, body);
        while let Some(frame) = body.frame().await {
            if frame.is_err() {
                assert!(!body.is_end_stream(), "a part says that it has ended");
                assert!(body.frame().await.is_none(), "it fails once");
                return false;
            }
        }
        true
    }

    fn told(pieces: &[&'static str], trailers: bool, says_end: bool) -> Told {
        let data = pieces
            .iter()
            .map(|piece| Frame::data(Bytes::from_static(piece.as_bytes())));
        let trailers = trailers.then(|| Frame::trailers(HeaderMap::new()));
        Told {
            frames: data.chain(trailers).collect(),
            says_end,
        }
    }

    /// Every way to end, against every kind of framing.
    #[tokio::test]
    async fn an_end_is_believed_where_the_framing_says_it() {
        const H1: Version = Version::HTTP_11;
        const H2: Version = Version::HTTP_2;
        for says_end in [false, true] {
            for trailers in [false, true] {
                for pieces in [&[][..], &["abc"], &["a", "", "bc"], &["abcd"], &["ab"]] {
                    let length: usize = pieces.iter().map(|piece| piece.len()).sum();
                    let body = || told(pieces, trailers, says_end);
                    let ends = says_end || trailers;
                    let case = format!("{pieces:?} {trailers} {says_end}");
                    assert!(is_whole(request(H1, &[]), body()).await, "{case}");
                    assert_eq!(is_whole(request(H2, &[]), body()).await, ends, "{case}");
                    let fits = length == 3;
                    for lengths in [&["3"][..], &["3", "3"], &["3, 3"]] {
                        let whole = is_whole(request(H1, lengths), body()).await;
                        assert_eq!(whole, fits, "{case}");
                        let whole = is_whole(request(H2, lengths), body()).await;
                        assert_eq!(whole, fits && ends, "{case}");
                    }
                    for lengths in [&["3", "4"][..], &["x"], &[""], &["-3"], &["3,"]] {
                        assert!(!is_whole(request(H1, lengths), body()).await, "{case}");
                    }
                }
            }
        }
    }

    /// Bodies that are no stream of a connection are whole whatever the head's version is.
    #[tokio::test]
    async fn bodies_that_were_made_here_are_whole() {
        for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
            let framing = request(version, &[]);
            let full = || Full::new(Bytes::from_static(b"abc"));
            assert!(is_whole(framing, full()).await);
            assert!(is_whole(framing, full().boxed()).await);
            assert!(is_whole(framing, full().boxed_unsync()).await);
            assert!(is_whole(framing, crate::Body::stream(full())).await);
            assert!(is_whole(framing, crate::Body::full(Bytes::from_static(b"abc"), None)).await);
            assert!(is_whole(framing, Empty::new()).await);
            assert!(is_whole(framing, axum::body::Body::from("abc")).await);
        }
    }

    #[tokio::test]
    async fn answers_without_a_body_may_declare_one() {
        let nothing = Empty::new;
        for status in [204, 304] {
            assert!(is_whole(answer(status, Method::POST, "3"), nothing()).await);
        }
        assert!(is_whole(answer(200, Method::HEAD, "3"), nothing()).await);
        assert!(!is_whole(answer(200, Method::POST, "3"), nothing()).await);
    }
}
