//! What must hold after every slice of time, and what must hold once everything has come to rest.

use std::collections::BTreeMap;

use onlyonce_core::{Record, RecordId, State};
use onlyonce_store::Store;
use parking_lot::Mutex;

use crate::{
    history::History,
    node::{Node, Shared},
    rest::Prober,
    setup::{Ask, NODES, SWEEP_EVERY, Setup},
    world::World,
};

/// A slice, a few store calls, and a look of the workers that was just missed.
const SLACK: u64 = 400;
/// What a request may lose to a store that fails in every way it can.
const TROUBLE: u64 = 25_000;
/// How long a question in the calm may take.
const PROBE: u64 = 60;

/// What the checks remember from slice to slice.
#[derive(Default)]
pub struct Watch {
    /// Since when a lease has been seen to have lapsed.
    lapsed: BTreeMap<RecordId, u64>,
    /// The first trial and call that may not be over.
    checked: usize,
}

impl Watch {
    pub fn is_sound(&mut self, now: u64, history: &Mutex<History>, nodes: &[Option<Node>]) -> bool {
        let mut history = history.lock();
        let wrong = self.leases(now, nodes, &history);
        wrong.into_iter().for_each(|what| history.violated(what));
        self.waiting(now, nodes, &mut history);
        settling(now, nodes, &mut history);
        history.violations.is_empty()
    }

    /// 4: no `in_progress` beyond its last heartbeat, its lease and a sweep; nor beyond the longest
    /// execution.
    fn leases(&mut self, now: u64, nodes: &[Option<Node>], history: &History) -> Vec<String> {
        // Somebody must have been able to sweep in that time.
        let able = |since: u64| {
            nodes
                .iter()
                .flatten()
                .any(|node| node.is_clean_since(since))
        };
        let mut wrong = Vec::new();
        let policy = &history.setup.policy;
        let longest = Setup::millis(policy.max_execution + policy.lease) + SWEEP_EVERY + TROUBLE;
        self.lapsed.retain(|id, _| history.records.contains_key(id));
        for (id, record) in &history.records {
            let durable = history.durable.get(&history.life_of(record));
            if record.state == State::Completed && record.response.as_deref() != durable {
                wrong.push(format!("2: {id} no longer holds its answer"));
            }
            let running = record.state == State::InProgress && history.unreadable != Some(*id);
            if !running || !record.lease_lapsed(history.store_now) {
                self.lapsed.remove(id);
                continue;
            }
            let since = *self.lapsed.entry(*id).or_insert(now);
            // After a jump of the store's clock, whoever is alive has the time to renew its lease.
            let renewed = history.jumped_at + Setup::millis(policy.lease) + SWEEP_EVERY;
            let since = since.max(renewed);
            // And a node that was started since counts that time from its own start.
            let notices = match history.jumped_at {
                0 => 0,
                _ => Setup::millis(policy.lease) + SWEEP_EVERY,
            };
            let able = able(since.saturating_sub(notices));
            if now > since + SWEEP_EVERY + SLACK && able {
                wrong.push(format!("4: {id} is in progress long after its lease"));
            }
            let trial = history.trials.get(&record.attempt_id.0);
            // A jump near the end of an execution grants its lease once more, to a node that was
            // started since as well.
            let granted = history.jumped_at + 2 * notices + SWEEP_EVERY + TROUBLE;
            let is_over = |begun: u64| now > (begun + longest).max(granted);
            if trial.is_some_and(|trial| is_over(trial.begun_at)) {
                wrong.push(format!(
                    "4: {id} is in progress beyond the longest execution"
                ));
            }
        }
        wrong
    }

    /// 24: nobody waits for ever; and a client of a healthy node is not told that the store is away.
    fn waiting(&mut self, now: u64, nodes: &[Option<Node>], history: &mut History) {
        let policy = &history.setup.policy;
        let bound = policy.wait_timeout + policy.timeout + policy.completion_grace;
        let bound = Setup::millis(bound);
        let mut late = Vec::new();
        while history
            .calls
            .get(self.checked)
            .is_some_and(|call| call.answered || call.gone)
        {
            self.checked += 1;
        }
        for (number, call) in history.calls.iter().enumerate().skip(self.checked) {
            let Some(node) = nodes[call.process.node].as_ref() else {
                continue;
            };
            if call.answered || call.gone || node.is_paused() {
                continue;
            }
            let id = history.setup.id(call.ask);
            let clean =
                node.is_clean_since(call.arrived) && history.readable_since(id, call.arrived);
            let end = if clean {
                call.arrived + bound + SLACK
            } else {
                // Nobody is answered by a process that stands still.
                call.arrived.max(node.running_since) + TROUBLE
            };
            if now > end {
                late.push(number);
            }
        }
        for number in late {
            history.violated(format!("24: call {number} is still waiting"));
        }
    }

