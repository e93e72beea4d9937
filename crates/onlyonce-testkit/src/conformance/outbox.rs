//! The contract of an outbox as tests. One line adds an outbox:
//!
//! ```text
//! onlyonce_testkit::outbox_conformance!(postgres, || async { (store, transactions) });
//! ```

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use onlyonce_core::{
    AttemptId, MessageId, MessageState, State,
    machine::Settlement,
    outbox::Next,
    record::{Actor, JournalEntry, JournalEvent},
};

use super::{policy, reserve, response, settled};
use onlyonce_store::{
    Outbox, Store, Swapped, TransactionalStore,
    outbox::{CLAIM_BYTES, Claim, Claimed, Decision, Ending, MessageFilter},
    transactional::{Isolation, Message, Settles},
};

/// A lease that does not run out during a test.
const LONG: Duration = Duration::from_secs(60);
/// A lease that lapses immediately.
const NONE: Duration = Duration::ZERO;
/// A retry for which nothing is too late.
const RETRY: Decision = Decision::Retry(Duration::MAX);

/// Generates a test for every case, in a module of that name.
#[macro_export]
macro_rules! outbox_conformance {
    ($name:ident, $make:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::outbox_conformance!(@cases $make,
                claims_have_one_owner,
                what_was_taken_back_is_not_sent,
                every_field_comes_back,
                a_claim_that_lapsed_is_unclear,
                a_claim_is_given_back,
                endings_are_written,
                one_at_a_time_in_order,
                people_decide,
                what_may_have_arrived_stays_so,
                large_payloads_are_read_one_by_one,
                a_key_is_settled_with_its_message,
                what_is_old_is_deleted,
                lists_have_pages,
            );
        }
    };
    (@cases $make:expr, $($case:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let make = $make;
                let (store, transactions) = make().await;
                let store: std::sync::Arc<dyn ::onlyonce_store::Store> = store;
                $crate::conformance::outbox::$case(&store, &transactions).await;
            }
        )*
    };
}

fn outbox(store: &Arc<dyn Store>) -> Arc<dyn Outbox> {
    store.outbox().expect("a store with messages")
}

fn message(number: usize) -> Message {
    Message::new("target", number.to_string())
}

async fn leave<T: TransactionalStore>(transactions: &T, message: &Message) -> MessageId {
    let mut open = transactions.begin(Isolation::default()).await.unwrap();
    let id = transactions.enqueue(&mut open, message).await.unwrap();
    transactions.commit(open).await.unwrap();
    id
}

async fn claim_for(
    outbox: &dyn Outbox,
    target: &str,
    limit: usize,
    lease: Duration,
    number: u128,
) -> Vec<Claimed> {
    let claim = Claim {
        target: target.to_owned(),
        limit,
        lease,
        attempt: AttemptId(number),
    };
    outbox.claim(&claim).await.unwrap().value
}

async fn claim(outbox: &dyn Outbox, lease: Duration, number: u128) -> Vec<Claimed> {
    claim_for(outbox, "target", 100, lease, number).await
}

fn ending(claimed: &Claimed, next: Next) -> Ending {
    Ending {
        id: claimed.id,
        number: claimed.number,
        attempt: claimed.attempt,
        next,
    }
}

fn delivered() -> Next {
    Next::Delivered { provider_id: None }
}

fn dead() -> Next {
    let reason = "no".to_owned();
    Next::Dead {
        unclear: false,
        reason,
    }
}

fn words(event: JournalEvent) -> JournalEntry {
    JournalEntry {
        id: MessageId([3; 16]).as_record(),
        event,
        from: None,
        to: None,
        attempt: 1,
        actor: Actor::Operator,
        detail: Some("because".to_owned()),
    }
}

