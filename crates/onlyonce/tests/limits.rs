//! What one client may take, and what happens when the store is away, in the engine that the library and
//! the gateway share. Time is by hand or virtual.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, Method};
use onlyonce::{
    Engine, EngineOptions, Policy,
    clock::Clock,
    engine::{Admitted, Arrival, Attempt},
    limits::{Client, Limited},
};
use onlyonce_core::{
    Key, Scope, Secret, StoredResponse,
    machine::Settlement,
    record::{LastError, StoredBody},
};
use onlyonce_store::{Filter, Store, clock::StoreClock, memory::MemoryStore};
use onlyonce_testkit::faulty_store::{FaultPlan, FaultyStore};
use tokio::time::Instant;

/// An engine whose clock stands still, on a store that answers no peek: every request takes the long
/// way.
struct World {
    engine: Engine,
    store: Arc<FaultyStore>,
    hand: Arc<AtomicU64>,
}

impl World {
    fn new() -> Self {
        let store = FaultyStore::new(Arc::new(MemoryStore::new()), FaultPlan::default(), 1);
        let store = Arc::new(store);
        let hand = Arc::new(AtomicU64::new(1_000_000));
        let options = EngineOptions {
            clock: Clock::by_hand(hand.clone()),
            ..EngineOptions::default()
        };
        Self {
            engine: Engine::start(store.clone(), options),
            store,
            hand,
        }
    }

    fn pass(&self, time: Duration) {
        let time = u64::try_from(time.as_millis()).unwrap();
        self.hand.fetch_add(time, Ordering::SeqCst);
    }

    fn arrival(&self, client: &str, key: &str) -> Arrival {
        let arrival = Arrival::new(
            &self.engine,
            Scope::client(client),
            Key::from_stored(key),
            None,
            "r".into(),
            &Method::POST,
            "/payments",
            HeaderMap::new(),
            Default::default(),
        );
        arrival.from_client(Client::Named(client.into()))
    }

    async fn admit(&self, client: &str, key: &str, policy: &Arc<Policy>) -> Admitted {
        let mut arrival = self.arrival(client, key);
        self.engine.admit(&mut arrival, policy).await.unwrap()
    }

    /// A new key that is executed and completed.
    async fn complete(&self, client: &str, key: &str, policy: &Arc<Policy>) {
        let attempt = executed(self.admit(client, key, policy).await);
        let answer = StoredResponse {
            status: http::StatusCode::CREATED,
            headers: HeaderMap::new(),
            body: StoredBody::Full {
                bytes: "done".into(),
                trailers: None,
            },
        };
        attempt
            .settle(&Settlement::Complete(Arc::new(answer)))
            .await;
    }

    async fn rows(&self) -> usize {
        let page = self.store.list(&Filter::default(), None, 1_000).await;
        page.unwrap().items.len()
    }
}

fn executed(admitted: Admitted) -> Box<Attempt> {
    match admitted {
        Admitted::Execute(attempt) => attempt,
        other => panic!("{other:?}"),
    }
}

fn limited(admitted: Admitted) -> Limited {
    match admitted {
        Admitted::Limited(limited) => limited,
        other => panic!("{other:?}"),
    }
}

/// Goal: a token that was taken for a key which turns out to exist is given back.
///
/// Method: two tokens and no time; one new key, then a hundred replays of it that all take the long way.
/// Evidence: the second new key still finds its token; the third finds none, and no row.
#[tokio::test]
async fn a_token_comes_back_when_the_key_exists() {
    let world = World::new();
    let policy = Arc::new(Policy::builder().new_keys_per_second(1).burst(2).build());
    world.complete("a", "one", &policy).await;
    for _ in 0..100 {
        let again = world.admit("a", "one", &policy).await;
        assert!(matches!(again, Admitted::Replay(_)), "{again:?}");
    }
    world.complete("a", "two", &policy).await;
    let refused = limited(world.admit("a", "three", &policy).await);
    assert_eq!(refused, Limited::Rate(Duration::from_secs(1)));
    assert_eq!(world.rows().await, 2);
    // Another client has a bucket of its own.
    world.complete("b", "one", &policy).await;
    world.pass(Duration::from_secs(1));
    world.complete("a", "three", &policy).await;
}

