//! The upstream: it executes what reaches it, counts that, and then answers, fails or falls silent
//! as the seed says. What was begun has taken effect, whatever becomes of the node that asked.

use std::{pin::Pin, sync::Arc, task::Poll, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use onlyonce::{Body, BoxError, DispatchGuard, NotSent, Outcome};
use onlyonce_core::{
    RecordId, State,
    policy::{Declared, On5xx},
};
use onlyonce_store::{Store, memory::MemoryStore};
use parking_lot::Mutex;

use crate::{
    history::{Given, History, Process},
    rng::Rng,
    setup::{CallId, Setup, variant_in},
};

/// What the upstream does with one request.
#[derive(Clone, Copy, Debug)]
struct Script {
    /// Before the first byte is sent, in milliseconds.
    connect: u64,
    /// From the first byte to the answer.
    work: u64,
    status: u16,
    declared: Option<Declared>,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
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
    fn draw(rng: &mut Rng) -> Self {
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
}

/// The upstream as one process reaches it.
#[derive(Clone)]
pub struct Upstream {
    pub history: Arc<Mutex<History>>,
    pub store: Arc<MemoryStore>,
    pub process: Process,
    /// When the store's clock last jumped.
    pub jumped_at: Arc<std::sync::atomic::AtomicU64>,
}

impl tower_service::Service<Request<Body>> for Upstream {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(serve(self.clone(), request))
    }
}

async fn serve(upstream: Upstream, request: Request<Body>) -> Result<Response<Body>, BoxError> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let Some((id, attempt)) = token(&parts.headers) else {
        upstream
            .history
            .lock()
            .violated("14: a request without a reservation came through".into());
        return Err("no token".into());
    };
    let script = {
        let mut history = upstream.history.lock();
        let script = Script::draw(&mut history.rng);
        history.say(&format!(
            "asked {} {attempt:032x} {script:?}",
            upstream.process.node
        ));
        let call = parts.extensions.get::<CallId>().map(|call| call.0);
        history.asked(attempt, call, variant_in(&body));
        script
    };
    pause(script.connect).await;
    if script.end == End::Refused {
        return Err(NotSent::new("connection refused").into());
    }
    if let Some(guard) = parts.extensions.get::<DispatchGuard>() {
        guard.check().map_err(NotSent::new)?;
    }
    {
        let record = upstream.store.peek(id).map(|reply| reply.value);
        let jumped_at = upstream.jumped_at.load(std::sync::atomic::Ordering::SeqCst);
        upstream
            .history
            .lock()
            .started(attempt, record.as_ref(), jumped_at);
    }
    pause(script.work).await;
    answer(&upstream, attempt, script)
}

async fn pause(millis: u64) {
    if millis > 0 {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

/// The two halves of `Idempotency-Attempt`: what the upstream would settle with.
fn token(headers: &http::HeaderMap) -> Option<(RecordId, u128)> {
    let token = headers.get("idempotency-attempt")?.to_str().ok()?;
    let (id, attempt) = token.split_at_checked(32)?;
    Some((id.parse().ok()?, u128::from_str_radix(attempt, 16).ok()?))
}

fn answer(upstream: &Upstream, attempt: u128, script: Script) -> Result<Response<Body>, BoxError> {
    match script.end {
        // Without the hook, so that a thousand planned panics do not fill the terminal.
        End::Panic => std::panic::resume_unwind(Box::new("a planned panic")),
        End::ConnectionLost => return Err("connection reset by peer".into()),
        _ => {}
    }
    let mut history = upstream.history.lock();
    let status = StatusCode::from_u16(script.status)?;
    let mark = history.mark(attempt);
    let long = !matches!(script.end, End::Whole | End::Truncated);
    let padding = if long { 300 } else { attempt as usize % 90 };
    let body = Bytes::from(format!("{mark}{}", "x".repeat(padding)));
    let whole = !matches!(script.end, End::Truncated | End::CrossingTruncated);
    let mut response = Response::new(match script.end {
        End::Whole => Body::from(body.clone()),
        _ => pieces(&body, whole),
    });
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert("x-mark", HeaderValue::try_from(mark)?);
    headers.insert(
        header::SET_COOKIE,
        HeaderValue::from_static("session=secret"),
    );
    match script.end {
        End::Declared => {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        End::Endless => {
            let kind = HeaderValue::from_static("text/event-stream");
            headers.insert(header::CONTENT_TYPE, kind);
        }
        _ => {}
    }
    if let Some(declared) = script.declared {
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
    if script.end != End::Truncated {
        history.given(attempt, status, script.declared, body);
    }
    Ok(response)
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

impl History {
    fn asked(&mut self, attempt: u128, call: Option<usize>, variant: Option<usize>) {
        let asked = call
            .and_then(|call| self.calls.get(call))
            .map(|call| call.ask);
        if asked.map(|ask| ask.variant) != variant {
            self.violated("3: another request's body went upstream".into());
        }
        if let Some(trial) = self.trials.get_mut(&attempt) {
            trial.call = call;
        }
        if let Some(call) = call.and_then(|call| self.calls.get_mut(call)) {
            call.attempt = Some(attempt);
        }
    }

    /// What the upstream writes into its answer: whose it is.
    fn mark(&self, attempt: u128) -> String {
        let call = self.trials.get(&attempt).and_then(|trial| trial.call);
        match call
            .and_then(|call| self.calls.get(call))
            .map(|call| call.ask)
        {
            Some(ask) => format!("{attempt:032x}/{}/{}/{}", ask.caller, ask.key, ask.variant),
            None => format!("{attempt:032x}/-/-/-"),
        }
    }

    fn given(&mut self, id: u128, status: StatusCode, declared: Option<Declared>, body: Bytes) {
        let (now, on_5xx) = (self.now, self.setup.policy.on_5xx);
        let Some(trial) = self.trials.get_mut(&id) else {
            return;
        };
        let means = meaning(status.as_u16(), trial.fence, declared, on_5xx);
        trial.declared_undone |= means == State::FailedRetryable;
        self.answered.push(id);
        trial.given = Some(Given {
            at: now,
            status,
            body,
            means,
        });
        self.say(&format!("given {id:032x} {status} {means:?}"));
    }
}

/// The rules about statuses, once more.
fn meaning(status: u16, fence: u32, declared: Option<Declared>, on_5xx: On5xx) -> State {
    match (declared, status) {
        (Some(Declared::NotExecuted), _) => State::FailedRetryable,
        (Some(Declared::Final), _) => State::Completed,
        (Some(Declared::Unknown), _) => State::Unknown,
        (None, 409 | 423 | 425) if fence > 1 => State::Unknown,
        (None, 401 | 407 | 408 | 421 | 425 | 429) => State::FailedRetryable,
        (None, 200..=499) => State::Completed,
        (None, 502 | 504) => State::Unknown,
        (None, _) => match on_5xx {
            On5xx::Retry => State::FailedRetryable,
            On5xx::Store => State::Completed,
            On5xx::Unknown => State::Unknown,
        },
    }
}

/// How long after its reservation an attempt can certainly not be begun any more: its guard counts
/// from before that, by a clock that only goes on.
pub fn certain_after(setup: &Setup) -> u64 {
    Setup::millis(setup.policy.lease) + 1
}
