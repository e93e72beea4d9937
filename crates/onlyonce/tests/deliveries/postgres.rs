//! The worker on PostgreSQL: endings that the database refuses, and claims whose answer is lost.

use std::sync::{
    OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use onlyonce::RunError;
use onlyonce_core::policy::OnInFlight;
use onlyonce_store::postgres::{PgTransactions, PostgresOptions, PostgresStore};
use onlyonce_testkit::{servers::Postgres, tcp_faults::FaultProxy};
use sqlx::{Executor as _, PgConnection, PgPool};

use super::*;

const MESSAGES: usize = 20;

/// A receiver that calls each message by its payload, but for some.
#[derive(Clone, Default)]
struct Names(Receiver);

impl Publish for Names {
    fn publish<'a>(&'a self, parcel: &'a Parcel) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            self.0.publish(parcel).await;
            let text = String::from_utf8_lossy(&parcel.payload).into_owned();
            let answer = None;
            match text.as_str() {
                "refused" => Delivery::Refused {
                    reason: "not\0this".to_owned(),
                    answer,
                },
                _ => Delivery::Delivered {
                    provider_id: Some(text.replace("odd", "a\0b")),
                    answer,
                },
            }
        })
    }
}

fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    tokio::task::block_in_place(|| SERVER.get_or_init(Postgres::start))
}

/// A database of its own; its store may go through another port.
struct Base {
    name: String,
    engine: Engine,
    inside: PgTransactions,
}

impl Base {
    async fn new(port: u16) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("deliveries_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let own = server().database(&name);
        let url = own.replace(&server().port().to_string(), &port.to_string());
        let options = PostgresOptions::default();
        let store = PostgresStore::open(&url, &options).await.unwrap();
        let inside = store.transactions(PgPool::connect(&own).await.unwrap());
        let engine = Engine::start(Arc::new(store), EngineOptions::default());
        Self {
            name,
            engine,
            inside,
        }
    }

    async fn leave(&self, target: &str, text: &str) {
        let mut open = self.inside.begin(Isolation::default()).await.unwrap();
        let message = Message::new(target, text);
        self.inside.enqueue(&mut open, &message).await.unwrap();
        self.inside.commit(open).await.unwrap();
    }

    /// Messages of which all but one, of this payload, are called by their number.
    async fn leave_many(&self, odd_one: &str) {
        for number in 1..MESSAGES {
            self.leave("target", &number.to_string()).await;
        }
        self.leave("target", odd_one).await;
    }

    fn sql(&self, sql: &str) -> String {
        let told = tokio::task::block_in_place(|| server().run_sql(&self.name, sql));
        told.trim().to_owned()
    }

    async fn until(&self, condition: &str, count: usize) {
        let sql = format!("SELECT count(*) FROM onlyonce.outbox WHERE {condition}");
        let wait = async {
            while self.sql(&sql) != count.to_string() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let waited = tokio::time::timeout(DEADLINE, wait).await;
        let states = "SELECT state, attempts, provider_id, last_error FROM onlyonce.outbox";
        waited.unwrap_or_else(|_| panic!("no {count} {condition}: {}", self.sql(states)));
    }
}

/// Goal: what a receiver says and no database can store costs nobody his ending.
///
/// Method: among the messages of one group, one whose receiver calls it by a name with a NUL in it, and one
/// that is refused in such words.
/// Evidence: the states, names and reasons in the database; the receiver got each message once.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_cannot_be_stored_is_left_out() {
    let base = Base::new(server().port()).await;
    base.leave_many("odd").await;
    base.leave("target", "refused").await;
    let names = Names::default();
    let deliveries = Deliveries::new(&base.engine).unwrap();
    let deliveries = deliveries.target(Target::new("target", names.clone()));
    assert_eq!(deliveries.run_once().await.unwrap(), MESSAGES + 1);
    base.until("state = 'delivered'", MESSAGES).await;
    base.until("provider_id IS NOT NULL", MESSAGES - 1).await;
    base.until("state = 'dead' AND last_error LIKE 'not%this'", 1)
        .await;
    assert_eq!(names.0.got().len(), MESSAGES + 1);
}

