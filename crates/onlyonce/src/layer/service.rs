//! The path of one request through the layer, up to the point where it has to be executed.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header, request::Parts};
use onlyonce_core::{
    Policy,
    machine::Refusal,
    policy::{OnInFlight, OnStoreError},
    record::State,
};
use onlyonce_store::StoreError;
use tokio::{sync::oneshot, time::Instant};
use tower::ServiceExt;
use tower_service::Service;

use super::{
    Identity, Shared,
    capture::{Read, Room, read},
    execute::{Client, execute},
    headers::{ATTEMPT, Sent, preferred_wait, strip_announced, strip_claims, take_outcome},
    keep_end_to_end, reply,
    request::{Wanted, arrived, brings_key, wanted},
    seen_through::SeenThrough,
    shadow,
    trailers::{NotInTrailers, OwnTrailers},
};
use crate::{
    at_once::{after, in_time},
    audit::Probe,
    body::{Body, BoxError, Framing, Whole},
    engine::{Admitted, Arrival, Attempt, Retried, Unavailable, Woken},
    key_status::{KeyStatus, STATUS, tell_only_keyed},
    limits::{self, Attendance, ConnectionId, Holder, Presence},
    problem::Problem,
    stats::{Event, Stage},
    trace::{Followed, Timed, Trace},
};

/// The longest `Retry-After` of a client that exceeds its rate.
const LONGEST_RETRY_AFTER_SECONDS: u64 = 60;
/// The `Retry-After` of a client with too many live keys.
const QUOTA_RETRY_AFTER_SECONDS: u64 = 5;

/// The service that [`IdempotencyLayer`](super::IdempotencyLayer) makes.
pub struct IdempotencyService<S> {
    shared: Arc<Shared>,
    inner: S,
}

impl<S: Clone> Clone for IdempotencyService<S> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            inner: self.inner.clone(),
        }
    }
}

impl<S> IdempotencyService<S> {
    pub(super) fn new(shared: Arc<Shared>, inner: S) -> Self {
        Self { shared, inner }
    }

    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service. Changes apply to requests from now on.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service, without the layer.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: fmt::Debug> fmt::Debug for IdempotencyService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyService")
            .field("route", &self.shared.route)
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for IdempotencyService<S>
where
    S: Service<Request<Body>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Into<BoxError> + Send + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    /// Always ready: `call` waits for the inner service, and an inner service that fails to become ready
    /// has executed nothing.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (shared, inner) = (self.shared.clone(), self.inner.clone());
        if let Some(probe) = request.extensions().get::<Probe>() {
            let answer = probe.met(&shared, request.method());
            return Box::pin(std::future::ready(Ok(answer)));
        }
        Box::pin(async move {
            let arrived = Instant::now();
            let (mut parts, body) = request.into_parts();
            // From here on, reading a partial body is an error.
            let body = Whole::new(Framing::of_request(&parts), body);
            let elsewhere = parts.extensions.remove::<NotInTrailers>();
            let body = OwnTrailers::of_client(body, shared.policy.clone(), elsewhere);
            strip_claims(&mut parts.headers, &shared.policy);
            keep_end_to_end(&mut parts.headers, &[]);
            let stats = shared.stats.clone();
            let trace = Trace::begin(&shared.route, &parts.method, &parts.headers);
            // Shadow mode does not touch the requests that it observes.
            let is_keyed = shared.observations.is_none() && brings_key(&shared.policy, &parts);
            let mut answered = meet(shared, inner, parts, body, &trace, arrived).await;
            if let Ok(response) = &mut answered {
                tell_only_keyed(response.headers_mut(), is_keyed);
            }
            stats.took(Stage::Request, arrived);
            if let Ok(response) = &answered {
                trace.answered(response.status());
            }
            answered
        })
    }
}

