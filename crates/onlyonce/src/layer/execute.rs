//! One execution, from the reservation to the durable answer. The client's connection only watches.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Request, Response, header, response::Parts};
use onlyonce_core::{
    Policy, Record,
    machine::{self, Settlement},
    policy::looked_at,
    record::{LastError, StoredBody},
};
use onlyonce_store::failpoint;
use tokio::{sync::oneshot, time::Instant};
use tower::ServiceExt;
use tower_service::Service;

use super::{
    Shared,
    capture::{Captured, capture, has_no_end, is_doubtful, is_endless, is_unkeepable},
    headers::stored,
    judge::judge,
    pipe::{cut_off, pipe, pump},
    reply,
    service::{Told, checked},
};
use crate::{
    at_once::after,
    body::{Body, BoxError},
    engine::{Attempt, Ended, Kept, Replay, drive},
    limits::{Attendance, Held, Holder, NoRoom},
    problem::Problem,
    seam::{FirstByteWithin, GuardFailed, Reservation, find_not_sent},
    stats::{Event, Stage},
    trace::Followed,
};

/// How the inner service ended.
enum Finished {
    Whole {
        parts: Parts,
        bytes: Bytes,
        trailers: Option<HeaderMap>,
        held: Held,
    },
    TooLong {
        parts: Parts,
        read: Bytes,
        rest: Body,
        /// Those that have been read already; `rest` has them too.
        trailers: Option<HeaderMap>,
        held: Held,
    },
    Truncated,
    NotSent(LastError),
    Lost,
    Panicked,
    /// The inner service did not end within `max_execution`.
    Never,
}

/// The execution task's link to its client, which is answered once.
pub(super) struct Client {
    pub(super) tell: Option<oneshot::Sender<Told>>,
    pub(super) key: HeaderValue,
    /// The `Origin` of a browser's request.
    pub(super) origin: Option<HeaderValue>,
    pub(super) followed: Followed,
    /// Whose share of the body budget the answer takes.
    pub(super) holder: Option<Holder>,
    /// Whether the client is still waiting.
    pub(super) attended: Arc<Attendance>,
}

impl Client {
    /// The answer that somebody else stored, in place of the attempt's own.
    fn replayed(&self, replay: &Replay, shared: &Shared) -> Response<Body> {
        let held = (shared.engine.body_budget(), self.holder.clone());
        let asked = (&self.key, self.origin.as_ref());
        reply::replayed(replay, asked, &shared.policy, held).unwrap_or_else(|NoRoom| {
            let mut response = Response::new(cut_off());
            *response.status_mut() = replay.response.status;
            response
        })
    }

    fn tell(&mut self, response: Response<Body>) {
        if let Some(tell) = self.tell.take() {
            failpoint!("layer.tell.before");
            // The client may have left; that changes nothing.
            drop(tell.send(Told::Answer(response)));
            failpoint!("layer.tell.after");
        }
    }
}

/// Executes the attempt and settles it.
pub(super) async fn execute<S, R>(
    shared: Arc<Shared>,
    attempt: Attempt,
    inner: S,
    mut request: Request<Body>,
    mut client: Client,
) where
    S: Service<Request<Body>, Response = Response<R>> + Send + 'static,
    S::Error: Into<BoxError> + Send,
    S::Future: Send,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    client.followed.executes(&attempt);
    let started = Instant::now();
    let guard = attempt.guard();
    let attempt = Arc::new(attempt);
    let first_byte = request.extensions_mut().remove::<FirstByteWithin>();
    let progress = Progress::new(first_byte);
    request.extensions_mut().insert(guard.clone());
    request
        .extensions_mut()
        .insert(Reservation::of(attempt.clone()));
    let finished = if guard.check().is_err() {
        Finished::NotSent(LastError::GuardFailed)
    } else {
        let timed = client.followed.timed(Stage::Upstream);
        timed.tell_upstream(request.headers_mut());
        let held = shared.engine.body_budget().account(client.holder.clone());
        let answer = (&shared.policy, held);
        let work = AssertUnwindSafe(run(inner, request, answer, &progress));
        tokio::select! {
            biased;
            finished = work.catch_unwind() => finished.unwrap_or(Finished::Panicked),
            () = watch(&shared, &attempt, &mut client, started, &progress) => Finished::Never,
        }
    };
    failpoint!("layer.executed");
    finish(&shared, &attempt, &mut client, finished, started).await;
}

/// How far the answer has arrived.
struct Progress {
    first_byte_within: Option<Duration>,
    has_begun: AtomicBool,
}

