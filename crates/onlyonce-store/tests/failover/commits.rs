//! Who may count on a record whose commit did not wait to its end.

use std::sync::Arc;

use http::StatusCode;
use onlyonce_core::{
    AttemptId, Policy, RecordId, StoredResponse, Timestamp,
    machine::{self, End, Settlement},
    record::Change,
};
use onlyonce_store::{
    Filter, Inserted, Store, StoreError, Swapped,
    postgres::{Pooler, PostgresOptions, PostgresStore},
    transactional::{Isolation, TransactionalStore as _},
};
use onlyonce_testkit::{
    servers::{PgBouncer, Postgres},
    tcp_faults::{FaultProxy, Mode},
};
use sqlx::postgres::PgPoolOptions;

use super::{LOOK_EVERY, TIMEOUT, WAITING, becomes, draft, eventually, set};

/// A primary whose commits wait for a standby, and a way to keep them apart.
struct Pair {
    primary: Arc<Postgres>,
    proxy: FaultProxy,
    _standby: Postgres,
}

impl Pair {
    async fn start() -> Self {
        let primary = tokio::task::block_in_place(Postgres::start);
        let proxy = FaultProxy::start(primary.port()).await;
        let standby = tokio::task::block_in_place(|| primary.standby_through(proxy.port(), "one"));
        set(&primary, "synchronous_standby_names = 'one'");
        // Whoever does not want to hear of warnings is told all the same.
        primary.sql("ALTER ROLE onlyonce SET client_min_messages = error");
        becomes(&primary, "sync").await;
        Self {
            primary: Arc::new(primary),
            proxy,
            _standby: standby,
        }
    }

    async fn store(&self, port: u16, pooler: Pooler) -> PostgresStore {
        let options = PostgresOptions {
            timeout: TIMEOUT,
            pooler,
            ..PostgresOptions::default()
        };
        let url = self.primary.url_at(port);
        PostgresStore::open(&url, &options).await.unwrap()
    }

    /// From now on commits wait until somebody stops them.
    fn apart(&self) {
        self.proxy.set(Mode::Silent);
    }

    async fn together(&self) {
        self.proxy.set(Mode::Pass);
        // What was lost on the way is sent again on a new connection only.
        self.proxy.cut();
        becomes(&self.primary, "sync").await;
    }

    /// What `work` comes to while whoever waits is told to stop, with `pg_cancel_backend` or
    /// `pg_terminate_backend`.
    async fn stopped<T>(&self, how: &str, work: impl Future<Output = T>) -> T {
        let sql = format!("SELECT {how}(pid) {}", anybody());
        let mut work = std::pin::pin!(work);
        loop {
            match tokio::time::timeout(LOOK_EVERY, &mut work).await {
                Ok(told) => return told,
                Err(_) => drop(self.primary.sql(&sql)),
            }
        }
    }
}

/// Sessions of applications count, too.
fn anybody() -> &'static str {
    WAITING.split(" AND").next().unwrap()
}

fn completion(store: &dyn Store, key: &str, attempt: u128) -> (RecordId, Change) {
    let mut record = draft(store, key, attempt).record;
    record.times = onlyonce_core::record::Times::default();
    let answer = Arc::new(StoredResponse::plain(StatusCode::CREATED, "paid"));
    let settlement = Settlement::Complete(answer);
    let settled = machine::apply(
        Some(&record),
        &End {
            attempt: AttemptId(attempt),
            settlement: &settlement,
        },
        Timestamp::default(),
        &Policy::default(),
    );
    match settled.swapped() {
        Some(change) => (record.id, change),
        other => panic!("{other:?}"),
    }
}

/// One pair of servers for all of them: what they do to it, they undo.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_did_not_wait() {
    let pair = Pair::start().await;
    a_commit_that_did_not_wait_is_no_success(&pair).await;
    a_transaction_that_did_not_wait_is_no_success(&pair).await;
    a_standby_that_is_gone_piles_up_no_sessions(&pair).await;
}

