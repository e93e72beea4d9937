#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use http::{HeaderMap, StatusCode};
use onlyonce_core::{
    AttemptId, Fingerprint, Key, Policy, Recipe, Scope,
    machine::{self, End, Request, Settlement},
    record::{Change, Notes, StoredBody, StoredResponse},
};

use super::*;
use crate::clock::Clock;

const SAID: Timestamp = Timestamp(5_000_000);

fn reserved(number: u8) -> Record {
    let key = Key::from_stored(&format!("order-{number}"));
    let request = Request {
        id: RecordId([number; 16]),
        scope: Scope::global(),
        key,
        fingerprint: Fingerprint([7; 32]),
        recipe: Recipe::default().id(),
        caller: None,
        attempt_id: AttemptId(1),
        route: "r".into(),
        method: "POST".into(),
        path: "/payments".into(),
        other_mark: None,
        notes: Notes::default(),
    };
    machine::first(&request, &Policy::default()).stamp(SAID)
}

fn completion(record: &Record, bytes: usize) -> Change {
    let response = StoredResponse {
        status: StatusCode::CREATED,
        headers: HeaderMap::new(),
        body: StoredBody::Full {
            bytes: vec![b'x'; bytes].into(),
            trailers: None,
        },
    };
    let settlement = Settlement::Complete(Arc::new(response));
    let end = End {
        attempt: record.attempt_id,
        settlement: &settlement,
    };
    let step = machine::apply(Some(record), &end, SAID, &Policy::default());
    step.swapped().unwrap()
}

fn completed(number: u8, bytes: usize) -> Record {
    let change = completion(&reserved(number), bytes);
    (*change.draft).stamp(SAID)
}

/// A clock by hand that begins at ten seconds, and its hand in milliseconds.
fn clock() -> (Clock, Arc<AtomicU64>) {
    let hand = Arc::new(AtomicU64::new(10_000));
    (Clock::by_hand(hand.clone()), hand)
}

fn shared(bytes: usize) -> Near {
    Near::new(Copies::Shared, bytes).unwrap()
}

#[test]
fn a_copy_is_given_for_as_long_as_it_may_be_and_with_the_latest_time() {
    for (copies, longest) in [(Copies::Shared, 1_000), (Copies::Owned, 60_000)] {
        let (clock, hand) = clock();
        let near = Near::new(copies, DEFAULT_BYTES).unwrap();
        let record = completed(1, 10);
        near.keep(near.before(record.id, clock.moment()), &record, SAID);
        for passed in [0, 1, 500, 999, 1_000, 1_001, 59_999, 60_000, 90_000] {
            hand.store(10_000 + passed, Ordering::SeqCst);
            let got = near.get(record.id, clock.moment()).ok();
            let now = Timestamp(SAID.0 + passed as i64);
            let expected = (passed < longest).then(|| Reply {
                now,
                value: record.clone(),
            });
            assert_eq!(got, expected, "{copies:?} after {passed} ms");
        }
    }
    assert!(Near::new(Copies::Needless, DEFAULT_BYTES).is_none());
    assert!(Near::new(Copies::Shared, 0).is_none());
}

/// Goal: a copy says neither that an answer stands which may have expired, nor that it has expired.
#[test]
fn an_answer_that_may_have_expired_is_asked_for() {
    let (clock, hand) = clock();
    let near = shared(DEFAULT_BYTES);
    let mut record = completed(1, 10);
    record.times.expires_at = Some(SAID.plus(Duration::from_millis(500)));
    near.keep(near.before(record.id, clock.moment()), &record, SAID);
    for (passed, is_given) in [
        (0, true),
        (499, true),
        (500, false),
        (501, false),
        (999, false),
    ] {
        hand.store(10_000 + passed, Ordering::SeqCst);
        let given = near.get(record.id, clock.moment());
        assert_eq!(given.is_ok(), is_given, "{passed} ms later");
    }
}

#[test]
fn only_final_answers_are_kept() {
    let (clock, _) = clock();
    let near = shared(DEFAULT_BYTES);
    for record in [reserved(1), {
        let mut erased = completed(2, 10);
        erased.response = None;
        erased
    }] {
        near.keep(near.before(record.id, clock.moment()), &record, SAID);
        assert!(near.get(record.id, clock.moment()).is_err());
    }
}

/// Goal: what was read before a change is not given after it, however the three are ordered.
#[test]
fn a_change_leaves_no_copy() {
    let (clock, _) = clock();
    let (record, other) = (completed(1, 10), completed(1, 20));
    let tombstone = Draft::after(&reserved(1));
    let erased = {
        let mut draft = Draft::after(&record);
        draft.record.notes.erased = true;
        draft
    };
    for (draft, had_copy) in [
        (&tombstone, true),
        (&tombstone, false),
        (&erased, true),
        (&erased, false),
        // Another answer than the one of which there is a copy.
        (&Draft::after(&other), true),
    ] {
        let near = shared(DEFAULT_BYTES);
        let read_before = near.before(record.id, clock.moment());
        if had_copy {
            near.keep(read_before, &record, SAID);
        }
        let changing = near.changing(draft).expect("a copy could be untrue");
        assert!(
            near.get(record.id, clock.moment()).is_err(),
            "while it goes on"
        );
        near.keep(read_before, &record, SAID);
        assert!(
            near.get(record.id, clock.moment()).is_err(),
            "read before it"
        );
        let read_meanwhile = near.before(record.id, clock.moment());
        drop(changing);
        near.keep(read_meanwhile, &record, SAID);
        assert!(
            near.get(record.id, clock.moment()).is_err(),
            "read while it went on"
        );
        let read_after = near.before(record.id, clock.moment());
        near.keep(read_after, &record, SAID);
        assert!(near.get(record.id, clock.moment()).is_ok(), "read after it");
        drop(near.deleting(record.id));
        assert!(near.get(record.id, clock.moment()).is_err(), "deleted");
    }
    // The first answer of a key makes nothing untrue, and need not hold up what others read.
    let near = shared(DEFAULT_BYTES);
    assert!(near.changing(&completion(&reserved(1), 10).draft).is_none());
}

#[test]
fn copies_take_no_more_than_their_room() {
    let (clock, _) = clock();
    let room = 1 << 20;
    let near = shared(room);
    let mut kept = 0;
    for number in 0..=255 {
        let record = completed(number, 20_000);
        near.keep(near.before(record.id, clock.moment()), &record, SAID);
        assert!(
            near.get(record.id, clock.moment()).is_ok(),
            "the latest is there"
        );
        let held: usize = near
            .shards
            .iter()
            .map(|shard| {
                let shard = shard.lock();
                let all = shard.young.values().chain(shard.old.values());
                all.map(|copied| copied.bytes).sum::<usize>()
            })
            .sum();
        assert!(held <= room, "{held} bytes of {room}");
        kept = kept.max(held);
    }
    assert!(kept > room / 2, "most of the room is used: {kept}");
    let large = completed(1, room);
    near.keep(near.before(large.id, clock.moment()), &large, SAID);
    let given = near.get(large.id, clock.moment());
    assert!(
        given.is_err() || given.unwrap().value != large,
        "it has no room"
    );
}
