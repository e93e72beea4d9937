//! The idempotency state machine: decisions only.
//!
//! [`apply`] is the machine: from a record, an [`Event`], the time and a policy it makes a [`Step`], which
//! says what to write and what the event means. Every rule about what a key's past permits lives in this
//! module, as total functions from values to values. Nothing here reads a clock, awaits, logs, or knows which
//! store or protocol it serves. The engine's one loop carries steps out; a store only compares a revision and
//! swaps.
//!
//! Deliberately absent: an edge from `Unknown` to `InProgress`. We never guess that an execution
//! whose end we did not see had no effect.

mod admit;
mod event;
mod evidence;
mod expire;
mod history;
mod operate;
mod settle;

use crate::{
    record::{Actor, Change, Draft, JournalEntry, JournalEvent, Record, State},
    time::Stamp,
};

pub use admit::{Admission, Began, Refusal, Request, first};
pub use event::{
    ClockWasSetBack, Commit, End, Erase, Event, Extend, Forget, Found, HandOver, Heartbeat, Look,
    Reap, Resolve, Sweep, apply,
};
pub use evidence::{About, Negative, Source};
pub use history::{History, NewKey, new_key};
pub use operate::{
    Denied, Granted, Grounds, Heard, Resolution, Seen, is_just_forgotten, releasable_from,
};
pub use settle::{Lease, Settled, Settlement, Wake, absent, is_running, is_settled, wake};

use expire::sweep;

/// The result of applying an event to a key.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Step<E = ()> {
    /// The write to make. If another write came first, the event is applied again, to the new record.
    pub write: Write,
    /// The event's meaning to its caller, valid once the write has succeeded.
    pub effect: E,
}

/// The write that a step asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Nothing.
    Stay,
    /// Insert the first record of a key.
    Insert(Box<Draft>),
    /// Replace the record that the event was applied to.
    Swap(Change),
    /// Delete the record that the event was applied to.
    Delete,
}

/// Up to this attempt of a key, every release and repetition is journalled. Beyond it, only those whose
/// attempt number is a power of two: a client that retries for ever does not fill the journal.
const NOTED_ATTEMPTS: u32 = 64;

/// Whether a journal row is kept. Most of the repeated rows of a much-retried key are not.
pub fn is_worth_keeping(entry: &JournalEntry) -> bool {
    let repeats = matches!(
        entry.event,
        JournalEvent::Released | JournalEvent::ExecutedAgain
    );
    !repeats || entry.attempt <= NOTED_ATTEMPTS || entry.attempt.is_power_of_two()
}

/// A journal row about a step from `before` to the state `to`.
fn note(
    before: &Record,
    to: State,
    event: JournalEvent,
    actor: Actor,
    detail: Option<String>,
) -> JournalEntry {
    JournalEntry {
        id: before.id,
        event,
        from: Some(before.state),
        to: Some(to),
        attempt: before.fence.0,
        actor,
        detail,
    }
}

/// A draft after `record`, with everything cleared that concerns a running or unknown attempt.
fn settled_draft(record: &Record, state: State) -> Draft {
    let mut draft = Draft::after(record);
    draft.record.state = state;
    draft.record.evidence = None;
    draft.record.negatives = 0;
    draft.record.inconclusive = 0;
    draft.record.dead_letter = false;
    draft.record.notes.negative_at = None;
    draft.stamps.lease_until = Stamp::Never;
    draft.stamps.unknown_since = Stamp::Never;
    draft.stamps.reconcile_after = Stamp::Never;
    draft
}

fn change(draft: Draft, journal: Vec<JournalEntry>) -> Change {
    Change {
        draft: Box::new(draft),
        journal,
    }
}
