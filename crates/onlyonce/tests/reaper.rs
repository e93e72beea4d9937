//! The reaper beside requests, on a store with one writer.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use http::{HeaderMap, StatusCode};
use onlyonce::{Engine, EngineOptions, Policy, worker::reap};
use onlyonce_core::{
    AttemptId, Fingerprint, Key, Recipe, Record, Scope, State, StoredResponse, Timestamp,
    machine::{self, End, Request, Settlement},
    record::StoredBody,
};
use onlyonce_store::{Inserted, Store, sqlite::SqliteStore};

/// Keys that have expired.
const EXPIRED: u64 = 2_000;
/// Of them, those that one request may have to wait for at most: some groups of the reaper.
const AHEAD_AT_MOST: u64 = 200;

/// A reservation of `key`.
async fn reserve(store: &dyn Store, key: &str, policy: &Policy) -> Record {
    let (scope, key) = (Scope::global(), Key::from_stored(key));
    let request = Request {
        id: store.secret().record_id(scope.as_str(), &key),
        scope,
        key,
        fingerprint: Fingerprint([7; 32]),
        recipe: Recipe::default().id(),
        caller: None,
        attempt_id: AttemptId(1),
        route: "r".into(),
        method: "POST".into(),
        path: "/payments".into(),
        other_mark: None,
        notes: onlyonce_core::record::Notes::default(),
    };
    let inserted = store.insert_or_get(machine::first(&request, policy)).await;
    match inserted.unwrap().value {
        Inserted::New(record) => record,
        Inserted::Existing(_) => panic!("the key was there already"),
    }
}

/// A key that has its answer, and whose time is over at once.
async fn expired(store: &dyn Store, key: &str) {
    let policy = Policy::builder().ttl(Duration::ZERO).build();
    let record = reserve(store, key, &policy).await;
    let answer = Settlement::Complete(Arc::new(StoredResponse {
        status: StatusCode::CREATED,
        headers: HeaderMap::new(),
        body: StoredBody::Full {
            bytes: "done".into(),
            trailers: None,
        },
    }));
    let Some(change) = machine::apply(
        Some(&record),
        &End {
            attempt: record.attempt_id,
            settlement: &answer,
        },
        Timestamp::default(),
        &policy,
    )
    .swapped() else {
        panic!("the attempt owns its key");
    };
    store.swap(record.revision, change).await.unwrap();
}

/// Goal: removing what has expired, however much it is, locks no request out.
///
/// Method: 2,000 expired keys; one walk of the reaper, and requests that reserve one new key after the
/// other meanwhile.
/// Evidence: between the beginning and the end of no reservation more keys are removed than some groups of
/// the reaper hold; all of the expired are removed in the end, and all of the new are there.
#[tokio::test]
async fn requests_go_on_while_it_removes() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(SqliteStore::open(&folder.path().join("store.db")).unwrap());
    let keys: Vec<String> = (0..EXPIRED).map(|number| format!("old-{number}")).collect();
    join_all(keys.iter().map(|key| expired(&*store, key))).await;
    let engine = Engine::start(store.clone(), EngineOptions::default());
    let left = async || store.counts().await.unwrap()[&State::Completed];
    assert_eq!(left().await, EXPIRED);

    let policy = Policy::default();
    let (mut reserved, mut most_ahead) = (0, 0);
    let requests = async {
        let mut before = left().await;
        while before > 0 {
            reserve(&*store, &format!("new-{reserved}"), &policy).await;
            reserved += 1;
            let now = left().await;
            most_ahead = most_ahead.max(before - now);
            before = now;
        }
    };
    let (removed, ()) = tokio::join!(reap::run_once(&engine), requests);
    let (removed, _) = removed.unwrap();
    println!("{removed} removed, {reserved} reserved meanwhile, at most {most_ahead} ahead of one");
    assert!(
        most_ahead <= AHEAD_AT_MOST,
        "a request waited while {most_ahead} keys were removed"
    );
    assert_eq!(removed as u64, EXPIRED);
    assert_eq!(store.counts().await.unwrap()[&State::InProgress], reserved);
}
