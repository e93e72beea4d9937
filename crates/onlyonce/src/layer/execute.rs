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
use http::{HeaderMap, HeaderValue, Request, Response, response::Parts};
use onlyonce_core::{
    Record, StoredResponse,
    machine::Settlement,
    policy::{Declared, Remember, Verdict},
    record::{LastError, StoredBody},
};
use onlyonce_store::failpoint;
use tokio::{sync::oneshot, time::Instant};
use tower::ServiceExt;
use tower_service::Service;

use super::{
    Shared,
    capture::{Captured, capture, is_unkeepable},
    headers::{OUTCOME, compact, head_only, stored},
    pipe::{pipe, pump},
    reply,
    service::Told,
    strip_hop_by_hop,
};
use crate::{
    at_once::{after, at_once, in_time},
    body::{Body, BoxError},
    engine::{Attempt, Ended, Kept, Replay},
    problem::Problem,
    seam::{FirstByteWithin, GuardFailed, Outcome, Reservation, find_not_sent},
    stats::{Event, Stage},
    trace::Followed,
};

/// Signs of life within one lease.
const BEATS_PER_LEASE: u32 = 3;

/// How the inner service ended.
enum Finished {
    Whole {
        parts: Parts,
        bytes: Bytes,
        trailers: Option<HeaderMap>,
    },
    TooLong {
        parts: Parts,
        read: Vec<Bytes>,
        rest: Body,
    },
    Truncated,
    NotSent(LastError),
    Lost,
    Panicked,
    /// Not at all, within the longest time an execution may take.
    Never,
}

/// The client's end of the task: there until it has been told something.
struct Client {
    tell: Option<oneshot::Sender<Told>>,
    key: HeaderValue,
    followed: Followed,
}

impl Client {
    fn tell(&mut self, response: Response<Body>) {
        if let Some(tell) = self.tell.take() {
            failpoint!("layer.tell.before");
            // It may have gone; that changes nothing.
            drop(tell.send(Told::Answer(response)));
            failpoint!("layer.tell.after");
        }
    }
}

/// Executes the attempt and sees it through.
pub(super) async fn execute<S, R>(
    shared: Arc<Shared>,
    attempt: Attempt,
    inner: S,
    mut request: Request<Body>,
    (key, followed): (HeaderValue, Followed),
    tell: oneshot::Sender<Told>,
) where
    S: Service<Request<Body>, Response = Response<R>> + Send + 'static,
    S::Error: Into<BoxError> + Send,
    S::Future: Send,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    followed.executes(&attempt);
    let mut client = Client {
        tell: Some(tell),
        key,
        followed,
    };
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
        let work = AssertUnwindSafe(run(inner, request, shared.policy.max_body_size, &progress));
        tokio::select! {
            biased;
            finished = work.catch_unwind() => finished.unwrap_or(Finished::Panicked),
            () = watch(&shared, &attempt, &mut client, started, &progress) => Finished::Never,
        }
    };
    failpoint!("layer.executed");
    finish(&shared, &attempt, &mut client, finished, started).await;
}

/// How far the answer has come.
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

    /// How long the client waits, as it looks now.
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
    limit: u64,
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
        // It was not called.
        Err(_) => return Finished::NotSent(LastError::NotSent),
    };
    let response = match ready.call(request).await {
        Ok(response) => response,
        Err(error) => return failed(&*error.into()),
    };
    progress.has_begun.store(true, Ordering::Relaxed);
    let (parts, body) = response.into_parts();
    let body = Body::stream(body);
    if is_unkeepable(&parts, limit) {
        return Finished::TooLong {
            parts,
            read: Vec::new(),
            rest: body,
        };
    }
    match capture(body, limit).await {
        Captured::Whole { bytes, trailers } => Finished::Whole {
            parts,
            bytes,
            trailers,
        },
        Captured::TooLong { read, rest } => Finished::TooLong { parts, read, rest },
        Captured::Truncated => Finished::Truncated,
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

/// Shows signs of life, tells the client when it takes too long, and ends when it takes far too
/// long.
async fn watch(
    shared: &Shared,
    attempt: &Attempt,
    client: &mut Client,
    started: Instant,
    progress: &Progress,
) {
    let policy = &shared.policy;
    let beat = policy.lease / BEATS_PER_LEASE;
    let end = after(started, policy.max_execution);
    // Later, once the answer has begun.
    let timeout = || after(started, progress.timeout(policy.timeout));
    let mut next_beat = after(started, beat);
    loop {
        tokio::time::sleep_until(next_beat.min(timeout()).min(end)).await;
        let now = Instant::now();
        if now >= end {
            return;
        }
        if now >= timeout() {
            break;
        }
        if now < next_beat {
            continue;
        }
        if !attempt.renew().await {
            attempt.close();
            // Somebody else has settled the key. The result is still worth having.
            break;
        }
        next_beat = after(Instant::now(), beat);
    }
    while Instant::now() < timeout().min(end) {
        tokio::time::sleep_until(timeout().min(end)).await;
    }
    if Instant::now() >= timeout() {
        // An inner service that has not sent anything by now must not do so under a key that others
        // may settle.
        attempt.close();
        let unknown = Settlement::Unknown(LastError::Timeout);
        failpoint!("layer.timeout.before");
        // Telling the client does not wait for ever; the lease tells everybody else.
        let settled = attempt.settle(&unknown);
        let ended = tokio::time::timeout(policy.completion_grace, settled).await;
        failpoint!("layer.timeout.after");
        if let Ok(Ended::Settled(_)) = ended {
            shared.stats.count(Event::BecameUnknown);
        }
        // Somebody may have completed the key in the meantime.
        let stored = ended.ok().and_then(|ended| other_answer(&ended, &unknown));
        client.tell(match stored {
            Some(replay) => reply::replayed(&replay, &client.key, policy),
            None => Problem::TimedOut.response(policy),
        });
    }
    tokio::time::sleep_until(end).await;
}

/// Makes the end durable, and only then tells the client.
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
        Finished::Whole {
            parts,
            bytes,
            trailers,
        } => {
            return whole(shared, attempt, client, parts, bytes, trailers, started).await;
        }
        Finished::TooLong { parts, read, rest } => {
            return too_long(shared, attempt, client, parts, read, rest, started).await;
        }
    };
    if problem == Problem::UpstreamNotReached {
        shared.stats.count(Event::NotSent);
    }
    end_without(shared, attempt, client, settlement, problem, started).await;
}

