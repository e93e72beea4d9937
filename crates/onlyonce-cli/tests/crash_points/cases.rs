//! Which point is reached by which scenario, and how its key must end.

use Ends::{Executed, NotStored, Replayed, Unknown};
use Scenario::{
    Again, Ambiguous, Buried, Forgotten, Impatient, LapsedRetry, LapsedSweep, Large, Lost,
    Oversized, Overtaken, Plain, Refused, Slow, TimedOut, Twins,
};

/// What happens to the process at the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Abort,
    Kill,
    Stop,
}

impl Action {
    pub(crate) const ALL: [Self; 3] = [Self::Abort, Self::Kill, Self::Stop];

    /// The actions of row `row` of the table. With `turns`, one of them, each in its turn.
    pub(crate) fn of_row(row: usize, turns: bool) -> Vec<Self> {
        if turns {
            vec![Self::ALL[row % Self::ALL.len()]]
        } else {
            Self::ALL.into()
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Abort => "abort",
            Self::Kill => "kill",
            Self::Stop => "stop",
        }
    }
}

/// What is done to the gateway until the point is reached; see `scenario.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// A new key, 201.
    Plain,
    /// The same with a duplicate that waits.
    Twins,
    /// A body that does not fit into one write.
    Large,
    /// The engine asks the store a second time long before a pause is over.
    Impatient,
    /// An answer that is too long to be kept.
    Oversized,
    /// 429, which releases the key; the same again, 201.
    Again,
    /// The upstream refuses the connection.
    Refused,
    /// The upstream resets the connection after the request.
    Lost,
    /// The upstream answers after the timeout.
    TimedOut,
    /// The upstream takes long enough for a heartbeat.
    Slow,
    /// An operator forgets the completed key; a new generation.
    Forgotten,
    /// The same, and the tombstone is due for deletion.
    Buried,
    /// A retry meets the lapsed lease of a killed gateway before the sweep does.
    LapsedRetry,
    /// The sweep meets it.
    LapsedSweep,
    /// The store does not say in time whether it has reserved, and then it has.
    Ambiguous,
    /// An answer arrives whose key an operator has released and another attempt has completed.
    Overtaken,
}

/// How the key ends for the client that retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// The retry executes it.
    Executed,
    /// The retry gets the answer of the first execution.
    Replayed,
    /// The retry is told that it was executed and that the answer was not kept.
    NotStored,
    /// The retry is told that nobody knows.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) point: &'static str,
    /// Which hit of the point.
    pub(crate) nth: u32,
    pub(crate) scenario: Scenario,
    after_crash: Ends,
    after_pause: Ends,
}

impl Case {
    pub(crate) fn after(&self, action: Action) -> Ends {
        match action {
            Action::Abort | Action::Kill => self.after_crash,
            Action::Stop => self.after_pause,
        }
    }
}

/// Every case on PostgreSQL: the same, but for the points of the store.
///
/// Where SQLite begins, applies and commits, PostgreSQL is sent one statement. Nothing is durable
/// before it, and everything after it.
pub(crate) fn postgres_cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for case in sqlite_cases() {
        let point = match case.point {
            "sqlite.insert.begin" | "sqlite.insert.applied" => "postgres.insert.before",
            "sqlite.insert.committed" => "postgres.insert.after",
            "sqlite.swap.begin" | "sqlite.swap.applied" => "postgres.swap.before",
            "sqlite.swap.committed" => "postgres.swap.after",
            "sqlite.append.begin" | "sqlite.append.applied" => "postgres.append.before",
            "sqlite.append.committed" => "postgres.append.after",
            other => other,
        };
        let case = Case { point, ..case };
        if !cases.contains(&case) {
            cases.push(case);
        }
    }
    cases
}

