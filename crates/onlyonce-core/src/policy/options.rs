//! The options as configured, and how they become a policy: explicit route option > route profile > route
//! dialect > explicit global > global profile > global dialect > default. A list replaces the default list.
//! If both an explicit limit and the limit of a configured profile exist, the stricter one applies.

use std::time::Duration;

use http::{HeaderName, Method, StatusCode};

use super::{
    AfterExpiry, Enforce, ErrorFormat, KeyScope, On5xx, OnInFlight, OnStoreError, PathReadings,
    Policy, PolicyBuilder, ReconcilePolicy, Remember,
};
use crate::{
    fingerprint::{BodyMode, DEFAULT_HEADERS, Pointer, Recipe},
    key::KeyRules,
};

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// The default for the largest request body, in bytes.
pub(super) const DEFAULT_MAX_REQUEST_BODY: u64 = 1 << 20;
/// The default for the largest stored response body, in bytes.
pub(super) const DEFAULT_MAX_BODY_SIZE: u64 = 1 << 20;
/// The default number of waiters on one key.
pub(super) const DEFAULT_WAITERS_PER_KEY: usize = 1_000;
/// The default number of waiters of one client.
pub(super) const DEFAULT_WAITERS: usize = 10_000;
pub(super) const DEFAULT_DETACHED: usize = 250;

/// The default limits of one client in the profile `payments`.
pub(super) const PAYMENTS_NEW_KEYS_PER_SECOND: u32 = 1_000;
pub(super) const PAYMENTS_BURST: u32 = 2_000;
pub(super) const PAYMENTS_LIVE_KEYS: u64 = 10_000;
pub(super) const PAYMENTS_LOOKUPS_PER_SECOND: u32 = 100;

/// The default limits of one authenticated client in the profile `safe`: more than an honest client ever
/// needs. They do not apply to callers without a client id.
pub(super) const SAFE_NEW_KEYS_PER_SECOND: u32 = 10_000;
/// The burst of new keys, likewise.
pub(super) const SAFE_BURST: u32 = 20_000;
/// Keys in progress at a time, likewise.
pub(super) const SAFE_LIVE_KEYS: u64 = 100_000;

/// Whose conventions the statuses and marker headers follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Dialect {
    /// The IETF draft: 400, 409, 422.
    #[default]
    Ietf,
    /// Stripe's API.
    Stripe,
    /// The Runway gateway: 422 for a missing key, keys per route.
    Runway,
}

/// How much is at stake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Profile {
    /// Refuses what it cannot protect.
    #[default]
    Safe,
    /// Money: every server error is unknown, keys are required and remembered for long.
    Payments,
    /// Low stakes: a store that is down does not stop requests.
    Cache,
}

/// How requests are compared, as configured.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct FingerprintOptions {
    /// Canonical or raw bodies.
    pub mode: Option<BodyMode>,
    /// Only these members count.
    pub fields: Option<Vec<Pointer>>,
    /// These members do not count.
    pub ignore: Option<Vec<Pointer>>,
    /// The headers that count.
    pub headers: Option<Vec<String>>,
    /// Whether the host counts.
    pub host: Option<bool>,
    /// Hosts that count as one.
    pub host_aliases: Option<Vec<String>>,
    /// Parameters of the query that do not count.
    pub ignore_query: Option<Vec<String>>,
}

impl FingerprintOptions {
    fn over(self, under: Self) -> Self {
        Self {
            mode: self.mode.or(under.mode),
            fields: self.fields.or(under.fields),
            ignore: self.ignore.or(under.ignore),
            headers: self.headers.or(under.headers),
            host: self.host.or(under.host),
            host_aliases: self.host_aliases.or(under.host_aliases),
            ignore_query: self.ignore_query.or(under.ignore_query),
        }
    }
}

