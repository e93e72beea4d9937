//! Several gateways on one Redis server, and what is checked before it is used.

use std::sync::{
    OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use onlyonce_testkit::servers::Redis;

use crate::{
    harness::{Gateway, REPLAYED, Request, Setup, Upstream, eventually, ms},
    postgres_schema::{onlyonce, refused, text},
    shared_store,
};

/// A database of its own on a server that these tests share.
pub(crate) fn database() -> String {
    static SERVER: OnceLock<Redis> = OnceLock::new();
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let server = SERVER.get_or_init(Redis::start);
    server.database(COUNT.fetch_add(1, Ordering::Relaxed))
}

/// One winner of a race over two gateways.
#[tokio::test]
async fn a_race_over_two_gateways() {
    shared_store::race(&database()).await;
}

/// A node that dies leaves an honest answer.
#[tokio::test]
async fn the_death_of_a_node() {
    shared_store::death_of_a_node(&database()).await;
}

/// A waiter on one node hears of the other node's answer.
#[tokio::test]
async fn a_waiter_on_another_node_is_woken() {
    shared_store::woken_waiter(&database(), ms(300)).await;
}

/// Goal: sweeper and reaper walk a Redis store as they walk any other.
///
/// Method: keys that expire at once.
/// Evidence: they become tombstones, and nothing is left afterwards, neither of records nor of the
/// sets that lead to them. The name of their scope stays.
#[tokio::test]
async fn everything_goes_in_the_end() {
    let server = Redis::start();
    let upstream = Upstream::start();
    let setup = Setup::with("ttl: 1s, tombstone_ttl: 1s").store(&server.url());
    let gateway = setup.start(&upstream).await;
    for number in 0..20 {
        let request = Request::pay(&format!("reap-{number}"));
        gateway.send(&request).await.expect(201);
    }
    eventually("everything to be reaped", async || {
        let left = server.cli(&["keys", "oo:{b*}:[raehnlud]*"]);
        left.is_empty().then_some(())
    })
    .await;
    // What is left is what every store has once, a mark and a count for each bucket, and one scope.
    let left = server.cli(&["keys", "*"]);
    let strange = left.lines().find(|key| {
        let once = ["oo:meta", "oo:recipes", "oo:blocks"].contains(key);
        !([":s", ":c", ":g"].iter().any(|end| key.ends_with(end)) || once)
    });
    assert_eq!(strange, None, "{left}");
    let scopes: Vec<&str> = left.lines().filter(|key| key.ends_with(":g")).collect();
    assert_eq!(scopes.len(), 1, "{left}");
    assert_eq!(server.cli(&["hvals", scopes[0]]).trim(), "global");
}

/// Goal: the level is what the server's settings come to, and `payments` refuses less than `sync`.
#[tokio::test]
async fn levels() {
    let upstream = Upstream::start();
    for (settings, level) in [
        (&["appendonly no"][..], "volatile"),
        (&["save 60 1"][..], "volatile"),
        (&["appendonly yes", "appendfsync everysec"][..], "async"),
        (&["appendonly yes", "appendfsync always"][..], "sync"),
    ] {
        let server = Redis::start_with(settings);
        let gateway = Setup::with("").store(&server.url()).start(&upstream).await;
        let said = format!("store=redis level={level}");
        gateway.says(&said).await;
        let ready = gateway.admin_open("/readyz").await;
        assert!(ready.text().contains(level), "{ready}");
        let strict = Setup::with(
            "profile: payments, reconcile: operator, credential_headers: [Authorization]",
        )
        .store(&server.url());
        if level == "sync" {
            drop(gateway);
            strict.start(&upstream).await;
            continue;
        }
        let logs = refused(&upstream, strict).await;
        assert!(logs.contains("demands a store of level sync"), "{logs}");
    }
}

/// Goal: a server that throws records away is not used unless it is said so.
///
/// Method: the policies of a full memory, with and without `allow_eviction`.
/// Evidence: `allkeys-lru` is refused by name and taken when allowed; one that touches only keys
/// with a time of their own, which no record has, is taken.
#[tokio::test]
async fn a_server_that_evicts() {
    let upstream = Upstream::start();
    let server = Redis::start_with(&["maxmemory 50mb", "maxmemory-policy allkeys-lru"]);
    let setup = Setup::with("").store(&server.url());
    let logs = refused(&upstream, setup.clone()).await;
    assert!(
        logs.contains("maxmemory-policy is allkeys-lru") && logs.contains("allow_eviction"),
        "{logs}"
    );
    let allowed = setup.clone().store_options("allow_eviction: true");
    let gateway = allowed.start(&upstream).await;
    gateway.send(&Request::pay("k")).await.expect(201);
    server.cli(&["config", "set", "maxmemory-policy", "volatile-lru"]);
    let gateway = setup.start(&upstream).await;
    let again = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(again.header(REPLAYED), Some("true"));
}

/// Goal: a memory that is full is a refusal, not a half-written record.
///
/// Method: the limit is set to what is used already.
/// Evidence: 503 for a new key, nothing reaches the upstream; a replay still works; with room again
/// the key is taken.
#[tokio::test]
async fn a_full_memory() {
    let server = Redis::start();
    let upstream = Upstream::start();
    let gateway = Setup::with("").store(&server.url()).start(&upstream).await;
    gateway.send(&Request::pay("before")).await.expect(201);
    server.cli(&["config", "set", "maxmemory", "1"]);
    let answer = gateway.send(&Request::pay("k")).await;
    answer.refused(503, "idempotency_store_unavailable");
    let replay = gateway.send(&Request::pay("before")).await.expect(201);
    assert_eq!(replay.header(REPLAYED), Some("true"));
    assert_eq!(upstream.executions(), 1);
    server.cli(&["config", "set", "maxmemory", "0"]);
    eventually("new keys to be taken again", async || {
        let answer = gateway.send(&Request::pay("k")).await;
        (answer.status == 201).then_some(())
    })
    .await;
    assert_eq!(upstream.executions_of("k"), 1);
}

/// Goal: a database that was emptied under a running gateway is no place where a key is let in twice.
///
/// Method: FLUSHALL; then `onlyonce migrate`, and a second gateway beside the first.
/// Evidence: the upstream's count. The first gateway refuses what it executed before, and `/readyz` says
/// what was lost and what to do; after `migrate` the second one executes, and the first stays out.
#[tokio::test]
async fn an_emptied_database_takes_no_keys() {
    let server = Redis::start();
    let upstream = Upstream::start();
    let setup = Setup::with("").store(&server.url());
    // Every retry asks the store.
    let setup = setup.store_options("near_cache: 0");
    let first = setup.clone().start(&upstream).await;
    first.send(&Request::pay("before")).await.expect(201);
    server.cli(&["flushall"]);
    for key in ["before", "after"] {
        let answer = first.send(&Request::pay(key)).await;
        answer.refused(503, "idempotency_history_lost");
    }
    let not_ready = async |gateway: &Gateway, why: &str| {
        eventually("what is wrong to be said", async || {
            let ready = gateway.admin_open("/readyz").await;
            (ready.status == 503 && ready.text().contains(why)).then_some(())
        })
        .await;
    };
    not_ready(&first, "the store has lost its records").await;
    not_ready(&first, "onlyonce migrate --store URL").await;
    assert_eq!(upstream.executions(), 1);

    let made = onlyonce(&["migrate", "--store", &server.url()]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let second = setup.start(&upstream).await;
    second.send(&Request::pay("after")).await.expect(201);
    let answer = first.send(&Request::pay("after")).await;
    answer.refused(503, "idempotency_history_lost");
    not_ready(&first, "another secret").await;
    assert_eq!(upstream.executions(), 2);
}

/// Goal: a server that is set to throw records away under a running gateway is refused until it is set
/// right, as it is at the start; and one that is away keeps its level.
///
/// Method: `CONFIG SET maxmemory-policy` there and back; then the server is stopped.
/// Evidence: 503 without a count upstream, for known keys too, and `/readyz` names the policy; the same
/// gateway replays afterwards. While the server is away `/readyz` says so, and the level as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_changes_and_a_server_that_is_away() {
    let mut server = Redis::start_with(&["appendonly yes", "appendfsync always"]);
    let upstream = Upstream::start();
    let setup = Setup::with("").store(&server.url());
    // Every retry asks the store.
    let setup = setup.store_options("near_cache: 0");
    let gateway = setup.start(&upstream).await;
    gateway.send(&Request::pay("known")).await.expect(201);
    let ready = async |status: u16, why: &str| {
        eventually("the gateway to say so", async || {
            let ready = gateway.admin_open("/readyz").await;
            let said = ready.status == status && ready.text().contains(why);
            said.then(|| ready.json())
        })
        .await
    };
    server.cli(&["config", "set", "maxmemory-policy", "allkeys-lru"]);
    ready(503, "maxmemory-policy is allkeys-lru").await;
    for key in ["known", "new"] {
        let answer = gateway.send(&Request::pay(key)).await;
        answer.refused(503, "idempotency_store_unavailable");
    }
    assert_eq!(upstream.executions(), 1);
    server.cli(&["config", "set", "maxmemory-policy", "noeviction"]);
    ready(200, "ready").await;
    let known = gateway.send(&Request::pay("known")).await.expect(201);
    assert_eq!(known.header(REPLAYED), Some("true"));

    server.stop();
    let body = ready(503, "the store cannot be reached").await;
    assert_eq!(body["store"]["level"], "sync", "{body}");
}

/// Goal: the forms of older gateways run: `redis.address` and `mode: distributed`.
#[tokio::test]
async fn the_address_of_older_gateways() {
    let upstream = Upstream::start();
    let server = Redis::start();
    let address = format!("127.0.0.1:{}", server.port());
    let options = "enforce: true, key_scope: per_client, ttl: 48h, mode: distributed";
    let setup = Setup::with(options)
        .clients(&["acme"])
        .redis_address(&address);
    let gateway = setup.start(&upstream).await;
    let request = Request::pay("k").of_client("acme");
    gateway.send(&request).await.expect(201);
    let replay = gateway.send(&request).await.expect(201);
    assert_eq!(replay.header(REPLAYED), Some("true"));
    gateway.says("store=redis").await;
    assert_eq!(upstream.executions(), 1);
}

/// Goal: the command line takes a Redis store.
///
/// Evidence: `migrate` says that there is no schema and makes the store; a gateway that may not make
/// one is refused before and runs after; `keys` lists and forgets beside it.
#[tokio::test]
async fn on_the_command_line() {
    let upstream = Upstream::start();
    let url = database();
    let setup = Setup::with("").store(&url).store_options("migrate: false");
    let logs = refused(&upstream, setup.clone()).await;
    assert!(logs.contains("onlyonce migrate"), "{logs}");
    let made = onlyonce(&["migrate", "--store", &url]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    assert!(text(&made.stdout).contains("layout is at version 1"));
    let printed = onlyonce(&["migrate", "--store", &url, "--print"]);
    assert!(text(&printed.stderr).contains("no SQL"));
    let gateway = setup.start(&upstream).await;
    gateway.send(&Request::pay("one")).await.expect(201);
    let listed = onlyonce(&["keys", "list", "--store", &url, "--json"]);
    assert!(
        text(&listed.stdout).contains("\"one\""),
        "{}",
        text(&listed.stderr)
    );
    let forget = ["keys", "forget", "--key", "one", "--force", "--store", &url];
    let forgot = onlyonce(&forget);
    assert_eq!(forgot.status.code(), Some(0), "{}", text(&forgot.stderr));
    assert_eq!(gateway.state("one").await, "expired");
}

/// Goal: the way to the server can be encrypted, and the server proven.
///
/// Method: a server that takes encrypted connections with a password only, with a certificate of a CA
/// of the tests; the right CA, no CA, and a connection in plain text.
/// Evidence: with the CA the gateway serves; otherwise it does not start, and says nothing of the
/// password.
#[tokio::test]
async fn tls() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/http/verify/tls");
    let port = onlyonce_testkit::servers::free_port();
    let settings = [
        format!("tls-port {port}"),
        format!("tls-cert-file {folder}/server.pem"),
        format!("tls-key-file {folder}/server.key"),
        "tls-auth-clients no".to_owned(),
        "user app on >s3cret-word ~* &* +@all".to_owned(),
    ];
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let _server = Redis::start_with(&settings);
    let upstream = Upstream::start();
    let at = |scheme: &str, tail: &str| {
        let url = format!("{scheme}://app:s3cret-word@127.0.0.1:{port}{tail}");
        Setup::with("").store(&url)
    };
    let proven = at("rediss", &format!("?ca={folder}/ca.pem"));
    let gateway = proven.start(&upstream).await;
    gateway.send(&Request::pay("k")).await.expect(201);
    for unproven in [at("rediss", ""), at("redis", "")] {
        let logs = refused(&upstream, unproven).await;
        assert!(!logs.contains("s3cret-word"), "{logs}");
    }
}
