//! One trial for every kind of store: clients pay at two gateways, a server of the store is lost, and every
//! payment that was acknowledged is sent once more.
//!
//! The level that `/readyz` told **before** the fault is what is held against the store: where it was `sync`,
//! no acknowledged payment is executed again; where it was less, how many were is counted and printed.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use onlyonce_testkit::{
    servers::{MariaDb, Postgres, Redis, RedisCluster, RedisSentinels},
    tcp_faults::{FaultProxy, Mode},
};
use tokio::task::{JoinHandle, block_in_place};

use crate::{
    harness::{Gateway, Mortal, REPLAYED, Request, Upstream, client, eventually, ms, soak},
    shared_faults::setup,
};

/// Clients of each gateway.
const CLIENTS: usize = 4;

/// Payments that are acknowledged before the fault, and again after it.
fn some() -> usize {
    if soak() { 2_000 } else { 150 }
}

/// The answers of 201 that a client heard, by key, and how many others.
type Answers = (BTreeMap<String, Vec<u8>>, usize);

/// Clients who pay with new keys until told to stop, whatever they are answered.
struct Clients {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<Answers>>,
}

impl Clients {
    fn start(gateways: &[Gateway], name: &str) -> Self {
        let (stop, acknowledged) = <(Arc<AtomicBool>, Arc<AtomicUsize>)>::default();
        let mut tasks = Vec::new();
        for (gateway, client) in gateways.iter().enumerate().flat_map(|(number, gateway)| {
            (0..CLIENTS).map(move |client| ((number, gateway), client))
        }) {
            let ((number, gateway), stop) = (gateway, Arc::clone(&stop));
            let (addr, counted) = (gateway.data(), Arc::clone(&acknowledged));
            let name = format!("{name}-{number}-{client}");
            tasks.push(tokio::spawn(async move {
                let (mut answers, mut others) = (BTreeMap::new(), 0);
                for count in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let key = format!("{name}-{count}");
                    match client::send(addr, &Request::pay(&key)).await {
                        Ok(answer) if answer.status == 201 => {
                            answers.insert(key, answer.body);
                            counted.fetch_add(1, Ordering::SeqCst);
                        }
                        Ok(_) | Err(_) => {
                            others += 1;
                            tokio::time::sleep(ms(5)).await;
                        }
                    }
                }
                (answers, others)
            }));
        }
        Self {
            stop,
            acknowledged,
            tasks,
        }
    }

    async fn more(&self) {
        let goal = self.acknowledged.load(Ordering::SeqCst) + some();
        eventually("payments to be acknowledged", async || {
            (self.acknowledged.load(Ordering::SeqCst) >= goal).then_some(())
        })
        .await;
    }

    async fn end(self) -> Answers {
        self.stop.store(true, Ordering::SeqCst);
        let (mut answers, mut others) = (BTreeMap::new(), 0);
        for task in self.tasks {
            let (more, not) = task.await.unwrap();
            answers.extend(more);
            others += not;
        }
        (answers, others)
    }
}

/// A kind of store before it is hurt.
struct Trial {
    what: &'static str,
    url: String,
    /// Further options of `store`, each behind a comma.
    options: String,
    /// What `/readyz` is to say of it.
    level: &'static str,
    gateways: usize,
}

impl Trial {
    fn of(what: &'static str, level: &'static str, url: String) -> Self {
        Self {
            what,
            url,
            options: String::new(),
            level,
            gateways: 2,
        }
    }

