//! A stopped SQLite store is one whole file, and a file that is not whole is refused by name.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use onlyonce_store::{
    Store as _, StoreError,
    sqlite::{OpenError, SqliteOptions, SqliteStore},
};
use tempfile::TempDir;

/// Blocks that are kept to see what a copy knows.
const BLOCKS: usize = 20;

fn log_of(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}-wal", path.display()))
}

async fn fill(store: &SqliteStore) {
    for number in 0..BLOCKS {
        let kept = store.keep_block(&format!("b{number}"), b"1").await;
        kept.expect("a block that is kept");
    }
}

async fn known(store: &SqliteStore) -> usize {
    let mut known = 0;
    for number in 0..BLOCKS {
        let found = store.block(&format!("b{number}")).await;
        known += usize::from(found.expect("a block that is read").is_some());
    }
    known
}

/// `path` as it was while it was in use, with its log: what a killed process leaves.
async fn killed(folder: &TempDir, name: &str) -> PathBuf {
    let live = folder.path().join(format!("{name}-live"));
    let store = SqliteStore::open(&live).expect("a new store");
    fill(&store).await;
    let path = folder.path().join(name);
    fs::copy(&live, &path).expect("a copy");
    fs::copy(log_of(&live), log_of(&path)).expect("a copy of the log");
    let lock = |path: &Path| format!("{}.lock", path.display());
    fs::copy(lock(&live), lock(&path)).expect("a copy of the lock file");
    path
}

/// Goal: a store that is closed, or dropped, is one file, and knows everything.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_store_is_one_file() {
    for close in [true, false] {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("oo ?%.db");
        let store = SqliteStore::open(&path).unwrap();
        fill(&store).await;
        if close {
            store.close().await;
            store.close().await;
            let refused = store.keep_block("late", b"1").await;
            assert!(matches!(refused, Err(StoreError::Unavailable(_))));
            assert!(matches!(
                store.block("b0").await,
                Err(StoreError::Unavailable(_))
            ));
        }
        drop(store);
        assert!(!log_of(&path).exists(), "no log is left");
        let copy = folder.path().join("copy.db");
        fs::copy(&path, &copy).unwrap();
        let copy = SqliteStore::open(&copy).expect("a stopped file is whole");
        assert_eq!(known(&copy).await, BLOCKS);
    }
}

/// Goal: a crash with the log in place is recovered from unattended, as often as it happens.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_store_with_its_log_is_opened() {
    let folder = TempDir::new().unwrap();
    let path = killed(&folder, "oo.db").await;
    assert!(fs::metadata(log_of(&path)).unwrap().len() > 0);
    let store = SqliteStore::open(&path).expect("SQLite recovers");
    assert_eq!(known(&store).await, BLOCKS);
    drop(store);
    // Without its lock file too, as a backup of both files would have it.
    let path = killed(&folder, "other.db").await;
    fs::remove_file(format!("{}.lock", path.display())).unwrap();
    let store = SqliteStore::open(&path).expect("SQLite recovers");
    assert_eq!(known(&store).await, BLOCKS);
}

/// Goal: what a copy of the file alone lacks is not executed again in silence.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_without_its_log_is_refused_until_somebody_accepts_it() {
    let folder = TempDir::new().unwrap();
    let path = killed(&folder, "oo.db").await;
    fs::remove_file(log_of(&path)).unwrap();
    for create in [true, false] {
        let options = SqliteOptions {
            create,
            ..SqliteOptions::default()
        };
        let refused = SqliteStore::open_with(&path, &options).err();
        assert!(
            matches!(refused, Some(OpenError::LogMissing(_))),
            "{refused:?}"
        );
        assert!(!log_of(&path).exists(), "a refusal leaves no log behind");
    }
    let options = SqliteOptions {
        accept_incomplete: true,
        ..SqliteOptions::default()
    };
    let accepted = SqliteStore::open_with(&path, &options).expect("somebody said so");
    assert_eq!(known(&accepted).await, 0, "the log held them all");
    drop(accepted);
    drop(SqliteStore::open(&path).expect("it is whole from then on"));
}

