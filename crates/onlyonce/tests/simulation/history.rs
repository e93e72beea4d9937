//! What really happened: committed writes, executions at the upstream, and what it must mean. The
//! engine is never asked; this is written by the witnesses and judged on the spot.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use http::StatusCode;
use onlyonce_core::{
    Record, RecordId, State, Timestamp,
    record::{JournalEntry, JournalEvent, LastError, StoredBody, StoredResponse},
};

use onlyonce_testkit::promise::{At, Event};

use crate::{
    calls::Call,
    edges::{Edge, Hits},
    promised::{self, judges_alone},
    rng::Rng,
    rules::{self, Begin, is_contradicted},
    setup::{Ask, Setup},
};

/// A node between two crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    pub node: usize,
    pub life: u32,
}

/// One life of one key: an operation takes effect at most once in it.
pub type Life = (RecordId, u32, u32);

/// What the upstream answered.
#[derive(Clone, Debug)]
pub struct Given {
    pub at: u64,
    pub status: StatusCode,
    pub body: Bytes,
    /// What that means for a running key.
    pub means: State,
}

/// One attempt, from its reservation.
pub struct Trial {
    pub life: Life,
    pub fence: u32,
    pub process: Process,
    pub begun_at: u64,
    /// The call that the upstream was asked for, and when the operation was begun there.
    pub call: Option<usize>,
    pub started_at: Option<u64>,
    pub given: Option<Given>,
    /// The upstream or an operator declared that it left nothing behind.
    pub declared_undone: bool,
    /// Whoever reserved it was told that the key had moved on before anything was sent.
    pub warned: bool,
    /// It was settled as never sent.
    pub unsent: bool,
    /// The provider has spoken for an effect before its end was seen.
    pub contradicted: bool,
    /// What its record said first when it no longer said `in_progress`, and what it said last.
    pub first: Option<State>,
    pub settled: Option<State>,
    /// When an operator or the provider completed its key.
    pub attested_at: Option<u64>,
    /// When its key became unknown, by the time that went by.
    pub unknown_at: Option<u64>,
    /// Since when, once, the provider answers from a copy that has not heard of it.
    pub stale_since: Option<u64>,
}

/// Everything that happened in one run.
pub struct History {
    pub now: u64,
    pub rng: Rng,
    pub setup: Setup,
    pub hits: Hits,
    pub violations: Vec<String>,
    pub trace: Vec<String>,
    pub hash: u64,
    pub trials: BTreeMap<u128, Trial>,
    pub calls: Vec<Call>,
    pub dead: BTreeSet<Process>,
    /// A row that no node can read for now.
    pub unreadable: Option<RecordId>,
    /// When each row could last not be read.
    pub unread_at: BTreeMap<RecordId, u64>,
    /// What the store's clock says, and the latest that it has ever said.
    pub store_now: Timestamp,
    pub latest: Timestamp,
    /// What the store must hold, by the writes that were seen.
    pub records: BTreeMap<RecordId, Record>,
    /// Whose request each record was after each write, and when: whoever reads is told later.
    pub owners: BTreeMap<RecordId, Vec<(u64, Option<Ask>)>>,
    /// The record that an operator last took an answer from, and when: another node may have a copy.
    pub taken: BTreeMap<RecordId, (u64, Record)>,
    /// Trials that were answered and whose settling is not checked yet.
    pub answered: Vec<u128>,
    epochs: BTreeMap<RecordId, u32>,
    pub durable: BTreeMap<Life, StoredResponse>,
    /// When each answer may expire, by the time that went by.
    due: BTreeMap<RecordId, u64>,
    /// When the store's clock last jumped.
    pub jumped_at: u64,
    /// What the checker that knows only the promise judges.
    pub events: Vec<Option<At>>,
    /// The call and the variant that the upstream was asked for by each attempt.
    pub asked_for: BTreeMap<u128, (Option<usize>, Option<usize>)>,
}

/// What a clock may be ahead and still be believed, for each minute of a run and for its beginning.
const TOLERANCE: u64 = 5_000;

