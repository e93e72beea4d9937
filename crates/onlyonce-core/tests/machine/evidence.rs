//! The ways out of unknown, and what operators may do.

use std::time::Duration;

use onlyonce_core::{
    machine::{
        About, Denied, Grounds, Heard, Negative, Resolution, Seen, Settled, Settlement, Source,
        Step,
    },
    policy::ReconcilePolicy,
    record::{Actor, Change, Evidence, JournalEvent, LastError, Record, State},
    time::Timestamp,
};
use onlyonce_testkit::scenarios::world::{
    FORCED, FRESH, GAP, LEASE, LOOK_AFTER, MAX_EXECUTION, OTHER, OWN, START, TOMBSTONE, TTL,
    UPSTREAM_MAX, answer, around, completed, dead_letter, declined, denied, expired, failed,
    in_progress, lapsed, left_by, not_stored, once_negative, policy, records, resolved,
    settled_down, unknown, with_evidence, written,
};

use super::steps::{
    ambiguous, extend, forget, look, no_look, reconcile, resolve, settle, stay, stranded, sweep,
};

const PROVEN: Source = Source::Query(Negative::Proven);
const UNPROVEN: Source = Source::Query(Negative::Unproven);
const NO: Evidence = Evidence::NotExecuted;

fn took_effect() -> Evidence {
    Evidence::Completed(answer(OTHER))
}

fn change(looked: Step) -> Change {
    looked.swapped().expect("not ignored")
}

fn event(change: &Change) -> Option<JournalEvent> {
    change.journal.first().map(|entry| entry.event)
}

#[test]
fn any_source_that_saw_the_effect_completes_an_unknown_key() {
    for record in [
        unknown(),
        lapsed(&in_progress()),
        once_negative(),
        dead_letter(),
    ] {
        for source in [
            Source::Webhook(About::Attempt(OWN)),
            Source::Kept,
            PROVEN,
            UNPROVEN,
        ] {
            let change = change(reconcile(&record, &took_effect(), source, START, &policy()));
            assert_eq!(event(&change), Some(JournalEvent::Reconciled));
            assert_eq!(change.journal[0].actor, Actor::Reconciler);
            let record = written(change, START);
            assert_eq!(
                (record.state, record.response),
                (State::Completed, Some(answer(OTHER)))
            );
            assert!(!record.dead_letter);
        }
    }
}

#[test]
fn a_denial_by_webhook_is_one_look() {
    let told = Source::Webhook(About::Attempt(OWN));
    let early = left_by(reconcile(&unknown(), &NO, told, START, &policy()), START);
    assert_eq!((early.state, early.negatives), (State::Unknown, 0));
    let now = settled_down(&unknown());
    let once = left_by(reconcile(&unknown(), &NO, told, now, &policy()), now);
    assert_eq!((once.state, once.negatives), (State::Unknown, 1));
    // The other look may be of either kind.
    for (record, source) in [(once, PROVEN), (once_negative(), told)] {
        let [before, at, _] = around(now.plus(GAP));
        let soon = left_by(reconcile(&record, &NO, source, before, &policy()), before);
        assert_eq!(soon.state, State::Unknown);
        let change = change(reconcile(&record, &NO, source, at, &policy()));
        assert_eq!(event(&change), Some(JournalEvent::Reconciled));
        let record = written(change, at);
        assert_eq!(record.state, State::FailedRetryable);
        assert_eq!(record.last_error, Some(LastError::ProviderNegative));
        assert_eq!(record.times.expires_at, Some(at.plus(TTL)));
        assert_eq!(record.negatives, 0);
    }
    // One that came while the attempt was running counts for nothing.
    let kept = lapsed(&with_evidence(&NO));
    assert!(kept.times.reconcile_after.is_some_and(|at| at > START));
    let late = Timestamp(i64::MAX);
    let used = left_by(reconcile(&kept, &NO, Source::Kept, late, &policy()), late);
    assert_eq!((used.state, used.negatives), (State::Unknown, 0));
}

