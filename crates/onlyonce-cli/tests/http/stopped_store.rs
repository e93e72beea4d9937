//! A stopped gateway leaves an SQLite file that is whole by itself, and a file that is not whole is
//! refused by name. Only the gateway's own operator can stop its store, so `onlyonce verify`, which
//! drives anybody's API, has no such check: this is where it is.

use std::{
    path::{Path, PathBuf},
    process::Output,
    sync::Arc,
};

use tempfile::TempDir;
use tokio::process::Command;

use crate::harness::{
    Gateway, REPLAYED, Request, Setup, Upstream,
    process::{Exit, binary},
    within,
};

/// Keys that are sent before the gateway ends.
const KEYS: usize = 300;

fn file_in(folder: &TempDir) -> PathBuf {
    folder.path().join("onlyonce.db")
}

fn log_of(file: &Path) -> PathBuf {
    PathBuf::from(format!("{}-wal", file.display()))
}

fn request(number: usize) -> Request {
    Request::pay(&format!("stopped-{number}"))
}

async fn fill(gateway: &Gateway, upstream: &Upstream) {
    for number in 0..KEYS {
        gateway.send(&request(number)).await.expect(201);
    }
    assert_eq!(upstream.executions(), KEYS);
}

/// A folder that holds a copy of the file alone.
fn copied(gateway: &Gateway) -> Arc<TempDir> {
    let copy = Arc::new(TempDir::new().expect("a folder"));
    std::fs::copy(file_in(&gateway.folder()), file_in(&copy)).expect("a copy");
    copy
}

async fn start_in(folder: &Arc<TempDir>, upstream: &Upstream) -> Result<Gateway, Exit> {
    let setup = Setup::with("");
    setup.start_in(Arc::clone(folder), &upstream.url()).await
}

async fn onlyonce(args: &[&str], folder: &TempDir) -> (i32, String) {
    let mut command = Command::new(binary());
    let url = format!("sqlite:{}", file_in(folder).display());
    command.args(args).args(["--store", &url]);
    let output: Output = within("the command", command.output()).await.unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).expect("text");
    (output.status.code().expect("an exit code"), said)
}

/// Goal: what a stopped gateway leaves is one file, and a copy of it knows every key.
///
/// Method: 300 keys, SIGTERM, exit 0; the file alone is copied and served; `keys` and `migrate` open and
/// leave it, too.
/// Evidence: no log is left; 300 of 300 replay; the upstream's own count does not move.
#[tokio::test]
async fn a_stopped_file_is_whole_by_itself() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "").await;
    fill(&gateway, &upstream).await;
    gateway.sigterm();
    assert!(gateway.exited().await.success());
    let file = file_in(&gateway.folder());
    assert!(!log_of(&file).exists(), "no log is left");

    let copy = copied(&gateway);
    for args in [&["keys", "list"][..], &["migrate"]] {
        let (code, said) = onlyonce(args, &copy).await;
        assert_eq!(code, 0, "{said}");
        assert!(!log_of(&file_in(&copy)).exists(), "{args:?} leaves no log");
    }
    let served = start_in(&copy, &upstream).await.expect("a whole file");
    let mut replayed = 0;
    for number in 0..KEYS {
        let answer = served.send(&request(number)).await.expect(201);
        replayed += usize::from(answer.header(REPLAYED) == Some("true"));
    }
    assert_eq!(replayed, KEYS);
    assert_eq!(upstream.executions(), KEYS, "0 executed again");
}