impl History {
    pub fn new(setup: Setup, rng: Rng) -> Self {
        Self {
            now: 0,
            rng,
            setup,
            hits: Hits::new(),
            violations: Vec::new(),
            trace: Vec::new(),
            hash: 0xcbf2_9ce4_8422_2325,
            trials: BTreeMap::new(),
            calls: Vec::new(),
            dead: BTreeSet::new(),
            unreadable: None,
            unread_at: BTreeMap::new(),
            store_now: Timestamp::default(),
            latest: Timestamp::default(),
            records: BTreeMap::new(),
            owners: BTreeMap::new(),
            answered: Vec::new(),
            taken: BTreeMap::new(),
            epochs: BTreeMap::new(),
            durable: BTreeMap::new(),
            due: BTreeMap::new(),
            jumped_at: 0,
            events: Vec::new(),
            asked_for: BTreeMap::new(),
        }
    }

    /// How much too early something may happen by a clock that is believed.
    pub fn tolerance(&self) -> u64 {
        TOLERANCE * (2 + self.now / 60_000)
    }

    /// 12: whatever the store's clock says, nothing expires before the time for it went by.
    fn expires(&mut self, before: &Record, edge: Edge) {
        let expires = matches!(
            edge,
            Edge::ExpiredC | Edge::ExpiredF | Edge::AfterExpiryFromC | Edge::AfterExpiryFromF
        );
        let due = self.due.get(&before.id).copied().unwrap_or_default();
        if expires && self.now + self.tolerance() < due {
            self.violated(format!(
                "12: {} expired {} too early",
                before.id,
                due - self.now
            ));
        }
    }

    /// Keeps when the answer of `after` may expire.
    fn keep_due(&mut self, before: Option<&Record>, after: &Record) {
        let was = before.and_then(|before| before.times.expires_at);
        if let Some(at) = after.times.expires_at
            && was != Some(at)
            && self.store_now.0 > 0
        {
            let left = u64::try_from(at.0 - self.store_now.0).unwrap_or_default();
            self.due.insert(after.id, self.now + left);
        }
    }

    /// Writes a line of the trace, which the hash is made of (FNV-1a).
    pub fn say(&mut self, line: &str) {
        let line = format!("{:>6} {line}", self.now);
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.trace.push(line);
    }

    pub fn violated(&mut self, what: String) {
        self.say(&format!("VIOLATION {what}"));
        if !judges_alone() {
            self.violations.push(what);
        }
    }

    /// Whether the row could be read all the time since `then`.
    pub fn readable_since(&self, id: RecordId, then: u64) -> bool {
        self.unread_at.get(&id).is_none_or(|at| *at < then)
    }

    pub fn epoch(&self, id: RecordId) -> u32 {
        self.epochs.get(&id).copied().unwrap_or_default()
    }

    pub fn life_of(&self, record: &Record) -> Life {
        (record.id, self.epoch(record.id), record.generation)
    }

    /// A write was committed.
    pub fn committed(
        &mut self,
        process: Process,
        before: Option<&Record>,
        after: Option<&Record>,
        journal: &[JournalEntry],
        sweeping: bool,
    ) {
        let word =
            |record: Option<&Record>| record.map_or("absent", |record| record.state.as_str());
        let subject = before.or(after).map(|record| record.id);
        let revision = after.map_or(0, |record| record.revision.0);
        let line = format!(
            "{}.{} {} -> {} {:?} r{revision}",
            process.node,
            process.life,
            word(before),
            word(after),
            subject
        );
        self.say(&line);
        let clocks = rules::Clocks {
            // In a run on a real store only the latest is known, and no clock is set.
            now: match self.store_now.0 {
                0 => self.latest,
                _ => self.store_now,
            },
            latest: self.latest,
        };
        let step = match rules::judge(before, after, journal, clocks) {
            Ok(step) => step,
            Err(what) => return self.violated(what),
        };
        if let Some(before) = before {
            self.expires(before, step.edge);
        }
        if let Some(after) = after {
            self.keep_due(before, after);
        }
        if let Some(before) = before.filter(|_| step.edge == Edge::ForgotC) {
            let taken = (self.now, before.clone());
            self.taken.insert(before.id, taken);
            // Whoever asked for it hears so later, once no copy is left.
            if let Some(owner) = self.owner(before) {
                let asked = promised::asked(owner);
                self.happened(Event::Forgotten {
                    keyspace: asked.keyspace,
                    key: asked.key,
                });
            }
        }
        if let Some(id) = subject {
            let owner = after.and_then(|after| self.owner(after));
            let owners = self.owners.entry(id).or_default();
            owners.push((self.now, owner));
        }
        match (before, after) {
            (_, Some(after)) => drop(self.records.insert(after.id, after.clone())),
            (Some(before), None) => drop(self.records.remove(&before.id)),
            (None, None) => {}
        }
        let Some(after) = after else {
            if let Some(before) = before {
                *self.epochs.entry(before.id).or_default() += 1;
            }
            return self.hits.hit(step.edge);
        };
        if let Err(what) = self.setup.owner(after) {
            self.violated(what);
        }
        match step.begin {
            Some(begin) => self.begun(process, before, after, begin),
            None => self.settled(after, journal),
        }
        let edge = self.exact(step.edge, after, sweeping);
        self.hits.hit(edge);
    }