#[test]
fn not_found_releases_only_twice_in_a_row_far_enough_apart_and_late_enough() {
    let [before, at, after] = around(settled_down(&unknown()));
    let negative =
        |record: &Record, now| left_by(reconcile(record, &NO, PROVEN, now, &policy()), now);
    let early = negative(&negative(&unknown(), START), before);
    assert_eq!(
        (early.state, early.negatives),
        (State::Unknown, 0),
        "too early to count"
    );
    for now in [at, after] {
        let once = negative(&early, now);
        assert_eq!((once.state, once.negatives), (State::Unknown, 1));
        let [too_soon, apart, later] = around(now.plus(GAP));
        assert!(
            once.times.reconcile_after.is_some_and(|due| due >= apart),
            "not before it counts"
        );
        for now in [now, too_soon] {
            let soon = negative(&once, now);
            assert_eq!((soon.state, soon.negatives), (State::Unknown, 1));
            assert_eq!(soon.notes.negative_at, once.notes.negative_at);
            assert_eq!(negative(&soon, apart).state, State::FailedRetryable);
        }
        for now in [apart, later] {
            assert_eq!(negative(&once, now).state, State::FailedRetryable);
        }
        let back = negative(&once, before);
        assert_eq!(
            (back.state, back.negatives),
            (State::Unknown, 0),
            "the clock went back"
        );
    }
    let mut older = once_negative();
    older.notes.negative_at = None;
    let again = negative(&older, Timestamp(i64::MAX));
    assert_eq!(again.state, State::Unknown, "a row without a time of it");
}

#[test]
fn what_is_still_under_way_is_no_look() {
    let now = settled_down(&unknown());
    let mut record = once_negative();
    for _ in 0..50 {
        record = left_by(no_look(&record, "pending", now, &policy()), now);
        assert_eq!((record.negatives, record.inconclusive), (0, 0));
        assert!(!record.dead_letter);
    }
    let age = Duration::from_secs(1_000);
    let old = START.plus(age);
    let record = left_by(no_look(&record, "pending", old, &policy()), old);
    assert_eq!(record.times.reconcile_after, Some(old.plus(age / 4)));
}

#[test]
fn nobody_to_ask_is_a_dead_letter_at_once() {
    let alone = {
        let mut changed = policy();
        changed.reconcile = None;
        changed
    };
    let end = Settlement::Unknown(LastError::ConnectionLost);
    let Some(change) = settle(&in_progress(), OWN, &end, &alone).swapped() else {
        panic!("not written")
    };
    assert_eq!(change.journal[1].event, JournalEvent::DeadLettered);
    let record = written(change, START);
    assert!(record.dead_letter && record.times.reconcile_after.is_none());
    let Some(change) = sweep(&in_progress(), Timestamp(i64::MAX), Some(&alone)).swapped() else {
        panic!("alive")
    };
    assert!(written(change, START).dead_letter);
    let Some(change) = sweep(&in_progress(), Timestamp(i64::MAX), None).swapped() else {
        panic!("alive")
    };
    let record = written(change, START);
    assert!(!record.dead_letter, "whoever knows the route decides");
    assert_eq!(record.times.reconcile_after, Some(START));
}

#[test]
fn a_dead_letter_is_asked_about_every_hour_and_a_person_told_once() {
    let hour = Duration::from_secs(3_600);
    let letter = dead_letter();
    assert_eq!(letter.times.reconcile_after, Some(START.plus(hour)));
    let again = change(look(&letter, "nothing", &policy()));
    assert_eq!(event(&again), Some(JournalEvent::Inconclusive));
    let again = written(again, START);
    assert!(again.dead_letter);
    assert_eq!(again.times.reconcile_after, Some(START.plus(hour)));
    let several = change(ambiguous(&unknown(), "two", &policy()));
    assert_eq!(event(&several), Some(JournalEvent::DeadLettered));
    // What is found settles it, and so do two negative answers.
    let now = settled_down(&letter);
    let once = left_by(reconcile(&letter, &NO, PROVEN, now, &policy()), now);
    assert_eq!((once.state, once.dead_letter), (State::Unknown, true));
    let now = now.plus(GAP);
    let twice = left_by(reconcile(&once, &NO, PROVEN, now, &policy()), now);
    assert_eq!(twice.state, State::FailedRetryable);
    let webhook_only = {
        let mut changed = policy();
        changed.reconcile = policy()
            .reconcile
            .map(|how| ReconcilePolicy { asks: false, ..how });
        changed
    };
    let letter = left_by(look(&letter, "nothing", &webhook_only), START);
    assert_eq!(letter.times.reconcile_after, None);
    let once = left_by(look(&once_negative(), "nobody", &webhook_only), START);
    assert_eq!(
        once.negatives, 1,
        "nobody was asked, so the row is not broken"
    );
}