/// Goal: a log is not mixed into a file that it does not belong to.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_another_file_is_refused() {
    let folder = TempDir::new().unwrap();
    let backup = folder.path().join("backup.db");
    drop(SqliteStore::open(&backup).unwrap());
    let path = killed(&folder, "oo.db").await;
    fs::copy(&backup, &path).unwrap();
    let refused = SqliteStore::open(&path).err();
    assert!(
        matches!(refused, Some(OpenError::LogOfAnother(_))),
        "{refused:?}"
    );
    // With the log moved away it is a backup, which lacks what came after it.
    fs::remove_file(log_of(&path)).unwrap();
    assert!(has_lost(&SqliteStore::open(&path).unwrap()).await);
    let again = SqliteStore::open(&path).expect("it is the last one from then on");
    assert!(has_lost(&again).await, "and says what it lacks");
    drop(again);
    fs::copy(&backup, &path).unwrap();
    let accepting = SqliteOptions {
        accept_incomplete: true,
        ..SqliteOptions::default()
    };
    let accepted = SqliteStore::open_with(&path, &accepting).unwrap();
    assert!(!has_lost(&accepted).await, "it was accepted");

    let path = killed(&folder, "gone.db").await;
    for gone in [true, false] {
        match gone {
            true => fs::remove_file(&path).unwrap(),
            false => fs::write(&path, "").unwrap(),
        }
        let refused = SqliteStore::open(&path).err();
        assert!(
            matches!(refused, Some(OpenError::FileMissing(_))),
            "{refused:?}"
        );
    }
}

/// Goal: every byte that a beginning or an end of a session leaves on the disk is one to go on from.
///
/// Method: at each step of opening and stopping the lock file names what `stopped.rs` says; each
/// combination of what a kill can leave is opened.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_while_a_session_begins_or_ends_is_recovered_from() {
    let folder = TempDir::new().unwrap();
    let path = killed(&folder, "oo.db").await;
    let lock = format!("{}.lock", path.display());
    let session = fs::read_to_string(&lock).unwrap();
    assert_eq!(session.len(), 16, "one session is named: {session:?}");
    // The next session is named beside the one that the file has; or the write of it was cut off.
    for left in [format!("{session} 0123456789abcdef"), String::new()] {
        let path = killed(&folder, &format!("l{}.db", left.len())).await;
        let lock = format!("{}.lock", path.display());
        let own = fs::read_to_string(&lock).unwrap();
        fs::write(&lock, left.replace(&session, &own)).unwrap();
        let store = SqliteStore::open(&path).expect("a kill while a session began");
        assert_eq!(known(&store).await, BLOCKS);
    }
}

/// Goal: nobody else reads what lies beside the store.
#[test]
fn the_files_are_the_owners() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("oo.db");
    let lock = folder.path().join("oo.db.lock");
    fs::write(&lock, "").unwrap();
    fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).unwrap();
    let _store = SqliteStore::open(&path).unwrap();
    for file in [&path, &lock, &log_of(&path)] {
        let mode = fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
}

/// Goal: a store is not made where none may be.
#[test]
fn a_missing_store_is_made_only_where_it_may_be() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("oo.db");
    let options = SqliteOptions {
        create: false,
        ..SqliteOptions::default()
    };
    let refused = SqliteStore::open_with(&path, &options).err();
    assert!(matches!(refused, Some(OpenError::Absent(_))), "{refused:?}");
    assert!(!path.exists());
    fs::write(&path, "").unwrap();
    let refused = SqliteStore::open_with(&path, &options).err();
    assert!(matches!(refused, Some(OpenError::Absent(_))), "{refused:?}");
    drop(SqliteStore::open(&path).unwrap());
    drop(SqliteStore::open_with(&path, &options).expect("it is there now"));
}

/// Whether the store says that it has lost keys.
async fn has_lost(store: &SqliteStore) -> bool {
    let standing = store.standing().await.expect("an answer");
    let standing = standing.expect("a file says what it is");
    standing.history.lost_since().is_some()
}

/// Goal: a store that was removed is not begun anew in silence, and an ordinary stop and start loses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_gone_has_lost_its_keys() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("oo.db");
    fill(&SqliteStore::open(&path).unwrap()).await;
    assert!(!has_lost(&SqliteStore::open(&path).unwrap()).await);
    for empty in [true, false] {
        match empty {
            true => fs::write(&path, "").unwrap(),
            false => fs::remove_file(&path).unwrap(),
        }
        let store = SqliteStore::open(&path).unwrap();
        assert!(has_lost(&store).await);
        assert_eq!(known(&store).await, 0);
    }
    fs::remove_file(&path).unwrap();
    fs::remove_file(folder.path().join("oo.db.lock")).unwrap();
    let store = SqliteStore::open(&path).expect("somebody has said so");
    assert!(!has_lost(&store).await);
}

