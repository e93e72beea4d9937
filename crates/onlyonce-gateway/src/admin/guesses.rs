//! How often a wrong token may be tried.
//!
//! Each address has a few tries at once and then one every few seconds; beyond that it is told to wait, and
//! its token is not looked at, so that a right one tells a guesser nothing. When many addresses guess, those
//! that are wrong are answered late. Nobody else is held up: a right token from another address gets in.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use onlyonce::limits::{Bucket, Rate};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Wrong tokens of one address at once.
const AT_ONCE: u32 = 20;
/// The time until one more is allowed.
const ONE_EVERY: Duration = Duration::from_secs(5);
/// Wrong tokens of everybody at once, before they are answered late.
const ALL_AT_ONCE: u32 = 100;
/// The time until one more is answered as soon as it comes.
const ALL_ONE_EVERY: Duration = Duration::from_millis(100);
/// How late.
const LATE: Duration = Duration::from_secs(1);
/// Addresses that are remembered; further ones are only counted with everybody.
const MAX_ADDRESSES: usize = 10_000;
/// The part of an IPv6 address that names a network.
const NETWORK: u128 = !0 << 64;

/// The wrong tokens of this process.
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

/// Why a token that was tried is not one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// It was looked at. The answer waits for so long.
    Token(Duration),
    /// It was not looked at. There is another try after so long.
    TooMany(Duration),
}

impl Guesses {
    /// What `look` finds behind a token from `peer`, if it may be tried.
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
            // Taken before anything is looked at, so that tries at the same moment count each other.
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

/// Whoever has an IPv6 address has a network of them.
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
