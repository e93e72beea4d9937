//! The contract of a store as tests. One line adds a store:
//!
//! ```text
//! onlyonce_testkit::conformance!(memory, || async { MemoryStore::new() });
//! ```
//!
//! The cases use only the trait, with the machine's own drafts, so that a store is tested with exactly what
//! the engine writes.

mod lists;
pub mod outbox;
mod walks;
mod writers;

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, StatusCode};
use onlyonce_core::{
    AttemptId, Fingerprint, Key, Policy, Recipe, Record, RecordId, Scope, Spelling, State,
    StoredResponse, Timestamp,
    machine::{self, End, Erase, Forget, History, Reap, Request, Settlement},
    record::{
        Actor, Change, Draft, Evidence, JournalEntry, JournalEvent, LastError, MarkedBy, Notes,
        Revision, StoredBody,
    },
    secret::CallerMark,
    time::Stamp,
};

pub use lists::{
    a_client_is_listed_in_pages, a_key_is_found_by_probes, counts_count, dead_letters_are_listed,
    filters_filter, live_counts_one_client, pages_are_stable, scopes_are_kept,
};
use onlyonce_store::{
    Filter, Inserted, Loss, ROUTES_KNOWN, SCOPES_KNOWN, Store, StoreError, Swapped, mark_of,
    scope_id,
};
pub use walks::{
    delete_needs_the_revision, sweep_finds_the_lapsed, sweep_ignores_a_heartbeat,
    walk_finds_the_expired, walk_leaves_the_live, walk_leaves_young_tombstones,
};
pub use writers::writers_at_once;

/// Generates a test for every case, in a module of that name.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $make:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::conformance!(@cases $make,
                insert_then_get,
                fresh,
                one_winner,
                one_swap_wins,
                swap_needs_the_revision,
                swap_of_nothing,
                journal_with_the_swap,
                collision_is_refused,
                every_field_comes_back,
                notes_come_back,
                erased_is_found_by_its_hash,
                bytes_come_back,
                times_are_the_stores,
                sweep_finds_the_lapsed,
                sweep_ignores_a_heartbeat,
                walk_finds_the_expired,
                walk_leaves_the_live,
                walk_leaves_young_tombstones,
                delete_needs_the_revision,
                operators_rows_outlive_their_key,
                pages_are_stable,
                dead_letters_are_listed,
                filters_filter,
                scopes_are_kept,
                a_key_is_found_by_probes,
                a_client_is_listed_in_pages,
                counts_count,
                live_counts_one_client,
                recipes_are_kept,
                blocks_are_kept,
                the_clock_is_noted,
                the_epoch_rises,
                swaps_wake,
                scopes_do_not_meet,
                writers_at_once,
            );
        }
    };
    (@cases $make:expr, $($case:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let make = $make;
                $crate::conformance::$case(std::sync::Arc::new(make().await)).await;
            }
        )*
    };
}

type Any = Arc<dyn Store>;

fn policy() -> Policy {
    Policy::default()
}

/// A request with `key` in `scope` and the attempt id `attempt`.
fn request(store: &dyn Store, scope: &Scope, key: &str, attempt: u128) -> Request {
    let key = Key::from_stored(key);
    Request {
        id: store.secret().record_id(scope.as_str(), &key),
        scope: scope.clone(),
        key,
        fingerprint: Fingerprint([7; 32]),
        recipe: Recipe::default().id(),
        caller: Some(CallerMark([9; 16])),
        attempt_id: AttemptId(attempt),
        route: "route".into(),
        method: "POST".into(),
        path: "/pay?x=1".into(),
        other_mark: None,
        notes: onlyonce_core::record::Notes::default(),
    }
}

fn first(store: &dyn Store, key: &str, attempt: u128) -> Draft {
    machine::first(&request(store, &Scope::global(), key, attempt), &policy())
}

async fn reserve(store: &dyn Store, key: &str, attempt: u128) -> Record {
    match store
        .insert_or_get(first(store, key, attempt))
        .await
        .unwrap()
        .value
    {
        Inserted::New(record) => record,
        Inserted::Existing(_) => panic!("the key was there already"),
    }
}

