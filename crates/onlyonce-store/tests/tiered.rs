//! A cache in front of SQL that is down, frozen, emptied, restored from an old copy or poisoned: never
//! a wrong answer, and never a long wait.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use onlyonce_core::{
    AttemptId, Fingerprint, Key, Policy, Recipe, Record, RecordId, Scope, StoredResponse,
    Timestamp,
    machine::{self, End, Forget, Request, Settlement},
    record::Draft,
};
use onlyonce_store::{
    Inserted, Reply, Store, StoreError, Swapped, sqlite::SqliteStore, tiered::TieredStore,
};
use onlyonce_testkit::servers::Redis;
use tokio::time::Instant;

/// Much longer than a cache is waited for, and much shorter than a test may take.
const BOUND: Duration = Duration::from_secs(2);

/// A SQLite store, two gateways' worth of caches in front of it, and their server.
struct Tiers {
    truth: Arc<dyn Store>,
    first: TieredStore,
    second: TieredStore,
    server: Redis,
}

/// Both have heard the time of the truth, without which no copy is used.
async fn tiers(max_age: Duration) -> Tiers {
    let server = tokio::task::block_in_place(Redis::start);
    let folder = tempfile::tempdir().unwrap().keep();
    let truth: Arc<dyn Store> = Arc::new(SqliteStore::open(&folder.join("store.db")).unwrap());
    let tier = || TieredStore::with_max_age(truth.clone(), &server.url(), max_age).unwrap();
    let (first, second) = (tier(), tier());
    for store in [&first, &second] {
        store.lapsed(1).await.unwrap();
    }
    Tiers {
        truth,
        first,
        second,
        server,
    }
}

fn draft(store: &dyn Store, key: &str, attempt: u128) -> Draft {
    let key = Key::from_stored(key);
    let request = Request {
        id: store.secret().record_id(Scope::global().as_str(), &key),
        scope: Scope::global(),
        key,
        fingerprint: Fingerprint([7; 32]),
        recipe: Recipe::default().id(),
        caller: None,
        attempt_id: AttemptId(attempt),
        route: "r".into(),
        method: "POST".into(),
        path: "/".into(),
        other_mark: None,
        notes: onlyonce_core::record::Notes::default(),
    };
    machine::first(&request, &Policy::default())
}

async fn complete(store: &dyn Store, key: &str, answer: &str) -> Record {
    let reply = store.insert_or_get(draft(store, key, 1)).await.unwrap();
    let Inserted::New(record) = reply.value else {
        panic!("{key} was there");
    };
    let response = StoredResponse::plain(StatusCode::CREATED, answer.to_owned());
    let settlement = Settlement::Complete(response.into());
    let settled = machine::apply(
        Some(&record),
        &End {
            attempt: AttemptId(1),
            settlement: &settlement,
        },
        Timestamp::default(),
        &Policy::default(),
    );
    let Some(change) = settled.swapped() else {
        panic!("it is its own");
    };
    match store.swap(record.revision, change).await.unwrap().value {
        Swapped::Done(record) => record,
        other => panic!("{other:?}"),
    }
}

/// What a retry is answered with, and how long that took.
async fn ask(store: &dyn Store, key: &str) -> (Record, Duration) {
    let began = Instant::now();
    let reply = store.insert_or_get(draft(store, key, 2)).await.unwrap();
    match reply {
        Reply {
            value: Inserted::Existing(record),
            ..
        } => (record, began.elapsed()),
        other => panic!("{key}: {other:?}"),
    }
}

/// The name of the entry of a record, whichever store it is of.
fn entry_of(server: &Redis, id: RecordId) -> String {
    let pattern = format!("oo:cache:*:{:032x}", u128::from_be_bytes(id.0));
    server.cli(&["--scan", "--pattern", &pattern])
}