impl Progress {
    fn new(first_byte: Option<FirstByteWithin>) -> Self {
        Self {
            first_byte_within: first_byte.map(|FirstByteWithin(limit)| limit),
            has_begun: AtomicBool::new(false),
        }
    }

    /// How long the client waits, given the progress so far.
    fn timeout(&self, whole: Duration) -> Duration {
        match self.first_byte_within {
            Some(first) if !self.has_begun.load(Ordering::Relaxed) => first.min(whole),
            _ => whole,
        }
    }
}

async fn run<S, R>(
    mut inner: S,
    request: Request<Body>,
    (policy, mut held): (&Arc<Policy>, Held),
    progress: &Progress,
) -> Finished
where
    S: Service<Request<Body>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let ready = match inner.ready().await {
        Ok(ready) => ready,
        // The inner service was not called.
        Err(_) => return Finished::NotSent(LastError::NotSent),
    };
    let method = request.method().clone();
    let response = match ready.call(request).await {
        Ok(response) => response,
        Err(error) => return failed(&*error.into()),
    };
    progress.has_begun.store(true, Ordering::Relaxed);
    let (parts, body) = checked(response, &method, policy).into_parts();
    let limit = policy.max_body_size;
    let is_unkeepable = is_unkeepable(&parts, limit);
    // The beginning of a proxy's own page is read, whether it is kept or not: it says what became of the
    // request.
    let page = match is_endless(&parts.headers) {
        true => 0,
        false => looked_at(parts.status),
    };
    if is_unkeepable && page == 0 {
        return Finished::TooLong {
            parts,
            read: Bytes::new(),
            rest: body,
            trailers: None,
            held,
        };
    }
    let kept = if is_unkeepable { 0 } else { limit };
    match capture(&mut held, body, kept.max(page)).await {
        Captured::Whole { bytes, trailers } if bytes.len() as u64 > kept => Finished::TooLong {
            parts,
            read: bytes,
            rest: Body::full(Bytes::new(), trailers.clone()),
            trailers,
            held,
        },
        Captured::Whole { bytes, trailers } => Finished::Whole {
            parts,
            bytes,
            trailers,
            held,
        },
        Captured::TooLong { read, rest } => Finished::TooLong {
            parts,
            read,
            rest,
            trailers: None,
            held,
        },
        // Beyond what would be kept the answer is settled by its head, whatever becomes of the rest.
        Captured::Truncated(read) if read.len() as u64 > kept => Finished::TooLong {
            parts,
            read,
            rest: cut_off(),
            trailers: None,
            held,
        },
        // The bytes of an answer are counted even where there is no room.
        Captured::Truncated(_) | Captured::NoRoom { .. } => Finished::Truncated,
    }
}