/// An answer that was read to its end.
async fn whole(
    shared: &Shared,
    attempt: &Attempt,
    client: &mut Client,
    mut parts: Parts,
    bytes: Bytes,
    trailers: Option<HeaderMap>,
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
    let settlement = judge(shared, attempt, &mut parts, body);
    let Some(ended) = settle(shared, attempt, client, &settlement, started).await else {
        return;
    };
    let response = match instead(&ended, &settlement, client, shared) {
        Some(response) => response,
        None => {
            let body = Body::full(bytes, trailers.clone());
            let record = record_of(&ended);
            reply::first(parts, body, trailers.as_ref(), record, &client.key, policy)
        }
    };
    client.tell(response);
}

/// An answer that is too long to keep: the commit comes first, then its bytes flow.
async fn too_long(
    shared: &Shared,
    attempt: &Attempt,
    client: &mut Client,
    mut parts: Parts,
    read: Vec<Bytes>,
    rest: Body,
    started: Instant,
) {
    let policy = &shared.policy;
    let settlement = judge(shared, attempt, &mut parts, StoredBody::NotStored);
    let Some(ended) = settle(shared, attempt, client, &settlement, started).await else {
        return;
    };
    if let Some(response) = instead(&ended, &settlement, client, shared) {
        client.tell(response);
        return;
    }
    let (body, pipe) = pipe();
    client.tell(reply::first(
        parts,
        body,
        None,
        record_of(&ended),
        &client.key,
        policy,
    ));
    // A slow client may take its time, but not for ever.
    let end = after(started, policy.max_execution);
    let _ = tokio::time::timeout_at(end, pump(pipe, read, rest)).await;
}

/// What the client gets instead of the attempt's own answer, where the key says something else.
fn instead(
    ended: &Ended,
    settlement: &Settlement,
    client: &Client,
    shared: &Shared,
) -> Option<Response<Body>> {
    if let Some(replay) = other_answer(ended, settlement) {
        return Some(reply::replayed(&replay, &client.key, &shared.policy));
    }
    matches!(ended, Ended::Kept(Kept::Lost)).then(|| Problem::NotDurable.response(&shared.policy))
}

fn record_of(ended: &Ended) -> Option<&Record> {
    match ended {
        Ended::Settled(record) | Ended::Kept(Kept::Own(record)) => Some(record),
        Ended::Kept(Kept::Lost) => None,
    }
}

/// The stored answer, where somebody else has completed the key with another one than ours.
fn other_answer(ended: &Ended, settlement: &Settlement) -> Option<Replay> {
    let Ended::Kept(Kept::Own(record)) = ended else {
        return None;
    };
    let response = record.response.as_ref()?;
    if let Settlement::Complete(ours) = settlement
        && ours == response
    {
        return None;
    }
    Some(Replay {
        response: response.clone(),
        expires_at: record.times.expires_at,
        generation: record.generation,
        attempt: record.fence.0,
    })
}

