//! What is concluded from what a store says of itself.

use super::*;

const IDENTITY: [u8; IDENTITY_BYTES] = [1; IDENTITY_BYTES];
/// When the epoch was last seen.
const AT: i64 = 1_000_000;

fn epoch(count: u64, at: i64) -> Epoch {
    let at = Timestamp(at);
    Epoch { count, at }
}

fn numbered(server: &str, next: u64) -> Option<Numbered> {
    let server = server.to_owned();
    Some(Numbered { server, next })
}

fn known(level: Level) -> Known {
    Known {
        identity: IDENTITY,
        epoch: epoch(10, AT),
        level,
        numbered: numbered("a", 100),
    }
}

fn standing(count: u64, at: i64) -> Standing {
    Standing {
        identity: Some(IDENTITY),
        epoch: Some(epoch(count, at)),
        history: History::default(),
        numbered: numbered("a", 100),
    }
}

fn is_refused(judged: &Judged) -> bool {
    matches!(judged, Judged::Not(_))
}

fn is_lost(judged: &Judged, loss: Loss) -> bool {
    matches!(judged, Judged::Lost(found, _) if *found == loss)
}

#[test]
fn an_epoch_that_rises_is_the_same_store() {
    for level in [Level::Sync, Level::Async, Level::Volatile] {
        for count in [10, 11, 1_000] {
            let judged = known(level).judge(&standing(count, AT), false);
            assert_eq!(judged, Judged::Same, "{level} {count}");
        }
    }
}

#[test]
fn a_restored_backup_has_lost_keys_and_a_failover_below_sync_the_newest() {
    let lag = i64::try_from(MAY_BE_LOST.as_millis()).unwrap();
    for (level, behind, loss) in [
        (Level::Sync, 1, Loss::Any),
        (Level::Async, lag, Loss::Newest),
        (Level::Async, lag + 1, Loss::Any),
        (Level::Volatile, 1, Loss::Newest),
    ] {
        let found = known(level).judge(&standing(9, AT - behind), false);
        assert!(is_lost(&found, loss), "{level} {behind} {found:?}");
    }
    let emptied = Standing {
        epoch: None,
        ..standing(0, 0)
    };
    let found = known(Level::Async).judge(&emptied, false);
    assert!(is_lost(&found, Loss::Any), "{found:?}");
}

#[test]
fn another_store_is_refused_by_a_running_process_and_none_at_all_by_any() {
    let another = Standing {
        identity: Some([2; IDENTITY_BYTES]),
        ..standing(99, AT + 1)
    };
    let known = known(Level::Async);
    assert!(is_refused(&known.judge(&another, false)));
    assert!(is_lost(&known.judge(&another, true), Loss::Any));
    for is_starting in [false, true] {
        assert!(is_refused(&known.judge(&Standing::default(), is_starting)));
    }
}

/// Every combination of what the store says of itself, an operator's word, another gateway's note, and
/// whether the process is starting.
#[test]
fn what_is_missing_is_noted_once_and_an_operators_word_counts_if_it_is_later() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Mark {
        Missing,
        Other,
        Behind,
        Equal,
    }
    for mark in [Mark::Missing, Mark::Other, Mark::Behind, Mark::Equal] {
        for is_starting in [false, true] {
            for accepted in [None, Some(AT), Some(AT + 1)] {
                for noted in [None, Some(AT), Some(AT + 1)] {
                    let found = Standing {
                        identity: match mark {
                            Mark::Missing => None,
                            Mark::Other => Some([2; IDENTITY_BYTES]),
                            Mark::Behind | Mark::Equal => Some(IDENTITY),
                        },
                        history: History {
                            lost_at: noted.map(Timestamp),
                            newest_lost_at: None,
                            accepted_at: accepted.map(Timestamp),
                        },
                        ..standing(if mark == Mark::Behind { 9 } else { 10 }, AT)
                    };
                    let judged = known(Level::Sync).judge(&found, is_starting);
                    let is_known = accepted == Some(AT + 1) || noted == Some(AT + 1);
                    let case = (mark, is_starting, accepted, noted, &judged);
                    let is_right = match mark {
                        Mark::Missing => is_refused(&judged),
                        Mark::Other if !is_starting => is_refused(&judged),
                        Mark::Equal => judged == Judged::Same,
                        Mark::Other | Mark::Behind if is_known => judged == Judged::Known,
                        Mark::Other | Mark::Behind => is_lost(&judged, Loss::Any),
                    };
                    assert!(is_right, "{case:?}");
                }
            }
        }
    }
}

#[test]
fn a_lag_that_was_noted_is_not_noted_again() {
    for (lost_at, newest_lost_at) in [(None, Some(AT + 1)), (Some(AT + 1), None)] {
        let found = Standing {
            history: History {
                lost_at: lost_at.map(Timestamp),
                newest_lost_at: newest_lost_at.map(Timestamp),
                accepted_at: None,
            },
            ..standing(9, AT)
        };
        assert_eq!(known(Level::Async).judge(&found, false), Judged::Known);
        // That the newest are missing does not say that more are.
        let judged = known(Level::Sync).judge(&found, false);
        assert_eq!(judged == Judged::Known, lost_at.is_some());
    }
}

#[test]
fn a_table_that_was_emptied_begins_its_numbers_anew() {
    for (level, server, next, lost) in [
        (Level::Sync, "a", 100, false),
        (Level::Sync, "a", 99, true),
        (Level::Sync, "b", 1, false),
        (Level::Async, "a", 50, false),
        (Level::Async, "a", 49, true),
    ] {
        let found = Standing {
            numbered: numbered(server, next),
            ..standing(10, AT)
        };
        let judged = known(level).judge(&found, false);
        assert_eq!(is_lost(&judged, Loss::Any), lost, "{level} {server} {next}");
    }
}

#[test]
fn what_is_known_outlives_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path()).unwrap();
    assert_eq!(spool.known_store().unwrap(), None);
    let without = Known {
        numbered: None,
        ..known(Level::Volatile)
    };
    for known in [known(Level::Sync), without] {
        spool.keep_known_store(&known).unwrap();
        assert_eq!(spool.known_store().unwrap(), Some(known));
    }
    std::fs::write(folder.path().join("store.known"), "nonsense").unwrap();
    assert!(spool.known_store().is_err());
}
