//! When each stretch of records next needs the reaper.
//!
//! The reaper notes this in memory as it walks, and skips stretches with nothing due yet. No write of a
//! record updates it, so it may be out of date: a record may have settled, or got a shorter time, since its
//! stretch was read. So each stretch is read again after a while, at first soon and then ever more rarely. A
//! record that is reaped late takes up space, and nothing else: its times decide whether it has expired.

use std::collections::BTreeMap;

use onlyonce_core::{Record, Timestamp};
use parking_lot::Mutex;

use crate::{Reply, Walk};

/// The first wait before a stretch with nothing known to be due is read again, in milliseconds.
const FIRST_WAIT: i64 = 60_000;
/// The longest wait.
const LONGEST_WAIT: i64 = 12 * 3_600_000;

/// The result of reading a stretch.
#[derive(Debug)]
pub(crate) struct Look {
    /// The time by the store's clock.
    pub(crate) now: Timestamp,
    /// The records that are due.
    pub(crate) due: Vec<Record>,
    /// The number of the stretch's last record; `None` if there are no further records.
    pub(crate) end: Option<i64>,
    /// When the first of the other records is due.
    pub(crate) next: Option<i64>,
}

#[derive(Clone, Copy)]
struct Stretch {
    /// The number of the stretch's last record.
    end: i64,
    /// When it is read again.
    again: i64,
    /// The current wait.
    wait: i64,
}

/// The position of the reaper's walk, and what it knows about the stretches.
pub(crate) struct Stretches(Mutex<Inner>);

struct Inner {
    position: i64,
    /// The store's time, as last seen.
    now: i64,
    /// By the number after which each begins.
    known: BTreeMap<i64, Stretch>,
}

impl Stretches {
    /// A walk that continues after the record with this number.
    pub(crate) fn after(position: i64) -> Self {
        Self(Mutex::new(Inner {
            position,
            now: 0,
            known: BTreeMap::new(),
        }))
    }

    /// The number after which the next stretch worth reading begins. The last stretch always is.
    pub(crate) fn next(&self) -> i64 {
        let mut inner = self.0.lock();
        while let Some(stretch) = inner.known.get(&inner.position)
            && stretch.again > inner.now
        {
            inner.position = stretch.end;
        }
        inner.position
    }

    /// The position of the walk.
    pub(crate) fn position(&self) -> i64 {
        self.0.lock().position
    }

    /// Records the result of reading the stretch that begins after `from`.
    pub(crate) fn looked(&self, from: i64, look: Look) -> Reply<Walk> {
        let mut inner = self.0.lock();
        if look.now.0 < inner.now {
            // The clock was set back: stretches scheduled by the old time would wait too long.
            inner.known.clear();
        }
        inner.now = look.now.0;
        let before = inner.known.remove(&from);
        inner.position = match look.end {
            None => {
                inner.known.split_off(&from);
                0
            }
            Some(end) => {
                // Deleted records make room for those of the stretches behind.
                let behind: Vec<i64> = inner.known.range(from..end).map(|(at, _)| *at).collect();
                for at in behind {
                    inner.known.remove(&at);
                }
                let stretch = stretch(end, before, &look);
                inner.known.insert(from, stretch);
                end
            }
        };
        Reply {
            now: look.now,
            value: Walk {
                candidates: look.due,
                wrapped: look.end.is_none(),
            },
        }
    }
}

fn stretch(end: i64, before: Option<Stretch>, look: &Look) -> Stretch {
    let now = look.now.0;
    // What is reaped now becomes a tombstone, and what could not be reaped is tried again.
    if !look.due.is_empty() {
        return Stretch {
            end,
            again: now,
            wait: 0,
        };
    }
    let wait = before.map_or(0, |before| before.wait.saturating_mul(2));
    let wait = wait.clamp(FIRST_WAIT, LONGEST_WAIT);
    let again = now.saturating_add(wait);
    let again = look.next.map_or(again, |next| next.min(again));
    Stretch { end, again, wait }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(now: i64, end: Option<i64>, next: Option<i64>) -> Look {
        Look {
            now: Timestamp(now),
            due: Vec::new(),
            end,
            next,
        }
    }

    /// Reads every stretch worth it, of ten records each, up to `last`; returns which.
    fn round(stretches: &Stretches, now: i64, last: i64, next: impl Fn(i64) -> i64) -> Vec<i64> {
        let mut looked = Vec::new();
        loop {
            let from = stretches.next();
            looked.push(from);
            let end = Some(from + 10).filter(|end| *end <= last);
            if stretches
                .looked(from, look(now, end, Some(next(from))))
                .value
                .wrapped
            {
                return looked;
            }
        }
    }

    #[test]
    fn what_holds_nothing_yet_is_passed_over() {
        let stretches = Stretches::after(0);
        let next = |from: i64| 1_000 + from;
        assert_eq!(round(&stretches, 0, 39, next), [0, 10, 20, 30]);
        // The last stretch is open, and always read; the others when they are due by the last seen time.
        assert_eq!(round(&stretches, 1_000, 39, next), [30]);
        assert_eq!(round(&stretches, 1_001, 39, |_| i64::MAX), [0, 30]);
        assert_eq!(round(&stretches, 1_020, 39, |_| i64::MAX), [30]);
        assert_eq!(round(&stretches, 1_020, 39, |_| i64::MAX), [10, 20, 30]);
    }

    #[test]
    fn every_stretch_is_looked_at_again_ever_more_rarely() {
        let stretches = Stretches::after(0);
        let (mut looks, mut now) = (Vec::new(), 0);
        while now < 3 * LONGEST_WAIT {
            if round(&stretches, now, 15, |_| i64::MAX)[0] == 0 {
                looks.push(now);
            }
            now += 10_000;
        }
        let pauses: Vec<i64> = looks.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses[0] <= FIRST_WAIT + 20_000, "{pauses:?}");
        assert!(
            pauses.windows(2).all(|pair| pair[1] >= pair[0]),
            "{pauses:?}"
        );
        assert!(
            pauses.iter().all(|pause| *pause <= LONGEST_WAIT + 20_000),
            "{pauses:?}"
        );
        assert!(pauses.len() < 16, "{pauses:?}");
    }

    #[test]
    fn a_clock_that_was_set_back_starts_anew() {
        let stretches = Stretches::after(0);
        assert_eq!(round(&stretches, 9_000_000, 15, |_| i64::MAX), [0, 10]);
        assert_eq!(round(&stretches, 5_000, 15, |_| i64::MAX), [10]);
        assert_eq!(round(&stretches, 5_000, 15, |_| i64::MAX), [0, 10]);
    }

    #[test]
    fn a_stretch_that_grew_over_others_replaces_them() {
        let stretches = Stretches::after(0);
        round(&stretches, 0, 39, |_| i64::MAX);
        // Most of the records are gone: ten of them reach further now.
        stretches.looked(0, look(FIRST_WAIT * 2, Some(35), None));
        assert_eq!(stretches.next(), 35);
        stretches.looked(35, look(FIRST_WAIT * 2, None, None));
        assert_eq!(
            stretches.next(),
            35,
            "what lies between is no stretch of its own any more"
        );
    }
}
