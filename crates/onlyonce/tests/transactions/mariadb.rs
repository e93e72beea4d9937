//! What only MySQL and MariaDB can do to a transaction.

use std::time::Duration;

use onlyonce::{Answer, Policy, Ran, RunError};
use onlyonce_core::Scope;
use onlyonce_store::{
    TransactionalStore as _,
    transactional::{Isolation, TransactionError},
};
use sqlx::{Connection as _, Executor as _, MySqlConnection};

use crate::{
    key,
    place::{Kind as _, Maria, Place, pay},
};

/// Runs `second` in a deadlock with another session that the server ends at its cost: it has done less.
async fn into_a_deadlock(tx: &mut MySqlConnection, url: &str) -> Result<(), TransactionError> {
    let mut other = MySqlConnection::connect(url).await?;
    other.execute("BEGIN").await?;
    // Weightier, so that the server gives up the one with less to take back.
    let much = "INSERT INTO effects SELECT 'other' FROM onlyonce_meta a, onlyonce_meta b, \
                onlyonce_meta c";
    other.execute(much).await?;
    other.execute("UPDATE locks SET v = 1 WHERE id = 1").await?;
    tx.execute("UPDATE locks SET v = 2 WHERE id = 2").await?;
    let waits = tokio::spawn(async move {
        let done = other.execute("UPDATE locks SET v = 1 WHERE id = 2").await;
        other.execute("ROLLBACK").await?;
        done
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let met = tx.execute("UPDATE locks SET v = 2 WHERE id = 1").await;
    let others = waits.await.unwrap();
    assert!(
        others.is_ok(),
        "the server gave up the other one: {others:?}"
    );
    met?;
    panic!("there was no deadlock");
}

const LOCKS: &str =
    "CREATE TABLE locks (id INT PRIMARY KEY, v INT); INSERT INTO locks VALUES (1, 0), (2, 0)";

/// Goal: work that passes over a deadlock, which the server has ended by taking back all of it, leaves
/// nothing of itself behind.
///
/// Method: the closure pays, runs into a deadlock, forgets the error, and pays again; once with a write
/// after it and once without.
/// Evidence: no run is executed and none is run again by itself; no row, no message, the key is free and the
/// next run pays once. The pool's connections still write outside of transactions.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_that_is_passed_over() {
    let place = Place::<Maria>::new().await;
    place.sql(LOCKS);
    let operation = place.operation(Policy::default()).await;
    for pays_again in [true, false] {
        let (transactions, url) = (place.transactions.clone(), place.url.clone());
        let run = operation.run(Scope::global(), key("k"), "1", move |tx| {
            let (transactions, url) = (transactions.clone(), url.clone());
            Box::pin(async move {
                let answer = pay::<Maria>(transactions.clone(), tx, 1).await?;
                let met = into_a_deadlock(tx, &url).await.unwrap_err();
                assert!(met.is_conflict(), "{met:?}");
                if pays_again {
                    Maria::paid(tx, 1).await?;
                }
                Ok(answer)
            })
        });
        assert!(matches!(run.await, Err(RunError::RolledBack(_))));
        assert_eq!(place.row_count(), (0, 0));
        assert_eq!(place.state("k").await, "failed_retryable");
    }
    // Without a key: the commit itself finds out.
    let store = place.transactions.store();
    let mut tx = store.begin(Isolation::ReadCommitted).await.unwrap();
    Maria::paid(&mut tx, 1).await.unwrap();
    into_a_deadlock(&mut tx, &place.url).await.unwrap_err();
    store.commit(tx).await.unwrap_err();
    let transactions = place.transactions.clone();
    let run = operation.run(Scope::global(), key("k"), "1", move |tx| {
        let transactions = transactions.clone();
        Box::pin(async move { pay::<Maria>(transactions, tx, 1).await })
    });
    assert!(matches!(run.await.unwrap(), Ran::Executed(_)));
    for _ in 0..20 {
        let insert = sqlx::query("INSERT INTO payments (amount) VALUES (5)");
        insert.execute(store.pool()).await.unwrap();
    }
    assert_eq!(place.row_count(), (21, 1));
}

/// Goal: a statement that waited in vain for a row is a conflict, and the whole transaction is taken back.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_waited_for_in_vain() {
    let place = Place::<Maria>::new_with(|all| all.retries(0)).await;
    place.sql(LOCKS);
    let mut other = MySqlConnection::connect(&place.url).await.unwrap();
    other.execute("BEGIN").await.unwrap();
    let hold = "UPDATE locks SET v = 1 WHERE id = 1";
    other.execute(hold).await.unwrap();
    let operation = place.operation(Policy::default()).await;
    let transactions = place.transactions.clone();
    let run = operation.run(Scope::global(), key("k"), "1", move |tx| {
        let transactions = transactions.clone();
        Box::pin(async move {
            pay::<Maria>(transactions, tx, 1).await?;
            tx.execute("SET innodb_lock_wait_timeout = 1").await?;
            tx.execute("UPDATE locks SET v = 2 WHERE id = 1").await?;
            Ok(Answer::new(http::StatusCode::OK, ""))
        })
    });
    match run.await {
        Err(RunError::RolledBack(error)) => assert!(error.is_conflict(), "{error:?}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(place.row_count(), (0, 0));
    assert_eq!(place.state("k").await, "failed_retryable");
}

/// Goal: what does not fit is refused, also in a session in which the server would cut it off.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_cut_off() {
    let place = Place::<Maria>::new().await;
    let store = place.transactions.store();
    let mut tx = store.begin(Isolation::ReadCommitted).await.unwrap();
    tx.execute("SET sql_mode = ''").await.unwrap();
    let month = Duration::from_secs(30 * 86_400);
    let long = "m".repeat(1_024);
    assert!(store.receive(&mut tx, "c", &long, month).await.unwrap());
    let longer = format!("{long}!");
    assert!(store.receive(&mut tx, "c", &longer, month).await.is_err());
    // A natural key may be of any length, and its case and spaces count.
    store
        .hold(&mut tx, &"order:17 ".repeat(5_000))
        .await
        .unwrap();
    let mut second = store.begin(Isolation::ReadCommitted).await.unwrap();
    store.hold(&mut tx, "order:17").await.unwrap();
    for other in ["Order:17", "order:17 "] {
        let held = tokio::time::timeout(Duration::from_secs(10), store.hold(&mut second, other));
        held.await.expect("another key waited").unwrap();
    }
}

/// Goal: a key that an application's table refers to can be reaped.
///
/// Method: a payment that refers to its key, `ON DELETE SET NULL`, written in the key's transaction; the key
/// is past its time at once.
/// Evidence: the key is gone, the payment is there, and refers to nothing.
#[tokio::test(flavor = "multi_thread")]
async fn reaped_under_a_foreign_key() {
    let place = Place::<Maria>::new().await;
    place.sql(
        "ALTER TABLE payments ADD COLUMN key_id BINARY(16), ADD FOREIGN KEY (key_id) \
         REFERENCES onlyonce_keys (id) ON DELETE SET NULL",
    );
    let policy = Policy::builder()
        .ttl(Duration::from_millis(1))
        .tombstone_ttl(Duration::from_millis(1))
        .build();
    let operation = place.operation(policy).await;
    let engine = place.transactions.engine();
    let id = engine.secret().record_id("global", &key("k"));
    let run = operation.run(Scope::global(), key("k"), "1", move |tx| {
        Box::pin(async move {
            let insert = sqlx::query("INSERT INTO payments (amount, key_id) VALUES (1, ?)");
            insert.bind(&id.0[..]).execute(tx).await?;
            Ok(Answer::new(http::StatusCode::OK, ""))
        })
    });
    assert!(matches!(run.await.unwrap(), Ran::Executed(_)));
    let referring = "SELECT count(*) FROM payments WHERE key_id IS NOT NULL";
    assert_eq!(place.number(referring), 1);
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        onlyonce::worker::reap::run_once(engine).await.unwrap();
        if place.state("k").await.is_empty() {
            break;
        }
    }
    assert_eq!(place.state("k").await, "");
    assert_eq!(place.number(referring), 0);
    assert_eq!(place.number("SELECT count(*) FROM payments"), 1);
}
