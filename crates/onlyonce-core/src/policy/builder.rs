//! A policy put together in code, by the same options as in a file.

use std::time::Duration;

use http::{HeaderName, Method, StatusCode};

use super::{
    AfterExpiry, Dialect, Enforce, ErrorFormat, FingerprintOptions, On5xx, OnInFlight,
    OnStoreError, Options, Policy, Profile, ReconcilePolicy, Remember,
};

/// Makes a [`Policy`]; begun by [`Policy::builder`].
///
/// What is set here overrules the [profile](Self::profile), which overrules the
/// [dialect](Self::dialect), which overrules the defaults, in whatever order they are called. Of an explicit
/// limit and that of a profile the stricter holds.
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
    /// Begins a policy with the defaults: keys are looked at, and none is demanded.
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
    /// Whether keys are looked at; they are, unless said otherwise.
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
    /// Whether keys that look like personal data are refused: they are.
    reject_sensitive_keys: bool,
    /// How long an answer is kept, from completion: a day. Must be positive.
    ttl: Duration,
    /// How long a tombstone recognises the key after that: a day. Must be positive.
    tombstone_ttl: Duration,
    /// What the same request meets then: a new execution.
    after_expiry: AfterExpiry,
    /// The largest request body: 1 MiB.
    max_request_body: u64,
    /// The largest response body that is stored: 1 MiB.
    max_body_size: u64,
    /// How much of an answer is remembered: all of it.
    remember: Remember,
    /// What a retry meets while the first request is running: it waits.
    on_in_flight: OnInFlight,
    /// How long a retry waits, from its arrival: 30 s.
    wait_timeout: Duration,
    /// What 500, 501, 503 and 505 to 511 say about the operation: that it may be executed again.
    on_5xx: On5xx,
    /// Statuses that leave nothing behind: 401, 407, 421, 425 and 429.
    release_statuses: Vec<StatusCode>,
    /// What happens when the store cannot be asked: 503, and nothing is executed.
    on_store_error: OnStoreError,
    /// How long an executor counts as alive without a sign: 60 s. Must be positive.
    lease: Duration,
    /// From dispatch to the end of the answer, for the client: 30 s.
    timeout: Duration,
    /// From dispatch to the end of the answer, for the key: 15 min. Must be positive.
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
    /// Waiters on one key before further ones are refused: 1,000.
    waiters_per_key: usize,
    /// Waiters of one client before further ones are refused: 10,000.
    waiters: usize,
    /// Executions of one client that may run on without it before it may bring no new keys: 250.
    detached: usize,
    /// New keys a second of one client: any number.
    new_keys_per_second: u32,
    /// New keys of one client at once: as many as a second.
    burst: u32,
    /// Keys of one client that may be in progress: any number.
    live_keys: u64,
    /// Questions about keys, and misuses of them, a second of one client: any number.
    lookups_per_second: u32,
    /// The oldest request that may bring a new key: of any age.
    max_request_age: Duration,
    /// The header that says when a request was made: `X-Request-Timestamp`.
    request_time_header: HeaderName,
    /// Whether keys are only observed: nothing is refused, replayed or remembered. They are not.
    shadow: bool,
    /// How unknown outcomes are looked into: by people alone.
    reconcile: ReconcilePolicy,
}

impl PolicyBuilder {
    /// The policy.
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
