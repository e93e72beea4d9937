use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use onlyonce_core::{
    AttemptId, Fingerprint, Key, Policy, Recipe, Scope,
    machine::{self, Request},
    record::{Draft, Notes},
};

use super::*;
use crate::{
    Inserted, Store as _,
    sqlite::{SqliteStore, schema},
};

/// Ids as in a store: hashes.
fn ids(count: u64) -> impl Iterator<Item = RecordId> {
    let secret = crate::random_secret();
    (0..count).map(move |number| {
        let key = Key::from_stored(&number.to_string());
        secret.record_id("global", &key)
    })
}

pub(crate) fn draft(store: &SqliteStore, key: &str) -> Draft {
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
        path: "/".into(),
        other_mark: None,
        notes: Notes::default(),
    };
    machine::first(&request, &Policy::default())
}

async fn insert(store: &SqliteStore, key: &str) -> RecordId {
    let inserted = store.insert_or_get(draft(store, key)).await.unwrap().value;
    match inserted {
        Inserted::New(record) => record.id,
        Inserted::Existing(_) => panic!("the key was there already"),
    }
}

/// Goal: every id that was added is found, and few others are, even in a full filter.
#[test]
fn what_was_added_is_found() {
    let filter = Filter::for_ids(0);
    let (added, others): (Vec<_>, Vec<_>) = ids(2 * LEAST_ROOM)
        .enumerate()
        .partition(|(index, _)| index % 2 == 0);
    for (_, id) in &added {
        assert!(!filter.is_full());
        filter.add(*id);
    }
    assert!(added.iter().all(|(_, id)| filter.may_hold(*id)));
    let in_vain = others.iter().filter(|(_, id)| filter.may_hold(*id)).count();
    assert!(in_vain < others.len() / 50, "{in_vain} of {}", others.len());
    filter.add(others[0].1);
    assert!(filter.is_full());
    let too_many = Filter::for_ids(MAX_IDS + 1);
    too_many.add(added[0].1);
    assert!(!too_many.is_of_use() && too_many.may_hold(others[0].1));
}

/// Goal: the first lookup finds a record as soon as it is committed, in this session and in the next.
#[tokio::test]
async fn a_first_look_finds_what_is_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let store = SqliteStore::open(&path).unwrap();
    let absent = draft(&store, "absent").record.id;
    let mut inserted = Vec::new();
    for number in 0..20 {
        inserted.push(insert(&store, &number.to_string()).await);
    }
    let holds = |store: &SqliteStore| {
        assert!(inserted.iter().all(|id| store.peek(*id).is_some()));
        assert!(store.peek(absent).is_none());
    };
    holds(&store);
    drop(store);
    holds(&SqliteStore::open(&path).unwrap());
}

/// Goal: a rebuilt filter misses no record, however the rebuild and insertions interleave.
///
/// Method: one thread rebuilds the filter repeatedly while keys are inserted. Evidence: every key in the file
/// is in the filter, whenever that is checked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn made_anew_it_misses_nothing() {
    const KEYS: usize = 400;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let store = Arc::new(SqliteStore::open(&path).unwrap());
    let (goes_on, made) = (AtomicBool::new(true), AtomicU64::new(0));
    let shared = Arc::new((goes_on, made));
    let (making, of) = (shared.clone(), store.clone());
    let maker = tokio::task::spawn_blocking(move || {
        let reader = schema::connect_to_read(Path::new(&path)).unwrap();
        while making.0.load(Ordering::Relaxed) {
            // As if the filter were full.
            let room = of.known_ids.filters.read().current.room;
            of.known_ids
                .filters
                .read()
                .current
                .added
                .store(room + 1, Ordering::Relaxed);
            of.known_ids.renew(&reader, &of.writer, || true).unwrap();
            making.1.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut inserted = Vec::new();
    for number in 0..KEYS {
        inserted.push(insert(&store, &number.to_string()).await);
        let missed = inserted.iter().find(|id| store.peek(**id).is_none());
        assert_eq!(missed, None, "after {number}");
    }
    // At least once while there was a record to miss.
    while shared.1.load(Ordering::Relaxed) < 3 {
        tokio::task::yield_now().await;
    }
    shared.0.store(false, Ordering::Relaxed);
    maker.await.unwrap();
    assert!(inserted.iter().all(|id| store.peek(*id).is_some()));
    assert!(!store.known_ids.filters.read().current.is_full());
}
