//! Reads a body up to the limit, and reports a body that is too long to keep.

use std::pin::{Pin, pin};

use bytes::Bytes;
use http::{HeaderMap, header, response::Parts};
use http_body_util::BodyExt;
use onlyonce_core::{Policy, policy::Profile};

use crate::{
    body::{Body, may_be_cut},
    limits::{Held, NoRoom},
    seam::EndedByClose,
};

/// The largest piece that is copied rather than shared, in bytes. A small piece can be a slice of a read
/// buffer of that size, which would stay allocated as long as the piece.
const COPIED_BYTES: usize = 64 << 10;

/// The outcome of reading a body.
pub(super) enum Captured {
    /// The complete body.
    Whole {
        bytes: Bytes,
        trailers: Option<HeaderMap>,
    },
    /// The body is longer than the limit: the bytes read so far, and the rest.
    TooLong { read: Bytes, rest: Body },
    /// The body broke off before its end.
    Truncated(Bytes),
    /// The budget has no room for more: the bytes read so far, and the rest.
    NoRoom { read: Bytes, rest: Body },
}

/// Whether the head already shows that the body cannot be kept.
pub(super) fn is_unkeepable(parts: &Parts, limit: u64) -> bool {
    let declared = parts
        .headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse::<u64>().ok());
    is_endless(&parts.headers) || declared.is_some_and(|length| length > limit)
}

/// Whether an answer is a stream of events, which may have no end.
pub(super) fn is_endless(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|value| value.to_str().ok());
    let kind = kind.and_then(|value| value.split(';').next());
    kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream"))
}

/// Whether an answer delimited by the end of its connection may be incomplete: the profile is `payments`,
/// or its JSON does not parse to the end.
pub(super) fn is_doubtful(parts: &Parts, bytes: &[u8], policy: &Policy) -> bool {
    if parts.extensions.get::<EndedByClose>().is_none() {
        return false;
    }
    has_no_end(parts, policy) || may_be_cut(&parts.headers, bytes)
}

/// Whether only the end of the connection delimits an answer, and the policy does not accept that as proof
/// of completeness.
pub(super) fn has_no_end(parts: &Parts, policy: &Policy) -> bool {
    let ended_by_close = parts.extensions.get::<EndedByClose>().is_some();
    ended_by_close && policy.profile == Profile::Payments
}

/// Reads an answer's `body` up to `limit` bytes. `held` counts its bytes even where there is no room.
pub(super) async fn capture(held: &mut Held, mut body: Body, limit: u64) -> Captured {
    let read = read(pin!(&mut body), limit, Room::Anyway(held)).await;
    captured(read, body)
}

/// Reads a request's `body` up to `limit` bytes, as far as there is room.
pub(super) async fn capture_into(mut held: Held, mut body: Body, limit: u64) -> Captured {
    let read = read(pin!(&mut body), limit, Room::IfThereIs(&mut held)).await;
    match captured(read, body) {
        Captured::Whole { bytes, trailers } => Captured::Whole {
            bytes: held.keep(bytes),
            trailers,
        },
        other => other,
    }
}

fn captured(read: Read, rest: Body) -> Captured {
    match read {
        Read::Whole { bytes, trailers } => Captured::Whole { bytes, trailers },
        Read::TooLong(read) => Captured::TooLong { read, rest },
        Read::Truncated(read) => Captured::Truncated(read),
        Read::NoRoom(read) => Captured::NoRoom { read, rest },
    }
}

/// How the bytes of a body are charged to the budget as they arrive.
pub(super) enum Room<'h> {
    /// Bytes of a request: refused where there is no room.
    IfThereIs(&'h mut Held),
    /// Bytes of an answer to an execution: counted in any case.
    Anyway(&'h mut Held),
}

impl Room<'_> {
    fn grow(&mut self, bytes: usize) -> Result<(), NoRoom> {
        match self {
            Self::IfThereIs(held) => held.grow(bytes),
            Self::Anyway(held) => {
                held.grow_anyway(bytes);
                Ok(())
            }
        }
    }
}

/// The bytes read from a body.
pub(super) enum Read {
    /// The complete body.
    Whole {
        bytes: Bytes,
        trailers: Option<HeaderMap>,
    },
    /// The body is longer than the limit.
    TooLong(Bytes),
    /// The body broke off before its end.
    Truncated(Bytes),
    /// The budget has no room for more.
    NoRoom(Bytes),
}

