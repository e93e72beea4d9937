//! What Redis really loses when it is killed with -9, for each way of keeping its data: measured, and
//! printed for the guide.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use onlyonce_core::{
    AttemptId, Fingerprint, Key, Policy, Recipe, RecordId, Scope, StoredResponse, Timestamp,
    machine::{self, End, Request, Settlement},
};
use onlyonce_store::{
    Inserted, Level, Store, Swapped,
    redis::{RedisOptions, RedisStore},
};
use onlyonce_testkit::servers::Redis;

/// Keys that are under way at once.
const WRITERS: usize = 16;
/// How long keys are written before the server is killed.
const WRITE_FOR: Duration = Duration::from_millis(1_200);

/// Reserves and completes keys until the server is gone; the ids of those whose completion it said.
async fn write(store: Arc<RedisStore>, writer: usize, stop: Arc<AtomicBool>) -> Vec<RecordId> {
    let mut acknowledged = Vec::new();
    let answer = StoredResponse::plain(StatusCode::CREATED, "x".repeat(300));
    let settlement = Settlement::Complete(answer.into());
    for number in 0_u32.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let key = Key::from_stored(&format!("loss-{writer}-{number}"));
        let request = Request {
            id: store.secret().record_id(Scope::global().as_str(), &key),
            scope: Scope::global(),
            key,
            fingerprint: Fingerprint([7; 32]),
            recipe: Recipe::default().id(),
            caller: None,
            attempt_id: AttemptId(u128::from(number) + 1),
            route: "r".into(),
            method: "POST".into(),
            path: "/".into(),
            other_mark: None,
            notes: onlyonce_core::record::Notes::default(),
        };
        let inserted = store
            .insert_or_get(machine::first(&request, &Policy::default()))
            .await;
        let Ok(Inserted::New(record)) = inserted.map(|reply| reply.value) else {
            break;
        };
        let own = record.attempt_id;
        let Some(change) = machine::apply(
            Some(&record),
            &End {
                attempt: own,
                settlement: &settlement,
            },
            Timestamp::default(),
            &Policy::default(),
        )
        .swapped() else {
            panic!("it is its own");
        };
        match store
            .swap(record.revision, change)
            .await
            .map(|reply| reply.value)
        {
            Ok(Swapped::Done(record)) => acknowledged.push(record.id),
            _ => break,
        }
    }
    acknowledged
}

/// How many of the acknowledged answers are there once the server is back, and how many there were.
async fn killed(settings: &[&str], snapshot_halfway: bool) -> (Level, usize, usize) {
    let mut server = tokio::task::block_in_place(|| Redis::start_with(settings));
    let options = RedisOptions {
        timeout: Duration::from_secs(10),
        ..RedisOptions::default()
    };
    let store = Arc::new(RedisStore::open(&server.url(), &options).await.unwrap());
    let level = store.level();
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(write(store.clone(), writer, stop.clone())))
        .collect();
    tokio::time::sleep(WRITE_FOR / 2).await;
    if snapshot_halfway {
        server.cli(&["save"]);
    }
    tokio::time::sleep(WRITE_FOR / 2).await;
    // In the middle of the writing: nobody is told before.
    tokio::task::block_in_place(|| server.kill());
    stop.store(true, Ordering::SeqCst);
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.extend(writer.await.unwrap());
    }
    tokio::task::block_in_place(|| server.boot());
    let again = RedisStore::open(&server.url(), &options).await.unwrap();
    let mut there = 0;
    for id in &acknowledged {
        let found = again.lookup(*id).await.unwrap().value;
        there += usize::from(found.is_some_and(|record| record.response.is_some()));
    }
    (level, acknowledged.len(), acknowledged.len() - there)
}

/// Goal: the guide says what was measured, not what is hoped for.
///
/// Method: keys are reserved and completed; the server is killed with -9 in the middle of it and started
/// again; every acknowledged answer is looked up.
/// Evidence: what is missing, printed. `always` may lose nothing; nothing kept may keep nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_server_lost() {
    let aof = "appendonly yes";
    for (name, settings, snapshot) in [
        ("nothing kept", &[][..], false),
        (
            "snapshots (RDB), one halfway",
            &["save 3600 1 300 100"][..],
            true,
        ),
        (
            "appendfsync everysec",
            &[aof, "appendfsync everysec"][..],
            false,
        ),
        (
            "appendfsync always",
            &[aof, "appendfsync always"][..],
            false,
        ),
    ] {
        let (level, acknowledged, lost) = killed(settings, snapshot).await;
        println!(
            "kill -9, {name}: level {level}, {acknowledged} answers acknowledged, {lost} lost"
        );
        assert!(acknowledged > 0, "{name}");
        match name {
            "appendfsync always" => assert_eq!((level, lost), (Level::Sync, 0)),
            "nothing kept" => assert_eq!((level, lost), (Level::Volatile, acknowledged)),
            "appendfsync everysec" => assert_eq!(level, Level::Async),
            _ => assert!(
                level == Level::Volatile && lost > 0 && lost < acknowledged,
                "{name}"
            ),
        }
    }
}
