//! A Redis master that is frozen or killed while keys are reserved, with Sentinels and in a cluster:
//! what was acknowledged is on the new master, and the new master is found in time.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt as _, future::join_all, stream};
use onlyonce_core::{
    AttemptId, Fingerprint, Key, Policy, Recipe, RecordId, Scope,
    machine::{self, Request},
    record::Draft,
};
use onlyonce_store::{
    Inserted, Level, Store, StoreError,
    redis::{RedisOptions, RedisStore},
};
use onlyonce_testkit::servers::{Redis, RedisCluster, RedisSentinels};
use tokio::time::Instant;

/// Keys that are under way at once.
const WRITERS: usize = 8;
/// Keys that are reserved before a fault, and after its end.
const SOME: usize = 200;
/// How soon a new master must be found.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(2);
/// How long anything else may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Keys that show that every server takes them: enough that each server has some.
const EVERYWHERE: usize = 64;
/// The pause of a writer that was refused.
const PAUSE: Duration = Duration::from_millis(5);

async fn open(url: &str) -> RedisStore {
    RedisStore::open(url, &RedisOptions::default())
        .await
        .unwrap()
}

fn draft(store: &RedisStore, name: &str) -> Draft {
    let key = Key::from_stored(name);
    let request = Request {
        id: store.secret().record_id(Scope::global().as_str(), &key),
        scope: Scope::global(),
        key,
        fingerprint: Fingerprint([7; 32]),
        recipe: Recipe::default().id(),
        caller: None,
        attempt_id: AttemptId(1),
        route: "r".into(),
        method: "POST".into(),
        path: "/".into(),
        other_mark: None,
        notes: onlyonce_core::record::Notes::default(),
    };
    machine::first(&request, &Policy::default())
}

async fn insert(store: &RedisStore, name: &str) -> Result<RecordId, StoreError> {
    match store.insert_or_get(draft(store, name)).await?.value {
        Inserted::New(record) | Inserted::Existing(record) => Ok(record.id),
    }
}

/// Writers that reserve new keys, whatever becomes of them, until told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    taken: Arc<AtomicUsize>,
    writers: Vec<tokio::task::JoinHandle<(Vec<RecordId>, usize)>>,
}

impl Load {
    fn start(store: &Arc<RedisStore>, what: &'static str) -> Self {
        let (stop, taken) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let writers = (0..WRITERS).map(|writer| {
            let (store, stop, taken) = (store.clone(), stop.clone(), taken.clone());
            tokio::spawn(async move {
                let (mut acknowledged, mut failed) = (Vec::new(), 0);
                for number in 0_u32.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    match insert(&store, &format!("{what}-{writer}-{number}")).await {
                        Ok(id) => {
                            acknowledged.push(id);
                            taken.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(_) => {
                            failed += 1;
                            tokio::time::sleep(PAUSE).await;
                        }
                    }
                }
                (acknowledged, failed)
            })
        });
        let writers = writers.collect();
        Self {
            stop,
            taken,
            writers,
        }
    }

