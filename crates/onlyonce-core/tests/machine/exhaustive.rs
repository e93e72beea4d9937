//! State x event x clock edge x policy, all of them: every step keeps the invariants, and what is
//! possible is what the design lists, no less and no more.

use std::{collections::BTreeSet, sync::Arc};

use http::{HeaderMap, HeaderValue, StatusCode, header};
use onlyonce_core::{
    StoredResponse,
    machine::Write,
    policy::{AfterExpiry, Remember},
    record::{AttemptId, Evidence, Record, State, StoredBody},
};
use onlyonce_testkit::scenarios::{
    events::{Effect, End, Event, Says, Setting, Voice, Who, Whose, apply},
    world::{FRESH, OTHER, START, moments, policies, policy, records, written},
};

use super::{
    invariants::{check, check_shape, edges},
    steps::stay,
};

#[test]
fn every_step_keeps_the_invariants_and_every_edge_is_reached() {
    let policies = policies();
    let mut seen = BTreeSet::new();
    let mut steps = 0_u64;
    for (name, shared) in records() {
        check_shape(&shared);
        let alone = Record {
            caller: None,
            ..shared.clone()
        };
        for record in [shared, alone] {
            for now in moments(&record) {
                for policy in &policies {
                    for event in Event::all() {
                        let setting = Setting {
                            now,
                            policy,
                            fresh: FRESH,
                            stranger: stranger(&record),
                        };
                        let step = apply(Some(&record), event, setting);
                        let (_, edge) = check(Some(&record), event, step, setting);
                        seen.extend(edge.map(|edge| (event, edge)));
                        steps += 1;
                    }
                }
            }
        }
        assert!(steps > 0, "{name}");
    }
    for event in Event::all() {
        for policy in &policies {
            let setting = Setting {
                now: START,
                policy,
                fresh: FRESH,
                stranger: OTHER,
            };
            let (_, edge) = check(None, event, apply(None, event, setting), setting);
            seen.extend(edge.map(|edge| (event, edge)));
        }
    }
    let listed: BTreeSet<_> = Event::all()
        .into_iter()
        .flat_map(|event| edges(event).iter().map(move |edge| (event, *edge)))
        .collect();
    let never_reached: Vec<_> = listed.difference(&seen).collect();
    let not_in_design: Vec<_> = seen.difference(&listed).collect();
    assert!(never_reached.is_empty(), "never reached: {never_reached:?}");
    assert!(
        not_in_design.is_empty(),
        "not in the design: {not_in_design:?}"
    );
    println!("{steps} steps, {} kinds of write", seen.len());
}

/// Somebody who does not own `record`.
fn stranger(record: &Record) -> AttemptId {
    AttemptId(record.attempt_id.0 ^ 1)
}

#[test]
fn a_mismatch_changes_nothing_in_any_state_until_the_tombstone_is_over() {
    for (name, record) in records() {
        for now in moments(&record) {
            for policy in &policies() {
                for who in [Who::OtherContent, Who::OtherCaller] {
                    let setting = Setting {
                        now,
                        policy,
                        fresh: FRESH,
                        stranger: OTHER,
                    };
                    let step = apply(Some(&record), Event::Request(who), setting);
                    let end = record
                        .times
                        .expires_at
                        .map(|at| at.plus(record.tombstone_ttl));
                    let any = match (record.is_redirected(), record.state) {
                        // A redirect brings other content, and of a released key another caller too.
                        (true, State::FailedRetryable) => true,
                        (true, _) => who == Who::OtherContent,
                        (false, _) => record.fingerprint.is_none(),
                    };
                    if any && policy.after_expiry == AfterExpiry::Reject && record.is_redirected() {
                        continue;
                    }
                    let mut bound = !any && end.is_none_or(|end| now < end);
                    let released =
                        record.state == State::FailedRetryable && !record.is_past_expiry(now);
                    bound &= who == Who::OtherContent || !released;
                    match (step.write, step.effect) {
                        (Write::Stay, Effect::Reused) => {
                            assert!(bound && who == Who::OtherContent, "{name} at {now:?}");
                        }
                        (Write::Stay, Effect::CallerDiffers) => {
                            assert!(bound && who == Who::OtherCaller, "{name} at {now:?}");
                        }
                        (Write::Swap(_), Effect::Execute) => {
                            assert!(!bound, "{name} at {now:?}");
                        }
                        other => panic!("{name} at {now:?}: {other:?}"),
                    }
                }
            }
        }
    }
}

