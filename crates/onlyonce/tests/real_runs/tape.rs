//! What was seen in a run, in the order in which it was seen; and the judgement on it.
//!
//! Several nodes write at once, so that a write may be seen a moment after its effects. Writes of one
//! key are put in the order of their revisions. What a client was told is held against every write
//! that had begun by then; but what an execution was told about itself, only against writes that
//! were acknowledged before.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use http::StatusCode;
use onlyonce_core::{
    AttemptId, Record, RecordId, StoredResponse, Timestamp,
    policy::Declared,
    record::{JournalEntry, Revision},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    calls::{Answer, Call},
    history::{History, Process},
    rng::Rng,
    setup::{Ask, Setup},
};

/// A write that the store has acknowledged.
pub struct Commit {
    pub process: Process,
    /// How much had been seen when it was sent.
    pub began: usize,
    pub id: RecordId,
    /// The revision that it replaces.
    pub expected: Option<Revision>,
    pub after: Option<Record>,
    pub journal: Vec<JournalEntry>,
}

/// One thing that was seen.
pub enum What {
    Called {
        ask: Ask,
        process: Process,
    },
    Asked {
        attempt: u128,
        call: Option<usize>,
        variant: Option<usize>,
    },
    Started {
        attempt: u128,
        id: RecordId,
    },
    Given {
        attempt: u128,
        status: StatusCode,
        declared: Option<Declared>,
        body: Bytes,
    },
    Committed(Box<Commit>),
    Met {
        record: Box<Record>,
        attempt: AttemptId,
    },
    Conflict {
        wanted: Box<Record>,
        current: Box<Record>,
    },
    Absent {
        wanted: Box<Record>,
    },
    Noted(Vec<JournalEntry>),
    /// An operator says what became of the attempt of `record`.
    Attested {
        record: Box<Record>,
        word: Arc<StoredResponse>,
    },
    Answered {
        number: usize,
        answer: Answer,
    },
    Gone {
        number: usize,
    },
    Died(Process),
    Wrong(String),
}

struct Seen {
    at: u64,
    /// The latest that the store's clock had said by then.
    heard: Timestamp,
    what: What,
}

#[derive(Default)]
struct Reel {
    seen: Vec<Seen>,
    heard: Timestamp,
    asks: Vec<Ask>,
}

/// Where everybody writes down what they see.
pub struct Tape {
    began: Instant,
    reel: Mutex<Reel>,
}

impl Tape {
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            reel: Mutex::default(),
        }
    }

    pub fn length(&self) -> usize {
        self.reel.lock().seen.len()
    }

    /// The store said what time it is.
    pub fn heard(&self, now: Timestamp) {
        let mut reel = self.reel.lock();
        reel.heard = reel.heard.max(now);
    }

    pub fn saw(&self, what: What) {
        self.write(&mut self.reel.lock(), what);
    }

    fn write(&self, reel: &mut Reel, what: What) {
        let at = 1 + Setup::millis(self.began.elapsed());
        let heard = reel.heard;
        reel.seen.push(Seen { at, heard, what });
    }

    /// A client asks. Returns the number of its call.
    pub fn called(&self, ask: Ask, process: Process) -> usize {
        let mut reel = self.reel.lock();
        reel.asks.push(ask);
        self.write(&mut reel, What::Called { ask, process });
        reel.asks.len() - 1
    }

    pub fn ask_of(&self, call: usize) -> Option<Ask> {
        self.reel.lock().asks.get(call).copied()
    }

    /// Whether the operation of `attempt` was begun at the upstream.
    pub fn has_started(&self, attempt: AttemptId) -> bool {
        let started =
            |seen: &Seen| matches!(seen.what, What::Started { attempt: a, .. } if a == attempt.0);
        self.reel.lock().seen.iter().any(started)
    }

    /// The history that the tape tells, judged.
    pub fn judge(&self, setup: Setup) -> History {
        let seen = std::mem::take(&mut self.reel.lock().seen);
        let mut judge = Judge {
            history: History::new(setup, Rng::new(0)),
            parked: Vec::new(),
            versions: BTreeMap::new(),
            arrived: Vec::new(),
            told: Vec::new(),
            settled_by: settled_by(&seen),
        };
        for (place, seen) in seen.into_iter().enumerate() {
            judge.history.now = seen.at;
            judge.history.latest = judge.history.latest.max(seen.heard);
            judge.see(place, seen.what);
            judge.tell(place);
        }
        judge.tell(usize::MAX);
        for (_, commit) in &judge.parked {
            let what = format!("7: a write of {} without the one before it", commit.id);
            judge.history.violated(what);
        }
        judge.history
    }
}