    /// Goal, method and evidence: as above. `fault` returns when the store, or what has taken its place, can
    /// be used again.
    async fn with(self, fault: impl AsyncFnOnce(&mut Vec<Gateway>)) {
        let Self { what, level, .. } = self;
        let upstream = Upstream::start();
        let mut gateways = Vec::new();
        for _ in 0..self.gateways {
            let options = format!("timeout: 500ms{}", self.options);
            let setup = setup(&self.url).store_options(&options);
            gateways.push(setup.start(&upstream).await);
        }
        for gateway in &gateways {
            eventually("the level to be told", async || {
                (level_of(gateway).await.as_deref() == Some(level)).then_some(())
            })
            .await;
        }
        let clients = Clients::start(&gateways, "before");
        clients.more().await;
        for gateway in &gateways {
            let told = level_of(gateway).await;
            assert_eq!(told.as_deref(), Some(level), "{what}: before the fault");
        }
        fault(&mut gateways).await;
        for (number, gateway) in gateways.iter().enumerate() {
            eventually("new keys to be taken again", async || {
                let answer = gateway
                    .send(&Request::pay(&format!("after-{number}")))
                    .await;
                (answer.status == 201).then_some(())
            })
            .await;
        }
        let (mut acknowledged, others) = clients.end().await;
        // Those whose gateway was started again have lost it.
        let clients = Clients::start(&gateways, "after");
        clients.more().await;
        let (more, _) = clients.end().await;
        acknowledged.extend(more);

        let (mut executed_again, mut answers_lost) = (Vec::new(), Vec::new());
        for (number, (key, body)) in acknowledged.iter().enumerate() {
            let before = upstream.executions_of(key);
            assert_eq!(before, 1, "{what}: {key} without having been sent again");
            let gateway = &gateways[number % gateways.len()];
            // A store that does not answer in time has said nothing about the key.
            let again = eventually("the store to answer", async || {
                let again = gateway.send(&Request::pay(key)).await;
                let is_silent =
                    again.status == 503 && again.code() == "idempotency_store_unavailable";
                (!is_silent).then_some(again)
            })
            .await;
            if upstream.executions_of(key) != 1 {
                executed_again.push(key);
            } else if again.status != 201 {
                // Its reservation is known and its completion is not.
                answers_lost.push(format!("{key}: {again}"));
            } else {
                assert_eq!(again.header(REPLAYED), Some("true"), "{what}: {key}");
                assert!(again.body == *body, "{what}: {key} has another answer");
            }
        }
        println!(
            "{what}: level {level} before the fault; {} acknowledged, {others} not, \
             {} executed again, of {} the answer was lost",
            acknowledged.len(),
            executed_again.len(),
            answers_lost.len()
        );
        assert!(others > 0, "{what}: the fault was felt");
        if level == "sync" {
            assert!(executed_again.is_empty(), "{what}: {executed_again:?}");
            assert!(answers_lost.is_empty(), "{what}: {answers_lost:?}");
        }
    }
}

/// What `/readyz` says of the store.
async fn level_of(gateway: &Gateway) -> Option<String> {
    let answer = gateway.admin_open("/readyz").await;
    let answer: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
    Some(answer["store"]["level"].as_str()?.to_owned())
}

/// The server dies, and every gateway feels it. What comes back sooner than that is no fault: the store
/// connects again within its timeout, and no client hears of it.
async fn dies(server: &mut impl Mortal, gateways: &[Gateway]) {
    block_in_place(|| server.kill());
    for (number, gateway) in gateways.iter().enumerate() {
        // The second in a row was sent while the server was away.
        let mut failed = 0;
        eventually("the fault to be felt", async || {
            let key = format!("felt-{number}");
            let answer = gateway.send(&Request::pay(&key)).await;
            failed = if answer.status == 201 { 0 } else { failed + 1 };
            (failed == 2).then_some(())
        })
        .await;
    }
}

/// The server dies, and is started again.
async fn dies_and_returns(server: &mut impl Mortal, gateways: &[Gateway]) {
    dies(server, gateways).await;
    block_in_place(|| server.boot());
}

