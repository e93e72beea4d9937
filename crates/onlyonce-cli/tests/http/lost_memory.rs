//! A store that lost its memory, under profile `payments`: restored from a backup, removed, or exchanged for
//! an empty one while the gateway was stopped. And everything that looks similar and loses nothing.
//!
//! A store in memory ends with its process: there is nothing that could be recognised, and `payments` refuses
//! it by its level.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use onlyonce_testkit::servers::{MariaDb, Postgres, Redis};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    harness::{
        Gateway, REPLAYED, Request, Response, Setup, Upstream, eventually, ms,
        provider::{Part, Provider},
    },
    postgres_schema::{onlyonce, text},
    reconcile::OUTCOMES,
    store_identity::Server,
};

const PAYMENTS: &str =
    "profile: payments, reconcile: operator, credential_headers: [Authorization]";
const LOST: &str = "idempotency_history_lost";

fn pay(name: &str) -> Request {
    Request::pay(&format!("a-store-that-lost-its-memory-{name}"))
        .header("Authorization", "Bearer ada")
}

/// A store whose gateways are stopped while it is copied, set back or emptied.
trait Place {
    fn url(&self) -> String;
    /// Options of `store` beside the spool.
    fn options(&self) -> &'static str {
        ""
    }
    fn is_shared(&self) -> bool {
        true
    }
    fn back_up(&mut self);
    fn restore(&mut self);
    /// A fresh disk under the old name.
    fn empty(&mut self);
    /// Kills the server, if there is one, and starts it again.
    fn crash(&mut self);
}

struct Sqlite(TempDir);

impl Sqlite {
    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

impl Place for Sqlite {
    fn url(&self) -> String {
        format!("sqlite:{}", self.file("oo.db").display())
    }

    fn options(&self) -> &'static str {
        ", single_node: true"
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn back_up(&mut self) {
        fs::copy(self.file("oo.db"), self.file("backup.db")).unwrap();
    }

    fn restore(&mut self) {
        fs::copy(self.file("backup.db"), self.file("oo.db")).unwrap();
    }

    fn empty(&mut self) {
        fs::remove_file(self.file("oo.db")).unwrap();
        fs::remove_file(self.file("oo.db.lock")).unwrap();
    }

    fn crash(&mut self) {}
}

/// A database server, and a dump of it.
struct Dumped<S> {
    server: S,
    dump: String,
    crash: fn(&mut S),
}

impl<S: Server> Place for Dumped<S> {
    fn url(&self) -> String {
        self.server.url()
    }

    fn back_up(&mut self) {
        self.dump = self.server.backup();
    }

    fn restore(&mut self) {
        self.server.restore(&self.dump);
    }

    fn empty(&mut self) {
        self.server.drop_all();
    }

