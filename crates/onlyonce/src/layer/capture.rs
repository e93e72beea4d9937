//! Reads a body up to the limit, and says when there is more of it than can be kept.

use std::pin::{Pin, pin};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header, response::Parts};
use http_body_util::BodyExt;

use crate::{body::Body, engine::Room};

/// What became of a body.
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

/// Reads an answer's `body` up to `limit` bytes.
pub(super) async fn capture(mut body: Body, limit: u64) -> Captured {
    let read = read(pin!(&mut body), limit, None).await;
    captured(read, body)
}

/// Reads a request's `body` up to `limit` bytes, and takes `room` for what it keeps.
pub(super) async fn capture_into(mut room: Room<'_>, mut body: Body, limit: u64) -> Captured {
    let read = read(pin!(&mut body), limit, Some(&mut room)).await;
    match captured(read, body) {
        Captured::Whole { bytes, trailers } => Captured::Whole {
            bytes: room.keep(bytes),
            trailers,
        },
        other => other,
    }
}

fn captured(read: Read, rest: Body) -> Captured {
    match read {
        Read::Whole { bytes, trailers } => Captured::Whole { bytes, trailers },
        Read::TooLong(read) => Captured::TooLong { read, rest },
        Read::Truncated => Captured::Truncated,
    }
}

/// What was read of a body.
pub(super) enum Read {
    /// All of it.
    Whole {
        bytes: Bytes,
        trailers: Option<HeaderMap>,
    },
    /// This, and there is more than can be kept.
    TooLong(Vec<Bytes>),
    /// It ended before its end.
    Truncated,
}

/// Reads `body` up to `limit` bytes, and takes `room` for them as they arrive.
pub(super) async fn read<B>(
    mut body: Pin<&mut B>,
    limit: u64,
    mut room: Option<&mut Room<'_>>,
) -> Read
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
            Some(Err(_)) => return Read::Truncated,
            Some(Ok(frame)) => frame,
        };
        match frame.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) => {
                read.push(data);
                if read.len() as u64 > limit {
                    return Read::TooLong(vec![read.whole()]);
                }
                if let Some(room) = &mut room {
                    room.grow(read.len()).await;
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

/// What has been read so far. One piece is shared as it is; several are copied together as they come,
/// so that many small ones take no more memory than their bytes.
#[derive(Default)]
struct Pieces {
    only: Bytes,
    together: BytesMut,
}

impl Pieces {
    fn len(&self) -> usize {
        self.only.len() + self.together.len()
    }

    fn push(&mut self, piece: Bytes) {
        if self.len() == 0 {
            self.only = piece;
            return;
        }
        if self.together.is_empty() {
            self.together.reserve(self.only.len() + piece.len());
            let first = std::mem::take(&mut self.only);
            self.together.extend_from_slice(&first);
        }
        self.together.extend_from_slice(&piece);
    }

    fn whole(self) -> Bytes {
        match self.together.is_empty() {
            true => self.only,
            false => self.together.freeze(),
        }
    }
}
