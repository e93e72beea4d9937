//! The checks, in groups that share their requests.

mod answers;
mod around;
mod callers;
mod errors;
mod keys;
mod mismatch;
mod nodes;
mod race;
mod retry;

use super::{catalogue::Check, finding::Finding, lab::Lab, target::Target};

/// Checks that are decided by the same requests.
pub(super) struct Group {
    pub(super) name: Name,
    pub(super) checks: &'static [Check],
    /// The maximum number of requests that it sends.
    pub(super) requests: fn(&Target) -> usize,
}

/// The name of a group.
#[derive(Clone, Copy, Debug)]
pub(super) enum Name {
    Retry,
    Concurrent,
    InFlight,
    HangUp,
    PartOfABody,
    Mismatch,
    MismatchInFlight,
    ReorderedJson,
    Elsewhere,
    MissingKey,
    QuotedKey,
    BadKeys,
    OtherCaller,
    OtherHost,
    MethodCase,
    Upgrade,
    Errors,
    Answers,
    TwoNodes,
}

/// Every group, in the order in which they run.
pub(super) const GROUPS: &[Group] = &[
    Group {
        name: Name::Retry,
        checks: &[Check::Replay, Check::Bytes, Check::Marker, Check::Expiry],
        requests: |_| 3,
    },
    Group {
        name: Name::Concurrent,
        checks: &[Check::Concurrent],
        requests: |target| target.duplicates + 1,
    },
    Group {
        name: Name::InFlight,
        checks: &[Check::InFlight],
        requests: |_| 3,
    },
    Group {
        name: Name::HangUp,
        checks: &[Check::HangUp],
        requests: |_| 1 + retry::MOST_RETRIES,
    },
    Group {
        name: Name::PartOfABody,
        checks: &[Check::PartOfABody],
        requests: |_| 2,
    },
    Group {
        name: Name::Mismatch,
        checks: &[Check::Mismatch, Check::MismatchKeeps],
        requests: |_| 4,
    },
    Group {
        name: Name::MismatchInFlight,
        checks: &[Check::MismatchInFlight],
        requests: |_| 2,
    },
    Group {
        name: Name::ReorderedJson,
        checks: &[Check::ReorderedJson],
        requests: |_| 2,
    },
    Group {
        name: Name::Elsewhere,
        checks: &[Check::Query, Check::Path],
        requests: |_| 4,
    },
    Group {
        name: Name::MissingKey,
        checks: &[Check::MissingKey],
        requests: |_| 1,
    },
    Group {
        name: Name::QuotedKey,
        checks: &[Check::QuotedKey],
        requests: |_| 2,
    },
    Group {
        name: Name::BadKeys,
        checks: &[Check::BadKeys],
        requests: |_| 2 * keys::BAD_KEYS + 1,
    },
    Group {
        name: Name::OtherCaller,
        checks: &[Check::OtherCaller],
        requests: |_| 3,
    },
    Group {
        name: Name::OtherHost,
        checks: &[Check::OtherHost],
        requests: |_| 2,
    },
    Group {
        name: Name::MethodCase,
        checks: &[Check::MethodCase],
        requests: |_| 2,
    },
    Group {
        name: Name::Upgrade,
        checks: &[Check::Upgrade],
        requests: |_| 2,
    },
    Group {
        name: Name::Errors,
        checks: &[Check::ClientError, Check::ServerError],
        requests: |_| 4,
    },
    Group {
        name: Name::Answers,
        checks: &[Check::Binary, Check::Empty, Check::Large, Check::Chunked],
        requests: |_| 8,
    },
    Group {
        name: Name::TwoNodes,
        checks: &[Check::TwoNodes],
        requests: |target| target.duplicates + 2,
    },
];

/// Runs one group.
///
/// # Errors
/// When the count cannot be read any more.
pub(super) async fn run(name: Name, lab: &Lab) -> anyhow::Result<Vec<Finding>> {
    Ok(match name {
        Name::Retry => retry::same_request(lab).await?,
        Name::Concurrent => vec![race::concurrent(lab).await?],
        Name::InFlight => vec![race::in_flight(lab).await?],
        Name::HangUp => vec![retry::hang_up(lab).await?],
        Name::PartOfABody => vec![retry::part_of_a_body(lab).await?],
        Name::Mismatch => mismatch::other_body(lab).await?,
        Name::MismatchInFlight => vec![race::mismatch_in_flight(lab).await?],
        Name::ReorderedJson => vec![mismatch::reordered_json(lab).await?],
        Name::Elsewhere => mismatch::elsewhere(lab).await?,
        Name::MissingKey => vec![keys::missing(lab).await?],
        Name::QuotedKey => vec![keys::quoted(lab).await?],
        Name::BadKeys => vec![keys::bad(lab).await?],
        Name::OtherCaller => vec![callers::other_caller(lab).await?],
        Name::OtherHost => vec![around::other_host(lab).await?],
        Name::MethodCase => vec![around::method_case(lab).await?],
        Name::Upgrade => vec![around::upgrade(lab).await?],
        Name::Errors => errors::both(lab).await?,
        Name::Answers => answers::kinds(lab).await?,
        Name::TwoNodes => vec![nodes::two(lab).await?],
    })
}
