//! What lies on the disk: that it can be read by whoever has the keys, and that nobody is given what
//! belongs to somebody else.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{sync::Arc, time::Duration};

use http::{HeaderValue, StatusCode, header};
use onlyonce_core::{
    AttemptId, Fingerprint, Key, Policy, Recipe, Record, Scope, StoredResponse, Timestamp,
    machine::{self, End, Request, Settlement},
    record::{Actor, Draft, JournalEntry, JournalEvent, StoredBody},
};
use onlyonce_store::{
    Filter, Inserted, Store, StoreError, Swapped,
    at_rest::{AtRest, AtRestOptions, Compression, Keyring},
    memory::MemoryStore,
    sqlite::SqliteStore,
};

const ONE: &str = "one:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const TWO: &str = "two:HxscHRoZGBcWFRQTEhEQDw4NDAsKCQgHBgUEAwIBAAA=";

async fn open(inner: &Arc<dyn Store>, keys: Option<&str>, how: Compression) -> Arc<dyn Store> {
    let options = AtRestOptions {
        keys: keys.map(|keys| Keyring::parse(keys).unwrap()),
        compression: how,
    };
    Arc::new(AtRest::open(inner.clone(), options).await.unwrap())
}

fn draft(store: &dyn Store, scope: &Scope, key: &str) -> Draft {
    let key = Key::from_stored(key);
    let id = store.secret().record_id(scope.as_str(), &key);
    let request = Request {
        id,
        scope: scope.clone(),
        key,
        fingerprint: Fingerprint([7; 32]),
        recipe: Recipe::default().id(),
        caller: None,
        attempt_id: AttemptId(u128::from_be_bytes(id.0)),
        route: "r".into(),
        method: "POST".into(),
        path: "/pay?canary=path-canary".into(),
        other_mark: None,
        notes: onlyonce_core::record::Notes::default(),
    };
    machine::first(&request, &Policy::default())
}

async fn reserve(store: &dyn Store, scope: &Scope, key: &str) -> Record {
    match store
        .insert_or_get(draft(store, scope, key))
        .await
        .unwrap()
        .value
    {
        Inserted::New(record) => record,
        Inserted::Existing(record) => panic!("the key was there: {record:?}"),
    }
}

fn answer(body: &str) -> Arc<StoredResponse> {
    let mut response = StoredResponse::plain(StatusCode::CREATED, body.to_owned());
    let place = HeaderValue::from_static("/payments/header-canary");
    response.headers.insert(header::LOCATION, place);
    Arc::new(response)
}

async fn complete(store: &dyn Store, record: &Record, body: &str) -> Record {
    let settlement = Settlement::Complete(answer(body));
    let settled = machine::apply(
        Some(record),
        &End {
            attempt: record.attempt_id,
            settlement: &settlement,
        },
        Timestamp::default(),
        &Policy::default(),
    );
    let Some(mut change) = settled.swapped() else {
        panic!("it was reserved")
    };
    change.journal.push(JournalEntry {
        id: record.id,
        event: JournalEvent::Resolved,
        from: None,
        to: None,
        attempt: 1,
        actor: Actor::Operator,
        detail: Some("detail-canary".to_owned()),
    });
    match store.swap(record.revision, change).await.unwrap().value {
        Swapped::Done(record) => record,
        other => panic!("{other:?}"),
    }
}

async fn found(store: &dyn Store, scope: &Scope, key: &str) -> Result<Option<Record>, StoreError> {
    let id = store
        .secret()
        .record_id(scope.as_str(), &Key::from_stored(key));
    store.lookup(id).await.map(|reply| reply.value)
}

fn body(record: &Record) -> &[u8] {
    match &record.response.as_ref().unwrap().body {
        StoredBody::Full { bytes, .. } => bytes,
        other => panic!("{other:?}"),
    }
}

