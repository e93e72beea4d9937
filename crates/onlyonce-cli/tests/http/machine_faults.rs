//! Faults of the machine: disks that fill up or cannot be written, files that are cut or are none.
//!
//! Two `serve` on one file, and writes that fail by a limit of the process, are in `lifecycle.rs`.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use tempfile::TempDir;

use crate::bodies::noise;
use crate::harness::{
    Gateway, REPLAYED, Request, Script, Setup, Upstream, client, eventually, mount::Mount,
    process::Exit, soak,
};

/// The file system of these tests, or `None` after saying why there is none.
fn tmpfs(bytes: u64) -> Option<Mount> {
    Mount::tmpfs(bytes)
        .inspect_err(|why| println!("skipped: a file system cannot be mounted here: {why}"))
        .ok()
}

fn on(mount: &Mount) -> String {
    format!("sqlite:{}/onlyonce.db", mount.path().display())
}

/// Starts on a store that must not work.
async fn refused(upstream: &Upstream, setup: Setup, folder: Arc<TempDir>, what: &str) -> Exit {
    match setup.start_in(folder, &upstream.url()).await {
        Ok(_) => panic!("a gateway runs on {what}"),
        Err(exit) => {
            println!("{what}: {}", last_words(&exit.logs));
            assert!(matches!(exit.status.code(), Some(1..)), "{what}: {exit:?}");
            assert!(exit.logs.contains("onlyonce.db"), "{what}: {}", exit.logs);
            assert!(!exit.logs.contains("panicked"), "{what}: {}", exit.logs);
            exit
        }
    }
}

