//! Real children (`sh`), real signals; the test itself answers their health checks.

use tempfile::TempDir;
use tokio::net::TcpListener;

use super::*;

fn program(folder: &TempDir, script: &str, health: SocketAddr) -> Program {
    Program {
        name: "child",
        executable: "/bin/sh".into(),
        arguments: vec!["-c".into(), script.into()],
        environment: vec![("WORD", "hello".to_owned())],
        log: folder.path().join("child.log"),
        pid_file: folder.path().join("child.pid"),
        health,
    }
}

async fn health() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
        }
    });
    address
}

async fn deaf() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn silent(_line: &str) {}

/// Goal: only a kill ends the child, and each kill is followed by one start.
///
/// Method: kill it twice, whenever it answers. `cat` lives as long as its standard input does.
/// Evidence: the lines said, the pid file, and the third pid.
#[tokio::test]
async fn a_killed_child_is_started_again_and_the_pid_file_follows() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Supervised::new(program(&folder, "exec cat", health().await));
    let mut ready = child.ready();
    let mut signals = StopSignals::catch().unwrap();

    let said = std::sync::Mutex::new(Vec::new());
    let kills = async {
        let mut pids = Vec::new();
        loop {
            let pid = ready.wait_for(|pid| pid.is_some_and(|pid| !pids.contains(&pid)));
            let pid = pid.await.unwrap().unwrap();
            let written = std::fs::read_to_string(folder.path().join("child.pid")).unwrap();
            assert_eq!(written.trim(), pid.to_string());
            pids.push(pid);
            if pids.len() == 3 {
                return pids;
            }
            let target = Pid::from_raw(pid.cast_signed()).unwrap();
            kill_process(target, Signal::KILL).unwrap();
        }
    };
    let keep = child.keep(|line| said.lock().unwrap().push(line.to_owned()));
    let pids = tokio::select! {
        gave_up = keep => panic!("{gave_up}"),
        pids = timeout(Duration::from_secs(20), kills) => pids.expect("three pids in time"),
    };
    let expected = [0, 1].map(|n| {
        let (old, new) = (pids[n], pids[n + 1]);
        format!("child (pid {old}) ended: signal 9; started again as pid {new}")
    });
    assert_eq!(*said.lock().unwrap(), expected);
    child.stop(&mut signals).await;
    assert!(!folder.path().join("child.pid").exists());
}

#[tokio::test]
async fn a_child_that_never_comes_up_is_given_up_with_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let (_listener, health) = deaf().await;
    let mut child = Supervised::new(program(&folder, "echo $WORD; exit 7", health));
    let gave_up = child.keep(silent).await;
    assert_eq!(
        gave_up.to_string(),
        "the child ended 3 times before it answered (exit code 7)"
    );
    assert_eq!(log_tail(child.log()).unwrap(), "hello\nhello\nhello\n");
}

#[tokio::test]
async fn a_missing_executable_is_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (_listener, health) = deaf().await;
    let program = Program {
        executable: "/no/such/file".into(),
        ..program(&folder, "", health)
    };
    assert!(matches!(
        Supervised::new(program).keep(silent).await,
        GaveUp::CannotStart { .. }
    ));
}

/// The pipe is the children's lifeline: a process that reads it sees it end with the parent.
#[tokio::test]
async fn a_child_sees_the_end_of_its_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let child = Supervised::new(program(&folder, "cat; echo gone", health().await));
    let Running {
        child: mut process,
        _lifeline: lifeline,
        ..
    } = child.start().unwrap();
    drop(lifeline);
    let status = timeout(Duration::from_secs(20), process.wait())
        .await
        .unwrap()
        .unwrap();
    assert!(status.success());
    assert_eq!(log_tail(child.log()).unwrap(), "gone\n");
}

#[test]
fn the_tail_of_a_long_log_starts_at_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.log");
    let lines: String = (0..1000).map(|number| format!("line {number}\n")).collect();
    std::fs::write(&path, lines).unwrap();
    let tail = log_tail(&path).unwrap();
    assert!(tail.starts_with("line ") && tail.ends_with("line 999\n"));
    assert!(tail.len() as u64 <= LOG_TAIL_BYTES);
}