/// Every case on SQLite.
///
/// After a crash everything between a durable reservation and a durable end is unknown: whoever
/// might know is dead. After a pause nothing is unknown that the process itself had in hand.
pub(crate) fn sqlite_cases() -> Vec<Case> {
    [
        // A reservation and its completion.
        ("engine.reserve.insert.before", 1, Plain, Executed, Executed),
        ("sqlite.insert.begin", 1, Plain, Executed, Executed),
        ("sqlite.insert.applied", 1, Plain, Executed, Executed),
        ("sqlite.insert.committed", 1, Plain, Unknown, Executed),
        ("engine.reserve.insert.after", 1, Plain, Unknown, Executed),
        ("upstream.guard.before", 1, Plain, Unknown, Executed),
        ("upstream.first_byte.before", 1, Plain, Unknown, Replayed),
        ("upstream.first_byte.after", 1, Plain, Unknown, Replayed),
        ("upstream.more_bytes.before", 1, Large, Unknown, Replayed),
        ("upstream.more_bytes.after", 1, Large, Unknown, Replayed),
        ("upstream.answered", 1, Plain, Unknown, Replayed),
        ("layer.executed", 1, Plain, Unknown, Replayed),
        ("engine.settle.complete.before", 1, Plain, Unknown, Replayed),
        ("sqlite.swap.begin", 1, Plain, Unknown, Replayed),
        ("sqlite.swap.applied", 1, Plain, Unknown, Replayed),
        ("sqlite.swap.committed", 1, Plain, Replayed, Replayed),
        ("engine.settle.complete.after", 1, Plain, Replayed, Replayed),
        ("layer.tell.before", 1, Plain, Replayed, Replayed),
        ("layer.tell.after", 1, Plain, Replayed, Replayed),
        // The same while a duplicate waits.
        ("upstream.first_byte.before", 1, Twins, Unknown, Replayed),
        ("sqlite.swap.applied", 1, Twins, Unknown, Replayed),
        ("sqlite.swap.committed", 1, Twins, Replayed, Replayed),
        ("layer.tell.before", 1, Twins, Replayed, Replayed),
        // The same with a store that has too little time to answer after a pause.
        ("sqlite.insert.begin", 1, Impatient, Executed, Executed),
        ("sqlite.insert.committed", 1, Impatient, Unknown, Executed),
        ("sqlite.swap.begin", 1, Impatient, Unknown, Replayed),
        ("sqlite.swap.committed", 1, Impatient, Replayed, Replayed),
        // A completion whose answer is passed on piece by piece.
        (
            "engine.settle.complete.before",
            1,
            Oversized,
            Unknown,
            NotStored,
        ),
        ("sqlite.swap.committed", 1, Oversized, NotStored, NotStored),
        ("layer.tell.before", 1, Oversized, NotStored, NotStored),
        ("layer.tell.after", 1, Oversized, NotStored, NotStored),
        // A release by status, and the execution after it.
        ("engine.settle.release.before", 1, Again, Unknown, Replayed),
        ("sqlite.swap.applied", 1, Again, Unknown, Replayed),
        ("sqlite.swap.committed", 1, Again, Executed, Replayed),
        ("engine.settle.release.after", 1, Again, Executed, Replayed),
        ("engine.reserve.again.before", 1, Again, Executed, Executed),
        ("sqlite.swap.applied", 2, Again, Executed, Executed),
        ("sqlite.swap.committed", 2, Again, Unknown, Executed),
        ("engine.reserve.again.after", 1, Again, Unknown, Executed),
        ("sqlite.swap.committed", 3, Again, Replayed, Replayed),
        // A release because nothing was sent.
        (
            "engine.settle.release.before",
            1,
            Refused,
            Unknown,
            Executed,
        ),
        (
            "engine.settle.release.after",
            1,
            Refused,
            Executed,
            Executed,
        ),
        // An end that nobody saw.
        ("engine.settle.unknown.before", 1, Lost, Unknown, Unknown),
        ("sqlite.swap.applied", 1, Lost, Unknown, Unknown),
        ("sqlite.swap.committed", 1, Lost, Unknown, Unknown),
        ("engine.settle.unknown.after", 1, Lost, Unknown, Unknown),
        // A timeout, and the answer after it.
        ("layer.timeout.before", 1, TimedOut, Unknown, Replayed),
        ("sqlite.swap.applied", 2, TimedOut, Unknown, Replayed),
        ("sqlite.swap.committed", 2, TimedOut, Unknown, Replayed),
        ("layer.timeout.after", 1, TimedOut, Unknown, Replayed),
        // A heartbeat.
        ("engine.renew.before", 1, Slow, Unknown, Replayed),
        ("sqlite.swap.applied", 1, Slow, Unknown, Replayed),
        ("sqlite.swap.committed", 1, Slow, Unknown, Replayed),
        ("engine.renew.after", 1, Slow, Unknown, Replayed),
        // A new generation, and a new life after the tombstone.
        (
            "engine.reserve.next_generation.before",
            1,
            Forgotten,
            Executed,
            Executed,
        ),
        ("sqlite.swap.applied", 3, Forgotten, Executed, Executed),
        ("sqlite.swap.committed", 3, Forgotten, Unknown, Executed),
        (
            "engine.reserve.next_generation.after",
            1,
            Forgotten,
            Unknown,
            Executed,
        ),
        ("engine.reserve.anew.before", 1, Buried, Executed, Executed),
        ("sqlite.swap.committed", 3, Buried, Unknown, Executed),
        ("engine.reserve.anew.after", 1, Buried, Unknown, Executed),
        // A lapsed lease.
        (
            "engine.reserve.lapse.before",
            1,
            LapsedRetry,
            Unknown,
            Unknown,
        ),
        ("sqlite.swap.applied", 1, LapsedRetry, Unknown, Unknown),
        ("sqlite.swap.committed", 1, LapsedRetry, Unknown, Unknown),
        (
            "engine.reserve.lapse.after",
            1,
            LapsedRetry,
            Unknown,
            Unknown,
        ),
        ("engine.sweep.before", 1, LapsedSweep, Unknown, Unknown),
        ("sqlite.swap.applied", 1, LapsedSweep, Unknown, Unknown),
        ("sqlite.swap.committed", 1, LapsedSweep, Unknown, Unknown),
        ("engine.sweep.after", 1, LapsedSweep, Unknown, Unknown),
        // A reservation that nobody heard of, after another key has made its scope known.
        (
            "engine.release_later.before",
            1,
            Ambiguous,
            Unknown,
            Executed,
        ),
        ("sqlite.insert.applied", 2, Ambiguous, Executed, Executed),
        ("sqlite.insert.committed", 2, Ambiguous, Unknown, Executed),
        ("sqlite.swap.applied", 2, Ambiguous, Unknown, Executed),
        ("sqlite.swap.committed", 2, Ambiguous, Executed, Executed),
        (
            "engine.release_later.after",
            1,
            Ambiguous,
            Executed,
            Executed,
        ),
        // A result that nobody owns.
        ("engine.note.before", 1, Overtaken, Replayed, Replayed),
        ("sqlite.append.begin", 1, Overtaken, Replayed, Replayed),
        ("sqlite.append.applied", 1, Overtaken, Replayed, Replayed),
        ("sqlite.append.committed", 1, Overtaken, Replayed, Replayed),
        ("engine.note.after", 1, Overtaken, Replayed, Replayed),
    ]
    .map(|(point, nth, scenario, after_crash, after_pause)| Case {
        point,
        nth,
        scenario,
        after_crash,
        after_pause,
    })
    .into()
}