/// Every name under which a file in use can be found: its own without the lock file, a symbolic link, one
/// to a folder, a hard link, and a path with detours.
fn other_names(folder: &TempDir, path: &Path) -> Vec<PathBuf> {
    use std::os::unix::fs::symlink;
    let _ = fs::remove_file(format!("{}.lock", path.display()));
    let at = |name: &str| folder.path().join(name);
    symlink(path, at("symbolic.db")).expect("a link");
    symlink(folder.path(), at("folder")).expect("a link");
    symlink(at("symbolic.db"), at("twice.db")).expect("a link");
    fs::hard_link(path, at("hard.db")).expect("a link");
    let name = path.file_name().expect("a name");
    vec![
        path.to_owned(),
        at("symbolic.db"),
        at("twice.db"),
        at("folder").join(name),
        at("folder/./../")
            .join(folder.path().file_name().expect("a name"))
            .join(name),
        at("hard.db"),
    ]
}

/// The name of a file that a child process is to open; see [`one_process_whatever_the_file_is_called`].
const CHILDS_FILE: &str = "ONLYONCE_TEST_CHILDS_FILE";

/// The child process: it says how the file was taken.
#[test]
fn child() {
    let Some(path) = std::env::var_os(CHILDS_FILE) else {
        return;
    };
    let refused = SqliteStore::open(Path::new(&path)).err();
    assert!(matches!(refused, Some(OpenError::InUse(_))), "{refused:?}");
}

/// Goal: one process has a file, whatever the file is called.
///
/// Method: a store in use is opened again under every other name, from this process and from another one.
/// Evidence: each is refused as in use; the store goes on, and what it wrote is there afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn one_process_whatever_the_file_is_called() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("oo.db");
    let store = SqliteStore::open(&path).unwrap();
    for name in other_names(&folder, &path) {
        let refused = SqliteStore::open(&name).err();
        let is_in_use = matches!(refused, Some(OpenError::InUse(_)));
        assert!(is_in_use, "{}: {refused:?}", name.display());
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child"])
            .env(CHILDS_FILE, &name)
            .output()
            .unwrap();
        assert!(child.status.success(), "{}: {child:?}", name.display());
    }
    fill(&store).await;
    drop(store);
    let store = SqliteStore::open(&folder.path().join("twice.db")).expect("it is free again");
    assert_eq!(known(&store).await, BLOCKS);
}

/// Goal: after a kill the log is found under every name that leads to it, and missed under the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_store_by_another_name() {
    let folder = TempDir::new().unwrap();
    let path = killed(&folder, "oo.db").await;
    let names = other_names(&folder, &path);
    let refused = SqliteStore::open(&folder.path().join("hard.db")).err();
    assert!(
        matches!(refused, Some(OpenError::LogMissing(_))),
        "{refused:?}"
    );
    for name in names.iter().filter(|name| !name.ends_with("hard.db")) {
        let store = SqliteStore::open(name).expect("its log is found");
        assert_eq!(known(&store).await, BLOCKS, "{}", name.display());
    }
}

/// Goal: what is written to a file that nobody will find again is not acknowledged.
///
/// Method: the log, or the file, of a store in use is removed or replaced.
/// Evidence: the next write is refused and says why; once put back, or after a stop in good order, everything
/// that was acknowledged is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_removed_under_the_process() {
    for (replaced, of_the_log) in [(false, true), (true, true), (false, false), (true, false)] {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("oo.db");
        let store = SqliteStore::open(&path).unwrap();
        fill(&store).await;
        let lost = if of_the_log {
            log_of(&path)
        } else {
            path.clone()
        };
        let kept = folder.path().join("kept");
        fs::rename(&lost, &kept).unwrap();
        if replaced {
            fs::write(&lost, "something else").unwrap();
        }
        let refused = store.keep_block("late", b"1").await.unwrap_err();
        let why = std::error::Error::source(&refused).unwrap().to_string();
        assert!(
            why.contains("is not the file that this process has open"),
            "{why}"
        );
        assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
        fs::rename(&kept, &lost).unwrap();
        store.keep_block("b0", b"1").await.expect("it is back");
        if of_the_log && !replaced {
            fs::remove_file(&lost).unwrap();
        }
        drop(store);
        let store = SqliteStore::open(&path).expect("a stop in good order");
        assert_eq!(known(&store).await, BLOCKS);
    }
}
