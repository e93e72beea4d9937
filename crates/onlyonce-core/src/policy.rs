//! What is stored, released or unknown, for how long, and which statuses tell the client: data, not
//! code paths.
//!
//! [`Options`] is what somebody wrote down; [`Policy`] is what holds after dialects, profiles and
//! defaults were laid under it.

mod options;

use std::time::Duration;

use http::{HeaderName, Method, StatusCode};

pub use options::{Dialect, FingerprintOptions, Options, Profile};

use crate::{
    fingerprint::Recipe,
    key::KeyRules,
    record::{Fence, LastError},
};

/// Which requests must carry a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforce {
    /// None must.
    Off,
    /// POST and PATCH must, where they are among the methods.
    On,
    /// Every listed method must.
    All,
}

/// What a retry meets while the first request is still running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnInFlight {
    /// It waits for the answer, up to the wait timeout.
    Wait,
    /// 409 at once.
    Reject,
    /// 202 at once, with the place to ask.
    Accept,
}

/// What a server error of the upstream says about the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On5xx {
    /// The operator declares that the API undoes what it could not finish.
    Retry,
    /// The error is the answer.
    Store,
    /// Nobody can tell.
    Unknown,
}

/// How much of an answer is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remember {
    /// All of it.
    Full,
    /// That there was one, its status and where its result is, but neither its bytes nor its other
    /// headers. A retry is told so, and nothing is executed again.
    Head,
}

/// What the same request meets after its key has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterExpiry {
    /// A new generation.
    New,
    /// 409, for as long as the tombstone stands.
    Reject,
}

/// What happens when the store cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreError {
    /// 503, and no byte reaches the upstream.
    Refuse,
    /// The request goes through unprotected, and says so.
    Bypass,
}

/// Whose keys share a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyScope {
    /// Each authenticated client has its own.
    PerClient,
    /// There is one; another caller with the same key is refused.
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
    /// The first look after a key became unknown.
    pub after: Duration,
    /// Inconclusive looks before a person has to decide.
    pub attempts: u16,
    /// How long the upstream may go on executing. Without it a negative answer never releases.
    pub upstream_max_execution: Option<Duration>,
}

/// What the upstream itself said about the operation, in `Idempotency-Outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// It left nothing behind.
    NotExecuted,
    /// This is the answer, whatever the status.
    Final,
    /// It does not know.
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

/// What an answer means for the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the answer that every retry gets.
    Complete,
    /// The key may be executed again.
    Release(LastError),
    /// Nobody can tell.
    Unknown(LastError),
}

/// Everything the engine and the machine need to know about one route.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Whether keys are looked at.
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
    /// Whose keys share a namespace; `None` follows the presence of authentication.
    pub key_scope: Option<KeyScope>,
    /// Whether each route has a namespace of its own.
    pub key_per_route: bool,
    /// What a key may look like.
    pub key_rules: KeyRules,
    /// How long an answer is kept, from completion.
    pub ttl: Duration,
    /// How long a tombstone stands after that.
    pub tombstone_ttl: Duration,
    /// What the same request meets then.
    pub after_expiry: AfterExpiry,
    /// The largest request body in bytes.
    pub max_request_body: u64,
    /// The largest response body in bytes that is stored.
    pub max_body_size: u64,
    /// How much of an answer is remembered.
    pub remember: Remember,
    /// What a retry meets while the first is running.
    pub on_in_flight: OnInFlight,
    /// How long a retry waits, from its arrival.
    pub wait_timeout: Duration,
    /// What 500, 501, 503 and above 504 mean.
    pub on_5xx: On5xx,
    /// Statuses that leave nothing behind.
    pub release_statuses: Vec<StatusCode>,
    /// What happens when the store cannot be asked.
    pub on_store_error: OnStoreError,
    /// How long an executor counts as alive without a sign.
    pub lease: Duration,
    /// From dispatch to the end of the answer, for the client.
    pub timeout: Duration,
    /// From dispatch to the end of the answer, for the key.
    pub max_execution: Duration,
    /// How long a client waits for its answer to become durable.
    pub completion_grace: Duration,
    /// The shape of error bodies.
    pub error_format: ErrorFormat,
    /// The status for a key that was used for another request.
    pub reused_status: StatusCode,
    /// The status for a missing key.
    pub missing_status: StatusCode,
    /// The headers that tell callers apart where there is no authentication.
    pub credential_headers: Vec<HeaderName>,
    /// How requests are compared.
    pub recipe: Recipe,
    /// Waiters on one key before further ones are refused.
    pub waiters_per_key: usize,
    /// Waiters of one client before further ones are refused.
    pub waiters: usize,
    /// New keys a second of one client, and at once.
    pub new_keys: Option<(u32, u32)>,
    /// Keys of one client that may be in progress or unknown.
    pub live_keys: Option<u64>,
    /// Questions about keys, and misuses of them, a second of one client.
    pub lookups_per_second: Option<u32>,
    /// The oldest request that may bring a new key.
    pub max_request_age: Option<Duration>,
    /// The header that says when a request was made.
    pub request_time_header: HeaderName,
    /// Whether keys are only observed: nothing is refused, replayed or remembered.
    pub shadow: bool,
    /// How unknown outcomes are looked into.
    pub reconcile: Option<ReconcilePolicy>,
}

impl Policy {
    /// Whether a key on this method is looked at.
    pub fn honours(&self, method: &Method) -> bool {
        self.enabled && self.methods.contains(method)
    }

    /// Whether a request with this method must carry a key.
    pub fn demands_key(&self, method: &Method) -> bool {
        self.honours(method)
            && match self.enforce {
                Enforce::Off => false,
                Enforce::On if self.dialect == Dialect::Runway => true,
                Enforce::On => method == Method::POST || method == Method::PATCH,
                Enforce::All => true,
            }
    }

    /// What an answer with `status` to the attempt `fence` means for the key.
    pub fn judge(&self, status: StatusCode, fence: Fence, declared: Option<Declared>) -> Verdict {
        match declared {
            Some(Declared::NotExecuted) => return Verdict::Release(LastError::DeclaredNotExecuted),
            Some(Declared::Final) => return Verdict::Complete,
            Some(Declared::Unknown) => return Verdict::Unknown(LastError::DeclaredUnknown),
            None => {}
        }
        // A conflict on a later attempt may be the upstream speaking of the first one.
        if fence > Fence::FIRST && matches!(status.as_u16(), 409 | 423 | 425) {
            return Verdict::Unknown(LastError::ConflictOnRetry);
        }
        if self.release_statuses.contains(&status) {
            return Verdict::Release(LastError::ReleasedStatus);
        }
        match status.as_u16() {
            // Not an answer at all.
            0..=199 => Verdict::Unknown(LastError::UpstreamError),
            200..=499 => Verdict::Complete,
            502 | 504 => Verdict::Unknown(LastError::UpstreamError),
            _ => match self.on_5xx {
                On5xx::Retry => Verdict::Release(LastError::UpstreamError),
                On5xx::Store => Verdict::Complete,
                On5xx::Unknown => Verdict::Unknown(LastError::UpstreamError),
            },
        }
    }
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
