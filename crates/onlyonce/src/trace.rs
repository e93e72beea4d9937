//! The trace of a request: one span for the request, and one each for reserving, the upstream and
//! completing. The attributes about the key find all attempts of one operation.
//!
//! The spans are [`tracing`] spans of the target [`TARGET`]. If no subscriber wants that target, they cost
//! one check of a flag. With the feature `otlp` they also carry OpenTelemetry context: the parent of a
//! request's span comes from `traceparent`, the upstream gets the context of its own span, and every later
//! attempt is linked to the first.
//!
//! Deliberately absent: paths, headers, bodies and keys. A key appears as its tag.

#[cfg_attr(not(feature = "otlp"), path = "trace/without.rs")]
mod context;

use std::sync::Arc;

use http::{HeaderMap, Method, StatusCode};
use onlyonce_core::{Key, Record, RecordId, record::State};
use tokio::time::Instant;
use tracing::{Span, field::Empty, info_span};

use crate::{
    engine::{Attempt, Began, Engine, Replay},
    stats::{Event, RouteStats, Stage, Tally},
};

/// The target of the spans.
pub const TARGET: &str = "onlyonce::trace";

/// The span of a request; disabled if nobody traces.
#[derive(Clone)]
pub(crate) struct Trace(Span);

impl Trace {
    /// Begins the span at the head of a request.
    pub(crate) fn begin(route: &str, method: &Method, headers: &HeaderMap) -> Self {
        let span = info_span!(
            target: TARGET,
            "request",
            otel.kind = "server",
            http.request.method = %method,
            http.response.status_code = Empty,
            onlyonce.route = route,
            onlyonce.key = Empty,
            onlyonce.record = Empty,
            onlyonce.decision = Empty,
            onlyonce.waited = Empty,
            onlyonce.state = Empty,
            onlyonce.attempt = Empty,
            onlyonce.generation = Empty,
        );
        context::adopt(&span, headers);
        Self(span)
    }

    fn is_on(&self) -> bool {
        !self.0.is_disabled()
    }

    /// Records which key the request is about.
    pub(crate) fn about(&self, engine: &Engine, key: &Key, id: RecordId) {
        if self.is_on() {
            let tag = engine.secret().key_tag(key);
            self.0.record("onlyonce.key", tracing::field::display(tag));
            self.0
                .record("onlyonce.record", tracing::field::display(id));
            context::name_operation(&self.0, id);
        }
    }

    /// Records the decision, if `event` is one.
    fn decided(&self, event: Event) {
        if self.is_on() {
            match event {
                Event::Waited => drop(self.0.record("onlyonce.waited", true)),
                event => {
                    if let Some(word) = decision(event) {
                        self.0.record("onlyonce.decision", word);
                    }
                }
            }
        }
    }

    /// Records the state in which the key was found or left.
    fn state(&self, state: State) {
        self.0.record("onlyonce.state", state.as_str());
    }

    fn attempt(&self, attempt: u32, generation: u32) {
        self.0.record("onlyonce.attempt", attempt);
        self.0.record("onlyonce.generation", generation);
    }

    /// Records the status at the head of the answer.
    pub(crate) fn answered(&self, status: StatusCode) {
        if self.is_on() {
            self.0.record("http.response.status_code", status.as_u16());
        }
    }

    /// A span within this one.
    fn child(&self, stage: Stage) -> Span {
        if !self.is_on() {
            return Span::none();
        }
        let parent = &self.0;
        match stage {
            Stage::Reserve => info_span!(target: TARGET, parent: parent, "reserve"),
            Stage::Upstream => {
                info_span!(target: TARGET, parent: parent, "upstream", otel.kind = "client")
            }
            Stage::Complete => info_span!(target: TARGET, parent: parent, "complete"),
            Stage::Request => Span::none(),
        }
    }

    /// The span of a request that is passed on unchanged, with its context sent upstream.
    pub(crate) fn passed_on(&self, headers: &mut HeaderMap) -> Span {
        let span = self.child(Stage::Upstream);
        if self.is_on() {
            context::inject(&span, headers);
        }
        span
    }
}