/// Goal: nothing that a client said or was told lies in the file, and all of it comes back.
///
/// Method: keys with canaries in client, key, path, header, body and audit, in SQLite with keys.
/// Evidence: neither the file nor its log holds one; lookups, lists by client and by key, and the
/// history do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_holds_no_canary() {
    let folder = tempfile::tempdir().unwrap();
    let inner: Arc<dyn Store> =
        Arc::new(SqliteStore::open(&folder.path().join("store.db")).unwrap());
    let store = open(&inner, Some(ONE), Compression::Zstd).await;
    let scope = Scope::client("client-canary");
    let long = format!("body-canary {}", "x".repeat(400));
    for (key, text) in [("key-canary-1", "body-canary"), ("key-canary-2", &long)] {
        let record = reserve(&*store, &scope, key).await;
        let done = complete(&*store, &record, text).await;
        assert_eq!(body(&done), text.as_bytes());
    }
    reserve(&*store, &scope, "key-canary-3").await;
    let mut looked_at = 0;
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        looked_at += bytes.len();
        let holds = bytes.windows(6).any(|window| window == b"canary");
        assert!(!holds, "a canary lies in the open");
    }
    assert!(looked_at > 4_096, "only {looked_at} bytes were looked at");

    let record = found(&*store, &scope, "key-canary-2")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(body(&record), long.as_bytes());
    assert_eq!(&*record.path, "/pay?canary=path-canary");
    assert_eq!(record.response.as_ref().unwrap().headers.len(), 1);
    let filter = |client: Option<&str>, key: Option<&str>| Filter {
        client: client.map(str::to_owned),
        key: key.map(Key::from_stored),
        ..Filter::default()
    };
    let by_client = store
        .list(&filter(Some("client-canary"), None), None, 10)
        .await
        .unwrap();
    assert_eq!(by_client.items.len(), 3);
    assert_eq!(
        by_client.items[1].response,
        Some((StatusCode::CREATED, long.len() as u64))
    );
    let by_key = store
        .list(&filter(None, Some("key-canary-1")), None, 10)
        .await
        .unwrap();
    assert_eq!(by_key.items[0].record.scope, scope);
    let nobody = store
        .list(&filter(Some("somebody"), None), None, 10)
        .await
        .unwrap();
    assert!(nobody.items.is_empty());
    assert_eq!(store.live(&scope, None, 10).await.unwrap(), 1);
    let history = store.history(record.id).await.unwrap();
    assert_eq!(history[0].entry.detail.as_deref(), Some("detail-canary"));
}