/// Of any number of claims, exactly one gets a message.
pub async fn claims_have_one_owner<T: TransactionalStore>(store: &Arc<dyn Store>, all: &T) {
    const MESSAGES: usize = 60;
    for number in 0..MESSAGES {
        leave(all, &message(number)).await;
    }
    leave(all, &Message::new("elsewhere", "x")).await;
    let mut claimers = tokio::task::JoinSet::new();
    for claimer in 1..=6_u128 {
        let outbox = outbox(store);
        claimers.spawn(async move {
            let mut mine = Vec::new();
            for round in 0..100 {
                let number = claimer * 1_000 + round;
                let some = claim_for(&*outbox, "target", 7, LONG, number).await;
                assert!(some.len() <= 7);
                mine.extend(some.into_iter().map(|one| one.id));
            }
            mine
        });
    }
    let mine: Vec<_> = claimers.join_all().await.into_iter().flatten().collect();
    let different: BTreeSet<_> = mine.iter().copied().collect();
    assert_eq!((mine.len(), different.len()), (MESSAGES, MESSAGES));
}

/// A message exists if and only if its transaction was committed.
pub async fn what_was_taken_back_is_not_sent<T: TransactionalStore>(
    store: &Arc<dyn Store>,
    all: &T,
) {
    let outbox = outbox(store);
    let mut open = all.begin(Isolation::default()).await.unwrap();
    all.enqueue(&mut open, &message(1)).await.unwrap();
    all.rollback(open).await;
    assert_eq!(claim(&*outbox, LONG, 1).await, []);
    leave(all, &message(2)).await;
    assert_eq!(claim(&*outbox, LONG, 2).await.len(), 1);
}

/// A claimed message equals the enqueued one, byte for byte.
pub async fn every_field_comes_back<T: TransactionalStore>(store: &Arc<dyn Store>, all: &T) {
    let key = reserve(&**store, "k", 5).await.id;
    let whole = Message {
        target: "target".to_owned(),
        kind: "order.paid".to_owned(),
        aggregate: Some(("order".to_owned(), "17".to_owned())),
        ordering_key: Some("order 17".to_owned()),
        downstream_key: Some("charge-17".to_owned()),
        headers: r#"{"x": "y"}"#.to_owned(),
        payload: vec![0, 159, 146, 150],
        key: Some(key),
        settles: Some(Settles {
            attempt: AttemptId(5),
            ttl: Duration::from_secs(3),
            look_after: Duration::from_secs(4),
            version: 7,
        }),
    };
    let id = leave(all, &whole).await;
    let plain = leave(all, &message(1)).await;
    let claimed = claim(&*outbox(store), LONG, 1).await;
    assert_eq!(claimed.len(), 2);
    assert_eq!((claimed[0].id, claimed[1].id), (id, plain));
    let mut found = claimed[0].message.clone();
    found.headers.retain(|letter| letter != ' ');
    let headers = r#"{"x":"y"}"#.to_owned();
    assert_eq!(found, Message { headers, ..whole });
    assert_eq!(claimed[0].tried.attempts, 1);
    assert_eq!(claimed[0].tried.unclear_since, None);
    let own = claimed[1].message.downstream_key.clone();
    assert_eq!(own, Some(plain.to_string()), "its own id is its key");
}

/// An attempt that claimed and never ended may have sent: the next claim says so, and the first is void.
pub async fn a_claim_that_lapsed_is_unclear<T: TransactionalStore>(
    store: &Arc<dyn Store>,
    all: &T,
) {
    let outbox = outbox(store);
    leave(all, &message(1)).await;
    let first = claim(&*outbox, NONE, 1).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let second = claim(&*outbox, LONG, 2).await;
    assert_eq!(second[0].tried.attempts, 2);
    let since = second[0].tried.unclear_since.expect("it is unclear");
    assert!(since >= first[0].created_at);
    let late = ending(&first[0], delivered());
    assert_eq!(outbox.end(&[late]).await.unwrap(), [false]);
    let again = Next::Again {
        pause: NONE,
        unclear: false,
        reason: "refused".to_owned(),
    };
    let good = ending(&second[0], again);
    assert_eq!(
        outbox.end(std::slice::from_ref(&good)).await.unwrap(),
        [true]
    );
    assert_eq!(outbox.end(&[good]).await.unwrap(), [false], "once");
    tokio::time::sleep(Duration::from_millis(5)).await;
    let third = claim(&*outbox, LONG, 3).await;
    assert_eq!(third[0].tried.unclear_since, Some(since), "it stays so");
    assert_eq!(third[0].tried.attempts, 3);
}

