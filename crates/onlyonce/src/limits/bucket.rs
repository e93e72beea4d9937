//! A token bucket after the generic cell rate algorithm, which stores a single time.
//!
//! Written here because a token must be returned when the key turns out to exist, which the usual crate for
//! this cannot do.

use std::time::Duration;

/// How fast tokens arrive, and how many a bucket holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Nanoseconds until the next token.
    interval: u64,
    /// Tokens that a full bucket holds.
    burst: u32,
}

impl Rate {
    /// `count` tokens a second; a full bucket holds `burst`. Both are at least one.
    pub fn per_second(count: u32, burst: u32) -> Self {
        Self {
            interval: 1_000_000_000 / u64::from(count.max(1)),
            burst: burst.max(1),
        }
    }

    /// One token every `interval`; a full bucket holds `burst`.
    pub fn every(interval: Duration, burst: u32) -> Self {
        Self {
            interval: u64::try_from(interval.as_nanos())
                .unwrap_or(u64::MAX)
                .max(1),
            burst: burst.max(1),
        }
    }

    fn full(self) -> u64 {
        self.interval.saturating_mul(u64::from(self.burst))
    }
}

/// A bucket; a new one is full. Times count from any fixed moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// The time, in nanoseconds, at which the bucket will be full again.
    full_at: u64,
}

impl Bucket {
    /// Takes a token.
    ///
    /// # Errors
    /// The time until the next token, if there is none.
    pub fn take(&mut self, rate: Rate, now: Duration) -> Result<(), Duration> {
        let now = nanos(now);
        let full_at = self.full_at.max(now).saturating_add(rate.interval);
        let over = (full_at - now).saturating_sub(rate.full());
        if over > 0 {
            return Err(Duration::from_nanos(over));
        }
        self.full_at = full_at;
        Ok(())
    }

    /// Returns an unused token.
    pub fn give_back(&mut self, rate: Rate) {
        self.full_at = self.full_at.saturating_sub(rate.interval);
    }

    /// Whether the bucket is full, and so no different from a new one.
    pub fn is_full(&self, now: Duration) -> bool {
        self.full_at <= nanos(now)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn a_burst_then_the_rate() {
        let rate = Rate::per_second(10, 3);
        let mut bucket = Bucket::default();
        for _ in 0..3 {
            assert_eq!(bucket.take(rate, ms(5_000)), Ok(()));
        }
        assert_eq!(bucket.take(rate, ms(5_000)), Err(ms(100)));
        assert_eq!(bucket.take(rate, ms(5_050)), Err(ms(50)));
        assert_eq!(bucket.take(rate, ms(5_100)), Ok(()));
        assert_eq!(bucket.take(rate, ms(5_100)), Err(ms(100)));
    }

    #[test]
    fn a_token_that_was_given_back_can_be_taken_again() {
        let rate = Rate::per_second(1, 1);
        let mut bucket = Bucket::default();
        for _ in 0..100 {
            assert_eq!(bucket.take(rate, ms(0)), Ok(()));
            bucket.give_back(rate);
        }
        assert_eq!(bucket.take(rate, ms(0)), Ok(()));
        assert_eq!(bucket.take(rate, ms(0)), Err(ms(1_000)));
    }

    #[test]
    fn giving_back_late_makes_no_more_than_a_full_bucket() {
        let rate = Rate::per_second(1, 2);
        let mut bucket = Bucket::default();
        assert_eq!(bucket.take(rate, ms(0)), Ok(()));
        bucket.give_back(rate);
        bucket.give_back(rate);
        assert_eq!(bucket.take(rate, ms(60_000)), Ok(()));
        assert_eq!(bucket.take(rate, ms(60_000)), Ok(()));
        assert_eq!(bucket.take(rate, ms(60_000)), Err(ms(1_000)));
    }
}
