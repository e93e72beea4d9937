//! The record of a key, and the form of a write to it.
//!
//! Deliberately absent: `Serialize`. Each store has its own versioned row and the admin API has its own
//! types, so that neither can change the other.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use crate::{
    fingerprint::{Fingerprint, RecipeId},
    key::{Key, Spelling, holds_card_number},
    policy::Policy,
    scope::Scope,
    secret::{CallerMark, RecordId, write_hex},
    time::{Stamp, Timestamp},
};

/// The state of a key. Code, SQL, JSON, metrics and UI use the same words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// An attempt owns the key and renews its lease.
    InProgress,
    /// The operation took effect and its answer is final.
    Completed,
    /// The operation is proven, or declared, to have had no effect.
    FailedRetryable,
    /// The outcome of the last attempt is not known.
    Unknown,
    /// A tombstone of a key that was completed or released.
    Expired,
}

impl State {
    /// Every state, in the order in which the documents list them.
    pub const ALL: [Self; 5] = [
        Self::InProgress,
        Self::Completed,
        Self::FailedRetryable,
        Self::Unknown,
        Self::Expired,
    ];

    /// The word for this state.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::FailedRetryable => "failed_retryable",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
        }
    }

    /// The state for a word; `None` for any other word, never a default.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// 128 random bits, new with every fence. A settlement, a heartbeat or a late result is judged by them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttemptId(pub u128);

impl AttemptId {
    /// The id of no attempt, for a request that only reads.
    pub const NOBODY: Self = Self(0);
}

impl fmt::Debug for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AttemptId({:032x})", self.0)
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0.to_be_bytes())
    }
}

/// Counts the executions of a key. It only rises while the row exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u32);

impl Fence {
    /// The first execution.
    pub const FIRST: Self = Self(1);

    /// The execution after this one.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Counts the writes to a row. A swap compares the revision.
///
/// It does not begin at 1: a row that was deleted and inserted again would repeat its numbers, and an
/// executor that slept through both would overwrite the new row with the old revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// Small enough that a store may keep the number as a double, as Redis scripts do.
    const START_BITS: u32 = 47;

    /// The revision of a row that `attempt` inserts.
    pub fn first_of(attempt: AttemptId) -> Self {
        let start = attempt.0 & ((1 << Self::START_BITS) - 1);
        Self(u64::try_from(start).expect("47 bits fit into 64"))
    }

    /// The revision after one more write.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Why a key is not completed: the closed list behind `last_error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LastError {
    /// No byte of the request was sent.
    NotSent,
    /// The lease had too little time left when the first byte was due, so nothing was sent.
    GuardFailed,
    /// The upstream answered with a status that releases the key.
    ReleasedStatus,
    /// The upstream rejected the request's credential before any handler saw the request.
    CredentialRefused,
    /// The upstream redirected the client with the same request.
    Redirected,
    /// The upstream answered with a server error.
    UpstreamError,
    /// The upstream declared that it did not execute.
    DeclaredNotExecuted,
    /// The upstream declared that it does not know.
    DeclaredUnknown,
    /// The upstream did not answer in time.
    Timeout,
    /// The connection was lost after a byte had been sent.
    ConnectionLost,
    /// A proxy behind the gateway reported that it lost the request after sending it.
    LostByProxy,
    /// The answer broke off before its end.
    Truncated,
    /// A conflict on a second or later attempt may be about the first attempt.
    ConflictOnRetry,
    /// The handler panicked.
    Panicked,
    /// The executor did not renew its lease in time.
    LeaseLapsed,
    /// An operator released the key.
    Operator,
    /// The provider stated that the operation did not happen.
    ProviderNegative,
    /// An answer that was not stored broke off after its key had been completed.
    StreamBroken,
}