/// Goal: with no token left, what is known goes on as usual.
///
/// Method: use up the tokens; then a replay, a retry of a released key, a duplicate of a running one.
/// Evidence: each is what it would have been; only the unknown key is refused.
#[tokio::test]
async fn known_keys_need_no_token() {
    let world = World::new();
    let policy = Arc::new(Policy::builder().new_keys_per_second(1).burst(3).build());
    world.complete("a", "done", &policy).await;
    let released = executed(world.admit("a", "released", &policy).await);
    released
        .settle(&Settlement::Release(LastError::NotSent))
        .await;
    let running = executed(world.admit("a", "running", &policy).await);
    assert!(matches!(
        limited(world.admit("a", "new", &policy).await),
        Limited::Rate(_)
    ));
    let replay = world.admit("a", "done", &policy).await;
    assert!(matches!(replay, Admitted::Replay(_)), "{replay:?}");
    let duplicate = world.admit("a", "running", &policy).await;
    assert!(matches!(duplicate, Admitted::InFlight(_)), "{duplicate:?}");
    executed(world.admit("a", "released", &policy).await);
    drop(running);
    assert_eq!(world.rows().await, 3);
}

/// Goal: live keys are those in progress, of one client; unknown ones refuse nobody.
///
/// Method: a limit of two; two running and one unknown; then one of them completes.
/// Evidence: the third running one is refused, another client's is not, and after the completion there is room.
#[tokio::test]
async fn live_keys_are_counted() {
    let world = World::new();
    let policy = Arc::new(Policy::builder().live_keys(2).build());
    for key in ["c1", "c2", "c3", "c4"] {
        world.complete("a", key, &policy).await;
    }
    let lost = executed(world.admit("a", "lost", &policy).await);
    lost.settle(&Settlement::Unknown(LastError::ConnectionLost))
        .await;
    let one = executed(world.admit("a", "one", &policy).await);
    let _two = executed(world.admit("a", "two", &policy).await);
    for _ in 0..3 {
        assert_eq!(
            limited(world.admit("a", "more", &policy).await),
            Limited::Quota
        );
    }
    let known = world.admit("a", "c1", &policy).await;
    assert!(matches!(known, Admitted::Replay(_)), "{known:?}");
    let _other = executed(world.admit("b", "one", &policy).await);
    one.settle(&Settlement::Release(LastError::NotSent)).await;
    world.pass(Duration::from_millis(150));
    let _three = executed(world.admit("a", "more", &policy).await);
    assert_eq!(
        limited(world.admit("a", "even more", &policy).await),
        Limited::Quota
    );
}

/// Goal: however many come at once, a client never has more live keys than it may.
///
/// Method: fifty requests with new keys at once, with a limit of seven, ten times over.
/// Evidence: seven of them execute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_keys_are_never_exceeded() {
    let policy = Arc::new(Policy::builder().live_keys(7).build());
    for round in 0..10 {
        let world = Arc::new(World::new());
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..50 {
            let (world, policy) = (world.clone(), policy.clone());
            tasks.spawn(async move { world.admit("a", &format!("k{number}"), &policy).await });
        }
        let admitted = tasks.join_all().await;
        let running = admitted
            .iter()
            .filter(|one| matches!(one, Admitted::Execute(_)))
            .count();
        assert_eq!(running, 7, "round {round}");
        assert_eq!(world.rows().await, 7, "round {round}");
    }
}

/// Goal: a request that is too old finds a known key and makes no new one.
///
/// Method: the same old request with a known and with an unknown key.
/// Evidence: a replay, and a refusal without a row.
#[tokio::test]
async fn an_old_request_makes_no_new_key() {
    let world = World::new();
    let policy = Arc::new(Policy::default());
    world.complete("a", "known", &policy).await;
    for (key, is_known) in [("known", true), ("unknown", false)] {
        let mut arrival = world.arrival("a", key).made_too_long_ago(true);
        let admitted = world.engine.admit(&mut arrival, &policy).await.unwrap();
        match admitted {
            Admitted::Replay(_) => assert!(is_known),
            Admitted::Limited(Limited::TooOld) => assert!(!is_known),
            other => panic!("{key}: {other:?}"),
        }
    }
    assert_eq!(world.rows().await, 1);
}

/// Goal: a store that does not answer is found out a few times, not by everybody.
///
/// Method: virtual time; a store that answers nothing. Count how long each refusal takes. Then it comes
/// back.
/// Evidence: after five failures the refusals take no time at all; once the store answers, requests go
/// through again without a restart.
#[tokio::test(start_paused = true)]
async fn the_breaker_refuses_at_once_and_closes_by_itself() {
    let world = World::new();
    let policy = Arc::new(Policy::default());
    let silent = FaultPlan {
        lost_per_mille: 1_000,
        ..FaultPlan::default()
    };
    let ask = async |key: &str| {
        let began = Instant::now();
        let mut arrival = world.arrival("a", key);
        let admitted = world.engine.admit(&mut arrival, &policy).await;
        (admitted.is_ok(), began.elapsed())
    };
    world.complete("a", "known", &policy).await;
    world.store.set_plan(silent);
    for number in 0..5 {
        assert!(!world.engine.breaker_is_open(), "after {number} failures");
        let (good, took) = ask(&format!("k{number}")).await;
        assert!(!good && took >= Duration::from_secs(2), "{took:?}");
    }
    assert!(world.engine.breaker_is_open());
    for key in ["new", "known"] {
        assert_eq!(ask(key).await, (false, Duration::ZERO), "{key}");
    }
    // It stays open for as long as the store is silent.
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(world.engine.breaker_is_open());
    world.store.set_plan(FaultPlan::default());
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!world.engine.breaker_is_open());
    assert!(ask("new").await.0);
}

