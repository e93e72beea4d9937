//! The store's time, as far as it is believed. No other code decides what time it is.
//!
//! Persisted times come from the store's clock, and every rule that permits something later compares with
//! them: a key expires, a denial counts, a lease lapses. A clock set ahead by mistake would therefore execute
//! retries a second time. This process also measures time by a local clock that nobody sets and that
//! continues while the machine sleeps. Believed time never exceeds the last believed time, plus the local
//! time elapsed, plus [`TOLERANCE`]. A store clock beyond that is believed once it has been steady for long
//! enough. A clock that is set back is believed immediately, since acting later than due is safe.
//!
//! The store keeps a [`Mark`], so that a process started after a jump notices it too.
//!
//! Deliberately absent: the rules. The machine is given a time and does not question it.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use onlyonce_core::{Policy, Timestamp};
use onlyonce_store::StoreError;
use parking_lot::Mutex;

use super::Engine;
use crate::{
    clock::{Clock, Moment},
    stats::Background,
};

/// How far the store's clock may be off, allowing for drift and for the duration of replies.
pub(crate) const TOLERANCE: Duration = Duration::from_secs(5);
/// How often the tolerance is granted anew: a slewed clock moves by less than a twelfth.
const ANCHORED_FOR: Duration = Duration::from_secs(60);
/// How far this machine's wall clock may be off. It decides only whether a signature is recent, and whether a
/// first byte may be sent.
const WALL_TOLERANCE: Duration = Duration::from_secs(60);
/// How old another machine's mark may be, by its own time, to be continued from: other nodes write one every
/// [`NOTE_EVERY`].
const OTHERS_MARK_HOLDS: Duration = Duration::from_secs(60);
/// How often the mark is written.
pub(crate) const NOTE_EVERY: Duration = Duration::from_secs(20);
/// How long a clock must run steadily after a jump before anything expires or is released by it.
pub const STEADY_FOR: Duration = Duration::from_secs(600);

/// What is believed of the store's clock.
pub(crate) struct StoreClock {
    clock: Clock,
    boot_id: String,
    state: Mutex<State>,
    /// How long a clock must run steadily after a jump, in milliseconds.
    steady_for: AtomicU64,
    /// When this process began, in milliseconds since this machine was started.
    began_at: i64,
    /// Whether this process has searched for leases left far ahead by a clock that was set back before it
    /// began.
    has_looked: AtomicBool,
}

/// Times are in milliseconds since this machine was started; an offset is the store's time less that.
#[derive(Clone, Copy, Default)]
struct State {
    /// The believed offset; `None` before the first reply.
    offset: Option<i64>,
    /// The largest acceptable offset, and since when it applies.
    most: i64,
    anchored_at: i64,
    /// Whether the offset is another machine's, and no reply has arrived since.
    is_hearsay: bool,
    /// A reading that is not believed.
    ahead: Option<Ahead>,
    /// When a clock was last seen to jump, either way.
    jumped_at: Option<i64>,
    /// When the store's clock was last seen to be set back.
    set_back_at: Option<i64>,
    /// This machine's own wall clock, as an offset.
    wall: Option<i64>,
}

/// A clock ahead of the believed time.
#[derive(Clone, Copy)]
struct Ahead {
    /// The offset when it was first seen ahead: a clock that moves away from it is not steady.
    first: i64,
    /// The offset when last seen.
    last: i64,
    since: i64,
}

/// A process's belief, as kept in the store: the boot id of its machine, the store's time minus the time
/// since that boot, the believed time, and when a clock jumped.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    boot_id: String,
    offset: i64,
    believed: i64,
    jumped_at: Option<i64>,
}

impl Mark {
    const VERSION: &str = "1";

    fn write(&self) -> String {
        let Self {
            boot_id,
            offset,
            believed,
            jumped_at,
        } = self;
        let jumped = jumped_at.map_or_else(|| "-".to_owned(), |at| at.to_string());
        format!("{} {boot_id} {offset} {believed} {jumped}", Self::VERSION)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut words = text.split(' ');
        let mut next = || words.next();
        (next()? == Self::VERSION).then_some(())?;
        Some(Self {
            boot_id: next()?.to_owned(),
            offset: next()?.parse().ok()?,
            believed: next()?.parse().ok()?,
            jumped_at: match next()? {
                "-" => None,
                at => Some(at.parse().ok()?),
            },
        })
    }
}

impl StoreClock {
    pub(super) fn new(clock: Clock, steady_for: Duration) -> Self {
        Self {
            boot_id: clock.boot_id(),
            began_at: millis(clock.moment().since_boot()),
            has_looked: AtomicBool::new(false),
            clock,
            state: Mutex::default(),
            steady_for: AtomicU64::new(unsigned_millis(steady_for)),
        }
    }