impl LastError {
    /// Every value, for the documents and for decoders.
    pub const ALL: [Self; 18] = [
        Self::NotSent,
        Self::GuardFailed,
        Self::ReleasedStatus,
        Self::CredentialRefused,
        Self::Redirected,
        Self::UpstreamError,
        Self::DeclaredNotExecuted,
        Self::DeclaredUnknown,
        Self::Timeout,
        Self::ConnectionLost,
        Self::LostByProxy,
        Self::Truncated,
        Self::ConflictOnRetry,
        Self::Panicked,
        Self::LeaseLapsed,
        Self::Operator,
        Self::ProviderNegative,
        Self::StreamBroken,
    ];

    /// The word for the error, as in the admin API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotSent => "not_sent",
            Self::GuardFailed => "guard_failed",
            Self::ReleasedStatus => "released_status",
            Self::CredentialRefused => "credential_refused",
            Self::Redirected => "redirected",
            Self::UpstreamError => "upstream_error",
            Self::DeclaredNotExecuted => "declared_not_executed",
            Self::DeclaredUnknown => "declared_unknown",
            Self::Timeout => "timeout",
            Self::ConnectionLost => "connection_lost",
            Self::LostByProxy => "lost_by_proxy",
            Self::Truncated => "truncated",
            Self::ConflictOnRetry => "conflict_on_retry",
            Self::Panicked => "panicked",
            Self::LeaseLapsed => "lease_lapsed",
            Self::Operator => "operator",
            Self::ProviderNegative => "provider_negative",
            Self::StreamBroken => "stream_broken",
        }
    }

    /// The value for a word; `None` for any other word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|error| error.as_str() == word)
    }

    /// Whether this error proves that the attempt did not reach the handler.
    pub fn is_unreached(self) -> bool {
        matches!(
            self,
            Self::NotSent | Self::GuardFailed | Self::CredentialRefused
        )
    }
}

/// The headers of an answer that are stored without its bytes.
const HEAD_ONLY: [HeaderName; 3] = [header::LOCATION, header::CONTENT_LOCATION, header::ETAG];

/// The answer that every retry gets.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredResponse {
    /// The status as the upstream sent it.
    pub status: StatusCode,
    /// The headers that may be replayed, in order, repeated ones included.
    pub headers: HeaderMap,
    /// The bytes, or the fact that they were not stored.
    pub body: StoredBody,
}

/// The body of a stored response.
#[derive(Clone, Debug, PartialEq)]
pub enum StoredBody {
    /// Every byte, and the trailers that followed them.
    Full {
        /// The body's bytes.
        bytes: Bytes,
        /// The trailers, if there were any.
        trailers: Option<HeaderMap>,
    },
    /// The answer was too large, endless, or must not be stored. The operation is never executed again
    /// because of that.
    NotStored,
    /// The whole answer, headers included, as a block that only the store layer can open. Code above that
    /// layer never sees one.
    Packed {
        /// The block.
        block: Bytes,
        /// The length of the body inside the block, in bytes.
        length: u64,
    },
}

impl StoredResponse {
    /// A response without headers, for operators and tests.
    pub fn plain(status: StatusCode, bytes: impl Into<Bytes>) -> Self {
        Self {
            status,
            headers: HeaderMap::new(),
            body: StoredBody::Full {
                bytes: bytes.into(),
                trailers: None,
            },
        }
    }

    /// The answer without its bytes: its status, and where to find the resource that it created.
    pub fn head_only(&self) -> Self {
        let mut headers = HeaderMap::new();
        for name in &HEAD_ONLY {
            for value in self.headers.get_all(name) {
                let value = value.as_bytes();
                // Copied, since a value of an answer may be a part of a buffer that holds its body too.
                if !holds_card_number(value)
                    && let Ok(value) = HeaderValue::from_bytes(value)
                {
                    headers.append(name, value);
                }
            }
        }
        Self {
            status: self.status,
            headers,
            body: StoredBody::NotStored,
        }
    }