    /// Returns when so many more keys have been taken.
    async fn more(&self, count: usize) {
        let goal = self.taken.load(Ordering::SeqCst) + count;
        while self.taken.load(Ordering::SeqCst) < goal {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Every key that was acknowledged, and how many were not.
    async fn end(self) -> (Vec<RecordId>, usize) {
        self.stop.store(true, Ordering::SeqCst);
        let (mut acknowledged, mut failed) = (Vec::new(), 0);
        for writer in self.writers {
            let (ids, not) = writer.await.unwrap();
            acknowledged.extend(ids);
            failed += not;
        }
        (acknowledged, failed)
    }
}

/// How long it takes until every server takes new keys.
async fn followed(store: &RedisStore, what: &str) -> Duration {
    let began = Instant::now();
    for round in 0_u32.. {
        assert!(began.elapsed() < PATIENCE, "{what}: it was never followed");
        let inserts = (0..EVERYWHERE).map(|number| {
            let name = format!("{what}-after-{round}-{number}");
            async move { insert(store, &name).await.is_ok() }
        });
        if join_all(inserts).await.into_iter().all(|taken| taken) {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    began.elapsed()
}

/// How many of these are not there, as a store sees it that was opened afterwards.
async fn missing(url: &str, ids: &[RecordId]) -> usize {
    let store = open(url).await;
    let looks = ids.iter().map(|id| store.lookup(*id));
    let looks = stream::iter(looks).buffer_unordered(EVERYWHERE);
    let gone = looks.filter(|found| {
        let gone = found.as_ref().unwrap().value.is_none();
        async move { gone }
    });
    gone.count().await
}

/// Under load: `fault`, wait until all others have `switched`, and then until it `heals`.
async fn survives(
    (what, url): (&'static str, &str),
    fault: impl FnOnce(),
    switched: impl FnOnce(),
    heals: impl FnOnce(),
) {
    let store = Arc::new(open(url).await);
    assert!(
        store.level() < Level::Sync,
        "{what}: a replica may take over"
    );
    let load = Load::start(&store, what);
    load.more(SOME).await;
    tokio::task::block_in_place(fault);
    tokio::task::block_in_place(switched);
    let took = followed(&store, what).await;
    tokio::task::block_in_place(heals);
    load.more(SOME).await;
    let (acknowledged, failed) = load.end().await;
    let lost = missing(url, &acknowledged).await;
    println!(
        "{what}: followed after {took:?}; {} acknowledged, {failed} not, {lost} lost",
        acknowledged.len()
    );
    assert_eq!(
        lost,
        0,
        "{what}: of {} acknowledged keys",
        acknowledged.len()
    );
    assert!(took <= FOLLOWED_WITHIN, "{what}: followed after {took:?}");
    assert!(failed > 0, "{what}: the fault was felt");
}

/// Goal: a key that was acknowledged is known to whoever is master afterwards, and a new master is found
/// within two seconds of the Sentinels' choice.
///
/// Method: under load an operator has the master replaced, which goes on as master for some ten seconds,
/// until the Sentinels make it a replica. The second one is frozen until it is replaced, and wakes as
/// master for as long. The third is killed with -9.
/// Evidence: every reservation that was acknowledged is found through the new master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_sentinels() {
    let servers = tokio::task::block_in_place(RedisSentinels::start);
    let url = servers.url();
    survives(
        // One Sentinel names the others.
        ("a master replaced by an operator", &servers.url_of(1)),
        || servers.replace(),
        || servers.until_named(servers.replica.port()),
        || servers.master.until_follows(),
    )
    .await;
    survives(
        ("a master frozen, with Sentinels", &url),
        || {
            servers.replica.until_heard_by(&servers.master);
            servers.replica.freeze();
        },
        || servers.until_named(servers.master.port()),
        || {
            servers.replica.thaw();
            servers.replica.until_follows();
        },
    )
    .await;
    let port = servers.replica.port();
    let servers = std::cell::RefCell::new(servers);
    survives(
        ("a master killed, with Sentinels", &url),
        || {
            let mut servers = servers.borrow_mut();
            servers.master.until_heard_by(&servers.replica);
            servers.master.kill();
        },
        || servers.borrow().until_named(port),
        || {},
    )
    .await;
}

/// The same in a cluster, whose nodes choose among themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster() {
    // The other masters go on, so that none of them says that something is wrong.
    let settings = [
        "appendonly yes",
        "appendfsync always",
        "cluster-require-full-coverage no",
    ];
    let cluster = tokio::task::block_in_place(|| RedisCluster::start_with_replicas(&settings));
    let url = cluster.url();
    let cluster = std::cell::RefCell::new(cluster);
    survives(
        ("a master frozen, in a cluster", &url),
        || {
            cluster.borrow().until_heard(2);
            cluster.borrow_mut().masters()[2].freeze();
        },
        || cluster.borrow().until_all_know(2),
        || {
            cluster.borrow_mut().masters()[2].thaw();
            cluster.borrow_mut().masters()[2].until_follows();
        },
    )
    .await;
    survives(
        ("a master killed, in a cluster", &url),
        || {
            cluster.borrow().until_heard(1);
            cluster.borrow_mut().masters()[1].kill();
        },
        || cluster.borrow().until_all_know(1),
        || {},
    )
    .await;
}

async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "waited for {what} in vain");
        tokio::time::sleep(PAUSE).await;
    }
}

/// What the store says of itself, if it refuses.
async fn unfit(store: &RedisStore) -> Option<String> {
    let refused = store.probe().await.err()?;
    refused.unfit().map(ToString::to_string)
}

