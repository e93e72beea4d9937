//! Limits how many keys of a client are in progress. Unknown keys raise alarms but are not limited.
//!
//! The store knows the count. Its answer is used for a moment, plus the keys that this process has begun
//! since. That sum can only be too high, since some of those keys have ended: when it reaches the limit, the
//! store is asked again. If the store itself says that the limit is reached, that is believed for a moment,
//! so that a client at its limit costs no more than others.

use std::{sync::Arc, time::Duration};

use onlyonce_core::{CallerMark, Scope};
use onlyonce_store::{Store, StoreError};
use parking_lot::Mutex;

use super::clients::Clients;

/// How long an answer of the store is used while the client is below its limit. Other nodes may create keys
/// meanwhile.
const HOLDS: Duration = Duration::from_secs(1);
/// How long it is used once the client has reached its limit.
const REFUSAL_HOLDS: Duration = Duration::from_millis(100);

/// How often the store is asked about one request, at most.
const MAX_COUNTS: usize = 20;
/// The pause between two such queries: about as long as a write takes.
const COUNT_AGAIN_AFTER: Duration = Duration::from_millis(5);

type Whose = (Scope, Option<CallerMark>);

/// The live keys of every client that brings new ones.
#[derive(Default)]
pub(crate) struct LiveKeys(Clients<Whose, Arc<Line>>);

#[derive(Default)]
struct Line {
    known: Mutex<Known>,
    /// One request asks at a time; the others wait for its answer.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Clone, Copy, Default)]
struct Known {
    /// The store's count.
    counted: u64,
    /// When the store counted.
    at: Option<Duration>,
    /// Keys begun here since then, including those being written.
    begun: u64,
    /// Keys being written: the store may or may not have counted them.
    pending: u64,
}

impl Known {
    fn is_younger(&self, than: Duration, now: Duration) -> bool {
        self.at.is_some_and(|at| now.saturating_sub(at) < than)
    }

    fn has_room(&self, limit: u64) -> bool {
        self.counted.saturating_add(self.begun) < limit
    }
}

/// A place for a live key about to be created. Dropping it returns the place, unless it was used.
pub(crate) struct LivePlace {
    line: Arc<Line>,
    used: bool,
}

impl LivePlace {
    /// Keeps the place: the key was created.
    pub(crate) fn used(mut self) {
        self.used = true;
    }
}

impl Drop for LivePlace {
    fn drop(&mut self) {
        let mut known = self.line.known.lock();
        known.pending = known.pending.saturating_sub(1);
        if !self.used {
            known.begun = known.begun.saturating_sub(1);
        }
    }
}

impl LiveKeys {
    /// A place for one more live key; `None` if the client has `limit` of them. `now` is read again after
    /// waiting.
    ///
    /// # Errors
    /// Any error of the store, if it has to be asked.
    pub(crate) async fn place(
        &self,
        store: &dyn Store,
        (scope, caller): (&Scope, Option<CallerMark>),
        limit: u64,
        now: impl Fn() -> Duration,
    ) -> Result<Option<LivePlace>, StoreError> {
        let line = self.line((scope.clone(), caller), now());
        if let Some(answer) = line.answer(limit, now()) {
            return Ok(answer);
        }
        let _one_asks = line.asking.lock().await;
        if let Some(answer) = line.answer(limit, now()) {
            return Ok(answer);
        }
        for _ in 0..MAX_COUNTS {
            let settled = {
                let known = line.known.lock();
                known.begun - known.pending
            };
            let counted = store.live(scope, caller, limit).await?;
            {
                let mut known = line.known.lock();
                known.counted = counted;
                known.at = Some(now());
                known.begun = known.begun.saturating_sub(settled);
            }
            // An answer that is already old is still used for this one request.
            let place = line.claim(limit);
            if place.is_some() || counted >= limit {
                return Ok(place);
            }
            // The store may have counted keys being written, which then count twice.
            tokio::time::sleep(COUNT_AGAIN_AFTER).await;
        }
        Ok(None)
    }

    fn line(&self, whose: Whose, now: Duration) -> Arc<Line> {
        let is_idle = |line: &Arc<Line>| {
            let known = line.known.lock();
            Arc::strong_count(line) == 1 && known.pending == 0 && !known.is_younger(HOLDS, now)
        };
        self.0.with(&whose, now, is_idle, |line| line.clone())
    }
}

impl Line {
    /// The answer, if what is known is recent enough.
    fn answer(self: &Arc<Self>, limit: u64, now: Duration) -> Option<Option<LivePlace>> {
        let known = *self.known.lock();
        if known.has_room(limit) {
            let is_young = known.is_younger(HOLDS, now);
            // Another request may have taken the last place since; then the store is asked.
            return is_young.then(|| self.claim(limit)).flatten().map(Some);
        }
        let is_full = known.counted.saturating_add(known.pending) >= limit;
        (is_full && known.is_younger(REFUSAL_HOLDS, now)).then_some(None)
    }

    fn claim(self: &Arc<Self>, limit: u64) -> Option<LivePlace> {
        let mut known = self.known.lock();
        if !known.has_room(limit) {
            return None;
        }
        known.begun += 1;
        known.pending += 1;
        Some(LivePlace {
            line: self.clone(),
            used: false,
        })
    }
}
