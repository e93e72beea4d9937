//! Operators, and the provider behind the upstream: both work through a node's engine. The provider
//! tells the truth or nothing, to the reconciler that asks it and in webhooks of its own.
//!
//! A careful person looks at the upstream and waits until the attempt cannot be begun any more; a
//! careless one declares what he likes, which the promise allows for.

use std::time::Duration;

use futures_util::future::BoxFuture;
use onlyonce::{
    engine::{OperateError, Seen},
    reconcile::{Answer, Ask, Judged, Told},
    worker,
};
use onlyonce_core::{
    Record, State, Timestamp,
    machine::{Grounds, Resolution},
    record::Evidence,
};
use onlyonce_store::Store;
use onlyonce_testkit::promise::Event;

use crate::{
    history::History,
    node::{Node, Shared},
    promised::asked,
    upstream::certain_after,
};

/// For so long, in milliseconds, after its exchange ended the provider may not know of an operation:
/// less than its bound by what a believed clock may be ahead in a run.
const KNOWS_AFTER: u64 = 1_500;

/// What somebody who asks the upstream finds out about the current attempt of `record`.
enum Found {
    TookEffect,
    NeverBegun,
    CannotTell,
}

fn found(history: &History, record: &Record) -> Found {
    let Some(trial) = history.trials.get(&record.attempt_id.0) else {
        return Found::CannotTell;
    };
    match trial.started_at {
        Some(_) if trial.declared_undone => Found::CannotTell,
        Some(_) => Found::TookEffect,
        None if history.now > trial.begun_at + certain_after(&history.setup) => Found::NeverBegun,
        None => Found::CannotTell,
    }
}

fn records(shared: &Shared, wanted: impl Fn(State) -> bool) -> Vec<Record> {
    let ids = shared.history.lock().setup.ids();
    let records = ids.into_iter().filter_map(|id| shared.store.peek(id));
    records
        .map(|reply| reply.value)
        .filter(|record| wanted(record.state))
        .collect()
}

fn one(shared: &Shared, wanted: impl Fn(State) -> bool) -> Option<Record> {
    let found = records(shared, wanted);
    if found.is_empty() {
        return None;
    }
    let index = shared.history.lock().rng.index(found.len());
    found.into_iter().nth(index)
}

/// Whether an operator was told no, for certain.
fn is_refused<T>(told: &Result<T, OperateError>) -> bool {
    !matches!(told, Ok(_) | Err(OperateError::Store(_)))
}

/// An operator settles some unknown key.
pub fn resolve(shared: &Shared, node: &Node) {
    let Some(record) = one(shared, |state| state == State::Unknown) else {
        return;
    };
    let mut history = shared.history.lock();
    let careless = history.rng.percent(35);
    let (resolution, reason) = match found(&history, &record) {
        _ if careless => (Resolution::FailedRetryable(Grounds::FORCED), "careless"),
        Found::TookEffect => match history.setup.word(&record, "operator") {
            Some(response) => (Resolution::Completed(response), "careful"),
            None => return,
        },
        Found::NeverBegun => (Resolution::FailedRetryable(Grounds::FORCED), "careful"),
        Found::CannotTell => return,
    };
    history.say(&format!("operator resolves {} {reason}", record.id));
    let said = match &resolution {
        Resolution::Completed(response) => history.attested(&record, response),
        _ => Some(history.happened(Event::Undone {
            execution: record.attempt_id.0,
        })),
    };
    drop(history);
    let (engine, shared) = (node.engine.clone(), shared.clone());
    node.runtime.spawn(async move {
        let seen = Seen::Attempt(record.attempt_id);
        let resolved = engine.resolve(record.id, seen, &resolution, reason).await;
        if let Some(said) = said.filter(|_| is_refused(&resolved)) {
            shared.history.lock().retract(said);
        }
    });
}

/// An operator forgets or extends some key.
pub fn tidy(shared: &Shared, node: &Node) {
    let settled = |state| !matches!(state, State::InProgress | State::Unknown);
    let Some(record) = one(shared, settled) else {
        return;
    };
    let mut history = shared.history.lock();
    let (forget, force) = (history.rng.percent(70), history.rng.percent(70));
    history.say(&format!("operator tidies {} {forget} {force}", record.id));
    let owner = history.owner(&record).filter(|_| forget);
    let forgotten = owner.map(|owner| Event::Forgotten {
        keyspace: asked(owner).keyspace,
        key: asked(owner).key,
    });
    let begun = forgotten.clone().map(|event| history.happened(event));
    drop(history);
    let (engine, shared) = (node.engine.clone(), shared.clone());
    node.runtime.spawn(async move {
        if forget {
            let done = engine.forget(record.id, force, None).await;
            let mut history = shared.history.lock();
            match (begun, forgotten) {
                (Some(begun), _) if is_refused(&done) => history.retract(begun),
                (_, Some(forgotten)) => drop(history.happened(forgotten)),
                _ => {}
            }
        } else {
            let _ = engine
                .extend(record.id, std::time::Duration::from_secs(5))
                .await;
        }
    });
}