/// Goal: a server that is set to throw records away is not used from then on, and used again when it is
/// set right, without a restart. One that is away keeps its level. An emptied database takes no keys.
///
/// Method: `CONFIG SET maxmemory-policy`, a stop, and FLUSHALL, each under an open store.
/// Evidence: what insert, lookup and probe say, and how many records are there afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changes_under_an_open_store() {
    let settings = ["appendonly yes", "appendfsync always"];
    let mut server = tokio::task::block_in_place(|| Redis::start_with(&settings));
    let url = server.url();
    let store = open(&url).await;
    let known = insert(&store, "known").await.unwrap();

    // Eviction.
    server.cli(&["config", "set", "maxmemory-policy", "allkeys-lru"]);
    eventually("the policy to be seen without a probe", async || {
        let refused = insert(&store, "evicting").await.err()?;
        let why = refused.unfit()?.to_string();
        why.contains("maxmemory-policy is allkeys-lru")
            .then_some(())
    })
    .await;
    assert!(store.lookup(known).await.unwrap_err().unfit().is_some());
    assert!(unfit(&store).await.is_some());
    server.cli(&["config", "set", "maxmemory-policy", "noeviction"]);
    eventually("the store to work again", async || {
        insert(&store, "evicting-no-more").await.ok()
    })
    .await;
    assert!(store.lookup(known).await.unwrap().value.is_some());

    // Away.
    assert_eq!(store.level(), Level::Sync);
    tokio::task::block_in_place(|| server.stop());
    assert!(store.probe().await.is_err());
    assert!(insert(&store, "away").await.is_err());
    assert_eq!(store.level(), Level::Sync, "it is away, not changed");
    tokio::task::block_in_place(|| server.boot());
    insert(&store, "back").await.unwrap();

    // Emptied.
    server.cli(&["flushall"]);
    let refused = insert(&store, "known").await.unwrap_err();
    let why = refused.unfit().unwrap().to_string();
    assert!(
        why.contains("lost its records") && why.contains("onlyonce migrate"),
        "{why}"
    );
    assert!(unfit(&store).await.unwrap().contains("lost its records"));
    let left = server.cli(&["keys", "*"]);
    assert_eq!(left, "", "nothing is put back");
    // An operator begins anew, and whoever was there before stays out.
    let anew = open(&url).await;
    insert(&anew, "known").await.unwrap();
    anew.probe().await.unwrap();
    let refused = insert(&store, "other").await.unwrap_err();
    assert!(
        refused
            .unfit()
            .unwrap()
            .to_string()
            .contains("another secret")
    );
    assert!(unfit(&store).await.unwrap().contains("another secret"));
}

/// Goal: a server whose replica is away is not taken for one that never had any: the replica may come back
/// without what was written meanwhile, and be promoted.
///
/// Method: a server that flushes always; a replica is attached, and killed.
/// Evidence: the level, each time after it was read anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_away_counts() {
    let settings = ["appendonly yes", "appendfsync always"];
    let server = tokio::task::block_in_place(|| Redis::start_with(&settings));
    let store = open(&server.url()).await;
    assert_eq!(store.level(), Level::Sync);
    let follow = format!("replicaof 127.0.0.1 {}", server.port());
    let mut replica = tokio::task::block_in_place(|| Redis::start_with(&[&follow]));
    tokio::task::block_in_place(|| replica.until_follows());
    eventually("the replica to speak", async || {
        let info = server.cli(&["info", "replication"]);
        info.contains("state=online").then_some(())
    })
    .await;
    store.probe().await.unwrap();
    assert_eq!(store.level(), Level::Async);
    tokio::task::block_in_place(|| replica.kill());
    eventually("the replica to be missed", async || {
        let info = server.cli(&["info", "replication"]);
        info.contains("connected_slaves:0").then_some(())
    })
    .await;
    store.probe().await.unwrap();
    assert_eq!(store.level(), Level::Async);
}

/// Goal: a store whose making was interrupted is finished, and one that lost a bucket is not.
///
/// Method: a mark is taken away before and after the note that all are there.
/// Evidence: whether the mark is back after the store was opened again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn marks_are_made_with_the_store() {
    let server = tokio::task::block_in_place(Redis::start);
    let url = server.url();
    drop(open(&url).await);
    let mark = "oo:{b000}:s";
    server.cli(&["del", mark]);
    let store = open(&url).await;
    assert_eq!(server.cli(&["exists", mark]), "0", "it is lost");
    assert!(unfit(&store).await.unwrap().contains("lost its records"));
    server.cli(&["hdel", "oo:meta", "marked"]);
    let store = open(&url).await;
    assert_eq!(server.cli(&["exists", mark]), "1", "it was never made");
    store.probe().await.unwrap();
}