/// Handles a request whose head has been read.
async fn meet<S, B, R>(
    shared: Arc<Shared>,
    inner: S,
    mut parts: Parts,
    body: B,
    trace: &Trace,
    arrived: Instant,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Into<BoxError> + Send + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    if let Some(observations) = &shared.observations {
        return Box::pin(shadow::observe(&shared, observations, inner, parts, body)).await;
    }
    let (sent, identity) = match wanted(&shared, &parts) {
        Wanted::Key(sent, identity) => (sent, identity),
        Wanted::Nothing | Wanted::Keyless => {
            let _upstream = trace.passed_on(&mut parts.headers);
            return pass(inner, parts, Body::stream(body), &shared.policy).await;
        }
        Wanted::Refuse(rejected) => {
            shared.stats.count(rejected.event());
            return Ok(rejected.problem().response(&shared.policy));
        }
    };
    let pending = match gather(&shared, parts, body, (sent, identity), trace).await {
        Ok(pending) => pending,
        Err(problem) => return Ok(problem.response(&shared.policy)),
    };
    answer(shared, inner, pending, arrived).await
}

pub(super) async fn pass<S, R>(
    inner: S,
    parts: Parts,
    body: Body,
    policy: &Arc<Policy>,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let method = parts.method.clone();
    let response = inner.oneshot(Request::from_parts(parts, body)).await?;
    let (mut parts, body) = checked(response, &method, policy).into_parts();
    take_outcome(&mut parts.headers, &mut parts.extensions, policy);
    Ok(Response::from_parts(parts, body))
}

/// The answer to a request with `method`. Its body fails unless it ends complete, and its trailers contain
/// no header that only the layer may set.
pub(super) fn checked<R>(
    response: Response<R>,
    method: &Method,
    policy: &Arc<Policy>,
) -> Response<Body>
where
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let (mut parts, body) = response.into_parts();
    strip_announced(&mut parts.headers, policy);
    let body = Whole::new(Framing::of_answer(&parts, method), body);
    let body = OwnTrailers::of_upstream(body, policy.clone());
    Response::from_parts(parts, Body::stream(body))
}

/// A request that has arrived complete. The arrival keeps its headers until the request is sent.
pub(super) struct Pending {
    parts: Parts,
    arrival: Arrival,
    body: Bytes,
    key: HeaderValue,
    /// The `Origin` of a browser's request.
    origin: Option<HeaderValue>,
    prefers: Option<u64>,
    followed: Followed,
    /// Runs until it is known what the key's past permits.
    reserving: Option<Timed>,
}

async fn gather<B>(
    shared: &Shared,
    mut parts: Parts,
    body: B,
    (sent, identity): (Sent, Identity),
    trace: &Trace,
) -> Result<Box<Pending>, Problem>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let limit = shared.policy.max_request_body;
    let too_large = || {
        shared.stats.count(Event::TooLarge);
        Problem::RequestTooLarge(limit)
    };
    // A declared length that is too large is believed, so that none of the body is read.
    if body.size_hint().lower() > limit {
        return Err(too_large());
    }
    let connection = parts.extensions.get::<ConnectionId>().copied();
    let holder = Holder::of(identity.client_id().as_ref(), connection);
    let gathered = async {
        let mut held = shared.engine.body_budget().account(holder.clone());
        match read(std::pin::pin!(body), limit, Room::IfThereIs(&mut held)).await {
            Read::Whole { bytes, .. } => Ok(held.keep(bytes)),
            Read::TooLong(_) => Err(too_large()),
            Read::Truncated(_) => Err(Problem::RequestIncomplete),
            Read::NoRoom(_) => Err(Problem::Overloaded),
        }
    };
    // The request body has as long to arrive as the answer.
    let gathered = in_time(shared.policy.timeout, gathered).await;
    let gathered = gathered.unwrap_or(Err(Problem::RequestTimeout));
    if matches!(
        gathered,
        Err(Problem::RequestTimeout | Problem::RequestIncomplete)
    ) {
        shared.stats.count(Event::Incomplete);
    }
    if gathered == Err(Problem::Overloaded) {
        shared.stats.tally(identity.name()).count(Event::Overloaded);
    }
    let body = gathered?;
    let prefers = preferred_wait(&parts.headers);
    let origin = parts.headers.get(header::ORIGIN).cloned();
    let headers = std::mem::take(&mut parts.headers);
    let arrival = arrived(shared, &parts, headers, (&sent, &identity), body.clone()).await;
    let arrival = arrival.held_for(holder);
    trace.about(&shared.engine, arrival.key(), arrival.id());
    let tally = shared.stats.tally(identity.name());
    let followed = Followed::new(tally, trace.clone(), arrival.id());
    Ok(Box::new(Pending {
        parts,
        arrival,
        body,
        key: sent.value,
        origin,
        prefers,
        followed,
        reserving: None,
    }))
}

