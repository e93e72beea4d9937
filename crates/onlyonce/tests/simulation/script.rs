//! What the upstream does with one request, and what its answer looks like.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::StreamBody;
use onlyonce::{Body, BoxError, Outcome};
use onlyonce_core::{RecordId, policy::Declared};

use crate::{rng::Rng, setup::Ask};

/// What the upstream does with one request.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// Before the first byte is sent, in milliseconds.
    pub connect: u64,
    /// From the first byte to the answer.
    pub work: u64,
    status: u16,
    pub declared: Option<Declared>,
    pub end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Not even begun.
    Refused,
    Whole,
    Truncated,
    /// More than is kept: declared, endless, or found out on the way.
    Declared,
    Endless,
    Crossing,
    CrossingTruncated,
    ConnectionLost,
    Panic,
}

impl Script {
    pub fn draw(rng: &mut Rng) -> Self {
        let connect = match rng.between(0, 100) {
            0..86 => 0,
            86..94 => rng.between(1, 300),
            _ => rng.between(300, 4_500),
        };
        let work = match rng.between(0, 100) {
            0..45 => rng.between(0, 30),
            45..70 => rng.between(30, 800),
            70..92 => rng.between(800, 6_000),
            _ => rng.between(6_000, 9_500),
        };
        let status = rng.pick(&[
            200, 200, 200, 200, 201, 201, 201, 303, 402, 404, 409, 409, 425, 429, 429, 500, 500,
            503, 502,
        ]);
        let declared = match rng.between(0, 100) {
            0..3 => Some(Declared::NotExecuted),
            3..5 => Some(Declared::Final),
            5..7 => Some(Declared::Unknown),
            _ => None,
        };
        let end = match rng.between(0, 100) {
            0..9 => End::Refused,
            9..70 => End::Whole,
            70..75 => End::Truncated,
            75..78 => End::Declared,
            78..80 => End::Endless,
            80..83 => End::Crossing,
            83..85 => End::CrossingTruncated,
            85..95 => End::ConnectionLost,
            _ => End::Panic,
        };
        Self {
            connect,
            work,
            status,
            declared,
            end,
        }
    }

    /// The answer to `attempt`, and its body if the upstream has given one; or how it failed.
    pub fn respond(
        self,
        attempt: u128,
        mark: &str,
    ) -> Result<(Response<Body>, Option<Bytes>), BoxError> {
        match self.end {
            // Without the hook, so that a thousand planned panics do not fill the terminal.
            End::Panic => std::panic::resume_unwind(Box::new("a planned panic")),
            End::ConnectionLost => return Err("connection reset by peer".into()),
            _ => {}
        }
        let long = !matches!(self.end, End::Whole | End::Truncated);
        let padding = if long { 300 } else { attempt as usize % 90 };
        let body = Bytes::from(format!("{mark}{}", "x".repeat(padding)));
        let whole = !matches!(self.end, End::Truncated | End::CrossingTruncated);
        let mut response = Response::new(match self.end {
            End::Whole => Body::from(body.clone()),
            _ => pieces(&body, whole),
        });
        *response.status_mut() = self.status()?;
        let headers = response.headers_mut();
        headers.insert("x-mark", HeaderValue::try_from(mark)?);
        headers.insert(
            header::SET_COOKIE,
            HeaderValue::from_static("session=secret"),
        );
        match self.end {
            End::Declared => {
                headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
            }
            End::Endless => {
                let kind = HeaderValue::from_static("text/event-stream");
                headers.insert(header::CONTENT_TYPE, kind);
            }
            _ => {}
        }
        if let Some(declared) = self.declared {
            if attempt.is_multiple_of(2) {
                response.extensions_mut().insert(Outcome(declared));
            } else {
                let word = match declared {
                    Declared::NotExecuted => "not-executed",
                    Declared::Final => "final",
                    Declared::Unknown => "unknown",
                };
                response
                    .headers_mut()
                    .insert("idempotency-outcome", HeaderValue::from_static(word));
            }
        }
        Ok((response, (self.end != End::Truncated).then_some(body)))
    }

    pub fn status(self) -> Result<StatusCode, BoxError> {
        Ok(StatusCode::from_u16(self.status)?)
    }
}

/// What the upstream writes into its answer to `attempt`: whose it is.
pub fn mark(attempt: u128, ask: Option<Ask>) -> String {
    match ask {
        Some(ask) => format!("{attempt:032x}/{}/{}/{}", ask.caller, ask.key, ask.variant),
        None => format!("{attempt:032x}/-/-/-"),
    }
}

pub async fn pause(millis: u64) {
    if millis > 0 {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

/// The two halves of `Idempotency-Attempt`: what the upstream would settle with.
pub fn token(headers: &http::HeaderMap) -> Option<(RecordId, u128)> {
    let token = headers.get("idempotency-attempt")?.to_str().ok()?;
    let (id, attempt) = token.split_at_checked(32)?;
    Some((id.parse().ok()?, u128::from_str_radix(attempt, 16).ok()?))
}

/// The body in two pieces, or the first of them and then a broken connection.
fn pieces(body: &Bytes, whole: bool) -> Body {
    let cut = body.len() * 9 / 10;
    let first = Ok(Frame::data(body.slice(..cut)));
    let second = if whole {
        Ok(Frame::data(body.slice(cut..)))
    } else {
        Err(BoxError::from("connection reset by peer"))
    };
    Body::stream(StreamBody::new(stream::iter([first, second])))
}