    fn crash(&mut self) {
        (self.crash)(&mut self.server);
    }
}

fn postgres() -> Dumped<Postgres> {
    Dumped {
        server: Postgres::start(),
        dump: String::new(),
        crash: |server| {
            server.kill();
            server.boot();
        },
    }
}

fn mariadb() -> Dumped<MariaDb> {
    Dumped {
        server: MariaDb::start(),
        dump: String::new(),
        crash: |server| {
            server.kill();
            server.boot();
        },
    }
}

/// Redis, and a copy of what it has on its disk.
struct Files {
    server: Redis,
    copy: TempDir,
}

fn redis() -> Files {
    Files {
        server: Redis::start_with(&["appendonly yes", "appendfsync always"]),
        copy: TempDir::new().unwrap(),
    }
}

pub(crate) fn copy_folder(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

impl Place for Files {
    fn url(&self) -> String {
        self.server.url()
    }

    fn back_up(&mut self) {
        self.server.stop();
        let log = self.server.folder().join("appendonlydir");
        copy_folder(&log, self.copy.path());
        self.server.boot();
    }

    fn restore(&mut self) {
        self.server.stop();
        let log = self.server.folder().join("appendonlydir");
        copy_folder(self.copy.path(), &log);
        self.server.boot();
    }

    fn empty(&mut self) {
        self.server.cli(&["flushall"]);
    }

    fn crash(&mut self) {
        self.server.kill();
        self.server.boot();
    }
}

/// A gateway's folder for what it knows of its store.
struct Spool(TempDir);

impl Spool {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn known(&self) -> String {
        fs::read_to_string(self.0.path().join("store.known")).unwrap_or_default()
    }
}

fn setup(place: &impl Place, spool: Option<&Spool>) -> Setup {
    let options = match spool {
        Some(spool) => format!("spool_dir: \"{}\"", spool.0.path().display()),
        None => "timeout: 2s".to_owned(),
    };
    let options = format!("{options}{}", place.options());
    Setup::with(PAYMENTS)
        .store(&place.url())
        .store_options(&options)
}

fn migrate(place: &impl Place, more: &[&str]) {
    let made = onlyonce(&[&["migrate", "--store", &place.url()], more].concat());
    assert!(made.status.success(), "{}", text(&made.stderr));
}

async fn stop(gateway: &mut Gateway) {
    gateway.sigterm();
    assert!(gateway.exited().await.success());
}

/// Sends a key, and waits until the gateway has noted on its disk that the store has it.
async fn known(gateway: &Gateway, spool: &Spool, name: &str) {
    gateway.send(&pay(name)).await.expect(201);
    // What is noted may be of a round before the key, so that two rounds are waited for.
    for round in 0..2 {
        let before = spool.known();
        gateway
            .send(&pay(&format!("{name}-{round}")))
            .await
            .expect(201);
        eventually("the epoch on the disk", async || {
            (spool.known() != before).then_some(())
        })
        .await;
    }
}

async fn is_lost(gateway: &Gateway) -> bool {
    let ready = gateway.admin_open("/readyz").await.expect(200).json();
    let is_lost = ready["store"]["lost_at"].is_string();
    let refusing = ready["refusing_routes"] == json!(["r"]);
    assert_eq!(
        (refusing, ready["reason"].is_string()),
        (is_lost, is_lost),
        "{ready}"
    );
    is_lost
}

fn held_back(answer: Response) {
    let answer = answer.refused(503, LOST);
    assert_eq!(answer.retry_after(), Some(30));
    assert_eq!(answer.header("Idempotency-Status"), Some("not-looked-up"));
}

async fn replayed(gateway: &Gateway, name: &str) {
    let answer = gateway.send(&pay(name)).await.expect(201);
    assert_eq!(answer.header(REPLAYED), Some("true"), "{name}");
}

/// Goal: a payment whose record went with a backup is not executed again, and no other one is lost by that.
///
/// Method: keys, a backup, more keys; the gateway stops, the backup is restored, it starts. On a shared store
/// another gateway starts that has never seen it. Then an operator accepts the loss.
/// Evidence: the upstream's own count; known keys are replayed all the while; the audit.
async fn a_backup_is_restored(mut place: impl Place) {
    let upstream = Upstream::start();
    let spool = Spool::new();
    migrate(&place, &[]);
    let mut gateway = setup(&place, Some(&spool)).start(&upstream).await;
    known(&gateway, &spool, "old").await;
    stop(&mut gateway).await;
    place.back_up();
    gateway.restart().await;
    assert!(!is_lost(&gateway).await, "a stop and a start lose nothing");
    known(&gateway, &spool, "lost").await;
    stop(&mut gateway).await;

    place.restore();
    gateway.restart().await;
    assert!(is_lost(&gateway).await);
    let executed = upstream.executions();
    let mut gateways = vec![gateway];
    if place.is_shared() {
        gateways.push(setup(&place, None).start(&upstream).await);
    }
    for gateway in &gateways {
        assert!(is_lost(gateway).await, "every gateway knows");
        replayed(gateway, "old").await;
        for name in ["lost", "fresh"] {
            held_back(gateway.send(&pay(name)).await);
        }
        let counted = gateway.metric("onlyonce_history_lost_total").await;
        assert_eq!(counted, Some(2.0));
        eventually("the gauge", async || {
            let gauge = gateway.metric("onlyonce_store_history_lost").await;
            (gauge == Some(1.0)).then_some(())
        })
        .await;
    }
    assert_eq!(upstream.executions(), executed, "nothing is executed");
    // It is not forgotten by a gateway that is killed.
    gateways[0].kill9().await;
    gateways[0].restart().await;
    held_back(gateways[0].send(&pay("lost")).await);

    let accept = async |body| gateways[0].admin_post("/store/accept-loss", &body).await;
    accept(json!({ "reason": " " })).await.expect(400);
    held_back(gateways[0].send(&pay("lost")).await);
    let reason = json!({ "reason": "the provider's ledger was compared" });
    accept(reason.clone()).await.expect(200);
    gateways[0].send(&pay("lost")).await.expect(201);
    accept(reason).await.refused(409, "state_conflict");
    for (number, gateway) in gateways.iter().enumerate() {
        eventually("the loss to be accepted", async || {
            let is_accepted = !is_lost(gateway).await;
            is_accepted.then_some(())
        })
        .await;
        gateway
            .send(&pay(&format!("then-{number}")))
            .await
            .expect(201);
    }
    assert_eq!(upstream.executions(), executed + 1 + gateways.len());
    let audit = gateways[0]
        .admin(Request::get("/audit?event=loss_accepted"))
        .await;
    let audit = audit.expect(200).json();
    assert_eq!(
        audit["audit"][0]["detail"],
        "the provider's ledger was compared"
    );
    assert_eq!(audit["audit"][0]["actor"], "operator");
    stop(&mut gateways[0]).await;
    gateways[0].restart().await;
    assert!(!is_lost(&gateways[0]).await);
    replayed(&gateways[0], "lost").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_restored() {
    a_backup_is_restored(Sqlite(TempDir::new().unwrap())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_restored() {
    a_backup_is_restored(postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_restored() {
    a_backup_is_restored(mariadb()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_restored() {
    a_backup_is_restored(redis()).await;
}

/// Goal: an empty store under the old name is not taken for the one that had the keys.
///
/// Method: keys; the gateway stops, all that the store has is removed, `migrate` makes a new one, as the first
/// step of many deployments does. Then an operator says that it is meant.
/// Evidence: without a store nothing starts; the upstream's own count.
async fn a_fresh_disk(mut place: impl Place) {
    let upstream = Upstream::start();
    let spool = Spool::new();
    migrate(&place, &[]);
    let mut gateway = setup(&place, Some(&spool)).start(&upstream).await;
    known(&gateway, &spool, "lost").await;
    stop(&mut gateway).await;
    place.empty();
    let folder = Arc::new(TempDir::new().unwrap());
    let started = setup(&place, Some(&spool))
        .start_in(folder, &upstream.url())
        .await;
    let Err(exit) = started else {
        panic!("it made a store of its own");
    };
    assert!(exit.logs.contains("there is no store"), "{}", exit.logs);
    migrate(&place, &[]);
    gateway.restart().await;
    assert!(is_lost(&gateway).await);
    let executed = upstream.executions();
    held_back(gateway.send(&pay("lost")).await);
    assert_eq!(upstream.executions(), executed, "nothing is executed");
    // The operator's word on the command line: an embedded store is the gateway's alone.
    stop(&mut gateway).await;
    migrate(&place, &["--accept-incomplete"]);
    gateway.restart().await;
    assert!(!is_lost(&gateway).await);
    gateway.send(&pay("lost")).await.expect(201);
    let audit = gateway
        .admin(Request::get("/audit?event=loss_accepted"))
        .await;
    let audit = audit.expect(200).json();
    assert_eq!(audit["audit"][0]["detail"], "migrate --accept-incomplete");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_on_a_fresh_disk() {
    a_fresh_disk(Sqlite(TempDir::new().unwrap())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_on_a_fresh_disk() {
    a_fresh_disk(postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_on_a_fresh_disk() {
    a_fresh_disk(mariadb()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_on_a_fresh_disk() {
    a_fresh_disk(redis()).await;
}

/// Goal: nothing that loses no key is taken for a loss.
///
/// Method: gateways, each with a folder of its own, are killed in the middle of their load, again and again,
/// at moments that differ; the server is killed under them; one is away for long, while the other goes on.
/// Evidence: no gateway says that keys are lost, and every key that was answered is replayed.
async fn nothing_is_lost(mut place: impl Place) {
    const ROUNDS: u64 = 8;
    let upstream = Upstream::start();
    migrate(&place, &[]);
    let count = if place.is_shared() { 2 } else { 1 };
    let spools: Vec<Spool> = (0..count).map(|_| Spool::new()).collect();
    let mut gateways = Vec::new();
    for spool in &spools {
        gateways.push(setup(&place, Some(spool)).start(&upstream).await);
    }
    let mut answered: Vec<String> = Vec::new();
    for round in 0..ROUNDS {
        let away = usize::try_from(round).unwrap() % gateways.len();
        let mut load = Vec::new();
        for key in 0..20 {
            let name = format!("{round}-{key}");
            let gateway = &gateways[key % gateways.len()];
            load.push((name.clone(), gateway.data(), pay(&name)));
        }
        let load = load.into_iter().map(|(name, address, request)| {
            tokio::spawn(async move {
                let answer = crate::harness::client::send(address, &request).await;
                answer
                    .ok()
                    .filter(|answer| answer.status == 201)
                    .map(|_| name)
            })
        });
        let load: Vec<_> = load.collect();
        // The looks at the store are 2 s apart: the kills meet them at every phase.
        tokio::time::sleep(ms(round * 290)).await;
        gateways[away].kill9().await;
        if round % 3 == 2 {
            tokio::task::block_in_place(|| place.crash());
        }
        for name in load {
            answered.extend(name.await.unwrap());
        }
        gateways[away].restart().await;
        for gateway in &gateways {
            eventually("a store that answers", async || {
                let ready = gateway.admin_open("/readyz").await;
                (ready.status == 200).then_some(())
            })
            .await;
            assert!(!is_lost(gateway).await, "round {round}");
        }
    }
    assert!(answered.len() > 20, "{}", answered.len());
    for name in &answered {
        replayed(&gateways[0], name).await;
    }
    let logs: String = gateways.iter().map(Gateway::logs).collect();
    assert!(!logs.contains("has lost keys"), "{logs}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_that_loses_nothing() {
    nothing_is_lost(Sqlite(TempDir::new().unwrap())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_that_loses_nothing() {
    nothing_is_lost(postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_that_loses_nothing() {
    nothing_is_lost(mariadb()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_loses_nothing() {
    nothing_is_lost(redis()).await;
}

/// Goal: a store from before there were marks, and a gateway's folder from before, are taken as they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_marks_has_lost_nothing() {
    let place = postgres();
    let upstream = Upstream::start();
    migrate(&place, &[]);
    let mut gateway = setup(&place, None).start(&upstream).await;
    gateway.send(&pay("before")).await.expect(201);
    stop(&mut gateway).await;
    let marks =
        "DELETE FROM onlyonce.meta WHERE name IN ('epoch', 'accepted', 'lost', 'lost_newest')";
    place.server.sql(marks);
    let spool = Spool::new();
    let mut gateway = setup(&place, Some(&spool)).start(&upstream).await;
    assert!(!is_lost(&gateway).await);
    replayed(&gateway, "before").await;
    known(&gateway, &spool, "after").await;
    stop(&mut gateway).await;
    gateway.restart().await;
    assert!(!is_lost(&gateway).await);
}

/// Goal: the provider's denial lets a payment through that the store may have lost, its knowledge does not,
/// and after one `ttl` nothing is held back any more.
///
/// Method: a payment is forgotten with a backup. Both it and a fresh one are asked about, at first by a query
/// that has never found a key.
/// Evidence: the provider's own ledger.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_provider_denies_and_the_ttl_ends() {
    let provider = Provider::start(|_| Part::Pay).await;
    let mut place = Sqlite(TempDir::new().unwrap());
    migrate(&place, &[]);
    let url = format!("{}/payments?key={{key}}", provider.url());
    let setup = Setup::with("profile: payments, credential_headers: [Authorization]")
        .store(&place.url())
        .store_options("single_node: true")
        .route(&format!(
            "idempotency: {{ lease: 1s, timeout: 1s, max_execution: 1s, ttl: 20s, reconcile: {{ query: {{ \
             url: \"{url}\" }}, {OUTCOMES}, after: 100ms, upstream_max_execution: 200ms, negative_gap: 1s, \
             provider_keys_unique: true }} }}"
        ));
    let mut gateway = setup.start_before(&provider.url()).await;
    gateway.send(&pay("old")).await.expect(201);
    stop(&mut gateway).await;
    place.back_up();
    gateway.restart().await;
    gateway.send(&pay("lost")).await.expect(201);
    stop(&mut gateway).await;
    place.restore();
    gateway.restart().await;
    let received = provider.received();
    held_back(gateway.send(&pay("fresh")).await);
    // Too early: what was sent before the loss may still be under way.
    assert_eq!(provider.asked().len(), 0);
    eventually("the provider to be asked", async || {
        held_back(gateway.send(&pay("fresh")).await);
        (!provider.asked().is_empty()).then_some(())
    })
    .await;
    // That it denies a key counts only once it has found one.
    held_back(gateway.send(&pay("lost")).await);
    gateway.send(&pay("fresh")).await.expect(201);
    held_back(gateway.send(&pay("lost")).await);
    replayed(&gateway, "fresh").await;
    assert_eq!(provider.received(), received + 1, "only the fresh one");

    eventually("the ttl to end", async || {
        let answer = gateway.send(&pay("lost")).await;
        (answer.status == 201).then_some(())
    })
    .await;
    assert_eq!(provider.received(), received + 2);
}

/// Goal: a Redis that is emptied under a running gateway holds payments back at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_emptied_under_a_gateway() {
    let mut place = redis();
    let upstream = Upstream::start();
    let spool = Spool::new();
    migrate(&place, &[]);
    let gateway = setup(&place, Some(&spool)).start(&upstream).await;
    known(&gateway, &spool, "lost").await;
    let executed = upstream.executions();
    place.empty();
    // A copy in the gateway's memory may answer for a moment.
    let refused = eventually("no copy to be left", async || {
        let answer = gateway.send(&pay("lost")).await;
        (answer.status != 201).then_some(answer)
    });
    refused.await.refused(503, LOST);
    assert_eq!(upstream.executions(), executed, "nothing is executed");
}