/// For each place, the one where everything that had begun by then has been acknowledged.
fn settled_by(seen: &[Seen]) -> Vec<usize> {
    let mut by: Vec<usize> = (0..seen.len()).collect();
    for (place, seen) in seen.iter().enumerate() {
        if let What::Committed(commit) = &seen.what {
            by[commit.began..place]
                .iter_mut()
                .for_each(|by| *by = (*by).max(place));
        }
    }
    by
}

/// A version of a record: when its write began, and when it was acknowledged.
struct Version {
    began: usize,
    acknowledged: usize,
    record: Option<Record>,
}

struct Judge {
    history: History,
    /// Writes that were acknowledged before the one that they follow.
    parked: Vec<(usize, Commit)>,
    versions: BTreeMap<RecordId, Vec<Version>>,
    /// Where each call stands on the tape.
    arrived: Vec<usize>,
    /// What clients were told and is not judged yet.
    told: Vec<(usize, usize, Answer)>,
    settled_by: Vec<usize>,
}

impl Judge {
    fn see(&mut self, place: usize, what: What) {
        let history = &mut self.history;
        match what {
            What::Called { ask, process } => {
                let id = history.setup.id(ask);
                let met = history.records.get(&id).cloned();
                let (arrived, epoch) = (history.now, history.epoch(id));
                self.arrived.push(place);
                history.sent(history.calls.len(), ask);
                history.calls.push(Call {
                    ask,
                    process,
                    arrived,
                    met,
                    epoch,
                    answered: false,
                    told: None,
                    gone: false,
                    attempt: None,
                });
            }
            What::Asked {
                attempt,
                call,
                variant,
            } => history.asked(attempt, call, variant),
            What::Started { attempt, id } => {
                let record = history.records.get(&id).cloned();
                history.started(attempt, record.as_ref(), 0);
            }
            What::Given {
                attempt,
                status,
                declared,
                body,
            } => history.given(attempt, status, declared, body),
            What::Committed(commit) => {
                self.parked.push((place, *commit));
                self.commit();
            }
            What::Met { record, attempt } => history.met(&record, attempt),
            What::Conflict { wanted, current } => history.conflict(&wanted, &current),
            What::Absent { wanted } => history.absent(&wanted),
            What::Noted(journal) => history.noted(&journal),
            What::Answered { number, answer } => {
                history.heard(number, &answer);
                self.told.push((place, number, answer));
            }
            What::Attested { record, word } => drop(history.attested(&record, &word)),
            What::Gone { number } => {
                history.calls[number].gone = true;
                history.left(number);
            }
            What::Died(process) => drop(history.dead.insert(process)),
            What::Wrong(what) => history.violated(what),
        }
    }

    /// Carries out every write whose turn it is.
    fn commit(&mut self) {
        let follows = |history: &History, commit: &Commit| {
            history
                .records
                .get(&commit.id)
                .map(|record| record.revision)
                == commit.expected
        };
        while let Some(index) = self
            .parked
            .iter()
            .position(|(_, c)| follows(&self.history, c))
        {
            let (acknowledged, commit) = self.parked.remove(index);
            let before = self.history.records.get(&commit.id).cloned();
            let (before, after) = (before.as_ref(), commit.after.as_ref());
            self.history
                .committed(commit.process, before, after, &commit.journal, false);
            self.versions.entry(commit.id).or_default().push(Version {
                began: commit.began,
                acknowledged,
                record: commit.after,
            });
        }
    }

    /// Judges what clients were told, as soon as all that had begun by then is known.
    fn tell(&mut self, place: usize) {
        let mut index = 0;
        while let Some((at, number, answer)) = self.told.get(index) {
            if self.settled_by[*at] > place && !self.is_about_itself(*number, answer) {
                index += 1;
                continue;
            }
            let (at, number, answer) = self.told.remove(index);
            let id = self.history.setup.id(self.history.calls[number].ask);
            let versions = self.versions.get(&id).into_iter().flatten();
            let arrived = self.arrived[number];
            let held: Vec<Option<Record>> = versions
                .filter(|version| version.acknowledged >= arrived && version.began <= at)
                .map(|version| version.record.clone())
                .collect();
            self.history.answered(number, &answer, &held);
        }
    }

    /// Whether an execution was told how it ended itself.
    fn is_about_itself(&self, number: usize, answer: &Answer) -> bool {
        let maker = answer
            .mark
            .as_deref()
            .and_then(|mark| mark.split('/').next());
        let maker = maker.and_then(|maker| u128::from_str_radix(maker, 16).ok());
        maker.is_some() && maker == self.history.calls[number].attempt
    }
}