#[test]
fn a_look_that_finds_nothing_out_breaks_the_row_of_negatives() {
    let now = settled_down(&unknown());
    let between = left_by(look(&once_negative(), "nothing", &policy()), now);
    assert_eq!((between.negatives, between.inconclusive), (0, 1));
    let again = left_by(reconcile(&between, &NO, PROVEN, now, &policy()), now);
    assert_eq!((again.state, again.negatives), (State::Unknown, 1));
}

#[test]
fn not_found_is_a_dead_letter_where_it_can_prove_nothing() {
    let now = Timestamp(i64::MAX);
    let unbounded = ReconcilePolicy {
        after: LOOK_AFTER,
        attempts: 3,
        upstream_max_execution: None,
        negative_gap: GAP,
        asks: false,
    };
    let without = {
        let mut changed = policy();
        changed.reconcile = Some(unbounded);
        changed
    };
    let alone = {
        let mut changed = policy();
        changed.reconcile = None;
        changed
    };
    let told = Source::Webhook(About::Attempt(OWN));
    let cases = [
        (UNPROVEN, policy()),
        (PROVEN, without.clone()),
        (UNPROVEN, without.clone()),
        (PROVEN, alone),
        (told, without),
    ];
    for (source, policy) in cases {
        for record in [unknown(), once_negative()] {
            let change = change(reconcile(&record, &NO, source, now, &policy));
            assert_eq!(event(&change), Some(JournalEvent::DeadLettered));
            let record = written(change, now);
            assert_eq!((record.state, record.dead_letter), (State::Unknown, true));
        }
    }
}

#[test]
fn after_so_many_inconclusive_looks_a_person_has_to_look() {
    let first = change(look(&unknown(), "nothing", &policy()));
    assert_eq!(event(&first), Some(JournalEvent::Inconclusive));
    let first = written(first, START);
    let twice = 2 * LOOK_AFTER;
    assert_eq!(first.times.reconcile_after, Some(START.plus(twice)));
    let second = left_by(look(&first, "nothing", &policy()), START);
    assert_eq!(
        second.times.reconcile_after,
        Some(START.plus(2 * twice)),
        "backs off"
    );
    assert!(!second.dead_letter);
    let third = change(look(&second, "nothing", &policy()));
    assert_eq!(event(&third), Some(JournalEvent::DeadLettered));
    let third = written(third, START);
    assert_eq!((third.state, third.dead_letter), (State::Unknown, true));
}

#[test]
fn the_pause_between_looks_has_an_upper_bound() {
    let patient = ReconcilePolicy {
        after: LOOK_AFTER,
        attempts: u16::MAX,
        upstream_max_execution: Some(UPSTREAM_MAX),
        negative_gap: GAP,
        asks: true,
    };
    let policy = {
        let mut changed = policy();
        changed.reconcile = Some(patient);
        changed
    };
    let worn = Record {
        inconclusive: u16::MAX - 2,
        negatives: u16::MAX,
        ..unknown()
    };
    let next = left_by(look(&worn, "nothing", &policy), START);
    assert_eq!(
        next.times.reconcile_after,
        Some(START.plus(Duration::from_secs(3_600)))
    );
}

