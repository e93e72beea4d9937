//! A foreign call that was proven not to have been sent: the next attempt may send it.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http::StatusCode;
use onlyonce::{
    Answer, Engine, EngineOptions, Phases, Policy, Ran, Transactions, phases::CallFailed,
};
use onlyonce_core::{Key, Scope};
use onlyonce_store::sqlite::SqliteStore;

/// Goal: a refused connection is not a call that may have happened.
///
/// Method: a foreign phase whose first call is refused before a byte is sent, of a provider that recognises
/// keys and of one that does not; then a retry.
/// Evidence: the retry makes the call and gets its answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_makes_the_call() {
    let folder = tempfile::tempdir().unwrap();
    for dedups in [true, false] {
        let store = SqliteStore::open(&folder.path().join(format!("{dedups}.db"))).unwrap();
        let inside = store.transactions().unwrap();
        let engine = Engine::start(Arc::new(store), EngineOptions::default());
        let transactions = Transactions::new(engine, inside);
        let operation = transactions.operation("pay", Policy::default()).await;
        let calls = Arc::new(AtomicUsize::new(0));
        let count = calls.clone();
        let answer = |_: &_| Answer::new(StatusCode::OK, "paid");
        let phases =
            Phases::new(operation.unwrap(), answer).foreign("called", dedups, move |call, _| {
                let count = count.clone();
                Box::pin(call.send(move |_| async move {
                    match count.fetch_add(1, Ordering::SeqCst) {
                        0 => Err(CallFailed::NotSent("connection refused".into())),
                        _ => Ok(("id".to_owned(), serde_json::Value::Null)),
                    }
                }))
            });
        let run = || phases.run(Scope::global(), Key::from_stored("k"), "one");
        assert!(run().await.is_err());
        let retry = run().await.unwrap();
        assert!(
            matches!(retry, Ran::Executed(_)),
            "dedups {dedups}: {retry:?}"
        );
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }
}
