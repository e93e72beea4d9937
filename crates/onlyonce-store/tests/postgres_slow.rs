//! A PostgreSQL server that is too slow, which is not one that is lost.

use std::time::Duration;

use onlyonce_core::RecordId;
use onlyonce_store::{
    Store, StoreError,
    postgres::{PostgresOptions, PostgresStore},
};
use onlyonce_testkit::servers::Postgres;

/// Goal: statements that run out of time cost no connections. When a server is slow, making them
/// anew, all at once, would make it slower.
///
/// Method: the table is locked for longer than statements may take.
/// Evidence: they fail as never carried out, and no session has ended afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_out_of_time_costs_no_connection() {
    let server = tokio::task::spawn_blocking(Postgres::start).await;
    let server = server.expect("a private server");
    let options = PostgresOptions {
        timeout: Duration::from_millis(300),
        ..PostgresOptions::default()
    };
    let store = PostgresStore::open(&server.url(), &options).await;
    let store = store.expect("a database becomes a store");
    let both_lanes = async || {
        let id = |byte| RecordId([byte; 16]);
        tokio::join!(store.lookup(id(1)), store.lookup(id(2)), store.lapsed(1))
    };
    let sessions = || -> Vec<String> {
        let pids = "SELECT pid FROM pg_stat_activity WHERE application_name = 'onlyonce'";
        server.sql(pids).lines().map(str::to_owned).collect()
    };
    let all_well = |(one, other, scan): (Result<_, StoreError>, Result<_, StoreError>, _)| {
        let scan: Result<_, StoreError> = scan;
        one.is_ok() && other.is_ok() && scan.is_ok()
    };
    while !all_well(both_lanes().await) {}
    let before = sessions();
    assert!(before.len() >= 2, "a lane and a scan: {before:?}");

    let locked = tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            let lock = "BEGIN; LOCK TABLE onlyonce.keys IN ACCESS EXCLUSIVE MODE; \
                        SELECT pg_sleep(1.5); COMMIT";
            let holder = scope.spawn(|| server.sql(lock));
            let held = "SELECT count(*) FROM pg_locks WHERE granted \
                        AND mode = 'AccessExclusiveLock' AND relation = 'onlyonce.keys'::regclass";
            while server.sql(held) == "0" {}
            let told = tokio::runtime::Handle::current().block_on(both_lanes());
            holder.join().expect("the lock was held and given back");
            told
        })
    });
    assert!(
        matches!(locked.0, Err(StoreError::Unavailable(_))),
        "{:?}",
        locked.0
    );
    assert!(
        matches!(locked.1, Err(StoreError::Unavailable(_))),
        "{:?}",
        locked.1
    );
    assert!(all_well(both_lanes().await), "it goes on as before");
    // A lane that had nothing to do before may have come since.
    let after = sessions();
    let lost = before.iter().filter(|pid| !after.contains(pid));
    assert_eq!(lost.count(), 0, "{before:?} became {after:?}");
}
