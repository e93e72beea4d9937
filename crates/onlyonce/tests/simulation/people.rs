//! Operators, and the provider behind the upstream. Operators work through a node's engine. The
//! provider's word goes through the shipping machine straight into the store, as the reconciler
//! will do it; the engine has no loop for it yet.
//!
//! A careful person looks at the upstream and waits until the attempt cannot be begun any more; a
//! careless one declares what he likes, which the promise allows for.

use std::sync::Arc;

use futures_util::FutureExt;
use onlyonce::{Engine, engine::Seen};
use onlyonce_core::{
    Record, RecordId, State,
    machine::{self, About, Looked, Negative, Resolution, Source},
    record::Evidence,
};
use onlyonce_store::{Store, memory::MemoryStore};
use parking_lot::Mutex;

use crate::{
    history::{History, Process},
    node::{Node, Shared},
    recorder::Recorder,
    upstream::certain_after,
};

/// Who the provider's writes are by.
const PROVIDER: Process = Process { node: 9, life: 0 };

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

/// An operator settles some unknown key.
pub fn resolve(shared: &Shared, node: &Node) {
    let Some(record) = one(shared, |state| state == State::Unknown) else {
        return;
    };
    let mut history = shared.history.lock();
    let careless = history.rng.percent(35);
    let (resolution, reason) = match found(&history, &record) {
        _ if careless => (Resolution::FailedRetryable, "careless"),
        Found::TookEffect => match history.setup.word(&record, "operator") {
            Some(response) => (Resolution::Completed(response), "careful"),
            None => return,
        },
        Found::NeverBegun => (Resolution::FailedRetryable, "careful"),
        Found::CannotTell => return,
    };
    history.say(&format!("operator resolves {} {reason}", record.id));
    drop(history);
    let engine: Engine = node.engine.clone();
    node.runtime.spawn(async move {
        // An operator is told why not; here nobody listens.
        let _ = engine
            .resolve(
                record.id,
                Seen::Attempt(record.attempt_id),
                &resolution,
                reason,
            )
            .await;
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
    drop(history);
    let engine = node.engine.clone();
    node.runtime.spawn(async move {
        if forget {
            let _ = engine.forget(record.id, force, None).await;
        } else {
            let _ = engine
                .extend(record.id, std::time::Duration::from_secs(5))
                .await;
        }
    });
}

/// The provider speaks of its own accord.
pub fn webhook(shared: &Shared) {
    let live = |state| matches!(state, State::InProgress | State::Unknown);
    let Some(record) = one(shared, live) else {
        return;
    };
    let evidence = {
        let history = shared.history.lock();
        match found(&history, &record) {
            Found::TookEffect => match history.setup.word(&record, "provider") {
                Some(response) => Evidence::Completed(response),
                None => return,
            },
            Found::NeverBegun => Evidence::NotExecuted,
            Found::CannotTell => return,
        }
    };
    reconcile(
        shared,
        &record,
        &evidence,
        Source::Webhook(About::Attempt(record.attempt_id)),
    );
}

/// The reconciler looks at whatever is due.
pub fn look(shared: &Shared) {
    let due = shared
        .store
        .due(100)
        .now_or_never()
        .expect("memory does not wait");
    for record in due.expect("memory does not fail").value {
        if record.state != State::Unknown {
            continue;
        }
        if let Some(evidence) = record.evidence.clone() {
            reconcile(shared, &record, &evidence, Source::Kept);
            continue;
        }
        let (found, luck, response) = {
            let mut history = shared.history.lock();
            let response = history.setup.word(&record, "provider");
            (found(&history, &record), history.rng.percent(60), response)
        };
        match (found, response) {
            (Found::TookEffect, Some(response)) if luck => {
                let source = Source::Query(Negative::Proven);
                reconcile(shared, &record, &Evidence::Completed(response), source);
            }
            (Found::NeverBegun, _) => {
                let source = Source::Query(Negative::Proven);
                reconcile(shared, &record, &Evidence::NotExecuted, source);
            }
            _ => {
                let policy = shared.history.lock().setup.policy.clone();
                write(shared, &record, machine::look(&record, "nothing", &policy));
            }
        }
    }
}

fn reconcile(shared: &Shared, record: &Record, evidence: &Evidence, source: Source) {
    let policy = shared.history.lock().setup.policy.clone();
    let now = store_now(&shared.store, record.id);
    let Some(now) = now else { return };
    write(
        shared,
        record,
        machine::reconcile(record, evidence, source, now, &policy),
    );
}

fn store_now(store: &Arc<MemoryStore>, id: RecordId) -> Option<onlyonce_core::Timestamp> {
    store.peek(id).map(|reply| reply.now)
}

fn write(shared: &Shared, record: &Record, looked: Looked) {
    let Looked::Write(change) = looked else {
        return;
    };
    let history: Arc<Mutex<History>> = shared.history.clone();
    let recorder = Recorder {
        store: shared.store.clone(),
        history,
        process: PROVIDER,
    };
    // A row that cannot be read is left for the next look.
    let _ = recorder.swap(record.revision, change).now_or_never();
}
