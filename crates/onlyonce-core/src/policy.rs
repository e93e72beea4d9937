//! The rules of a route: which answers are stored, released or unknown, for how long, and which statuses tell
//! the client. Rules are data, not code paths.
//!
//! [`Options`] are the options as configured. [`Policy`] is the result once dialect, profile and defaults
//! have filled the gaps, and [`EdgeRules`] the part that concerns only an edge.

mod builder;
mod edge_rules;
mod options;
mod proxies;

use std::{sync::Arc, time::Duration};

use http::{HeaderName, Method, StatusCode};

pub use builder::PolicyBuilder;
pub use edge_rules::EdgeRules;
pub use options::{Dialect, FingerprintOptions, Options, Profile, usual_session_cookies};
pub use proxies::{looked_at, lost_by_proxy};

use crate::{
    fingerprint::Recipe,
    key::KeyRules,
    readings::Methods,
    record::{LastError, StoredResponse},
};

/// Which requests must carry a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforce {
    /// No request.
    Off,
    /// POST and PATCH, if listed in `methods`; in the Runway dialect every listed method.
    On,
    /// Every listed method.
    All,
}

/// What a retry gets while the first request is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnInFlight {
    /// It waits for the answer, up to `wait_timeout`.
    Wait,
    /// 409 immediately.
    Reject,
    /// 202 immediately, with the URL to poll.
    Accept,
}

/// What a 5xx of the upstream says about the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On5xx {
    /// The operation may be executed again: the operator declares that the API undoes unfinished work.
    Retry,
    /// The error is the final answer.
    Store,
    /// The outcome is unknown.
    Unknown,
}

/// How much of an answer is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remember {
    /// All of it.
    Full,
    /// That there was an answer, its status and the location of its result, but neither its body nor its
    /// other headers. A retry is told so, and nothing is executed again.
    Head,
}

/// What the same request gets after its key has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterExpiry {
    /// A new execution, as a new generation.
    New,
    /// 409, for as long as the tombstone exists.
    Reject,
}

/// How the path of a request is interpreted to find the rules that apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathReadings {
    /// In every way common among servers; the strictest of the matching rules apply.
    Common,
    /// Only as it is compared with the paths of routes.
    Exact,
}

/// What happens when the store is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreError {
    /// 503; no byte reaches the upstream.
    Refuse,
    /// The request goes through unprotected, and the answer says so.
    Bypass,
}

/// Which callers share a namespace of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyScope {
    /// Each authenticated client has its own namespace.
    PerClient,
    /// All callers share one namespace; another caller with the same key is refused.
    Global,
}

/// The shape of error bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorFormat {
    /// A problem body with an `error` object beside it.
    Hybrid,
    /// A problem body alone.
    Problem,
    /// An `error` object alone.
    Stripe,
}

/// The rules of reconciliation that the machine needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconcilePolicy {
    /// The delay of the first look after a key became unknown.
    pub after: Duration,
    /// Inconclusive looks after which a person has to decide.
    pub attempts: u16,
    /// How long the upstream may continue executing. Without this, a negative answer never releases a key.
    pub upstream_max_execution: Option<Duration>,
    /// How far apart two negative answers must be to release a key.
    pub negative_gap: Duration,
    /// Whether the provider can be queried. A provider that only sends webhooks is not asked again.
    pub asks: bool,
}

impl ReconcilePolicy {
    /// The default of [`negative_gap`](Self::negative_gap).
    pub const NEGATIVE_GAP: Duration = Duration::from_secs(60);
}

/// The upstream's own statement about the operation, in `Idempotency-Outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// The operation had no effect.
    NotExecuted,
    /// This is the final answer, whatever the status.
    Final,
    /// The upstream does not know.
    Unknown,
}

impl Declared {
    /// The value for the header's word; `None` for any other word.
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "not-executed" => Some(Self::NotExecuted),
            "final" => Some(Self::Final),
            "unknown" => Some(Self::Unknown),
            _ => None,
        }
    }
}

/// The facts about an answer that decide what becomes of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Its status.
    pub status: StatusCode,
    /// The upstream's own statement in `Idempotency-Outcome`.
    pub declared: Option<Declared>,
    /// Whether an earlier attempt of the key may have reached the handler.
    pub reached_before: bool,
    /// Whether a proxy says that it lost the request after sending it ([`lost_by_proxy`]).
    pub lost_by_proxy: bool,
}