/// Until a copy of the record lies in the cache. A machine that is busy may be too slow for the cache's
/// patience, and then the next retry brings one.
async fn until_copied(tiers: &Tiers, record: &Record) {
    let end = Instant::now() + Duration::from_secs(60);
    while entry_of(&tiers.server, record.id).is_empty() {
        assert!(Instant::now() < end, "no copy came");
        assert_eq!(ask(&tiers.first, record.key.as_str()).await.0, *record);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn forget(store: &dyn Store, record: &Record) -> Result<Swapped, StoreError> {
    let Some(change) = machine::apply(
        Some(record),
        &Forget {
            force: true,
            fresh: AttemptId(9),
            reason: None,
        },
        Timestamp::default(),
        &Policy::default(),
    )
    .swapped() else {
        panic!("by force");
    };
    Ok(store.swap(record.revision, change).await?.value)
}

/// Until the cache could be told, which a busy machine may be too slow for.
async fn until_forgotten(store: &dyn Store, record: &Record) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match forget(store, record).await {
            Ok(Swapped::Done(_)) => return,
            other => assert!(Instant::now() < end, "{other:?}"),
        }
    }
}

/// Goal: replays come from the cache, as long as their copy is young, and no longer.
///
/// Method: a completed key is changed in SQL behind the cache's back, which nothing of ours does. On a
/// machine that is busy the cache may be too slow, or its copy too old by then; another key is taken.
/// Evidence: the copy answers at first, so the cache is used at all; once its age is over, SQL does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_used_while_it_is_young() {
    let max_age = Duration::from_secs(2);
    let tiers = tiers(max_age).await;
    let end = Instant::now() + Duration::from_secs(60);
    let mut number = 0;
    let (key, began) = loop {
        number += 1;
        let key = format!("k{number}");
        let record = complete(&tiers.first, &key, "first").await;
        until_copied(&tiers, &record).await;
        let began = Instant::now();
        forget(&*tiers.truth, &record).await.unwrap();
        tiers.second.lapsed(1).await.unwrap();
        if ask(&tiers.second, &key).await.0 == record {
            break (key, began);
        }
        assert!(Instant::now() < end, "the copy was never used");
    };
    while began.elapsed() <= max_age + Duration::from_millis(100) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (found, _) = ask(&tiers.second, &key).await;
    assert_eq!(found.response, None, "what SQL says");
}

/// Goal: a cache that is down or frozen costs a bounded time, and nothing else.
///
/// Evidence: answers from SQL, each within a bound, at the start, after a kill, and while frozen; and
/// the copy again once it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_that_is_down_or_frozen() {
    let mut tiers = tiers(Duration::from_secs(60)).await;
    let record = complete(&tiers.first, "k", "answer").await;
    until_copied(&tiers, &record).await;
    tiers.server.freeze();
    for number in 0..20 {
        let (found, took) = ask(&tiers.first, "k").await;
        assert_eq!(found, record, "{number}");
        assert!(took < BOUND, "{number}: {took:?}");
        complete(&tiers.first, &format!("new-{number}"), "x").await;
    }
    tiers.server.thaw();
    tokio::task::block_in_place(|| tiers.server.kill());
    let (found, took) = ask(&tiers.first, "k").await;
    assert!(found == record && took < BOUND, "{took:?}");
    // A cache that nobody ever reached.
    let never = TieredStore::new(tiers.truth.clone(), "redis://127.0.0.1:1").unwrap();
    let (found, took) = ask(&never, "k").await;
    assert!(found == record && took < BOUND, "{took:?}");
    tokio::task::block_in_place(|| tiers.server.boot());
    until_copied(&tiers, &record).await;
}

/// Goal: an emptied cache is an empty cache.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_that_is_emptied() {
    let tiers = tiers(Duration::from_secs(60)).await;
    let record = complete(&tiers.first, "k", "answer").await;
    until_copied(&tiers, &record).await;
    tiers.server.cli(&["flushall"]);
    assert_eq!(ask(&tiers.second, "k").await.0, record);
}