fn failed(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Finished {
    match find_not_sent(error) {
        Some(proof) if proof.source.is::<GuardFailed>() => {
            Finished::NotSent(LastError::GuardFailed)
        }
        Some(_) => Finished::NotSent(LastError::NotSent),
        None => Finished::Lost,
    }
}

/// Sends heartbeats, ends the client's wait at `timeout`, and returns at `max_execution`. Heartbeats and
/// the client's wait are independent.
async fn watch(
    shared: &Shared,
    attempt: &Attempt,
    client: &mut Client,
    started: Instant,
    progress: &Progress,
) {
    let beats = drive::keep_alive(attempt);
    let wait = end_wait(shared, attempt, client, started, progress);
    let end = after(started, shared.policy.max_execution);
    let _ = tokio::time::timeout_at(end, async { tokio::join!(beats, wait) }).await;
    tokio::time::sleep_until(end).await;
}

/// Tells the client at `timeout` that the execution continues. The key does not change.
async fn end_wait(
    shared: &Shared,
    attempt: &Attempt,
    client: &mut Client,
    started: Instant,
    progress: &Progress,
) {
    let policy = &shared.policy;
    // The deadline is later once the answer has begun.
    let timeout = || after(started, progress.timeout(policy.timeout));
    while Instant::now() < timeout() {
        tokio::time::sleep_until(timeout()).await;
    }
    failpoint!("layer.timeout.before");
    // Another party may have completed the key in the meantime, or its lease may have lapsed.
    let response = match Box::pin(attempt.current()).await {
        Some(record) => match replay_of(&record) {
            Some(replay) => client.replayed(&replay, shared),
            None if machine::is_running(&record) => Problem::StillRunning.response(policy),
            None => Problem::TimedOut.response(policy),
        },
        None => Problem::StillRunning.response(policy),
    };
    client.tell(response);
    failpoint!("layer.timeout.after");
}

/// Makes the result durable, and only then answers the client.
async fn finish(
    shared: &Shared,
    attempt: &Attempt,
    client: &mut Client,
    finished: Finished,
    started: Instant,
) {
    let (settlement, problem) = match finished {
        Finished::NotSent(error) => (Settlement::Release(error), Problem::UpstreamNotReached),
        Finished::Truncated => (
            Settlement::Unknown(LastError::Truncated),
            Problem::ConnectionLost,
        ),
        Finished::Lost => (
            Settlement::Unknown(LastError::ConnectionLost),
            Problem::ConnectionLost,
        ),
        Finished::Panicked => (
            Settlement::Unknown(LastError::Panicked),
            Problem::ConnectionLost,
        ),
        Finished::Never => (Settlement::Unknown(LastError::Timeout), Problem::TimedOut),
        Finished::Whole { parts, bytes, .. } if is_doubtful(&parts, &bytes, &shared.policy) => (
            Settlement::Unknown(LastError::Truncated),
            Problem::ConnectionLost,
        ),
        Finished::Whole {
            parts,
            bytes,
            trailers,
            held,
        } => {
            let body = (bytes, trailers, held);
            return whole(shared, attempt, client, parts, body, started).await;
        }
        Finished::TooLong {
            parts,
            read,
            rest,
            trailers,
            held,
        } => {
            let body = (read, rest, trailers, held);
            // Boxed, since most answers are short and should not carry its size.
            return Box::pin(too_long(shared, attempt, client, parts, body, started)).await;
        }
    };
    if problem == Problem::UpstreamNotReached {
        client.followed.count(Event::NotSent);
    }
    Box::pin(end_without(
        shared, attempt, client, settlement, problem, started,
    ))
    .await;
}

/// Settles an answer that was read to its end.
async fn whole(
    shared: &Shared,
    attempt: &Attempt,
    client: &mut Client,
    mut parts: Parts,
    (bytes, trailers, mut held): (Bytes, Option<HeaderMap>, Held),
    started: Instant,
) {
    let policy = &shared.policy;
    let kept = trailers
        .as_ref()
        .map(|all| stored(all, parts.status, policy));
    let kept = kept.filter(|kept| !kept.is_empty());
    let body = StoredBody::Full {
        bytes: bytes.clone(),
        trailers: kept,
    };
    let answer = (body, &bytes[..], trailers.as_ref());
    let settlement = judge(shared, attempt, &mut parts, answer);
    let Some(ended) = settle(shared, attempt, client, &settlement, started).await else {
        return;
    };
    let response = match instead(&ended, &settlement, client, shared) {
        Some(response) => response,
        None => {
            let body = match held.may_stay().await {
                true => Body::full(held.keep(bytes), trailers.clone()),
                // The client holds more answers than its share and takes none of them. This answer is
                // stored; the retry gets it.
                false => cut_off(),
            };
            let record = record_of(&ended);
            reply::first(parts, body, trailers.as_ref(), record, &client.key, policy)
        }
    };
    client.tell(response);
}

/// Settles an answer that is too long to store: commits first, then streams its bytes.
async fn too_long(
    shared: &Shared,
    attempt: &Attempt,
    client: &mut Client,
    mut parts: Parts,
    (read, rest, trailers, mut held): (Bytes, Body, Option<HeaderMap>, Held),
    started: Instant,
) {
    let policy = &shared.policy;
    let announced = parts.headers.get_all(header::TRAILER).iter();
    let announced: Vec<HeaderValue> = announced.cloned().collect();
    let has_no_end = has_no_end(&parts, policy);
    let answer = (StoredBody::NotStored, &read[..], trailers.as_ref());
    let mut settlement = judge(shared, attempt, &mut parts, answer);
    if has_no_end {
        settlement = Settlement::Unknown(LastError::Truncated);
    }
    let Some(ended) = settle(shared, attempt, client, &settlement, started).await else {
        return;
    };
    if let Some(response) = instead(&ended, &settlement, client, shared) {
        client.tell(response);
        return;
    }
    // The answer to an execution is read to its end, whether its client has room for it or not.
    let (body, mut pipe) = match held.may_stay().await {
        true => {
            client.attended.streams();
            let (body, pipe) = pipe();
            (body, Some(pipe))
        }
        false => (cut_off(), None),
    };
    let read = held.keep(read);
    let mut response = reply::first(parts, body, None, record_of(&ended), &client.key, policy);
    for names in announced {
        // Trailers are passed on with the rest.
        response.headers_mut().append(header::TRAILER, names);
    }
    client.tell(response);
    // A slow client may take time, but only up to `max_execution`.
    let end = after(started, policy.max_execution);
    let pumped = tokio::time::timeout_at(end, pump(&mut pipe, read, rest, &client.attended)).await;
    let error = match pumped {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error,
        Err(late) => late.into(),
    };
    // Settled before the client learns of it, so that the retry is told.
    let broke_off = Settlement::Unknown(LastError::StreamBroken);
    let noted = attempt.settle(&broke_off);
    let _ = tokio::time::timeout(policy.completion_grace, noted).await;
    if let Some(pipe) = pipe {
        let _ = pipe.send(Some(Err(error))).await;
    }
}

/// The client's answer if the key's record disagrees with the attempt's own answer.
fn instead(
    ended: &Ended,
    settlement: &Settlement,
    client: &Client,
    shared: &Shared,
) -> Option<Response<Body>> {
    if let Some(replay) = other_answer(ended, settlement) {
        return Some(client.replayed(&replay, shared));
    }
    matches!(ended, Ended::Kept(Kept::Lost)).then(|| Problem::NotDurable.response(&shared.policy))
}

fn record_of(ended: &Ended) -> Option<&Record> {
    match ended {
        Ended::Settled(record) | Ended::Kept(Kept::Own(record)) => Some(record),
        Ended::Kept(Kept::Lost) => None,
    }
}

/// The stored answer, if another party completed the key with a different one.
fn other_answer(ended: &Ended, settlement: &Settlement) -> Option<Replay> {
    let Ended::Kept(Kept::Own(record)) = ended else {
        return None;
    };
    let replay = replay_of(record)?;
    if let Settlement::Complete(ours) = settlement
        && *ours == replay.response
    {
        return None;
    }
    Some(replay)
}

/// The answer that `record` holds.
fn replay_of(record: &Record) -> Option<Replay> {
    Some(Replay {
        response: record.response.clone()?,
        expires_at: record.times.expires_at,
        generation: record.generation,
        attempt: record.fence.0,
    })
}

/// Settles an attempt that brought no answer, and tells the client what that means.
async fn end_without(
    shared: &Shared,
    attempt: &Attempt,
    client: &mut Client,
    settlement: Settlement,
    problem: Problem,
    started: Instant,
) {
    let policy = &shared.policy;
    // The problem is true whether or not the store has recorded it.
    let at_grace = |client: &mut Client| client.tell(problem.response(policy));
    let ended = settled(shared, attempt, client, (&settlement, started), at_grace).await;
    let response = match ended
        .as_ref()
        .and_then(|ended| other_answer(ended, &settlement))
    {
        Some(replay) => client.replayed(&replay, shared),
        None => problem.response(policy),
    };
    client.tell(response);
}

/// Settles an attempt that brought an answer. `None` if the client could not wait; the client has then been
/// told so.
async fn settle(
    shared: &Shared,
    attempt: &Attempt,
    client: &mut Client,
    settlement: &Settlement,
    started: Instant,
) -> Option<Ended> {
    let mut is_late = false;
    let at_grace = |client: &mut Client| {
        is_late = true;
        client.followed.count(Event::StoreError);
        client.tell(Problem::NotDurable.response(&shared.policy));
    };
    let ended = settled(shared, attempt, client, (settlement, started), at_grace).await;
    if ended.is_none() {
        client.tell(Problem::NotDurable.response(&shared.policy));
    }
    ended.filter(|_| !is_late)
}

/// Makes the end of an attempt durable, and counts the outcome.
async fn settled(
    shared: &Shared,
    attempt: &Attempt,
    client: &mut Client,
    (settlement, started): (&Settlement, Instant),
    at_grace: impl FnOnce(&mut Client),
) -> Option<Ended> {
    let followed = client.followed.clone();
    let timed = followed.timed(Stage::Complete);
    let at_grace = || at_grace(client);
    let ended = drive::settle(&shared.engine, attempt, settlement, started, at_grace).await;
    drop(timed);
    if let Some(record) = ended.as_ref().and_then(record_of) {
        followed.left(record);
    }
    if attempt.release_was_wrong() {
        followed.count(Event::ReleaseWasWrong);
    }
    match (&ended, settlement) {
        // Only the fact that there was an answer is stored, not the answer.
        (_, Settlement::Complete(ours)) if ours.body == StoredBody::NotStored => {}
        (Some(Ended::Settled(_)), Settlement::Complete(_)) => followed.count(Event::Stored),
        // An earlier write, whose reply was lost, had succeeded.
        (Some(Ended::Kept(Kept::Own(record))), Settlement::Complete(ours))
            if record.response.as_ref() == Some(ours) =>
        {
            followed.count(Event::Stored);
        }
        (Some(Ended::Settled(_)), Settlement::Unknown(_)) => {
            followed.count(Event::BecameUnknown);
        }
        _ => {}
    }
    ended
}
