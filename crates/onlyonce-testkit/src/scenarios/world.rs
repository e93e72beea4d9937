//! Requests, policies and one record for everything that can be remembered about a key. The machine itself
//! makes the records, so none of them is in an unreachable state.

use std::{sync::Arc, time::Duration};

use http::StatusCode;

use onlyonce_core::{
    fingerprint::{Fingerprint, RecipeId},
    key::Key,
    machine::{
        About, End, Event, Forget, Found, Grounds, Look, Negative, Reap, Request, Resolution,
        Resolve, Seen, Settlement, Source, Step, Sweep, Write, apply, first,
    },
    policy::{AfterExpiry, OnInFlight, Policy, ReconcilePolicy},
    record::{AttemptId, Change, Evidence, LastError, Record, State, StoredBody, StoredResponse},
    scope::Scope,
    secret::{CallerMark, RecordId},
    time::Timestamp,
};

pub const START: Timestamp = Timestamp(1_000_000);
pub const LEASE: Duration = Duration::from_secs(10);
pub const MAX_EXECUTION: Duration = Duration::from_secs(60);
pub const UPSTREAM_MAX: Duration = Duration::from_secs(7);
pub const GAP: Duration = Duration::from_secs(3);
pub const TTL: Duration = Duration::from_secs(100);
pub const TOMBSTONE: Duration = Duration::from_secs(1_000);
pub const LOOK_AFTER: Duration = Duration::from_secs(5);
pub const MILLI: Duration = Duration::from_millis(1);

pub const OWN: AttemptId = AttemptId(0xA11CE);
pub const OTHER: AttemptId = AttemptId(0xB0B);
pub const FRESH: AttemptId = AttemptId(0xF4E54);

/// A moment, and those just before and just after it.
pub fn around(at: Timestamp) -> [Timestamp; 3] {
    [Timestamp(at.0 - 1), at, Timestamp(at.0 + 1)]
}

pub fn policy() -> Policy {
    Policy::builder()
        .lease(LEASE)
        .max_execution(MAX_EXECUTION)
        .ttl(TTL)
        .tombstone_ttl(TOMBSTONE)
        .reconcile(ReconcilePolicy {
            after: LOOK_AFTER,
            attempts: 3,
            upstream_max_execution: Some(UPSTREAM_MAX),
            negative_gap: GAP,
            asks: true,
        })
        .build()
}

pub fn rejecting() -> Policy {
    let mut policy = policy();
    policy.after_expiry = AfterExpiry::Reject;
    policy
}

/// Every combination of the switches that the machine looks at.
pub fn policies() -> Vec<Policy> {
    let bare = ReconcilePolicy {
        after: LOOK_AFTER,
        attempts: 3,
        upstream_max_execution: None,
        negative_gap: GAP,
        asks: false,
    };
    let reconciles = [None, policy().reconcile, Some(bare)];
    let mut all = Vec::new();
    for after_expiry in [AfterExpiry::New, AfterExpiry::Reject] {
        for on_in_flight in [OnInFlight::Wait, OnInFlight::Reject, OnInFlight::Accept] {
            for reconcile in reconciles.clone() {
                let mut policy = policy();
                policy.after_expiry = after_expiry;
                policy.on_in_flight = on_in_flight;
                policy.reconcile = reconcile;
                all.push(policy);
            }
        }
    }
    all
}

pub fn request(content: u8, caller: Option<u8>, attempt_id: AttemptId) -> Request {
    Request {
        id: RecordId([7; 16]),
        scope: Scope::global(),
        key: Key::from_stored("k"),
        fingerprint: Fingerprint([content; 32]),
        recipe: RecipeId([content; 8]),
        caller: caller.map(|caller| CallerMark([caller; 16])),
        other_mark: None,
        attempt_id,
        route: "payments".into(),
        method: "POST".into(),
        path: "/payments".into(),
        notes: onlyonce_core::record::Notes::default(),
    }
}