/// Goal: what an old copy of the cache says is not believed.
///
/// Method: the entry is dumped; the key is forgotten and executed again with another answer; once the
/// entry is too old, it is restored without its time.
/// Evidence: the new answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_that_is_restored_from_an_old_copy() {
    let max_age = Duration::from_secs(1);
    let mut tiers = tiers(max_age).await;
    let record = complete(&tiers.first, "k", "old").await;
    until_copied(&tiers, &record).await;
    // The file of a snapshot, put back later: as after a restored backup.
    tiers
        .server
        .cli(&["persist", &entry_of(&tiers.server, record.id)]);
    tiers.server.cli(&["save"]);
    let file = tiers.server.folder().join("dump.rdb");
    let backup = std::fs::read(&file).unwrap();
    until_forgotten(&tiers.first, &record).await;
    let tombstone = tiers.truth.lookup(record.id).await.unwrap();
    let old = tombstone.value.unwrap();
    let draft = draft(&tiers.first, "k", 3);
    let request = Request {
        id: record.id,
        scope: draft.record.scope.clone(),
        key: draft.record.key.clone(),
        fingerprint: Fingerprint([8; 32]),
        recipe: Recipe::default().id(),
        caller: None,
        attempt_id: AttemptId(3),
        route: "r".into(),
        method: "POST".into(),
        path: "/".into(),
        other_mark: None,
        notes: onlyonce_core::record::Notes::default(),
    };
    let admission = machine::apply(Some(&old), &request, tombstone.now, &Policy::default());
    let Some(change) = admission.swapped() else {
        panic!("any request may follow");
    };
    tiers.first.swap(old.revision, change).await.unwrap();
    let began = Instant::now();
    while began.elapsed() <= max_age + Duration::from_millis(200) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::task::block_in_place(|| tiers.server.kill());
    std::fs::write(&file, backup).unwrap();
    tokio::task::block_in_place(|| tiers.server.boot());
    assert!(!entry_of(&tiers.server, record.id).is_empty(), "it is back");
    for store in [&tiers.first, &tiers.second] {
        store.lapsed(1).await.unwrap();
        let (found, _) = ask(store, "k").await;
        assert_eq!(
            found.attempt_id,
            AttemptId(3),
            "the second execution, not the old answer"
        );
    }
}

/// Goal: what others write into the cache is not believed.
///
/// Method: another answer in an entry of ours, a longer one, an entry of another key, and noise.
/// Evidence: the right answer each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_that_is_poisoned() {
    let tiers = tiers(Duration::from_secs(60)).await;
    let record = complete(&tiers.first, "k", "mine").await;
    let other = complete(&tiers.first, "other", "not yours").await;
    until_copied(&tiers, &record).await;
    until_copied(&tiers, &other).await;
    let (mine, theirs) = (
        entry_of(&tiers.server, record.id),
        entry_of(&tiers.server, other.id),
    );
    // The answer's own bytes stand before the code, which ends the entry.
    let length: usize = tiers.server.cli(&["strlen", &mine]).parse().unwrap();
    let answer = (length - 32 - "mine".len()).to_string();
    let poison: [&[&str]; 4] = [
        &["setrange", &mine, &answer, "paid"],
        &["append", &mine, "x"],
        &["copy", &theirs, &mine, "replace"],
        &["set", &mine, "201 you are paid"],
    ];
    for command in poison {
        tiers.server.cli(command);
        assert_eq!(ask(&tiers.second, "k").await.0, record, "{command:?}");
    }
    tiers.server.cli(&["del", &mine]);
    tiers.server.cli(&["lpush", &mine, "x"]);
    assert_eq!(ask(&tiers.second, "k").await.0, record, "another type");
}

/// Goal: a forgotten answer is gone, for every node, at once.
///
/// Method: forget, while the other node has a copy; then a copy that was on its way arrives late; then
/// forget with the cache down.
/// Evidence: the other node sees the tombstone at once; the late copy does not come in; without the
/// cache the forget is refused, and nothing has changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forget_deletes_in_the_cache_first() {
    let mut tiers = tiers(Duration::from_secs(60)).await;
    let record = complete(&tiers.first, "k", "answer").await;
    until_copied(&tiers, &record).await;
    assert_eq!(ask(&tiers.second, "k").await.0, record);
    until_forgotten(&tiers.first, &record).await;
    assert_eq!(ask(&tiers.second, "k").await.0.response, None);
    assert_eq!(
        tiers
            .server
            .cli(&["get", &entry_of(&tiers.server, record.id)]),
        "-"
    );

    let kept = complete(&tiers.first, "kept", "answer").await;
    tokio::task::block_in_place(|| tiers.server.kill());
    let refused = forget(&tiers.first, &kept).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
    assert_eq!(tiers.truth.lookup(kept.id).await.unwrap().value, Some(kept));
}