fn response() -> Arc<StoredResponse> {
    let mut headers = HeaderMap::new();
    headers.append("set-by", HeaderValue::from_static("a"));
    headers.append("set-by", HeaderValue::from_static("b"));
    let mut trailers = HeaderMap::new();
    trailers.append("sum", HeaderValue::from_static("1"));
    Arc::new(StoredResponse {
        status: StatusCode::CREATED,
        headers,
        body: StoredBody::Full {
            bytes: vec![0, 159, 146, 150].into(),
            trailers: Some(trailers),
        },
    })
}

fn settled(record: &Record, settlement: &Settlement, policy: &Policy) -> Change {
    match machine::apply(
        Some(record),
        &End {
            attempt: record.attempt_id,
            settlement,
        },
        Timestamp::default(),
        policy,
    )
    .swapped()
    {
        Some(change) => change,
        other => panic!("{other:?}"),
    }
}

async fn complete(store: &dyn Store, record: &Record, policy: &Policy) -> Record {
    let change = settled(record, &Settlement::Complete(response()), policy);
    done(store.swap(record.revision, change).await.unwrap().value)
}

fn done(swapped: Swapped) -> Record {
    match swapped {
        Swapped::Done(record) => record,
        other => panic!("{other:?}"),
    }
}

async fn stored(store: &dyn Store, record: &Record) -> Option<Record> {
    store.lookup(record.id).await.unwrap().value
}

/// An inserted record is found, and found again by a second insert.
pub async fn insert_then_get(store: Any) {
    let record = reserve(&*store, "k", 1).await;
    assert_eq!(stored(&*store, &record).await.as_ref(), Some(&record));
    let again = store
        .insert_or_get(first(&*store, "k", 2))
        .await
        .unwrap()
        .value;
    assert_eq!(again, Inserted::Existing(record));
}

/// A read returns the last write.
pub async fn fresh(store: Any) {
    let record = reserve(&*store, "k", 1).await;
    let record = complete(&*store, &record, &policy()).await;
    assert_eq!(stored(&*store, &record).await.as_ref(), Some(&record));
    if let Some(peeked) = store.peek(record.id) {
        assert_eq!(peeked.value, record);
    }
    let again = store
        .insert_or_get(first(&*store, "k", 2))
        .await
        .unwrap()
        .value;
    assert_eq!(again, Inserted::Existing(record));
}

/// Of many concurrent inserts of one key exactly one is new, and all see the same attempt.
pub async fn one_winner(store: Any) {
    for round in 0..20 {
        let key = format!("race-{round}");
        let tasks: Vec<_> = (0..50)
            .map(|attempt| {
                let store = store.clone();
                let draft = first(&*store, &key, attempt);
                tokio::spawn(async move { store.insert_or_get(draft).await.unwrap().value })
            })
            .collect();
        let mut winners = Vec::new();
        let mut seen = Vec::new();
        for task in tasks {
            match task.await.unwrap() {
                Inserted::New(record) => winners.push(record.attempt_id),
                Inserted::Existing(record) => seen.push(record.attempt_id),
            }
        }
        assert_eq!(winners.len(), 1, "one insert wins");
        assert!(seen.iter().all(|attempt| *attempt == winners[0]));
    }
}

/// Of many concurrent swaps from one revision exactly one is done; the others see its result.
pub async fn one_swap_wins(store: Any) {
    let record = reserve(&*store, "k", 1).await;
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let (store, record) = (store.clone(), record.clone());
            tokio::spawn(async move {
                let release = Settlement::Release(LastError::NotSent);
                let change = settled(&record, &release, &policy());
                store.swap(record.revision, change).await.unwrap().value
            })
        })
        .collect();
    let mut wins = 0;
    for task in tasks {
        match task.await.unwrap() {
            Swapped::Done(_) => wins += 1,
            Swapped::Conflict(current) => assert_eq!(current.state, State::FailedRetryable),
            Swapped::Absent => panic!("the record was there"),
        }
    }
    assert_eq!(wins, 1);
    assert_eq!(
        store.history(record.id).await.unwrap().len(),
        1,
        "one journal row, the winner's"
    );
}

