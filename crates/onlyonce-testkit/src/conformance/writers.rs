//! Concurrent writers: everything that is read was acknowledged, and the acknowledged writes form one chain.

use std::{collections::HashMap, sync::Arc, time::Duration};

use onlyonce_core::{
    AttemptId, Policy, Record, RecordId, Scope, State, Timestamp,
    machine::{self, End, Forget, Heartbeat, Reap, Settlement, Write},
    record::{Change, LastError, Revision},
};
use parking_lot::Mutex;

use super::{Any, first, policy, request, response};
use onlyonce_store::{Inserted, Swapped};

const WRITERS: u64 = 8;
const KEYS: u64 = 5;
/// Steps of one writer; with `ONLYONCE_SOAK=1` twenty times as many.
const STEPS: u64 = 60;

/// An acknowledged write.
struct Written {
    id: RecordId,
    /// `None` for a new key.
    from: Option<Revision>,
    /// `None` for a deletion.
    record: Option<Record>,
}

#[derive(Default)]
struct Log {
    written: Vec<Written>,
    seen: Vec<Record>,
}

/// A random number generator that need not be good.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn attempt(&mut self) -> AttemptId {
        let (high, low) = (self.below(u64::MAX), self.below(u64::MAX));
        AttemptId(u128::from(high) << 64 | u128::from(low))
    }
}

/// Writers that concurrently insert, complete, release, renew, expire, forget and delete the same few keys
/// leave one chain of revisions for each life of a key, and nobody ever reads a write that was not
/// acknowledged.
pub async fn writers_at_once(store: Any) {
    let steps = if crate::soak::is_on() {
        STEPS * 20
    } else {
        STEPS
    };
    let mut seed = [0; 8];
    aws_lc_rs::rand::fill(&mut seed).unwrap();
    let seed = u64::from_be_bytes(seed);
    let log = Arc::new(Mutex::new(Log::default()));
    let tasks: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let numbers = Numbers(seed.wrapping_mul(writer * 2 + 1) | 1);
            tokio::spawn(write(store.clone(), log.clone(), numbers, steps))
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let log = std::mem::take(&mut *log.lock());
    assert!(log.written.len() as u64 > steps, "something was written");
    check(&store, log).await;
}

async fn write(store: Any, log: Arc<Mutex<Log>>, mut numbers: Numbers, steps: u64) {
    for _ in 0..steps {
        let key = format!("k{}", numbers.below(KEYS));
        let draft = first(&*store, &key, numbers.attempt().0);
        let id = draft.record.id;
        let reply = store.insert_or_get(draft).await.unwrap();
        let record = match reply.value {
            Inserted::New(record) => {
                log.lock().written.push(Written {
                    id,
                    from: None,
                    record: Some(record),
                });
                continue;
            }
            Inserted::Existing(record) => record,
        };
        log.lock().seen.push(record.clone());
        if machine::apply(Some(&record), &Reap, later(reply.now), &Policy::default()).write
            == Write::Delete
            && numbers.below(2) == 0
        {
            if store.delete(id, record.revision).await.unwrap() {
                log.lock().written.push(Written {
                    id,
                    from: Some(record.revision),
                    record: None,
                });
            }
            continue;
        }
        let Some(change) = step(&store, &record, &key, reply.now, &mut numbers) else {
            continue;
        };
        let swapped = store.swap(record.revision, change).await.unwrap().value;
        let mut log = log.lock();
        match swapped {
            Swapped::Done(after) => log.written.push(Written {
                id,
                from: Some(record.revision),
                record: Some(after),
            }),
            Swapped::Conflict(found) => {
                assert_ne!(found.revision, record.revision, "a conflict with itself");
                log.seen.push(found);
            }
            Swapped::Absent => {}
        }
    }
}

/// A moment at which everything that can expire has expired.
fn later(now: Timestamp) -> Timestamp {
    now.plus(Duration::from_secs(365 * 86_400))
}

/// A random change that the machine allows next.
fn step(
    store: &Any,
    record: &Record,
    key: &str,
    now: Timestamp,
    numbers: &mut Numbers,
) -> Option<Change> {
    let policy = policy();
    let settle = |settlement: &Settlement| {
        let attempt = record.attempt_id;
        let end = End {
            attempt,
            settlement,
        };
        machine::apply(Some(record), &end, now, &policy).swapped()
    };
    match (record.state, numbers.below(4)) {
        (State::InProgress, 0) => settle(&Settlement::Complete(response())),
        (State::InProgress, 1) => settle(&Settlement::Release(LastError::NotSent)),
        (State::InProgress, 2) => settle(&Settlement::Unknown(LastError::Timeout)),
        (State::InProgress, _) => {
            let beat = Heartbeat(record.attempt_id);
            machine::apply(Some(record), &beat, now, &policy).swapped()
        }
        (State::Unknown, _) => settle(&Settlement::Complete(response())),
        (State::Completed | State::FailedRetryable, 0) => {
            let forget = Forget {
                force: true,
                fresh: numbers.attempt(),
                reason: None,
            };
            machine::apply(Some(record), &forget, now, &policy).swapped()
        }
        (State::Completed, _) => machine::apply(Some(record), &Reap, later(now), &policy).swapped(),
        (State::FailedRetryable | State::Expired, _) => {
            let mut again = request(&**store, &Scope::global(), key, 0);
            again.attempt_id = numbers.attempt();
            machine::apply(Some(record), &again, now, &policy).swapped()
        }
    }
}

/// Follows each life of each key from its first revision to its last.
async fn check(store: &Any, log: Log) {
    let mut births: Vec<&Record> = Vec::new();
    let mut next: HashMap<(RecordId, Revision), &Written> = HashMap::new();
    let mut acknowledged: HashMap<(RecordId, Revision), &Record> = HashMap::new();
    for written in &log.written {
        if let Some(record) = &written.record {
            let other = acknowledged.insert((written.id, record.revision), record);
            assert!(
                other.is_none(),
                "one revision, two records: {record:?}, {other:?}"
            );
        }
        match (written.from, &written.record) {
            (None, Some(record)) => births.push(record),
            (None, None) => unreachable!("nothing is deleted that was not there"),
            (Some(from), _) => {
                let other = next.insert((written.id, from), written);
                assert!(other.is_none(), "two writes from revision {from:?}");
            }
        }
    }
    let mut followed = 0;
    let mut last: HashMap<RecordId, &Record> = HashMap::new();
    for birth in births {
        let mut record = birth;
        followed += 1;
        let end = loop {
            match next.get(&(record.id, record.revision)) {
                None => break Some(record),
                Some(written) => {
                    followed += 1;
                    match &written.record {
                        None => break None,
                        Some(after) => record = after,
                    }
                }
            }
        };
        if let Some(end) = end {
            let other = last.insert(end.id, end);
            assert!(other.is_none(), "two lives at once: {end:?}, {other:?}");
        }
    }
    assert_eq!(followed, log.written.len(), "a write belongs to no life");
    for seen in &log.seen {
        let known = acknowledged.get(&(seen.id, seen.revision));
        assert_eq!(known, Some(&seen), "read, but never acknowledged");
    }
    for number in 0..KEYS {
        let id = first(&**store, &format!("k{number}"), 0).record.id;
        let found = store.lookup(id).await.unwrap().value;
        assert_eq!(found.as_ref(), last.get(&id).copied());
    }
}
