//! Reads a history from start to end, and remembers about each key only what clients and the API could tell.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Answer, Asked, At, Broken, Event, Heard, Moment, Promise, Terms};

type Operation = (Arc<str>, Arc<str>);

/// One life of a key, until the key has expired or was forgotten.
#[derive(Default)]
struct Life {
    /// The bytes that everybody hears, who heard them first, and when.
    outcome: Option<(Arc<[u8]>, Asked, Moment)>,
    /// The outcomes given by operators and providers.
    attested: Vec<(Asked, Arc<[u8]>)>,
    /// The earliest time at which the outcome may be known.
    settled_at: Option<Moment>,
}

struct Execution {
    asked: Asked,
    call: Option<u64>,
    life: usize,
}

struct Call {
    asked: Asked,
    sent_at: Moment,
    is_over: bool,
}

#[derive(Default)]
struct Key {
    lives: Vec<Life>,
    /// The key's executions and requests, by number.
    executions: Vec<u128>,
    calls: Vec<u64>,
}

impl Key {
    /// The number of the current life.
    fn life(&mut self) -> usize {
        if self.lives.is_empty() {
            self.lives.push(Life::default());
        }
        self.lives.len() - 1
    }
}

struct Checker<'a> {
    terms: &'a Terms,
    keys: BTreeMap<Operation, Key>,
    executions: BTreeMap<u128, Execution>,
    calls: BTreeMap<u64, Call>,
    /// Executions declared to have left nothing behind, begun or not.
    undone: BTreeSet<u128>,
    /// The requests sent to their last byte.
    sent_whole: BTreeSet<Asked>,
    at_rest: bool,
    broken: Vec<Broken>,
}

/// The promises that `history` breaks, in the order in which they were broken.
pub fn check(terms: &Terms, history: &[At]) -> Vec<Broken> {
    let mut history: Vec<&At> = history.iter().collect();
    history.sort_by_key(|event| event.at);
    let mut checker = Checker {
        terms,
        keys: BTreeMap::new(),
        executions: BTreeMap::new(),
        calls: BTreeMap::new(),
        undone: BTreeSet::new(),
        sent_whole: BTreeSet::new(),
        at_rest: false,
        broken: Vec::new(),
    };
    for At { at, event } in &history {
        checker.see(*at, event);
    }
    let end = history.last().map_or(0, |last| last.at);
    let waiting: Vec<u64> = checker.waiting().collect();
    for call in waiting {
        checker.report(
            Promise::Answered,
            end,
            format!("call {call} waits for ever"),
        );
    }
    checker.broken
}

