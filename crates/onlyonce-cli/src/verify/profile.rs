//! What counts as correct: three variants of the same idea.

use clap::ValueEnum;

/// Whose rules the API is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// The IETF draft: 400 without a key, 422 for a reused one, 409 with Retry-After in flight
    Ietf,
    /// Stripe's API: 400 for a reused key, `Idempotent-Replayed`, server errors replayed
    Stripe,
    /// A gateway that waits: 422 without a key, `X-Idempotent-Replayed`
    Runway,
}

/// The rules of a profile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) name: &'static str,
    /// The status for a request without a key.
    pub(super) missing: u16,
    /// The status for a key that belongs to another request.
    pub(super) mismatch: u16,
    /// The header that must mark a replay; `None` if none is required.
    pub(super) marker: Option<&'static str>,
    /// Whether a 409 must say when to retry.
    pub(super) retry_after: bool,
    /// Whether a server error is replayed like any other answer.
    pub(super) replays_5xx: bool,
    /// The longest key in bytes, if the profile has a limit.
    pub(super) longest_key: Option<usize>,
    /// Whether `"abc"` and `abc` must be the same key.
    pub(super) quotes_wrap: bool,
}

impl Profile {
    pub(super) fn rules(self) -> Rules {
        match self {
            Self::Ietf => Rules {
                name: "ietf",
                missing: 400,
                mismatch: 422,
                marker: None,
                retry_after: true,
                replays_5xx: false,
                longest_key: None,
                quotes_wrap: true,
            },
            Self::Stripe => Rules {
                name: "stripe",
                missing: 400,
                mismatch: 400,
                marker: Some("idempotent-replayed"),
                retry_after: false,
                replays_5xx: true,
                longest_key: Some(255),
                quotes_wrap: false,
            },
            Self::Runway => Rules {
                name: "runway",
                missing: 422,
                mismatch: 422,
                marker: Some("x-idempotent-replayed"),
                retry_after: true,
                replays_5xx: false,
                longest_key: Some(256),
                quotes_wrap: false,
            },
        }
    }
}

/// The headers with which APIs mark a replay.
pub(super) const MARKERS: [&str; 6] = [
    "x-idempotent-replayed",
    "idempotent-replayed",
    "idempotent-replay",
    "idempotency-replayed",
    "idempotency-replay",
    "x-idempotency-replayed",
];

/// The headers with which APIs say how long a key is valid.
pub(super) const EXPIRIES: [&str; 3] = [
    "idempotency-key-expires",
    "idempotency-expires",
    "x-idempotency-expires",
];