fn last_words(logs: &str) -> String {
    let at = logs.rfind("error: ").unwrap_or_default();
    logs[at..].split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Goal: a disk that fills up costs availability, never the promise, and heals by itself.
///
/// Method: a file system of 24 MiB, half of it taken; payments with answers of 16 KiB until it is
/// full and thirty have been refused, eight at a time; then room is made. No restart.
/// Evidence: whatever was answered with 201 is replayed to the byte, before and after kill -9; what
/// was refused as not executed runs once; what was executed without an answer completes by itself.
#[tokio::test]
async fn a_disk_that_fills_up_and_is_freed() {
    let Some(mount) = tmpfs(24 << 20) else { return };
    mount.fill("ballast", 12 << 20);
    let upstream = Upstream::start();
    upstream.always(Script::created().body(noise(16 << 10)));
    let setup = Setup::with("completion_grace: 300ms").store(&on(&mount));
    let mut gateway = setup.start(&upstream).await;

    let mut acknowledged = BTreeMap::new();
    let (mut not_reserved, mut not_durable) = (Vec::new(), Vec::new());
    let mut number = 0;
    while not_reserved.len() < 30 {
        assert!(number < 4_000, "the disk does not get full");
        let keys: Vec<_> = (number..number + 8).map(|n| format!("disk-{n}")).collect();
        number += 8;
        let running: Vec<_> = keys
            .iter()
            .map(|key| gateway.send_later(&Request::pay(key)))
            .collect();
        for (key, running) in keys.into_iter().zip(running) {
            let answer = running.await.unwrap();
            match (answer.status, upstream.executions_of(&key)) {
                (201, 1) => drop(acknowledged.insert(key, answer.body)),
                (503, executed) => match answer.code().as_str() {
                    "idempotency_store_unavailable" => {
                        assert_eq!(executed, 0, "{key} reached the upstream: {answer}");
                        not_reserved.push(key);
                    }
                    "idempotency_outcome_unknown" => not_durable.push(key),
                    other => panic!("{key}: {other}"),
                },
                other => panic!("{key}: {other:?}: {answer}"),
            }
        }
    }
    println!(
        "full disk: {} acknowledged, {} executed without an answer, {} not reserved",
        acknowledged.len(),
        not_durable.len(),
        not_reserved.len()
    );
    for (key, body) in acknowledged.iter().take(20) {
        let replay = gateway.send(&Request::pay(key)).await.expect(201);
        assert!(replay.body == *body, "{key} on the full disk");
    }

    mount.remove("ballast");
    eventually("a new key to be taken again", async || {
        let answer = gateway.send(&Request::pay("room")).await;
        (answer.status == 201).then_some(())
    })
    .await;
    for key in &not_durable {
        gateway.until_state(key, "completed").await;
    }
    for key in &not_reserved {
        gateway.send(&Request::pay(key)).await.expect(201);
    }
    for killed in [false, true] {
        if killed {
            gateway.kill9().await;
            gateway.restart().await;
        }
        for key in acknowledged.keys().chain(&not_durable).chain(&not_reserved) {
            let replay = gateway.send(&Request::pay(key)).await.expect(201);
            assert_eq!(replay.header(REPLAYED), Some("true"), "{key}");
            assert!(
                acknowledged
                    .get(key)
                    .is_none_or(|body| *body == replay.body),
                "{key}"
            );
            assert_eq!(upstream.executions_of(key), 1, "{key}");
        }
    }
}

/// Goal: an answer that the full disk cannot take is not acknowledged, on a real full disk too.
///
/// Method: the upstream holds; the disk is filled to its last byte; release; later room is made.
/// Evidence: 503 unknown after `completion_grace`; then completed by itself; one execution.
#[tokio::test]
async fn a_disk_that_is_full_at_completion() {
    let Some(mount) = tmpfs(8 << 20) else { return };
    let upstream = Upstream::start();
    upstream.next(Script::created().held().body(noise(64 << 10)));
    let setup = Setup::with("completion_grace: 300ms").store(&on(&mount));
    let gateway = setup.start(&upstream).await;
    let first = gateway.send_later(&Request::pay("k"));
    upstream.begun(1).await;
    mount.fill("ballast", 8 << 20);
    upstream.release();
    let first = first.await.unwrap();
    first.refused(503, "idempotency_outcome_unknown");
    let again = gateway
        .send(&Request::pay("k").header("Prefer", "wait=0"))
        .await;
    assert_eq!(again.status, 409, "{again}");
    mount.remove("ballast");
    gateway.until_state("k", "completed").await;
    let replay = gateway.send(&Request::pay("k")).await.expect(201);
    assert!(replay.body == noise(64 << 10));
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a gateway that cannot write does not start, and says so.
///
/// Method: the file alone read-only, by a mount, since permissions do not bind root; then the whole
/// file system.
/// Evidence: a failure at start that names the file and says read-only; afterwards, writable again,
/// the answer of before is replayed.
#[tokio::test]
async fn read_only_files() {
    let Some(mount) = tmpfs(8 << 20) else { return };
    let upstream = Upstream::start();
    let setup = Setup::with("").store(&on(&mount));
    let mut gateway = setup.clone().start(&upstream).await;
    gateway.send(&Request::pay("k")).await.expect(201);
    gateway.kill9().await;
    let folder = gateway.folder();
    {
        let file = mount.path().join("onlyonce.db");
        let _cover = Mount::read_only_file(&file).expect("the other mount worked");
        let exit = refused(&upstream, setup.clone(), folder.clone(), "a read-only file").await;
        assert!(exit.logs.to_lowercase().contains("read"), "{}", exit.logs);
    }
    gateway.restart().await;
    let replay = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(replay.header(REPLAYED), Some("true"));
    gateway.kill9().await;
    mount.read_only().expect("nothing is open for writing");
    let exit = refused(&upstream, setup, folder, "a read-only folder").await;
    assert!(exit.logs.contains("Read-only"), "{}", exit.logs);
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a log that was cut is read as far as it is whole, and no further.
///
/// Method: twenty keys, kill -9, the write-ahead log cut at a place that moves with the round (8
/// rounds; 60 with `ONLYONCE_SOAK=1`), restart, every key again.
/// Evidence: what is still there as completed is replayed to the byte; what is there as begun is
/// never executed again; what is gone is gone from some point on, in the order of writing.
#[tokio::test]
async fn a_log_that_was_cut() {
    let rounds = if soak() { 60 } else { 8 };
    let (mut kept, mut unknown, mut lost) = (0, 0, 0);
    for round in 0..rounds {
        let found = Box::pin(cut(round, rounds)).await;
        (kept, unknown, lost) = (kept + found.0, unknown + found.1, lost + found.2);
    }
    println!(
        "cut logs: {kept} replayed, {unknown} unknown, {lost} gone with their part of the log"
    );
    assert!(kept > 0 && lost > 0, "the cuts must reach both sides");
}

async fn cut(round: usize, rounds: usize) -> (usize, usize, usize) {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "lease: 1s").await;
    let mut answers = Vec::new();
    for number in 0..20 {
        let key = format!("cut-{number}");
        let answer = gateway.send(&Request::pay(&key)).await.expect(201);
        answers.push((key, answer.body));
    }
    gateway.kill9().await;
    let log = gateway.folder().path().join("onlyonce.db-wal");
    let length = std::fs::metadata(&log).expect("a log").len();
    // Every length is met in time, whole frames and parts of them.
    let keep = length * round as u64 / rounds as u64 + (round as u64 * 977) % 4_096;
    let file = std::fs::File::options().write(true).open(&log).unwrap();
    file.set_len(keep.min(length)).unwrap();
    drop(file);
    gateway.restart().await;
    let (mut kept, mut unknown, mut lost) = (0, 0, 0);
    for (key, body) in answers {
        let state = gateway.state(&key).await;
        match state.as_str() {
            "completed" => {
                assert_eq!((unknown, lost), (0, 0), "{key} outlived what was before it");
                let replay = gateway.send(&Request::pay(&key)).await.expect(201);
                assert!(
                    replay.body == body && upstream.executions_of(&key) == 1,
                    "{key}"
                );
                kept += 1;
            }
            "in_progress" | "unknown" => {
                assert_eq!(
                    (unknown, lost),
                    (0, 0),
                    "{key} was begun after what is gone"
                );
                gateway.until_state(&key, "unknown").await;
                let refused = gateway.send(&Request::pay(&key)).await;
                refused.refused(409, "idempotency_outcome_unknown");
                assert_eq!(upstream.executions_of(&key), 1, "{key}");
                unknown += 1;
            }
            "absent" => lost += 1,
            other => panic!("{key} is {other}"),
        }
    }
    client::send(gateway.data(), &Request::pay("after"))
        .await
        .unwrap()
        .expect(201);
    (kept, unknown, lost)
}

/// Goal: a file that is no store of this version is left alone, with a word about why.
///
/// Method: noise, text, a cut header, a folder, a database of another program, a newer schema.
/// Evidence: a failure at start that names the file and the reason; the file is as it was.
#[tokio::test]
async fn files_that_are_no_store() {
    let upstream = Upstream::start();
    let good = {
        let folder = TempDir::new().unwrap();
        database(&folder.path().join("good.db"), "CREATE TABLE theirs (a)", 1)
    };
    let newer = {
        let mut gateway = Gateway::start(&upstream, "").await;
        gateway.send(&Request::pay("k")).await.expect(201);
        gateway.sigterm();
        assert!(gateway.exited().await.success());
        database(&gateway.folder().path().join("onlyonce.db"), "", 99)
    };
    for (what, bytes, says) in [
        ("noise", noise(64 << 10), "not a database"),
        ("text", b"hello\n".repeat(2_000), "not a database"),
        ("half a header", good[..50].to_vec(), "malformed"),
        ("another program's database", good, "onlyonce.db"),
        ("a newer schema", newer, "version 99"),
    ] {
        let folder = Arc::new(TempDir::new().unwrap());
        let file = folder.path().join("onlyonce.db");
        std::fs::write(&file, &bytes).unwrap();
        let exit = refused(&upstream, Setup::with(""), folder.clone(), what).await;
        assert!(exit.logs.contains(says), "{what}: {}", exit.logs);
        assert!(std::fs::read(&file).unwrap() == bytes, "{what} was changed");
    }
    let folder = Arc::new(TempDir::new().unwrap());
    std::fs::create_dir(folder.path().join("onlyonce.db")).unwrap();
    refused(&upstream, Setup::with(""), folder, "a folder").await;
}

/// The bytes of a database at `path` after `sql`, with this schema version and without a log.
fn database(path: &Path, sql: &str, version: u32) -> Vec<u8> {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.execute_batch(sql).unwrap();
    connection
        .pragma_update(None, "journal_mode", "WAL")
        .unwrap();
    connection
        .pragma_update(None, "user_version", version)
        .unwrap();
    connection
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .unwrap();
    connection.close().unwrap();
    std::fs::read(path).unwrap()
}