/// A swap from an old revision changes nothing and returns the current record.
pub async fn swap_needs_the_revision(store: Any) {
    let old = reserve(&*store, "k", 1).await;
    let current = complete(&*store, &old, &policy()).await;
    let change = settled(&old, &Settlement::Unknown(LastError::Timeout), &policy());
    let swapped = store.swap(old.revision, change).await.unwrap().value;
    assert_eq!(swapped, Swapped::Conflict(current.clone()));
    assert_eq!(stored(&*store, &old).await, Some(current));
    assert!(store.history(old.id).await.unwrap().is_empty());
}

/// A swap of a record that does not exist returns that.
pub async fn swap_of_nothing(store: Any) {
    let record = first(&*store, "k", 1).stamp(onlyonce_core::Timestamp(0));
    let change = settled(&record, &Settlement::Unknown(LastError::Timeout), &policy());
    assert_eq!(
        store.swap(Revision(1), change).await.unwrap().value,
        Swapped::Absent
    );
}

/// Journal rows are written with their swap, and are numbered in the order of their writing.
pub async fn journal_with_the_swap(store: Any) {
    let record = reserve(&*store, "k", 1).await;
    let change = settled(&record, &Settlement::Unknown(LastError::Timeout), &policy());
    let record = done(store.swap(record.revision, change).await.unwrap().value);
    let record = complete(&*store, &record, &policy()).await;
    let history = store.history(record.id).await.unwrap();
    let events: Vec<_> = history.iter().map(|row| row.entry.event).collect();
    assert_eq!(
        events,
        [
            JournalEvent::BecameUnknown,
            JournalEvent::DeadLettered,
            JournalEvent::LateResult
        ]
    );
    assert_eq!(history[0].entry.detail.as_deref(), Some("timeout"));
    assert_eq!(
        (history[0].entry.from, history[0].entry.to),
        (Some(State::InProgress), Some(State::Unknown))
    );
    let audit = store.audit(None, 1).await.unwrap();
    assert_eq!(audit.items, history[2..]);
    let rest = store.audit(audit.next, 10).await.unwrap();
    let before: Vec<_> = history[..2].iter().rev().cloned().collect();
    assert_eq!((rest.items, rest.next), (before, None));
}

/// A row under the same id that belongs to another key is never returned as this key's.
pub async fn collision_is_refused(store: Any) {
    let record = reserve(&*store, "k", 1).await;
    let mut other = first(&*store, "another", 2);
    other.record.id = record.id;
    let outcome = store.insert_or_get(other).await;
    assert!(matches!(outcome, Err(StoreError::Collision)), "{outcome:?}");
    assert_eq!(stored(&*store, &record).await, Some(record));
}

/// Every field of a fully populated record survives.
pub async fn every_field_comes_back(store: Any) {
    let record = reserve(&*store, "k", u128::MAX - 3).await;
    let mut draft = Draft::after(&record);
    draft.record.state = State::Unknown;
    draft.record.evidence = Some(Evidence::Completed(response()));
    draft.record.negatives = 3;
    draft.record.inconclusive = 4;
    draft.record.dead_letter = true;
    draft.record.last_error = Some(LastError::Truncated);
    draft.record.generation = 5;
    draft.record.caller = None;
    draft.record.fingerprint = None;
    draft.record.tombstone_ttl = Duration::from_millis(1_234_567);
    draft.stamps.unknown_since = onlyonce_core::time::Stamp::NOW;
    draft.stamps.reconcile_after = onlyonce_core::time::Stamp::In(Duration::from_secs(9));
    let change = Change {
        draft: Box::new(draft),
        journal: Vec::new(),
    };
    let written = done(store.swap(record.revision, change).await.unwrap().value);
    assert_eq!(stored(&*store, &record).await, Some(written));
}