/// Reads `body` up to `limit` bytes, and charges them to `room` as they arrive.
pub(super) async fn read<B>(mut body: Pin<&mut B>, limit: u64, mut room: Room<'_>) -> Read
where
    B: http_body::Body<Data = Bytes>,
{
    let mut read = Pieces::default();
    let mut trailers = None;
    loop {
        if body.is_end_stream() {
            break;
        }
        let frame = match body.frame().await {
            None => break,
            Some(Err(_)) => return Read::Truncated(read.whole()),
            Some(Ok(frame)) => frame,
        };
        match frame.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) => {
                read.push(data);
                if read.len() as u64 > limit {
                    return Read::TooLong(read.whole());
                }
                if room.grow(read.capacity()).is_err() {
                    return Read::NoRoom(read.whole());
                }
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    Read::Whole {
        bytes: read.whole(),
        trailers,
    }
}

/// The bytes read so far. A large first piece is shared while it is the only one; others are copied into
/// one buffer, so that they take no more memory than their bytes.
#[derive(Default)]
struct Pieces {
    only: Bytes,
    together: Vec<u8>,
}

impl Pieces {
    fn len(&self) -> usize {
        self.only.len() + self.together.len()
    }

    /// The memory taken, in bytes.
    fn capacity(&self) -> usize {
        self.only.len() + self.together.capacity()
    }

    fn push(&mut self, piece: Bytes) {
        if self.len() == 0 && piece.len() > COPIED_BYTES {
            self.only = piece;
            return;
        }
        if !self.only.is_empty() {
            let first = std::mem::take(&mut self.only);
            self.together.reserve_exact(first.len() + piece.len());
            self.together.extend_from_slice(&first);
        } else if self.together.is_empty() {
            self.together.reserve_exact(piece.len());
        }
        self.together.extend_from_slice(&piece);
    }

    fn whole(mut self) -> Bytes {
        if !self.only.is_empty() {
            return self.only;
        }
        self.together.shrink_to_fit();
        Bytes::from(self.together)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::StreamBody;

    use super::*;
    use crate::limits::BodyBudget;

    fn body(pieces: Vec<Bytes>) -> impl http_body::Body<Data = Bytes> {
        let frames = pieces
            .into_iter()
            .map(|piece| Ok::<_, Infallible>(http_body::Frame::data(piece)));
        StreamBody::new(futures_util::stream::iter(frames))
    }

    #[tokio::test]
    async fn what_counts_is_the_memory() {
        // Of one MiB, three quarters are for large bodies. Half a MiB in five pieces takes more than that
        // while the buffer grows.
        let budget = BodyBudget::new(1 << 20);
        let mut other = budget.account(None);
        other.grow(5 << 10).expect("room beside it");
        let mut held = budget.account(None);
        let pieces = vec![Bytes::from(vec![b'x'; 100 << 10]); 5];
        let read = read(pin!(body(pieces)), 1 << 20, Room::IfThereIs(&mut held)).await;
        assert!(matches!(read, Read::NoRoom(_)));
    }

    #[tokio::test]
    async fn a_small_piece_keeps_no_large_buffer() {
        let mut held = BodyBudget::new(1 << 20).account(None);
        let buffer = Bytes::from(vec![b'x'; 64 << 10]);
        let piece = body(vec![buffer.slice(..1)]);
        let read = read(pin!(piece), 1 << 20, Room::IfThereIs(&mut held)).await;
        let Read::Whole { bytes, .. } = read else {
            panic!("it is whole");
        };
        assert_eq!(&bytes[..], b"x");
        assert!(buffer.is_unique(), "nothing else holds the buffer");
    }

    fn parts(kind: &str, ended_by_close: bool) -> Parts {
        let response = http::Response::builder().header(header::CONTENT_TYPE, kind);
        let mut parts = response.body(()).unwrap().into_parts().0;
        if ended_by_close {
            parts.extensions.insert(EndedByClose);
        }
        parts
    }

    /// Tests every prefix of a JSON answer that only the end of its connection delimits.
    #[test]
    fn an_answer_without_an_end_of_its_own() {
        const JSON: &[u8] = br#"{"a":[1,{"b":"}"}]}"#;
        let safe = Policy::default();
        for kind in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/problem+json",
        ] {
            for length in 0..=JSON.len() {
                let read = &JSON[..length];
                let doubtful = is_doubtful(&parts(kind, true), read, &safe);
                assert_eq!(doubtful, length < JSON.len(), "{kind}, {length} bytes");
                assert!(!is_doubtful(&parts(kind, false), read, &safe), "{length}");
            }
        }
        assert!(!is_doubtful(&parts("text/plain", true), b"{", &safe));
        let mut encoded = parts("application/json", true);
        let gzip = http::HeaderValue::from_static("gzip");
        encoded.headers.insert(header::CONTENT_ENCODING, gzip);
        assert!(is_doubtful(&encoded, JSON, &safe), "nobody can follow it");
        let payments = Policy::builder().profile(Profile::Payments).build();
        for kind in ["application/json", "text/plain"] {
            assert!(is_doubtful(&parts(kind, true), JSON, &payments), "{kind}");
            assert!(!is_doubtful(&parts(kind, false), JSON, &payments), "{kind}");
        }
    }
}
