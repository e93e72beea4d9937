//! What holds of every step, whatever led to it: the invariants of the architecture, and the shape of a
//! record in each state.

use onlyonce_core::{
    machine::{Step, Write},
    record::{Evidence, JournalEvent, LastError, Record, State, StoredBody, StoredResponse},
};
use onlyonce_testkit::scenarios::events::{
    Effect, End, Event, Says, Setting, Voice, Who, Whose, Word,
};

/// An edge of the machine; `None` is an absent key.
pub(super) type Edge = (Option<State>, Option<State>);

const ABSENT: Option<State> = None;
const I: Option<State> = Some(State::InProgress);
const C: Option<State> = Some(State::Completed);
const F: Option<State> = Some(State::FailedRetryable);
const U: Option<State> = Some(State::Unknown);
const E: Option<State> = Some(State::Expired);

/// The writes that the design knows, by hand. Everything else is a violation.
pub(super) fn edges(event: Event) -> &'static [Edge] {
    match event {
        // (I, U) is a lapsed lease, (U, U) a nudge.
        Event::Request(Who::Same) => &[(ABSENT, I), (I, U), (C, I), (F, I), (U, U), (E, I)],
        // A tombstone that is over, and one without a fingerprint, bind nobody; a released key is
        // another caller's to take over, and nobody's with other content.
        Event::Request(Who::OtherContent | Who::OtherCaller) => {
            &[(ABSENT, I), (C, I), (F, I), (E, I)]
        }
        Event::Settle(Whose::Own, End::Complete | End::CompleteUnstored) => {
            &[(I, C), (F, C), (U, C)]
        }
        // (I, U) is a release that the provider contradicts.
        Event::Settle(Whose::Own, End::Release | End::Redirect) => &[(I, F), (U, F), (I, U)],
        Event::Settle(Whose::Own, End::Unknown) => &[(I, U)],
        // (C, C) notes it.
        Event::Settle(Whose::Own, End::BrokeOff) => &[(I, U), (C, C)],
        // (C, C) is a key that was completed on somebody else's word.
        Event::Commit(Whose::Own, _) => &[(I, C), (F, C), (U, C), (C, C)],
        Event::Commit(Whose::Other, _)
        | Event::Settle(Whose::Other, _)
        | Event::Renew(Whose::Other) => &[],
        Event::Renew(Whose::Own) => &[(I, I)],
        Event::Sweep => &[(I, U)],
        Event::Reap => &[(C, E), (F, E), (E, ABSENT)],
        // About an earlier attempt: noted while this one runs, a dead letter where it is unknown.
        Event::Evidence(Says::TookEffect, Voice::Webhook(Whose::Other)) => &[(I, I), (U, U)],
        Event::Evidence(Says::NotExecuted, Voice::Webhook(Whose::Other)) => &[(U, U)],
        // (U, U) is a provider that contradicts itself, (F, F) an alarm, (F, U) both.
        Event::Evidence(Says::TookEffect, Voice::Webhook(Whose::Own)) => {
            &[(I, I), (U, C), (U, U), (F, C), (F, F), (F, U)]
        }
        Event::Evidence(Says::NotExecuted, Voice::Webhook(Whose::Own)) => &[(I, I), (U, F), (U, U)],
        Event::Evidence(Says::TookEffect, Voice::Kept | Voice::Proven | Voice::Unproven) => {
            &[(U, C), (U, U)]
        }
        Event::Evidence(Says::NotExecuted, Voice::Kept) => &[(U, U)],
        Event::Evidence(Says::NotExecuted, Voice::Proven) => &[(U, F), (U, U)],
        Event::Evidence(Says::NotExecuted, Voice::Unproven) => &[(U, U)],
        Event::Inconclusive | Event::Pending | Event::Several => &[(U, U)],
        Event::Attest => &[(U, C)],
        Event::Release {
            heard: Word::Nothing,
            force: false,
        } => &[],
        Event::Release { .. } => &[(U, F)],
        Event::Forget { .. } => &[(C, E), (F, E), (E, E)],
        Event::Extend => &[(C, C), (F, F)],
        Event::Erase => &[(I, I), (C, C), (F, F), (U, U), (E, E)],
    }
}