impl Checker<'_> {
    fn report(&mut self, promise: Promise, at: Moment, what: String) {
        self.broken.push(Broken { promise, at, what });
    }

    fn waiting(&self) -> impl Iterator<Item = u64> {
        let waits = self.calls.iter().filter(|(_, call)| !call.is_over);
        waits.map(|(number, _)| *number)
    }

    fn key(&mut self, asked: &Asked) -> &mut Key {
        self.keys.entry(asked.operation()).or_default()
    }

    fn see(&mut self, at: Moment, event: &Event) {
        match event {
            Event::Sent { call, asked, whole } => {
                if *whole {
                    self.sent_whole.insert(asked.clone());
                }
                self.key(asked).calls.push(*call);
                let (asked, sent_at) = (asked.clone(), at);
                self.calls.insert(
                    *call,
                    Call {
                        asked,
                        sent_at,
                        is_over: false,
                    },
                );
            }
            Event::Heard { call, heard } => self.heard(at, *call, heard),
            Event::Left { call } => {
                if let Some(call) = self.calls.get_mut(call) {
                    call.is_over = true;
                }
            }
            Event::Began {
                execution,
                asked,
                call,
            } => self.began(at, *execution, asked, *call),
            Event::Ended {
                execution,
                conclusive,
            } => {
                if let Some(ended) = self.executions.get(execution).filter(|_| *conclusive) {
                    let (operation, life) = (ended.asked.operation(), ended.life);
                    let key = self.keys.entry(operation).or_default();
                    key.lives[life].settled_at.get_or_insert(at);
                }
            }
            Event::Undone { execution } => {
                self.undone.insert(*execution);
            }
            Event::Attested { asked, bytes } => {
                let key = self.key(asked);
                let life = key.life();
                let life = &mut key.lives[life];
                life.settled_at.get_or_insert(at);
                life.attested.push((asked.clone(), Arc::clone(bytes)));
            }
            Event::Forgotten { keyspace, key } => {
                let operation = (Arc::clone(keyspace), Arc::clone(key));
                let key = self.keys.entry(operation).or_default();
                key.lives.push(Life::default());
            }
            Event::AtRest => {
                self.at_rest = true;
                let waiting: Vec<u64> = self.waiting().collect();
                for call in waiting {
                    let what = format!("call {call} waits although all is at rest");
                    self.report(Promise::Answered, at, what);
                }
            }
        }
    }

    /// Checks *once* and *whole*.
    fn began(&mut self, at: Moment, number: u128, asked: &Asked, call: Option<u64>) {
        let of_call = call.and_then(|call| self.calls.get(&call));
        let was_sent = match (call, of_call) {
            (Some(_), Some(of)) => of.asked == *asked && self.sent_whole.contains(asked),
            (Some(_), None) => false,
            (None, _) => self.sent_whole.contains(asked),
        };
        if !was_sent {
            let what = format!("execution {number} of what nobody sent: {asked:?}");
            self.report(Promise::Whole, at, what);
        }
        let once_for = self.terms.once_for;
        let key = self.keys.entry(asked.operation()).or_default();
        let mut life = key.life();
        let takes_effect = |number: &&u128| {
            let earlier = self.executions.get(number);
            earlier.is_some_and(|earlier| earlier.life == life && !self.undone.contains(number))
        };
        let effect = key.executions.iter().find(takes_effect).copied();
        let settled_at = key.lives[life].settled_at;
        let has_expired = settled_at.is_some_and(|settled| at >= settled + once_for);
        if has_expired {
            key.lives.push(Life::default());
            life += 1;
        }
        key.executions.push(number);
        let execution = Execution {
            asked: asked.clone(),
            call,
            life,
        };
        if self.executions.insert(number, execution).is_some() {
            self.report(Promise::Once, at, format!("execution {number} began twice"));
        }
        if let Some(effect) = effect.filter(|_| !has_expired) {
            let what = format!("execution {number} after {effect}, which took effect: {asked:?}");
            self.report(Promise::Once, at, what);
        }
    }

    fn heard(&mut self, at: Moment, number: u64, heard: &Heard) {
        let Some(call) = self.calls.get_mut(&number) else {
            let what = format!("call {number} was answered before it was sent");
            return self.report(Promise::Answered, at, what);
        };
        if std::mem::replace(&mut call.is_over, true) {
            let what = format!("call {number} was answered twice");
            self.report(Promise::Answered, at, what);
        }
        let call = &self.calls[&number];
        let (asked, sent_at) = (call.asked.clone(), call.sent_at);
        let waited = at - sent_at;
        if self
            .terms
            .longest_wait
            .is_some_and(|longest| waited > longest)
        {
            let what = format!("call {number} waited for {waited}");
            self.report(Promise::Answered, at, what);
        }
        let wrong = match heard {
            Heard::Outcome(answer) => self.outcome(at, &asked, answer),
            Heard::Passed(answer) => self.passed(number, &asked, answer),
            Heard::NotExecuted => self.not_executed(number),
            Heard::Nothing => None,
            Heard::ExecutedBefore
            | Heard::Running
            | Heard::Unclear
            | Heard::AnotherRequest
            | Heard::Expired => self
                .lost(at, (&asked, sent_at), heard)
                .or_else(|| self.untrue(at, number, &asked, heard)),
        };
        if let Some((promise, what)) = wrong {
            self.report(promise, at, format!("call {number} {what}"));
        }
    }

    /// Checks *own* and *same*.
    fn outcome(&mut self, at: Moment, asked: &Asked, answer: &Answer) -> Option<(Promise, String)> {
        let key = self.keys.entry(asked.operation()).or_default();
        let life = match answer.execution {
            Some(execution) => {
                let made = self.executions.get(&execution);
                let made = made.filter(|made| made.asked == *asked);
                made.map(|made| made.life)
            }
            None => key.lives.iter().rposition(|life| {
                let said =
                    |(of, bytes): &(Asked, Arc<[u8]>)| *of == *asked && *bytes == answer.bytes;
                life.attested.iter().any(said)
            }),
        };
        let Some(life) = life.and_then(|life| key.lives.get_mut(life)) else {
            let what = format!("heard what is not its own: {answer:?}");
            return Some((Promise::Own, what));
        };
        let (known, ..) = life
            .outcome
            .get_or_insert_with(|| (Arc::clone(&answer.bytes), asked.clone(), at));
        (*known != answer.bytes).then(|| {
            let what = "heard other bytes than somebody before it".to_owned();
            (Promise::Same, what)
        })
    }

    /// An answer for one client only goes to the client that it was executed for.
    fn passed(&self, call: u64, asked: &Asked, answer: &Answer) -> Option<(Promise, String)> {
        let made = answer
            .execution
            .and_then(|execution| self.executions.get(&execution));
        let own = made.is_some_and(|made| {
            made.asked == *asked && made.call.is_none_or(|executed| executed == call)
        });
        (!own).then(|| (Promise::Own, format!("heard what is another's: {answer:?}")))
    }

    fn not_executed(&self, call: u64) -> Option<(Promise, String)> {
        let executed = self.executions.iter().any(|(number, execution)| {
            execution.call == Some(call) && !self.undone.contains(number)
        });
        executed.then(|| {
            let what = "was told that nothing was executed for it".to_owned();
            (Promise::Honest, what)
        })
    }

    /// Whether an outcome that somebody had heard before this request was sent is no longer returned.
    fn lost(
        &self,
        at: Moment,
        (asked, sent_at): (&Asked, Moment),
        heard: &Heard,
    ) -> Option<(Promise, String)> {
        let life = self.keys.get(&asked.operation())?.lives.last()?;
        let (bytes, of, heard_at) = life.outcome.as_ref()?;
        let expires_at = life.settled_at? + self.terms.kept_for;
        if of != asked || *heard_at >= sent_at || at >= expires_at {
            return None;
        }
        if *heard == Heard::ExecutedBefore && bytes.len() > self.terms.largest_answer {
            return None;
        }
        let what = format!("was told {heard:?} although the outcome was known at {heard_at}");
        Some((Promise::Kept, what))
    }

    /// Whether a statement about the key cannot be true.
    fn untrue(
        &self,
        at: Moment,
        number: u64,
        asked: &Asked,
        heard: &Heard,
    ) -> Option<(Promise, String)> {
        let key = self.keys.get(&asked.operation())?;
        let others = || {
            let others = key.calls.iter().filter(|call| **call != number);
            others.filter_map(|call| self.calls.get(call))
        };
        let kept_for = self.terms.kept_for;
        let is_true = match heard {
            Heard::AnotherRequest => others().any(|other| other.asked != *asked),
            Heard::ExecutedBefore => !key.executions.is_empty(),
            Heard::Expired => others().any(|other| at >= other.sent_at + kept_for),
            _ => true,
        };
        if !is_true {
            let what = format!("was told {heard:?}, which cannot be: {asked:?}");
            return Some((Promise::Honest, what));
        }
        let left = match heard {
            Heard::Running => self.at_rest && others().all(|other| other.is_over),
            Heard::Unclear => self.at_rest && self.terms.unclear_ends,
            _ => false,
        };
        left.then(|| {
            let what = format!("was told {heard:?} although all is at rest: {asked:?}");
            (Promise::Settled, what)
        })
    }
}
