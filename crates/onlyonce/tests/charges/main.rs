//! Charges that a worker makes: the API commits order, message and key; the worker charges and settles
//! the key. Both are killed -9 at every named point, on PostgreSQL, MariaDB and SQLite.
//!
//! The processes that are killed are this test's own executable, started again with the test `child` alone.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../../examples/rides/provider.rs"]
mod provider;

use std::{
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    sync::Arc,
    time::Duration,
};

use futures_util::future::BoxFuture;
use http::StatusCode;
use onlyonce::{
    Answer, DeferredWork, Engine, EngineOptions, Operation, Policy, Transactions,
    outbox::{Deliveries, Delivery, Message, Parcel, Publish, Target, TargetRules},
    policy::OnInFlight,
    worker,
};
use onlyonce_core::{Key, Scope};
use onlyonce_store::{
    Store as _, TransactionalStore,
    mysql::{MySqlOptions, MySqlStore},
    postgres::{PostgresOptions, PostgresStore},
    sqlite::SqliteStore,
};
use onlyonce_testkit::servers::{MariaDb, Postgres};
use provider::{Fault, Provider, Told};

const DATABASE: &str = "CHARGES_DATABASE";
const PROVIDER: &str = "CHARGES_PROVIDER";
/// An order to be made; or [`WORK`].
const ORDER: &str = "CHARGES_ORDER";
/// Sweeps and delivers instead of taking an order.
const WORK: &str = "work";
/// Set where a key may be in progress for a second only.
const IMPATIENT: &str = "CHARGES_IMPATIENT";
/// Set where the provider is said not to know its keys again.
const FORGETFUL: &str = "CHARGES_FORGETFUL";

const ORDERS: &str = "CREATE TABLE orders (id VARCHAR(64) PRIMARY KEY)";

/// Points of the API, in the order of a request.
const API_POINTS: [&str; 5] = [
    "engine.reserve.insert.before",
    "engine.reserve.insert.after",
    "deferred.begin.before",
    "deferred.commit.before",
    "deferred.commit.after",
];
/// Points of the worker; STORE is the name of the store.
const WORKER_POINTS: [&str; 6] = [
    "STORE.outbox.claim.before",
    "STORE.outbox.claim.after",
    "outbox.send.before",
    "outbox.send.after",
    "STORE.outbox.settle.before",
    "STORE.outbox.settle.after",
];

fn policy() -> Policy {
    Policy::builder()
        .lease(Duration::from_secs(1))
        .on_in_flight(OnInFlight::Accept)
        .max_execution(Duration::from_secs(match std::env::var_os(IMPATIENT) {
            Some(_) => 1,
            None => 120,
        }))
        .build()
}

/// Charges at the provider, which is a server of its own.
struct Charging(String);

impl Publish for Charging {
    fn publish<'a>(&'a self, parcel: &'a Parcel) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            match provider::charge(&self.0, &parcel.key, 1_200).await {
                Told::Charged(id) => Delivery::Delivered {
                    answer: Some(Answer::new(StatusCode::CREATED, format!("charge {id}"))),
                    provider_id: Some(id),
                },
                Told::Declined => Delivery::Refused {
                    reason: "declined".to_owned(),
                    answer: Some(Answer::new(StatusCode::PAYMENT_REQUIRED, "declined")),
                },
                Told::NotReached(error) => Delivery::NotSent(error.to_string()),
                Told::Nothing(error) => Delivery::Unclear(error.to_string()),
            }
        })
    }
}

async fn order<T: TransactionalStore>(
    operation: Operation<T>,
    order: &str,
    insert: impl for<'c> FnOnce(&'c mut T::Connection) -> DeferredWork<'c> + Send,
) {
    let (key, request) = (Key::from_stored(order), order.to_owned());
    let ran = operation.run_deferred(Scope::global(), key, request, insert);
    println!("{:?}", ran.await);
}