/// Checks one step and gives back what is remembered after it, and the edge if it wrote.
pub(super) fn check(
    before: Option<&Record>,
    event: Event,
    step: Step<Effect>,
    setting: Setting<'_>,
) -> (Option<Record>, Option<Edge>) {
    let from = before.map(|record| record.state);
    let edge = |to| {
        let edge = (from, to);
        assert!(edges(event).contains(&edge), "{event:?} makes {edge:?}");
        Some(edge)
    };
    match (before, step.write, step.effect) {
        (None, Write::Insert(draft), Effect::Execute) => {
            let after = draft.stamp(setting.now);
            assert_eq!((after.fence.0, after.generation), (1, 1));
            assert_eq!(after.attempt_id, setting.fresh);
            check_shape(&after);
            (Some(after), edge(I))
        }
        (Some(before), Write::Swap(change), effect) => {
            let after = change.draft.clone().stamp(setting.now);
            check_counts(before, &after, event, setting);
            check_owner(before, &after, event, &effect, setting);
            check_shape(&after);
            check_journal(before, &after, event, &change.journal);
            let edge = edge(Some(after.state));
            (Some(after), edge)
        }
        (Some(before), Write::Delete, _) => {
            assert!(before.times.delete_at.is_some_and(|at| at <= setting.now));
            (None, edge(ABSENT))
        }
        (before, Write::Stay, effect) => {
            check_stay(before, event, &effect);
            (before.cloned(), None)
        }
        (before, write, _) => panic!("{event:?} on {before:?} makes {write:?}"),
    }
}

/// Revisions go up by one, fences by one exactly where an attempt begins, generations by one or,
/// once the tombstone is over, back to the first.
fn check_counts(before: &Record, after: &Record, event: Event, setting: Setting<'_>) {
    assert_eq!(
        after.revision.0,
        before.revision.0 + 1,
        "one write, one revision"
    );
    let begins = before.state != State::InProgress && after.state == State::InProgress;
    assert_eq!(
        after.fence.0,
        before.fence.0 + u32::from(begins),
        "a fence per attempt"
    );
    assert_eq!((after.id, &after.scope), (before.id, &before.scope));
    assert!(after.is_of(&before.scope, &before.key));
    match after.notes.erased {
        true => check_erased(after),
        false => assert_eq!(after.key, before.key),
    }
    assert!(
        after.notes.erased || !before.notes.erased,
        "erased for good"
    );
    if !begins {
        assert_eq!(after.generation, before.generation);
        assert_eq!(after.recipe, before.recipe);
        return;
    }
    assert_eq!(after.attempt_id, setting.fresh);
    let over = before
        .times
        .expires_at
        .map(|at| at.plus(before.tombstone_ttl));
    let over = over.is_some_and(|at| at <= setting.now);
    let same_life = before.state == State::FailedRetryable && !before.is_past_expiry(setting.now);
    let generation = match (over, same_life) {
        (true, _) => 1,
        (false, true) => before.generation,
        (false, false) => before.generation + 1,
    };
    assert_eq!(after.generation, generation);
    let bound = before.fingerprint.filter(|_| !before.is_redirected());
    if !over && let Some(fingerprint) = bound {
        assert_eq!(
            (after.fingerprint, after.recipe),
            (Some(fingerprint), before.recipe)
        );
        // Only a released key goes over to another caller.
        let taken_over = event == Event::Request(Who::OtherCaller);
        assert!(!taken_over || same_life);
        assert_eq!(after.caller != before.caller, taken_over);
    }
}

/// Who owns the key changes only where an attempt begins, or where it is forgotten.
fn check_owner(
    before: &Record,
    after: &Record,
    event: Event,
    effect: &Effect,
    setting: Setting<'_>,
) {
    let begins = *effect == Effect::Execute;
    assert_eq!(
        begins,
        before.state != State::InProgress && after.state == State::InProgress,
        "an execution and a new attempt are the same thing"
    );
    assert!(
        !(begins && before.state == State::Unknown),
        "unknown never becomes in_progress"
    );
    if let Event::Forget { .. } = event {
        assert_eq!(after.attempt_id, setting.fresh);
        assert_eq!((after.fingerprint, after.caller), (None, None));
    } else if !begins {
        assert_eq!(after.attempt_id, before.attempt_id);
        assert_eq!(after.fingerprint, before.fingerprint);
        assert_eq!(after.caller, before.caller);
    }
    if event != Event::Erase && before.state == State::Completed && after.state == State::Completed
    {
        assert_eq!(after.response, before.response, "an answer never changes");
    }
    if let Event::Reap = event {
        assert!(before.is_past_expiry(setting.now));
        assert!(!matches!(before.state, State::InProgress | State::Unknown));
    }
}

/// Of an erased record nothing is left that names a person.
fn check_erased(record: &Record) {
    let bare = |response: &StoredResponse| {
        response.headers.is_empty() && response.body == StoredBody::NotStored
    };
    assert_eq!((record.key.as_str(), &*record.path), ("", ""));
    assert_eq!(record.notes.spelling, None);
    assert!(record.response.as_deref().is_none_or(bare));
    if let Some(Evidence::Completed(response)) = &record.evidence {
        assert!(bare(response));
    }
    // Nobody can be asked about it, so a person is told.
    let has_an_answer = matches!(record.evidence, Some(Evidence::Completed(_)));
    assert!(record.state != State::Unknown || record.dead_letter || has_an_answer);
}

