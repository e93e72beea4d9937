//! The same on SQLite: the application's tables are in the store's file.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use http::StatusCode;
use onlyonce::{
    Answer, Engine, EngineOptions, Policy, Ran, RunError, Transactions, inbox::Processed,
    outbox::Message,
};
use onlyonce_core::{Key, Scope, State};
use onlyonce_store::{
    TransactionalStore as _,
    sqlite::{SqliteStore, SqliteTransactions},
    transactional::{Isolation, TransactionError},
};

struct Place {
    folder: tempfile::TempDir,
    transactions: Transactions<SqliteTransactions>,
}

fn place() -> Place {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("application.db");
    let store = SqliteStore::open(&file).unwrap();
    rusqlite::Connection::open(&file)
        .unwrap()
        .execute_batch("CREATE TABLE payments (id INTEGER PRIMARY KEY, amount INTEGER)")
        .unwrap();
    let inside = store.transactions().unwrap();
    let engine = Engine::start(Arc::new(store), EngineOptions::default());
    Place {
        folder,
        transactions: Transactions::new(engine, inside),
    }
}

impl Place {
    fn number(&self, sql: &str) -> i64 {
        rusqlite::Connection::open(self.folder.path().join("application.db"))
            .unwrap()
            .query_row(sql, [], |row| row.get(0))
            .unwrap()
    }
}

