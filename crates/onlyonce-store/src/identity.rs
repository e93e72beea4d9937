//! The identity and the epoch of a store: what a gateway remembers of its store, in order to recognise one
//! that was emptied, restored from a backup or exchanged for another.
//!
//! Four things are kept beside the records. The *identity* is created with the store and stays. The *epoch*
//! is a count that only rises. Every gateway raises it every few seconds in which it has reserved keys, so a
//! gateway that has seen a higher epoch is looking at an older state of the store. *Lost* is the time at
//! which a gateway last recognised that, for all others to know. *Accepted* is the time at which an operator
//! last accepted the loss.
//!
//! Deliberately absent: the judgement. The engine compares, and refuses.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use onlyonce_core::{Secret, Timestamp, machine::History};

/// Bytes of an identity.
pub const IDENTITY_BYTES: usize = 16;
/// The name of the row with an identity that an operator has renewed.
#[cfg(any(
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "redis",
    feature = "dynamodb"
))]
pub(crate) const IDENTITY: &str = "identity";
/// The prefix for hashing the secret to an identity.
const PURPOSE: &[u8] = b"onlyonce store identity 1";

/// The names of the rows, or fields, that store a standing.
#[cfg(any(
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "redis"
))]
mod names {
    /// The values for [`Standing::read`](super::Standing::read), in its order.
    pub(crate) const STANDING: [&str; 6] = [
        "secret",
        super::IDENTITY,
        "epoch",
        ACCEPTED,
        LOST,
        LOST_NEWEST,
    ];
    /// When an operator last accepted a loss.
    pub(crate) const ACCEPTED: &str = "accepted";
    pub(super) const LOST: &str = "lost";
    pub(super) const LOST_NEWEST: &str = "lost_newest";
}
#[cfg(any(
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "redis"
))]
pub(crate) use names::{ACCEPTED, STANDING};

/// The identity of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    id: [u8; IDENTITY_BYTES],
    /// The store's location, as far as the server tells it: a copy elsewhere has another location.
    place: Vec<u8>,
}

impl Identity {
    /// The identity created with the store: a hash of the secret, which is random. A copy of the store shares
    /// it, until an operator renews the copy's identity.
    pub fn of_secret(secret: &Secret) -> Self {
        let bytes = digest(&SHA256, &[PURPOSE, secret.as_bytes()].concat());
        let mut id = [0; IDENTITY_BYTES];
        id.copy_from_slice(&bytes.as_ref()[..IDENTITY_BYTES]);
        let place = Vec::new();
        Self { id, place }
    }

    /// The identity of a store; `own` is the one that an operator has renewed, if any.
    #[cfg(any(
        feature = "sqlite",
        feature = "postgres",
        feature = "mysql",
        feature = "redis",
        feature = "dynamodb"
    ))]
    pub(crate) fn found(secret: &Secret, own: Option<&[u8]>) -> Self {
        let mut identity = Self::of_secret(secret);
        if let Some(own) = own.and_then(|own| own.try_into().ok()) {
            identity.id = own;
        }
        identity
    }

    /// The same identity, at `place`.
    #[cfg(any(feature = "postgres", feature = "mysql", test))]
    pub(crate) fn at(mut self, place: Vec<u8>) -> Self {
        self.place = place;
        self
    }

    /// The identity, without the store's location.
    pub fn id(&self) -> [u8; IDENTITY_BYTES] {
        self.id
    }

    /// The store's location, as far as the server tells it.
    pub fn place(&self) -> &[u8] {
        &self.place
    }
}

/// In hexadecimal, as `store.identity` names it.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Hex(self.id))
    }
}

/// Bytes of an identity in hexadecimal.
pub struct Hex(pub [u8; IDENTITY_BYTES]);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Which keys a store has lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Any of them may be missing.
    Any,
    /// A failover lost the newest, which the store's level permits.
    Newest,
}

impl Loss {
    /// The name under which the time of the loss is kept.
    #[cfg(any(
        feature = "sqlite",
        feature = "postgres",
        feature = "mysql",
        feature = "redis"
    ))]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Any => names::LOST,
            Self::Newest => names::LOST_NEWEST,
        }
    }
}

/// The epoch of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epoch {
    /// The count, which only rises.
    pub count: u64,
    /// When it was last raised, by the store's clock.
    pub at: Timestamp,
}

impl Epoch {
    /// Parses the stored form: `COUNT TIME`.
    #[cfg(any(
        feature = "sqlite",
        feature = "postgres",
        feature = "mysql",
        feature = "redis"
    ))]
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (count, at) = text.split_once(' ')?;
        Some(Self {
            count: count.parse().ok()?,
            at: Timestamp(at.parse().ok()?),
        })
    }
}

/// A store's current statement about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The identity; `None` if the store has lost even that.
    pub identity: Option<[u8; IDENTITY_BYTES]>,
    /// The epoch; `None` if nobody has raised it.
    pub epoch: Option<Epoch>,
    /// The losses that have been recognised.
    pub history: History,
    /// The counter of records, if the server tells it.
    pub numbered: Option<Numbered>,
}

/// A number that every new record raises, and that restarts if the table of records was emptied. Each server
/// counts separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// The server, as one word.
    pub server: String,
    /// The number of the next record.
    pub next: u64,
}

#[cfg(any(
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "redis"
))]
impl Standing {
    /// Reads a standing from the stored values.
    pub(crate) fn read(
        [secret, identity, epoch, accepted, lost, newest]: [Option<&[u8]>; STANDING.len()],
    ) -> Self {
        let secret: Option<[u8; 32]> = secret.and_then(|secret| secret.try_into().ok());
        let secret = secret.map(Secret::from_bytes);
        let time = |text: &[u8]| {
            let text = std::str::from_utf8(text).ok()?;
            Some(Timestamp(text.parse().ok()?))
        };
        Self {
            identity: secret.map(|secret| Identity::found(&secret, identity).id()),
            epoch: epoch.and_then(Epoch::read),
            history: History {
                lost_at: lost.and_then(time),
                newest_lost_at: newest.and_then(time),
                accepted_at: accepted.and_then(time),
            },
            numbered: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_an_identity_of_its_own_once_it_is_given_one() {
        let secret = Secret::from_bytes([7; 32]);
        let made = Identity::of_secret(&secret);
        assert_eq!(made.to_string().len(), 2 * IDENTITY_BYTES);
        assert_ne!(made, Identity::of_secret(&Secret::from_bytes([8; 32])));
        #[cfg(feature = "sqlite")]
        {
            assert_eq!(Identity::found(&secret, None), made);
            let own = Identity::found(&secret, Some(&[1; IDENTITY_BYTES]));
            assert_eq!(own.id(), [1; IDENTITY_BYTES]);
        }
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn what_a_store_keeps_is_read() {
        let values: [Option<&[u8]>; 6] = [
            Some(&[7; 32]),
            None,
            Some(b"12 3400"),
            Some(b"99"),
            Some(b"100"),
            Some(b"101"),
        ];
        let standing = Standing::read(values);
        let epoch = Epoch {
            count: 12,
            at: Timestamp(3_400),
        };
        assert_eq!(standing.epoch, Some(epoch));
        let history = History {
            lost_at: Some(Timestamp(100)),
            newest_lost_at: Some(Timestamp(101)),
            accepted_at: Some(Timestamp(99)),
        };
        assert_eq!(standing.history, history);
        let of_secret = Identity::of_secret(&Secret::from_bytes([7; 32])).id();
        assert_eq!(standing.identity, Some(of_secret));
        assert_eq!(Standing::read([None; 6]), Standing::default());
    }
}
