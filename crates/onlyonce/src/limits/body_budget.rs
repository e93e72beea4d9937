//! One budget for the bytes held for clients: request bodies being read or waiting to be sent, and answers
//! waiting to be taken.
//!
//! Nobody waits for room: a request that finds none is refused immediately, so no two bodies can wait for
//! each other. A holder of several bodies may have at most half of what is left, so that a single holder gets
//! a third, and all get less as the budget fills. Large bodies leave a part for small ones.
//!
//! Deliberately absent: bodies of up to [`UNCOUNTED_BYTES`]. They cost as little as their heads, are never
//! refused and take no lock.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::Holder;

/// The default budget for all clients together, in bytes.
pub const DEFAULT_HELD_BYTES: usize = 256 << 20;
/// The largest body that is not counted, in bytes.
pub const UNCOUNTED_BYTES: usize = 4 << 10;
/// A holder of several bodies may have this fraction (one part in so many) of what is left.
const PART_OF_THE_REST: usize = 2;
/// The largest body that may use all of the budget, in bytes.
const SMALL_BYTES: usize = 64 << 10;
/// Larger bodies leave this fraction (one part in so many) free.
const PART_FOR_SMALL: usize = 4;

/// How long the answer of an execution waits for room before its client is cut off.
const ROOM_WITHIN: Duration = Duration::from_secs(5);
/// How often it checks for room meanwhile.
const LOOK_FOR_ROOM_EVERY: Duration = Duration::from_millis(20);

/// There is no room for a body, in the whole budget or in its holder's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for the bytes of this client")]
pub struct NoRoom;

/// The budget of one engine.
#[derive(Clone)]
pub struct BodyBudget(Arc<Shared>);

struct Shared {
    limit: usize,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    total: usize,
    /// Bytes of executed answers that are waiting for room, besides the total.
    waiting: usize,
    holders: HashMap<Holder, usize>,
}

impl std::fmt::Debug for BodyBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BodyBudget")
            .field("limit", &self.0.limit)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Whether a body of `bytes` fits that would make the total `total`, if its holder has `others` besides.
    fn has_room(&self, total: usize, others: usize, bytes: usize) -> bool {
        // If nothing else is held, every body fits: no body is permanently too large.
        if total == bytes {
            return true;
        }
        let ceiling = match bytes <= SMALL_BYTES {
            true => self.limit,
            false => self.limit - self.limit / PART_FOR_SMALL,
        };
        let left = ceiling.checked_sub(total);
        left.is_some_and(|left| others == 0 || others + bytes <= left / PART_OF_THE_REST)
    }
}

impl BodyBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Shared {
            limit,
            book: Mutex::default(),
        }))
    }

    /// The account of one body, which holds nothing yet.
    pub fn account(&self, holder: Option<Holder>) -> Held {
        Held {
            budget: self.clone(),
            holder,
            bytes: 0,
        }
    }

    /// The same bytes, counted until the last reference is dropped.
    ///
    /// # Errors
    /// [`NoRoom`]; then nothing is counted.
    pub fn hold(&self, holder: Option<Holder>, bytes: Bytes) -> Result<Bytes, NoRoom> {
        let mut held = self.account(holder);
        held.grow(bytes.len())?;
        Ok(held.keep(bytes))
    }

    /// The bytes held now.
    pub fn held(&self) -> usize {
        let book = self.0.book.lock();
        book.total + book.waiting
    }

    /// Whether the budget is exceeded without the `own` bytes of whoever asks: further executions could only
    /// add to it.
    pub fn is_exceeded_without(&self, own: usize) -> bool {
        self.held().saturating_sub(own) > self.0.limit
    }
}

/// The share of the budget that one body takes. Dropping it returns the share.
#[derive(Debug)]
pub struct Held {
    budget: BodyBudget,
    holder: Option<Holder>,
    bytes: usize,
}

impl Held {
    /// Counts `bytes` for this body instead of its previous count: the size it occupies, not its length.
    ///
    /// # Errors
    /// [`NoRoom`]; then the previous count stands.
    pub fn grow(&mut self, bytes: usize) -> Result<(), NoRoom> {
        if bytes <= UNCOUNTED_BYTES || bytes <= self.bytes {
            return Ok(());
        }
        let shared = self.budget.0.clone();
        let mut book = shared.book.lock();
        let others = book.of(self.holder.as_ref()).saturating_sub(self.bytes);
        let total = book.total - self.bytes + bytes;
        if !shared.has_room(total, others, bytes) {
            return Err(NoRoom);
        }
        self.count(&mut book, bytes);
        Ok(())
    }