/// Goal: a commit that did not wait to its end is no success, and what it left is not read as if it were.
///
/// Method: the session of an insert is told to stop waiting, or is ended. Then this store looks, and so does
/// another one that has seen nothing of it, with the same attempt. The same for a completion, and behind a
/// pooler. Then the standby is back.
/// Evidence: what they are told while the standby is away, though the row is there for everybody; and then.
async fn a_commit_that_did_not_wait_is_no_success(pair: &Pair) {
    let bouncer = PgBouncer::start(&pair.primary);
    let direct = (pair.primary.port(), Pooler::None);
    let pooled = (bouncer.port(), Pooler::Transaction);
    for (name, how, (port, pooler)) in [
        ("cancelled", "pg_cancel_backend", direct),
        ("ended", "pg_terminate_backend", direct),
        ("pooled", "pg_cancel_backend", pooled),
    ] {
        let store = pair.store(port, pooler).await;
        let other = pair.store(port, pooler).await;
        let fresh = draft(&store, name, 1);
        let id = fresh.record.id;

        pair.apart();
        let told = pair.stopped(how, store.insert_or_get(fresh)).await;
        let is_ambiguous = matches!(told, Err(StoreError::Ambiguous(_)));
        assert!(is_ambiguous, "{name}: {told:?}");
        let row = format!("SELECT count(*) FROM onlyonce.live WHERE key = '{name}'");
        assert_eq!(pair.primary.sql(&row), "1", "{name}: everybody can read it");
        let looked = store.lookup(id).await;
        assert!(looked.is_err(), "{name}: {looked:?}");
        let listed = store.list(&Filter::default(), None, 10).await;
        assert!(listed.is_err(), "{name}: {listed:?}");
        let again = other.insert_or_get(draft(&other, name, 1)).await;
        let is_ambiguous = matches!(again, Err(StoreError::Ambiguous(_)));
        assert!(is_ambiguous, "{name}: {again:?}");

        pair.together().await;
        eventually("an answer", async || store.lookup(id).await.is_ok()).await;
        let again = other.insert_or_get(draft(&other, name, 1)).await.unwrap();
        assert!(matches!(again.value, Inserted::Existing(_)), "{name}");

        // The completion fares likewise.
        let (_, change) = completion(&store, name, 1);
        let expected = draft(&store, name, 1).record.revision;
        pair.apart();
        let swap = store.swap(expected, change.clone());
        let told = pair.stopped(how, swap).await;
        let is_ambiguous = matches!(told, Err(StoreError::Ambiguous(_)));
        assert!(is_ambiguous, "{name}: {told:?}");
        let again = other.swap(expected, change.clone()).await;
        let is_ambiguous = matches!(again, Err(StoreError::Ambiguous(_)));
        assert!(is_ambiguous, "{name}: {again:?}");
        pair.together().await;
        let again = other.swap(expected, change).await.unwrap();
        assert!(matches!(again.value, Swapped::Conflict(_)), "{name}");
    }
}

/// Goal: an application's own transaction that did not wait to its end is no success either.
///
/// Method: a transaction of the application's pool holds a key, and its session is told to stop waiting.
/// Evidence: the commit is an error that says nothing of what was written, and it is not confirmed until
/// the standby is back.
async fn a_transaction_that_did_not_wait_is_no_success(pair: &Pair) {
    let store = pair.store(pair.primary.port(), Pooler::None).await;
    let fresh = draft(&store, "k", 1);
    let id = fresh.record.id;
    store.insert_or_get(fresh).await.unwrap();
    let pool = PgPoolOptions::new().connect(&pair.primary.url()).await;
    let transactions = store.transactions(pool.unwrap());
    let mut open = transactions.begin(Isolation::ReadCommitted).await.unwrap();
    transactions.lock(&mut open, id).await.unwrap();
    let (_, change) = completion(&store, "k", 1);
    let expected = draft(&store, "k", 1).record.revision;
    transactions
        .swap(&mut open, expected, &change)
        .await
        .unwrap();

    pair.apart();
    let told = pair
        .stopped("pg_cancel_backend", transactions.commit(open))
        .await;
    let error = told.unwrap_err();
    assert!(!error.is_conflict(), "{error:?}");
    let looked = store.lookup(id).await;
    assert!(looked.is_err(), "{looked:?}");
    let confirmed = pair
        .stopped("pg_cancel_backend", transactions.confirm())
        .await;
    assert!(confirmed.is_err());

    pair.together().await;
    transactions.confirm().await.unwrap();
    eventually("an answer", async || store.lookup(id).await.is_ok()).await;
}

/// Goal: where the standby is gone, no session is left behind for every request.
///
/// Method: the standby is cut off; requests come one after the other.
/// Evidence: only the first ones wait at the server; the others are refused, with nothing written.
async fn a_standby_that_is_gone_piles_up_no_sessions(pair: &Pair) {
    let store = pair.store(pair.primary.port(), Pooler::None).await;
    pair.proxy.set(Mode::Refuse);
    pair.proxy.cut();
    becomes(&pair.primary, "").await;
    let waiting = format!("SELECT count(*) {WAITING}");
    assert_eq!(pair.primary.sql(&waiting), "0");
    for number in 0..20 {
        let told = store
            .insert_or_get(draft(&store, &format!("gone-{number}"), 1))
            .await;
        let wrote_nothing = matches!(told, Err(StoreError::Unavailable(_)));
        assert!(wrote_nothing || number < 2, "{number}: {told:?}");
    }
    let waiting: usize = pair.primary.sql(&waiting).parse().unwrap();
    assert!(waiting <= 2, "{waiting} sessions wait");
}