    /// Which of two edges it was, where the records alone do not tell.
    fn exact(&mut self, edge: Edge, after: &Record, sweeping: bool) -> Edge {
        let trial = self.trials.get(&after.attempt_id.0);
        let asked = trial.is_some_and(|trial| trial.call.is_some());
        match edge {
            Edge::NotSentFromI | Edge::NotSentFromU if !asked => Edge::ReleasedUnasked,
            Edge::Swept => {
                if trial.is_some_and(|trial| self.dead.contains(&trial.process)) {
                    self.hits.hit(Edge::Died);
                }
                if sweeping {
                    Edge::Swept
                } else {
                    Edge::LapsedByRequest
                }
            }
            other => other,
        }
    }

    fn begun(&mut self, process: Process, before: Option<&Record>, after: &Record, begin: Begin) {
        if begin == Begin::Anew && before.is_some() {
            *self.epochs.entry(after.id).or_default() += 1;
        }
        // A reserve that timed out may land when its row has been deleted since, which takes no time
        // by a store's clock that jumps. Nobody executes it; should anybody, that is seen.
        if before.is_none() && self.trials.contains_key(&after.attempt_id.0) {
            return self.say("a late reserve landed");
        }
        let trial = Trial {
            life: self.life_of(after),
            fence: after.fence.0,
            process,
            begun_at: self.now,
            call: None,
            started_at: None,
            given: None,
            declared_undone: false,
            warned: false,
            unsent: false,
            contradicted: false,
            first: None,
            settled: None,
            attested_at: None,
            unknown_at: None,
            stale_since: None,
        };
        // A request that could not tell whether it had reserved asks again with the same attempt
        // id; what it reserved then may be gone by now. It has sent nothing for it.
        let again = self.trials.insert(after.attempt_id.0, trial);
        if again.is_some_and(|earlier| earlier.call.is_some()) {
            self.violated(format!("11: attempt {} was begun twice", after.attempt_id));
        }
    }

    fn settled(&mut self, after: &Record, journal: &[JournalEntry]) {
        let tolerance = self.tolerance();
        let life = self.life_of(after);
        if let Some(response) = after.response.as_deref() {
            let known = self.durable.entry(life).or_insert_with(|| response.clone());
            if known != response {
                self.violated("2: a durable answer was replaced".into());
            }
        }
        let Some(trial) = self.trials.get_mut(&after.attempt_id.0) else {
            // A forgotten key has an attempt id that nobody executes under.
            return;
        };
        if after.state == State::Unknown {
            trial.contradicted |= is_contradicted(after);
            trial.unknown_at = trial.unknown_at.or(Some(self.now));
        }
        if after.state != State::InProgress {
            trial.first = trial.first.or(Some(after.state));
            trial.settled = Some(after.state);
        }
        let is_attested = after.state == State::Completed && is_by_word(journal);
        if is_attested {
            trial.attested_at = trial.attested_at.or(Some(self.now));
        }
        let mut wrong = None;
        match (after.state, after.last_error) {
            (State::FailedRetryable, Some(LastError::NotSent | LastError::GuardFailed)) => {
                trial.unsent = true;
                if trial.started_at.is_some() {
                    wrong = Some("1: settled as never sent, but it was begun");
                }
            }
            (State::FailedRetryable, Some(LastError::Operator)) => {
                // A careless one takes it upon himself; a careful one has looked.
                let careless =
                    |entry: &JournalEntry| entry.detail.as_deref() == Some("forced: careless");
                trial.declared_undone |= journal.iter().any(careless);
            }
            (State::FailedRetryable, Some(LastError::ProviderNegative)) => {
                let waited = self.now - trial.unknown_at.unwrap_or(self.now);
                let policy = &self.setup.policy;
                let bound = policy
                    .reconcile
                    .as_ref()
                    .and_then(|how| how.upstream_max_execution);
                let waits = Setup::millis(policy.lease + bound.unwrap_or_default());
                // Whatever the store's clock says.
                if waited + tolerance < waits {
                    wrong = Some("1: a denial counted too early");
                }
            }
            (State::FailedRetryable, _) if !trial.declared_undone => {
                wrong = Some("1: released without a word of the upstream");
            }
            (State::Completed, _) => wrong = not_its_answer(trial, after, journal),
            _ => {}
        }
        if let Some(wrong) = wrong {
            self.violated(format!("{wrong} ({})", after.attempt_id));
        }
        // A word that was given before this attempt began counts for its life from now on.
        if let Some(response) = after.response.as_deref().filter(|_| is_attested) {
            self.attested(after, response);
        }
    }

