//! Inbox and natural keys.

use std::time::Duration;

use futures_util::future::join_all;
use onlyonce::{Transactions, inbox::Processed};
use onlyonce_store::{
    TransactionalStore as _,
    transactional::{Isolation, TransactionError},
};

use crate::place::{Kind, Pg, Place};

/// Delivers a message once. Says whether it had an effect.
async fn deliver<K: Kind>(
    all: &Transactions<K::Inside>,
    message: &str,
    commit: bool,
) -> Result<bool, TransactionError> {
    let store = all.store();
    let mut tx = store.begin(Isolation::ReadCommitted).await?;
    let what = message.to_owned();
    let processed = all
        .process_once(&mut tx, "billing", message, |tx| K::effect(tx, what))
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
pub(crate) async fn one_effect<K: Kind>() {
    let place = Place::<K>::new().await;
    let all = &place.transactions;
    assert!(deliver::<K>(all, "m-1", false).await.unwrap());
    assert_eq!(place.number("SELECT count(*) FROM effects"), 0);
    let deliveries = join_all((0..12).map(|_| deliver::<K>(all, "m-1", true))).await;
    let first = deliveries
        .into_iter()
        .filter(|first| *first.as_ref().unwrap());
    assert_eq!(first.count(), 1);
    assert!(!deliver::<K>(all, "m-1", true).await.unwrap());
    assert_eq!(place.number("SELECT count(*) FROM effects"), 1);
    // Another consumer has its own memory.
    let store = all.store();
    let mut tx = store.begin(Isolation::ReadCommitted).await.unwrap();
    let month = Duration::from_secs(30 * 86_400);
    assert!(store.receive(&mut tx, "mail", "m-1", month).await.unwrap());
    store.commit(tx).await.unwrap();
    // What is past its retention is forgotten by the reaper, and only that.
    place.sql("UPDATE onlyonce.inbox SET keep_until = 0 WHERE consumer = 'mail'");
    K::reap(&place).await;
    assert_eq!(place.number("SELECT count(*) FROM onlyonce.inbox"), 1);
}

/// Goal: under one natural key transactions take turns, under different ones they do not.
///
/// Method: eight transactions look whether an order has a shipment and make one if not; READ COMMITTED
/// alone would let them all make one.
/// Evidence: one shipment.
pub(crate) async fn natural_key<K: Kind>() {
    let place = Place::<K>::new().await;
    let ship = async |order: &str| {
        let (all, store) = (&place.transactions, place.transactions.store());
        let mut tx = store.begin(Isolation::ReadCommitted).await.unwrap();
        let what = order.to_owned();
        let shipped = all.with_natural_key(&mut tx, order, |tx| {
            Box::pin(async move {
                let done = K::has_effect(tx, what.clone()).await?;
                tokio::time::sleep(Duration::from_millis(20)).await;
                match done {
                    true => Ok(()),
                    false => K::effect(tx, what).await,
                }
            })
        });
        shipped.await.unwrap();
        store.commit(tx).await.unwrap();
    };
    join_all((0..8).map(|_| ship("order:17"))).await;
    assert_eq!(place.number("SELECT count(*) FROM effects"), 1);
    let store = place.transactions.store();
    let mut held = store.begin(Isolation::ReadCommitted).await.unwrap();
    store.hold(&mut held, "order:17").await.unwrap();
    let other = tokio::time::timeout(Duration::from_secs(10), ship("order:18"));
    assert!(other.await.is_ok(), "another order waited");
    let same = tokio::time::timeout(Duration::from_millis(300), ship("order:17"));
    assert!(same.await.is_err(), "the same order did not wait");
    store.rollback(held).await;
    let freed = tokio::time::timeout(Duration::from_secs(20), ship("order:17"));
    assert!(freed.await.is_ok(), "a rollback did not free the order");
}

/// Goal: the SQL of the guide does what it says.
#[tokio::test(flavor = "multi_thread")]
async fn guarded_writes_of_the_guide() {
    const GUIDE: &str = include_str!("../../../../docs/guide/inbox.md");
    let place = Place::<Pg>::new().await;
    for (number, block) in GUIDE.split("```sql\n").skip(1).enumerate() {
        let (sql, _) = block.split_once("```").unwrap();
        // Each may be run again and changes nothing then.
        for _ in 0..2 {
            place.sql(sql);
        }
        println!("block {number} ran twice");
    }
    assert_eq!(
        place.number("SELECT quantity FROM stock WHERE item = 'chair'"),
        3
    );
    assert_eq!(
        place.number("SELECT version FROM stock WHERE item = 'chair'"),
        7
    );
    assert_eq!(
        place.number("SELECT sum(amount)::bigint FROM ledger WHERE account = 'ada'"),
        -1_000
    );
    let shipped = "SELECT count(*) FROM orders WHERE state = 'shipped'";
    assert_eq!(place.number(shipped), 1);
}
