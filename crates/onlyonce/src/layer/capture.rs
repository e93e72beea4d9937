//! Reads an answer up to the limit, and says when there is more of it than can be kept.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header, response::Parts};
use http_body::Body as _;
use http_body_util::BodyExt;

use crate::body::BoxError;

/// What became of an answer's body.
pub(super) enum Captured<B> {
    /// All of it.
    Whole { bytes: Bytes, trailers: Option<HeaderMap> },
    /// More than can be kept: this much has been read, and the rest is on its way.
    TooLong { read: Vec<Bytes>, rest: B },
    /// It ended before its end.
    Truncated(BoxError),
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
pub(super) async fn capture<B>(mut body: B, limit: u64) -> Captured<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    let mut read: Vec<Bytes> = Vec::new();
    let mut length = 0_u64;
    let mut trailers = None;
    loop {
        if body.is_end_stream() {
            break;
        }
        match body.frame().await {
            None => break,
            Some(Err(error)) => return Captured::Truncated(error.into()),
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
    Captured::Whole { bytes: join(read), trailers }
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
