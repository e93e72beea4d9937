//! Work in the caller's own transaction, on PostgreSQL, MariaDB and SQLite.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod attempts;
mod layer;
mod mariadb;
mod place;
mod shared;
mod sqlite;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use attempts::{attempts, unclear};
use futures_util::future::join_all;
use http::StatusCode;
use onlyonce::{Answer, Policy, Ran, RunError, engine::Seen, policy::OnInFlight};
use onlyonce_core::{
    Key, Scope,
    machine::{Grounds, Resolution},
};
use onlyonce_store::transactional::{Isolation, TransactionError};
use onlyonce_testkit::tcp_faults::FaultProxy;
use place::{Kind, Maria, Pg, Place, pay};
use shared::{natural_key, one_effect};
use tokio::time::Instant;

/// Each case on each kind of server.
macro_rules! on_every_server {
    ($($case:ident as $name:ident),+ $(,)?) => {
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$case::<super::Pg>().await;
            })+
        }
        mod on_mariadb {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$case::<super::Maria>().await;
            })+
        }
    };
}

on_every_server! {
    duplicates as two_hundred_duplicates_from_two_processes,
    rollback as a_rollback_is_proof,
    dropped as a_dropped_future_gives_the_key_back,
    overdue as work_that_never_ends_becomes_unknown,
    conflicts as conflicts_are_run_again_or_reported,
    lost as an_attempt_that_lost_its_key_commits_nothing,
    unanswered as a_commit_whose_answer_was_lost,
    attempts as an_attempt_commits_one_effect,
    unclear as a_handler_that_runs_again,
    versions as answers_have_a_version,
    one_effect as a_message_has_one_effect,
    natural_key as a_natural_key_is_held_by_one,
}

fn key(text: &str) -> Key {
    Key::from_stored(text)
}

fn rejecting() -> Policy {
    Policy::builder().on_in_flight(OnInFlight::Reject).build()
}

/// What one of the two processes of the next test does. Without its variable, nothing.
#[tokio::test(flavor = "multi_thread")]
async fn child() {
    let Ok(url) = std::env::var("TRANSACTIONS_DATABASE") else {
        return;
    };
    match url.starts_with("postgres") {
        true => raced::<Pg>(&url).await,
        false => raced::<Maria>(&url).await,
    }
}

async fn raced<K: Kind>(url: &str) {
    let operation = Place::<K>::operation_at(url, rejecting()).await;
    let transactions = operation.transactions().clone();
    let runs = (0..100).map(|_| {
        let (operation, transactions) = (operation.clone(), transactions.clone());
        tokio::spawn(async move {
            let began = Instant::now();
            let ran = operation.run(Scope::global(), key("raced"), "1000", move |tx| {
                let transactions = transactions.clone();
                Box::pin(async move {
                    let answer = pay::<K>(transactions, tx, 1_000).await?;
                    tokio::time::sleep(Duration::from_secs(2)).await;
                    Ok(answer)
                })
            });
            (ran.await.unwrap(), began.elapsed())
        })
    });
    for run in join_all(runs).await {
        let (ran, took) = run.unwrap();
        let word = match ran {
            Ran::Executed(_) => "executed",
            Ran::Replayed(_) => "replayed",
            Ran::InFlight => "in_flight",
            other => panic!("{other:?}"),
        };
        println!("ran {word} {}", took.as_millis());
    }
}

/// Goal: a payment, its message and its key are one thing, and duplicates do not wait for it.
///
/// Method: two processes with 100 equal requests each, at once; the first transaction is held open for
/// two seconds.
/// Evidence: one row, one message, one execution; every duplicate was answered while it was open.
async fn duplicates<K: Kind>() {
    let place = Place::<K>::new().await;
    let children: Vec<_> = (0..2)
        .map(|_| {
            std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "child", "--nocapture"])
                .env("TRANSACTIONS_DATABASE", &place.url)
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut lines = Vec::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        lines.extend(text.lines().filter_map(|line| {
            let (word, millis) = line.split("ran ").nth(1)?.split_once(' ')?;
            Some((word.to_owned(), millis.parse::<u64>().unwrap()))
        }));
    }
    assert_eq!(lines.len(), 200);
    let executed: Vec<_> = lines
        .iter()
        .filter(|(word, _)| word == "executed")
        .collect();
    assert_eq!(executed.len(), 1);
    let mut waited: Vec<u64> = lines
        .iter()
        .filter(|(word, _)| word == "in_flight")
        .map(|(_, millis)| *millis)
        .collect();
    waited.sort_unstable();
    println!(
        "duplicates answered in {} ms (median), {} ms (slowest)",
        waited[waited.len() / 2],
        waited[waited.len() - 1]
    );
    assert!(waited.len() >= 190, "{}", waited.len());
    assert!(waited[waited.len() / 2] < 500, "{waited:?}");
    assert!(waited[waited.len() - 1] < 1_900, "{waited:?}");
    assert_eq!(place.row_count(), (1, 1));
}