/// The request that every record in this file remembers, as a new attempt.
pub fn again() -> Request {
    request(1, Some(1), FRESH)
}

/// An answer whose bytes name the attempt, so that no two answers are confused.
pub fn answer(attempt: AttemptId) -> Arc<StoredResponse> {
    Arc::new(StoredResponse::plain(
        StatusCode::CREATED,
        attempt.to_string(),
    ))
}

pub fn unstored() -> Arc<StoredResponse> {
    let plain = StoredResponse::plain(StatusCode::OK, "");
    Arc::new(StoredResponse {
        body: StoredBody::NotStored,
        ..plain
    })
}

pub fn written(change: Change, now: Timestamp) -> Record {
    change.draft.stamp(now)
}

/// The record that `step` leaves.
pub fn left_by<E: std::fmt::Debug>(step: Step<E>, now: Timestamp) -> Record {
    match step.write {
        Write::Swap(change) => written(change, now),
        other => panic!("not written: {other:?}, {:?}", step.effect),
    }
}

/// The record that `event` leaves of `record`.
fn left<E: Event<Effect: std::fmt::Debug>>(record: &Record, event: &E, now: Timestamp) -> Record {
    left_by(apply(Some(record), event, now, &policy()), now)
}

const NOTHING: Look<'static> = Look {
    found: Found::Nothing("nothing"),
    asked_about: None,
};

fn heard(evidence: &Evidence, source: Source) -> Look<'_> {
    Look {
        found: Found::Evidence(evidence, source),
        asked_about: None,
    }
}

pub fn in_progress() -> Record {
    first(&request(1, Some(1), OWN), &policy()).stamp(START)
}

pub fn settled(record: &Record, settlement: &Settlement) -> Record {
    let end = End {
        attempt: record.attempt_id,
        settlement,
    };
    left(record, &end, START)
}

pub fn completed() -> Record {
    settled(&in_progress(), &Settlement::Complete(answer(OWN)))
}

pub fn not_stored() -> Record {
    settled(&in_progress(), &Settlement::Complete(unstored()))
}

pub fn declined() -> Record {
    let answer = StoredResponse::plain(StatusCode::PAYMENT_REQUIRED, "no");
    settled(&in_progress(), &Settlement::Complete(Arc::new(answer)))
}

pub fn failed() -> Record {
    settled(&in_progress(), &Settlement::Release(LastError::NotSent))
}

pub fn redirected() -> Record {
    settled(&in_progress(), &Settlement::Release(LastError::Redirected))
}

pub fn unknown() -> Record {
    settled(&in_progress(), &Settlement::Unknown(LastError::Timeout))
}

pub fn with_evidence(evidence: &Evidence) -> Record {
    let word = heard(evidence, Source::Webhook(About::Attempt(OWN)));
    left(&in_progress(), &word, START)
}

pub fn lapsed(record: &Record) -> Record {
    let at = record.times.lease_until.expect("in progress");
    left(record, &Sweep { knows_route: true }, at)
}

/// When a negative answer starts to count.
pub fn settled_down(record: &Record) -> Timestamp {
    let since = record.times.unknown_since.expect("unknown");
    since.plus(LEASE + UPSTREAM_MAX)
}

pub fn once_negative() -> Record {
    let record = unknown();
    let now = settled_down(&record);
    let source = Source::Query(Negative::Proven);
    left(&record, &heard(&Evidence::NotExecuted, source), now)
}

/// Released by the second negative answer.
pub fn denied() -> Record {
    let now = settled_down(&unknown()).plus(GAP);
    let source = Source::Webhook(About::Attempt(OWN));
    let no = Evidence::NotExecuted;
    left(&once_negative(), &heard(&no, source), now)
}

pub fn dead_letter() -> Record {
    (0..3).fold(unknown(), |record, _| left(&record, &NOTHING, START))
}

/// An operator's forced release.
pub const FORCED: Resolution = Resolution::FailedRetryable(Grounds::FORCED);

