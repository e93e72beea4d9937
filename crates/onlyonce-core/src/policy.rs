//! What is stored, released or unknown, for how long, and which statuses tell the client: data, not
//! code paths.
//!
//! [`Options`] is what somebody wrote down; [`Policy`] is what holds after dialects, profiles and
//! defaults were laid under it, and [`EdgeRules`] what of it concerns an edge alone.

mod builder;
mod edge_rules;
mod options;
mod proxies;

use std::time::Duration;

use http::{HeaderName, Method, StatusCode};

pub use builder::PolicyBuilder;
pub use edge_rules::EdgeRules;
pub use options::{Dialect, FingerprintOptions, Options, Profile, usual_session_cookies};
pub use proxies::lost_by_proxy;

use crate::{fingerprint::Recipe, key::KeyRules, readings::Methods, record::LastError};

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

/// How the path of a request is read to find the rules that hold for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathReadings {
    /// In every way that is common among servers; the strictest rules of all of them hold.
    Common,
    /// As it is compared with the paths of routes, and in no other way.
    Exact,
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
    /// How far apart two negative answers must be to release a key.
    pub negative_gap: Duration,
    /// Whether the provider can be asked. One that only tells of its own accord is not asked again.
    pub asks: bool,
}

impl ReconcilePolicy {
    /// [`negative_gap`](Self::negative_gap), unless said otherwise.
    pub const NEGATIVE_GAP: Duration = Duration::from_secs(60);
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

/// What is known of an answer, as far as it matters for the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Its status.
    pub status: StatusCode,
    /// What the upstream itself said beside it.
    pub declared: Option<Declared>,
    /// Whether an earlier attempt of the key can have reached the handler.
    pub reached_before: bool,
    /// Whether a proxy says that it lost the request after sending it ([`lost_by_proxy`]).
    pub lost_by_proxy: bool,
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

/// Everything the engine and the machine need to know about one route: made by [`Policy::builder`], or by
/// [`Policy::resolve`] from what a file says.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
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
    /// What 500, 501, 503 and 505 to 511 mean.
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
    /// How requests are compared.
    pub recipe: Recipe,
    /// Waiters on one key before further ones are refused.
    pub waiters_per_key: usize,
    /// Waiters of one client before further ones are refused.
    pub waiters: usize,
    /// Executions of one client that may run on without it before it may bring no new keys.
    pub detached: usize,
    /// New keys a second of one client, and at once.
    pub new_keys: Option<(u32, u32)>,
    /// Keys of one client that may be in progress.
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
    /// Whether an answer that holds a card number may be stored encrypted alone.
    pub fn hides_card_numbers(&self) -> bool {
        self.profile == Profile::Payments
    }

    /// Whether new keys are refused on a store that may lose what it acknowledged.
    pub fn demands_sync(&self) -> bool {
        self.profile == Profile::Payments
    }

    /// Whether a key on a request that can be read as one of these methods is looked at.
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

    /// Whether `method` is one of the listed ones. OPTIONS and CONNECT never are.
    fn lists(&self, method: &str) -> bool {
        let never = [Method::OPTIONS, Method::CONNECT];
        self.methods.iter().any(|one| is(one, method)) && !never.iter().any(|one| is(one, method))
    }

    /// What an answer means for the key: the only place that judges statuses.
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
            // A conflict on a later attempt may be the upstream speaking of an earlier one.
            409 | 423 | 425 if answered.reached_before => {
                Verdict::Unknown(LastError::ConflictOnRetry)
            }
            // The client sends the same request elsewhere, under the same key.
            307 | 308 => Verdict::Release(LastError::Redirected),
            401 | 407 if released => Verdict::Release(LastError::CredentialRefused),
            _ if released => Verdict::Release(LastError::ReleasedStatus),
            // Not an answer at all.
            ..200 => Verdict::Unknown(LastError::UpstreamError),
            // "I did not get all of it", or "the client left": of a request that was sent whole neither
            // says that nothing was done.
            408 | 499 => Verdict::Unknown(LastError::UpstreamError),
            200..500 => Verdict::Complete,
            // Said by something between us and the handler, which does not know.
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
    /// A duration that must be longer than nothing and is not, by its name: a memory, a lease or a tombstone
    /// that ends before it begins lets a key be executed again.
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
