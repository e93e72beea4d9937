//! The contract on DynamoDB's emulators, and what only this store has.
//!
//! moto runs all of it, one request at a time. dynalite runs what needs no transaction, with any number of
//! writers at once; the cases that it cannot run are tests that expect its refusal.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use aws_sdk_dynamodb::{
    Client,
    config::{BehaviorVersion, Credentials, Region},
    types::AttributeValue,
};
use http::{HeaderMap, StatusCode};
use onlyonce_core::{
    AttemptId, Fingerprint, Key, Policy, Recipe, Record, Scope, StoredResponse, Timestamp,
    machine::{self, End, Reap, Request, Settlement},
    record::{Change, LastError, Notes, StoredBody},
};
use onlyonce_store::{
    Inserted, Level, Store, StoreError, Swapped,
    dynamodb::{AccessKey, DynamoDbOptions, DynamoDbStore, OpenError},
};
use onlyonce_testkit::{
    servers::{Dynalite, Moto},
    tcp_faults::FaultProxy,
};

onlyonce_testkit::conformance!(moto, || async { moto_table().await });

/// What dynalite can run: the ordinary life of a key, with real concurrency.
mod dynalite {
    use super::*;

    onlyonce_testkit::conformance!(@cases || async { dynalite_table().await },
        insert_then_get,
        fresh,
        one_winner,
        collision_is_refused,
        every_field_comes_back,
        notes_come_back,
        times_are_the_stores,
        walk_finds_the_expired,
        walk_leaves_young_tombstones,
        delete_needs_the_revision,
        pages_are_stable,
        dead_letters_are_listed,
        filters_filter,
        scopes_are_kept,
        counts_count,
        recipes_are_kept,
        blocks_are_kept,
        the_clock_is_noted,
        the_epoch_rises,
        swaps_wake,
        scopes_do_not_meet,
    );
}

/// What dynalite cannot run: it has no transactions, and a change with journal rows is one. Each case is
/// refused for that reason and no other; one that is not belongs to those above.
mod dynalite_has_no_transactions {
    use super::*;

    macro_rules! refused {
        ($($case:ident,)*) => {$(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let store = Arc::new(dynalite_table().await);
                let run = tokio::spawn(onlyonce_testkit::conformance::$case(store));
                let why = run.await.expect_err("dynalite can do this now").to_string();
                assert!(why.contains("UnknownOperationException"), "{why}");
            }
        )*};
    }

    refused! {
        one_swap_wins,
        swap_needs_the_revision,
        swap_of_nothing,
        journal_with_the_swap,
        erased_is_found_by_its_hash,
        bytes_come_back,
        sweep_finds_the_lapsed,
        sweep_ignores_a_heartbeat,
        walk_leaves_the_live,
        operators_rows_outlive_their_key,
        a_key_is_found_by_probes,
        a_client_is_listed_in_pages,
        live_counts_one_client,
        writers_at_once,
    }
}

fn options(timeout: Duration) -> DynamoDbOptions {
    DynamoDbOptions {
        timeout,
        migrate: true,
        credentials: Some(AccessKey {
            id: "test".to_owned(),
            secret: "test".to_owned(),
        }),
    }
}

async fn open(url: &str) -> DynamoDbStore {
    let store = DynamoDbStore::open(url, &options(Duration::from_secs(20))).await;
    store.expect("a table is made")
}

/// One server for all cases, a table for each.
async fn moto_table() -> DynamoDbStore {
    static SERVER: OnceLock<Moto> = OnceLock::new();
    let server = tokio::task::block_in_place(|| SERVER.get_or_init(Moto::start));
    open(&server.url(&next_table())).await
}

/// One server for all cases, a table for each.
async fn dynalite_table() -> DynamoDbStore {
    static SERVER: OnceLock<Dynalite> = OnceLock::new();
    let server = tokio::task::block_in_place(|| SERVER.get_or_init(Dynalite::start));
    open(&server.url(&next_table())).await
}

fn next_table() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("case-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// The service past the store.
fn client(port: u16) -> Client {
    let config = aws_sdk_dynamodb::config::Builder::new()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "test"))
        .endpoint_url(format!("http://127.0.0.1:{port}"))
        .build();
    Client::from_conf(config)
}

type Item = std::collections::HashMap<String, AttributeValue>;