/// Goal: failures that are not in a row, and a record that cannot be read, do not open it.
///
/// Method: four failures, a success, four failures.
/// Evidence: it is closed all the time.
#[tokio::test(start_paused = true)]
async fn the_breaker_counts_failures_in_a_row() {
    let world = World::new();
    let policy = Arc::new(Policy::default());
    let failing = FaultPlan {
        before_per_mille: 1_000,
        ..FaultPlan::default()
    };
    for round in 0..4 {
        world.store.set_plan(failing);
        for number in 0..4 {
            let mut arrival = world.arrival("a", &format!("{round}-{number}"));
            assert!(world.engine.admit(&mut arrival, &policy).await.is_err());
        }
        world.store.set_plan(FaultPlan::default());
        executed(world.admit("a", &format!("{round}"), &policy).await);
        assert!(!world.engine.breaker_is_open());
    }
}

/// A request with the same key each time, of everybody.
fn one_key(engine: &Engine) -> Arrival {
    with_key(engine, "k")
}

fn with_key(engine: &Engine, key: &str) -> Arrival {
    Arrival::new(
        engine,
        Scope::global(),
        Key::from_stored(key),
        None,
        "r".into(),
        &Method::POST,
        "/payments",
        HeaderMap::new(),
        Default::default(),
    )
}

/// An engine and its store, each with a clock of its own: that of the engine, and that of the store.
fn by_hand() -> (Engine, Arc<MemoryStore>, Arc<AtomicU64>, Arc<AtomicI64>) {
    let there = Arc::new(AtomicI64::new(1_794_787_200_000));
    let clock = StoreClock::by_hand(there.clone());
    let store = Arc::new(MemoryStore::with(Secret::from_bytes([7; 32]), clock));
    let here = Arc::new(AtomicU64::new(1_000_000));
    let options = EngineOptions {
        clock: Clock::by_hand(here.clone()),
        ..EngineOptions::default()
    };
    (Engine::start(store.clone(), options), store, here, there)
}

async fn paid(attempt: &Attempt) {
    let paid = StoredResponse::plain(http::StatusCode::CREATED, "paid");
    attempt.settle(&Settlement::Complete(Arc::new(paid))).await;
}

/// What a key can be when a request comes that may begin no life of one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Past {
    Unused,
    Completed,
    Released,
    /// Past its ttl.
    Expired(Settled),
    /// The same, and an operator has given it back.
    Forgotten,
    /// Past its tombstone's.
    Gone(Settled),
}

/// How it ended before.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Settled {
    Completed,
    Released,
}

/// Goal: who may bring no new key begins no life of an old one either, whether or not the reaper has been
/// there; what the key's present life permits goes on.
///
/// Method: every past of a key, reaped or not; the same request again, once made too long ago by its own
/// word, and once without a token. Then once more, without either.
/// Evidence: refused wherever a life would begin, with the row as it was; otherwise what the past permits;
/// and at the end the request that may execute does.
#[tokio::test]
async fn no_life_begins_without_room() {
    use Past::{Completed, Expired, Forgotten, Gone, Released, Unused};
    let ends = [Settled::Completed, Settled::Released];
    let pasts = [Unused, Completed, Released, Forgotten];
    let later = ends.map(Expired).into_iter().chain(ends.map(Gone));
    for past in pasts.into_iter().chain(later) {
        for (reaped, old) in [(false, false), (false, true), (true, false), (true, true)] {
            let why = format!("{past:?}, reaped {reaped}, too old {old}");
            let (engine, store, hand, store_hand) = by_hand();
            let policy = Arc::new(Policy::builder().new_keys_per_second(1).burst(1).build());
            let arrival = || one_key(&engine).made_too_long_ago(old);
            let pass = |time: Duration| {
                let time = i64::try_from(time.as_millis()).unwrap();
                store_hand.fetch_add(time, Ordering::SeqCst);
                hand.fetch_add(time.cast_unsigned(), Ordering::SeqCst);
            };
            if past != Unused {
                let admitted = engine.admit(&mut one_key(&engine), &policy).await.unwrap();
                let attempt = executed(admitted);
                match past {
                    Released | Expired(Settled::Released) | Gone(Settled::Released) => {
                        let released = Settlement::Release(LastError::NotSent);
                        attempt.settle(&released).await;
                    }
                    _ => paid(&attempt).await,
                }
            }
            let id = one_key(&engine).id();
            match past {
                Unused | Completed | Released => {}
                Expired(_) => pass(policy.ttl),
                Forgotten => {
                    engine.forget(id, true, None).await.unwrap();
                }
                Gone(_) => pass(policy.ttl + policy.tombstone_ttl),
            }
            // The token that has come back in the meantime goes to another key.
            pass(Duration::from_secs(2));
            if reaped {
                for _ in 0..2 {
                    while !engine.reap_some(100).await.unwrap().2 {}
                }
            }
            if !old {
                let admitted = engine
                    .admit(&mut with_key(&engine, "other"), &policy)
                    .await
                    .unwrap();
                paid(&executed(admitted)).await;
            }
            let before = store.lookup(id).await.unwrap().value;
            let admitted = engine.admit(&mut arrival(), &policy).await.unwrap();
            match (past, admitted) {
                (Completed, Admitted::Replay(_)) | (Released, Admitted::Execute(_)) => continue,
                (Completed | Released, other) => panic!("{why}: {other:?}"),
                (_, Admitted::Limited(Limited::TooOld)) if old => {}
                (_, Admitted::Limited(Limited::Rate(_))) if !old => {}
                (_, other) => panic!("{why}: {other:?}"),
            }
            let after = store.lookup(id).await.unwrap().value;
            assert_eq!(after, before, "{why}: nothing is written");
            pass(Duration::from_secs(2));
            let admitted = engine.admit(&mut one_key(&engine), &policy).await.unwrap();
            executed(admitted);
            let none_left = engine
                .admit(&mut with_key(&engine, "third"), &policy)
                .await
                .unwrap();
            let is_used = matches!(none_left, Admitted::Limited(Limited::Rate(_)));
            assert!(is_used, "{why}: a life takes a token: {none_left:?}");
        }
    }
}

