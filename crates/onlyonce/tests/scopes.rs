//! Which scopes the store knows: those of new keys before there is a record, those of old ones by a look
//! at all of them.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use onlyonce::{Engine, EngineOptions, Policy};
use onlyonce_core::{
    AttemptId, Fingerprint, Key, Recipe, Scope, Secret,
    machine::{self, Request},
};
use onlyonce_store::{
    Filter, SCOPES_KNOWN, Store, clock::StoreClock, find, memory::MemoryStore, scope_id,
};

const HOUR: i64 = 3_600_000;

/// A record as an earlier version makes it, which tells the store of no scope.
async fn reserve(store: &dyn Store, scope: &Scope, key: &str) {
    let key = Key::from_stored(key);
    let request = Request {
        id: store.secret().record_id(scope.as_str(), &key),
        scope: scope.clone(),
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
    let draft = machine::first(&request, &Policy::default());
    store.insert_or_get(draft).await.unwrap();
}

async fn scopes(store: &dyn Store) -> Vec<String> {
    let known = store.scopes(None).await.unwrap().unwrap();
    let mut names: Vec<String> = known.into_iter().map(|(_, name)| name).collect();
    names.sort();
    names
}

async fn mark(store: &dyn Store) -> Option<String> {
    let mark = store.block(SCOPES_KNOWN).await.unwrap();
    mark.map(|mark| String::from_utf8(mark).unwrap())
}

fn engine() -> (Engine, Arc<MemoryStore>, Arc<AtomicI64>) {
    let hand = Arc::new(AtomicI64::new(1_000 * HOUR));
    let clock = StoreClock::by_hand(hand.clone());
    let store = Arc::new(MemoryStore::with(Secret::from_bytes([7; 32]), clock));
    let engine = Engine::start(store.clone(), EngineOptions::default());
    (engine, store, hand)
}

/// Goal: keys of an earlier version are found at every moment of an upgrade.
///
/// Method: records that no scope was told for; the look at all of them; then more of them beside it, as a
/// gateway of the earlier version makes them, for a day and longer.
/// Evidence: what a search finds, and the scopes that the store knows.
#[tokio::test(start_paused = true)]
async fn the_scopes_of_old_records_become_known() {
    let (engine, store, hand) = engine();
    let of_k = Filter {
        key: Some(Key::from_stored("k")),
        ..Filter::default()
    };
    let found = async || find(&*store, &of_k, None, 10).await.unwrap().items.len();
    for number in 0..1_100 {
        reserve(
            &*store,
            &Scope::client(&format!("c{}", number % 3)),
            &format!("x{number}"),
        )
        .await;
    }
    reserve(&*store, &Scope::client("c1"), "k").await;
    assert_eq!((found().await, mark(&*store).await), (1, None));
    assert_eq!(engine.learn_scopes().await.unwrap(), 3);
    assert_eq!(
        scopes(&*store).await,
        ["client:c0", "client:c1", "client:c2"]
    );
    assert_eq!(mark(&*store).await, Some((1_000 * HOUR).to_string()));
    assert_eq!(found().await, 1);
    // A gateway of the earlier version goes on for a while.
    reserve(&*store, &Scope::client("late"), "k").await;
    assert_eq!(found().await, 1);
    assert_eq!(engine.learn_scopes().await.unwrap(), 1);
    assert_eq!(found().await, 2);
    // And is taken to be gone after a day, by the store's clock.
    let other = Engine::start(store.clone(), EngineOptions::default());
    hand.store(1_025 * HOUR, Ordering::SeqCst);
    reserve(&*store, &Scope::client("too-late"), "k").await;
    assert_eq!(other.learn_scopes().await.unwrap(), 0);
    assert_eq!(found().await, 2);
}

/// Goal: a new store is not walked again.
#[tokio::test]
async fn an_empty_store_knows_all_its_scopes() {
    let (engine, store, _) = engine();
    assert_eq!(engine.learn_scopes().await.unwrap(), 0);
    assert_eq!(mark(&*store).await.as_deref(), Some("0"));
    let global = scope_id(store.secret(), &Scope::global());
    store.keep_scope(global, "global").await.unwrap();
    reserve(&*store, &Scope::client("untold"), "k").await;
    assert_eq!(engine.learn_scopes().await.unwrap(), 0);
    assert_eq!(scopes(&*store).await, ["global"]);
}

/// Goal: the scopes that a client has on routes are found by marks, those of an earlier version as well, and
/// no other scope is read for it.
///
/// Method: a scope that an earlier version made known without a mark; then one that the engine makes known;
/// then one that nobody marked.
/// Evidence: what is found of the client's key, and of all his keys.
#[tokio::test]
async fn routes_become_known() {
    let (engine, store, _) = engine();
    let keep = async |scope: &Scope| {
        let id = scope_id(store.secret(), scope);
        store.keep_scope(id, scope.as_str()).await.unwrap();
    };
    let of_me = Filter {
        client: Some("me".into()),
        ..Filter::default()
    };
    let of_key = Filter {
        key: Some(Key::from_stored("k")),
        ..of_me.clone()
    };
    let found = async || {
        let (keys, all) = (
            find(&*store, &of_key, None, 10).await.unwrap(),
            find(&*store, &of_me, None, 10).await.unwrap(),
        );
        (keys.items.len(), all.items.len())
    };
    let old = Scope::route("old", Some("me"));
    keep(&old).await;
    reserve(&*store, &old, "k").await;
    reserve(&*store, &Scope::client("me"), "other").await;
    store.keep_block(SCOPES_KNOWN, b"0").await.unwrap();
    assert_eq!(found().await, (1, 2));
    engine.learn_scopes().await.unwrap();
    let known = store.block(onlyonce_store::ROUTES_KNOWN).await.unwrap();
    assert!(known.is_some());
    let (mark, _) = onlyonce_store::mark_of(store.secret(), &old).unwrap();
    assert_eq!(store.scopes(None).await.unwrap().unwrap()[0].0, mark);
    assert_eq!(found().await, (1, 2));
    let unmarked = Scope::route("unmarked", Some("me"));
    keep(&unmarked).await;
    reserve(&*store, &unmarked, "k").await;
    assert_eq!(found().await, (1, 2));
    // Gateways of an earlier version are beside it for a day.
    engine.learn_scopes().await.unwrap();
    assert_eq!(found().await, (2, 3));
}
