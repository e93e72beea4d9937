//! Rides, killed -9 at every named point, on PostgreSQL, MariaDB and SQLite.
//!
//! The process that is killed is this test's own executable, started again with the test `child` alone.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod lives;
#[path = "../../examples/rides/provider.rs"]
mod provider;
#[path = "../../examples/rides/ride.rs"]
mod ride;

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    sync::Arc,
    time::Duration,
};

use onlyonce::{Engine, EngineOptions, Phases, Policy, Ran, Transactions};
use onlyonce_core::{Key, Scope};
use onlyonce_store::{
    TransactionalStore,
    mysql::{MySqlOptions, MySqlStore},
    postgres::{PostgresOptions, PostgresStore},
    sqlite::SqliteStore,
};
use onlyonce_testkit::servers::{MariaDb, Postgres};
use provider::{Fault, Provider};

const DATABASE: &str = "RIDES_DATABASE";
const PROVIDER: &str = "RIDES_PROVIDER";
const RIDE: &str = "RIDES_RIDE";
/// Resumes what stopped instead of asking for a ride.
const SWEEP: &str = "sweep";

/// Every point before and after a commit or a call of the provider, in the order of a ride.
const POINTS: [&str; 15] = [
    "engine.reserve.insert.before",
    "engine.reserve.insert.after",
    "phases.started.before",
    "phases.started.after",
    "phases.local.before",
    "phases.local.commit",
    "phases.local.after",
    "phases.intent.before",
    "phases.intent.after",
    "phases.call.before",
    "phases.call.after",
    "phases.record.before",
    "phases.record.after",
    "phases.local.commit:2",
    "phases.local.after:2",
];

fn policy() -> Policy {
    Policy::builder()
        .lease(Duration::from_secs(1))
        .wait_timeout(Duration::from_secs(20))
        .build()
}

async fn serve<T: TransactionalStore>(rides: Phases<T>, ride: &str) {
    if ride == SWEEP {
        let finished = rides.resume_once().await.unwrap();
        println!("resumed {finished}");
        return;
    }
    let request = format!("{ride} 1200");
    let ran = rides.run(Scope::global(), Key::from_stored(ride), request);
    println!("{:?}", ran.await);
}

/// What the process that is killed does. Without the variables, which only the other tests set, nothing.
#[tokio::test(flavor = "multi_thread")]
async fn child() {
    let [Ok(database), Ok(provider), Ok(ride)] = [DATABASE, PROVIDER, RIDE].map(std::env::var)
    else {
        return;
    };
    if database.starts_with("postgres") {
        let store = PostgresStore::open(&database, &PostgresOptions::default())
            .await
            .unwrap();
        let pool = sqlx::PgPool::connect(&database).await.unwrap();
        let transactions = store.transactions(pool);
        let engine = Engine::start(Arc::new(store), EngineOptions::default());
        let transactions = Transactions::new(engine, transactions);
        let operation = transactions.operation("rides", policy());
        serve(ride::on_postgres(operation.await.unwrap(), provider), &ride).await;
    } else if database.starts_with("mysql") {
        let store = MySqlStore::open(&database, &MySqlOptions::default())
            .await
            .unwrap();
        let pool = sqlx::MySqlPool::connect(&database).await.unwrap();
        let transactions = store.transactions(pool);
        let engine = Engine::start(Arc::new(store), EngineOptions::default());
        let transactions = Transactions::new(engine, transactions);
        let operation = transactions.operation("rides", policy());
        serve(ride::on_mysql(operation.await.unwrap(), provider), &ride).await;
    } else {
        let store = SqliteStore::open(Path::new(&database)).unwrap();
        let transactions = store.transactions().unwrap();
        let engine = Engine::start(Arc::new(store), EngineOptions::default());
        let transactions = Transactions::new(engine, transactions);
        let operation = transactions.operation("rides", policy());
        serve(ride::on_sqlite(operation.await.unwrap(), provider), &ride).await;
    }
}

/// Where rides are kept, and how the tests look at them.
enum Place {
    Postgres(Postgres),
    MariaDb(MariaDb),
    Sqlite(tempfile::TempDir),
}

impl Place {
    fn postgres() -> Self {
        let server = Postgres::start();
        Self::Postgres(server)
    }

    fn url(&self) -> String {
        match self {
            Self::Postgres(server) => server.url(),
            Self::MariaDb(server) => server.url(),
            Self::Sqlite(folder) => self.file(folder).to_str().unwrap().to_owned(),
        }
    }

    fn file(&self, folder: &tempfile::TempDir) -> PathBuf {
        folder.path().join("rides.db")
    }