/// A record's notes survive every way in which a row is written: as a new key, as an ordinary completion, as
/// any other change, and as a tombstone.
pub async fn notes_come_back(store: Any) {
    let literal = Notes {
        spelling: Some(Spelling::Literal),
        ..Notes::default()
    };
    let all = Notes {
        spelling: Some(Spelling::Quoted(b"\"k\";v=2".as_slice().into())),
        marked_by: MarkedBy::Cookies,
        never_reached: true,
        // For an unknown key only: no attempt begins with one, and every settlement drops it.
        negative_at: None,
        erased: false,
        attested: false,
    };
    let negative_at = Some(Timestamp(1_700_000_000_123));
    for (key, notes) in [("none", Notes::default()), ("few", literal), ("k", all)] {
        let mut new = request(&*store, &Scope::global(), key, 1);
        new.notes = notes.clone();
        let draft = machine::first(&new, &policy());
        let Inserted::New(record) = store.insert_or_get(draft).await.unwrap().value else {
            panic!("the key was there already");
        };
        let read = stored(&*store, &record).await.unwrap();
        assert_eq!((&record.notes, &read.notes), (&notes, &notes), "inserted");
        let record = complete(&*store, &read, &policy()).await;
        let read = stored(&*store, &record).await.unwrap();
        assert_eq!((&record.notes, &read.notes), (&notes, &notes), "completed");
        let expires_at = read.times.expires_at.unwrap();
        let Some(change) =
            machine::apply(Some(&read), &Reap, expires_at, &Policy::default()).swapped()
        else {
            panic!("it has expired");
        };
        let record = done(store.swap(read.revision, change).await.unwrap().value);
        let read = stored(&*store, &record).await.unwrap();
        assert_eq!((&record.notes, &read.notes), (&notes, &notes), "expired");
        let mut draft = Draft::after(&read);
        draft.record.notes.negative_at = negative_at;
        draft.record.notes.erased = true;
        draft.record.notes.attested = true;
        let change = Change {
            draft: Box::new(draft),
            journal: Vec::new(),
        };
        let record = done(store.swap(read.revision, change).await.unwrap().value);
        let read = stored(&*store, &record).await.unwrap();
        let erased = Notes {
            negative_at,
            erased: true,
            attested: true,
            ..notes
        };
        assert_eq!((&record.notes, &read.notes), (&erased, &erased), "changed");
    }
}

/// An erased record is still the record of its key, in every state, and of nothing else: it is found by its
/// hash, contains neither key nor path nor answer, and its audit row is written with it.
pub async fn erased_is_found_by_its_hash(store: Any) {
    let erase = async |record: Record| {
        let Some(change) = machine::apply(
            Some(&record),
            &Erase {
                reason: Some("asked for".to_owned()),
            },
            Timestamp::default(),
            &Policy::default(),
        )
        .swapped() else {
            panic!("it was not erased before");
        };
        let erased = done(store.swap(record.revision, change).await.unwrap().value);
        let read = stored(&*store, &erased).await.unwrap();
        assert_eq!(read, erased);
        assert_eq!((read.key.as_str(), &*read.path), ("", ""));
        assert_eq!(read.state, record.state);
        assert_eq!(read.fingerprint, record.fingerprint);
        let history = store.history(record.id).await.unwrap();
        assert!(
            history
                .iter()
                .any(|row| row.entry.event == JournalEvent::Erased)
        );
        read
    };
    // Some stores keep this key in another form than others.
    let uuid = "0191f2c4-7b3a-7000-8000-0123456789ab";
    for (number, key) in [(1, "person@example.com"), (2, uuid)] {
        let running = reserve(&*store, key, number).await;
        let erased = erase(running.clone()).await;
        let again = store.insert_or_get(first(&*store, key, 70 + number)).await;
        assert_eq!(again.unwrap().value, Inserted::Existing(erased.clone()));
        let filter = Filter {
            key: Some(running.key.clone()),
            ..Filter::default()
        };
        let listed = store.list(&filter, None, 10).await.unwrap();
        assert_eq!(listed.items, [], "its key is nowhere");
        let completed = complete(&*store, &erased, &policy()).await;
        let read = stored(&*store, &completed).await.unwrap();
        let bare = StoredResponse::bare(response().status);
        assert_eq!(read.response.as_deref(), Some(&bare));
        assert_eq!(read.key.as_str(), "");
        // Another key under the same id is still another key if the scope differs.
        let mut other = first(&*store, key, 90 + number);
        other.record.scope = Scope::client("another");
        let outcome = store.insert_or_get(other).await;
        assert!(matches!(outcome, Err(StoreError::Collision)), "{outcome:?}");
    }
    let record = reserve(&*store, "completed", 3).await;
    let record = complete(&*store, &record, &policy()).await;
    let erased = erase(stored(&*store, &record).await.unwrap()).await;
    let bare = StoredResponse::bare(response().status);
    assert_eq!(erased.response.as_deref(), Some(&bare));
    let again = store.insert_or_get(first(&*store, "completed", 73)).await;
    assert_eq!(again.unwrap().value, Inserted::Existing(erased.clone()));
    let expires_at = erased.times.expires_at.unwrap();
    let Some(change) =
        machine::apply(Some(&erased), &Reap, expires_at, &Policy::default()).swapped()
    else {
        panic!("it has expired");
    };
    let tombstone = done(store.swap(erased.revision, change).await.unwrap().value);
    let again = store.insert_or_get(first(&*store, "completed", 74)).await;
    assert_eq!(again.unwrap().value, Inserted::Existing(tombstone));
}

