//! Shadow mode: what would have happened if keys had been honoured.
//!
//! The same engine and machine judge every request, but on separate records, which exist only in this
//! process's memory. An observed execution can therefore never be mistaken for a protected one: when shadow
//! mode is switched off, the store has never seen those keys.
//!
//! Deliberately absent: any refusal because of a key. Every request is forwarded, duplicates too.

mod report;

pub use report::{ClientReport, MAX_REPORTED_CLIENTS, REPORT_SPAN, Report, Tally};

use std::{
    collections::VecDeque,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use metrics::{Counter, counter};
use onlyonce_core::{
    Key, KeyTag, Policy, StoredResponse, Timestamp,
    machine::{Refusal, Settlement},
    policy::{OnInFlight, Verdict},
    record::{LastError, StoredBody},
};
use onlyonce_store::{clock::StoreClock, memory::MemoryStore};
use parking_lot::Mutex;

use crate::{
    engine::{Admitted, Arrival, Attempt, Began, Engine, EngineOptions},
    limits::Limited,
};
use report::Week;

/// Keys observed at a time in one process. Further ones pass unobserved, and are counted.
pub const MAX_OBSERVED_KEYS: usize = 100_000;
/// Samples kept for each route; the oldest are dropped first.
pub const MAX_SAMPLES: usize = 50;
/// How often lapsed and expired records are removed.
const TIDY_EVERY: Duration = Duration::from_secs(30);
/// Records examined at a time.
const STRETCH: usize = 1_000;

macro_rules! would {
    ($($(#[$doc:meta])* $one:ident => $word:literal,)*) => {
        /// What would have happened to a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Would { $($(#[$doc])* $one,)* }

        impl Would {
            /// Every value.
            pub const ALL: &[Self] = &[$(Self::$one,)*];

            /// The word for this value.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$one => $word,)* }
            }

            /// Whether the request would have got the first request's answer, immediately or after a wait.
            pub fn is_duplicate(self) -> bool {
                matches!(self, Self::Replay | Self::Wait)
            }

            /// Whether the request would have been refused.
            pub fn is_refused(self) -> bool {
                self.as_str().starts_with("refuse_")
            }
        }
    };
}

would! {
    /// Executed, as the first with its key.
    New => "execute",
    /// Executed again, because the first request had no effect.
    Again => "execute_again",
    /// Executed as a new generation of an expired key.
    AfterExpiry => "execute_after_expiry",
    /// Answered with the first request's answer.
    Replay => "replay",
    /// Held until the first request has finished.
    Wait => "wait",
    /// Refused, because the first request is running.
    InProgress => "refuse_in_progress",
    /// Refused, because the key was used for another request or by another caller.
    Mismatch => "refuse_mismatch",
    /// Refused, because the outcome of the first request is unknown.
    Unknown => "refuse_unknown",
    /// Refused, because the first request's answer would not have been stored.
    NotStored => "refuse_not_stored",
    /// Refused, because the key had expired.
    Expired => "refuse_expired",
    /// Forwarded unprotected: the request has no key, and none is required.
    Keyless => "pass_without_key",
    /// Refused, because the key is missing.
    Missing => "refuse_missing",
    /// Refused, because the key is invalid.
    Invalid => "refuse_invalid",
    /// Refused, because the body is too large.
    TooLarge => "refuse_too_large",
    /// Refused, because it is a gRPC call.
    Grpc => "refuse_grpc",
    /// Refused, because the client is not authenticated.
    Unauthenticated => "refuse_unauthenticated",
    /// Refused, because the client is too fast or has too many live keys.
    Limited => "refuse_limited",
    /// Refused, because the request is too old for a new key.
    TooOld => "refuse_too_old",
    /// Not known: there was no room to observe the request.
    Unobserved => "unobserved",
}

/// A request that would not simply have been executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When it arrived.
    pub at: Timestamp,
    /// Its key, as logs show it, if it has one.
    pub key: Option<KeyTag>,
    /// The id of its client, if known.
    pub client: Option<Arc<str>>,
    /// What would have happened to it.
    pub would: Would,
}

/// The observations of one route.
pub struct Observations {
    counts: Vec<AtomicU64>,
    counters: Vec<Counter>,
    samples: Mutex<VecDeque<Sample>>,
    week: Mutex<Week>,
}

impl std::fmt::Debug for Observations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observations")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl Observations {
    pub(crate) fn new(route: &str) -> Self {
        let declare = |would: &Would| {
            let labels = [
                ("route", route.to_owned()),
                ("would", would.as_str().to_owned()),
            ];
            let counter = counter!("onlyonce_shadow_total", &labels);
            counter.increment(0);
            counter
        };
        Self {
            counts: Would::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            counters: Would::ALL.iter().map(declare).collect(),
            samples: Mutex::default(),
            week: Mutex::new(Week::new()),
        }
    }

    /// How often `would` was observed.
    pub fn total(&self, would: Would) -> u64 {
        self.counts[would as usize].load(Ordering::Relaxed)
    }

    /// The latest samples, newest first.
    pub fn samples(&self) -> Vec<Sample> {
        self.samples.lock().iter().rev().cloned().collect()
    }

    /// The observations of the last week, by client.
    pub fn report(&self) -> Report {
        self.week.lock().report()
    }

    pub(crate) fn note(
        &self,
        engine: &Engine,
        would: Would,
        client: Option<&Arc<str>>,
        key: Option<&Key>,
    ) {
        self.counts[would as usize].fetch_add(1, Ordering::Relaxed);
        self.counters[would as usize].increment(1);
        self.week.lock().count(client, would);
        if matches!(would, Would::New | Would::Keyless | Would::Unobserved) {
            return;
        }
        let millis = i64::try_from(engine.wall_clock().as_millis()).unwrap_or(i64::MAX);
        let mut samples = self.samples.lock();
        if samples.len() >= MAX_SAMPLES {
            samples.pop_front();
        }
        samples.push_back(Sample {
            at: Timestamp(millis),
            key: key.map(|key| engine.secret().key_tag(key)),
            client: client.cloned(),
            would,
        });
    }
}