#[test]
fn of_two_that_read_the_same_record_one_wins() {
    // Both changes carry the same next revision, so a swap takes one of them, and the loser finds
    // an attempt in flight.
    for (name, record) in records() {
        for now in moments(&record) {
            for policy in &policies() {
                let setting = |fresh| Setting {
                    now,
                    policy,
                    fresh,
                    stranger: OTHER,
                };
                let ask = |record: &Record, fresh| {
                    apply(Some(record), Event::Request(Who::Same), setting(fresh))
                };
                let loser = AttemptId(FRESH.0 + 1);
                let execute = |fresh| {
                    let step = ask(&record, fresh);
                    let executes = step.effect == Effect::Execute;
                    step.swapped().filter(|_| executes)
                };
                let (Some(won), Some(lost)) = (execute(FRESH), execute(loser)) else {
                    continue;
                };
                assert_eq!(won.draft.record.revision, lost.draft.record.revision);
                assert_ne!(won.draft.record.attempt_id, lost.draft.record.attempt_id);
                let current = won.draft.stamp(now);
                assert_eq!(current.state, State::InProgress);
                if now.0 == i64::MAX {
                    continue; // The clock has no room for a lease.
                }
                let in_flight = stay(Effect::InFlight(policy.on_in_flight));
                assert_eq!(ask(&current, loser), in_flight, "{name} at {now:?}");
            }
        }
    }
}

/// Goal: what a policy does not store is stored for nobody, whoever gives the answer.
///
/// Method: every record, moment and event under a policy that stores answers by their heads. Evidence: an answer
/// that was not in the record before has no bytes; and each way in which an answer can arrive was seen.
#[test]
fn no_way_to_complete_a_key_stores_more_than_the_policy_allows() {
    let mut policy = policy();
    policy.remember = Remember::Head;
    let mut arrived = BTreeSet::new();
    for (name, record) in records() {
        for now in moments(&record) {
            for event in Event::all() {
                let setting = Setting {
                    now,
                    policy: &policy,
                    fresh: FRESH,
                    stranger: OTHER,
                };
                let Write::Swap(change) = apply(Some(&record), event, setting).write else {
                    continue;
                };
                let after = written(change, now);
                let answers = |record: &Record| {
                    let kept = match &record.evidence {
                        Some(Evidence::Completed(response)) => Some(response.clone()),
                        _ => None,
                    };
                    [record.response.clone(), kept]
                };
                let before = answers(&record);
                for answer in answers(&after).into_iter().flatten() {
                    if !before.contains(&Some(answer.clone())) {
                        assert_eq!(answer.body, StoredBody::NotStored, "{name}, {event:?}");
                        arrived.insert(event);
                    }
                }
            }
        }
    }
    for event in [
        Event::Settle(Whose::Own, End::Complete),
        Event::Commit(Whose::Own, true),
        Event::Evidence(Says::TookEffect, Voice::Webhook(Whose::Own)),
        Event::Evidence(Says::TookEffect, Voice::Proven),
        Event::Attest,
    ] {
        assert!(arrived.contains(&event), "{event:?} brought no answer");
    }
}

/// Goal: a card number is found wherever it stands in an answer.
#[test]
fn a_card_number_anywhere_in_an_answer_leaves_its_head() {
    const NUMBER: &str = "4242 4242 4242 4242";
    let number = || HeaderValue::from_static(NUMBER);
    let plain = StoredResponse::plain(StatusCode::CREATED, "{}");
    let mut in_header = plain.clone();
    in_header.headers.insert("x-card", number());
    let mut in_location = plain.clone();
    in_location.headers.insert(header::LOCATION, number());
    let mut trailers = HeaderMap::new();
    trailers.insert("x-card", number());
    let mut in_trailer = plain.clone();
    in_trailer.body = StoredBody::Full {
        bytes: "{}".into(),
        trailers: Some(trailers),
    };
    let in_body = StoredResponse::plain(StatusCode::CREATED, NUMBER);
    let mut unstored = in_header.clone();
    unstored.body = StoredBody::NotStored;
    let mut hides = policy();
    hides.hide_card_numbers = true;
    for mut answer in [in_body, in_header, in_location, in_trailer, unstored] {
        let etag = HeaderValue::from_static("\"v1\"");
        answer.headers.insert(header::ETAG, etag.clone());
        let answer = Arc::new(answer);
        assert_eq!(policy().storable(&answer), answer, "nothing to hide");
        let stored = hides.storable(&answer);
        assert_eq!(stored.status, answer.status);
        assert_eq!(stored.body, StoredBody::NotStored);
        let kept: Vec<_> = stored.headers.values().collect();
        assert_eq!(kept, [etag], "{answer:?}");
        assert_eq!(hides.storable(&stored), stored, "once is enough");
    }
    assert_eq!(hides.storable(&Arc::new(plain.clone())), Arc::new(plain));
}
