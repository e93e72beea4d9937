//! Chance from a seed (splitmix64): the same seed gives the same world.

/// A source of numbers.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From `low` up to, but not including, `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low < high, "there is something to choose from");
        low + self.number() % (high - low)
    }

    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.between(0, length as u64)).expect("an index fits")
    }

    pub fn percent(&mut self, often: u64) -> bool {
        self.between(0, 100) < often
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }
}