/// The provider speaks of its own accord, and a node hears it.
pub fn webhook(shared: &Shared, node: &Node) {
    let live = |state| matches!(state, State::InProgress | State::Unknown);
    let Some(record) = one(shared, live) else {
        return;
    };
    let Some(at) = shared.store.peek(record.id).map(|reply| reply.now) else {
        return;
    };
    let mut history = shared.history.lock();
    let evidence = match found(&history, &record) {
        Found::TookEffect => match history.setup.word(&record, "provider") {
            Some(response) => {
                history.attested(&record, &response);
                Evidence::Completed(response)
            }
            None => return,
        },
        Found::NeverBegun => Evidence::NotExecuted,
        Found::CannotTell => return,
    };
    // Some providers tell whole seconds.
    let coarse = match history.rng.index(2) {
        0 => Duration::ZERO,
        _ => Duration::from_millis(999),
    };
    let at = match coarse {
        Duration::ZERO => at,
        _ => Timestamp(at.0 - at.0.rem_euclid(1_000)).plus(coarse),
    };
    let told = Told {
        event: format!("event-{}", history.rng.index(1_000_000)),
        route: record.route.to_string(),
        evidence,
        at,
        coarse,
    };
    drop(history);
    let engine = node.engine.clone();
    node.runtime.spawn(async move {
        // A provider that gets no answer tells it again some day; here it does not.
        let _ = engine.told(record.id, &told).await;
    });
}

/// Whether the provider answers from a copy that has not heard of the operation: once, and for less than
/// the `negative_gap`, which is there for that. Half of it, since clocks are not alike.
fn asks_a_stale_copy(history: &mut History, record: &Record) -> bool {
    let reconcile = history.setup.policy.reconcile.as_ref();
    let gap = reconcile.map_or(0, |reconcile| reconcile.negative_gap.as_millis());
    let lasts = u64::try_from(gap / 2).unwrap_or(0);
    let (now, begins) = (history.now, history.rng.percent(30));
    let trial = history.trials.get_mut(&record.attempt_id.0);
    trial.is_some_and(|trial| {
        if begins && trial.stale_since.is_none() {
            trial.stale_since = Some(now);
        }
        trial.stale_since.is_some_and(|since| now < since + lasts)
    })
}

/// The provider as a reconciler asks it: it tells the truth as far as it knows, or nothing.
struct Truthful(Shared);

impl Ask for Truthful {
    fn ask<'a>(&'a self, record: &'a Record) -> BoxFuture<'a, Answer> {
        let mut history = self.0.history.lock();
        let luck = history.rng.percent(60);
        let response = history.setup.word(record, "provider");
        let trial = history.trials.get(&record.attempt_id.0);
        let unknown_at = trial.and_then(|trial| trial.unknown_at);
        // What was begun may be known to the provider only after a while, within its bound.
        let knows_late = unknown_at.is_some_and(|at| history.now < at + KNOWS_AFTER);
        let is_stale = asks_a_stale_copy(&mut history, record);
        let judged = match (found(&history, record), response) {
            (Found::TookEffect, _) if is_stale || (knows_late && !luck) => {
                Judged::Says(Evidence::NotExecuted)
            }
            (Found::TookEffect, Some(response)) if luck => {
                history.attested(record, &response);
                Judged::Says(Evidence::Completed(response))
            }
            (Found::NeverBegun, _) => Judged::Says(Evidence::NotExecuted),
            _ => Judged::Inconclusive("no luck".to_owned()),
        };
        let answer = Answer {
            judged,
            question: Some("what became of it?".to_owned()),
        };
        Box::pin(std::future::ready(answer))
    }
}

/// A node's reconciler looks at whatever is due.
pub fn look(shared: &Shared, node: &Node) {
    let (engine, provider) = (node.engine.clone(), Truthful(shared.clone()));
    node.runtime.spawn(async move {
        // The next round tries again.
        let _ = worker::reconcile::run_once(&engine, &provider).await;
    });
}