    /// Counts `bytes` whether or not there is room: an executed answer is never dropped for lack of room.
    /// Others find less.
    pub fn grow_anyway(&mut self, bytes: usize) {
        if bytes > UNCOUNTED_BYTES && bytes > self.bytes {
            let shared = self.budget.0.clone();
            self.count(&mut shared.book.lock(), bytes);
        }
    }

    /// Whether this body, which was counted regardless, may stay while its client is slow. If others have
    /// taken the room it waits for a few seconds, since most clients take their answers immediately. It does
    /// not wait for a client that has not taken its own other answers.
    pub async fn may_stay(&mut self) -> bool {
        let bytes = self.bytes;
        if bytes == 0 {
            return true;
        }
        let shared = self.budget.0.clone();
        {
            let mut book = shared.book.lock();
            let others = book.of(self.holder.as_ref()).saturating_sub(bytes);
            if shared.has_room(book.total, others, bytes) {
                return true;
            }
            self.count(&mut book, 0);
            if others > 0 || book.waiting + bytes > shared.limit {
                return false;
            }
            book.waiting += bytes;
        }
        let _waiting = Waiting {
            shared: &shared,
            bytes,
        };
        let end = Instant::now() + ROOM_WITHIN;
        while self.grow(bytes).is_err() {
            if Instant::now() >= end {
                return false;
            }
            sleep(LOOK_FOR_ROOM_EVERY).await;
        }
        true
    }

    /// The same bytes, which keep their share until the last reference is dropped.
    pub fn keep(mut self, bytes: Bytes) -> Bytes {
        if self.bytes == 0 {
            return bytes;
        }
        if bytes.len() < self.bytes {
            let shared = self.budget.0.clone();
            self.count(&mut shared.book.lock(), bytes.len());
        }
        Bytes::from_owner(Kept { bytes, _held: self })
    }

    fn count(&mut self, book: &mut Book, bytes: usize) {
        book.change(self.holder.as_ref(), self.bytes, bytes);
        self.bytes = bytes;
    }
}

/// Counts bytes that are waiting for room while it lives.
struct Waiting<'a> {
    shared: &'a Shared,
    bytes: usize,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.shared.book.lock().waiting -= self.bytes;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let book = &self.budget.0.book;
            book.lock().change(self.holder.as_ref(), self.bytes, 0);
        }
    }
}

impl Book {
    fn of(&self, holder: Option<&Holder>) -> usize {
        let held = holder.and_then(|holder| self.holders.get(holder));
        held.copied().unwrap_or(0)
    }

    fn change(&mut self, holder: Option<&Holder>, before: usize, after: usize) {
        self.total = self.total - before + after;
        let Some(holder) = holder else { return };
        let all = self.of(Some(holder)) - before + after;
        // A holder of nothing leaves no entry behind.
        match all {
            0 => drop(self.holders.remove(holder)),
            _ => drop(self.holders.insert(holder.clone(), all)),
        }
    }
}

struct Kept {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::{super::ConnectionId, *};

    const MIB: usize = 1 << 20;

    fn one() -> Option<Holder> {
        Some(Holder::Connection(ConnectionId::unique()))
    }

    /// As many bodies of `size` as `holder` is given.
    fn take_all(budget: &BodyBudget, holder: Option<&Holder>, size: usize) -> Vec<Bytes> {
        let body = Bytes::from(vec![0; size]);
        std::iter::from_fn(|| budget.hold(holder.cloned(), body.clone()).ok()).collect()
    }

    #[test]
    fn one_holder_gets_a_part_and_many_leave_room_for_small_bodies() {
        let budget = BodyBudget::new(64 * MIB);
        let greedy = take_all(&budget, one().as_ref(), MIB);
        assert_eq!(budget.held(), 16 * MIB, "a quarter");
        let mut crowd: Vec<Vec<Bytes>> = Vec::new();
        for _ in 0..200 {
            crowd.push(take_all(&budget, one().as_ref(), MIB));
        }
        assert_eq!(budget.held(), 48 * MIB);
        let small = take_all(&budget, one().as_ref(), SMALL_BYTES);
        assert!(small.len() > 50, "{} small bodies", small.len());
        drop((greedy, crowd, small));
        assert_eq!(budget.held(), 0);
        assert!(budget.0.book.lock().holders.is_empty());
    }