    /// Whether the answer contains a card number.
    pub(crate) fn holds_card_number(&self) -> bool {
        let (bytes, trailers) = match &self.body {
            StoredBody::Full { bytes, trailers } => (&bytes[..], trailers.as_ref()),
            StoredBody::NotStored | StoredBody::Packed { .. } => (&[][..], None),
        };
        let mut fields = self
            .headers
            .values()
            .chain(trailers.into_iter().flat_map(HeaderMap::values));
        holds_card_number(bytes) || fields.any(|value| holds_card_number(value.as_bytes()))
    }

    /// Only the fact that there was an answer with this status.
    pub fn bare(status: StatusCode) -> Self {
        Self {
            status,
            headers: HeaderMap::new(),
            body: StoredBody::NotStored,
        }
    }

    /// How many bytes of the body are stored.
    pub fn stored_bytes(&self) -> u64 {
        match &self.body {
            StoredBody::Full { bytes, .. } => bytes.len() as u64,
            StoredBody::NotStored => 0,
            StoredBody::Packed { length, .. } => *length,
        }
    }
}

/// A provider's or operator's statement about an attempt whose end was not seen.
#[derive(Clone, Debug, PartialEq)]
pub enum Evidence {
    /// The operation took effect; this is its answer.
    Completed(Arc<StoredResponse>),
    /// The operation had no effect.
    NotExecuted,
    /// There were contradictory statements, or one about an earlier attempt. This proves nothing, and a
    /// person has to decide.
    Contradictory,
}

impl Evidence {
    /// Whether the two cannot both be true, or one of them proves nothing.
    pub fn contradicts(&self, other: &Self) -> bool {
        !matches!(
            (self, other),
            (Self::Completed(_), Self::Completed(_)) | (Self::NotExecuted, Self::NotExecuted)
        )
    }
}

/// How the caller's mark of a record was made. A retry is compared by a mark made the same way, so that a
/// configuration change never makes a retry look like another caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum MarkedBy {
    /// From the client's id or the credential headers; the only way in releases before this was recorded.
    #[default]
    Credentials,
    /// From the session cookies, since no credential was sent.
    Cookies,
}

/// Fields that most records do not need, or that a later release added. A row without them reads as
/// [`Notes::default`], so each default is the cautious one.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Notes {
    /// The spelling of the key in its first attempt. `None` on rows written before spellings were kept.
    pub spelling: Option<Spelling>,
    /// How the caller's mark was made.
    pub marked_by: MarkedBy,
    /// Whether it is proven that no attempt before the current one reached the handler: each was unsent, or
    /// its credential was rejected. Generations whose tombstone has ended do not count.
    pub never_reached: bool,
    /// When the first counted negative answer of the provider came, by the store's clock.
    pub negative_at: Option<Timestamp>,
    /// Whether personal data was erased: key, path and answer are gone, hashes and state remain.
    pub erased: bool,
    /// Whether the key was completed on the word of an operator or the provider, and its attempt has
    /// committed no effect of its own since. Otherwise the attempt that completed a key has committed its
    /// effect.
    pub attested: bool,
}

/// The time fields of a record. `T` is [`Option<Timestamp>`] in a record and [`Stamp`] in a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Times<T> {
    /// When the first request of this key arrived.
    pub created_at: T,
    /// When the current attempt was reserved.
    pub last_run_at: T,
    /// When the answer became durable.
    pub completed_at: T,
    /// When the key may be expired. Never set while in progress or unknown.
    pub expires_at: T,
    /// When the lease ends.
    pub lease_until: T,
    /// When the key became unknown.
    pub unknown_since: T,
    /// When the reconciler next checks the key.
    pub reconcile_after: T,
    /// When a tombstone may be deleted.
    pub delete_at: T,
}

