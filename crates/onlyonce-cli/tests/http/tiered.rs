//! Gateways on PostgreSQL with Redis in front of it: the database is the truth, whatever the cache does.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use onlyonce_testkit::servers::{Postgres, Redis};

use crate::{
    harness::{
        Gateway, Mortal, REPLAYED, Request, Script, Setup, Upstream, client, eventually, ms,
    },
    postgres::database,
    shared_faults, shared_store,
};

/// A database with a cache; its faults are the database's.
struct Cached {
    database: Postgres,
    cache: Redis,
}

impl Mortal for Cached {
    fn start() -> Self {
        Self {
            database: Postgres::start(),
            cache: Redis::start(),
        }
    }

    fn url(&self) -> String {
        self.database.url()
    }

    fn options(&self) -> String {
        format!(", cache: \"{}\"", self.cache.url())
    }

    fn boot(&mut self) {
        self.database.boot();
    }

    fn stop(&mut self) {
        self.database.stop();
    }

    fn kill(&mut self) {
        self.database.kill();
    }

    fn freeze(&self) {
        self.database.freeze();
    }

    fn thaw(&self) {
        self.database.thaw();
    }
}

async fn pair(upstream: &Upstream, cache: &str, options: &str) -> (Gateway, Gateway) {
    let setup = Setup::with(options)
        .store(&database())
        .store_options(&format!("cache: \"{cache}\""));
    (
        setup.clone().start(upstream).await,
        setup.start(upstream).await,
    )
}

/// One winner of a race over two gateways.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_race_over_two_gateways() {
    let upstream = Upstream::start();
    let server = Redis::start();
    let (a, b) = pair(&upstream, &server.url(), "").await;
    shared_store::race_between(&a, &b, &upstream).await;
}

/// A node that dies leaves an honest answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_death_of_a_node() {
    let upstream = Upstream::start();
    let server = Redis::start();
    let (a, b) = pair(&upstream, &server.url(), shared_store::SHORT_LEASE).await;
    shared_store::death_of_one(a, &b, &upstream).await;
}

/// A cache that is there does not stand in for a database that is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_stops_freezes_or_dies() {
    shared_faults::stops_freezes_or_dies::<Cached>().await;
}

/// Goal: replays come from the cache, and a cache that comes and goes is not noticed.
///
/// Method: clients pay and ask again, on either gateway, while the cache is frozen, thawed, emptied,
/// killed and started.
/// Evidence: every answer is a 201 of the one execution of its key; the cache has been used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_that_comes_and_goes() {
    let upstream = Arc::new(Upstream::start());
    upstream.always(Script::created());
    let mut server = Redis::start();
    let (a, b) = pair(&upstream, &server.url(), "").await;
    let stop = Arc::new(AtomicBool::new(false));
    let doors = [a.data(), b.data()];
    let clients: Vec<_> = (0..8_usize)
        .map(|number| {
            let (stop, upstream) = (stop.clone(), upstream.clone());
            tokio::spawn(async move {
                let mut count = 0_usize;
                while !stop.load(Ordering::SeqCst) {
                    count += 1;
                    let key = format!("come-{number}-{count}");
                    let request = Request::pay(&key);
                    let send = async |door: usize| {
                        let sent = client::send(doors[door % 2], &request).await;
                        sent.unwrap().expect(201)
                    };
                    let first = send(number + count).await;
                    for retry in 0..3 {
                        let again = send(number + retry).await;
                        assert_eq!(again.header(REPLAYED), Some("true"), "{key}");
                        assert!(again.body == first.body, "{key}");
                    }
                    assert_eq!(upstream.executions_of(&key), 1, "{key}");
                    tokio::time::sleep(ms(5)).await;
                }
                count
            })
        })
        .collect();
    let pause = || tokio::time::sleep(ms(500));
    pause().await;
    eventually("the cache to be used", async || {
        (server.cli(&["dbsize"]) != "0").then_some(())
    })
    .await;
    server.freeze();
    pause().await;
    server.thaw();
    pause().await;
    server.cli(&["flushall"]);
    pause().await;
    tokio::task::block_in_place(|| server.kill());
    pause().await;
    tokio::task::block_in_place(|| server.boot());
    pause().await;
    stop.store(true, Ordering::SeqCst);
    let mut keys = 0;
    for client in clients {
        keys += client.await.unwrap();
    }
    println!("cache comes and goes: {keys} keys, four answers each, one execution each");
}

/// Goal: a key that an operator forgets on one gateway is forgotten on the other at once, cache or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forget_on_one_gateway() {
    let upstream = Upstream::start();
    let server = Redis::start();
    let (a, b) = pair(&upstream, &server.url(), "").await;
    a.send(&Request::pay("k")).await.expect(201);
    for _ in 0..5 {
        b.send(&Request::pay("k")).await.expect(201);
    }
    let id = a.id("k").await;
    let path = format!("/idempotency/keys/{id}?force=true");
    a.admin(Request::new("DELETE", &path)).await.expect(200);
    let again = b.send(&Request::pay("k")).await.expect(201);
    assert_eq!(again.header(REPLAYED), None);
    assert_eq!(upstream.executions_of("k"), 2);
}