async fn work(engine: &Engine, provider: String) {
    // As a worker process does before anything else: what lapsed is found.
    worker::sweep::run_once(engine).await.unwrap();
    let target = Target {
        rules: TargetRules {
            dedups: std::env::var_os(FORGETFUL).is_none(),
            max_attempts: 5,
            first_pause: Duration::from_millis(1),
            ..TargetRules::default()
        },
        timeout: Duration::from_millis(100),
        ..Target::new("charges", Charging(provider))
    };
    let deliveries = Deliveries::new(engine).unwrap().target(target);
    for _ in 0..40 {
        deliveries.run_once().await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let depth = engine.outbox().unwrap().depth().await.unwrap();
    println!("left {depth:?}");
}

/// What the process that is killed does. Without the variables, which only the other tests set, nothing.
#[tokio::test(flavor = "multi_thread")]
async fn child() {
    let [Ok(database), Ok(provider), Ok(what)] = [DATABASE, PROVIDER, ORDER].map(std::env::var)
    else {
        return;
    };
    let message = || Message::new("charges", "1200");
    if database.starts_with("postgres") {
        let store = PostgresStore::open(&database, &PostgresOptions::default())
            .await
            .unwrap();
        let pool = sqlx::PgPool::connect(&database).await.unwrap();
        let transactions = store.transactions(pool);
        let engine = Engine::start(Arc::new(store), EngineOptions::default());
        if what == WORK {
            return work(&engine, provider).await;
        }
        let transactions = Transactions::new(engine, transactions);
        let operation = transactions.operation("charge", policy()).await.unwrap();
        let name = what.clone();
        order(operation, &what, move |tx| {
            Box::pin(async move {
                let insert = sqlx::query("INSERT INTO orders VALUES ($1)").bind(name);
                insert.execute(tx).await?;
                Ok(message())
            })
        })
        .await;
    } else if database.starts_with("mysql") {
        let store = MySqlStore::open(&database, &MySqlOptions::default())
            .await
            .unwrap();
        let pool = sqlx::MySqlPool::connect(&database).await.unwrap();
        let transactions = store.transactions(pool);
        let engine = Engine::start(Arc::new(store), EngineOptions::default());
        if what == WORK {
            return work(&engine, provider).await;
        }
        let transactions = Transactions::new(engine, transactions);
        let operation = transactions.operation("charge", policy()).await.unwrap();
        let name = what.clone();
        order(operation, &what, move |tx| {
            Box::pin(async move {
                let insert = sqlx::query("INSERT INTO orders VALUES (?)").bind(name);
                insert.execute(tx).await?;
                Ok(message())
            })
        })
        .await;
    } else {
        let store = SqliteStore::open(Path::new(&database)).unwrap();
        let transactions = store.transactions().unwrap();
        let engine = Engine::start(Arc::new(store), EngineOptions::default());
        if what == WORK {
            return work(&engine, provider).await;
        }
        let transactions = Transactions::new(engine, transactions);
        let operation = transactions.operation("charge", policy()).await.unwrap();
        let name = what.clone();
        order(operation, &what, move |tx| {
            Box::pin(async move {
                tx.execute("INSERT INTO orders VALUES (?1)", [name])?;
                Ok(message())
            })
        })
        .await;
    }
}

enum Place {
    Postgres(Postgres),
    MariaDb(MariaDb),
    Sqlite(tempfile::TempDir),
}

impl Place {
    fn name(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "postgres",
            Self::MariaDb(_) => "mysql",
            Self::Sqlite(_) => "sqlite",
        }
    }

    fn file(folder: &tempfile::TempDir) -> PathBuf {
        folder.path().join("orders.db")
    }

    async fn prepare(&self) {
        match self {
            Self::Postgres(server) => {
                let options = PostgresOptions::default();
                let url = server.url();
                let migrated = onlyonce_store::postgres::migrate(&url, &options);
                migrated.await.unwrap();
                server.sql(ORDERS);
            }
            Self::MariaDb(server) => {
                let options = MySqlOptions::default();
                let url = server.url();
                let migrated = onlyonce_store::mysql::migrate(&url, &options);
                migrated.await.unwrap();
                server.sql(ORDERS);
            }
            Self::Sqlite(folder) => {
                let file = Self::file(folder);
                let store = SqliteStore::open(&file).unwrap();
                drop(store.outbox());
                drop(store);
                let connection = rusqlite::Connection::open(file).unwrap();
                connection.execute_batch(ORDERS).unwrap();
            }
        }
    }

    fn number(&self, sql: &str) -> i64 {
        match self {
            Self::Postgres(server) => server.sql(&sql.replace('$', "onlyonce.")).parse().unwrap(),
            Self::MariaDb(server) => server.sql(&sql.replace('$', "onlyonce_")).parse().unwrap(),
            Self::Sqlite(folder) => rusqlite::Connection::open(Self::file(folder))
                .unwrap()
                .query_row(&sql.replace('$', ""), [], |row| row.get(0))
                .unwrap(),
        }
    }

    /// Lets claims lapse whose worker is dead, without waiting for them.
    fn lapse(&self) {
        match self {
            Self::Postgres(server) => {
                server.sql("UPDATE onlyonce.outbox SET claimed_until = 0 WHERE claimed_at > 0");
            }
            Self::MariaDb(server) => {
                server.sql("UPDATE onlyonce_outbox SET due_at = 0 WHERE claimed_at > 0");
            }
            Self::Sqlite(folder) => {
                let connection = rusqlite::Connection::open(Self::file(folder)).unwrap();
                let sql = "UPDATE outbox SET due_at = 0 WHERE claimed_at > 0";
                connection.execute(sql, []).unwrap();
            }
        }
    }

    fn command(&self, provider: &Provider, what: &str, point: Option<&str>) -> Command {
        let url = match self {
            Self::Postgres(server) => server.url(),
            Self::MariaDb(server) => server.url(),
            Self::Sqlite(folder) => Self::file(folder).to_str().unwrap().to_owned(),
        };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "child", "--nocapture"])
            .env(DATABASE, url)
            .env(PROVIDER, &provider.url)
            .env(ORDER, what);
        if let Some(point) = point {
            let point = point.replace("STORE", self.name());
            command.env("ONLYONCE_FAILPOINT", format!("{point}=kill"));
        }
        command
    }

    fn run(&self, provider: &Provider, what: &str, point: Option<&str>) -> (ExitStatus, String) {
        let output = self.command(provider, what, point).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status, said)
    }

    /// What `order` ends in once the worker has had its turn.
    fn settled(&self, provider: &Provider, order: &str) -> String {
        self.lapse();
        self.run(provider, WORK, None);
        self.run(provider, order, None).1
    }
}