impl Pending {
    /// The request for the inner service.
    fn into_request(
        mut self: Box<Self>,
        attempt: Option<&Attempt>,
        policy: &Policy,
    ) -> (Request<Body>, HeaderValue) {
        self.parts.headers = self.arrival.take_headers();
        let headers = &mut self.parts.headers;
        headers.insert(
            header::ACCEPT_ENCODING,
            HeaderValue::from_static("identity"),
        );
        if let Some(attempt) = attempt
            && let Ok(token) = HeaderValue::try_from(attempt.token())
        {
            headers.insert(&ATTEMPT, token);
            // An upstream that knows the key knows it in the first attempt's spelling.
            if let Some(spelling) = attempt.spelling(self.arrival.key()) {
                headers.insert(policy.header_name.clone(), spelling);
            }
        }
        (
            Request::from_parts(self.parts, Body::from(self.body)),
            self.key,
        )
    }

    fn deadline(&self, arrived: Instant, longest: Duration) -> Instant {
        let wait = self
            .prefers
            .map_or(longest, |prefers| longest.min(Duration::from_secs(prefers)));
        after(arrived, wait)
    }
}

/// Messages from the execution task to the client's connection.
pub(super) enum Told {
    /// The client's answer.
    Answer(Response<Body>),
    /// Nothing is executed: the engine's decision, and the request back.
    Admitted(Admitted, Box<Pending>),
    /// The store could not be reached.
    Unavailable(Unavailable, Box<Pending>),
}

async fn answer<S, R>(
    shared: Arc<Shared>,
    inner: S,
    mut pending: Box<Pending>,
    arrived: Instant,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Into<BoxError> + Send + 'static,
    S::Future: Send + 'static,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    if !shared.is_prepared()
        && let Err(error) = Box::pin(shared.prepare()).await
    {
        return Box::pin(unavailable(&shared, inner, pending, &error, false)).await;
    }
    let policy = &shared.policy;
    pending.reserving = Some(pending.followed.timed(Stage::Reserve));
    let mut next = shared.engine.peek(&mut pending.arrival, policy);
    if next.is_some() {
        pending.reserving = None;
    }
    let mut waited = false;
    loop {
        let admitted = match next.take() {
            Some(admitted) => admitted,
            None => {
                let (tell, mut told) = oneshot::channel();
                let executes_as = pending.arrival.executes_as().cloned();
                let attended = shared.engine.detached_executions().execution(executes_as);
                if let Some(presence) = pending.parts.extensions.get::<Presence>() {
                    presence.waits_for(&attended);
                }
                let asked = ask(
                    shared.clone(),
                    inner.clone(),
                    pending,
                    tell,
                    attended.clone(),
                );
                // From here on, a client that disconnects changes nothing.
                let mut work = SeenThrough::new(asked, attended);
                let heard = tokio::select! {
                    biased;
                    () = &mut work => told.await,
                    heard = &mut told => heard,
                };
                drop(work);
                match heard {
                    Ok(Told::Answer(response)) => return Ok(response),
                    Ok(Told::Admitted(admitted, back)) => {
                        pending = back;
                        admitted
                    }
                    Ok(Told::Unavailable(error, back)) => {
                        return Box::pin(unavailable(&shared, inner, back, &error, waited)).await;
                    }
                    // The task ended without a message: what it did is not known here.
                    Err(_) => return Ok(Problem::NotDurable.response(policy)),
                }
            }
        };
        let how = match settled_answer(&shared, admitted, &pending) {
            Ok(response) => return Ok(response),
            Err(how) => how,
        };
        if !waited {
            pending.followed.count(Event::InProgress);
        }
        let deadline = pending.deadline(arrived, policy.wait_timeout);
        if how != OnInFlight::Wait || Instant::now() >= deadline {
            shared
                .engine
                .note_retry(pending.arrival.id(), Retried::Refused);
            pending.followed.found_running();
            let route = pending
                .arrival
                .scope()
                .is_of_route()
                .then_some(&*shared.route);
            let problem = reply::in_flight(how, pending.arrival.key(), route);
            return Ok(problem.response(policy));
        }
        let Some(place) = shared.engine.join(&pending.arrival, policy) else {
            return Ok(still_running(&shared, &pending));
        };
        if !waited {
            waited = true;
            pending.followed.count(Event::Waited);
        }
        let wait = shared
            .engine
            .wait(place, &mut pending.arrival, policy, deadline);
        // Boxed, since most requests do not wait and should not carry its size.
        match Box::pin(wait).await {
            Ok(Some(Woken::Answer(admitted))) => next = Some(*admitted),
            Ok(Some(Woken::AskAgain)) => {}
            Ok(None) => return Ok(still_running(&shared, &pending)),
            Err(error) => {
                return Box::pin(unavailable(&shared, inner, pending, &error, true)).await;
            }
        }
    }
}