/// The items of a table whose sort key begins with this.
async fn items(client: &Client, table: &str, start: &str) -> Vec<Item> {
    let scan = client.scan().table_name(table).consistent_read(true);
    let mut pages = scan.into_paginator().items().send();
    let mut found = Vec::new();
    while let Some(item) = pages.next().await {
        let item = item.unwrap();
        if item["sk"].as_s().unwrap().starts_with(start) {
            found.push(item);
        }
    }
    found
}

fn request(store: &dyn Store, key: &str, attempt: u128) -> Request {
    let (scope, key) = (Scope::global(), Key::from_stored(key));
    Request {
        id: store.secret().record_id(scope.as_str(), &key),
        scope,
        key,
        fingerprint: Fingerprint([7; 32]),
        recipe: Recipe::default().id(),
        caller: None,
        attempt_id: AttemptId(attempt),
        route: "route".into(),
        method: "POST".into(),
        path: "/pay".into(),
        other_mark: None,
        notes: Notes::default(),
    }
}

async fn reserve(store: &dyn Store, key: &str) -> Record {
    let draft = machine::first(&request(store, key, 1), &Policy::default());
    match store.insert_or_get(draft).await.unwrap().value {
        Inserted::New(record) => record,
        Inserted::Existing(record) => panic!("it was there: {record:?}"),
    }
}

fn settled(record: &Record, settlement: &Settlement) -> Change {
    let attempt = record.attempt_id;
    let end = End {
        attempt,
        settlement,
    };
    let step = machine::apply(Some(record), &end, Timestamp::default(), &Policy::default());
    step.swapped().expect("the attempt owns the key")
}

fn answer(bytes: usize) -> Settlement {
    // Every piece differs from the others.
    let body: Vec<u8> = (0..bytes).map(|at| (at / 1_000) as u8 ^ at as u8).collect();
    Settlement::Complete(Arc::new(StoredResponse {
        status: StatusCode::CREATED,
        headers: HeaderMap::new(),
        body: StoredBody::Full {
            bytes: body.into(),
            trailers: None,
        },
    }))
}

async fn swap(store: &dyn Store, record: &Record, change: Change) -> Record {
    match store.swap(record.revision, change).await.unwrap().value {
        Swapped::Done(record) => record,
        other => panic!("{other:?}"),
    }
}

/// Goal: an answer of any size comes back, and nothing of it stays when it goes.
///
/// Method: answers below, at and far beyond what an item holds; each is completed, read, and expires.
/// Evidence: the record that is read is the one that was written; the table holds no piece afterwards. The
/// service's own TTL stands on the tombstone, a day late, and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_any_size() {
    let server = tokio::task::block_in_place(Dynalite::start);
    let (store, raw) = (open(&server.url("large")).await, client(server.port()));
    for (bytes, pieces) in [(0, 0), (340_000, 0), (360_000, 2), (1_100_000, 4)] {
        let record = reserve(&store, &format!("k{bytes}")).await;
        let record = swap(&store, &record, settled(&record, &answer(bytes))).await;
        let read = store.lookup(record.id).await.unwrap().value;
        assert!(read.as_ref() == Some(&record), "{bytes} bytes come back");
        let found = items(&raw, "large", "B#").await;
        let found = found
            .iter()
            .filter(|item| item["pk"].as_s().unwrap().starts_with("K#"));
        assert_eq!(found.count(), pieces, "{bytes}");
        assert!(
            items(&raw, "large", "R")
                .await
                .iter()
                .all(|item| !item.contains_key("xp"))
        );
        let expires_at = record.times.expires_at.unwrap();
        let reaped = machine::apply(Some(&record), &Reap, expires_at, &Policy::default());
        let record = swap(&store, &record, reaped.swapped().unwrap()).await;
        assert_eq!(items(&raw, "large", "B#").await.len(), 0, "{bytes}");
        let tombstone = &items(&raw, "large", "R").await[0];
        let ttl: i64 = tombstone["xp"].as_n().unwrap().parse().unwrap();
        assert_eq!(ttl, record.times.delete_at.unwrap().0 / 1_000 + 86_400);
        assert!(store.delete(record.id, record.revision).await.unwrap());
    }
}

