//! The scans of the background loops: lapsed leases, and expired records.

use onlyonce_core::machine::{Heartbeat, Sweep, Write};

use super::*;

/// The scan for lapsed leases finds exactly those, and none that was swept.
pub async fn sweep_finds_the_lapsed(store: Any) {
    let lapsed = reserve_under(&*store, "lapsed", &short_lease()).await;
    reserve(&*store, "alive", 1).await;
    let completed = reserve_under(&*store, "completed", &short_lease()).await;
    complete(&*store, &completed, &policy()).await;
    let found = store.lapsed(10).await.unwrap();
    assert_eq!(found.value, std::slice::from_ref(&lapsed));
    let Some(change) = machine::apply(
        Some(&found.value[0]),
        &Sweep { knows_route: false },
        found.now,
        &Policy::default(),
    )
    .swapped() else {
        panic!("the machine agrees that it has lapsed");
    };
    done(store.swap(lapsed.revision, change).await.unwrap().value);
    assert_eq!(store.lapsed(10).await.unwrap().value, []);
}

/// A heartbeat removes a record from the scan, and a sweep that read before it changes nothing.
pub async fn sweep_ignores_a_heartbeat(store: Any) {
    let record = reserve_under(&*store, "k", &short_lease()).await;
    let found = store.lapsed(10).await.unwrap();
    let Some(renewal) = machine::apply(
        Some(&record),
        &Heartbeat(record.attempt_id),
        found.now,
        &policy(),
    )
    .swapped() else {
        panic!("the attempt owns the key");
    };
    let renewed = done(store.swap(record.revision, renewal).await.unwrap().value);
    let Some(change) = machine::apply(
        Some(&found.value[0]),
        &Sweep { knows_route: false },
        found.now,
        &Policy::default(),
    )
    .swapped() else {
        panic!("it had lapsed when it was read");
    };
    let swapped = store
        .swap(found.value[0].revision, change)
        .await
        .unwrap()
        .value;
    assert_eq!(swapped, Swapped::Conflict(renewed));
    assert_eq!(store.lapsed(10).await.unwrap().value, []);
}

async fn walk_all(store: &dyn Store) -> Vec<Record> {
    let mut found = Vec::new();
    for _ in 0..1_000 {
        let walk = store.walk(3).await.unwrap().value;
        found.extend(walk.candidates);
        if walk.wrapped {
            return found;
        }
    }
    panic!("the walk never ends");
}

/// The walk finds expired records wherever they are, and after expiry those that may be deleted.
pub async fn walk_finds_the_expired(store: Any) {
    let gone = Policy::builder()
        .ttl(Duration::ZERO)
        .tombstone_ttl(Duration::ZERO)
        .build();
    for number in 0..10 {
        let record = reserve_under(&*store, &format!("k{number}"), &gone).await;
        let kept = if number % 2 == 0 { &gone } else { &policy() };
        complete(&*store, &record, kept).await;
    }
    let expired = walk_all(&*store).await;
    assert_eq!(expired.len(), 5);
    for record in &expired {
        let now = store.lookup(record.id).await.unwrap().now;
        let Some(change) = machine::apply(Some(record), &Reap, now, &Policy::default()).swapped()
        else {
            panic!("expired")
        };
        done(store.swap(record.revision, change).await.unwrap().value);
    }
    let tombstones = walk_all(&*store).await;
    assert_eq!(tombstones.len(), 5);
    for record in &tombstones {
        let now = store.lookup(record.id).await.unwrap().now;
        assert_eq!(
            machine::apply(Some(record), &Reap, now, &Policy::default()).write,
            Write::Delete
        );
        assert!(store.delete(record.id, record.revision).await.unwrap());
    }
    assert_eq!(walk_all(&*store).await, []);
    assert_eq!(
        store
            .list(&Filter::default(), None, 100)
            .await
            .unwrap()
            .items
            .len(),
        5
    );
}

/// A tombstone is left alone until it may be deleted: the walk meets due records among many tombstones.
pub async fn walk_leaves_young_tombstones(store: Any) {
    let kept = Policy::builder()
        .ttl(Duration::ZERO)
        .tombstone_ttl(Duration::from_secs(3_600))
        .build();
    for number in 0..7 {
        let record = reserve_under(&*store, &format!("k{number}"), &kept).await;
        complete(&*store, &record, &kept).await;
    }
    let expired = walk_all(&*store).await;
    assert_eq!(expired.len(), 7);
    for record in &expired {
        let now = store.lookup(record.id).await.unwrap().now;
        let expiry = machine::apply(Some(record), &Reap, now, &Policy::default());
        let change = expiry.swapped().expect("it has expired");
        done(store.swap(record.revision, change).await.unwrap().value);
    }
    assert_eq!(walk_all(&*store).await, []);
}

/// A record in progress or unknown is never a candidate, however old.
pub async fn walk_leaves_the_live(store: Any) {
    let gone = Policy::builder()
        .ttl(Duration::ZERO)
        .lease(Duration::ZERO)
        .build();
    reserve_under(&*store, "running", &gone).await;
    let record = reserve_under(&*store, "unclear", &gone).await;
    let change = settled(&record, &Settlement::Unknown(LastError::Timeout), &gone);
    done(store.swap(record.revision, change).await.unwrap().value);
    assert_eq!(walk_all(&*store).await, []);
}

/// A delete also compares the revision.
pub async fn delete_needs_the_revision(store: Any) {
    let record = reserve(&*store, "k", 1).await;
    assert!(!store.delete(record.id, Revision(99)).await.unwrap());
    assert!(stored(&*store, &record).await.is_some());
    assert!(store.delete(record.id, record.revision).await.unwrap());
    assert!(!store.delete(record.id, record.revision).await.unwrap());
    assert_eq!(stored(&*store, &record).await, None);
}
