//! Stores as older programs left them, one for each version of each store's schema, read for ever.
//!
//! The dumps in `golden/` were made by the program of that version: a payment that was answered, one whose
//! answer was lost, and one that was sent away with 429, with a `ttl` of ten years. Whoever raises the version
//! of a store's schema adds one.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use onlyonce_testkit::servers::{MariaDb, Postgres, Redis};
use tempfile::TempDir;

use crate::harness::{
    Gateway, REPLAYED, Request, Setup, Upstream,
    history::{Crowd, Habits, TERMS},
    soak,
};

/// Requests between two restarts.
fn some() -> u64 {
    if soak() { 3_000 } else { 100 }
}

/// The versions of `store` that there is a dump of, in order.
fn versions(store: &str) -> Vec<u32> {
    let files = fs::read_dir(folder()).unwrap();
    let version = |file: fs::DirEntry| {
        let name = file.file_name().into_string().unwrap();
        let (stem, _) = name.strip_prefix(store)?.split_once('.')?;
        stem.strip_prefix('_')?.parse().ok()
    };
    let mut versions: Vec<u32> = files.filter_map(|file| version(file.unwrap())).collect();
    versions.sort_unstable();
    assert!(!versions.is_empty(), "{store}");
    versions
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http/golden")
}

fn dump(store: &str, version: u32) -> String {
    fs::read_to_string(folder().join(format!("{store}_{version}.sql"))).unwrap()
}

/// A place for stores of one kind.
pub(crate) trait Golden {
    const NAME: &'static str;
    const IS_SHARED: bool;
    /// Versions that programs had and no dump was made of.
    const WITHOUT: &'static [u32] = &[];

    /// The version that this program makes.
    fn newest() -> u32;
    fn start() -> Self;
    /// A new store as the program of this version left it, and its URL; an empty one for 0.
    fn restored(&mut self, version: u32) -> String;
}

/// Databases of one server, numbered.
pub(crate) struct Many<S> {
    pub(crate) server: S,
    count: usize,
}

impl<S> Many<S> {
    fn next(&mut self) -> String {
        self.count += 1;
        format!("v{}", self.count)
    }
}

pub(crate) struct Files(TempDir, usize);

impl Golden for Files {
    const NAME: &'static str = "sqlite";
    const IS_SHARED: bool = false;

    fn newest() -> u32 {
        let script = onlyonce_store::sqlite::script();
        let (_, rest) = script.split_once("PRAGMA user_version = ").unwrap();
        rest.split_once(';').unwrap().0.parse().unwrap()
    }

    fn start() -> Self {
        Self(TempDir::new().unwrap(), 0)
    }

    fn restored(&mut self, version: u32) -> String {
        self.1 += 1;
        let file = self.0.path().join(format!("{}.db", self.1));
        if version > 0 {
            let made = rusqlite::Connection::open(&file).unwrap();
            made.execute_batch(&dump(Self::NAME, version)).unwrap();
        }
        format!("sqlite:{}", file.display())
    }
}

impl Golden for Many<Postgres> {
    const NAME: &'static str = "postgres";
    const IS_SHARED: bool = true;
    // 6, 7, 10 and 12 were never in a program.
    const WITHOUT: &'static [u32] = &[4, 5, 6, 7, 8, 10, 12];

    fn newest() -> u32 {
        onlyonce_store::postgres::VERSION.try_into().unwrap()
    }

    fn start() -> Self {
        let server = tokio::task::block_in_place(Postgres::start);
        Self { server, count: 0 }
    }

    fn restored(&mut self, version: u32) -> String {
        let name = self.next();
        let url = self.server.database(&name);
        if version > 0 {
            self.server.run_sql(&name, &dump(Self::NAME, version));
        }
        url
    }
}

impl Golden for Many<MariaDb> {
    const NAME: &'static str = "mariadb";
    const IS_SHARED: bool = true;

    fn newest() -> u32 {
        onlyonce_store::mysql::VERSION.try_into().unwrap()
    }

    fn start() -> Self {
        let server = tokio::task::block_in_place(MariaDb::start);
        Self { server, count: 0 }
    }

    fn restored(&mut self, version: u32) -> String {
        let name = self.next();
        let url = self.server.database(&name);
        if version > 0 {
            self.server.run_sql(&name, &dump(Self::NAME, version));
        }
        url
    }
}

impl Golden for Option<Redis> {
    const NAME: &'static str = "redis";
    const IS_SHARED: bool = true;

    fn newest() -> u32 {
        onlyonce_store::redis::VERSION
    }

    fn start() -> Self {
        None
    }