/// Goal: pieces that no record came to name go, and those that one names stay.
///
/// Method: the pieces of a completed key, and beside them a set that no record names; both are made to be due.
/// Evidence: after the reaper's walk the one set is there and the other is not; the answer is still read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_without_a_record_go() {
    let server = tokio::task::block_in_place(Dynalite::start);
    let (store, raw) = (open(&server.url("orphans")).await, client(server.port()));
    let record = reserve(&store, "k").await;
    let record = swap(&store, &record, settled(&record, &answer(800_000))).await;
    let named = items(&raw, "orphans", "B#").await;
    for item in &named {
        let mut orphan = item.clone();
        let sort = item["sk"].as_s().unwrap().replacen("B#", "B#0", 1);
        orphan.insert("sk".to_owned(), AttributeValue::S(sort));
        for item in [item.clone(), orphan] {
            let mut item = item;
            if item.contains_key("tm") {
                item.insert("tm".to_owned(), AttributeValue::N("1".to_owned()));
            }
            let put = raw.put_item().table_name("orphans").set_item(Some(item));
            put.send().await.unwrap();
        }
    }
    assert_eq!(items(&raw, "orphans", "B#").await.len(), 2 * named.len());
    assert!(store.walk(100).await.unwrap().value.wrapped);
    let left = items(&raw, "orphans", "B#").await;
    let names = |items: &[Item]| {
        let mut names: Vec<String> = items
            .iter()
            .map(|item| item["sk"].as_s().unwrap().clone())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(&left), names(&named));
    assert!(store.lookup(record.id).await.unwrap().value == Some(record));
}

/// Goal: a write whose answer is lost is recognised when it is made again.
///
/// Method: a proxy lets the call through to the service and swallows the answer: of a new key, of a completion,
/// of a change with journal rows, which is a transaction whose token moto ignores.
/// Evidence: each is done, once; the journal has the rows of one change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_answers_are_settled_by_the_write() {
    let server = tokio::task::block_in_place(Moto::start);
    let proxy = FaultProxy::start(server.port()).await;
    let own = server.port().to_string();
    let url = server.url("lost").replace(&own, &proxy.port().to_string());
    let store = open(&url).await;
    proxy.swallow_reply_to(b"DynamoDB_20120810.PutItem");
    let record = reserve(&store, "k").await;
    assert_eq!(proxy.swallowed(), 1, "the answer to the new key was lost");
    proxy.swallow_reply_to(b"DynamoDB_20120810.TransactWriteItems");
    let unknown = settled(&record, &Settlement::Unknown(LastError::Timeout));
    let rows = unknown.journal.len();
    assert!(rows > 0);
    let record = swap(&store, &record, unknown).await;
    assert_eq!(
        proxy.swallowed(),
        2,
        "the answer to the transaction was lost"
    );
    assert_eq!(store.history(record.id).await.unwrap().len(), rows);
    let other = reserve(&store, "other").await;
    proxy.swallow_reply_to(b"DynamoDB_20120810.UpdateItem");
    let other = swap(&store, &other, settled(&other, &answer(10))).await;
    assert_eq!(
        proxy.swallowed(),
        3,
        "the answer to the completion was lost"
    );
    for record in [record, other] {
        assert_eq!(store.lookup(record.id).await.unwrap().value, Some(record));
    }
}

/// Goal: a store says what it is, and is not made by looking.
///
/// Method: a table that is not there, one that something else made, one that a second process opens.
/// Evidence: refused for what it is; one secret; no level is claimed for a server that is not AWS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_opened() {
    let server = tokio::task::block_in_place(Dynalite::start);
    let looking = DynamoDbOptions {
        migrate: false,
        ..options(Duration::from_secs(20))
    };
    let opened = DynamoDbStore::open(&server.url("nothing"), &looking).await;
    assert!(matches!(opened.err(), Some(OpenError::Empty)));
    let raw = client(server.port());
    assert!(
        raw.list_tables()
            .send()
            .await
            .unwrap()
            .table_names()
            .is_empty()
    );
    let (first, second) = tokio::join!(open_as(&server, "one"), open_as(&server, "one"));
    assert_eq!(first.secret().as_bytes(), second.secret().as_bytes());
    assert_eq!(first.identity(), second.identity());
    assert_eq!(first.level(), Level::Volatile);
    first.probe().await.unwrap();
    assert_eq!(first.level(), Level::Volatile);
    // Somebody empties the table under the store.
    let key = |name: &str| AttributeValue::S(name.to_owned());
    let delete = raw.delete_item().table_name("one");
    let delete = delete.key("pk", key("M")).key("sk", key("M"));
    delete.send().await.unwrap();
    for refused in [first.probe().await, first.raise_epoch().await.map(drop)] {
        let refused: StoreError = refused.unwrap_err();
        assert!(refused.unfit().is_some(), "{refused:?}");
    }
}

async fn open_as(server: &Dynalite, table: &str) -> DynamoDbStore {
    open(&server.url(table)).await
}
