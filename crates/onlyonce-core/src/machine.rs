//! The idempotency state machine: decisions only.
//!
//! Every rule about what a key's past permits lives in this module, as total functions from values
//! to values. Nothing here reads a clock, awaits, logs, or knows which store or protocol it serves.
//! The engine, the background loops, the admin API, the model and the simulation all call these
//! functions; a store only compares a revision and swaps.
//!
//! Deliberately absent: an edge from `Unknown` to `InProgress`. We never guess that an execution
//! whose end we did not see had no effect.

mod admit;
mod evidence;
mod expire;
mod operate;
mod settle;

use crate::{
    record::{Actor, Change, Draft, JournalEntry, JournalEvent, Record, State},
    time::Stamp,
};

pub use admit::{Admission, Refusal, Request, admit, first};
pub use evidence::{About, Looked, Negative, Source, ambiguous, look, no_look, reconcile};
pub use expire::{Reaped, Swept, expire, stranded, sweep};
pub use operate::{
    Erased, Extended, Forgotten, Grounds, Heard, Resolution, Resolved, erase, extend, forget,
    releasable_from, resolve,
};
pub use settle::{
    Committed, Renewed, Settled, Settlement, Wake, absent, commit, hand_over, is_running,
    is_settled, renew, settle, wake,
};

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

#[cfg(test)]
mod tests;