/// Goal: a wall clock that is set ends no execution's signs of life; time that goes by does.
///
/// Method: an attempt; ten seconds later, with the wall clock set in either direction, a heartbeat; and one
/// after the longest execution.
/// Evidence: the heartbeats are taken, the last one is not.
#[tokio::test]
async fn signs_of_life_do_not_look_at_the_wall() {
    let wall_start = 1_000_000_000;
    for set_to in [
        wall_start + 10_000,
        wall_start - 30_000,
        wall_start + 3_600_000,
    ] {
        let boot = Arc::new(AtomicU64::new(50_000));
        let wall = Arc::new(AtomicU64::new(wall_start));
        let options = EngineOptions {
            clock: Clock::by_hands(boot.clone(), wall.clone()),
            ..EngineOptions::default()
        };
        let engine = Engine::start(Arc::new(MemoryStore::new()), options);
        let policy = Arc::new(Policy::default());
        let mut arrival = one_key(&engine);
        let admitted = engine.admit(&mut arrival, &policy).await.unwrap();
        let Admitted::Execute(attempt) = admitted else {
            panic!("{admitted:?}");
        };
        boot.fetch_add(10_000, Ordering::SeqCst);
        wall.store(set_to, Ordering::SeqCst);
        assert!(attempt.renew().await, "the wall clock says {set_to}");
        let longest = u64::try_from(policy.max_execution.as_millis()).unwrap();
        boot.fetch_add(longest, Ordering::SeqCst);
        assert!(!attempt.renew().await, "it has run for too long");
    }
}

/// Goal: a store's clock that is set ahead by mistake executes nothing again.
///
/// Method: a key is completed; a second later the store's clock says that it has long expired, and goes on
/// from there.
/// Evidence: a retry gets the answer, until the new time has gone steadily for a while.
#[tokio::test]
async fn a_clock_that_jumps_ahead_expires_nothing() {
    let (engine, _, hand, store_hand) = by_hand();
    let policy = Arc::new(Policy::default());
    let pass = |here: u64, there: i64| {
        hand.fetch_add(here, Ordering::SeqCst);
        store_hand.fetch_add(there, Ordering::SeqCst);
    };
    let ask = async || {
        let mut arrival = one_key(&engine);
        let peeked = engine.peek(&mut arrival, &policy);
        match peeked {
            Some(admitted) => admitted,
            None => engine.admit(&mut arrival, &policy).await.unwrap(),
        }
    };
    let Admitted::Execute(attempt) = ask().await else {
        panic!("a new key");
    };
    paid(&attempt).await;
    let ttl = i64::try_from(policy.ttl.as_millis()).unwrap();
    pass(1_000, ttl + 3_600_000);
    assert!(matches!(ask().await, Admitted::Replay(_)), "it jumped");
    pass(300_000, 300_000);
    assert!(matches!(ask().await, Admitted::Replay(_)), "a while ago");
    pass(300_000, 300_000);
    assert!(matches!(ask().await, Admitted::Execute(_)), "it is steady");
}
