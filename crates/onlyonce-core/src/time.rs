//! Time as data. A [`Timestamp`] is what a store's clock said; a [`Stamp`] is what a write asks the
//! store to write, so that persisted times always come from one clock.

use std::time::Duration;

/// Milliseconds since the Unix epoch, by the clock of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The moment `duration` later, or the end of time.
    pub fn plus(self, duration: Duration) -> Self {
        let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(millis))
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// What a write says about one time field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Stamp {
    /// The field is empty.
    #[default]
    Never,
    /// The field keeps a time that the store told us before.
    At(Timestamp),
    /// The store adds this to its own now.
    In(Duration),
}

impl Stamp {
    /// The store's now.
    pub const NOW: Self = Self::In(Duration::ZERO);

    /// What the field holds once the store whose clock says `now` has written it.
    pub fn resolve(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Never => None,
            Self::At(at) => Some(at),
            Self::In(duration) => Some(now.plus(duration)),
        }
    }
}

impl From<Option<Timestamp>> for Stamp {
    fn from(at: Option<Timestamp>) -> Self {
        at.map_or(Self::Never, Self::At)
    }
}
