//! What is left of acknowledged writes when a primary dies, and whether the level said so before.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod commits;
mod levels;
mod mariadb;
mod postgres;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use onlyonce_core::{
    AttemptId, Fingerprint, Key, Policy, Recipe, Scope,
    machine::{self, Request},
    record::Draft,
};
use onlyonce_store::{
    Inserted, Store, StoreError,
    postgres::{PostgresOptions, PostgresStore},
};
use onlyonce_testkit::servers::Postgres;

/// How long a call may take.
const TIMEOUT: Duration = Duration::from_millis(500);
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(5);
const WRITERS: usize = 6;
/// How often a writer asks again, as the engine does, before it gives its client an error.
const TRIES: usize = 3;

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !holds().await {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    });
    assert!(waited.await.is_ok(), "waited for {what} in vain");
}

fn draft(store: &dyn Store, key: &str, attempt: u128) -> Draft {
    let key = Key::from_stored(key);
    let scope = Scope::global();
    let request = Request {
        id: store.secret().record_id(scope.as_str(), &key),
        scope,
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

/// Writers that take a key for reserved as the engine does: when the insert says so, or when it finds its
/// own attempt there after an answer that was lost.
struct Writers {
    stop: Arc<AtomicBool>,
    reserved: Arc<Mutex<BTreeSet<String>>>,
    ambiguous: Arc<AtomicUsize>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Writers {
    /// Writers whose keys begin with `name`.
    fn start(store: &Arc<dyn Store>, name: &'static str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let reserved = Arc::new(Mutex::new(BTreeSet::new()));
        let ambiguous = Arc::new(AtomicUsize::new(0));
        let tasks = (0..WRITERS).map(|writer| {
            let (store, stop) = (Arc::clone(store), Arc::clone(&stop));
            let (reserved, ambiguous) = (Arc::clone(&reserved), Arc::clone(&ambiguous));
            tokio::spawn(async move {
                for number in 0_u64.. {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let key = format!("{name}-{writer}-{number}");
                    let attempt = (u128::from(number + 1) << 8) | writer as u128;
                    if reserve(&*store, &key, attempt, &ambiguous).await {
                        reserved.lock().unwrap().insert(key);
                    }
                }
            })
        });
        let tasks = tasks.collect();
        Self {
            stop,
            reserved,
            ambiguous,
            tasks,
        }
    }

    fn reserved(&self) -> usize {
        self.reserved.lock().unwrap().len()
    }

    async fn more(&self, count: usize) {
        let enough = self.reserved() + count;
        eventually("reservations", async || self.reserved() >= enough).await;
    }

    /// What they took for reserved.
    async fn end(self) -> BTreeSet<String> {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.unwrap();
        }
        self.reserved.lock().unwrap().clone()
    }
}

async fn reserve(store: &dyn Store, key: &str, attempt: u128, ambiguous: &AtomicUsize) -> bool {
    for _ in 0..TRIES {
        match store.insert_or_get(draft(store, key, attempt)).await {
            Ok(reply) => match reply.value {
                Inserted::New(_) => return true,
                Inserted::Existing(record) => {
                    assert_eq!(record.attempt_id, AttemptId(attempt), "nobody else uses it");
                    return true;
                }
            },
            Err(StoreError::Ambiguous(_)) => {
                ambiguous.fetch_add(1, Ordering::SeqCst);
            }
            Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
    false
}

/// What was reserved and is not there, which is also told to whoever reads the log of the tests.
fn lost(what: &str, reserved: &BTreeSet<String>, there: &BTreeSet<String>) -> Vec<String> {
    let lost: Vec<_> = reserved.difference(there).cloned().collect();
    println!("{what}: {} reserved, {} lost", reserved.len(), lost.len());
    lost
}

/// A store on a server, and on its successor.
async fn on_postgres(primary: &Postgres, standby: Option<&Postgres>) -> Arc<dyn Store> {
    let url = match standby {
        Some(standby) => format!(
            "postgres://onlyonce@127.0.0.1:{},127.0.0.1:{}/onlyonce",
            primary.port(),
            standby.port()
        ),
        None => primary.url(),
    };
    let options = PostgresOptions {
        timeout: TIMEOUT,
        ..PostgresOptions::default()
    };
    Arc::new(PostgresStore::open(&url, &options).await.unwrap())
}

fn set(server: &Postgres, setting: &str) {
    server.run_sql("postgres", &format!("ALTER SYSTEM SET {setting}"));
    server.run_sql("postgres", "SELECT pg_reload_conf()");
}

async fn becomes(server: &Postgres, state: &str) {
    let replication = "SELECT sync_state FROM pg_stat_replication";
    eventually(state, async || server.sql(replication) == state).await;
}

/// The sessions of a store on `server` that wait for a standby.
const WAITING: &str =
    "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'onlyonce'";

/// The keys that a PostgreSQL server has.
fn keys(server: &Postgres) -> BTreeSet<String> {
    let sql = "SELECT key FROM onlyonce.live UNION ALL SELECT key FROM onlyonce.keys";
    server.sql(sql).lines().map(str::to_owned).collect()
}