    async fn prepare(&self) {
        let tables = format!("{};{};", ride::TABLES, ride::STEPS);
        match self {
            Self::Postgres(server) => {
                let url = server.url();
                let options = PostgresOptions::default();
                onlyonce_store::postgres::migrate(&url, &options)
                    .await
                    .unwrap();
                server.sql(&tables);
            }
            Self::MariaDb(server) => {
                let url = server.url();
                onlyonce_store::mysql::migrate(&url, &MySqlOptions::default())
                    .await
                    .unwrap();
                server.sql(&tables);
            }
            Self::Sqlite(folder) => {
                let file = self.file(folder);
                drop(SqliteStore::open(&file).unwrap());
                let connection = rusqlite::Connection::open(file).unwrap();
                connection.execute_batch(&tables).unwrap();
            }
        }
    }

    fn number(&self, sql: &str) -> i64 {
        match self {
            Self::Postgres(server) => server.sql(&sql.replace("$", "onlyonce.")).parse().unwrap(),
            Self::MariaDb(server) => server.sql(&sql.replace("$", "onlyonce_")).parse().unwrap(),
            Self::Sqlite(folder) => rusqlite::Connection::open(self.file(folder))
                .unwrap()
                .query_row(&sql.replace("$", ""), [], |row| row.get(0))
                .unwrap(),
        }
    }

    /// Runs a process for `ride`; killed at `point` if there is one.
    fn run(&self, provider: &Provider, ride: &str, point: Option<&str>) -> (ExitStatus, String) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "child", "--nocapture"])
            .env(DATABASE, self.url())
            .env(PROVIDER, &provider.url)
            .env(RIDE, ride);
        if let Some(point) = point {
            command.env("ONLYONCE_FAILPOINT", format!("{point}=kill"));
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status, said)
    }

    /// One row, one receipt, no phase twice.
    fn check(&self, provider: &Provider, ride: &str, name: &str) {
        let count = |sql: &str| self.number(&sql.replace("RIDE", ride));
        assert_eq!(
            count("SELECT count(*) FROM rides WHERE id = 'RIDE' AND charge IS NOT NULL"),
            1,
            "{name}"
        );
        let receipt = match self {
            Self::Postgres(_) => {
                "SELECT count(*) FROM $outbox WHERE convert_from(payload, 'UTF8') = 'RIDE'"
            }
            Self::MariaDb(_) => {
                "SELECT count(*) FROM $outbox WHERE CONVERT(payload USING utf8mb4) = 'RIDE'"
            }
            Self::Sqlite(_) => "SELECT count(*) FROM $outbox WHERE CAST(payload AS TEXT) = 'RIDE'",
        };
        assert_eq!(count(receipt), 1, "{name}");
        for phase in ["ride_created", "receipt_sent"] {
            let sql =
                format!("SELECT count(*) FROM steps WHERE ride = 'RIDE' AND phase = '{phase}'");
            assert_eq!(count(&sql), 1, "{name}: {phase}");
        }
        let charges = provider.ledger();
        let keys: std::collections::BTreeSet<_> = charges.iter().map(|(key, _)| key).collect();
        assert_eq!(keys.len(), charges.len(), "{name}: {charges:?}");
    }
}