/// Goal: what is rolled back did not happen, and the key is free; an answer may be kept all the same.
async fn rollback<K: Kind>() {
    let place = Place::<K>::new().await;
    let operation = place.operation(Policy::default()).await;
    let transactions = place.transactions.clone();
    let failed = operation.run(Scope::global(), key("k"), "1", |tx| {
        let transactions = transactions.clone();
        Box::pin(async move {
            pay::<K>(transactions, tx, 1).await?;
            Err(TransactionError::given_up("no"))
        })
    });
    assert!(matches!(failed.await, Err(RunError::RolledBack(_))));
    assert_eq!(place.row_count(), (0, 0));
    assert_eq!(place.state("k").await, "failed_retryable");
    let transactions = place.transactions.clone();
    let run = || {
        let transactions = transactions.clone();
        operation.run(Scope::global(), key("k"), "1", move |tx| {
            let transactions = transactions.clone();
            Box::pin(async move { pay::<K>(transactions, tx, 1).await })
        })
    };
    let Ran::Executed(first) = run().await.unwrap() else {
        panic!("not executed");
    };
    let Ran::Replayed(again) = run().await.unwrap() else {
        panic!("not replayed");
    };
    assert_eq!(first, again);
    assert_eq!(place.row_count(), (1, 1));
    let other = operation.run(Scope::global(), key("k"), "2", |_| unreachable!());
    assert!(matches!(other.await.unwrap(), Ran::Refused(_)));

    // A refusal: nothing is written, and every retry gets it again.
    for round in 0..2 {
        let transactions = place.transactions.clone();
        let refused = operation.run(Scope::global(), key("poor"), "1", move |tx| {
            assert_eq!(round, 0, "it was executed twice");
            let transactions = transactions.clone();
            Box::pin(async move {
                pay::<K>(transactions, tx, 1).await?;
                Ok(Answer::new(StatusCode::PAYMENT_REQUIRED, "poor").undone())
            })
        });
        match refused.await.unwrap() {
            Ran::Executed(answer) | Ran::Replayed(answer) => assert_eq!(&answer.body[..], b"poor"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(place.row_count(), (1, 1));
}

/// Goal: a future that is dropped in its transaction leaves nothing, and the key is free again.
async fn dropped<K: Kind>() {
    let place = Place::<K>::new().await;
    let operation = place.operation(Policy::default()).await;
    let transactions = place.transactions.clone();
    let run = operation.run(Scope::global(), key("k"), "1", move |tx| {
        let transactions = transactions.clone();
        Box::pin(async move {
            let answer = pay::<K>(transactions, tx, 1).await?;
            tokio::time::sleep(Duration::from_secs(60)).await;
            Ok(answer)
        })
    });
    assert!(
        tokio::time::timeout(Duration::from_millis(500), run)
            .await
            .is_err()
    );
    place.until_state("k", "failed_retryable").await;
    assert_eq!(place.row_count(), (0, 0));
}

/// Goal: work that never ends does not keep its key for ever.
///
/// Method: a run that hangs for longer than `max_execution`, with a sweeper beside it.
/// Evidence: the key becomes unknown; nothing is written.
async fn overdue<K: Kind>() {
    let place = Place::<K>::new().await;
    let policy = Policy::builder()
        .lease(Duration::from_secs(1))
        .max_execution(Duration::from_secs(2))
        .build();
    let operation = place.operation(policy).await;
    let running = tokio::spawn(async move {
        let run = operation.run(Scope::global(), key("k"), "1", |_| {
            Box::pin(std::future::pending())
        });
        let _ = run.await;
    });
    place.until_state("k", "in_progress").await;
    let swept = async {
        while place.state("k").await != "unknown" {
            let engine = place.transactions.engine();
            onlyonce::worker::sweep::run_once(engine).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), swept).await;
    assert!(waited.is_ok(), "its heartbeats never end");
    running.abort();
    assert_eq!(place.row_count(), (0, 0));
}

/// Goal: at every isolation conflicts are run again or reported, never swallowed.
///
/// Method: twelve operations at once read a counter and write it back one higher, with retries and
/// without.
/// Evidence: the counter equals the operations that said they were executed, and each that failed says
/// that it met another and left its key free. At READ COMMITTED a guarded update is the caller's business.
async fn conflicts<K: Kind>() {
    for isolation in [Isolation::RepeatableRead, Isolation::Serializable] {
        for retries in [50, 0] {
            let place = Place::<K>::new_with(|all| all.isolation(isolation).retries(retries)).await;
            let operation = place.operation(Policy::default()).await;
            let runs = Arc::new(AtomicUsize::new(0));
            let all = (0..12).map(|number| {
                let (operation, runs) = (operation.clone(), runs.clone());
                tokio::spawn(async move {
                    operation
                        .run(
                            Scope::global(),
                            key(&format!("c-{number}")),
                            "1",
                            move |tx| {
                                runs.fetch_add(1, Ordering::SeqCst);
                                Box::pin(async move {
                                    let value = K::count_up(tx).await?;
                                    Ok(Answer::new(StatusCode::OK, value.to_string()))
                                })
                            },
                        )
                        .await
                })
            });
            let mut executed = 0;
            for outcome in join_all(all).await {
                match outcome.unwrap() {
                    Ok(Ran::Executed(_)) => executed += 1,
                    Err(RunError::RolledBack(error)) => assert!(error.is_conflict(), "{error:?}"),
                    other => panic!("{other:?}"),
                }
            }
            let counter = place.number("SELECT value FROM counter");
            println!("{isolation:?}, {retries} retries: {executed} executed in {runs:?} runs");
            assert_eq!(counter, executed);
            assert!(retries == 0 || executed == 12);
            assert!(executed > 0);
            let left = "SELECT count(*) FROM onlyonce.readable_keys WHERE state NOT IN \
                        ('completed', 'failed_retryable')";
            assert_eq!(place.number(left), 0);
        }
    }
}

/// Goal: an attempt that lost its key commits nothing.
///
/// Method: while its transaction is open, its lease lapses, an operator releases the key, and a second
/// run executes it.
/// Evidence: the first is told that it lost; one row, one message.
async fn lost<K: Kind>() {
    let place = Place::<K>::new().await;
    let operation = place.operation(rejecting()).await;
    let (go, gone) = tokio::sync::watch::channel(false);
    let slow = {
        let (operation, transactions) = (operation.clone(), place.transactions.clone());
        tokio::spawn(async move {
            let run = operation.run(Scope::global(), key("k"), "1", move |tx| {
                let (transactions, mut gone) = (transactions.clone(), gone.clone());
                Box::pin(async move {
                    let answer = pay::<K>(transactions, tx, 1).await?;
                    gone.wait_for(|go| *go).await.unwrap();
                    Ok(answer)
                })
            });
            run.await
        })
    };
    place.until_state("k", "in_progress").await;
    place.sql(K::LAPSE);
    let engine = place.transactions.engine();
    onlyonce::worker::sweep::run_once(engine).await.unwrap();
    let id = engine.secret().record_id("global", &key("k"));
    let resolution = Resolution::FailedRetryable(Grounds::FORCED);
    engine
        .resolve(id, Seen::AsItIs, &resolution, "seen to")
        .await
        .unwrap();
    let transactions = place.transactions.clone();
    let second = operation.run(Scope::global(), key("k"), "1", move |tx| {
        let transactions = transactions.clone();
        Box::pin(async move { pay::<K>(transactions, tx, 1).await })
    });
    assert!(matches!(second.await.unwrap(), Ran::Executed(_)));
    go.send(true).unwrap();
    assert!(matches!(slow.await.unwrap(), Err(RunError::Lost)));
    assert_eq!(place.row_count(), (1, 1));
}

/// Goal: a commit whose answer was lost is found out about, not guessed at.
///
/// Method: the application's pool goes through a proxy that swallows the server's reply to COMMIT.
/// Evidence: the run says that it was executed; one row, one message, and a replay afterwards.
async fn unanswered<K: Kind>() {
    let proxy = FaultProxy::start(K::port()).await;
    let place = Place::<K>::through(proxy.port()).await;
    let operation = place.operation(Policy::default()).await;
    let run = |proxy: Option<&FaultProxy>| {
        if let Some(proxy) = proxy {
            proxy.swallow_reply_to(K::COMMIT);
        }
        let transactions = place.transactions.clone();
        operation.run(Scope::global(), key("k"), "1", move |tx| {
            let transactions = transactions.clone();
            Box::pin(async move { pay::<K>(transactions, tx, 1).await })
        })
    };
    let Ran::Executed(first) = run(Some(&proxy)).await.unwrap() else {
        panic!("not executed");
    };
    assert_eq!(proxy.swallowed(), 1);
    let Ran::Replayed(again) = run(None).await.unwrap() else {
        panic!("not replayed");
    };
    assert_eq!(first, again);
    assert_eq!(place.row_count(), (1, 1));
}

/// Goal: answers of older versions are upgraded, and those that nobody can read are refused.
async fn versions<K: Kind>() {
    let place = Place::<K>::new().await;
    let run = async |transactions: onlyonce::Transactions<_>| {
        let operation = transactions
            .operation("pay", Policy::default())
            .await
            .unwrap();
        let ran = operation.run(Scope::global(), key("k"), "1", |_| {
            Box::pin(async { Ok(Answer::new(StatusCode::OK, "one")) })
        });
        ran.await
    };
    let all = place.transactions.clone();
    let first = all.clone().version(1, |_, _| None);
    assert!(matches!(run(first).await.unwrap(), Ran::Executed(_)));
    let second = all.clone().version(2, |version, answer| {
        (version == 1).then(|| Answer::new(answer.status, "two"))
    });
    match run(second).await.unwrap() {
        Ran::Replayed(answer) => assert_eq!(&answer.body[..], b"two"),
        other => panic!("{other:?}"),
    }
    let third = all.version(3, |_, _| None);
    assert!(matches!(run(third).await, Err(RunError::UnknownVersion(1))));
    let store = place.transactions.engine().store();
    assert!(store.counts().await.is_ok());
}

/// Goal: a key that a stranger's open transaction is making keeps nobody waiting for ever.
///
/// Method: another session reserves the key and does not commit; `run` with a wait of one second.
/// Evidence: it is in flight, and nothing was done; once the session has ended, it is done.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_the_making_is_in_flight() {
    use sqlx::{Connection as _, Executor as _};
    let place = Place::<Pg>::new().await;
    let policy = Policy::builder()
        .wait_timeout(Duration::from_secs(1))
        .build();
    let operation = place.operation(policy).await;
    let mut other = sqlx::PgConnection::connect(&place.url).await.unwrap();
    let reserved = "BEGIN; SELECT outcome FROM onlyonce.reserve('global', 'held')";
    other.execute(reserved).await.unwrap();
    let run = || {
        let transactions = operation.transactions().clone();
        operation.run(Scope::global(), key("held"), "1000", move |tx| {
            let transactions = transactions.clone();
            Box::pin(async move { pay::<Pg>(transactions, tx, 1_000).await })
        })
    };
    let ran = tokio::time::timeout(Duration::from_secs(30), run()).await;
    let ran = ran.expect("it does not wait for ever").unwrap();
    assert!(matches!(ran, Ran::InFlight), "{ran:?}");
    assert_eq!(place.row_count().0, 0);
    other.execute("ROLLBACK").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let ran = run().await.unwrap();
    assert!(matches!(ran, Ran::Executed(_)), "{ran:?}");
    assert_eq!(place.row_count().0, 1);
}