/// What an answer means for the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The answer is final: every retry gets it.
    Complete,
    /// The key may be executed again.
    Release(LastError),
    /// The outcome is unknown.
    Unknown(LastError),
}

/// Everything the engine and the machine need to know about one route. Made by [`Policy::builder`], or by
/// [`Policy::resolve`] from configured options.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Policy {
    /// Whether keys are honoured at all.
    pub enabled: bool,
    /// The dialect that chose the defaults.
    pub dialect: Dialect,
    /// The profile that chose the defaults.
    pub profile: Profile,
    /// The header that carries the key.
    pub header_name: HeaderName,
    /// The header that marks a replay.
    pub replayed_header: HeaderName,
    /// The methods on which a key is honoured.
    pub methods: Vec<Method>,
    /// Which requests must carry a key.
    pub enforce: Enforce,
    /// The syntax rules for keys.
    pub key_rules: KeyRules,
    /// How long an answer is kept, from completion.
    pub ttl: Duration,
    /// How long a tombstone is kept after that.
    pub tombstone_ttl: Duration,
    /// What the same request gets after expiry.
    pub after_expiry: AfterExpiry,
    /// The largest request body, in bytes.
    pub max_request_body: u64,
    /// The largest response body that is stored, in bytes.
    pub max_body_size: u64,
    /// How much of an answer is stored.
    pub remember: Remember,
    /// Whether an answer that contains a card number is stored by its head only: in the profile `payments`,
    /// unless the store encrypts.
    pub hide_card_numbers: bool,
    /// What a retry gets while the first request is running.
    pub on_in_flight: OnInFlight,
    /// How long a retry waits, from its arrival.
    pub wait_timeout: Duration,
    /// What 500, 501, 503 and 505 to 511 mean.
    pub on_5xx: On5xx,
    /// Statuses declared to mean that the operation had no effect.
    pub release_statuses: Vec<StatusCode>,
    /// What happens when the store is unavailable.
    pub on_store_error: OnStoreError,
    /// How long an executor counts as alive without a renewal.
    pub lease: Duration,
    /// The time from dispatch to the end of the answer that the client waits.
    pub timeout: Duration,
    /// The time from dispatch to the end of the answer after which the key becomes unknown.
    pub max_execution: Duration,
    /// How long a client waits for its answer to become durable.
    pub completion_grace: Duration,
    /// The shape of error bodies.
    pub error_format: ErrorFormat,
    /// The status for a key that was used for another request.
    pub reused_status: StatusCode,
    /// The status for a missing key.
    pub missing_status: StatusCode,
    /// How requests are compared.
    pub recipe: Recipe,
    /// Waiters on one key; further ones are refused.
    pub waiters_per_key: usize,
    /// Waiters of one client; further ones are refused.
    pub waiters: usize,
    /// Executions of one client that may continue without it; beyond this, the client may bring no new keys.
    pub detached: usize,
    /// One client's new keys per second, and burst.
    pub new_keys: Option<(u32, u32)>,
    /// Keys of one client that may be in progress at a time.
    pub live_keys: Option<u64>,
    /// One client's lookups and misuses of keys per second.
    pub lookups_per_second: Option<u32>,
    /// The greatest age of a request that brings a new key.
    pub max_request_age: Option<Duration>,
    /// The header that says when a request was made.
    pub request_time_header: HeaderName,
    /// Whether keys are only observed: nothing is refused, replayed or remembered.
    pub shadow: bool,
    /// How unknown outcomes are reconciled.
    pub reconcile: Option<ReconcilePolicy>,
}

impl Policy {
    /// The part of `response` that may be stored, whoever gives it: the upstream, a provider or an operator.
    /// No other code decides that.
    pub fn storable(&self, response: &Arc<StoredResponse>) -> Arc<StoredResponse> {
        match self.stores_by_head(response) {
            true => Arc::new(response.head_only()),
            false => response.clone(),
        }
    }

    /// Whether only the head of `response` may be stored.
    pub fn stores_by_head(&self, response: &StoredResponse) -> bool {
        self.remember == Remember::Head || (self.hide_card_numbers && response.holds_card_number())
    }