/// Goal: rows from before there were keys are read and listed, and no row is read without its keys.
#[tokio::test]
async fn keys_come_and_go() {
    let inner: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let plain = open(&inner, None, Compression::Zstd).await;
    let scope = Scope::client("a");
    let before = reserve(&*plain, &scope, "before").await;
    complete(&*plain, &before, &"b".repeat(300)).await;
    let running = reserve(&*plain, &scope, "running").await;

    let one = open(&inner, Some(ONE), Compression::Zstd).await;
    let after = reserve(&*one, &scope, "after").await;
    complete(&*one, &after, "after").await;
    for key in ["before", "running"] {
        let again = one.insert_or_get(draft(&*one, &scope, key)).await.unwrap();
        assert!(matches!(again.value, Inserted::Existing(_)), "{key}");
    }
    complete(&*one, &running, "late").await;
    let of_client = Filter {
        client: Some("a".to_owned()),
        ..Filter::default()
    };
    let mut keys = Vec::new();
    let mut cursor = None;
    loop {
        let page = one.list(&of_client, cursor, 1).await.unwrap();
        keys.extend(
            page.items
                .iter()
                .map(|item| item.record.key.as_str().to_owned()),
        );
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    keys.sort();
    assert_eq!(keys, ["after", "before", "running"]);

    let without = open(&inner, None, Compression::Zstd).await;
    let refused = found(&*without, &scope, "after").await;
    assert!(
        matches!(refused, Err(StoreError::Unreadable(_))),
        "{refused:?}"
    );
    assert!(found(&*without, &scope, "before").await.unwrap().is_some());
    let options = AtRestOptions {
        keys: Some(Keyring::parse(TWO).unwrap()),
        compression: Compression::Zstd,
    };
    let another = AtRest::open(inner.clone(), options).await;
    assert!(another.is_err(), "keys that never were this store's");
    // The second key is made known first, then it becomes the first; the old one still reads.
    let both = open(&inner, Some(&format!("{ONE},{TWO}")), Compression::Zstd).await;
    let rotated = open(&inner, Some(&format!("{TWO},{ONE}")), Compression::Zstd).await;
    let newer = reserve(&*rotated, &scope, "newer").await;
    complete(&*rotated, &newer, "newer").await;
    assert!(found(&*both, &scope, "newer").await.unwrap().is_some());
    let unknown = found(&*one, &scope, "newer").await;
    assert!(
        matches!(unknown, Err(StoreError::Unreadable(_))),
        "{unknown:?}"
    );
    let found = found(&*rotated, &scope, "after").await.unwrap().unwrap();
    assert_eq!(body(&found), b"after");
    assert_eq!(
        rotated
            .list(&of_client, None, 10)
            .await
            .unwrap()
            .items
            .len(),
        4
    );
}

/// Goal: an answer that was put into another row, or another generation, is nobody's.
///
/// Method: the rows of two keys swap their answers, then their names, under the wrapper.
/// Evidence: both lookups are errors, and neither gives the other's answer.
#[tokio::test]
async fn a_moved_ciphertext_opens_nowhere() {
    let inner: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let store = open(&inner, Some(ONE), Compression::Zstd).await;
    let scope = Scope::client("a");
    let mut rows = Vec::new();
    for key in ["x", "y"] {
        let record = reserve(&*store, &scope, key).await;
        complete(&*store, &record, key).await;
        rows.push(inner.lookup(record.id).await.unwrap().value.unwrap());
    }
    let put = async |row: &Record, like: &dyn Fn(&mut Record)| {
        let current = inner.lookup(row.id).await.unwrap().value.unwrap();
        let mut changed = Draft::after(&current);
        like(&mut changed.record);
        let change = onlyonce_core::record::Change {
            draft: Box::new(changed),
            journal: Vec::new(),
        };
        let swapped = inner.swap(current.revision, change).await.unwrap().value;
        assert!(matches!(swapped, Swapped::Done(_)));
    };
    for (at, other) in [(0, 1), (1, 0)] {
        put(&rows[at], &|record| {
            record.response = rows[other].response.clone()
        })
        .await;
    }
    for key in ["x", "y"] {
        let refused = found(&*store, &scope, key).await;
        assert!(
            matches!(refused, Err(StoreError::Unreadable(_))),
            "{refused:?}"
        );
    }
    put(&rows[0], &|record| {
        record.response = rows[0].response.clone();
        record.path = rows[1].path.clone();
    })
    .await;
    assert!(matches!(
        found(&*store, &scope, "x").await,
        Err(StoreError::Unreadable(_))
    ));
    put(&rows[0], &|record| record.path = rows[0].path.clone()).await;
    assert_eq!(
        body(&found(&*store, &scope, "x").await.unwrap().unwrap()),
        b"x"
    );
    put(&rows[0], &|record| record.generation += 1).await;
    assert!(matches!(
        found(&*store, &scope, "x").await,
        Err(StoreError::Unreadable(_))
    ));
}

/// Goal: a dictionary is trained, kept before it is used, and found by a process that never saw it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dictionaries_are_trained_and_found() {
    let inner: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let store = open(&inner, Some(ONE), Compression::Dictionary).await;
    let scope = Scope::client("a");
    let text = |number: usize| {
        format!(
            r#"{{"shipment":"shp_{:016x}","stage":"handed over to the carrier","parcels":{},"insured":true,"service":"overnight with signature","carrier":"north sea couriers","hub":"rotterdam europoort","label":"https://labels.example.org/{:032x}"}}"#,
            number * 2_654_435_761,
            number % 7,
            (number as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834)
        )
    };
    let stored = async |key: &str| {
        let id = inner
            .secret()
            .record_id(scope.as_str(), &Key::from_stored(key));
        let record = inner.lookup(id).await.unwrap().value.unwrap();
        match &record.response.as_ref().unwrap().body {
            StoredBody::Packed { block, .. } => block.len(),
            other => panic!("{other:?}"),
        }
    };
    let mut sizes = Vec::new();
    for number in 0..4_000 {
        let key = format!("k{number}");
        let record = reserve(&*store, &scope, &key).await;
        complete(&*store, &record, &text(number)).await;
        sizes.push(stored(&key).await);
        if number % 50 == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if number > 600 && sizes[number] * 3 < sizes[0] * 2 {
            break;
        }
    }
    let last = sizes.len() - 1;
    assert!(
        sizes[last] * 3 < sizes[0] * 2,
        "from {} to {} bytes",
        sizes[0],
        sizes[last]
    );
    let elsewhere = open(&inner, Some(ONE), Compression::None).await;
    for number in [0, last] {
        let key = format!("k{number}");
        let record = found(&*elsewhere, &scope, &key).await.unwrap().unwrap();
        assert_eq!(body(&record), text(number).as_bytes());
    }
}

/// Goal: what lies beside the store opens for its record alone.
#[tokio::test]
async fn files_beside_the_store() {
    let inner: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let store = open(&inner, Some(ONE), Compression::Zstd).await;
    let id = draft(&*store, &Scope::global(), "k").record.id;
    let other = draft(&*store, &Scope::global(), "l").record.id;
    let hidden = store.conceal(id, b"file-canary".to_vec());
    assert!(!hidden.windows(6).any(|window| window == b"canary"));
    assert_eq!(store.reveal(id, hidden.clone()).unwrap(), b"file-canary");
    assert!(store.reveal(other, hidden.clone()).is_err());
    assert_eq!(store.reveal(id, b"older".to_vec()).unwrap(), b"older");
    let plain = open(&inner, None, Compression::Zstd).await;
    assert!(
        plain.reveal(id, hidden).is_err(),
        "without keys nothing opens"
    );
}
