//! The gateway dies, or freezes past its lease, at every named point of an attempt.
//!
//! The real binary before the counting upstream, built with the feature `failpoints`, on SQLite and on
//! a private PostgreSQL server. The points are read off the source; one without a case turns the
//! suite red.
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
mod late;
mod place;
mod run;
mod scenario;
mod source;

use std::{collections::BTreeSet, fmt::Write as _, io::Write as _, rc::Rc, sync::Arc};

use black_box::harness;
use cases::{Action, Case, postgres_cases, sqlite_cases};
use place::Places;
use tokio::{sync::Semaphore, task::JoinSet};

/// Gateways at once. They mostly wait for leases.
const AT_ONCE: usize = 10;
/// The same where each has half a dozen sessions of a server on the same machine.
const AT_ONCE_ON_POSTGRES: usize = 4;

/// Goal: no write of the attempt path is left out.
///
/// Method: read the names off the source.
/// Evidence: the same set of names as the cases have, and no name twice in the source; on each store
/// every point but those of the other.
#[test]
fn every_failpoint_has_a_case() {
    let mut found = source::failpoints();
    // The library's own transactions and phases have their crash tests beside them, in `onlyonce`.
    found.retain(|point| {
        let elsewhere = ["transaction.", "phases.", "deferred.", "outbox."];
        !elsewhere.iter().any(|start| point.starts_with(start)) && !point.contains(".outbox.")
    });
    let points = |cases: Vec<Case>| -> BTreeSet<String> {
        cases.iter().map(|case| case.point.to_owned()).collect()
    };
    let (sqlite, postgres) = (points(sqlite_cases()), points(postgres_cases()));
    let of_no_store = |points: &BTreeSet<String>| -> BTreeSet<String> {
        let own =
            |point: &&String| !point.starts_with("sqlite.") && !point.starts_with("postgres.");
        points.iter().filter(own).cloned().collect()
    };
    assert_eq!(of_no_store(&sqlite), of_no_store(&postgres));
    let covered: BTreeSet<String> = sqlite.union(&postgres).cloned().collect();
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
    let all = all_cases("SQLite", sqlite_cases(), false, Places::sqlite(AT_ONCE));
    tokio::task::LocalSet::new().run_until(all).await;
}

/// Goal: the same on PostgreSQL.
///
/// Method: the same, on a private server. The short form runs every case with one of the actions,
/// each in its turn; the soak runs all of them.
/// Evidence: the same.
#[tokio::test]
async fn crashes_and_pauses_at_every_point_on_postgres() {
    let places = tokio::task::spawn_blocking(|| Places::postgres(AT_ONCE_ON_POSTGRES));
    let places = places.await.expect("a private server");
    let all = all_cases("PostgreSQL", postgres_cases(), !harness::soak(), places);
    tokio::task::LocalSet::new().run_until(all).await;
}

/// Runs the cases, each at a place of its own. With `turns`, each with one action.
async fn all_cases(store: &str, cases: Vec<Case>, turns: bool, places: Places) {
    static ONE_STORE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _alone = ONE_STORE_AT_A_TIME.lock().await;
    let room = Arc::new(Semaphore::new(places.count()));
    let places = Arc::new(places);
    let mut running = JoinSet::new();
    for (row, case) in cases.iter().copied().enumerate() {
        for action in Action::of_row(row, turns) {
            let (room, places) = (Arc::clone(&room), Arc::clone(&places));
            running.spawn_local(async move {
                let _room = room.acquire_owned().await;
                let place = Rc::new(places.take().await);
                // A panic is the verdict on this case alone, not on the table.
                let run = run::run(case, action, Rc::clone(&place));
                let ended = tokio::task::spawn_local(run).await;
                let place = Rc::into_inner(place).expect("the case is over");
                places.give_back(place);
                let ended = ended.map_err(|_| "FAILED".to_owned());
                (row, action, ended)
            });
        }
    }
    let mut table: Vec<[Option<String>; 3]> = vec![Default::default(); cases.len()];
    let mut bad = 0;
    while let Some(done) = running.join_next().await {
        let (row, action, ended) = done.expect("only cases panic");
        let expected = cases[row].after(action);
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
    let _ = std::io::stderr().write_all(shown(store, &cases, &table).as_bytes());
    assert_eq!(bad, 0, "cases that did not end as they must: see the table");
}

fn shown(store: &str, cases: &[Case], table: &[[Option<String>; 3]]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "\n{:<48} {:<22} {:<22} SIGSTOP, SIGCONT",
        format!("point, on {store}"),
        "abort",
        "SIGKILL"
    );
    for (case, row) in cases.iter().zip(table) {
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
    let points: BTreeSet<_> = cases.iter().map(|case| case.point).collect();
    let _ = writeln!(
        text,
        "{} points, {} cases: how the retry ended, executions that count",
        points.len(),
        table.iter().flatten().flatten().count()
    );
    text
}