/// Goal: an ending that the database refuses costs only itself.
///
/// Method: the table has a rule that one ending of a group breaks.
/// Evidence: the others are delivered at their first attempt, while the one is still tried.
#[tokio::test(flavor = "multi_thread")]
async fn an_ending_that_is_refused_costs_only_itself() {
    let base = Base::new(server().port()).await;
    base.sql("ALTER TABLE onlyonce.outbox ADD CHECK (provider_id <> 'poison')");
    base.leave_many("poison").await;
    let names = Names::default();
    let deliveries = Deliveries::new(&base.engine).unwrap();
    let deliveries = deliveries.target(Target::new("target", names.clone()));
    let running = tokio::spawn(async move { deliveries.run_once().await });
    base.until("state = 'delivered' AND attempts = 1", MESSAGES - 1)
        .await;
    running.abort();
    assert_eq!(names.0.got().len(), MESSAGES);
}

/// Goal: messages whose claim was carried out and never answered are sent, since nobody has sent them.
///
/// Method: a receiver that does not know its keys again; a proxy swallows the answer to the claim, which
/// alone names the target.
/// Evidence: the message is delivered, at its first attempt, and arrived once.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_not_answered_is_given_back() {
    let proxy = FaultProxy::start(server().port()).await;
    let base = Base::new(proxy.port()).await;
    base.leave("only-claims-name-it", "once").await;
    proxy.swallow_reply_to(b"only-claims-name-it");
    let receiver = Receiver::default();
    let rules = TargetRules {
        dedups: false,
        ..TargetRules::default()
    };
    let target = Target {
        rules,
        // One claim at a time.
        at_once: 1,
        timeout: Duration::from_secs(1),
        ..Target::new("only-claims-name-it", receiver.clone())
    };
    let deliveries = Deliveries::new(&base.engine).unwrap();
    let running = deliveries.target(target).start(Duration::from_millis(100));
    base.until("state <> 'pending'", 1).await;
    assert_eq!(proxy.swallowed(), 1);
    running.stop().await;
    let told = base.sql("SELECT state, attempts, unclear_since FROM onlyonce.outbox");
    assert_eq!(told, "delivered|1|");
    assert_eq!(receiver.got().len(), 1);
}

/// Goal: whether a deferred commit happened is told by the attempt's recovery point, not by a revision
/// that a late sign of life may have raised.
///
/// Method: work that takes longer than a sign of life; its session is ended by the server while it commits,
/// so that nobody is told, and the signs of life that waited for the row come after that. Then the same with
/// a commit that was carried out, and whose reply is swallowed.
/// Evidence: the first is reported as rolled back, leaves no row and no message, and a retry executes; the
/// second is accepted, with one row and one message.
#[tokio::test(flavor = "multi_thread")]
async fn a_deferred_commit_that_nobody_told_of() {
    let proxy = FaultProxy::start(server().port()).await;
    let base = Base::new(server().port()).await;
    base.sql(
        "CREATE TABLE orders (n int); \
         CREATE FUNCTION end_session() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END'; \
         CREATE CONSTRAINT TRIGGER ends AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION end_session()",
    );
    let url = |port: u16| format!("postgres://onlyonce@127.0.0.1:{port}/{}", base.name);
    let (own, through) = (url(server().port()), url(proxy.port()));
    let options = PostgresOptions::default();
    let store = PostgresStore::open(&own, &options).await.unwrap();
    let inside = store.transactions(PgPool::connect(&through).await.unwrap());
    let policy = Policy::builder()
        .lease(Duration::from_secs(1))
        .on_in_flight(OnInFlight::Reject)
        .build();
    let engine = Engine::start(Arc::new(store), EngineOptions::default());
    let transactions = Transactions::new(engine, inside);
    let operation = transactions.operation("orders", policy).await.unwrap();
    let order = || {
        let key = Key::from_stored("k");
        operation.run_deferred(Scope::global(), key, "1200", |tx: &mut PgConnection| {
            Box::pin(async move {
                let work = "INSERT INTO orders VALUES (1); SELECT pg_sleep(0.6)";
                tx.execute(work).await?;
                Ok(Message::new("target", "charge"))
            })
        })
    };
    let left = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM onlyonce.outbox)";
    let ran = order().await;
    assert!(matches!(ran, Err(RunError::RolledBack(_))), "{ran:?}");
    assert_eq!(base.sql(left), "0|0");

    base.sql("DROP TRIGGER ends ON orders");
    proxy.swallow_reply_to(b"COMMIT");
    let ran = order().await;
    assert!(matches!(ran, Ok(Ran::Accepted(_))), "{ran:?}");
    assert_eq!(proxy.swallowed(), 1);
    assert_eq!(base.sql(left), "1|1");
}