/// Everything stored about one key.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// A keyed hash of scope and key, on which indexes are built.
    pub id: RecordId,
    /// The scope of the key.
    pub scope: Scope,
    /// The key itself, compared on every hit, whatever the index says.
    pub key: Key,
    /// The route that reserved the key.
    pub route: Arc<str>,
    /// The request's method.
    pub method: Arc<str>,
    /// The request's path and query, as forwarded.
    pub path: Arc<str>,
    /// The current revision.
    pub revision: Revision,
    /// The state of the key.
    pub state: State,
    /// The attempt that may settle the key.
    pub attempt_id: AttemptId,
    /// How many times the key was dispatched.
    pub fence: Fence,
    /// How many generations the key has had: 1, and one more after each expiry.
    pub generation: u32,
    /// The fingerprint of the request. `None` after a forget: then any request may begin a new generation.
    pub fingerprint: Option<Fingerprint>,
    /// The recipe of the fingerprint.
    pub recipe: RecipeId,
    /// The caller who reserved the key, if callers share the scope.
    pub caller: Option<CallerMark>,
    /// How long a tombstone is kept.
    pub tombstone_ttl: Duration,
    /// Why the key is not completed.
    pub last_error: Option<LastError>,
    /// The answer, while the key is completed.
    pub response: Option<Arc<StoredResponse>>,
    /// The provider's statement about the current attempt while it was still running.
    pub evidence: Option<Evidence>,
    /// Consecutive negative answers of the provider.
    pub negatives: u16,
    /// Queries that had no conclusive result.
    pub inconclusive: u16,
    /// Whether a person has to decide.
    pub dead_letter: bool,
    /// Fields that few records need.
    pub notes: Notes,
    /// The times of events, by the store's clock.
    pub times: Times<Option<Timestamp>>,
}

impl Record {
    /// Whether this is the record of `key` in `scope`, whatever the index says. An erased record keeps
    /// nothing of its key but the hash.
    pub fn is_of(&self, scope: &Scope, key: &Key) -> bool {
        self.scope == *scope && (self.notes.erased || self.key == *key)
    }

    /// Removes the data that identifies a person. The record can still be found by its hash.
    pub(crate) fn erase_names(&mut self) {
        let spelling = self.notes.spelling.take();
        self.notes.spelling = spelling.and_then(|spelling| spelling.without(&self.key));
        self.key = Key::from_stored("");
        self.path = Arc::from("");
        self.notes.erased = true;
    }

    /// The part of `response` that this record may keep: only its status once the record is erased, and
    /// otherwise what `policy` allows.
    pub(crate) fn keeps(
        &self,
        response: &Arc<StoredResponse>,
        policy: &Policy,
    ) -> Arc<StoredResponse> {
        match self.notes.erased {
            true => Arc::new(StoredResponse::bare(response.status)),
            false => policy.storable(response),
        }
    }

    /// When the record's answer expires, if it has a final one that only expiry or an operator can remove.
    pub fn answers_until(&self) -> Option<Timestamp> {
        let times = &self.times;
        let is_final = self.response.is_some()
            && times.completed_at.is_some()
            && times.lease_until.is_none()
            && times.unknown_since.is_none();
        times.expires_at.filter(|_| is_final)
    }

    /// When an operator forgot the key, if the record is what a forget leaves.
    pub fn forgotten_at(&self) -> Option<Timestamp> {
        let is_forgotten = self.state == State::Expired && self.fingerprint.is_none();
        self.times.expires_at.filter(|_| is_forgotten)
    }

    /// Whether `now` is past the record's expiry, whether it was reaped or not.
    pub fn is_past_expiry(&self, now: Timestamp) -> bool {
        self.times.expires_at.is_some_and(|at| at <= now)
    }