/// What a record of each state carries, and what it does not.
pub(super) fn check_shape(record: &Record) {
    let times = record.times;
    let state = record.state;
    let live = matches!(state, State::InProgress | State::Unknown);
    assert_eq!(times.expires_at.is_none(), live, "{state}: expires_at");
    assert_eq!(
        times.delete_at.is_some(),
        state == State::Expired,
        "{state}: delete_at"
    );
    assert_eq!(
        times.lease_until.is_some(),
        state == State::InProgress,
        "{state}: lease_until"
    );
    assert_eq!(
        times.unknown_since.is_some(),
        state == State::Unknown,
        "{state}: unknown_since"
    );
    assert!(
        times.reconcile_after.is_none() || state == State::Unknown,
        "{state}: reconcile_after"
    );
    assert_eq!(
        record.response.is_some(),
        state == State::Completed,
        "{state}: response"
    );
    assert!(times.created_at.is_some() && times.last_run_at.is_some());
    assert!(record.evidence.is_none() || live, "{state}: evidence");
    assert!(
        !record.dead_letter || state == State::Unknown,
        "{state}: dead_letter"
    );
    assert!(
        record.negatives == 0 || record.notes.negative_at.is_some(),
        "{state}: a negative answer that counts has a time"
    );
    let torn = record.evidence == Some(Evidence::Contradictory) && state == State::Unknown;
    assert!(
        !torn || (record.dead_letter && times.reconcile_after.is_none()),
        "a contradiction is a person's to settle"
    );
    // Who waits for nobody is never told.
    assert!(
        state != State::Unknown || record.dead_letter || times.reconcile_after.is_some(),
        "unknown, and nobody looks"
    );
    assert!(
        record.fingerprint.is_some() || state == State::Expired,
        "{state}: fingerprint"
    );
    let explained = matches!(state, State::FailedRetryable | State::Unknown);
    assert!(
        record.last_error.is_some() || !explained,
        "{state}: last_error"
    );
    assert!(!record.notes.attested || matches!(state, State::Completed | State::Expired));
    if state == State::Completed {
        assert!(times.completed_at.is_some());
        // Nothing went wrong but, perhaps, with the end of an answer that was not stored.
        let not_stored = record
            .response
            .as_ref()
            .is_some_and(|response| response.body == StoredBody::NotStored);
        let broke_off = not_stored && record.last_error == Some(LastError::StreamBroken);
        assert!(record.last_error.is_none() || broke_off);
    }
}

fn check_journal(
    before: &Record,
    after: &Record,
    event: Event,
    journal: &[onlyonce_core::record::JournalEntry],
) {
    for entry in journal {
        assert_eq!(entry.id, after.id);
        assert_eq!(
            (entry.from, entry.to),
            (Some(before.state), Some(after.state)),
            "{event:?}"
        );
        assert_eq!(entry.attempt, after.fence.0);
        assert_ne!(entry.event, JournalEvent::DuplicateExecutionSuspected);
    }
    let over = before.state != State::InProgress && after.generation == 1 && after.fence.0 > 1;
    let silent = match (before.state, after.state) {
        // The ordinary way, heartbeats, nudges, counted looks and the passing of time.
        (State::InProgress, State::Completed) => true,
        (State::InProgress, State::InProgress) => matches!(event, Event::Renew(_)),
        (State::Unknown, State::Unknown) => {
            !matches!(event, Event::Inconclusive | Event::Pending | Event::Several)
        }
        (State::Expired, State::Expired) => false,
        (_, State::Expired) => matches!(event, Event::Reap),
        (_, State::InProgress) => over,
        _ => false,
    };
    assert!(silent || !journal.is_empty(), "{event:?}: {journal:?}");
}

fn check_stay(before: Option<&Record>, event: Event, effect: &Effect) {
    match effect {
        Effect::Execute => panic!("{event:?} executes without a reservation"),
        Effect::AskAgain | Effect::Written => panic!("{event:?} writes nothing"),
        Effect::Replay(response) => {
            let before = before.expect("a replay needs a record");
            assert_eq!(before.state, State::Completed);
            assert_eq!(Some(response), before.response.as_ref());
            assert_eq!(
                event,
                Event::Request(Who::Same),
                "an answer for somebody else"
            );
        }
        Effect::Suspected(entry) => {
            assert_eq!(entry.event, JournalEvent::DuplicateExecutionSuspected);
            assert!(matches!(event, Event::Settle(..) | Event::Commit(..)));
        }
        Effect::InFlight(_)
        | Effect::Reused
        | Effect::CallerDiffers
        | Effect::OutcomeUnknown
        | Effect::NotStored
        | Effect::KeyExpired
        | Effect::Kept
        | Effect::Already
        | Effect::Lost
        | Effect::Ignored
        | Effect::Refused => {}
    }
}