    /// Local time, to be read before a call to the store.
    pub(super) fn moment(&self) -> Moment {
        self.clock.moment()
    }

    /// Learns how long a release under `policy` waits. Nothing is released by a clock that has been steady
    /// for less than that: whatever became unknown before a jump has then really waited that long.
    pub(super) fn learn(&self, policy: &Policy) {
        let Some(reconcile) = &policy.reconcile else {
            return;
        };
        let bound = reconcile.upstream_max_execution.unwrap_or_default();
        let waits = policy.lease + bound + reconcile.negative_gap;
        self.steady_for
            .fetch_max(unsigned_millis(waits), Ordering::Relaxed);
    }

    /// The time to believe when the store, called at `asked`, says that it is `now`. Must see every reply, so
    /// that no jump is missed.
    pub(super) fn hear(&self, asked: Moment, now: Timestamp) -> Timestamp {
        let heard = self.clock.moment();
        let mut state = self.state.lock();
        self.watch_wall(&mut state, heard);
        let (asked, boot) = (millis(asked.since_boot()), millis(heard.since_boot()));
        // The store read its clock at some time between the two: a reply may be delayed for hours.
        let (least, most) = (now.0.saturating_sub(boot), now.0.saturating_sub(asked));
        let Some(believed) = state.offset else {
            state.settle(least, boot);
            return now;
        };
        if state.is_hearsay {
            state.is_hearsay = false;
            if least <= believed.saturating_add(millis(OTHERS_MARK_HOLDS)) {
                state.most = state.most.max(least);
            }
        }
        if least > state.most {
            return self.not_believed(&mut state, least, boot, now);
        }
        if most < believed.saturating_sub(millis(TOLERANCE)) {
            Background::ClockJump.count(1);
            tracing::error!("the store's clock was set back: nothing is released for a while");
            state.jumped_at = Some(boot);
            state.set_back_at = Some(boot);
            state.settle(least, boot);
            return now;
        }
        if state.ahead.take().is_some() {
            tracing::info!("the store's clock is where it should be again");
            // Records written in the meantime have times far ahead.
            state.set_back_at = Some(boot);
        }
        let offset = believed.clamp(least, most.max(least));
        state.offset = Some(offset);
        state.most = state.most.min(offset.saturating_add(millis(TOLERANCE)));
        if boot.saturating_sub(state.anchored_at) >= millis(ANCHORED_FOR) {
            state.settle(offset, boot);
        }
        now
    }

    fn not_believed(&self, state: &mut State, offset: i64, boot: i64, now: Timestamp) -> Timestamp {
        let is_there = |ahead: &Ahead| ahead.first.abs_diff(offset) <= TOLERANCE.as_millis() as u64;
        let since = match state.ahead.as_mut().filter(|ahead| is_there(ahead)) {
            Some(ahead) => {
                ahead.last = offset;
                ahead.since
            }
            None => {
                let before = state.ahead.map_or(offset, |ahead| ahead.last);
                if offset < before.saturating_sub(millis(TOLERANCE)) {
                    state.set_back_at = Some(boot);
                }
                Background::ClockJump.count(1);
                tracing::error!(
                    "the store's clock is ahead of the time that went by here: nothing expires and \
                     nothing is released by it until it has been steady for a while"
                );
                state.ahead = Some(Ahead {
                    first: offset,
                    last: offset,
                    since: boot,
                });
                state.jumped_at = Some(boot);
                boot
            }
        };
        if boot.saturating_sub(since) >= self.steady_for() {
            tracing::warn!("the store's clock has been steady since it jumped: it is believed");
            state.settle(offset, boot);
            return now;
        }
        Timestamp(boot.saturating_add(state.offset.unwrap_or(offset)))
    }

    fn watch_wall(&self, state: &mut State, heard: Moment) {
        let wall = millis(heard.since_1970()) - millis(heard.since_boot());
        let jumps = |before: i64| before.abs_diff(wall) > WALL_TOLERANCE.as_millis() as u64;
        if state.wall.is_some_and(jumps) {
            Background::ClockJump.count(1);
            tracing::error!("this machine's clock jumped: nothing expires for a while");
            state.jumped_at = Some(millis(heard.since_boot()));
        }
        state.wall = Some(wall);
    }

    /// Whether no clock is known to have jumped recently.
    pub(crate) fn is_steady(&self) -> bool {
        let boot = millis(self.clock.moment().since_boot());
        let state = self.state.lock();
        state.ahead.is_none() && self.is_long_ago(state.jumped_at, boot)
    }

    fn is_long_ago(&self, at: Option<i64>, boot: i64) -> bool {
        at.is_none_or(|at| boot.saturating_sub(at) >= self.steady_for())
    }