/// A claim that was given back never happened, except for what was unclear before it. Other claims stay.
pub async fn a_claim_is_given_back<T: TransactionalStore>(store: &Arc<dyn Store>, all: &T) {
    let outbox = outbox(store);
    let give_back = async |number| {
        let given = outbox.give_back("target", AttemptId(number));
        given.await.unwrap();
    };
    let clear = leave(all, &message(1)).await;
    let lost = claim(&*outbox, LONG, 1).await;
    assert_eq!(lost.len(), 1);
    give_back(1).await;
    let late = ending(&lost[0], delivered());
    assert_eq!(outbox.end(&[late]).await.unwrap(), [false], "it is undone");
    leave(all, &message(2)).await;
    let found = claim(&*outbox, NONE, 2).await;
    assert_eq!(found.len(), 2, "at once");
    for one in &found {
        assert_eq!(one.tried.attempts, 1);
        assert_eq!(one.tried.unclear_since, None);
    }
    let ended = ending(&found[1], delivered());
    outbox.end(&[ended]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    // The first claim has lapsed, so its message is unclear; the second is done.
    let third = claim(&*outbox, LONG, 3).await;
    let since = third[0].tried.unclear_since.expect("it is unclear");
    give_back(2).await;
    give_back(4).await;
    assert_eq!(claim(&*outbox, LONG, 5).await, [], "it is another's");
    give_back(3).await;
    let found = claim(&*outbox, LONG, 6).await;
    assert_eq!((found.len(), found[0].id), (1, clear));
    assert_eq!(found[0].tried.unclear_since, Some(since), "it stays so");
    assert_eq!(found[0].tried.attempts, 2);
}

/// Every ending leads to its state.
pub async fn endings_are_written<T: TransactionalStore>(store: &Arc<dyn Store>, all: &T) {
    let outbox = outbox(store);
    for number in 0..5 {
        leave(all, &message(number)).await;
    }
    let claimed = claim(&*outbox, LONG, 1).await;
    let again = |unclear, pause| Next::Again {
        pause,
        unclear,
        reason: "later".to_owned(),
    };
    let unknown = Next::Unknown {
        reason: "who knows".to_owned(),
    };
    let provider_id = Some("theirs".to_owned());
    let nexts = [
        Next::Delivered { provider_id },
        again(true, NONE),
        again(false, LONG),
        dead(),
        unknown,
    ];
    let endings: Vec<_> = claimed
        .iter()
        .zip(nexts)
        .map(|(one, next)| ending(one, next))
        .collect();
    assert_eq!(outbox.end(&endings).await.unwrap(), [true; 5]);
    let of = async |index: usize| outbox.message(claimed[index].id).await.unwrap().unwrap();
    let first = of(0).await;
    assert_eq!(first.state, MessageState::Delivered);
    assert_eq!(first.provider_id.as_deref(), Some("theirs"));
    assert!(first.delivered_at.is_some() && first.last_error.is_none());
    assert_eq!(of(3).await.last_error.as_deref(), Some("no"));
    assert_eq!(of(3).await.state, MessageState::Dead);
    assert_eq!(of(4).await.state, MessageState::Unknown);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let second = claim(&*outbox, LONG, 2).await;
    assert_eq!(second.len(), 1, "one is due");
    assert_eq!(second[0].id, claimed[1].id);
    assert!(second[0].tried.unclear_since.is_some());
    let depth = outbox.depth().await.unwrap();
    let counted: Vec<_> = depth.into_iter().collect();
    let wanted = [
        (MessageState::Pending, 2),
        (MessageState::Dead, 1),
        (MessageState::Unknown, 1),
    ];
    assert_eq!(counted, wanted);
    assert_eq!(outbox.message(MessageId([1; 16])).await.unwrap(), None);
}

/// Within one ordering key a message follows once the one before it is done; others do not wait.
pub async fn one_at_a_time_in_order<T: TransactionalStore>(store: &Arc<dyn Store>, all: &T) {
    let outbox = outbox(store);
    let mut ids = Vec::new();
    for number in 0..4 {
        let ordering_key = Some("a".to_owned());
        let one = Message {
            ordering_key,
            ..message(number)
        };
        ids.push(leave(all, &one).await);
    }
    let other = Message {
        ordering_key: Some("b".to_owned()),
        ..message(9)
    };
    let other = leave(all, &other).await;
    let found = claim(&*outbox, LONG, 1).await;
    let names: Vec<_> = found.iter().map(|one| one.id).collect();
    assert_eq!(names, [ids[0], other]);
    assert_eq!(claim(&*outbox, LONG, 2).await, [], "while it is under way");
    outbox.end(&[ending(&found[0], delivered())]).await.unwrap();
    let found = claim(&*outbox, LONG, 3).await;
    assert_eq!(found[0].id, ids[1]);
    outbox.end(&[ending(&found[0], dead())]).await.unwrap();
    assert_eq!(
        claim(&*outbox, LONG, 4).await,
        [],
        "a dead one holds them up"
    );
    let retried = words(JournalEvent::MessageRetried);
    assert!(outbox.decide(ids[1], RETRY, retried).await.unwrap());
    let found = claim(&*outbox, LONG, 5).await;
    assert_eq!(found[0].id, ids[1], "first itself");
    outbox.end(&[ending(&found[0], dead())]).await.unwrap();
    let (state, discarded) = (Decision::Discard, words(JournalEvent::MessageDiscarded));
    assert!(outbox.decide(ids[1], state, discarded).await.unwrap());
    assert_eq!(claim(&*outbox, LONG, 6).await[0].id, ids[2]);
}

/// A person's decision about a dead message is carried out, and journaled in the same write.
pub async fn people_decide<T: TransactionalStore>(store: &Arc<dyn Store>, all: &T) {
    let outbox = outbox(store);
    let id = leave(all, &message(1)).await;
    let retried = || words(JournalEvent::MessageRetried);
    let pending = RETRY;
    assert!(!outbox.decide(id, pending, retried()).await.unwrap());
    let found = claim(&*outbox, NONE, 1).await;
    outbox.end(&[ending(&found[0], dead())]).await.unwrap();
    let before = store.audit(None, 100).await.unwrap().items.len();
    assert!(outbox.decide(id, pending, retried()).await.unwrap());
    assert!(
        !outbox.decide(id, pending, retried()).await.unwrap(),
        "once"
    );
    let noted = store.audit(None, 100).await.unwrap().items;
    assert_eq!(noted.len(), before + 1);
    assert_eq!(noted[0].entry.event, JournalEvent::MessageRetried);
    let again = claim(&*outbox, LONG, 2).await;
    assert_eq!(again[0].id, id);
    assert_eq!(again[0].tried.attempts, 1, "with all its attempts");
    assert_eq!(again[0].tried.unclear_since, None);
    let same = found[0].message.downstream_key.clone();
    assert_eq!(again[0].message.downstream_key, same);
}

/// A retry keeps the time since when a message may have arrived, and is refused once that is too long ago by
/// the store's clock; only force resets it.
pub async fn what_may_have_arrived_stays_so<T: TransactionalStore>(
    store: &Arc<dyn Store>,
    all: &T,
) {
    let outbox = outbox(store);
    let id = leave(all, &message(1)).await;
    let retried = || words(JournalEvent::MessageRetried);
    let found = claim(&*outbox, NONE, 1).await;
    let unclear = || Next::Dead {
        unclear: true,
        reason: "no answer".to_owned(),
    };
    outbox.end(&[ending(&found[0], unclear())]).await.unwrap();
    let since = outbox.message(id).await.unwrap().unwrap().unclear_since;
    assert!(since.is_some(), "the last attempt may have arrived");
    for round in 2..4 {
        assert!(outbox.decide(id, RETRY, retried()).await.unwrap());
        let again = claim(&*outbox, NONE, round).await;
        assert_eq!(again[0].tried.attempts, 1, "with all its attempts");
        assert_eq!(again[0].tried.unclear_since, since, "and the same clock");
        outbox.end(&[ending(&again[0], unclear())]).await.unwrap();
    }
    let before = store.audit(None, 100).await.unwrap().items.len();
    let too_late = Decision::Retry(Duration::ZERO);
    assert!(!outbox.decide(id, too_late, retried()).await.unwrap());
    assert_eq!(store.audit(None, 100).await.unwrap().items.len(), before);
    let dead = outbox.message(id).await.unwrap().unwrap();
    assert_eq!(
        (dead.state, dead.unclear_since),
        (MessageState::Dead, since)
    );
    let force = Decision::RetryByForce;
    assert!(outbox.decide(id, force, retried()).await.unwrap());
    let again = claim(&*outbox, NONE, 9).await;
    assert_eq!(again[0].tried.unclear_since, None);
}

/// A claim reads up to a limit, and takes one message beyond it, whose payload is read separately.
pub async fn large_payloads_are_read_one_by_one<T: TransactionalStore>(
    store: &Arc<dyn Store>,
    all: &T,
) {
    let outbox = outbox(store);
    let half = usize::try_from(CLAIM_BYTES).unwrap() / 2;
    let mut ids = Vec::new();
    for bytes in [1, half, half - 1, 1, 3 * half, 1, 1] {
        ids.push(leave(all, &Message::new("target", vec![b'x'; bytes])).await);
    }
    let first = claim(&*outbox, LONG, 1).await;
    let read: Vec<_> = first.iter().map(|one| (one.id, one.unread)).collect();
    let all_read = [(ids[0], false), (ids[1], false), (ids[2], false)];
    assert_eq!(read[..3], all_read);
    assert_eq!(read[3..], [(ids[3], true)], "the one beyond is the last");
    let payload = outbox.payload(first[3].number, AttemptId(1)).await.unwrap();
    assert_eq!(payload, Some(vec![b'x']));
    let stranger = outbox.payload(first[3].number, AttemptId(7)).await;
    assert_eq!(stranger.unwrap(), None);
    let second = claim(&*outbox, LONG, 2).await;
    let read: Vec<_> = second.iter().map(|one| (one.id, one.unread)).collect();
    assert_eq!(
        read,
        [(ids[4], true)],
        "one that is too large for any claim"
    );
    let payload = outbox
        .payload(second[0].number, AttemptId(2))
        .await
        .unwrap();
    assert_eq!(payload.map(|bytes| bytes.len()), Some(3 * half));
    let third = claim(&*outbox, LONG, 3).await;
    let read: Vec<_> = third.iter().map(|one| (one.id, one.unread)).collect();
    assert_eq!(read, [(ids[5], false), (ids[6], false)]);
    outbox.end(&[ending(&first[3], delivered())]).await.unwrap();
    let done = outbox.payload(first[3].number, AttemptId(1)).await;
    assert_eq!(done.unwrap(), None);
}

/// The message and the key that it settles change together or not at all.
pub async fn a_key_is_settled_with_its_message<T: TransactionalStore>(
    store: &Arc<dyn Store>,
    all: &T,
) {
    let outbox = outbox(store);
    let record = reserve(&**store, "k", 5).await;
    let one = Message {
        key: Some(record.id),
        ..message(1)
    };
    leave(all, &one).await;
    let found = claim(&*outbox, LONG, 1).await;
    let change = settled(&record, &Settlement::Complete(response()), &policy());
    let end = ending(&found[0], delivered());
    let stale = outbox.end_with_key(&end, record.revision.next(), &change);
    let stale = stale.await.unwrap().expect("the message is ours");
    assert!(matches!(stale.value, Swapped::Conflict(_)));
    let still = outbox.message(found[0].id).await.unwrap().unwrap();
    assert_eq!(still.state, MessageState::Pending, "neither");
    let done = outbox.end_with_key(&end, record.revision, &change);
    let done = done.await.unwrap().expect("the message is ours");
    assert!(matches!(done.value, Swapped::Done(_)));
    let now = store.lookup(record.id).await.unwrap().value.unwrap();
    assert_eq!(now.state, State::Completed);
    assert_eq!(now.response, Some(response()));
    let sent = outbox.message(found[0].id).await.unwrap().unwrap();
    assert_eq!(sent.state, MessageState::Delivered, "both");
    let twice = outbox.end_with_key(&end, now.revision, &change);
    assert_eq!(twice.await.unwrap(), None);
}

/// Delivered and discarded messages are deleted after their time; the others stay.
pub async fn what_is_old_is_deleted<T: TransactionalStore>(store: &Arc<dyn Store>, all: &T) {
    let outbox = outbox(store);
    for number in 0..6 {
        leave(all, &message(number)).await;
    }
    let found = claim(&*outbox, LONG, 1).await;
    let mut endings: Vec<_> = found[..3]
        .iter()
        .map(|one| ending(one, delivered()))
        .collect();
    endings.push(ending(&found[3], dead()));
    endings.push(ending(&found[4], dead()));
    outbox.end(&endings).await.unwrap();
    let (state, discarded) = (Decision::Discard, words(JournalEvent::MessageDiscarded));
    assert!(outbox.decide(found[3].id, state, discarded).await.unwrap());
    assert_eq!(outbox.tidy(LONG, 100).await.unwrap(), 0);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let mut gone = 0;
    // Two at a time, and once more around.
    for _ in 0..8 {
        gone += outbox.tidy(NONE, 2).await.unwrap();
    }
    assert_eq!(gone, 4);
    let left = outbox.list(&MessageFilter::default(), None, 10).await;
    let left: Vec<_> = left.unwrap().items.into_iter().map(|one| one.id).collect();
    assert_eq!(left, [found[5].id, found[4].id]);
}

/// Lists are newest first, in pages, filtered by states and target.
pub async fn lists_have_pages<T: TransactionalStore>(store: &Arc<dyn Store>, all: &T) {
    let outbox = outbox(store);
    let mut ids = Vec::new();
    for number in 0..5 {
        ids.push(leave(all, &message(number)).await);
    }
    let elsewhere = leave(all, &Message::new("elsewhere", "x")).await;
    let filter = MessageFilter {
        target: Some("target".to_owned()),
        ..MessageFilter::default()
    };
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let page = outbox.list(&filter, cursor, 2).await.unwrap();
        seen.extend(page.items.iter().map(|one| one.id));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    ids.reverse();
    assert_eq!(seen, ids);
    let found = claim_for(&*outbox, "elsewhere", 1, LONG, 1).await;
    outbox.end(&[ending(&found[0], dead())]).await.unwrap();
    let filter = MessageFilter {
        states: vec![MessageState::Dead, MessageState::Unknown],
        target: None,
    };
    let page = outbox.list(&filter, None, 10).await.unwrap();
    assert_eq!(page.items.len(), 1);
    let one = &page.items[0];
    assert_eq!((one.id, one.attempts, one.bytes), (elsewhere, 1, 1));
    assert_eq!(one.last_error.as_deref(), Some("no"));
}
