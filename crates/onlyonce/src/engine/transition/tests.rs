//! Every way of treating an unanswered write, against everything that a store can say.

use std::collections::VecDeque;

use onlyonce_core::{
    Key, Policy, RecipeId, Scope, Secret,
    machine::{Request, first},
    record::{AttemptId, Notes, Revision},
};

use super::*;

/// What the store says to one call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    /// It is written; or, to a look, that the record is as it was.
    Yes,
    /// Somebody else was faster; or, to a look, this is there now.
    Other,
    /// There is no record.
    Absent,
    /// Nothing was written.
    Unavailable,
    /// It may have been.
    Ambiguous,
}

/// A store that says what it was told to, and notes what it was asked.
struct Script {
    says: VecDeque<Says>,
    asked: Vec<(&'static str, Patience)>,
}

impl Script {
    fn next(&mut self, asked: &'static str, patience: Patience) -> Result<Says, StoreError> {
        self.asked.push((asked, patience));
        match self
            .says
            .pop_front()
            .expect("no more calls than were written")
        {
            Says::Unavailable => Err(StoreError::Unavailable("down".into())),
            Says::Ambiguous => Err(StoreError::Ambiguous("lost".into())),
            said => Ok(said),
        }
    }
}

fn reply<T>(value: T) -> Reply<T> {
    let now = Timestamp(7);
    Reply { now, value }
}

impl Records for Script {
    type Error = StoreError;

    async fn look_up(
        &mut self,
        _: RecordId,
        patience: Patience,
    ) -> Result<Reply<Option<Record>>, StoreError> {
        let said = self.next("look", patience)?;
        Ok(reply(match said {
            Says::Yes => Some(record(1)),
            Says::Other => Some(record(2)),
            _ => None,
        }))
    }

    async fn insert(
        &mut self,
        draft: Draft,
        patience: Patience,
    ) -> Result<Reply<Inserted>, StoreError> {
        let said = self.next("insert", patience)?;
        Ok(reply(match said {
            Says::Yes => Inserted::New(draft.stamp(Timestamp(7))),
            _ => Inserted::Existing(record(2)),
        }))
    }

    async fn swap(
        &mut self,
        _: &Record,
        change: Change,
        patience: Patience,
    ) -> Result<Reply<Swapped>, StoreError> {
        let said = self.next("swap", patience)?;
        Ok(reply(match said {
            Says::Yes => Swapped::Done(change.draft.stamp(Timestamp(7))),
            Says::Other => Swapped::Conflict(record(2)),
            _ => Swapped::Absent,
        }))
    }

