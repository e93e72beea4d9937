//! The gateway dies, or freezes past its lease, at every named point of an attempt.
//!
//! The real binary on SQLite before the counting upstream, built with the feature `failpoints`. The
//! points are read off the source; one without a case turns the suite red.
#![allow(
    clippy::unwrap_used,
    reason = "in a test a panic is the report, in helpers too"
)]

#[path = "../http"]
mod black_box {
    #[allow(dead_code, unused_imports, reason = "shared with the tests over HTTP")]
    pub(crate) mod harness;
}

mod cases;
mod run;
mod scenario;
mod source;

use std::{collections::BTreeSet, fmt::Write as _, io::Write as _, sync::Arc};

use black_box::harness;
use cases::{Action, Case, cases};
use tokio::{sync::Semaphore, task::JoinSet};

/// Gateways at once. They mostly wait for leases.
const AT_ONCE: usize = 10;

/// Goal: no write of the attempt path is left out.
///
/// Method: read the names off the source.
/// Evidence: the same set of names as the cases have, and no name twice in the source.
#[test]
fn every_failpoint_has_a_case() {
    let found = source::failpoints();
    let covered: BTreeSet<String> = cases().iter().map(|case| case.point.to_owned()).collect();
    let names: BTreeSet<String> = found.iter().cloned().collect();
    assert_eq!(names.len(), found.len(), "a name stands twice: {found:?}");
    assert_eq!(names, covered, "points in the source (left) and cases");
}

/// Goal: no crash and no pause, at whatever point, executes twice, loses an answer that a client
/// saw, or leaves a key stuck.
///
/// Method: every case x {abort, SIGKILL, SIGSTOP past the lease and SIGCONT}; see `run.rs`.
/// Evidence: the upstream's count, the bytes of the replay, the time in progress, and the end that
/// the case names. A point that was not reached is red.
#[tokio::test]
async fn crashes_and_pauses_at_every_point() {
    tokio::task::LocalSet::new().run_until(all_cases()).await;
}

async fn all_cases() {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = JoinSet::new();
    for (row, case) in cases().into_iter().enumerate() {
        for action in Action::ALL {
            let room = Arc::clone(&room);
            running.spawn_local(async move {
                let _place = room.acquire_owned().await;
                // A panic is the verdict on this case alone, not on the table.
                let ended = tokio::task::spawn_local(run::run(case, action)).await;
                let ended = ended.map_err(|_| "FAILED".to_owned());
                (row, action, ended)
            });
        }
    }
    let mut table: Vec<[Option<String>; 3]> = vec![Default::default(); cases().len()];
    let mut bad = 0;
    while let Some(done) = running.join_next().await {
        let (row, action, ended) = done.expect("only cases panic");
        let expected = cases()[row].after(action);
        let text = match ended {
            Ok(ended) if ended.how == expected => ended.to_string(),
            Ok(ended) => {
                bad += 1;
                format!("{ended}, NOT {expected:?}")
            }
            Err(text) => {
                bad += 1;
                text
            }
        };
        table[row][action as usize] = Some(text);
    }
    // Past the capture of the test runner: the table is wanted when all is well, too.
    let _ = std::io::stderr().write_all(shown(&table).as_bytes());
    assert_eq!(bad, 0, "cases that did not end as they must: see the table");
}

fn shown(table: &[[Option<String>; 3]]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "\n{:<48} {:<22} {:<22} SIGSTOP, SIGCONT",
        "point", "abort", "SIGKILL"
    );
    for (case, row) in cases().iter().zip(table) {
        let Case {
            point,
            nth,
            scenario,
            ..
        } = case;
        let [abort, kill, stop] = row.each_ref().map(|text| text.as_deref().unwrap_or("-"));
        let name = format!("{point}:{nth} {scenario:?}");
        let _ = writeln!(text, "{name:<48} {abort:<22} {kill:<22} {stop}");
    }
    let _ = writeln!(
        text,
        "{} points, {} cases: how the retry ended, executions that count",
        cases()
            .iter()
            .map(|case| case.point)
            .collect::<BTreeSet<_>>()
            .len(),
        3 * table.len()
    );
    text
}