    /// The names under which a recipient of the key may know it.
    pub fn names(&self) -> Vec<Cow<'_, str>> {
        self.key.names(self.notes.spelling.as_ref())
    }

    /// Whether the key was released because the upstream redirected its client: the same key then comes
    /// with another request, and the fingerprint does not bind.
    pub fn is_redirected(&self) -> bool {
        let settled = matches!(self.state, State::FailedRetryable | State::Expired);
        settled && self.last_error == Some(LastError::Redirected)
    }

    /// Whether an attempt before the current one, in this generation or an earlier one that is still
    /// remembered, may have reached the handler.
    pub fn reached_before(&self) -> bool {
        self.fence > Fence::FIRST && !self.notes.never_reached
    }

    /// Whether it is proven that neither the attempt that ended nor an earlier one reached the handler.
    pub(crate) fn reached_nobody(&self) -> bool {
        !self.reached_before() && self.last_error.is_some_and(LastError::is_unreached)
    }

    /// Whether the lease has lapsed.
    pub fn lease_lapsed(&self, now: Timestamp) -> bool {
        self.times.lease_until.is_none_or(|until| until <= now)
    }
}

/// A record to be written. Its times are stamps, which the store resolves.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// Everything but the times; its times are those of the record that this draft replaces.
    pub record: Record,
    /// The times to write.
    pub stamps: Times<Stamp>,
}

impl Draft {
    /// The next write of `record`: the next revision, all times kept.
    pub fn after(record: &Record) -> Self {
        let mut next = record.clone();
        next.revision = record.revision.next();
        let times = record.times;
        Self {
            record: next,
            stamps: Times {
                created_at: times.created_at.into(),
                last_run_at: times.last_run_at.into(),
                completed_at: times.completed_at.into(),
                expires_at: times.expires_at.into(),
                lease_until: times.lease_until.into(),
                unknown_since: times.unknown_since.into(),
                reconcile_after: times.reconcile_after.into(),
                delete_at: times.delete_at.into(),
            },
        }
    }

    /// The record as stored by a store whose clock says `now`.
    pub fn stamp(self, now: Timestamp) -> Record {
        let stamps = self.stamps;
        let mut record = self.record;
        record.times = Times {
            created_at: stamps.created_at.resolve(now),
            last_run_at: stamps.last_run_at.resolve(now),
            completed_at: stamps.completed_at.resolve(now),
            expires_at: stamps.expires_at.resolve(now),
            lease_until: stamps.lease_until.resolve(now),
            unknown_since: stamps.unknown_since.resolve(now),
            reconcile_after: stamps.reconcile_after.resolve(now),
            delete_at: stamps.delete_at.resolve(now),
        };
        record
    }
}

/// The event of a journal row: the closed list behind `event` in the history and the audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JournalEvent {
    /// A released key was dispatched again.
    ExecutedAgain,
    /// An expired key was dispatched as a new generation.
    ExecutedAfterExpiry,
    /// The key was released: the operation had no effect.
    Released,
    /// The outcome of the attempt is not known.
    BecameUnknown,
    /// The executor did not renew its lease in time.
    LeaseLapsed,
    /// A late result of the current attempt settled an unknown key.
    LateResult,
    /// An answer that was not stored broke off after its key had been completed.
    StreamBroken,
    /// A key that had been released turned out to have been executed.
    ReleaseWasWrong,
    /// A result arrived from an attempt that no longer owns the key.
    DuplicateExecutionSuspected,
    /// The provider's statement settled the key.
    Reconciled,
    /// The provider's statement was kept while the attempt was running.
    EvidenceKept,
    /// The provider's answer was not conclusive.
    Inconclusive,
    /// The provider does not know the key, which does not release it yet.
    NegativeAnswer,
    /// A provider's webhook was accepted; it is not accepted again.
    WebhookTaken,
    /// A route's query, as configured at the time, has found a key.
    QueryProven,
    /// A person has to decide.
    DeadLettered,
    /// An operator settled the key.
    Resolved,
    /// An operator changed the expiry.
    Extended,
    /// An operator forgot the key: any request may begin a new generation.
    Forgotten,
    /// An operator erased a person's data, and left what prevents a second execution.
    Erased,
    /// The key expired.
    Expired,
    /// An operator viewed the stored answer.
    ResponseShown,
    /// An operator had a message sent again.
    MessageRetried,
    /// An operator discarded a message.
    MessageDiscarded,
    /// An operator accepted that the store has lost keys.
    LossAccepted,
}

