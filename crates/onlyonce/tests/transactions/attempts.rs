//! One attempt, one effect: an attempt that is executed many times, at every isolation level, whatever has
//! happened to its key meanwhile.

use std::sync::Arc;

use http::{HeaderMap, Method, StatusCode};
use onlyonce::{
    Answer, Policy, RunError, Transactions,
    engine::{Admitted, Arrival, Attempt, Seen},
    transaction::Work,
};
use onlyonce_core::{
    Key, Scope, StoredResponse, Timestamp,
    machine::{self, Reap, Resolution, Sweep},
    record::Change,
};
use onlyonce_store::{TransactionalStore, transactional::Isolation};
use onlyonce_testkit::tcp_faults::FaultProxy;

use crate::place::{Kind, Place, pay};

const EXECUTIONS: usize = 8;
const LEVELS: [Isolation; 3] = [
    Isolation::ReadCommitted,
    Isolation::RepeatableRead,
    Isolation::Serializable,
];

/// What has become of the key when the attempt is executed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Past {
    Running,
    Lapsed,
    Resolved,
    Completed,
    Expired,
}

const PASTS: [Past; 5] = [
    Past::Running,
    Past::Lapsed,
    Past::Resolved,
    Past::Completed,
    Past::Expired,
];

/// The attempt's effect: one row, and its number as the answer.
pub(crate) type Effect<T> =
    for<'c> fn(Transactions<T>, &'c mut <T as TransactionalStore>::Connection) -> Work<'c>;

async fn reserved<T: TransactionalStore>(
    all: &Transactions<T>,
    key: &str,
    policy: &Arc<Policy>,
) -> Arc<Attempt> {
    all.engine().keep_recipe(&policy.recipe).await.unwrap();
    let mut arrival = Arrival::new(
        all.engine(),
        Scope::global(),
        Key::from_stored(key),
        None,
        "pay".into(),
        &Method::POST,
        "pay",
        HeaderMap::new(),
        "1".into(),
    );
    match all.engine().admit(&mut arrival, policy).await.unwrap() {
        Admitted::Execute(attempt) => Arc::from(attempt),
        other => panic!("not reserved: {other:?}"),
    }
}

async fn execute<T: TransactionalStore>(
    all: &Transactions<T>,
    attempt: &Attempt,
    effect: Effect<T>,
) -> Result<Answer, RunError> {
    let inner = all.clone();
    all.execute(attempt, move |tx| effect(inner.clone(), tx))
        .await
}

/// Swaps in what the machine makes of the key's record.
async fn changed<T: TransactionalStore>(
    all: &Transactions<T>,
    attempt: &Attempt,
    change: impl Fn(&onlyonce_core::Record) -> Change,
) {
    let store = all.engine().store();
    let record = store.lookup(attempt.record().id).await.unwrap().value;
    let record = record.unwrap();
    store.swap(record.revision, change(&record)).await.unwrap();
}

async fn bring_about<T: TransactionalStore>(
    all: &Transactions<T>,
    attempt: &Attempt,
    past: Past,
    effect: Effect<T>,
) {
    const FAR: Timestamp = Timestamp(i64::MAX / 2);
    let policy = Policy::default();
    if matches!(past, Past::Lapsed | Past::Resolved) {
        changed(all, attempt, |record| {
            match machine::apply(Some(record), &Sweep { knows_route: true }, FAR, &policy).swapped()
            {
                Some(change) => change,
                None => panic!("alive"),
            }
        })
        .await;
    }
    if past == Past::Resolved {
        let said = StoredResponse::plain(StatusCode::OK, "said so");
        let resolution = Resolution::Completed(Arc::new(said));
        let id = attempt.record().id;
        let resolved = all.engine().resolve(id, Seen::AsItIs, &resolution, "seen");
        resolved.await.unwrap();
    }
    if matches!(past, Past::Completed | Past::Expired) {
        execute(all, attempt, effect).await.unwrap();
    }
    if past == Past::Expired {
        changed(all, attempt, |record| {
            match machine::apply(Some(record), &Reap, FAR, &Policy::default()).swapped() {
                Some(change) => change,
                other => panic!("{other:?}"),
            }
        })
        .await;
    }
}

/// Goal: an attempt commits at most one effect, however often its handler is run.
///
/// Method: eight executions of one attempt at once, at every level, while it runs, after its lease lapsed, after
/// an operator resolved it, after it was completed, and after that expired; then one more.
/// Evidence: the application's table has one row for each key; every execution that got an answer got the same.
pub(crate) async fn executed_often<T: TransactionalStore>(
    all: &Transactions<T>,
    effect: Effect<T>,
    count: impl Fn() -> i64,
) {
    let policy = Arc::new(Policy::default());
    let mut keys = 0;
    for level in LEVELS {
        let all = all.clone().isolation(level);
        for past in PASTS {
            let key = format!("{past:?}-{level:?}");
            let attempt = reserved(&all, &key, &policy).await;
            bring_about(&all, &attempt, past, effect).await;
            let running: Vec<_> = (0..EXECUTIONS)
                .map(|_| {
                    let (all, attempt) = (all.clone(), attempt.clone());
                    tokio::spawn(async move { execute(&all, &attempt, effect).await })
                })
                .collect();
            let mut ends = Vec::new();
            for one in running {
                ends.push(one.await.unwrap());
            }
            ends.push(execute(&all, &attempt, effect).await);
            keys += 1;
            assert_eq!(count(), keys, "{key}: {ends:?}");
            let answers: Vec<_> = ends.iter().filter_map(|end| end.as_ref().ok()).collect();
            if past == Past::Resolved {
                // The one that committed says what it did, the others what is stored.
                let others = answers.iter().filter(|answer| answer.body == "said so");
                assert!(others.count() + 1 >= answers.len(), "{key}: {ends:?}");
            } else {
                assert!(
                    answers.windows(2).all(|pair| pair[0] == pair[1]),
                    "{ends:?}"
                );
            }
            assert_eq!(answers.is_empty(), past == Past::Expired, "{key}: {ends:?}");
        }
    }
}

/// The same on a server.
pub(crate) async fn attempts<K: Kind>() {
    let place = Place::<K>::new().await;
    let all = place.transactions.clone();
    executed_often(&all, |all, tx| pay::<K>(all, tx, 1), || place.row_count().0).await;
}

/// Goal: a handler that runs again because nobody could tell whether its transaction was committed commits
/// nothing a second time.
///
/// Method: the reply to COMMIT is swallowed, and there is no time to ask the key; the handler runs again, at
/// every level.
/// Evidence: the first end is `Unclear`, the second the stored answer; one row a key.
pub(crate) async fn unclear<K: Kind>() {
    let proxy = FaultProxy::start(K::port()).await;
    let place = Place::<K>::through(proxy.port()).await;
    let policy = Arc::new(
        Policy::builder()
            .completion_grace(std::time::Duration::ZERO)
            .build(),
    );
    let effect: Effect<K::Inside> = |all, tx| pay::<K>(all, tx, 1);
    for (number, level) in (1..).zip(LEVELS) {
        let all = place.transactions.clone().isolation(level);
        let attempt = reserved(&all, &format!("{level:?}"), &policy).await;
        proxy.swallow_reply_to(K::COMMIT);
        let first = execute(&all, &attempt, effect).await;
        assert!(matches!(first, Err(RunError::Unclear(_))), "{first:?}");
        let second = execute(&all, &attempt, effect).await.unwrap();
        assert_eq!(second.status, StatusCode::CREATED);
        assert_eq!(place.row_count(), (number, number), "{level:?}");
    }
    assert_eq!(proxy.swallowed(), 3);
}