/// Bodies, headers in order, and trailers come back byte for byte; an expired record has none.
pub async fn bytes_come_back(store: Any) {
    let record = reserve(&*store, "k", 1).await;
    let record = complete(&*store, &record, &policy()).await;
    let read = stored(&*store, &record).await.unwrap();
    assert_eq!(read.response, Some(response()));
    let Some(change) = machine::apply(
        Some(&read),
        &Forget {
            force: true,
            fresh: AttemptId(9),
            reason: None,
        },
        Timestamp::default(),
        &Policy::default(),
    )
    .swapped() else {
        panic!("a completed key can be forgotten by force");
    };
    store.swap(read.revision, change).await.unwrap();
    assert_eq!(stored(&*store, &record).await.unwrap().response, None);
}

/// Stamps are resolved by the store's clock, which the reply carries.
pub async fn times_are_the_stores(store: Any) {
    let reply = store.insert_or_get(first(&*store, "k", 1)).await.unwrap();
    let Inserted::New(record) = reply.value else {
        panic!("new")
    };
    assert_eq!(record.times.created_at, Some(reply.now));
    assert_eq!(
        record.times.lease_until,
        Some(reply.now.plus(policy().lease))
    );
    let later = store.lookup(record.id).await.unwrap().now;
    assert!(later >= reply.now);
}

fn short_lease() -> Policy {
    Policy::builder().lease(Duration::ZERO).build()
}

async fn reserve_under(store: &dyn Store, key: &str, policy: &Policy) -> Record {
    let draft = machine::first(&request(store, &Scope::global(), key, 1), policy);
    match store.insert_or_get(draft).await.unwrap().value {
        Inserted::New(record) => record,
        Inserted::Existing(_) => panic!("the key was there already"),
    }
}

/// Operators' rows are kept when the key goes, until their own time is over; the history of an existing key
/// is kept in any case.
pub async fn operators_rows_outlive_their_key(store: Any) {
    let (gone, stays) = (
        reserve(&*store, "gone", 1).await,
        reserve(&*store, "stays", 2).await,
    );
    let row = |id, actor| JournalEntry {
        id,
        event: JournalEvent::Released,
        from: None,
        to: None,
        attempt: 1,
        actor,
        detail: None,
    };
    let rows = vec![
        row(gone.id, Actor::Sweeper),
        row(gone.id, Actor::Operator),
        row(stays.id, Actor::Operator),
    ];
    store.append(rows).await.unwrap();
    assert!(store.delete(gone.id, gone.revision).await.unwrap());
    let operators = async |id| {
        let rows = store.history(id).await.unwrap();
        let theirs = rows.iter().filter(|row| row.entry.actor == Actor::Operator);
        theirs.map(|row| row.at).collect::<Vec<_>>()
    };
    store.prune_audit(Duration::from_secs(3_600)).await.unwrap();
    let (kept, history) = (operators(gone.id).await, operators(stays.id).await);
    assert_eq!((kept.len(), history.len()), (1, 1));
    // Until the store's own clock, which counts in milliseconds, has advanced.
    while store.lookup(stays.id).await.unwrap().now <= kept[0] {}
    store.prune_audit(Duration::ZERO).await.unwrap();
    assert_eq!(operators(gone.id).await, []);
    assert_eq!(operators(stays.id).await, history);
}