    /// Nothing is left hanging, and the store holds what was written.
    pub fn is_over(&self, shared: &Shared) -> bool {
        let mut history = shared.history.lock();
        history.is_over(|id| shared.store.peek(id).map(|reply| reply.value))
    }
}

/// 13: what the upstream answered in time, to a node in health, is what the key says, whether or not
/// anybody waited for it.
fn settling(now: u64, nodes: &[Option<Node>], history: &mut History) {
    let longest = Setup::millis(history.setup.policy.max_execution);
    let (mut wrong, mut later) = (Vec::new(), Vec::new());
    for id in std::mem::take(&mut history.answered) {
        let Some(trial) = history.trials.get(&id) else {
            continue;
        };
        let Some(given) = &trial.given else { continue };
        if now < given.at + SLACK {
            later.push(id);
            continue;
        }
        let same = |node: &&Node| node.process == trial.process;
        let Some(node) = nodes[trial.process.node].as_ref().filter(same) else {
            continue;
        };
        let in_time = given.at + SLACK <= trial.begun_at + longest;
        let clean = node.is_clean_since(trial.begun_at)
            && history.readable_since(trial.life.0, trial.begun_at);
        // A release that the provider contradicts is none.
        let contradicted = trial.contradicted
            && (given.means, trial.first) == (State::FailedRetryable, Some(State::Unknown));
        if in_time && clean && trial.first != Some(given.means) && !contradicted {
            let what = (given.means, trial.first);
            wrong.push(format!("13: {id:032x} means and was settled as {what:?}"));
        }
    }
    history.answered = later;
    wrong.into_iter().for_each(|what| history.violated(what));
}

impl World {
    /// In the calm at the end, on every node: what others ask changes nothing, and whoever asks
    /// again gets the durable answer.
    pub fn probe(&mut self) -> bool {
        (0..NODES).all(|node| self.probe_as(node, Prober::Stranger))
            && (0..NODES).all(|node| self.probe_as(node, Prober::Owner))
    }

    fn probe_as(&mut self, node: usize, prober: Prober) -> bool {
        let probed: Vec<(Record, Ask)> = {
            let history = self.shared.history.lock();
            let ids = history.setup.ids().into_iter();
            let records = ids
                .filter_map(|id| self.shared.store.peek(id))
                .map(|reply| reply.value);
            // What is about to expire, or to be asked about, may change while we look.
            let soon = history
                .latest
                .plus(std::time::Duration::from_millis(2 * PROBE));
            let stays = |record: &Record| {
                let times = &record.times;
                let asked = times
                    .reconcile_after
                    .filter(|_| record.state == State::Unknown);
                let times = [times.expires_at, times.delete_at, asked];
                times.into_iter().flatten().all(|at| at > soon)
            };
            let owned = |record: Record| history.owner(&record).map(|owner| (record, owner));
            records
                .filter(stays)
                .filter_map(owned)
                .filter(|(r, _)| prober.asks(r))
                .collect()
        };
        let first = self.shared.history.lock().calls.len();
        for (_, owner) in &probed {
            self.send(node, prober.ask(*owner));
        }
        if !self.pass(PROBE) {
            return false;
        }
        let mut history = self.shared.history.lock();
        for (number, (record, _)) in (first..).zip(&probed) {
            let told = history.calls[number].told.clone();
            if told != Some(prober.expects(record)) {
                history.violated(format!(
                    "2, 10: {prober:?} of {} was told {told:?}",
                    record.id
                ));
            }
            let now = self.shared.store.peek(record.id).map(|reply| reply.value);
            if now.as_ref() != Some(record) {
                history.violated(format!("10: {prober:?} changed {}", record.id));
            }
        }
        history.violations.is_empty()
    }
}
