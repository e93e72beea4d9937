//! Reads an answer up to the limit, and says when there is more of it than can be kept.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header, response::Parts};
use http_body_util::BodyExt;

use crate::body::Body;

/// What became of an answer's body.
pub(super) enum Captured {
    /// All of it.
    Whole {
        bytes: Bytes,
        trailers: Option<HeaderMap>,
    },
    /// More than can be kept: this much has been read, and the rest is on its way.
    TooLong { read: Vec<Bytes>, rest: Body },
    /// It ended before its end.
    Truncated,
}

/// Whether it is plain from the head that the body is not to be kept.
pub(super) fn is_unkeepable(parts: &Parts, limit: u64) -> bool {
    let declared = parts
        .headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse::<u64>().ok());
    let endless = parts
        .headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream"));
    endless || declared.is_some_and(|length| length > limit)
}

/// Reads `body` up to `limit` bytes.
pub(super) async fn capture(mut body: Body, limit: u64) -> Captured {
    let mut read: Vec<Bytes> = Vec::new();
    let mut length = 0_u64;
    let mut trailers = None;
    loop {
        if http_body::Body::is_end_stream(&body) {
            break;
        }
        match body.frame().await {
            None => break,
            Some(Err(_)) => return Captured::Truncated,
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => {
                    length += data.len() as u64;
                    read.push(data);
                    if length > limit {
                        return Captured::TooLong { read, rest: body };
                    }
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            },
        }
    }
    Captured::Whole {
        bytes: join(read),
        trailers,
    }
}

/// One piece is shared as it is; several are copied together once.
fn join(mut read: Vec<Bytes>) -> Bytes {
    if read.len() <= 1 {
        return read.pop().unwrap_or_default();
    }
    let mut whole = BytesMut::with_capacity(read.iter().map(Bytes::len).sum());
    for piece in read {
        whole.extend_from_slice(&piece);
    }
    whole.freeze()
}