    fn restored(&mut self, version: u32) -> String {
        let server = self.insert(tokio::task::block_in_place(Redis::start));
        if version > 0 {
            server.stop();
            let file = folder().join(format!("redis_{version}.rdb"));
            fs::copy(file, server.folder().join("dump.rdb")).unwrap();
            server.boot();
        }
        server.cli(&["config", "set", "appendonly", "yes"]);
        server.cli(&["config", "set", "appendfsync", "always"]);
        server.url()
    }
}

/// What the old program knew is known.
pub(crate) async fn is_read(gateway: &Gateway, upstream: &Upstream) {
    let done = gateway.send(&Request::pay("golden-completed")).await;
    let done = done.expect(201);
    assert_eq!(done.header(REPLAYED), Some("true"), "{done}");
    assert_eq!(done.header("Location"), Some("/payments/golden"));
    assert_eq!(
        done.text(),
        r#"{"paid":"golden","note":"golden-completed"}"#
    );
    let unclear = gateway.send(&Request::pay("golden-unknown")).await;
    unclear.refused(409, "idempotency_outcome_unknown");
    let another = Request::post("/payments")
        .key("golden-completed")
        .json(r#"{"amount":1}"#);
    let another = gateway.send(&another).await;
    another.refused(422, "idempotency_key_reused");
    for key in ["golden-completed", "golden-unknown"] {
        assert_eq!(upstream.executions_of(key), 0, "{key}");
    }
}

/// What it released is executed, once.
pub(crate) async fn is_executed(gateway: &Gateway, upstream: &Upstream) {
    for _ in 0..2 {
        let released = gateway.send(&Request::pay("golden-retryable")).await;
        released.expect(201);
    }
    assert_eq!(upstream.executions_of("golden-retryable"), 1);
}

pub(crate) fn setup(url: &str) -> Setup {
    Setup::with("lease: 3s, completion_grace: 1s, wait_timeout: 1s").store(url)
}

/// Goal: a store of any earlier version is taken over by gateways that start one after the other, while clients
/// are there; whatever it knew is known.
///
/// Method: for each version, the store as that program left it; a gateway that upgrades it, clients, a second
/// gateway, and a restart of each while the other goes on.
/// Evidence: the checker's judgement on what clients sent and heard and what the upstream executed; the
/// answers of the old program, byte for byte, before and after.
async fn is_upgraded<G: Golden>() {
    let mut place = G::start();
    for version in versions(G::NAME) {
        let url = tokio::task::block_in_place(|| place.restored(version));
        let upstream = Arc::new(Upstream::start());
        let mut gateways = vec![setup(&url).start(&upstream).await];
        let habits = Habits {
            new_key_after: Some(3),
            pause: 8,
        };
        let crowd = Crowd::start(&gateways, &upstream, habits);
        crowd.sends(some()).await;
        is_read(&gateways[0], &upstream).await;
        if G::IS_SHARED {
            gateways.push(setup(&url).start(&upstream).await);
            crowd.follow(&gateways);
            crowd.sends(some()).await;
        }
        for number in 0..gateways.len() {
            gateways[number].sigterm();
            assert!(gateways[number].exited().await.success());
            gateways[number].restart().await;
            crowd.follow(&gateways);
            crowd.sends(some()).await;
        }
        for gateway in &gateways {
            is_read(gateway, &upstream).await;
            is_executed(gateway, &upstream).await;
        }
        let record = gateways[0].record("golden-unknown").await.unwrap();
        assert_eq!(record["state"], "unknown", "{record}");
        let calls = crowd.tape().clone();
        let history = crowd.end(&gateways, &upstream).await;
        let broken = onlyonce_testkit::promise::check(&TERMS, &history);
        println!(
            "{} of version {version}: {} requests, {} executions, {} promises broken",
            G::NAME,
            calls.calls(),
            upstream.executions(),
            broken.len()
        );
        assert!(broken.is_empty(), "{} {version}: {broken:?}", G::NAME);
    }
}

/// Goal: no version is forgotten: of each that a program had there is a dump, but for those that are named.
fn is_complete<G: Golden>() {
    let missing = (1..=G::newest()).filter(|version| !versions(G::NAME).contains(version));
    assert_eq!(missing.collect::<Vec<_>>(), G::WITHOUT, "{}", G::NAME);
}

#[test]
fn there_is_a_dump_of_every_version() {
    is_complete::<Files>();
    is_complete::<Many<Postgres>>();
    is_complete::<Many<MariaDb>>();
    is_complete::<Option<Redis>>();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    is_upgraded::<Files>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    is_upgraded::<Many<Postgres>>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb() {
    is_upgraded::<Many<MariaDb>>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis() {
    is_upgraded::<Option<Redis>>().await;
}