/// What an answer means for the key.
fn judge(shared: &Shared, attempt: &Attempt, parts: &mut Parts, body: StoredBody) -> Settlement {
    let policy = &shared.policy;
    let declared = parts
        .extensions
        .remove::<Outcome>()
        .map(|outcome| outcome.0)
        .or_else(|| {
            let word = parts.headers.get(&OUTCOME)?.to_str().ok()?;
            Declared::from_word(word.trim())
        });
    strip_hop_by_hop(&mut parts.headers);
    match policy.judge(parts.status, attempt.fence(), declared) {
        Verdict::Complete => {
            let mut headers = stored(&parts.headers, parts.status, policy);
            let mut body = body;
            if policy.remember == Remember::Head {
                headers = head_only(&headers);
                body = StoredBody::NotStored;
            }
            match &mut body {
                StoredBody::Full { bytes, .. } => compact(&mut headers, bytes),
                StoredBody::NotStored => compact(&mut headers, &mut Bytes::new()),
                // No upstream makes one.
                StoredBody::Packed { .. } => {}
            }
            Settlement::Complete(Arc::new(StoredResponse {
                status: parts.status,
                headers,
                body,
            }))
        }
        Verdict::Release(error) => Settlement::Release(error),
        Verdict::Unknown(error) => Settlement::Unknown(error),
    }
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
    let told = problem.response(&shared.policy);
    let followed = client.followed.clone();
    let settle = settle_within(shared, attempt, &followed, &settlement, started);
    let mut settle = std::pin::pin!(settle);
    tokio::select! {
        biased;
        ended = &mut settle => {
            let response = match ended.as_ref().and_then(|ended| other_answer(ended, &settlement)) {
                Some(replay) => reply::replayed(&replay, &client.key, &shared.policy),
                None => told,
            };
            client.tell(response);
        }
        // What it says is true whether or not the store has heard it.
        () = tokio::time::sleep(shared.policy.completion_grace) => {
            client.tell(told);
            spooled(shared, attempt, &settlement, settle).await;
        }
    }
}

/// Settles an attempt that brought an answer. `None` when the client could not wait: it has then
/// been told so.
async fn settle(
    shared: &Shared,
    attempt: &Attempt,
    client: &mut Client,
    settlement: &Settlement,
    started: Instant,
) -> Option<Ended> {
    let followed = client.followed.clone();
    let settle = settle_within(shared, attempt, &followed, settlement, started);
    let mut settle = std::pin::pin!(settle);
    let ended = match in_time(shared.policy.completion_grace, settle.as_mut()).await {
        Some(ended) => ended,
        None => {
            shared.stats.count(Event::StoreError);
            client.tell(Problem::NotDurable.response(&shared.policy));
            spooled(shared, attempt, settlement, settle).await;
            return None;
        }
    };
    if ended.is_none() {
        client.tell(Problem::NotDurable.response(&shared.policy));
    }
    ended
}

/// Waits for `settle` with the result on this machine's disk, where there is a spool: should the
/// process end first, the next one takes it from there.
async fn spooled(
    shared: &Shared,
    attempt: &Attempt,
    settlement: &Settlement,
    settle: impl Future<Output = Option<Ended>>,
) {
    let Some(spool) = shared.engine.spool() else {
        settle.await;
        return;
    };
    let record = attempt.record();
    let kept = spool
        .keep(&**shared.engine.store(), &record, attempt.id(), settlement)
        .await;
    if let Err(error) = &kept {
        tracing::error!(%error, "a result could be kept neither by the store nor by the spool");
    }
    if settle.await.is_some() && matches!(kept, Ok(true)) {
        spool.remove(record.id, attempt.id()).await;
    }
}

/// Tries to settle for as long as an execution may take.
async fn settle_within(
    shared: &Shared,
    attempt: &Attempt,
    followed: &Followed,
    settlement: &Settlement,
    started: Instant,
) -> Option<Ended> {
    let policy = &shared.policy;
    let timed = followed.timed(Stage::Complete);
    let mut settle = std::pin::pin!(attempt.settle(settlement));
    let ended = match at_once(settle.as_mut()).await {
        Some(ended) => Some(ended),
        None => {
            // An execution that used up its time still gets the grace.
            let grace = after(Instant::now(), policy.completion_grace);
            let end = after(started, policy.max_execution).max(grace);
            tokio::time::timeout_at(end, settle).await.ok()
        }
    };
    drop(timed);
    if let Some(record) = ended.as_ref().and_then(record_of) {
        followed.left(record);
    }
    if attempt.release_was_wrong() {
        shared.stats.count(Event::ReleaseWasWrong);
    }
    match (&ended, settlement) {
        // That there was an answer is remembered, and not the answer.
        (_, Settlement::Complete(ours)) if ours.body == StoredBody::NotStored => {}
        (Some(Ended::Settled(_)), Settlement::Complete(_)) => shared.stats.count(Event::Stored),
        // An earlier try whose answer was lost had succeeded.
        (Some(Ended::Kept(Kept::Own(record))), Settlement::Complete(ours))
            if record.response.as_ref() == Some(ours) =>
        {
            shared.stats.count(Event::Stored);
        }
        (Some(Ended::Settled(_)), Settlement::Unknown(_)) => {
            shared.stats.count(Event::BecameUnknown);
        }
        _ => {}
    }
    ended
}