/// The same database at two servers, of which one takes writes.
fn either(url: &str, first: u16, second: u16) -> String {
    let hosts = format!("127.0.0.1:{first},127.0.0.1:{second}");
    url.replace(&format!("127.0.0.1:{first}"), &hosts)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/store.db", folder.path().display());
    let mut trial = Trial::of("SQLite, its gateway killed", "sync", url);
    trial.gateways = 1;
    trial
        .with(async |gateways| {
            gateways[0].kill9().await;
            gateways[0].restart().await;
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_alone() {
    let mut server = block_in_place(Postgres::start);
    let trial = Trial::of("PostgreSQL alone, killed", "sync", server.url());
    trial
        .with(async |gateways| dies_and_returns(&mut server, gateways).await)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_and_a_cache() {
    let mut server = block_in_place(Postgres::start);
    let cache = block_in_place(Redis::start);
    let mut trial = Trial::of("PostgreSQL with a cache, both hurt", "sync", server.url());
    trial.options = format!(", cache: \"{}\"", cache.url());
    trial
        .with(async |gateways| {
            block_in_place(|| cache.cli(&["flushall"]));
            dies_and_returns(&mut server, gateways).await;
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_with_a_synchronous_standby() {
    let mut primary = block_in_place(Postgres::start);
    let standby = block_in_place(|| primary.standby("one"));
    primary.sql("ALTER SYSTEM SET synchronous_standby_names = 'one'");
    primary.sql("SELECT pg_reload_conf()");
    let url = either(&primary.url(), primary.port(), standby.port());
    let trial = Trial::of("PostgreSQL, synchronous, promoted", "sync", url);
    trial
        .with(async |gateways| {
            dies(&mut primary, gateways).await;
            block_in_place(|| {
                standby.promote();
                // The new primary waits for nobody.
                standby.run_sql("postgres", "ALTER SYSTEM RESET synchronous_standby_names");
                standby.run_sql("postgres", "SELECT pg_reload_conf()");
            });
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_with_an_asynchronous_standby() {
    let mut primary = block_in_place(Postgres::start);
    let proxy = FaultProxy::start(primary.port()).await;
    let standby = block_in_place(|| primary.standby_through(proxy.port(), "one"));
    let url = either(&primary.url(), primary.port(), standby.port());
    let trial = Trial::of("PostgreSQL, asynchronous, promoted", "async", url);
    trial
        .with(async |gateways| {
            proxy.set(Mode::Silent);
            // What is acknowledged now is what is lost.
            tokio::time::sleep(ms(200)).await;
            dies(&mut primary, gateways).await;
            block_in_place(|| standby.promote());
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_alone() {
    let mut server = block_in_place(MariaDb::start);
    let trial = Trial::of("MariaDB alone, killed", "sync", server.url());
    trial
        .with(async |gateways| dies_and_returns(&mut server, gateways).await)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_with_a_semi_synchronous_replica() {
    let mut primary = block_in_place(MariaDb::start_semi_synchronous);
    let replica = block_in_place(|| primary.replica_through(primary.port()));
    let url = either(&primary.url(), primary.port(), replica.port());
    let trial = Trial::of("MariaDB, semi-synchronous, promoted", "async", url);
    trial
        .with(async |gateways| {
            dies(&mut primary, gateways).await;
            block_in_place(|| replica.promote());
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_flushes_always() {
    let settings = ["appendonly yes", "appendfsync always"];
    let mut server = block_in_place(|| Redis::start_with(&settings));
    let trial = Trial::of("Redis alone, flushing always, killed", "sync", server.url());
    trial
        .with(async |gateways| dies_and_returns(&mut server, gateways).await)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_flushes_each_second() {
    let settings = ["appendonly yes", "appendfsync everysec"];
    let mut server = block_in_place(|| Redis::start_with(&settings));
    let trial = Trial::of(
        "Redis alone, flushing each second, killed",
        "async",
        server.url(),
    );
    trial
        .with(async |gateways| dies_and_returns(&mut server, gateways).await)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_with_sentinels() {
    let servers = block_in_place(RedisSentinels::start);
    let trial = Trial::of("Redis with Sentinels, frozen", "volatile", servers.url());
    trial
        .with(async |_| {
            block_in_place(|| {
                servers.master.freeze();
                servers.until_failed_over();
                servers.master.thaw();
                servers.master.until_follows();
            });
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_cluster() {
    let settings = [
        "appendonly yes",
        "appendfsync always",
        "cluster-require-full-coverage no",
    ];
    let mut cluster = block_in_place(|| RedisCluster::start_with_replicas(&settings));
    let trial = Trial::of("Redis Cluster, a master frozen", "async", cluster.url());
    trial
        .with(async |_| {
            block_in_place(|| {
                // Without the marks of the store's making the replica would rightly be taken for an empty
                // one.
                cluster.until_heard(1);
                cluster.masters()[1].freeze();
                cluster.until_all_know(1);
                cluster.masters()[1].thaw();
                cluster.masters()[1].until_follows();
            });
        })
        .await;
}