/// Goal: an order whose API or worker is killed at any point ends in one charge, and its retry in that
/// charge's answer.
///
/// Method: at each point one process dies by SIGKILL; then its client retries, and a worker runs.
/// Evidence: the provider's own ledger; the application's table; what the last retry is told.
async fn killed_everywhere(place: &Place) {
    place.prepare().await;
    let provider = Provider::start().await.unwrap();
    let points = API_POINTS
        .map(|point| (point, true))
        .into_iter()
        .chain(WORKER_POINTS.map(|point| (point, false)));
    let mut orders = 0;
    for (point, api) in points {
        let order = format!("order-{orders}");
        orders += 1;
        let killed = if api {
            place.run(&provider, &order, Some(point))
        } else {
            let (_, said) = place.run(&provider, &order, None);
            assert!(said.contains("Ok(Accepted("), "{point}: {said}");
            place.run(&provider, WORK, Some(point))
        };
        assert_eq!(killed.0.signal(), Some(9), "{point}: {}", killed.1);
        // The client retries while its lease may still run, and after.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        let (_, said) = place.run(&provider, &order, None);
        let good = said.contains("Ok(Accepted(") || said.contains("Ok(Replayed(");
        assert!(good, "{point}: {said}");
        let said = place.settled(&provider, &order);
        assert!(
            said.contains("Ok(Replayed(Answer { status: 201"),
            "{point}: {said}"
        );
        assert_eq!(provider.ledger().len(), orders, "{point}: one charge");
        let rows = format!("SELECT count(*) FROM orders WHERE id = '{order}'");
        assert_eq!(place.number(&rows), 1, "{point}");
        let sent = "SELECT count(*) FROM $outbox WHERE state = 'delivered'";
        assert_eq!(
            place.number(sent),
            i64::try_from(orders).unwrap(),
            "{point}"
        );
        let nameless =
            "SELECT count(*) FROM $outbox WHERE state = 'delivered' AND provider_id IS NULL";
        assert_eq!(place.number(nameless), 0, "{point}");
    }
    println!("{orders} points, one charge each");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_everywhere_on_postgres() {
    killed_everywhere(&Place::Postgres(Postgres::start())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_everywhere_on_mariadb() {
    killed_everywhere(&Place::MariaDb(MariaDb::start())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_everywhere_on_sqlite() {
    killed_everywhere(&Place::Sqlite(tempfile::tempdir().unwrap())).await;
}

/// Goal: what the provider says decides: a decline is the answer, an answer that was lost is asked for again
/// under the same key, and a provider that does not know its keys again is not asked twice.
#[tokio::test(flavor = "multi_thread")]
async fn the_provider_decides() {
    let place = Place::Sqlite(tempfile::tempdir().unwrap());
    place.prepare().await;
    let provider = Provider::start().await.unwrap();
    for fault in [Fault::AfterCharge, Fault::BeforeCharge, Fault::ServerError] {
        provider.fail_next(fault);
        let order = format!("{fault:?}");
        place.run(&provider, &order, None);
        let said = place.settled(&provider, &order);
        assert!(said.contains("Ok(Replayed(Answer { status: 201"), "{said}");
    }
    assert_eq!(provider.ledger().len(), 3);
    provider.fail_next(Fault::Decline);
    place.run(&provider, "declined", None);
    let said = place.settled(&provider, "declined");
    assert!(said.contains("Ok(Replayed(Answer { status: 402"), "{said}");

    place.run(&provider, "once", None);
    provider.fail_next(Fault::AfterCharge);
    let output = place
        .command(&provider, WORK, None)
        .env(FORGETFUL, "yes")
        .output()
        .unwrap();
    assert!(output.status.success());
    assert_eq!(provider.ledger().len(), 4, "it was charged, once");
    let unknown = "SELECT count(*) FROM outbox WHERE state = 'unknown'";
    assert_eq!(place.number(unknown), 1);
    let (_, said) = place.run(&provider, "once", None);
    assert!(said.contains("Ok(Refused(OutcomeUnknown"), "{said}");
    assert_eq!(provider.ledger().len(), 4);
}

/// Goal: a key that was left to a message is not executed again, however long the message takes.
///
/// Method: the key's time is over before a worker comes; its client retries; then the worker comes.
/// Evidence: the retry is told that the outcome is unknown, and leaves no second message; in the end there is
/// one charge, and a retry gets its answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_worker_still_settles() {
    let place = Place::Sqlite(tempfile::tempdir().unwrap());
    place.prepare().await;
    let provider = Provider::start().await.unwrap();
    let impatient = || {
        let mut command = place.command(&provider, "late", None);
        let output = command.env(IMPATIENT, "yes").output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = impatient();
    assert!(said.contains("Ok(Accepted("), "{said}");
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    for _ in 0..2 {
        let said = impatient();
        assert!(said.contains("Ok(Refused(OutcomeUnknown"), "{said}");
    }
    assert_eq!(place.number("SELECT count(*) FROM outbox"), 1);
    let said = place.settled(&provider, "late");
    assert!(said.contains("Ok(Replayed(Answer { status: 201"), "{said}");
    assert_eq!(provider.ledger().len(), 1);
}