pub fn resolved(resolution: &Resolution) -> Record {
    let unknown = unknown();
    let seen = Seen::AsItIs;
    let reason = "seen in the ledger";
    let resolve = Resolve {
        seen,
        resolution,
        reason,
    };
    left(&unknown, &resolve, START)
}

pub fn expired(record: &Record) -> Record {
    let at = record.times.expires_at.expect("settled");
    left(record, &Reap, at)
}

pub fn forgotten() -> Record {
    let reason = Some("asked for".to_owned());
    let forget = Forget {
        force: true,
        fresh: OTHER,
        reason,
    };
    left(&completed(), &forget, START)
}

pub fn second_generation() -> Record {
    let tombstone = expired(&completed());
    let now = tombstone.times.expires_at.expect("a tombstone");
    let second = request(1, Some(1), AttemptId(2));
    left(&tombstone, &second, now)
}

/// One record of each kind, with a name for messages.
pub fn records() -> Vec<(&'static str, Record)> {
    let took_effect = Evidence::Completed(answer(OWN));
    let inconclusive = left(&unknown(), &NOTHING, START);
    let later = Source::Query(Negative::Proven);
    let early = heard(&Evidence::NotExecuted, later);
    let all = vec![
        ("in progress", in_progress()),
        (
            "in progress, provider: took effect",
            with_evidence(&took_effect),
        ),
        (
            "in progress, provider: not executed",
            with_evidence(&Evidence::NotExecuted),
        ),
        (
            "in progress, provider: contradicts itself",
            with_evidence(&Evidence::Contradictory),
        ),
        ("in progress, generation 2", second_generation()),
        ("completed", completed()),
        ("completed, not stored", not_stored()),
        ("completed with 402", declined()),
        (
            "completed by an operator",
            resolved(&Resolution::Completed(answer(OWN))),
        ),
        ("released", failed()),
        ("released by a redirect", redirected()),
        ("released by the provider's word", denied()),
        ("released by an operator", resolved(&FORCED)),
        ("unknown", unknown()),
        ("unknown, lapsed", lapsed(&in_progress())),
        (
            "unknown, provider: took effect",
            lapsed(&with_evidence(&took_effect)),
        ),
        (
            "unknown, provider: not executed",
            lapsed(&with_evidence(&Evidence::NotExecuted)),
        ),
        (
            "unknown, provider: contradicts itself",
            lapsed(&with_evidence(&Evidence::Contradictory)),
        ),
        ("unknown, looked at", inconclusive),
        (
            "unknown, looked at too early",
            left(&unknown(), &early, START),
        ),
        ("unknown, once negative", once_negative()),
        ("unknown, dead letter", dead_letter()),
        ("expired, was completed", expired(&completed())),
        ("expired, was released", expired(&failed())),
        ("expired, was redirected", expired(&redirected())),
        ("forgotten", forgotten()),
    ];
    for state in State::ALL {
        assert!(
            all.iter().any(|(_, record)| record.state == state),
            "no record is {state}"
        );
    }
    all
}

/// Every moment at which the treatment of `record` changes, with its neighbours.
pub fn moments(record: &Record) -> Vec<Timestamp> {
    let times = record.times;
    let tombstone_end = times.expires_at.map(|at| at.plus(record.tombstone_ttl));
    let overdue = times.last_run_at.map(|at| at.plus(MAX_EXECUTION));
    let counted = times.unknown_since.map(|at| at.plus(LEASE + UPSTREAM_MAX));
    let apart = record.notes.negative_at.map(|at| at.plus(GAP));
    let edges = [
        Some(START),
        times.lease_until,
        times.expires_at,
        times.reconcile_after,
        times.delete_at,
        tombstone_end,
        overdue,
        counted,
        apart,
    ];
    let mut moments: Vec<_> = edges.into_iter().flatten().flat_map(around).collect();
    moments.push(Timestamp(0));
    moments.push(Timestamp(i64::MAX));
    moments.sort();
    moments.dedup();
    moments
}