/// The word for a decision about a request; `None` if `event` is not a decision.
fn decision(event: Event) -> Option<&'static str> {
    Some(match event {
        Event::Created => "created",
        Event::Replayed => "replay",
        Event::InProgress => "in_progress",
        Event::Misused => "key_misuse",
        Event::CallerDiffers => "caller_differs",
        Event::Retried => "failed_retry",
        Event::Unknown => "unknown",
        Event::StoreError => "store_error",
        Event::ExecutedAfterExpiry => "executed_after_expiry",
        Event::Expired => "expired",
        Event::NotStored => "not_stored",
        Event::NotSent => "not_sent",
        Event::RateLimited => "rate_limited",
        Event::KeyQuota => "key_quota",
        Event::Overloaded => "overloaded",
        Event::TooOld => "request_too_old",
        Event::HistoryLost => "history_lost",
        Event::Request
        | Event::Waited
        | Event::SentAway
        | Event::Enforced
        | Event::InvalidKey
        | Event::TooLarge
        | Event::GrpcUnsupported
        | Event::Unauthenticated
        | Event::AuthenticationUnavailable
        | Event::Stored
        | Event::BecameUnknown
        | Event::Incomplete
        | Event::Bypassed
        | Event::ReleaseWasWrong => return None,
    })
}

/// The counters and the trace of a request.
#[derive(Clone)]
pub(crate) struct Followed {
    tally: Tally,
    trace: Trace,
    id: RecordId,
}

impl Followed {
    pub(crate) fn new(tally: Tally, trace: Trace, id: RecordId) -> Self {
        Self { tally, trace, id }
    }

    /// Counts `event`, and records it in the trace if it is a decision.
    pub(crate) fn count(&self, event: Event) {
        self.tally.count(event);
        // A request that waits is decided later.
        if event != Event::InProgress {
            self.trace.decided(event);
        }
    }

    /// The request found its key in this state and was answered accordingly.
    pub(crate) fn found(&self, state: Option<State>) {
        if self.trace.is_on() {
            if let Some(state) = state {
                self.trace.state(state);
            }
            self.link();
        }
    }

    /// The request will wait no longer for the running attempt.
    pub(crate) fn found_running(&self) {
        self.tally.count(Event::SentAway);
        self.trace.decided(Event::InProgress);
        self.found(Some(State::InProgress));
    }

    /// The request gets a stored answer.
    pub(crate) fn replayed(&self, replay: &Replay) {
        if self.trace.is_on() {
            self.trace.attempt(replay.attempt, replay.generation);
            self.found(Some(State::Completed));
        }
    }

    /// The request is executed.
    pub(crate) fn executes(&self, attempt: &Attempt) {
        self.count(match attempt.began_as() {
            Began::New => Event::Created,
            Began::Again => Event::Retried,
            Began::AfterExpiry => Event::ExecutedAfterExpiry,
        });
        if self.trace.is_on() {
            let record = attempt.record();
            self.trace.attempt(record.fence.0, record.generation);
            match attempt.began_as().begins_a_life() {
                true => self.remember(),
                false => self.link(),
            }
        }
    }

    /// The attempt has ended and left the key as `record`.
    pub(crate) fn left(&self, record: &Record) {
        if self.trace.is_on() {
            self.trace.state(record.state);
        }
    }

    /// Times `stage` until the value is dropped.
    pub(crate) fn timed(&self, stage: Stage) -> Timed {
        Timed {
            stats: self.tally.stats().clone(),
            stage,
            began: Instant::now(),
            span: self.trace.child(stage),
        }
    }

    /// Remembers this first attempt, so that later ones are linked to it.
    fn remember(&self) {
        context::remember(&self.trace.0, self.id);
    }

    /// Links this later attempt to the first.
    fn link(&self) {
        context::link(&self.trace.0, self.id);
    }
}

/// A stage in progress.
pub(crate) struct Timed {
    stats: Arc<RouteStats>,
    stage: Stage,
    began: Instant,
    span: Span,
}

impl Timed {
    /// Gives the upstream the context of this span instead of the client's.
    pub(crate) fn tell_upstream(&self, headers: &mut HeaderMap) {
        if !self.span.is_disabled() {
            context::inject(&self.span, headers);
        }
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.stats.took(self.stage, self.began);
    }
}