macro_rules! options {
    (
        $(#[$_of_policies:meta])* policy { $($(#[$doc:meta])* $field:ident: $type:ty,)* }
        $(#[$_of_gateways:meta])* gateway { $($(#[$own_doc:meta])* $own:ident: $own_type:ty,)* }
    ) => {
        /// The idempotency options of a route or of the whole gateway; `None` means not set.
        #[derive(Clone, Debug, PartialEq, Default)]
        pub struct Options {
            $($(#[$doc])* pub $field: Option<$type>,)*
            $($(#[$own_doc])* pub $own: Option<$own_type>,)*
        }

        impl Options {
            /// These options, with `under` filling those that are not set.
            #[must_use]
            fn over(self, under: Self) -> Self {
                // Each part of the fingerprint is an option of its own.
                let fingerprint = match (self.fingerprint.clone(), under.fingerprint.clone()) {
                    (Some(over), Some(under)) => Some(over.over(under)),
                    (over, under) => over.or(under),
                };
                let over = Self {
                    $($field: self.$field.or(under.$field),)*
                    $($own: self.$own.or(under.$own),)*
                };
                Self { fingerprint, ..over }
            }
        }

        impl PolicyBuilder {
            $(
                $(#[$doc])*
                pub fn $field(mut self, $field: $type) -> Self {
                    self.0.$field = Some($field);
                    self
                }
            )*
        }
    };
}

options! {
    /// The options of the library: [`PolicyBuilder`] has a setter for each. The default stands behind the colon.
    policy {
        /// Whether keys are honoured at all: yes, but not unless a configuration file says so.
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
    /// The options of a gateway, which finds routes and callers itself.
    gateway {
        /// How paths are interpreted to find the rules that apply.
        path_readings: PathReadings,
        /// Which callers share a namespace of keys.
        key_scope: KeyScope,
        /// Whether each route has a namespace of its own.
        key_per_route: bool,
        /// The headers that distinguish callers without authentication.
        credential_headers: Vec<HeaderName>,
        /// The cookies that distinguish callers if none of these headers is sent.
        credential_cookies: Vec<String>,
    }
}

impl Dialect {
    /// The options that this dialect sets, given `enforce`. On a route, they override the global options; the
    /// dialect leaves every other option alone.
    pub fn options(self, enforce: Enforce) -> Options {
        match self {
            Self::Ietf => Options {
                reused_status: Some(StatusCode::UNPROCESSABLE_ENTITY),
                missing_status: Some(StatusCode::BAD_REQUEST),
                replayed_header: Some(DEFAULT_REPLAYED_HEADER),
                ..Options::default()
            },
            Self::Stripe => Options {
                reused_status: Some(StatusCode::BAD_REQUEST),
                missing_status: Some(StatusCode::BAD_REQUEST),
                replayed_header: Some(HeaderName::from_static("idempotent-replayed")),
                on_5xx: Some(On5xx::Store),
                max_key_length: Some(255),
                fingerprint: Some(FingerprintOptions {
                    headers: Some(stripe_fingerprint_headers()),
                    ..FingerprintOptions::default()
                }),
                ..Options::default()
            },
            Self::Runway => Options {
                reused_status: Some(StatusCode::UNPROCESSABLE_ENTITY),
                missing_status: Some(StatusCode::UNPROCESSABLE_ENTITY),
                replayed_header: Some(DEFAULT_REPLAYED_HEADER),
                on_in_flight: Some(OnInFlight::Wait),
                key_scope: Some(KeyScope::Global),
                key_per_route: Some(true),
                // The Runway gateway fails open; a route that enforces keys would rather refuse.
                on_store_error: Some(match enforce {
                    Enforce::Off => OnStoreError::Bypass,
                    Enforce::On | Enforce::All => OnStoreError::Refuse,
                }),
                ..Options::default()
            },
        }
    }
}

impl Profile {
    /// The options that this profile sets. As with [`Dialect::options`], an option set to its default value
    /// is not the same as one that is not set.
    pub fn options(self) -> Options {
        match self {
            Self::Safe => Options::default(),
            Self::Payments => Options {
                enforce: Some(Enforce::On),
                on_5xx: Some(On5xx::Unknown),
                release_statuses: Some(vec![
                    StatusCode::UNAUTHORIZED,
                    StatusCode::TOO_MANY_REQUESTS,
                ]),
                ttl: Some(72 * HOUR),
                after_expiry: Some(AfterExpiry::Reject),
                tombstone_ttl: Some(30 * DAY),
                min_key_length: Some(16),
                on_store_error: Some(OnStoreError::Refuse),
                new_keys_per_second: Some(PAYMENTS_NEW_KEYS_PER_SECOND),
                burst: Some(PAYMENTS_BURST),
                live_keys: Some(PAYMENTS_LIVE_KEYS),
                lookups_per_second: Some(PAYMENTS_LOOKUPS_PER_SECOND),
                ..Options::default()
            },
            Self::Cache => Options {
                on_store_error: Some(OnStoreError::Bypass),
                ..Options::default()
            },
        }
    }
}

const DEFAULT_REPLAYED_HEADER: HeaderName = HeaderName::from_static("x-idempotent-replayed");
const DEFAULT_REQUEST_TIME_HEADER: HeaderName = HeaderName::from_static("x-request-timestamp");

impl Policy {
    /// The policy of a route with the options `route`, under the gateway's `global` options.
    pub fn resolve(route: &Options, global: &Options) -> Self {
        Self::from_stated(Options::stated(route, global))
    }

    /// The same policy with the limits that the profile `safe` sets for authenticated clients. They are
    /// defaults: any explicit limit replaces them.
    #[must_use]
    pub fn for_authenticated(mut self, route: &Options, global: &Options) -> Self {
        if self.profile == Profile::Safe {
            let burst = route.burst.or(global.burst).unwrap_or(SAFE_BURST);
            self.new_keys = self.new_keys.or(Some((SAFE_NEW_KEYS_PER_SECOND, burst)));
            self.live_keys = self.live_keys.or(Some(SAFE_LIVE_KEYS));
        }
        self
    }

    fn from_stated(said: Options) -> Self {
        let fingerprint = said.fingerprint.unwrap_or_default();
        Self {
            enabled: said.enabled.unwrap_or(false),
            dialect: said.dialect.unwrap_or_default(),
            profile: said.profile.unwrap_or_default(),
            header_name: said
                .header_name
                .unwrap_or(HeaderName::from_static("idempotency-key")),
            replayed_header: said.replayed_header.unwrap_or(DEFAULT_REPLAYED_HEADER),
            methods: said
                .methods
                .unwrap_or_else(|| vec![Method::POST, Method::PUT, Method::PATCH]),
            enforce: said.enforce.unwrap_or(Enforce::Off),
            key_rules: KeyRules {
                max_length: said.max_key_length.unwrap_or(256),
                min_length: said.min_key_length.unwrap_or(1),
                reject_sensitive: said.reject_sensitive_keys.unwrap_or(true),
            },
            ttl: said.ttl.unwrap_or(DAY),
            tombstone_ttl: said.tombstone_ttl.unwrap_or(DAY),
            after_expiry: said.after_expiry.unwrap_or(AfterExpiry::New),
            max_request_body: said.max_request_body.unwrap_or(DEFAULT_MAX_REQUEST_BODY),
            max_body_size: said.max_body_size.unwrap_or(DEFAULT_MAX_BODY_SIZE),
            remember: said.remember.unwrap_or(Remember::Full),
            hide_card_numbers: said.profile == Some(Profile::Payments),
            on_in_flight: said.on_in_flight.unwrap_or(OnInFlight::Wait),
            wait_timeout: said.wait_timeout.unwrap_or(Duration::from_secs(30)),
            on_5xx: said.on_5xx.unwrap_or(On5xx::Retry),
            release_statuses: said
                .release_statuses
                .unwrap_or_else(default_release_statuses),
            on_store_error: said.on_store_error.unwrap_or(OnStoreError::Refuse),
            lease: said.lease.unwrap_or(Duration::from_secs(60)),
            timeout: said.timeout.unwrap_or(Duration::from_secs(30)),
            max_execution: said.max_execution.unwrap_or(Duration::from_secs(900)),
            completion_grace: said.completion_grace.unwrap_or(Duration::from_secs(10)),
            error_format: said.error_format.unwrap_or(ErrorFormat::Hybrid),
            reused_status: said
                .reused_status
                .unwrap_or(StatusCode::UNPROCESSABLE_ENTITY),
            missing_status: said.missing_status.unwrap_or(StatusCode::BAD_REQUEST),
            recipe: Recipe::new(
                fingerprint.mode.unwrap_or(BodyMode::Json),
                fingerprint.fields.unwrap_or_default(),
                fingerprint.ignore.unwrap_or_default(),
                fingerprint
                    .headers
                    .unwrap_or_else(|| DEFAULT_HEADERS.map(str::to_owned).to_vec()),
            )
            .with_target(
                fingerprint.host.unwrap_or(true),
                &fingerprint.host_aliases.unwrap_or_default(),
                fingerprint.ignore_query.unwrap_or_default(),
            ),
            waiters_per_key: said.waiters_per_key.unwrap_or(DEFAULT_WAITERS_PER_KEY),
            waiters: said.waiters.unwrap_or(DEFAULT_WAITERS),
            detached: said.detached.unwrap_or(DEFAULT_DETACHED),
            new_keys: said
                .new_keys_per_second
                .map(|per_second| (per_second, said.burst.unwrap_or(per_second))),
            live_keys: said.live_keys,
            lookups_per_second: said.lookups_per_second,
            max_request_age: said.max_request_age,
            request_time_header: said
                .request_time_header
                .unwrap_or(DEFAULT_REQUEST_TIME_HEADER),
            shadow: said.shadow.unwrap_or(false),
            reconcile: said.reconcile,
        }
    }
}

/// Every option set for a route, the strongest source on top.
fn layered(route: &Options, global: &Options, enforce: Enforce) -> Options {
    let stated = |options: &Options| {
        let dialect = options.dialect.map(|dialect| dialect.options(enforce));
        options
            .clone()
            .over(options.profile.map(Profile::options).unwrap_or_default())
            .over(dialect.unwrap_or_default())
    };
    let said = stated(route).over(stated(global));
    let explicit = route.clone().over(global.clone());
    match route.profile.or(global.profile) {
        Some(profile) => said.within(explicit, profile.options()),
        None => said,
    }
}

impl Options {
    /// Every option set for a route with the options `route`, under the gateway's `global` options, before
    /// defaults.
    pub(super) fn stated(route: &Self, global: &Self) -> Self {
        // A route with a profile or dialect of its own ignores the gateway's.
        let under = Options {
            profile: global.profile.filter(|_| route.profile.is_none()),
            dialect: global.dialect.filter(|_| route.dialect.is_none()),
            ..global.clone()
        };
        // A dialect's options depend on `enforce`, but no dialect sets `enforce` itself.
        let enforce = layered(route, &under, Enforce::Off).enforce;
        layered(route, &under, enforce.unwrap_or(Enforce::Off))
    }

    /// The stricter of two limits wherever both are set: a global limit does not loosen a profile, and a
    /// profile does not loosen an explicit limit.
    fn within(self, explicit: Self, profile: Self) -> Self {
        fn stricter<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.into_iter().chain(other).min()
        }
        // A rate without a burst implies a burst of the same size.
        let burst = explicit.burst.or(explicit.new_keys_per_second);
        Self {
            new_keys_per_second: stricter(
                explicit.new_keys_per_second,
                profile.new_keys_per_second,
            ),
            burst: stricter(burst, profile.burst),
            live_keys: stricter(explicit.live_keys, profile.live_keys),
            lookups_per_second: stricter(explicit.lookups_per_second, profile.lookups_per_second),
            ..self
        }
    }
}

fn stripe_fingerprint_headers() -> Vec<String> {
    let own = ["stripe-account", "stripe-version"];
    DEFAULT_HEADERS
        .into_iter()
        .chain(own)
        .map(str::to_owned)
        .collect()
}

/// The names under which common frameworks keep a session.
const USUAL_SESSION_COOKIES: [&str; 7] = [
    "JSESSIONID",
    "PHPSESSID",
    "ASP.NET_SessionId",
    "connect.sid",
    "sessionid",
    "session",
    "laravel_session",
];

/// The cookies that carry a session in common frameworks: what `auto` means.
pub fn usual_session_cookies() -> Vec<String> {
    USUAL_SESSION_COOKIES.map(str::to_owned).to_vec()
}

fn default_release_statuses() -> Vec<StatusCode> {
    [401, 407, 421, 425, 429]
        .into_iter()
        .filter_map(|code| StatusCode::from_u16(code).ok())
        .collect()
}
