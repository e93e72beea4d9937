//! The worker that delivers messages, as a process has it: woken, in order, bounded, and stopped well.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod claims;
mod postgres;

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::BoxFuture;
use http::StatusCode;
use onlyonce::{
    Answer, Engine, EngineOptions, Operation, Policy, Ran, RunError, Transactions,
    outbox::{
        Deliveries, Delivery, MAX_MESSAGE_BYTES, Message, MessageTooLarge, Parcel, Publish,
        Retried, Target, TargetRules,
    },
    policy::OnInFlight,
};
use onlyonce_core::{Key, MessageState, Scope};
use onlyonce_store::{
    Store, TransactionalStore as _,
    at_rest::{AtRest, AtRestOptions, Compression, Keyring},
    outbox::MessageFilter,
    sqlite::{SqliteStore, SqliteTransactions},
    transactional::{Isolation, TransactionError},
};

/// How long anything may take; it ends what hangs.
const DEADLINE: Duration = Duration::from_secs(60);
/// Polling that is no help within a test: whoever is served before was woken.
const NEVER: Duration = Duration::from_secs(3_600);

/// A receiver that notes what it gets, in order, and fails or dawdles as it is told by the payload.
#[derive(Clone, Default)]
struct Receiver(Arc<Mutex<Vec<(String, String)>>>);

impl Receiver {
    fn got(&self) -> Vec<(String, String)> {
        self.0.lock().unwrap().clone()
    }
}

impl Publish for Receiver {
    fn publish<'a>(&'a self, parcel: &'a Parcel) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let text = String::from_utf8_lossy(&parcel.payload).into_owned();
            let noted = (parcel.key.clone(), text.clone());
            self.0.lock().unwrap().push(noted);
            match text.as_str() {
                "fails" => return Delivery::Unclear("500".to_owned()),
                "slow" => tokio::time::sleep(Duration::from_millis(400)).await,
                _ => {}
            }
            Delivery::Delivered {
                provider_id: None,
                answer: Some(Answer::new(StatusCode::CREATED, "canary-answer")),
            }
        })
    }
}

fn target(receiver: &Receiver) -> Target {
    Target {
        rules: TargetRules {
            max_attempts: 4,
            first_pause: Duration::from_millis(10),
            ..TargetRules::default()
        },
        ..Target::new("target", receiver.clone())
    }
}

struct Place {
    folder: tempfile::TempDir,
    engine: Engine,
    inside: SqliteTransactions,
}

impl Place {
    async fn new(sealed: bool) -> Self {
        Self::by(sealed, EngineOptions::default()).await
    }

    async fn by(sealed: bool, options: EngineOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("store.db")).unwrap();
        let inside = store.transactions().unwrap();
        let mut store: Arc<dyn Store> = Arc::new(store);
        if sealed {
            let keys = Keyring::parse("test:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
            let options = AtRestOptions {
                keys: Some(keys.unwrap()),
                compression: Compression::None,
            };
            store = Arc::new(AtRest::open(store, options).await.unwrap());
        }
        let engine = Engine::start(store, options);
        Self {
            folder,
            engine,
            inside,
        }
    }

    async fn leave(&self, message: &Message) {
        let mut open = self.inside.begin(Isolation::default()).await.unwrap();
        self.inside.enqueue(&mut open, message).await.unwrap();
        self.inside.commit(open).await.unwrap();
    }

    async fn count(&self, state: MessageState) -> u64 {
        let depth = self.engine.outbox().unwrap().depth().await.unwrap();
        depth.get(&state).copied().unwrap_or_default()
    }

