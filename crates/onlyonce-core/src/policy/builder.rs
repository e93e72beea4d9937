//! Builds a policy in code, from the same options as a configuration file has.

use std::time::Duration;

use http::{HeaderName, Method, StatusCode};

use super::{
    AfterExpiry, Dialect, Enforce, ErrorFormat, FingerprintOptions, On5xx, OnInFlight,
    OnStoreError, Options, Policy, Profile, ReconcilePolicy, Remember,
};

/// Builds a [`Policy`]; see [`Policy::builder`].
///
/// An explicit option overrides the [profile](Self::profile), which overrides the [dialect](Self::dialect),
/// which overrides the defaults, in whatever order the setters are called. If both an explicit limit and a
/// profile's limit exist, the stricter one applies.
///
/// ```
/// use std::time::Duration;
/// use onlyonce_core::policy::{Enforce, On5xx, Policy, Profile};
///
/// let policy = Policy::builder()
///     .profile(Profile::Payments)
///     .ttl(Duration::from_secs(7 * 86_400))
///     .build();
/// assert_eq!((policy.enforce, policy.on_5xx), (Enforce::On, On5xx::Unknown));
/// assert_eq!(policy.ttl.as_secs(), 7 * 86_400);
/// ```
#[must_use = "a policy is made by `build`"]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyBuilder(Options);

impl Policy {
    /// Starts from the defaults: keys are honoured, and none is required.
    pub fn builder() -> PolicyBuilder {
        PolicyBuilder::default()
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        impl PolicyBuilder {
            $(
                $(#[$doc])*
                pub fn $name(mut self, $name: $type) -> Self {
                    self.0.$name = Some($name);
                    self
                }
            )*
        }
    };
}

setters! {
    /// Whether keys are honoured at all: yes.
    enabled: bool,
    /// Whose conventions the statuses and marker headers follow: the IETF draft's.
    dialect: Dialect,
    /// How much is at stake.
    profile: Profile,
    /// The header that carries the key: `Idempotency-Key`.
    header_name: HeaderName,
    /// The header that marks a replay: `X-Idempotent-Replayed`.
    replayed_header: HeaderName,
    /// The methods on which a key is honoured: POST, PUT and PATCH.
    methods: Vec<Method>,
    /// Which requests must carry a key: none.
    enforce: Enforce,
    /// The longest key: 256 bytes.
    max_key_length: usize,
    /// The shortest key: 1 byte.
    min_key_length: usize,
    /// Whether keys that look like personal data are refused: yes.
    reject_sensitive_keys: bool,
    /// How long an answer is kept, from completion: a day. Must be positive.
    ttl: Duration,
    /// How long a tombstone is kept after that: a day. Must be positive.
    tombstone_ttl: Duration,
    /// What the same request gets after expiry: a new execution.
    after_expiry: AfterExpiry,
    /// The largest request body: 1 MiB.
    max_request_body: u64,
    /// The largest response body that is stored: 1 MiB.
    max_body_size: u64,
    /// How much of an answer is stored: all of it.
    remember: Remember,
    /// What a retry gets while the first request is running: it waits.
    on_in_flight: OnInFlight,
    /// How long a retry waits, from its arrival: 30 s.
    wait_timeout: Duration,
    /// What 500, 501, 503 and 505 to 511 say about the operation: it may be executed again.
    on_5xx: On5xx,
    /// Statuses declared to mean that the operation had no effect: 401, 407, 421, 425 and 429.
    release_statuses: Vec<StatusCode>,
    /// What happens when the store is unavailable: 503, and nothing is executed.
    on_store_error: OnStoreError,
    /// How long an executor counts as alive without a renewal: 60 s. Must be positive.
    lease: Duration,
    /// The time from dispatch to the end of the answer that the client waits: 30 s.
    timeout: Duration,
    /// The time from dispatch to the end of the answer after which the key becomes unknown: 15 min. Must be
    /// positive.
    max_execution: Duration,
    /// How long a client waits for its answer to become durable: 10 s.
    completion_grace: Duration,
    /// The shape of error bodies: a problem body with an `error` object beside it.
    error_format: ErrorFormat,
    /// The status for a key that was used for another request: 422.
    reused_status: StatusCode,
    /// The status for a missing key: 400.
    missing_status: StatusCode,
    /// How requests are compared: by method, host, path, query, some headers and the canonical body.
    fingerprint: FingerprintOptions,
    /// Waiters on one key; further ones are refused: 1,000.
    waiters_per_key: usize,
    /// Waiters of one client; further ones are refused: 10,000.
    waiters: usize,
    /// Executions of one client that may continue without it; beyond this, it may bring no new keys: 250.
    detached: usize,
    /// One client's new keys per second: no limit.
    new_keys_per_second: u32,
    /// One client's burst of new keys: as many as per second.
    burst: u32,
    /// Keys of one client that may be in progress at a time: no limit.
    live_keys: u64,
    /// One client's lookups and misuses of keys per second: no limit.
    lookups_per_second: u32,
    /// The greatest age of a request that brings a new key: no limit.
    max_request_age: Duration,
    /// The header that says when a request was made: `X-Request-Timestamp`.
    request_time_header: HeaderName,
    /// Whether keys are only observed, and nothing is refused, replayed or remembered: no.
    shadow: bool,
    /// How unknown outcomes are reconciled: by people only.
    reconcile: ReconcilePolicy,
}

impl PolicyBuilder {
    /// Builds the policy.
    pub fn build(self) -> Policy {
        let options = Options {
            enabled: self.0.enabled.or(Some(true)),
            ..self.0
        };
        Policy::resolve(&options, &Options::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_said_is_the_default() {
        assert_eq!(Policy::builder().build(), Policy::default());
        assert!(!Policy::builder().enabled(false).build().enabled);
    }

    #[test]
    fn what_is_said_overrules_the_profile_in_any_order() {
        let hour = Duration::from_secs(3_600);
        let before = Policy::builder().ttl(hour).profile(Profile::Payments);
        let after = Policy::builder().profile(Profile::Payments).ttl(hour);
        let (before, after) = (before.build(), after.build());
        assert_eq!(before, after);
        assert_eq!((before.ttl, before.enforce), (hour, Enforce::On));
        // The profile's limit is the stricter one.
        let loose = Policy::builder()
            .profile(Profile::Payments)
            .live_keys(1 << 40);
        assert_eq!(loose.build().live_keys, Some(10_000));
    }
}