/// The answer to a request that may not wait, or not any longer.
fn still_running(shared: &Shared, pending: &Pending) -> Response<Body> {
    shared
        .engine
        .note_retry(pending.arrival.id(), Retried::Refused);
    pending.followed.found_running();
    Problem::InProgress.response(&shared.policy)
}

/// The answer to a request that is not executed, or what to do about the attempt in flight.
fn settled_answer(
    shared: &Shared,
    admitted: Admitted,
    pending: &Pending,
) -> Result<Response<Body>, OnInFlight> {
    let (policy, followed) = (&shared.policy, &pending.followed);
    match admitted {
        Admitted::Replay(replay) => {
            let holder = pending.arrival.holder().cloned();
            let budget = shared.engine.body_budget();
            let asked = (&pending.key, pending.origin.as_ref());
            let Ok(response) = reply::replayed(&replay, asked, policy, (budget, holder)) else {
                followed.count(Event::Overloaded);
                return Ok(Problem::AnswerOverloaded.response(policy));
            };
            followed.count(Event::Replayed);
            followed.replayed(&replay);
            shared
                .engine
                .note_retry(pending.arrival.id(), Retried::Answered);
            Ok(response)
        }
        Admitted::Refused(refusal @ (Refusal::Reused(_) | Refusal::CallerDiffers(_))) => {
            Ok(misused(shared, pending, &refusal).response(policy))
        }
        Admitted::Limited(limited) => {
            let (event, problem) = limit_reached(limited);
            followed.count(event);
            Ok(problem.response(policy))
        }
        Admitted::Refused(refusal) => {
            let (event, state) = match &refusal {
                Refusal::Reused(state) => (Event::Misused, Some(*state)),
                Refusal::CallerDiffers(state) => (Event::CallerDiffers, Some(*state)),
                Refusal::OutcomeUnknown => (Event::Unknown, Some(State::Unknown)),
                Refusal::ResponseNotStored { .. } => (Event::NotStored, Some(State::Completed)),
                Refusal::Expired => (Event::Expired, Some(State::Expired)),
            };
            followed.count(event);
            followed.found(state);
            shared
                .engine
                .note_retry(pending.arrival.id(), Retried::Refused);
            let route = pending
                .arrival
                .scope()
                .is_of_route()
                .then_some(&*shared.route);
            Ok(reply::refused(&refusal, pending.arrival.key(), route).response(policy))
        }
        Admitted::InFlight(how) => Err(how),
        // Only the execution task is admitted to execute.
        Admitted::Execute(_) => Ok(Problem::NotDurable.response(policy)),
    }
}

/// The refusal for a client that may not bring a new key.
fn limit_reached(limited: limits::Limited) -> (Event, Problem) {
    use limits::Limited;
    match limited {
        Limited::TooOld => (Event::TooOld, Problem::RequestTooOld),
        Limited::Rate(wait) => (Event::RateLimited, Problem::RateLimited(seconds(wait))),
        Limited::Detached => (Event::Overloaded, Problem::TooManyDetached),
        Limited::Bytes => (Event::Overloaded, Problem::Overloaded),
        Limited::HistoryLost => (Event::HistoryLost, Problem::HistoryLost),
        Limited::Quota => (
            Event::KeyQuota,
            Problem::KeyQuota(QUOTA_RETRY_AFTER_SECONDS),
        ),
    }
}