#[test]
fn a_webhook_about_a_live_attempt_is_kept_and_only_that() {
    for evidence in [NO, took_effect()] {
        let source = Source::Webhook(About::Attempt(OWN));
        let change = change(reconcile(
            &in_progress(),
            &evidence,
            source,
            START,
            &policy(),
        ));
        assert_eq!(event(&change), Some(JournalEvent::EvidenceKept));
        let record = written(change, START);
        assert_eq!(
            (record.state, record.evidence.as_ref()),
            (State::InProgress, Some(&evidence))
        );
        assert_eq!(
            record.times.lease_until,
            Some(START.plus(LEASE)),
            "it is no sign of life"
        );
        for source in [Source::Kept, PROVEN, UNPROVEN] {
            let looked = reconcile(&in_progress(), &evidence, source, START, &policy());
            assert_eq!(looked, stay(()), "{source:?} speaks of an earlier attempt");
        }
    }
}

fn tell(record: &Record, evidence: &Evidence) -> Step {
    let source = Source::Webhook(About::Attempt(OWN));
    reconcile(record, evidence, source, START, &policy())
}

#[test]
fn a_provider_that_contradicts_itself_proves_nothing_and_a_person_is_told() {
    for (one, other) in [(NO, took_effect()), (took_effect(), NO)] {
        let record = with_evidence(&one);
        assert_eq!(tell(&record, &one), stay(()));
        let torn = left_by(tell(&record, &other), START);
        assert_eq!(torn.evidence, Some(Evidence::Contradictory));
        assert!(!torn.dead_letter, "its execution may still end well");
        for third in [&one, &other] {
            assert_eq!(tell(&torn, third), stay(()));
        }
        let letter = lapsed(&torn);
        assert!(letter.dead_letter && letter.times.reconcile_after.is_none());
        for third in [&one, &other] {
            assert_eq!(tell(&letter, third), stay(()));
        }
        // The second word comes when the first is still to be used.
        let letter = change(tell(&lapsed(&record), &other));
        assert_eq!(event(&letter), Some(JournalEvent::DeadLettered));
        assert!(written(letter, START).dead_letter);
    }
}

/// One denial is no proof, so it contradicts nothing; and of two outcomes the first is the one that retries get.
#[test]
fn what_is_no_contradiction() {
    let denied = left_by(tell(&unknown(), &NO), START);
    assert_eq!((denied.state, &denied.evidence), (State::Unknown, &None));
    let completed = left_by(tell(&denied, &took_effect()), START);
    assert_eq!(completed.state, State::Completed);
    let declined = Evidence::Completed(answer(OWN));
    assert_ne!(declined, took_effect());
    assert_eq!(tell(&completed, &declined), stay(()));
    // The same while the execution is running.
    let kept = with_evidence(&took_effect());
    assert_eq!(tell(&kept, &declined), stay(()));
    let used = reconcile(
        &lapsed(&kept),
        &took_effect(),
        Source::Kept,
        START,
        &policy(),
    );
    assert_eq!(left_by(used, START).response, completed.response);
}

#[test]
fn a_word_about_an_earlier_attempt_settles_nothing() {
    let before = moment(START.0 - 1, START.0 - 1);
    for about in [before, About::Attempt(OTHER)] {
        for evidence in [NO, took_effect()] {
            let told = |record: &Record| {
                reconcile(record, &evidence, Source::Webhook(about), START, &policy())
            };
            let letter = change(told(&unknown()));
            assert_eq!(event(&letter), Some(JournalEvent::DeadLettered));
            assert_eq!(told(&written(letter, START)), stay(()), "once is enough");
            match told(&in_progress()).swapped() {
                Some(change) => {
                    assert_eq!(evidence, took_effect());
                    let record = written(change, START);
                    assert_eq!(record.evidence, Some(Evidence::Contradictory));
                    assert!(lapsed(&record).dead_letter);
                }
                None => assert_eq!(evidence, NO),
            }
        }
    }
    let at = Source::Webhook(moment(START.0, START.0));
    let taken = left_by(reconcile(&unknown(), &NO, at, START, &policy()), START);
    assert!(!taken.dead_letter, "the very moment is its own");
}

fn moment(from: i64, until: i64) -> About {
    let (from, until) = (Timestamp(from), Timestamp(until));
    About::Moment { from, until }
}