    async fn delete(&mut self, _: &Record) -> Result<bool, StoreError> {
        Ok(self.next("delete", Patience::Usual)? == Says::Yes)
    }
}

fn draft() -> Draft {
    let (scope, key) = (Scope::global(), Key::from_stored("k"));
    let request = Request {
        id: Secret::from_bytes([7; 32]).record_id(scope.as_str(), &key),
        scope,
        key,
        fingerprint: onlyonce_core::Fingerprint([1; 32]),
        recipe: RecipeId([1; 8]),
        caller: None,
        other_mark: None,
        attempt_id: AttemptId(1),
        route: "r".into(),
        method: "POST".into(),
        path: "/".into(),
        notes: Notes::default(),
    };
    first(&request, &Policy::default())
}

fn record(revision: u64) -> Record {
    let mut record = draft().stamp(Timestamp(1));
    record.revision = Revision(revision);
    record
}

fn swap() -> Write {
    Write::Swap(Change {
        draft: Box::new(draft()),
        journal: Vec::new(),
    })
}

type Came = (Result<Wrote, bool>, Vec<(&'static str, Patience)>);

/// What a transition of a record that was read comes to, whose event writes whenever it is asked.
async fn swapped(unanswered: Unanswered, says: &[Says]) -> Came {
    let known = Known::Read(Arc::new(record(1)), Timestamp(1));
    came(known, says, |_| (swap(), unanswered)).await
}

async fn came(
    known: Known,
    says: &[Says],
    mut decide: impl FnMut(Option<&Record>) -> (Write, Unanswered),
) -> Came {
    let mut script = Script {
        says: says.iter().copied().collect(),
        asked: Vec::new(),
    };
    let moved = transition(&mut script, record(1).id, known, |record, _| {
        let (write, unanswered) = decide(record);
        (Step { write, effect: () }, unanswered)
    });
    let moved = moved.await;
    assert!(script.says.is_empty(), "each answer was asked for");
    let wrote = moved.map(|moved| moved.wrote);
    (wrote.map_err(|error| error.is_ambiguous()), script.asked)
}

const USUAL: Patience = Patience::Usual;
const SECOND: Patience = Patience::SecondLook;
const ALL: [Unanswered; 6] = [
    Unanswered::AskAgain,
    Unanswered::Look,
    Unanswered::LeaveIt,
    Unanswered::IfPossible,
    Unanswered::KeepTrying,
    Unanswered::Fail,
];

#[tokio::test(start_paused = true)]
async fn what_is_written_at_once_or_after_others_were_faster_is_written() {
    for unanswered in ALL {
        for faster in [0, 1, MAX_ROUNDS - 1] {
            let mut says = vec![Says::Other; faster];
            says.push(Says::Yes);
            let (wrote, asked) = swapped(unanswered, &says).await;
            assert_eq!(wrote, Ok(Wrote::Yes), "{unanswered:?}");
            assert_eq!(asked, vec![("swap", USUAL); faster + 1]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_goes_round_for_ever_but_who_must() {
    for unanswered in ALL {
        let mut says = vec![Says::Other; MAX_ROUNDS];
        let expected = match unanswered {
            Unanswered::KeepTrying => {
                says.push(Says::Yes);
                Ok(Wrote::Yes)
            }
            _ => Err(false),
        };
        assert_eq!(
            swapped(unanswered, &says).await.0,
            expected,
            "{unanswered:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_wrote_nothing_is_told_unless_the_write_is_optional_or_must_be() {
    for unanswered in ALL {
        let (says, expected) = match unanswered {
            Unanswered::IfPossible => (vec![Says::Unavailable], Ok(Wrote::Held)),
            Unanswered::KeepTrying => {
                let mut says = vec![Says::Unavailable; 9];
                says.push(Says::Yes);
                (says, Ok(Wrote::Yes))
            }
            _ => (vec![Says::Unavailable], Err(false)),
        };
        assert_eq!(
            swapped(unanswered, &says).await.0,
            expected,
            "{unanswered:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_write_is_treated_as_its_name_says() {
    use Says::{Absent, Ambiguous, Other, Unavailable, Yes};
    let of = async |unanswered, says: &[Says]| swapped(unanswered, says).await;

    let (wrote, asked) = of(Unanswered::AskAgain, &[Ambiguous, Yes]).await;
    assert_eq!((wrote, asked[1]), (Ok(Wrote::Yes), ("swap", SECOND)));
    // The first one did happen, or another's: the event is applied to what is there.
    let (wrote, asked) = of(Unanswered::AskAgain, &[Ambiguous, Other, Yes]).await;
    assert_eq!((wrote, asked[2]), (Ok(Wrote::Yes), ("swap", USUAL)));
    for second in [Ambiguous, Unavailable] {
        let (wrote, _) = of(Unanswered::AskAgain, &[Ambiguous, second]).await;
        assert_eq!(wrote, Err(true), "the first one may stand: {second:?}");
    }

    let (wrote, asked) = of(Unanswered::Look, &[Ambiguous, Yes]).await;
    assert_eq!((wrote, asked[1]), (Ok(Wrote::Held), ("look", SECOND)));
    let (wrote, _) = of(Unanswered::Look, &[Ambiguous, Other, Yes]).await;
    assert_eq!(wrote, Ok(Wrote::Yes), "it had changed");
    for second in [Ambiguous, Unavailable] {
        let (wrote, _) = of(Unanswered::Look, &[Ambiguous, second]).await;
        assert_eq!(wrote, Err(true), "the write may stand: {second:?}");
    }

    for leaves in [Unanswered::LeaveIt, Unanswered::IfPossible] {
        assert_eq!(of(leaves, &[Ambiguous]).await.0, Ok(Wrote::Held));
    }
    assert_eq!(of(Unanswered::Fail, &[Ambiguous]).await.0, Err(true));
    let (wrote, asked) = of(Unanswered::KeepTrying, &[Ambiguous, Unavailable, Yes]).await;
    assert_eq!((wrote, asked.len()), (Ok(Wrote::Yes), 3));
    // A key that is gone meanwhile is asked about once more, since there is nothing to swap.
    let (wrote, asked) = of(Unanswered::Fail, &[Absent, Other, Yes]).await;
    assert_eq!(wrote, Ok(Wrote::Yes));
    assert_eq!(asked[1].0, "look");
}

/// A second try that something else forbids by now leaves a first one that may stand.
#[tokio::test(start_paused = true)]
async fn what_is_forbidden_after_an_unanswered_write_is_still_unanswered() {
    let mut tries = 0;
    let known = Known::Read(Arc::new(record(1)), Timestamp(1));
    let decide = |_: Option<&Record>| {
        tries += 1;
        let write = if tries == 1 { swap() } else { Write::Stay };
        (write, Unanswered::AskAgain)
    };
    let (wrote, _) = came(known, &[Says::Ambiguous], decide).await;
    assert_eq!(wrote, Err(true));
}

#[tokio::test(start_paused = true)]
async fn only_what_the_store_has_said_is_left_alone() {
    let stay = |_: Option<&Record>| (Write::Stay, Unanswered::Fail);
    let there = || Arc::new(record(1));
    let read = Known::Read(there(), Timestamp(1));
    assert_eq!(came(read, &[], stay).await, (Ok(Wrote::Nothing), vec![]));
    assert_eq!(came(Known::Assumed, &[], stay).await.0, Ok(Wrote::Nothing));
    for says in [Says::Yes, Says::Other, Says::Absent] {
        for known in [Known::Nothing, Known::Remembered(there(), Timestamp(1))] {
            let (wrote, asked) = came(known, &[says], stay).await;
            assert_eq!((wrote, asked), (Ok(Wrote::Nothing), vec![("look", USUAL)]));
        }
    }
    // A new key is inserted without looking, whatever is there.
    for known in [Known::Nothing, Known::Assumed] {
        let make = |_: Option<&Record>| {
            let write = Write::Insert(Box::new(draft()));
            (write, Unanswered::AskAgain)
        };
        let says = [Says::Ambiguous, Says::Yes];
        let (wrote, asked) = came(known, &says, make).await;
        assert_eq!(wrote, Ok(Wrote::Yes));
        assert_eq!(asked, [("insert", USUAL), ("insert", SECOND)]);
    }
    let delete = |record: Option<&Record>| match record {
        Some(_) => (Write::Delete, Unanswered::Fail),
        None => (Write::Stay, Unanswered::Fail),
    };
    let known = || Known::Read(there(), Timestamp(1));
    assert_eq!(came(known(), &[Says::Yes], delete).await.0, Ok(Wrote::Yes));
    let says = [Says::Other, Says::Absent];
    let (wrote, asked) = came(known(), &says, delete).await;
    assert_eq!(wrote, Ok(Wrote::Nothing), "somebody else was faster");
    assert_eq!(
        asked.iter().map(|(what, _)| *what).collect::<Vec<_>>(),
        ["delete", "look"]
    );
}