/// Goal: a copy of the file alone, taken from a gateway that was killed, is not served in silence; the
/// file with its log is, unattended.
///
/// Method: 300 keys, kill -9; the file alone is copied. `serve`, `migrate` and `keys` are tried on it;
/// then somebody accepts what is lost. The original, with its log, is started again.
/// Evidence: exit codes, what is said, the upstream's own count.
#[tokio::test]
async fn a_killed_file_without_its_log_is_refused() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "").await;
    fill(&gateway, &upstream).await;
    gateway.kill9().await;
    let copy = copied(&gateway);
    let Err(exit) = start_in(&copy, &upstream).await else {
        panic!("a file without its log is served");
    };
    assert!(!exit.status.success());
    assert!(exit.logs.contains("-wal is missing"), "{}", exit.logs);
    for args in [&["keys", "list"][..], &["migrate"]] {
        let (code, said) = onlyonce(args, &copy).await;
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("-wal is missing"), "{args:?}: {said}");
    }
    // With its log the file is served at once, and knows them all.
    gateway.restart().await;
    for number in 0..KEYS {
        let answer = gateway.send(&request(number)).await.expect(201);
        assert_eq!(answer.header(REPLAYED), Some("true"));
    }
    assert_eq!(upstream.executions(), KEYS);

    let (code, said) = onlyonce(&["migrate", "--accept-incomplete"], &copy).await;
    assert_eq!(code, 0, "{said}");
    start_in(&copy, &upstream).await.expect("it was accepted");
}

/// Goal: a log is not mixed into another file.
///
/// Method: a backup of a stopped file is put in the place of one whose gateway was killed.
/// Evidence: `serve` refuses and says what to do; with the log moved away it serves what the backup has, and
/// nothing new until somebody accepts it.
#[tokio::test]
async fn a_log_beside_another_file_is_refused() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "").await;
    gateway.send(&Request::pay("old")).await.expect(201);
    gateway.sigterm();
    assert!(gateway.exited().await.success());
    let backup = copied(&gateway);
    gateway.restart().await;
    gateway.send(&Request::pay("new")).await.expect(201);
    gateway.kill9().await;
    let folder = gateway.folder();
    let file = file_in(&folder);
    std::fs::copy(file_in(&backup), &file).expect("a restored backup");
    let Err(exit) = start_in(&folder, &upstream).await else {
        panic!("a log of another file is used");
    };
    assert!(
        exit.logs.contains("is not the file that the log"),
        "{}",
        exit.logs
    );
    std::fs::remove_file(log_of(&file)).expect("the log is moved away");
    let mut served = start_in(&folder, &upstream).await.expect("a backup");
    served.says("not the file that was last in use here").await;
    let executed = upstream.executions();
    let new = served.send(&Request::pay("new")).await;
    new.refused(503, "idempotency_history_lost");
    assert_eq!(upstream.executions(), executed);
    served.sigterm();
    assert!(served.exited().await.success());
    let (code, said) = onlyonce(&["migrate", "--accept-incomplete"], &folder).await;
    assert_eq!(code, 0, "{said}");
    let served = start_in(&folder, &upstream).await.expect("the backup");
    let old = served.send(&Request::pay("old")).await.expect(201);
    assert_eq!(old.header(REPLAYED), Some("true"));
}

/// Goal: a log that is deleted under a gateway costs no acknowledged key.
///
/// Method: keys; the log is removed; another key; SIGTERM; a start, and every key again.
/// Evidence: the key in between is refused with 503 and not executed, `/readyz` says why; afterwards each key
/// that was acknowledged is replayed.
#[tokio::test]
async fn a_log_that_is_removed_under_a_gateway() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "").await;
    fill(&gateway, &upstream).await;
    let before = upstream.executions();
    std::fs::remove_file(log_of(&file_in(&gateway.folder()))).expect("a log");
    gateway
        .send(&Request::pay("late"))
        .await
        .refused(503, "idempotency_store_unavailable");
    assert_eq!(upstream.executions(), before);
    let ready = gateway.admin(Request::get("/readyz")).await.expect(503);
    let why = "is not the file that this process has open";
    assert!(ready.text().contains(why), "{ready}");
    gateway.sigterm();
    assert!(gateway.exited().await.success());
    gateway.restart().await;
    fill(&gateway, &upstream).await;
    assert_eq!(upstream.executions(), before, "each is replayed");
}