/// A provider that tells whole seconds may speak of the attempt before, in the second in which the next
/// one was sent.
#[test]
fn a_denial_of_the_second_in_which_an_attempt_began_releases_only_a_first_attempt() {
    let second = Source::Webhook(moment(START.0 - 400, START.0 + 599));
    let told = |record: &Record, evidence: &Evidence| {
        left_by(reconcile(record, evidence, second, START, &policy()), START)
    };
    let first = unknown();
    assert_eq!(first.fence.0, 1);
    assert!(!told(&first, &NO).dead_letter);
    let mut later = unknown();
    later.fence.0 = 2;
    let letter = told(&later, &NO);
    assert_eq!((letter.state, letter.dead_letter), (State::Unknown, true));
    assert_eq!(told(&later, &took_effect()).state, State::Completed);
}

#[test]
fn what_was_released_and_took_effect_raises_an_alarm() {
    let yes = took_effect();
    let told = change(tell(&failed(), &yes));
    assert_eq!(event(&told), Some(JournalEvent::ReleaseWasWrong));
    assert_eq!(written(told, START).state, State::Completed);
    let torn = change(tell(&denied(), &yes));
    assert_eq!(torn.journal[1].event, JournalEvent::DeadLettered);
    let torn = written(torn, START);
    assert_eq!((torn.state, torn.dead_letter), (State::Unknown, true));
    let operator = resolved(&FORCED);
    let told = written(change(tell(&operator, &yes)), START);
    assert_eq!(told.state, State::FailedRetryable, "a person's word stands");
    assert_eq!(tell(&operator, &NO), stay(()));
    let late = operator.times.expires_at.expect("a release expires");
    let source = Source::Webhook(About::Attempt(OWN));
    assert_eq!(
        reconcile(&operator, &yes, source, late, &policy()),
        stay(())
    );
}

#[test]
fn evidence_for_a_settled_key_is_ignored() {
    for (name, record) in records() {
        for evidence in [NO, took_effect()] {
            if matches!(record.state, State::InProgress | State::Unknown) {
                continue;
            }
            let is_alarm = record.state == State::FailedRetryable && evidence == took_effect();
            for source in [
                Source::Webhook(About::Attempt(record.attempt_id)),
                Source::Kept,
                PROVEN,
                UNPROVEN,
            ] {
                if is_alarm && matches!(source, Source::Webhook(_)) {
                    continue;
                }
                let looked = reconcile(&record, &evidence, source, START, &policy());
                assert_eq!(looked, stay(()), "{name}");
            }
        }
        if record.state != State::Unknown {
            assert_eq!(look(&record, "nothing", &policy()), stay(()), "{name}");
        }
    }
}

#[test]
fn an_operator_resolves_what_is_unknown_and_nothing_else() {
    let resolutions = [
        (Resolution::Completed(answer(OTHER)), State::Completed),
        (FORCED, State::FailedRetryable),
    ];
    for (name, record) in records() {
        for (resolution, to) in &resolutions {
            let step = resolve(&record, Seen::AsItIs, resolution, "seen", START, &policy());
            match step.effect {
                // Not even by force: the provider has said so.
                Err(Denied::TookEffect) => {
                    assert_eq!(*resolution, FORCED, "{name}");
                    assert!(matches!(record.evidence, Some(Evidence::Completed(_))));
                }
                Err(Denied::State(state)) => {
                    assert_eq!(state, record.state, "{name}");
                    assert_ne!(state, State::Unknown, "{name}");
                }
                Err(why) => panic!("{name}: {why:?}, although it was forced"),
                Ok(()) => {
                    let change = step.swapped().expect("written");
                    assert_eq!(record.state, State::Unknown, "{name}");
                    let entry = &change.journal[0];
                    assert_eq!(
                        (entry.event, &entry.actor),
                        (JournalEvent::Resolved, &Actor::Operator)
                    );
                    let detail = match resolution {
                        Resolution::Completed(_) => "seen",
                        Resolution::FailedRetryable(_) => "forced: seen",
                    };
                    assert_eq!(entry.detail.as_deref(), Some(detail));
                    assert_eq!(written(change, START).state, *to, "{name}");
                }
            }
        }
    }
}

