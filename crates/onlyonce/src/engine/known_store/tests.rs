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
        accepted_at: None,
        numbered: numbered("a", 100),
    }
}

fn is_refused(judged: &Judged) -> bool {
    matches!(judged, Judged::Not(_))
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
fn a_restored_backup_is_refused_and_a_failover_below_sync_is_not() {
    let lag = i64::try_from(MAY_BE_LOST.as_millis()).unwrap();
    for (level, behind, judged) in [
        (Level::Sync, 1, None),
        (Level::Async, lag, Some(Judged::Lagged)),
        (Level::Async, lag + 1, None),
        (Level::Volatile, 1, Some(Judged::Lagged)),
    ] {
        let found = known(level).judge(&standing(9, AT - behind), false);
        match judged {
            Some(judged) => assert_eq!(found, judged, "{level} {behind}"),
            None => assert!(is_refused(&found), "{level} {behind}"),
        }
    }
    let emptied = Standing {
        epoch: None,
        ..standing(0, 0)
    };
    assert!(is_refused(&known(Level::Async).judge(&emptied, false)));
}

#[test]
fn another_store_and_none_at_all_are_refused() {
    let another = Standing {
        identity: Some([2; IDENTITY_BYTES]),
        ..standing(99, AT + 1)
    };
    for is_starting in [false, true] {
        let known = known(Level::Async);
        assert!(is_refused(&known.judge(&another, is_starting)));
        assert!(is_refused(&known.judge(&Standing::default(), is_starting)));
    }
}

#[test]
fn an_operators_word_counts_if_it_is_later_than_what_is_known() {
    let known = known(Level::Sync);
    for (at, judged) in [(AT, false), (AT - 1, false), (AT + 1, true)] {
        let restored = Standing {
            accepted_at: Some(Timestamp(at)),
            ..standing(3, 500)
        };
        let found = known.judge(&restored, false);
        assert_eq!(found == Judged::Accepted, judged, "{at}");
        let another = Standing {
            identity: Some([2; IDENTITY_BYTES]),
            ..restored
        };
        assert!(
            is_refused(&known.judge(&another, false)),
            "the secret is another"
        );
        assert_eq!(known.judge(&another, true) == Judged::Accepted, judged);
    }
}

#[test]
fn a_table_that_was_emptied_begins_its_numbers_anew() {
    for (level, server, next, refused) in [
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
        assert_eq!(is_refused(&judged), refused, "{level} {server} {next}");
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