    /// The time by which to judge a lease of this length, if `believed` is believed. A living executor renews
    /// its lease within that length, by whatever clock the store has. After that long a lapsed lease is
    /// really lapsed, and no key stays in progress for as long as a clock takes to prove steady.
    pub(super) fn lease_time(&self, lease: Duration, believed: Timestamp) -> Timestamp {
        let boot = millis(self.clock.moment().since_boot());
        match self.state.lock().ahead {
            Some(ahead) if boot.saturating_sub(ahead.since) > millis(lease) => {
                Timestamp(boot.saturating_add(ahead.last))
            }
            _ => believed,
        }
    }

    /// Whether the store's clock may have been set back, at least `ago` ago and not much longer. It may have
    /// happened unseen before this process began, so this holds once for each process.
    pub(super) fn may_have_been_set_back(&self, ago: Duration) -> bool {
        let boot = millis(self.clock.moment().since_boot());
        let state = *self.state.lock();
        // If the store is ahead of the believed time, its leases are judged by its own time: see
        // `lease_time`.
        let is_told = |ahead: Ahead| boot.saturating_sub(ahead.since) > millis(ago);
        if !state.ahead.is_none_or(is_told) {
            return false;
        }
        let was_seen = state.set_back_at.is_some_and(|since| {
            let passed = boot.saturating_sub(since);
            passed >= millis(ago) && passed < 2 * millis(ago) + self.steady_for()
        });
        let lived = boot.saturating_sub(self.began_at);
        was_seen || (lived >= millis(ago) && !self.has_looked.load(Ordering::Relaxed))
    }

    /// Notes that leases far ahead have been searched for.
    pub(super) fn has_looked(&self) {
        self.has_looked.store(true, Ordering::Relaxed);
    }

    /// The mark to keep in the store; `None` before the first reply.
    fn mark(&self) -> Option<Mark> {
        let boot = millis(self.clock.moment().since_boot());
        let state = *self.state.lock();
        let offset = state.offset.filter(|_| !state.is_hearsay)?;
        Some(Mark {
            boot_id: self.boot_id.clone(),
            offset,
            believed: boot.saturating_add(offset),
            jumped_at: state.jumped_at,
        })
    }

    /// Continues from `mark`, discarding earlier replies.
    fn recall(&self, mark: &Mark) {
        let boot = millis(self.clock.moment().since_boot());
        let mut state = self.state.lock();
        if mark.boot_id == self.boot_id && !mark.boot_id.is_empty() {
            state.settle(mark.offset, boot);
            state.jumped_at = mark.jumped_at.filter(|at| *at <= boot);
        } else {
            // The time elapsed since the mark is not known: assume none.
            state.settle(mark.believed.saturating_sub(boot), boot);
            state.is_hearsay = true;
        }
    }

    fn steady_for(&self) -> i64 {
        i64::try_from(self.steady_for.load(Ordering::Relaxed)).unwrap_or(i64::MAX)
    }
}

impl State {
    /// Believes `offset` from `boot` on.
    fn settle(&mut self, offset: i64, boot: i64) {
        self.offset = Some(offset);
        self.most = offset.saturating_add(millis(TOLERANCE));
        self.anchored_at = boot;
        self.ahead = None;
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

fn unsigned_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Engine {
    /// The store's clock, as far as it is believed.
    pub(crate) fn store_clock(&self) -> &StoreClock {
        &self.0.store_clock
    }

    /// Loads the last belief about the store's clock, once, before anything is decided by it, and leaves a
    /// mark. The mark precedes the first reservation, so that a process killed before its loops have run
    /// leaves no lease that a clock set back in the meantime would keep for ever.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be reached or written.
    pub(crate) async fn recall_time(&self) -> Result<(), StoreError> {
        let recalled = self.0.recalled.get_or_try_init(|| async {
            let noted = self.bounded_read(self.0.store.noted_clock()).await?;
            if let Some(bytes) = noted {
                match Mark::read(&bytes) {
                    Some(mark) => self.store_clock().recall(&mark),
                    None => tracing::warn!("what the store keeps of its clock cannot be read"),
                }
            }
            self.leave_mark().await
        });
        recalled.await.copied()
    }

    /// Saves the belief about the store's clock in the store, for processes started after a jump. The
    /// background loops call this.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be written.
    pub async fn note_time(&self) -> Result<(), StoreError> {
        self.recall_time().await?;
        self.leave_mark().await
    }

    async fn leave_mark(&self) -> Result<(), StoreError> {
        self.store_now().await?;
        let Some(mark) = self.store_clock().mark() else {
            return Ok(());
        };
        let bytes = mark.write().into_bytes();
        self.bounded_read(self.0.store.note_clock(&bytes)).await
    }
}

#[cfg(test)]
mod tests;