impl JournalEvent {
    /// Every value, for the documents and for decoders.
    pub const ALL: [Self; 25] = [
        Self::ExecutedAgain,
        Self::ExecutedAfterExpiry,
        Self::Released,
        Self::BecameUnknown,
        Self::LeaseLapsed,
        Self::LateResult,
        Self::StreamBroken,
        Self::ReleaseWasWrong,
        Self::DuplicateExecutionSuspected,
        Self::Reconciled,
        Self::EvidenceKept,
        Self::Inconclusive,
        Self::NegativeAnswer,
        Self::WebhookTaken,
        Self::QueryProven,
        Self::DeadLettered,
        Self::Resolved,
        Self::Extended,
        Self::Forgotten,
        Self::Erased,
        Self::Expired,
        Self::ResponseShown,
        Self::MessageRetried,
        Self::MessageDiscarded,
        Self::LossAccepted,
    ];

    /// The word for the event.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ExecutedAgain => "executed_again",
            Self::ExecutedAfterExpiry => "executed_after_expiry",
            Self::Released => "released",
            Self::BecameUnknown => "became_unknown",
            Self::LeaseLapsed => "lease_lapsed",
            Self::LateResult => "late_result",
            Self::StreamBroken => "stream_broken",
            Self::ReleaseWasWrong => "release_was_wrong",
            Self::DuplicateExecutionSuspected => "duplicate_execution_suspected",
            Self::Reconciled => "reconciled",
            Self::EvidenceKept => "evidence_kept",
            Self::Inconclusive => "inconclusive",
            Self::NegativeAnswer => "negative_answer",
            Self::WebhookTaken => "webhook_taken",
            Self::QueryProven => "query_proven",
            Self::DeadLettered => "dead_lettered",
            Self::Resolved => "resolved",
            Self::Extended => "extended",
            Self::Forgotten => "forgotten",
            Self::Erased => "erased",
            Self::Expired => "expired",
            Self::ResponseShown => "response_shown",
            Self::MessageRetried => "message_retried",
            Self::MessageDiscarded => "message_discarded",
            Self::LossAccepted => "loss_accepted",
        }
    }

    /// The value for a word; `None` for any other word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.as_str() == word)
    }
}

/// Who made a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The executor of an attempt.
    Executor,
    /// The background loop that finds lapsed leases.
    Sweeper,
    /// The background loop that expires keys.
    Reaper,
    /// The background loop that asks providers.
    Reconciler,
    /// A person or a program with the admin token.
    Operator,
}

impl Actor {
    /// The word for the actor.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Executor => "executor",
            Self::Sweeper => "sweeper",
            Self::Reaper => "reaper",
            Self::Reconciler => "reconciler",
            Self::Operator => "operator",
        }
    }

    /// The value for a word; `None` for any other word.
    pub fn from_word(word: &str) -> Option<Self> {
        [
            Self::Executor,
            Self::Sweeper,
            Self::Reaper,
            Self::Reconciler,
            Self::Operator,
        ]
        .into_iter()
        .find(|actor| actor.as_str() == word)
    }
}

/// A row of a key's history, written atomically with the change that it describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// The key.
    pub id: RecordId,
    /// What happened.
    pub event: JournalEvent,
    /// The state before.
    pub from: Option<State>,
    /// The state after.
    pub to: Option<State>,
    /// The fence of the attempt.
    pub attempt: u32,
    /// Who made the change.
    pub actor: Actor,
    /// A reason or an error word; never a key, a body or a credential.
    pub detail: Option<String>,
}

/// A write and the journal rows that belong to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The record to write.
    pub draft: Box<Draft>,
    /// The journal rows to write with it.
    pub journal: Vec<JournalEntry>,
}
