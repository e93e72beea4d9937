//! Rate limit on wrong admin tokens.
//!
//! Each address has a burst of tries and then one every few seconds. Beyond that the address must wait and
//! its token is not checked, so that a guesser learns nothing even from a right token. When many addresses
//! guess, wrong tokens are answered late. Nobody else is delayed: right tokens from other addresses get in.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use onlyonce::limits::{Bucket, Rate};
use parking_lot::Mutex;
use tokio::time::Instant;

/// The burst of wrong tokens from one address.
const AT_ONCE: u32 = 20;
/// The time until one address has one more try.
const ONE_EVERY: Duration = Duration::from_secs(5);
/// The burst of wrong tokens from all addresses, before answers are delayed.
const ALL_AT_ONCE: u32 = 100;
/// The time until one more wrong token is answered without delay.
const ALL_ONE_EVERY: Duration = Duration::from_millis(100);
/// The delay.
const LATE: Duration = Duration::from_secs(1);
/// The most addresses remembered; further ones only count towards the total.
const MAX_ADDRESSES: usize = 10_000;
/// The network part of an IPv6 address.
const NETWORK: u128 = !0 << 64;

/// The wrong tokens seen by this process.
pub(super) struct Guesses {
    began: Instant,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    addresses: HashMap<IpAddr, Bucket>,
    all: Bucket,
}

impl Default for Guesses {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            book: Mutex::default(),
        }
    }
}

/// Why a token is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// The token was checked and is wrong. Answer after this delay.
    Token(Duration),
    /// The token was not checked. The next try is possible after this time.
    TooMany(Duration),
}

impl Guesses {
    /// Calls `look` to check a token from `peer`, if the peer has a try left.
    pub(super) fn try_one<T>(
        &self,
        peer: IpAddr,
        look: impl FnOnce() -> Option<T>,
    ) -> Result<T, Wrong> {
        let (one, all) = (
            Rate::every(ONE_EVERY, AT_ONCE),
            Rate::every(ALL_ONE_EVERY, ALL_AT_ONCE),
        );
        let peer = network(peer);
        let now = self.began.elapsed();
        let mut book = self.book.lock();
        if let Some(bucket) = book.line(peer, now) {
            // Taken before the check, so that simultaneous tries count each other.
            bucket.take(one, now).map_err(Wrong::TooMany)?;
        }
        let Some(found) = look() else {
            let late = book.all.take(all, now).is_err();
            return Err(Wrong::Token(if late { LATE } else { Duration::ZERO }));
        };
        if let Some(bucket) = book.addresses.get_mut(&peer) {
            bucket.give_back(one);
            if bucket.is_full(now) {
                book.addresses.remove(&peer);
            }
        }
        Ok(found)
    }
}

impl Book {
    fn line(&mut self, peer: IpAddr, now: Duration) -> Option<&mut Bucket> {
        let is_known = self.addresses.contains_key(&peer);
        if !is_known && self.addresses.len() >= MAX_ADDRESSES {
            self.addresses.retain(|_, bucket| !bucket.is_full(now));
            if self.addresses.len() >= MAX_ADDRESSES {
                return None;
            }
        }
        Some(self.addresses.entry(peer).or_default())
    }
}

/// Reduces an IPv6 address to its network, since a client can use any address in it.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUESSER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn wrong(guesses: &Guesses, peer: IpAddr) -> Wrong {
        guesses.try_one(peer, || None::<()>).unwrap_err()
    }

    #[tokio::test(start_paused = true)]
    async fn guesses_are_slowed_down_and_nobody_else_is() {
        let guesses = Guesses::default();
        for _ in 0..AT_ONCE {
            assert_eq!(wrong(&guesses, GUESSER), Wrong::Token(Duration::ZERO));
        }
        assert_eq!(wrong(&guesses, GUESSER), Wrong::TooMany(ONE_EVERY));
        // Not even the right one is looked at.
        let right = guesses.try_one(GUESSER, || Some(()));
        assert_eq!(right, Err(Wrong::TooMany(ONE_EVERY)));
        let other = IpAddr::from([10, 0, 0, 2]);
        for _ in 0..10 * AT_ONCE {
            assert_eq!(guesses.try_one(other, || Some(())), Ok(()));
        }
        tokio::time::advance(ONE_EVERY).await;
        assert_eq!(guesses.try_one(GUESSER, || Some(())), Ok(()));
        assert_eq!(wrong(&guesses, GUESSER), Wrong::Token(Duration::ZERO));
        assert_eq!(wrong(&guesses, GUESSER), Wrong::TooMany(ONE_EVERY));
    }

    #[tokio::test(start_paused = true)]
    async fn many_addresses_are_answered_late_and_bounded() {
        let guesses = Guesses::default();
        let address = |number: u32| IpAddr::from(number.to_be_bytes());
        for number in 0..ALL_AT_ONCE {
            let answered = wrong(&guesses, address(number));
            assert_eq!(answered, Wrong::Token(Duration::ZERO));
        }
        for number in 0..2 * u32::try_from(MAX_ADDRESSES).unwrap() {
            assert_eq!(wrong(&guesses, address(1_000 + number)), Wrong::Token(LATE));
        }
        assert!(guesses.book.lock().addresses.len() <= MAX_ADDRESSES);
        assert_eq!(guesses.try_one(GUESSER, || Some(())), Ok(()));
    }

    #[test]
    fn a_network_is_one_guesser() {
        let one: IpAddr = "2001:db8::1".parse().unwrap();
        let other: IpAddr = "2001:db8::ffff:1".parse().unwrap();
        assert_eq!(network(one), network(other));
        let elsewhere: IpAddr = "2001:db8:0:1::1".parse().unwrap();
        assert_ne!(network(one), network(elsewhere));
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(network(mapped), GUESSER);
    }
}