    async fn until(&self, state: MessageState, count: u64) {
        let wait = async {
            while self.count(state).await != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(DEADLINE, wait).await;
        waited.unwrap_or_else(|_| panic!("no {count} messages are {}", state.as_str()));
    }

    fn transactions(&self) -> Transactions<SqliteTransactions> {
        Transactions::new(self.engine.clone(), self.inside.clone())
    }

    async fn operation(&self) -> Operation<SqliteTransactions> {
        operation(self.transactions()).await
    }
}

/// An operation whose retries wait.
async fn operation(all: Transactions<SqliteTransactions>) -> Operation<SqliteTransactions> {
    let policy = Policy::builder()
        .on_in_flight(OnInFlight::Wait)
        .wait_timeout(DEADLINE)
        .build();
    all.operation("orders", policy).await.unwrap()
}

/// Goal: a receiver that always fails for one message gets it as often as was agreed, and nobody waits for
/// that.
///
/// Evidence: what the receiver got; the state of the messages.
#[tokio::test(flavor = "multi_thread")]
async fn a_failing_message_holds_up_nobody() {
    let place = Place::new(false).await;
    let receiver = Receiver::default();
    let deliveries = Deliveries::new(&place.engine).unwrap();
    let running = deliveries
        .target(target(&receiver))
        .start(Duration::from_millis(20));
    place.leave(&Message::new("target", "fails")).await;
    for number in 0..50 {
        let text = number.to_string();
        place.leave(&Message::new("target", text)).await;
    }
    place.until(MessageState::Dead, 1).await;
    place.until(MessageState::Pending, 0).await;
    running.stop().await;
    let got = receiver.got();
    let failed: Vec<_> = got.iter().filter(|(_, text)| text == "fails").collect();
    assert_eq!(failed.len(), 4, "as many attempts as agreed");
    assert!(failed.iter().all(|one| one.0 == failed[0].0), "one key");
    assert_eq!(got.len(), 54, "every other one once");
    let last = got.iter().rposition(|(_, text)| text == "fails").unwrap();
    assert!(last > 20, "the others did not wait for it: {last}");
}

/// Goal: messages of an ordering key arrive in order, one after the other, without waiting for the next look.
///
/// Method: 120 messages of six keys, with a look every hour: only wake-ups move them on.
#[tokio::test(flavor = "multi_thread")]
async fn order_is_kept() {
    let place = Place::new(false).await;
    let receiver = Receiver::default();
    let deliveries = Deliveries::new(&place.engine).unwrap();
    let running = deliveries.target(target(&receiver)).start(NEVER);
    for number in 0..120 {
        let message = Message {
            ordering_key: Some(format!("key {}", number % 6)),
            downstream_key: Some(format!("key {}", number % 6)),
            ..Message::new("target", format!("{number:03}"))
        };
        place.leave(&message).await;
    }
    place.until(MessageState::Pending, 0).await;
    running.stop().await;
    let mut by_key: HashMap<String, Vec<String>> = HashMap::new();
    for (key, text) in receiver.got() {
        by_key.entry(key).or_default().push(text);
    }
    assert_eq!(by_key.len(), 6);
    for texts in by_key.values() {
        assert_eq!(texts.len(), 20);
        assert!(texts.is_sorted(), "{texts:?}");
    }
}

/// Goal: a worker that is stopped claims nothing more and finishes what it has begun.
#[tokio::test(flavor = "multi_thread")]
async fn it_stops_well() {
    let place = Place::new(false).await;
    let receiver = Receiver::default();
    let few = Target {
        at_once: 2,
        ..target(&receiver)
    };
    for _ in 0..20 {
        place.leave(&Message::new("target", "slow")).await;
    }
    let deliveries = Deliveries::new(&place.engine).unwrap();
    let running = deliveries.target(few).start(NEVER);
    while receiver.got().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    running.stop().await;
    let sent = receiver.got().len();
    assert!(sent < 20, "it stopped");
    let left = 20 - u64::try_from(sent).unwrap();
    assert_eq!(place.count(MessageState::Pending).await, left);
    let claimed = "SELECT count(*) FROM outbox WHERE claimed_at IS NOT NULL";
    assert_eq!(
        number(&place.folder, claimed),
        0,
        "nothing is left half done"
    );
}

fn number(folder: &tempfile::TempDir, sql: &str) -> i64 {
    let file = folder.path().join("store.db");
    let connection = rusqlite::Connection::open(file).unwrap();
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

fn holds(folder: &Path, canary: &str) -> bool {
    std::fs::read_dir(folder).unwrap().any(|file| {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        bytes
            .windows(canary.len())
            .any(|part| part == canary.as_bytes())
    })
}

/// Goal: a deferred answer reaches whoever waits for it, and is stored as the store's other answers are.
///
/// Evidence: what `run_deferred` says, first and again; the bytes of the file, with encryption and without.
#[tokio::test(flavor = "multi_thread")]
async fn a_deferred_answer_is_waited_for_and_hidden() {
    for sealed in [false, true] {
        let place = Place::new(sealed).await;
        let receiver = Receiver::default();
        let deliveries = Deliveries::new(&place.engine).unwrap();
        let running = deliveries.target(target(&receiver)).start(NEVER);
        let operation = place.operation().await;
        let run = || {
            let key = Key::from_stored("k");
            operation.run_deferred(Scope::global(), key, "1200", |_| {
                Box::pin(async { Ok(Message::new("target", "charge")) })
            })
        };
        let (first, second) = tokio::join!(run(), run());
        for ran in [first, second, run().await] {
            match ran.unwrap() {
                Ran::Executed(answer) | Ran::Replayed(answer) => {
                    assert_eq!(answer.status, StatusCode::CREATED);
                    assert_eq!(&answer.body[..], b"canary-answer");
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(receiver.got().len(), 1);
        running.stop().await;
        assert_eq!(holds(place.folder.path(), "canary-answer"), !sealed);
    }
}

/// Goal: a deferred answer has the version of the application that left its message.
///
/// Evidence: a program that knows its own version alone reads the answer, first and again; a newer one
/// upgrades it from that version; one that cannot is told which version it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_deferred_answer_has_a_version() {
    let place = Place::new(false).await;
    let receiver = Receiver::default();
    let deliveries = Deliveries::new(&place.engine).unwrap();
    let running = deliveries.target(target(&receiver)).start(NEVER);
    let run = async |all: Transactions<_>| {
        let operation = operation(all).await;
        let key = Key::from_stored("k");
        let ran = operation.run_deferred(Scope::global(), key, "1200", |_| {
            Box::pin(async { Ok(Message::new("target", "charge")) })
        });
        ran.await
    };
    let third = place.transactions().version(3, |_, _| None);
    let first = run(third.clone()).await;
    assert!(matches!(first, Ok(Ran::Executed(_))), "{first:?}");
    assert!(matches!(run(third).await, Ok(Ran::Replayed(_))));
    let fourth = place.transactions().version(4, |version, answer| {
        (version == 3).then(|| Answer::new(answer.status, "upgraded"))
    });
    match run(fourth).await.unwrap() {
        Ran::Replayed(answer) => assert_eq!(&answer.body[..], b"upgraded"),
        other => panic!("{other:?}"),
    }
    let fifth = place.transactions().version(5, |_, _| None);
    assert!(matches!(run(fifth).await, Err(RunError::UnknownVersion(3))));
    running.stop().await;
    assert_eq!(receiver.got().len(), 1);
}

/// Goal: what may have arrived is sent again only while its receiver knows the key again, or by force; and a
/// retry does not restart that clock.
///
/// Method: a message whose every attempt ends without an answer; to a receiver that knows no key again, to one
/// that has forgotten it by now, and to one that knows it.
/// Evidence: what the receiver got, and what the retry says.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_of_what_may_have_arrived() {
    let rules = |dedups, key_ttl| TargetRules {
        dedups,
        key_ttl,
        ..target(&Receiver::default()).rules
    };
    for (rules, known_again) in [
        (rules(false, DEADLINE), false),
        (rules(true, Duration::from_nanos(1)), false),
        (rules(true, DEADLINE), true),
    ] {
        let place = Place::new(false).await;
        let receiver = Receiver::default();
        let deliveries = Deliveries::new(&place.engine).unwrap();
        let deliveries = deliveries.target(Target {
            rules,
            ..target(&receiver)
        });
        let outbox = place.engine.outbox().unwrap();
        let found = async || {
            let page = outbox.list(&MessageFilter::default(), None, 1).await;
            page.unwrap().items.remove(0)
        };
        let sent_until_given_up = async || {
            while found().await.state == MessageState::Pending {
                deliveries.run_once().await.unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            receiver.got().len()
        };
        place.leave(&Message::new("target", "fails")).await;
        let sent = sent_until_given_up().await;
        let first = found().await;
        assert!(first.unclear_since.is_some());
        let retry = async |force| {
            let retried = place.engine.retry_message(first.id, "why", force).await;
            retried.unwrap()
        };
        if known_again {
            assert_eq!(retry(false).await, Retried::Done);
            assert_eq!(sent_until_given_up().await, 2 * sent);
            assert_eq!(found().await.unclear_since, first.unclear_since);
            continue;
        }
        assert_eq!(retry(false).await, Retried::MayHaveArrived);
        assert_eq!(found().await, first, "nothing was changed");
        assert_eq!(retry(true).await, Retried::Done);
        assert!(sent_until_given_up().await > sent);
    }
}

/// Goal: a large message holds up nobody, and is not left by mistake.
///
/// Evidence: one beyond the limit is refused, and one at it is not; small messages behind one of three times
/// what a claim reads are delivered with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_message() {
    let place = Place::new(false).await;
    let all = place.transactions();
    let bytes = |count: usize| Message::new("elsewhere", vec![b'x'; count]);
    let (headers, store) = ("{}".len(), &place.inside);
    for (all, count, fits) in [
        (all.clone(), MAX_MESSAGE_BYTES - headers, true),
        (all.clone(), MAX_MESSAGE_BYTES - headers + 1, false),
        (all.clone().max_message_bytes(10 + headers), 10, true),
        (all.max_message_bytes(10 + headers), 11, false),
    ] {
        let mut open = store.begin(Isolation::default()).await.unwrap();
        match all.enqueue(&mut open, &bytes(count)).await {
            Ok(_) => assert!(fits, "{count}"),
            Err(TransactionError::GivenUp(why)) => {
                assert!(!fits && why.is::<MessageTooLarge>(), "{count}: {why}");
            }
            Err(other) => panic!("{other}"),
        }
    }
    place
        .leave(&Message::new("target", vec![b'x'; 3 << 20]))
        .await;
    for number in 0..20 {
        place
            .leave(&Message::new("target", number.to_string()))
            .await;
    }
    let receiver = Receiver::default();
    let deliveries = Deliveries::new(&place.engine).unwrap();
    let running = deliveries.target(target(&receiver)).start(NEVER);
    place.until(MessageState::Pending, 0).await;
    running.stop().await;
    assert_eq!(receiver.got().len(), 21);
    assert!(receiver.got().iter().any(|(_, text)| text.len() == 3 << 20));
}
