//! Time as data. A [`Timestamp`] is a reading of a store's clock. A [`Stamp`] tells the store which time to
//! write, so that all persisted times come from one clock.

use std::time::Duration;

/// Milliseconds since the Unix epoch, by the clock of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The moment `duration` later, saturating.
    pub fn plus(self, duration: Duration) -> Self {
        let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(millis))
    }

    /// The time elapsed since `earlier`; zero if `earlier` is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// The value of one time field in a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Stamp {
    /// The field is empty.
    #[default]
    Never,
    /// The field keeps a time that was read from the store.
    At(Timestamp),
    /// The store adds this to its current time.
    In(Duration),
}

impl Stamp {
    /// The store's current time.
    pub const NOW: Self = Self::In(Duration::ZERO);

    /// The value of the field when a store whose clock says `now` writes it.
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