    /// The operation of `attempt` was begun at the upstream.
    pub fn started(&mut self, attempt: u128, record: Option<&Record>, jumped_at: u64) {
        let now = self.now;
        self.say(&format!("started {attempt:032x}"));
        self.began(attempt);
        let Some(trial) = self.trials.get_mut(&attempt) else {
            return self.violated(format!("5: {attempt:032x} was begun without a reservation"));
        };
        if trial.started_at.replace(now).is_some() {
            return self.violated(format!("1: {attempt:032x} was begun twice"));
        }
        let (life, begun_at, unsent) = (trial.life, trial.begun_at, trial.unsent);
        if trial.warned {
            self.violated(format!(
                "5: {attempt:032x} was begun although its key was known to have moved on"
            ));
        }
        if unsent {
            self.violated(format!(
                "1: {attempt:032x} was begun after it was settled as unsent"
            ));
        }
        // Only a jump of the store's clock can take a key from an attempt whose guard holds.
        let owns = record.is_some_and(|record| {
            record.attempt_id.0 == attempt && record.state == State::InProgress
        });
        if !owns && jumped_at < begun_at {
            self.violated(format!(
                "5: {attempt:032x} was begun without owning its key"
            ));
        }
        let effects: Vec<u128> = self
            .trials
            .iter()
            .filter(|(_, t)| t.life == life && t.started_at.is_some() && !t.declared_undone)
            .map(|(id, _)| *id)
            .collect();
        if effects.len() > 1 {
            self.violated(format!(
                "1: {} effects in one life of {}",
                effects.len(),
                life.0
            ));
        }
    }

    /// The operation of `attempt` was begun, as its checker is told.
    fn began(&mut self, attempt: u128) {
        let Some((Some(call), Some(variant))) = self.asked_for.get(&attempt).copied() else {
            return;
        };
        let ask = Ask {
            variant,
            ..self.calls[call].ask
        };
        self.happened(Event::Began {
            execution: attempt,
            asked: promised::asked(ask),
            call: Some(call as u64),
        });
    }

    /// The request that `record` remembers, whoever wrote it.
    pub fn owner(&self, record: &Record) -> Option<Ask> {
        self.setup.owner(record).ok().flatten()
    }
}

/// A completed record holds the answer that the upstream gave to this very attempt, or the word of
/// an operator or provider.
fn not_its_answer(trial: &Trial, after: &Record, journal: &[JournalEntry]) -> Option<&'static str> {
    if is_by_word(journal)
        || journal
            .iter()
            .any(|entry| entry.event == JournalEvent::Extended)
    {
        return None;
    }
    let response = after.response.as_deref()?;
    let Some(given) = &trial.given else {
        return Some("8: completed without an answer");
    };
    let same = given.status == response.status
        && match &response.body {
            StoredBody::Full { bytes, .. } => *bytes == given.body,
            StoredBody::NotStored => true,
            StoredBody::Packed { .. } => false,
        };
    (!same).then_some("8: completed with another attempt's answer")
}

/// Whether an operator or the provider said what became of the attempt.
fn is_by_word(journal: &[JournalEntry]) -> bool {
    journal.iter().any(|entry| {
        matches!(
            entry.event,
            JournalEvent::Resolved | JournalEvent::Reconciled | JournalEvent::WebhookTaken
        )
    })
}