/// At every millisecond around the moment from which on nothing can be under way any more, with and
/// without `upstream_max_execution`, for every word of the provider.
#[test]
fn a_release_waits_for_the_provider_and_for_time_unless_it_is_forced() {
    let mut without = policy();
    without.reconcile = None;
    for (policy, upstream_max) in [(policy(), UPSTREAM_MAX), (without, MAX_EXECUTION)] {
        let record = unknown();
        let settles_at = START.plus(LEASE + upstream_max);
        for (now, is_early) in [
            (START, true),
            (Timestamp(settles_at.0 - 1), true),
            (settles_at, false),
            (settles_at.plus(TTL), false),
        ] {
            for heard in [Heard::Nobody, Heard::Denial, Heard::Nothing] {
                let release = |force| {
                    // What was asked before is about the time at which it was asked.
                    let by = |asked_at, now| {
                        let grounds = Grounds {
                            heard,
                            asked_at,
                            force,
                        };
                        let resolution = Resolution::FailedRetryable(grounds);
                        resolve(&record, Seen::AsItIs, &resolution, "seen", now, &policy)
                    };
                    let later = now.plus(MAX_EXECUTION);
                    assert_eq!(by(Some(now), later), by(None, now));
                    assert_eq!(by(Some(later), now), by(None, now));
                    by(None, now)
                };
                let (gentle, forced) = (release(false), release(true));
                match (heard, is_early) {
                    (Heard::Nothing, _) => {
                        assert_eq!(gentle, stay(Err(Denied::Inconclusive)))
                    }
                    (_, true) => assert_eq!(gentle, stay(Err(Denied::TooEarly(settles_at)))),
                    (_, false) => {
                        // Force that was not needed leaves no trace.
                        assert_eq!(gentle.effect, Ok(()));
                        assert_eq!(gentle, forced);
                    }
                }
                let change = forced.swapped().expect("forced");
                assert_eq!(change.draft.record.state, State::FailedRetryable);
            }
        }
    }
}

/// Two denials that a provider tells late count by when they happened: at every millisecond around the
/// moment from which on nothing is under way, and around the gap between the two.
#[test]
fn a_denial_that_is_told_late_counts_by_when_it_happened() {
    let late = START.plus(LEASE + UPSTREAM_MAX + GAP + GAP + TTL);
    let settles_at = START.plus(LEASE + UPSTREAM_MAX);
    let told = |record: &Record, at: Timestamp, now| {
        let source = Source::Webhook(moment(at.0, at.0));
        left_by(reconcile(record, &NO, source, now, &policy()), now)
    };
    for (first, second, releases) in [
        (Timestamp(settles_at.0 - 1), settles_at.plus(GAP), false),
        (settles_at, Timestamp(settles_at.plus(GAP).0 - 1), false),
        (settles_at, settles_at, false),
        (settles_at, settles_at.plus(GAP), true),
    ] {
        let once = told(&unknown(), first, late);
        assert_eq!(once.state, State::Unknown, "{first:?} {second:?}");
        let twice = told(&once, second, late.plus(GAP));
        let expected = match releases {
            true => State::FailedRetryable,
            false => State::Unknown,
        };
        assert_eq!(twice.state, expected, "{first:?} {second:?}");
    }
}

/// What the provider has said of its own accord while the attempt ran outweighs an end that would give
/// the key back, whatever that end is.
#[test]
fn a_release_that_the_provider_contradicts_is_unknown() {
    for error in [
        LastError::NotSent,
        LastError::GuardFailed,
        LastError::Redirected,
    ] {
        let release = Settlement::Release(error);
        for evidence in [took_effect(), Evidence::Contradictory] {
            let running = with_evidence(&evidence);
            let settled = left_by(settle(&running, OWN, &release, &policy()), START);
            assert_eq!(settled.state, State::Unknown);
            assert_eq!(
                settle(&settled, OWN, &release, &policy()),
                stay(Settled::Kept)
            );
            let kept = reconcile(&settled, &evidence, Source::Kept, START, &policy());
            match evidence {
                Evidence::Completed(_) => {
                    assert_eq!(settled.times.reconcile_after, Some(START));
                    assert_eq!(left_by(kept, START).state, State::Completed);
                }
                _ => assert!(settled.dead_letter),
            }
        }
        let denied = with_evidence(&NO);
        let settled = settle(&denied, OWN, &release, &policy());
        assert_eq!(left_by(settled, START).state, State::FailedRetryable);
    }
}