/// Goal: payment, message and key are one thing; a rollback is proof; duplicates get one answer.
#[tokio::test(flavor = "multi_thread")]
async fn one_thing_on_sqlite() {
    let place = place();
    let operation = place
        .transactions
        .operation("pay", Policy::default())
        .await
        .unwrap();
    let failed = operation.run(Scope::global(), Key::from_stored("k"), "1", |tx| {
        Box::pin(async move {
            tx.execute("INSERT INTO payments (amount) VALUES (1)", [])?;
            Err(TransactionError::given_up("no"))
        })
    });
    assert!(matches!(failed.await, Err(RunError::RolledBack(_))));
    assert_eq!(place.number("SELECT count(*) FROM payments"), 0);
    let runs = (0..50).map(|_| {
        let all = place.transactions.clone();
        operation.run(Scope::global(), Key::from_stored("k"), "1", move |tx| {
            let all = all.clone();
            Box::pin(async move {
                tx.execute("INSERT INTO payments (amount) VALUES (1)", [])?;
                let id = tx.last_insert_rowid();
                all.enqueue(tx, &Message::new("receipts", id.to_string()))
                    .await?;
                Ok(Answer::new(StatusCode::CREATED, id.to_string()))
            })
        })
    });
    let mut executed = 0;
    for ran in join_all(runs).await {
        match ran.unwrap() {
            Ran::Executed(answer) => {
                executed += 1;
                assert_eq!(&answer.body[..], b"1");
            }
            Ran::Replayed(answer) => assert_eq!(&answer.body[..], b"1"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(executed, 1);
    assert_eq!(place.number("SELECT count(*) FROM payments"), 1);
    assert_eq!(place.number("SELECT count(*) FROM outbox"), 1);
    let counts = place.transactions.engine().store().counts().await.unwrap();
    assert_eq!(counts[&State::Completed], 1);
    assert_eq!(counts[&State::InProgress], 0);
}

/// Goal: a message has one effect; a natural key needs no lock, since nobody else writes.
#[tokio::test(flavor = "multi_thread")]
async fn messages_on_sqlite() {
    let place = place();
    let (all, store) = (&place.transactions, place.transactions.store());
    for (round, expected) in [
        (0, Processed::Now(())),
        (1, Processed::Now(())),
        (2, Processed::Before),
    ] {
        let mut tx = store.begin(Isolation::default()).await.unwrap();
        let inner = all.clone();
        let processed = all.with_natural_key(&mut tx, "order:1", |tx| {
            Box::pin(async move {
                let effect = inner.process_once(tx, "billing", "m", |tx| {
                    Box::pin(async move {
                        tx.execute("INSERT INTO payments (amount) VALUES (1)", [])?;
                        Ok(())
                    })
                });
                effect.await
            })
        });
        assert_eq!(processed.await.unwrap(), expected);
        // The first delivery is rolled back, by being dropped.
        if round > 0 {
            store.commit(tx).await.unwrap();
        }
    }
    assert_eq!(place.number("SELECT count(*) FROM payments"), 1);
    // Two writers take turns: the second waits for the first.
    let held = store.begin(Isolation::default()).await.unwrap();
    let second = tokio::time::timeout(
        Duration::from_millis(200),
        store.begin(Isolation::default()),
    );
    assert!(second.await.is_err());
    drop(held);
    assert!(store.begin(Isolation::default()).await.is_ok());
}

/// One attempt, one effect; see [`attempts`](crate::attempts).
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_commits_one_effect_on_sqlite() {
    let place = place();
    let effect: crate::attempts::Effect<SqliteTransactions> = |_, tx| {
        Box::pin(async move {
            tx.execute("INSERT INTO payments (amount) VALUES (1)", [])?;
            let id = tx.last_insert_rowid();
            Ok(Answer::new(StatusCode::CREATED, id.to_string()))
        })
    };
    let count = || place.number("SELECT count(*) FROM payments");
    crate::attempts::executed_often(&place.transactions, effect, count).await;
}

/// Goal: work whose transaction ended under it is not done, and half of it is not committed.
///
/// Method: a constraint that rolls back (`ON CONFLICT ROLLBACK`), a ROLLBACK and a COMMIT of the work's own, each
/// passed over by the work, which then writes on and says that it is done.
/// Evidence: the run says that it was rolled back; the tables are empty; the key is free, and a retry executes.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_ended_under_the_work() {
    let ways: [fn(&rusqlite::Connection) -> rusqlite::Result<()>; 3] = [
        |tx| {
            let taken = "INSERT INTO taken VALUES (1)";
            tx.execute(taken, [])?;
            tx.execute(taken, []).map(|_| ())
        },
        |tx| tx.execute_batch("ROLLBACK"),
        |tx| tx.execute_batch("COMMIT"),
    ];
    let place = place();
    let file = place.folder.path().join("application.db");
    rusqlite::Connection::open(&file)
        .unwrap()
        .execute_batch("CREATE TABLE taken (n INTEGER UNIQUE ON CONFLICT ROLLBACK)")
        .unwrap();
    let operation = place.transactions.operation("pay", Policy::default());
    let operation = operation.await.unwrap();
    for (number, way) in ways.into_iter().enumerate() {
        let key = || Key::from_stored(&format!("k{number}"));
        let failed = operation.run(Scope::global(), key(), "1", move |tx| {
            Box::pin(async move {
                tx.execute("INSERT INTO payments (amount) VALUES (1)", [])?;
                let _ = way(tx);
                // By now there is no transaction, and SQLite would commit this by itself.
                let _ = tx.execute("INSERT INTO payments (amount) VALUES (2)", []);
                Ok(Answer::new(StatusCode::CREATED, "half"))
            })
        });
        let failed = failed.await;
        assert!(matches!(failed, Err(RunError::RolledBack(_))), "{failed:?}");
        assert_eq!(place.number("SELECT count(*) FROM payments"), 0, "{number}");
        assert_eq!(place.number("SELECT count(*) FROM taken"), 0, "{number}");
        let counts = place.transactions.engine().store().counts().await.unwrap();
        assert_eq!(counts[&State::FailedRetryable], 1);
        let again = operation.run(Scope::global(), key(), "1", |_| {
            Box::pin(async { Ok(Answer::new(StatusCode::CREATED, "whole")) })
        });
        assert!(matches!(again.await.unwrap(), Ran::Executed(_)));
    }
}
