//! The source of attempt ids: the system's random source, or a seed, so that a simulation can be repeated.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use onlyonce_core::AttemptId;

/// Makes attempt ids. Ids of one source are unique, and so are ids of several random sources.
#[derive(Clone, Debug, Default)]
pub struct AttemptIds(Option<Arc<AtomicU64>>);

impl AttemptIds {
    /// 128 bits from the system's random source.
    pub fn random() -> Self {
        Self(None)
    }

    /// The same ids in the same order for the same seed. For simulations, never for production: two processes
    /// with one seed would take each other's attempts for their own.
    pub fn seeded(seed: u64) -> Self {
        Self(Some(Arc::new(AtomicU64::new(seed))))
    }

    /// An unused id.
    pub(crate) fn fresh(&self) -> AttemptId {
        let Some(state) = &self.0 else {
            return AttemptId(POOL.with_borrow_mut(Pool::next));
        };
        let (high, low) = (mixed(step(state)), mixed(step(state)));
        AttemptId(u128::from(high) << 64 | u128::from(low))
    }
}

impl super::Engine {
    /// An unused id.
    pub(crate) fn fresh_attempt(&self) -> AttemptId {
        self.0.options.attempt_ids.fresh()
    }
}

thread_local! {
    // Asking the source costs the same for one id as for many.
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; POOLED_BYTES], used: POOLED_BYTES }) };
}

/// Random bytes that a thread obtained at once, and how many of them are used up.
struct Pool {
    bytes: [u8; POOLED_BYTES],
    used: usize,
}

/// 32 ids.
const POOLED_BYTES: usize = 512;

impl Pool {
    fn next(&mut self) -> u128 {
        if self.used == POOLED_BYTES {
            aws_lc_rs::rand::fill(&mut self.bytes)
                .expect("the system's random source does not fail on Linux");
            self.used = 0;
        }
        let mut id = [0; 16];
        let taken = &mut self.bytes[self.used..][..id.len()];
        // Ids that were given out are not kept.
        id.swap_with_slice(taken);
        self.used += id.len();
        u128::from_be_bytes(id)
    }
}

/// The increment of splitmix64: odd, so that all 2^64 states are visited.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn step(state: &AtomicU64) -> u64 {
    state.fetch_add(STEP, Ordering::SeqCst).wrapping_add(STEP)
}

fn mixed(state: u64) -> u64 {
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_chance_does_not() {
        let ids = |source: &AttemptIds| (0..100).map(|_| source.fresh()).collect::<Vec<_>>();
        let seeded = ids(&AttemptIds::seeded(7));
        assert_eq!(seeded, ids(&AttemptIds::seeded(7)));
        assert_ne!(seeded, ids(&AttemptIds::seeded(8)));
        assert!(
            seeded
                .iter()
                .all(|id| seeded.iter().filter(|other| *other == id).count() == 1)
        );
        assert_ne!(ids(&AttemptIds::random()), ids(&AttemptIds::random()));
    }
}