/// Blocks are immutable: the first one stays.
pub async fn blocks_are_kept(store: Any) {
    assert_eq!(store.block("a").await.unwrap(), None);
    assert_eq!(store.keep_block("a", b"\0one").await.unwrap(), b"\0one");
    assert_eq!(store.keep_block("a", b"two").await.unwrap(), b"\0one");
    assert_eq!(store.block("a").await.unwrap().unwrap(), b"\0one");
    assert_eq!(store.block("b").await.unwrap(), None);
}

/// The clock mark: the last one stands, and is not anybody's block.
pub async fn the_clock_is_noted(store: Any) {
    assert_eq!(store.noted_clock().await.unwrap(), None);
    for mark in [b"1 one 2 3 -".as_slice(), b"1 two 20 30 7"] {
        store.note_clock(mark).await.unwrap();
        assert_eq!(store.noted_clock().await.unwrap().unwrap(), mark);
    }
    assert_eq!(store.block("a").await.unwrap(), None);
}

/// The store tells its identity and its epoch: every call raises the epoch, even concurrent ones, and an
/// operator's acceptance is later than what was seen before it.
pub async fn the_epoch_rises(store: Any) {
    let id = store.identity().id();
    let Some(before) = store.standing().await.unwrap() else {
        // The store cannot be exchanged under its process.
        return;
    };
    assert_eq!(before.identity, Some(id));
    assert_eq!(before.history, History::default());
    let first = store.raise_epoch().await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = store.clone();
        tasks.spawn(async move { store.raise_epoch().await });
    }
    for raised in tasks.join_all().await {
        assert!(raised.unwrap().count > first.count);
    }
    let standing = store.standing().await.unwrap().unwrap();
    let epoch = standing.epoch.unwrap();
    assert_eq!(epoch.count, first.count + 8);
    for loss in [Loss::Newest, Loss::Any] {
        store.note_lost(loss).await.unwrap();
    }
    let lost = store.standing().await.unwrap().unwrap().history;
    assert!(lost.newest_lost_at >= Some(epoch.at), "{lost:?}");
    assert!(lost.lost_at >= lost.newest_lost_at, "{lost:?}");
    assert_eq!(lost.accepted_at, None);
    store.accept_incomplete().await.unwrap();
    let accepted = store.standing().await.unwrap().unwrap().history;
    assert!(accepted.accepted_at >= lost.lost_at, "{accepted:?}");
    assert_eq!(accepted.lost_at, lost.lost_at);
    let renewed = store.renew_identity().await.unwrap();
    assert_ne!(renewed.id(), id);
    let standing = store.standing().await.unwrap().unwrap();
    assert_eq!(standing.identity, Some(renewed.id()));
    assert_eq!(standing.epoch, Some(epoch));
}

/// A stored recipe is found under its id.
pub async fn recipes_are_kept(store: Any) {
    let recipe = Recipe::default();
    assert!(store.recipe(recipe.id()).await.unwrap().is_none());
    store.keep_recipe(&recipe).await.unwrap();
    store.keep_recipe(&recipe).await.unwrap();
    let found = store
        .recipe(recipe.id())
        .await
        .unwrap()
        .expect("it was kept");
    assert_eq!(found.encode(), recipe.encode());
}

/// A swap wakes listeners.
pub async fn swaps_wake(store: Any) {
    let mut wakeups = store.wakeups();
    let record = reserve(&*store, "k", 1).await;
    complete(&*store, &record, &policy()).await;
    let woken = tokio::time::timeout(Duration::from_secs(5), wakeups.recv()).await;
    assert_eq!(woken.expect("a wake-up within 5 s").unwrap(), record.id);
}

/// The same key in two scopes is two keys.
pub async fn scopes_do_not_meet(store: Any) {
    for scope in [Scope::global(), Scope::client("a"), Scope::client("b")] {
        let draft = machine::first(&request(&*store, &scope, "k", 1), &policy());
        let inserted = store.insert_or_get(draft).await.unwrap().value;
        assert!(matches!(inserted, Inserted::New(_)));
    }
}