/// The records of observed requests: an engine on a store in memory.
pub(crate) struct Observatory {
    engine: Engine,
    keys: AtomicUsize,
}

impl Observatory {
    /// An observatory with the secret and clock of `engine`, and none of its records.
    pub(crate) fn beside(engine: &Engine, clock: crate::clock::Clock) -> Arc<Self> {
        let store = MemoryStore::with(engine.secret().clone(), StoreClock::system());
        let options = EngineOptions {
            clock,
            ..EngineOptions::default()
        };
        let observatory = Arc::new(Self {
            engine: Engine::start(Arc::new(store), options),
            keys: AtomicUsize::new(0),
        });
        tokio::spawn(tidy(Arc::downgrade(&observatory)));
        observatory
    }

    /// What would happen to `arrival`, and for an execution the attempt to settle at its end.
    pub(crate) async fn observe(
        &self,
        mut arrival: Arrival,
        policy: &Policy,
    ) -> (Would, Option<Box<Attempt>>) {
        if self.keys.load(Ordering::Relaxed) >= MAX_OBSERVED_KEYS {
            let known = self.engine.store().lookup(arrival.id()).await;
            if !known.is_ok_and(|reply| reply.value.is_some()) {
                return (Would::Unobserved, None);
            }
        }
        // Nobody renews its lease, so the lease is as long as the execution may take.
        let mut policy = policy.clone();
        policy.lease = policy.timeout.saturating_add(policy.lease);
        let policy = Arc::new(policy);
        let admitted = match self.engine.admit(&mut arrival, &policy).await {
            Ok(admitted) => admitted,
            Err(_) => return (Would::Unobserved, None),
        };
        match admitted {
            Admitted::Execute(attempt) => {
                let would = match attempt.began_as() {
                    Began::New => Would::New,
                    Began::Again => Would::Again,
                    Began::AfterExpiry => Would::AfterExpiry,
                };
                if would == Would::New {
                    self.keys.fetch_add(1, Ordering::Relaxed);
                }
                (would, Some(attempt))
            }
            other => (would_be(&other), None),
        }
    }
}

fn would_be(admitted: &Admitted) -> Would {
    match admitted {
        Admitted::Execute(_) => Would::New,
        Admitted::Replay(_) => Would::Replay,
        Admitted::InFlight(OnInFlight::Wait) => Would::Wait,
        Admitted::InFlight(OnInFlight::Reject | OnInFlight::Accept) => Would::InProgress,
        Admitted::Refused(Refusal::Reused(_) | Refusal::CallerDiffers(_)) => Would::Mismatch,
        Admitted::Refused(Refusal::OutcomeUnknown) => Would::Unknown,
        Admitted::Refused(Refusal::ResponseNotStored { .. }) => Would::NotStored,
        Admitted::Refused(Refusal::Expired) => Would::Expired,
        Admitted::Limited(Limited::TooOld) => Would::TooOld,
        Admitted::Limited(
            Limited::Rate(_)
            | Limited::Quota
            | Limited::Detached
            | Limited::Bytes
            | Limited::HistoryLost,
        ) => Would::Limited,
    }
}

/// What an answer would have meant for the key. Only the status of the answer is kept.
pub(crate) fn settlement(verdict: Verdict, status: http::StatusCode, is_kept: bool) -> Settlement {
    match verdict {
        Verdict::Complete => Settlement::Complete(Arc::new(StoredResponse {
            status,
            headers: http::HeaderMap::new(),
            body: match is_kept {
                true => StoredBody::Full {
                    bytes: bytes::Bytes::new(),
                    trailers: None,
                },
                false => StoredBody::NotStored,
            },
        })),
        Verdict::Release(error) => Settlement::Release(error),
        Verdict::Unknown(error) => Settlement::Unknown(error),
    }
}

/// What the lack of an answer would have meant for the key.
pub(crate) fn without_answer(was_sent: bool) -> Settlement {
    match was_sent {
        true => Settlement::Unknown(LastError::ConnectionLost),
        false => Settlement::Release(LastError::NotSent),
    }
}

/// Removes lapsed and expired records, as long as the observatory exists.
async fn tidy(observatory: Weak<Observatory>) {
    loop {
        tokio::time::sleep(TIDY_EVERY).await;
        let Some(observatory) = observatory.upgrade() else {
            return;
        };
        let engine = &observatory.engine;
        // Memory does not fail; if it did, the next round would try again.
        while let Ok((swept, _)) = engine.sweep_some(STRETCH).await
            && swept > 0
        {}
        while let Ok((_, _, wrapped)) = engine.reap_some(STRETCH).await
            && !wrapped
        {}
        if let Ok(counts) = engine.store().counts().await {
            let keys = counts.values().sum::<u64>();
            let keys = usize::try_from(keys).unwrap_or(usize::MAX);
            observatory.keys.store(keys, Ordering::Relaxed);
        }
    }
}