    /// Whether new keys are refused on a store that may lose what it acknowledged.
    pub fn demands_sync(&self) -> bool {
        self.profile == Profile::Payments
    }

    /// Whether a key is honoured on a request that can be read as one of these methods.
    pub fn honours<'a>(&self, methods: impl Into<Methods<'a>>) -> bool {
        self.enabled && methods.into().iter().any(|method| self.lists(method))
    }

    /// Whether a request that can be read as one of these methods must carry a key.
    pub fn demands_key<'a>(&self, methods: impl Into<Methods<'a>>) -> bool {
        let demands = |method: &str| match self.enforce {
            Enforce::Off => false,
            Enforce::On if self.dialect == Dialect::Runway => true,
            Enforce::On => is(&Method::POST, method) || is(&Method::PATCH, method),
            Enforce::All => true,
        };
        self.enabled && {
            let mut methods = methods.into().iter();
            methods.any(|method| self.lists(method) && demands(method))
        }
    }

    /// Whether `method` is listed. OPTIONS and CONNECT never are.
    fn lists(&self, method: &str) -> bool {
        let never = [Method::OPTIONS, Method::CONNECT];
        self.methods.iter().any(|one| is(one, method)) && !never.iter().any(|one| is(one, method))
    }

    /// What an answer means for the key. No other code judges statuses.
    pub fn judge(&self, answered: &Answered) -> Verdict {
        match answered.declared {
            Some(Declared::NotExecuted) => return Verdict::Release(LastError::DeclaredNotExecuted),
            Some(Declared::Final) => return Verdict::Complete,
            Some(Declared::Unknown) => return Verdict::Unknown(LastError::DeclaredUnknown),
            None => {}
        }
        if answered.lost_by_proxy {
            return Verdict::Unknown(LastError::LostByProxy);
        }
        let code = answered.status.as_u16();
        let released = self.release_statuses.contains(&answered.status);
        match code {
            // A conflict on a later attempt may be about an earlier one.
            409 | 423 | 425 if answered.reached_before => {
                Verdict::Unknown(LastError::ConflictOnRetry)
            }
            // The client repeats the request elsewhere, under the same key.
            307 | 308 => Verdict::Release(LastError::Redirected),
            401 | 407 if released => Verdict::Release(LastError::CredentialRefused),
            _ if released => Verdict::Release(LastError::ReleasedStatus),
            // Not a final answer.
            ..200 => Verdict::Unknown(LastError::UpstreamError),
            // "Incomplete request" and "the client left": for a request that was sent whole, neither says
            // that nothing was done.
            408 | 499 => Verdict::Unknown(LastError::UpstreamError),
            200..500 => Verdict::Complete,
            // From an intermediary, which does not know what the handler did.
            502 | 504 | 512.. => Verdict::Unknown(LastError::UpstreamError),
            500..512 => match self.on_5xx {
                On5xx::Retry => Verdict::Release(LastError::UpstreamError),
                On5xx::Store => Verdict::Complete,
                On5xx::Unknown => Verdict::Unknown(LastError::UpstreamError),
            },
        }
    }
}

impl Policy {
    /// The name of a duration that must be positive and is not. With a `ttl`, lease or tombstone of zero a
    /// key could be executed again.
    pub fn not_positive(&self) -> Option<&'static str> {
        let durations = [
            ("ttl", self.ttl),
            ("tombstone_ttl", self.tombstone_ttl),
            ("lease", self.lease),
            ("max_execution", self.max_execution),
        ];
        let short = |(_, duration): &(_, Duration)| *duration < Duration::from_millis(1);
        durations
            .iter()
            .find(|one| short(one))
            .map(|(name, _)| *name)
    }
}

/// Whether `name` names `method`, in any letter case: some servers take `post` for POST.
fn is(method: &Method, name: &str) -> bool {
    method.as_str().eq_ignore_ascii_case(name)
}

impl Default for Policy {
    /// The default dialect and profile, switched on.
    fn default() -> Self {
        let on = Options {
            enabled: Some(true),
            ..Options::default()
        };
        Self::resolve(&on, &Options::default())
    }
}

#[cfg(test)]
mod tests;