/// The refusal for a caller that uses a key for another request, or uses another caller's key. A caller
/// that does so too often is rate limited, since guessing keys would otherwise be free.
fn misused(shared: &Shared, pending: &Pending, refusal: &Refusal) -> Problem {
    let client = pending.arrival.client();
    match shared.engine.room_to_look(client, &shared.policy) {
        Ok(()) => {
            pending.followed.count(match refusal {
                Refusal::CallerDiffers(_) => Event::CallerDiffers,
                _ => Event::Misused,
            });
            pending.followed.found(None);
            reply::refused(refusal, pending.arrival.key(), None)
        }
        Err(wait) => {
            pending.followed.count(Event::RateLimited);
            Problem::RateLimited(seconds(wait))
        }
    }
}

/// `wait` in whole seconds, rounded up, for `Retry-After`.
fn seconds(wait: Duration) -> u64 {
    let up = u64::from(wait.subsec_nanos() > 0);
    (wait.as_secs() + up).clamp(1, LONGEST_RETRY_AFTER_SECONDS)
}

async fn ask<S, R>(
    shared: Arc<Shared>,
    inner: S,
    mut pending: Box<Pending>,
    tell: oneshot::Sender<Told>,
    attended: Arc<Attendance>,
) where
    S: Service<Request<Body>, Response = Response<R>> + Send + 'static,
    S::Error: Into<BoxError> + Send,
    S::Future: Send,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let _running = shared.engine.running();
    let Some(_room) = shared.engine.room_to_execute() else {
        // A known key can still be answered; only a new execution finds no room.
        let known = shared
            .engine
            .look(&mut pending.arrival, &shared.policy)
            .await;
        return drop(tell.send(match known {
            Ok(Some(admitted)) => Told::Admitted(admitted, pending),
            Ok(None) => {
                pending.followed.count(Event::NotSent);
                Told::Answer(Problem::UpstreamNotReached.response(&shared.policy))
            }
            Err(error) => Told::Unavailable(error, pending),
        }));
    };
    let timed = pending.reserving.take();
    let timed = timed.unwrap_or_else(|| pending.followed.timed(Stage::Reserve));
    let admitted = shared.engine.admit(&mut pending.arrival, &shared.policy);
    let admitted = admitted.await;
    drop(timed);
    // A client that has left needs none of these answers, so a failed send is not an error.
    match admitted {
        Ok(Admitted::Execute(attempt)) => {
            let (followed, holder) = (pending.followed.clone(), pending.arrival.holder().cloned());
            let origin = pending.origin.take();
            let (request, key) = pending.into_request(Some(&attempt), &shared.policy);
            let client = Client {
                tell: Some(tell),
                key,
                origin,
                followed,
                holder,
                attended,
            };
            execute(shared, *attempt, inner, request, client).await;
        }
        Ok(admitted) => drop(tell.send(Told::Admitted(admitted, pending))),
        Err(error) => drop(tell.send(Told::Unavailable(error, pending))),
    }
}

async fn unavailable<S, R>(
    shared: &Shared,
    inner: S,
    pending: Box<Pending>,
    error: &Unavailable,
    first_is_running: bool,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    pending.followed.count(Event::StoreError);
    let tag = shared.engine.secret().key_tag(pending.arrival.key());
    let reason = std::error::Error::source(&error.0).map(ToString::to_string);
    tracing::error!(key = %tag, route = %shared.route, error = %error.0, reason, "store error");
    // A record that cannot be read, and a key that is known to be running, are never bypassed.
    let absent = matches!(
        error.0,
        StoreError::Unavailable(_) | StoreError::Ambiguous(_)
    );
    let policy = &shared.policy;
    if policy.on_store_error == OnStoreError::Refuse || !absent || first_is_running {
        let problem = match error.0.unfit() {
            Some(unfit) if unfit.has_forgotten() => {
                pending.followed.count(Event::HistoryLost);
                Problem::HistoryLost
            }
            _ => Problem::StoreUnavailable,
        };
        return Ok(problem.response(policy));
    }
    pending.followed.count(Event::Bypassed);
    let (request, _) = pending.into_request(None, policy);
    let (parts, body) = request.into_parts();
    let Ok(answered) = tokio::time::timeout(policy.timeout, pass(inner, parts, body, policy)).await
    else {
        return Ok(Problem::UpstreamTimeout.response(policy));
    };
    let mut response = answered?;
    // The upstream's `Connection` has no say over what the layer says.
    keep_end_to_end(response.headers_mut(), std::slice::from_ref(&STATUS));
    KeyStatus::Bypassed.say(response.headers_mut());
    Ok(response)
}