    #[test]
    fn small_bodies_are_not_counted_and_never_refused() {
        let budget = BodyBudget::new(0);
        let holder = one();
        // With something else there, since what is alone has room.
        let mut other = budget.account(one());
        other.grow_anyway(UNCOUNTED_BYTES + 1);
        let small = Bytes::from(vec![0; UNCOUNTED_BYTES]);
        assert!(budget.hold(holder.clone(), small).is_ok());
        let counted = Bytes::from(vec![0; UNCOUNTED_BYTES + 1]);
        assert_eq!(budget.hold(holder, counted), Err(NoRoom));
        drop(other);
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn the_only_body_of_its_holder_may_be_large() {
        let budget = BodyBudget::new(8 * MIB);
        let (first, second) = (one(), one());
        let large = Bytes::from(vec![0; 5 * MIB]);
        let held = budget.hold(first.clone(), large).unwrap();
        let body = Bytes::from(vec![0; MIB]);
        assert_eq!(budget.hold(first, body.clone()), Err(NoRoom));
        assert!(budget.hold(second, body).is_ok());
        drop(held);
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn what_is_counted_is_what_is_occupied_and_all_of_it_comes_back() {
        let budget = BodyBudget::new(8 * MIB);
        let mut other = budget.account(one());
        other.grow(MIB).unwrap();
        let mut held = budget.account(one());
        held.grow(64 << 10).unwrap();
        held.grow(MIB).unwrap();
        assert_eq!(held.grow(7 * MIB), Err(NoRoom));
        assert_eq!(budget.held(), 2 * MIB, "a refusal changes nothing");
        drop(other);
        let mut kept = held.keep(Bytes::from(vec![0; 600 << 10]));
        assert_eq!(budget.held(), 600 << 10, "the surplus goes back");
        let part = kept.split_to(1);
        drop(kept);
        assert_eq!(budget.held(), 600 << 10, "a part holds the whole");
        drop(part);
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_executed_is_counted_anyway_and_waits_beyond_the_share() {
        let budget = BodyBudget::new(8 * MIB);
        let holder = one();
        let executed = |holder: Option<Holder>, bytes| {
            let mut held = budget.account(holder);
            held.grow_anyway(bytes);
            held
        };
        let mut answers: Vec<Held> = (0..12).map(|_| executed(holder.clone(), MIB)).collect();
        assert_eq!(budget.held(), 12 * MIB);
        assert!(budget.is_exceeded_without(0));
        // A client that takes none of its answers is not waited for.
        let began = Instant::now();
        let mut own = answers.pop().unwrap();
        assert!(!own.may_stay().await);
        assert_eq!(began.elapsed(), Duration::ZERO);
        // The only answer of another waits for room, in vain while nobody makes any.
        let mut other = executed(one(), 4 * MIB);
        assert!(!other.may_stay().await);
        assert_eq!(began.elapsed(), ROOM_WITHIN);
        assert_eq!(budget.held(), 11 * MIB, "both have stepped back");
        let mut other = executed(one(), 4 * MIB);
        let taken = async {
            sleep(ROOM_WITHIN / 2).await;
            answers.clear();
        };
        let (stays, ()) = tokio::join!(other.may_stay(), taken);
        assert!(stays, "there is room once others have taken theirs");
        drop(other);
        assert_eq!(budget.held(), 0);
        assert!(!budget.is_exceeded_without(0));
    }

    /// However large it is: nothing else could ever be made of it.
    #[tokio::test(start_paused = true)]
    async fn what_is_alone_has_room() {
        let budget = BodyBudget::new(MIB);
        let large = Bytes::from(vec![0; 2 * MIB]);
        let held = budget.hold(one(), large.clone()).unwrap();
        assert_eq!(budget.hold(one(), large.clone()), Err(NoRoom));
        drop(held);
        let mut executed = budget.account(one());
        executed.grow_anyway(2 * MIB);
        assert!(executed.may_stay().await);
    }
}
