//! Inbox and natural keys on PostgreSQL.

use std::time::Duration;

use futures_util::future::join_all;
use onlyonce::inbox::Processed;
use onlyonce_store::{
    TransactionalStore as _,
    transactional::{Isolation, TransactionError},
};

use crate::place::{Pg, Place};

async fn effect(tx: &mut sqlx::PgConnection, what: String) -> Result<(), TransactionError> {
    sqlx::query("INSERT INTO effects VALUES ($1)")
        .bind(what)
        .execute(tx)
        .await?;
    Ok(())
}

/// Delivers a message once. Says whether it had an effect.
async fn deliver(all: &Pg, message: &str, commit: bool) -> Result<bool, TransactionError> {
    let store = all.store();
    let mut tx = store.begin(Isolation::ReadCommitted).await?;
    let what = message.to_owned();
    let processed = all
        .process_once(&mut tx, "billing", message, |tx| Box::pin(effect(tx, what)))
        .await?;
    if commit {
        store.commit(tx).await?;
    } else {
        store.rollback(tx).await;
    }
    Ok(processed == Processed::Now(()))
}

/// Goal: a message that is delivered many times, at once and again, has one effect; one whose transaction
/// was rolled back had none and is processed by the next delivery.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_has_one_effect() {
    let place = Place::new().await;
    let all = &place.transactions;
    assert!(deliver(all, "m-1", false).await.unwrap());
    assert_eq!(place.number("SELECT count(*) FROM effects").await, 0);
    let deliveries = join_all((0..12).map(|_| deliver(all, "m-1", true))).await;
    let first = deliveries
        .into_iter()
        .filter(|first| *first.as_ref().unwrap());
    assert_eq!(first.count(), 1);
    assert!(!deliver(all, "m-1", true).await.unwrap());
    assert_eq!(place.number("SELECT count(*) FROM effects").await, 1);
    // Another consumer has its own memory.
    let store = all.store();
    let mut tx = store.begin(Isolation::ReadCommitted).await.unwrap();
    let month = Duration::from_secs(30 * 86_400);
    assert!(store.receive(&mut tx, "mail", "m-1", month).await.unwrap());
    store.commit(tx).await.unwrap();
    // What is past its retention is forgotten by the reaper, and only that.
    place.sql("UPDATE onlyonce.inbox SET keep_until = 0 WHERE consumer = 'mail'");
    place.sql("SELECT onlyonce.reap()");
    assert_eq!(place.number("SELECT count(*) FROM onlyonce.inbox").await, 1);
}

/// Goal: under one natural key transactions take turns, under different ones they do not.
///
/// Method: eight transactions look whether an order has a shipment and make one if not; READ COMMITTED
/// alone would let them all make one.
/// Evidence: one shipment.
#[tokio::test(flavor = "multi_thread")]
async fn a_natural_key_is_held_by_one() {
    let place = Place::new().await;
    let ship = async |order: &str| {
        let (all, store) = (&place.transactions, place.transactions.store());
        let mut tx = store.begin(Isolation::ReadCommitted).await.unwrap();
        let what = order.to_owned();
        let shipped = all.with_natural_key(&mut tx, order, |tx| {
            Box::pin(async move {
                let found = sqlx::query("SELECT 1 FROM effects WHERE what = $1")
                    .bind(&what)
                    .fetch_optional(&mut *tx)
                    .await?;
                tokio::time::sleep(Duration::from_millis(20)).await;
                match found {
                    Some(_) => Ok(()),
                    None => effect(tx, what).await,
                }
            })
        });
        shipped.await.unwrap();
        store.commit(tx).await.unwrap();
    };
    join_all((0..8).map(|_| ship("order:17"))).await;
    assert_eq!(place.number("SELECT count(*) FROM effects").await, 1);
    let store = place.transactions.store();
    let mut held = store.begin(Isolation::ReadCommitted).await.unwrap();
    store.hold(&mut held, "order:17").await.unwrap();
    let other = tokio::time::timeout(Duration::from_secs(10), ship("order:18"));
    assert!(other.await.is_ok(), "another order waited");
    let same = tokio::time::timeout(Duration::from_millis(300), ship("order:17"));
    assert!(same.await.is_err(), "the same order did not wait");
}

/// Goal: the SQL of the guide does what it says.
#[tokio::test(flavor = "multi_thread")]
async fn guarded_writes_of_the_guide() {
    const GUIDE: &str = include_str!("../../../../docs/guide/inbox.md");
    let place = Place::new().await;
    for (number, block) in GUIDE.split("```sql\n").skip(1).enumerate() {
        let (sql, _) = block.split_once("```").unwrap();
        // Each may be run again and changes nothing then.
        for _ in 0..2 {
            place.sql(sql);
        }
        println!("block {number} ran twice");
    }
    assert_eq!(
        place
            .number("SELECT quantity FROM stock WHERE item = 'chair'")
            .await,
        3
    );
    assert_eq!(
        place
            .number("SELECT version FROM stock WHERE item = 'chair'")
            .await,
        7
    );
    assert_eq!(
        place
            .number("SELECT sum(amount)::bigint FROM ledger WHERE account = 'ada'")
            .await,
        -1_000
    );
    let shipped = "SELECT count(*) FROM orders WHERE state = 'shipped'";
    assert_eq!(place.number(shipped).await, 1);
}