/// Goal: a ride that is killed at any point ends finished, with one charge.
///
/// Method: at each point the process dies by SIGKILL; then a retry, or every other time the sweeper,
/// goes on once the lease has lapsed; then a retry again.
/// Evidence: the provider's own ledger has one charge for each ride; the application's tables have one
/// row, one receipt and one step for each phase; the last retry is a replay.
async fn killed_everywhere(place: &Place) {
    place.prepare().await;
    let provider = Provider::start().await.unwrap();
    for (number, point) in POINTS.into_iter().enumerate() {
        let ride = format!("ride-{number}");
        let (status, said) = place.run(&provider, &ride, Some(point));
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9),
            "{point} was not reached: {said}"
        );
        // What lapses is found by a retry, which waits for it, or by the sweeper.
        if number % 2 == 1 {
            tokio::time::sleep(Duration::from_millis(1_100)).await;
            place.run(&provider, SWEEP, None);
        }
        let (_, said) = place.run(&provider, &ride, None);
        assert!(
            said.contains("Ok(Executed") || said.contains("Ok(Replayed"),
            "{point}: {said}"
        );
        let (_, said) = place.run(&provider, &ride, None);
        assert!(said.contains("Ok(Replayed"), "{point}: {said}");
        place.check(&provider, &ride, point);
        assert_eq!(provider.ledger().len(), number + 1, "{point}");
    }
    assert_eq!(
        place.number("SELECT count(*) FROM $phases WHERE NOT finished"),
        0
    );
    println!("{} points, one charge each", POINTS.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_everywhere_on_postgres() {
    killed_everywhere(&Place::postgres()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_everywhere_on_mariadb() {
    killed_everywhere(&Place::MariaDb(MariaDb::start())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_everywhere_on_sqlite() {
    killed_everywhere(&Place::Sqlite(tempfile::tempdir().unwrap())).await;
}

/// Goal: the sweeper alone finishes a ride whose process died before its first phase was done, with what the
/// first request asked for; but does not begin again what failed and was told to its client.
///
/// Evidence: the sweeper says so; the ledger; the retry afterwards is a replay. Of the one that failed no
/// step is there.
async fn the_sweeper_alone(place: &Place) {
    place.prepare().await;
    let provider = Provider::start().await.unwrap();
    for (number, point) in ["phases.started.after", "phases.local.commit"]
        .into_iter()
        .enumerate()
    {
        let ride = format!("alone-{number}");
        let (status, said) = place.run(&provider, &ride, Some(point));
        assert!(!status.success(), "{point}: {said}");
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        let (_, said) = place.run(&provider, SWEEP, None);
        assert!(said.contains("resumed 1"), "{point}: {said}");
        assert_eq!(provider.ledger().len(), number + 1, "{point}");
        let (_, said) = place.run(&provider, &ride, None);
        assert!(said.contains("Ok(Replayed"), "{point}: {said}");
        place.check(&provider, &ride, point);
    }
    // Its fare is no number, so the first phase says no.
    let (_, said) = place.run(&provider, "no ride", None);
    assert!(said.contains("Err(RolledBack"), "{said}");
    let (_, said) = place.run(&provider, SWEEP, None);
    assert!(said.contains("resumed 0"), "{said}");
    let unfinished = "SELECT count(*) FROM $phases WHERE NOT finished";
    assert_eq!(place.number(unfinished), 0);
    assert_eq!(place.number("SELECT count(*) FROM steps"), 4);
    assert_eq!(provider.ledger().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sweeper_alone_on_postgres() {
    the_sweeper_alone(&Place::postgres()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sweeper_alone_on_sqlite() {
    the_sweeper_alone(&Place::Sqlite(tempfile::tempdir().unwrap())).await;
}

/// Goal: a provider that fails at every step is charged once, and a refusal is an answer like any other.
#[tokio::test(flavor = "multi_thread")]
async fn the_provider_fails() {
    let place = Place::Sqlite(tempfile::tempdir().unwrap());
    place.prepare().await;
    let provider = Provider::start().await.unwrap();
    for fault in [Fault::BeforeCharge, Fault::ServerError, Fault::AfterCharge] {
        let ride = format!("{fault:?}");
        provider.fail_next(fault);
        let (_, said) = place.run(&provider, &ride, None);
        assert!(said.contains("Err(RolledBack"), "{said}");
        let (_, said) = place.run(&provider, &ride, None);
        assert!(said.contains("Ok(Executed"), "{said}");
        place.check(&provider, &ride, &ride);
    }
    assert_eq!(provider.ledger().len(), 3);
    provider.fail_next(Fault::Decline);
    for expected in ["Ok(Executed", "Ok(Replayed"] {
        let (_, said) = place.run(&provider, "declined", None);
        assert!(said.contains(expected) && said.contains("402"), "{said}");
    }
    assert_eq!(provider.ledger().len(), 3);
}

/// Goal: a recovery point that this program does not know means unknown, not a restart; and so does a call
/// that may have happened at a provider that does not know it again.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_point_is_unknown() {
    let place = Place::postgres();
    place.prepare().await;
    let provider = Provider::start().await.unwrap();
    let (status, _) = place.run(&provider, "odd", Some("phases.intent.after"));
    assert!(!status.success());
    let Place::Postgres(server) = &place else {
        unreachable!()
    };
    server.sql("UPDATE onlyonce.phases SET point = 'from_tomorrow', intent = NULL");
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    for _ in 0..2 {
        let (_, said) = place.run(&provider, "odd", None);
        assert!(said.contains("Ok(Refused(OutcomeUnknown"), "{said}");
        place.run(&provider, SWEEP, None);
    }
    assert_eq!(provider.ledger(), []);
    assert_eq!(server.sql("SELECT count(*) FROM steps"), "1");
    assert_eq!(
        server.sql("SELECT state FROM onlyonce.readable_keys"),
        "unknown"
    );
    server.sql("UPDATE onlyonce.phases SET point = 'ride_created', intent = 'charged'");

    let store = PostgresStore::open(&server.url(), &PostgresOptions::default())
        .await
        .unwrap();
    let pool = sqlx::PgPool::connect(&server.url()).await.unwrap();
    let transactions = store.transactions(pool);
    let engine = Engine::start(Arc::new(store), EngineOptions::default());
    let transactions = Transactions::new(engine, transactions);
    let operation = transactions.operation("rides", policy());
    let forgetful = Phases::new(operation.await.unwrap(), |_| {
        onlyonce::Answer::new(http::StatusCode::OK, "")
    })
    .local("ride_created", |_, _| Box::pin(async { Ok(()) }))
    .foreign("charged", false, |call, _| {
        Box::pin(call.send(|_| async { panic!("it may have been charged") }))
    });
    let ran = forgetful.run(Scope::global(), Key::from_stored("odd"), "odd 1200");
    assert!(matches!(ran.await.unwrap(), Ran::Refused(_)));
}
