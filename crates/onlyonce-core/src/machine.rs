//! The idempotency state machine: decisions only.
//!
//! [`apply`] is the machine: a record, an [`Event`], the time and a policy make a [`Step`], which says
//! what to write and what that means. Every rule about what a key's past permits lives in this module, as
//! total functions from values to values. Nothing here reads a clock, awaits, logs, or knows which store
//! or protocol it serves. The engine's one loop carries steps out; a store only compares a revision and
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
pub use operate::{Denied, Granted, Grounds, Heard, Resolution, Seen, releasable_from};
pub use settle::{Lease, Settled, Settlement, Wake, absent, is_running, is_settled, wake};

use expire::sweep;

/// What an event does to a key, and what that means to whoever caused the event.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Step<E = ()> {
    /// What is to be written. If somebody else was faster, the event is applied to what is there then.
    pub write: Write,
    /// What it means, once that is written.
    pub effect: E,
}

/// What is to be written.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Nothing.
    Stay,
    /// The record of a key that has none.
    Insert(Box<Draft>),
    /// The record as it is after the one that the event met.
    Swap(Change),
    /// No record: it is deleted as it was met.
    Delete,
}

/// Attempts of a key whose every release and repetition is noted. Of later ones the second, the fourth, the
/// eighth and so on: a client that repeats itself for ever does not fill the journal.
const NOTED_ATTEMPTS: u32 = 64;

/// Whether a journal row is to be kept, or one of many of its kind.
pub fn is_worth_keeping(entry: &JournalEntry) -> bool {
    let repeats = matches!(
        entry.event,
        JournalEvent::Released | JournalEvent::ExecutedAgain
    );
    !repeats || entry.attempt <= NOTED_ATTEMPTS || entry.attempt.is_power_of_two()
}

/// A journal row about a step of `before` that ends in `to`.
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

/// A draft after `record` that carries nothing over from an attempt that was running or unclear.
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