#[test]
fn what_may_be_running_cannot_be_forgotten_and_what_took_effect_only_by_force() {
    for (name, record) in records() {
        let live = matches!(record.state, State::InProgress | State::Unknown);
        let forced = forget(&record, true, FRESH, None);
        assert_eq!(
            forced.effect == Err(Denied::State(record.state)),
            live,
            "{name}"
        );
        assert_eq!(forced.swapped().is_some(), !live, "{name}");
    }
    for record in [completed(), not_stored()] {
        let step = forget(&record, false, FRESH, None);
        assert_eq!(step, stay(Err(Denied::TookEffect)));
    }
    for record in [declined(), failed(), expired(&completed())] {
        assert!(forget(&record, false, FRESH, None).swapped().is_some());
    }
}

#[test]
fn a_forgotten_key_is_a_tombstone_that_nothing_matches() {
    let now = START.plus(TTL / 2);
    let Some(change) = forget(&completed(), true, FRESH, Some("gdpr".to_owned())).swapped() else {
        panic!("not forgotten")
    };
    assert_eq!(event(&change), Some(JournalEvent::Forgotten));
    let record = written(change, now);
    assert_eq!(record.state, State::Expired);
    assert_eq!(
        (record.fingerprint, record.caller, record.attempt_id),
        (None, None, FRESH)
    );
    assert_eq!(record.response, None);
    assert_eq!(record.times.expires_at, Some(now));
    assert_eq!(record.times.delete_at, Some(now.plus(TOMBSTONE)));
}

#[test]
fn only_an_expiry_that_is_still_to_come_can_be_moved() {
    for (name, record) in records() {
        let can = matches!(record.state, State::Completed | State::FailedRetryable);
        assert_eq!(
            extend(&record, TTL, START).swapped().is_some(),
            can,
            "{name}"
        );
    }
    let [before, at, after] = around(START.plus(TTL));
    let Some(change) = extend(&completed(), 3 * TTL, before).swapped() else {
        panic!("not extended")
    };
    assert_eq!(event(&change), Some(JournalEvent::Extended));
    let record = written(change, before);
    assert_eq!(record.times.expires_at, Some(before.plus(3 * TTL)));
    assert_eq!(record.response, completed().response);
    for now in [at, after] {
        assert_eq!(
            extend(&completed(), TTL, now),
            stay(Err(Denied::State(State::Completed)))
        );
    }
}

#[test]
fn a_time_that_a_clock_set_back_has_put_far_ahead_strands_nobody() {
    let long_ago = Timestamp(START.0 - 86_400_000);
    for record in [in_progress(), unknown()] {
        assert_eq!(stranded(&record, START, &policy()), None, "as it should be");
        let change = stranded(&record, long_ago, &policy()).expect("nobody would come by");
        let after = written(change, long_ago);
        assert_eq!(after.state, State::Unknown, "never released for it");
        assert_eq!(after.times.unknown_since, Some(long_ago));
        let soon = after.times.reconcile_after.expect("somebody looks");
        assert!(soon <= long_ago.plus(LOOK_AFTER));
    }
    for record in [completed(), failed(), expired(&completed())] {
        assert_eq!(stranded(&record, long_ago, &policy()), None);
    }
    // And a denial then counts from when the clock was set back.
    let early = left_by(
        reconcile(&unknown(), &NO, PROVEN, long_ago, &policy()),
        long_ago,
    );
    assert_eq!((early.state, early.negatives), (State::Unknown, 0));
    assert_eq!(early.times.unknown_since, Some(long_ago));
}
