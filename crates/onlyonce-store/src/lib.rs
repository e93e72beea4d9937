//! Stores for OnlyOnce's records.
//!
//! A store compares a revision and swaps; it never decides. [`onlyonce_core::machine`] decides what may
//! follow what, and the engine carries it out. This crate contains the contract ([`Store`]) and the stores.
//! The contract as tests is `onlyonce_testkit::conformance`.
//!
//! Deliberately absent: HTTP, the engine, test code, and any `match` on a record's state that leads to a
//! decision.

#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(all(
        feature = "sqlite",
        feature = "postgres",
        feature = "mysql",
        feature = "redis"
    )),
    allow(dead_code, reason = "of what stores share, one alone may need a part")
)]

pub mod at_rest;
pub mod clock;
pub mod codec;
mod debug;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[doc(hidden)]
pub mod failpoint;
mod find;
#[doc(hidden)]
pub mod forward;
#[cfg(all(test, feature = "redis", feature = "sqlite"))]
mod fuzz;
pub mod identity;
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
pub mod outbox;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "redis", feature = "dynamodb"))]
mod row;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "redis")]
pub mod tiered;
pub mod transactional;
#[cfg(any(feature = "postgres", feature = "redis", feature = "dynamodb"))]
mod wake;

use std::{collections::BTreeMap, fmt, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use http::StatusCode;
use onlyonce_core::{
    CallerMark, Key, Policy, Recipe, RecipeId, Record, RecordId, Scope, Secret, State, Timestamp,
    record::{Change, Draft, JournalEntry, Revision},
};
use tokio::sync::broadcast;

pub use find::{ROUTES_KNOWN, SCOPES_KNOWN, find, is_mark, mark_of, scope_id};
pub use identity::{Epoch, Identity, Loss, Standing};
pub use outbox::Outbox;
pub use transactional::TransactionalStore;

/// How many settled ids a slow listener may fall behind before it has to poll.
pub const WAKEUP_BACKLOG: usize = 1_024;

/// How often a store reads again what an acknowledged write survives.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "redis"))]
pub(crate) const LEVEL_EVERY: Duration = Duration::from_secs(2);

/// The name under which servers keep the engine's clock mark, beside the blocks.
pub(crate) const CLOCK_MARK: &str = "clock";

/// The most scopes that a store returns at once.
pub(crate) const SCOPES_AT_ONCE: usize = 1_000;

/// The longest name of a block, in bytes.
pub const MAX_BLOCK_NAME: usize = 56;

/// What an acknowledged write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing: the write is gone with the process.
    Volatile,
    /// Most things, but a failover may lose the newest writes.
    Async,
    /// A crash of the process and of the machine.
    Sync,
}

impl Level {
    /// The word for the level.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Volatile => "volatile",
            Self::Async => "async",
            Self::Sync => "sync",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a store could not carry out a call. An outcome that the machine can judge is never an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Nothing was written.
    #[error("the store is unavailable; nothing was written")]
    Unavailable(#[source] BoxError),
    /// The write may have happened. Read the record before acting on it.
    #[error("the store did not say whether it wrote")]
    Ambiguous(#[source] BoxError),
    /// A row of a newer version, or an unreadable one. The row is left unchanged.
    #[error("a stored record cannot be read by this version")]
    Unreadable(#[source] BoxError),
    /// Another transaction, still open, is creating this very key. Nothing was written, and the store is
    /// healthy.
    #[error("the key is being made in a transaction that is still open; nothing was written")]
    Held,
    /// The row under this id belongs to another scope or key, which means that something is deeply wrong.
    #[error("a stored record belongs to another key")]
    Collision,
}

/// Why a store that answers must not be used: what is wrong, and what an operator can do about it. It is
/// shown to everybody who asks whether the gateway is ready, so it names no host and no secret. It is the
/// source of a [`StoreError::Unavailable`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Unfit {
    why: String,
    forgot: bool,
}

impl Unfit {
    /// The reason, in words that anybody may read.
    pub fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            forgot: false,
        }
    }

    /// The same for a store that has lost keys, or is not the one that has them.
    pub fn forgot(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            forgot: true,
        }
    }

    /// Whether the store has lost keys, or is not the one that has them.
    pub fn has_forgotten(&self) -> bool {
        self.forgot
    }
}

/// Any error, boxed.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A future behind a pointer. What a public `async fn` does is compiled in every crate that awaits it; what
/// returns this is compiled here, once.
type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl StoreError {
    /// Why the store must not be used, if it answered and said so.
    pub fn unfit(&self) -> Option<&Unfit> {
        match self {
            Self::Unavailable(why) | Self::Ambiguous(why) => why.downcast_ref(),
            _ => None,
        }
    }

    /// Whether the write may have happened.
    pub fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Ambiguous(_))
    }
}

/// A value, and the store's time when it was read or written.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply<T> {
    /// The time by the store's clock.
    pub now: Timestamp,
    /// The value.
    pub value: T,
}

/// The result of an insert.
#[derive(Clone, Debug, PartialEq)]
pub enum Inserted {
    /// The key was absent; this is its new record.
    New(Record),
    /// The key was present; this is its record.
    Existing(Record),
}

/// The value of a copy of a record in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// Useless: the store is just as near.
    Needless,
    /// A copy saves a read, and only this process writes to the store.
    Owned,
    /// A copy saves a read, and other processes also write to the store.
    Shared,
}

/// The result of a swap.
#[derive(Clone, Debug, PartialEq)]
pub enum Swapped {
    /// The revision matched; this is the new record.
    Done(Record),
    /// The revision did not match; this is the current record.
    Conflict(Record),
    /// There is no such record.
    Absent,
}

/// A record as shown in lists: without its response, but with the response's status and size.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// The record; `response` is `None`.
    pub record: Record,
    /// Status and stored bytes of the response, if there is one.
    pub response: Option<(StatusCode, u64)>,
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    /// The items, newest first.
    pub items: Vec<T>,
    /// The cursor of the next page.
    pub next: Option<u64>,
}

impl<T> Page<T> {
    /// The page of numbered `rows`. One more than `limit` was requested, to see whether another page follows.
    pub(crate) fn cut(mut rows: Vec<(u64, T)>, limit: usize) -> Self {
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().map(|(number, _)| *number).filter(|_| more);
        Self {
            items: rows.into_iter().map(|(_, item)| item).collect(),
            next,
        }
    }
}

/// The criteria of a list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// Only this state.
    pub state: Option<State>,
    /// Only this route.
    pub route: Option<String>,
    /// Only keys of this client.
    pub client: Option<String>,
    /// Only this key.
    pub key: Option<Key>,
    /// Only dead letters, which wait for a person (`conformance::dead_letters_are_listed`).
    pub dead_letters: bool,
    /// Whether to leave out records under an encryption key that is not configured. Otherwise they make the
    /// list fail, since a person would take them for absent.
    pub is_lenient: bool,
}

impl Filter {
    /// Whether only records in progress or unknown match, which are the few live ones.
    pub fn is_live(&self) -> bool {
        self.dead_letters || matches!(self.state, Some(State::InProgress | State::Unknown))
    }

    /// Whether `record` matches.
    pub fn admits(&self, record: &Record) -> bool {
        self.state.is_none_or(|state| record.state == state)
            && self
                .route
                .as_deref()
                .is_none_or(|route| &*record.route == route)
            && self.key.as_ref().is_none_or(|key| record.key == *key)
            && (record.dead_letter || !self.dead_letters)
            && self
                .client
                .as_deref()
                .is_none_or(|client| record.scope.client_id() == Some(client))
    }
}

/// A row of the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalRow {
    /// The row's number; later rows have higher numbers.
    pub number: u64,
    /// When the row was written, by the store's clock.
    pub at: Timestamp,
    /// The row's content.
    pub entry: JournalEntry,
}

/// A step of the reaper's walk.
#[derive(Clone, Debug, PartialEq)]
pub struct Walk {
    /// Records in this stretch that may be due.
    pub candidates: Vec<Record>,
    /// Whether the walk has reached its end and starts over.
    pub wrapped: bool,
}

/// Records per state.
pub type Counts = BTreeMap<State, u64>;

/// The contract of a store. Every promise names the conformance case that breaks it.
///
/// All methods are cancel-safe: if a future is dropped, its write happened whole or not at all.
/// Times in drafts are resolved by the store's own clock, which every reply carries.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// What an acknowledged write survives, as last seen: read from the server on every new connection and
    /// every few seconds on those in use, never assumed. The engine asks before every reservation, so this
    /// must not block.
    fn level(&self) -> Level;

    /// Whether copies of recent answers are worth keeping in memory, and who else could make them stale.
    fn copies(&self) -> Copies {
        Copies::Needless
    }

    /// The secret created with the schema, so that every node computes the same hashes.
    fn secret(&self) -> &Secret;

    /// The record under `id`, if the store has it at hand without waiting for a disk or a network. `None`
    /// means "ask properly", never "absent". The engine asks this first, so a store on this machine answers
    /// replays here.
    fn peek(&self, id: RecordId) -> Option<Reply<Record>> {
        let _ = id;
        None
    }

    /// The latest committed record (`conformance::fresh`).
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn lookup(&self, id: RecordId) -> Result<Reply<Option<Record>>, StoreError>;

    /// Inserts the draft if the key is absent; otherwise returns the existing record, unchanged.
    ///
    /// - **Atomic.** Of any number of concurrent calls for one key, exactly one returns
    ///   [`Inserted::New`]. Check-then-insert fails `conformance::one_winner`.
    /// - **Durable.** Once `New` is returned, the record survives what the level says.
    /// - **Fresh.** `Existing` is the latest committed record, never a lagging replica's.
    /// - **Exact.** Scope and key are compared on a hit; a difference is [`StoreError::Collision`]
    ///   (`conformance::collision_is_refused`).
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] promises that nothing was written; [`StoreError::Ambiguous`]
    /// makes the engine read again before it speaks to the upstream.
    async fn insert_or_get(&self, draft: Draft) -> Result<Reply<Inserted>, StoreError>;

    /// Writes the change if the record's revision is `expected`; otherwise returns the current record.
    ///
    /// - **Atomic with its journal.** Both or neither (`conformance::journal_with_the_swap`).
    /// - **One winner.** Of concurrent swaps from one revision, one succeeds
    ///   (`conformance::one_swap_wins`).
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn swap(&self, expected: Revision, change: Change) -> Result<Reply<Swapped>, StoreError>;

    /// Deletes the record if its revision is `expected`, and returns whether it did.
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn delete(&self, id: RecordId, expected: Revision) -> Result<bool, StoreError>;

    /// Writes journal rows that belong to no change.
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn append(&self, journal: Vec<JournalEntry>) -> Result<(), StoreError>;

    /// Deletes operators' journal rows that are older than `keep` and whose record is gone. Rows of an
    /// existing record are its history, and stay (`conformance::operators_rows_outlive_their_key`).
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn prune_audit(&self, keep: Duration) -> Result<(), StoreError>;

    /// Records in progress whose lease has lapsed, without their responses.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn lapsed(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError>;

    /// Unknown records that are due for the reconciler.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn due(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError>;

    /// The next stretch of the reaper's walk over all records: examines up to `limit` of them and returns
    /// those that may be due for expiry or deletion. The store remembers the position.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn walk(&self, limit: usize) -> Result<Reply<Walk>, StoreError>;

    /// Records, newest first. `cursor` is the `next` of an earlier page; records that exist all along are
    /// returned once each (`conformance::pages_are_stable`).
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, StoreError>;

    /// Records in any of `scopes`, newest first, as [`list`](Self::list) returns them; `filter` names neither
    /// a client nor a key. Other clients' records do not slow it down
    /// (`conformance::a_client_is_listed_in_pages`). `None` if the store would have to walk all records.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn list_in(
        &self,
        scopes: &[Scope],
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Option<Page<Listed>>, StoreError> {
        let _ = (scopes, filter, cursor, limit);
        Ok(None)
    }

    /// Stores `name`, the name of a scope, under `id`, its [`scope_id`], replacing any earlier value. Durable
    /// once it returns; a scope must be stored before the first record in it is written
    /// (`conformance::scopes_are_kept`).
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn keep_scope(&self, id: RecordId, name: &str) -> Result<(), StoreError> {
        let _ = (id, name);
        Ok(())
    }

    /// The next scopes after `after`, in the order of their ids: some, or none at the end. A scope stored twice
    /// at once may be returned twice. `None` if the store keeps no scopes, or may lose some.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn scopes(
        &self,
        after: Option<RecordId>,
    ) -> Result<Option<Vec<(RecordId, String)>>, StoreError> {
        let _ = after;
        Ok(None)
    }

    /// The records among `ids` that exist, each with its number: lists are ordered by number, and a cursor is
    /// a number (`conformance::a_key_is_found_by_probes`). A store that keeps scopes must implement it.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn listed(&self, ids: &[RecordId]) -> Result<Vec<(u64, Listed)>, StoreError> {
        let _ = ids;
        Ok(Vec::new())
    }

    /// The journal of one record, oldest first.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn history(&self, id: RecordId) -> Result<Vec<JournalRow>, StoreError>;

    /// The whole journal, newest first.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn audit(
        &self,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<JournalRow>, StoreError>;

    /// Records per state.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn counts(&self) -> Result<Counts, StoreError>;

    /// How many records of this scope and caller are in progress, that is, have a lease, counted up to
    /// `limit` (`conformance::live_counts_one_client`). Unknown records do not count: a brownout of the
    /// upstream would refuse everybody. The engine asks only if a client's live keys are limited, and
    /// rate-limits its calls for each client.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn live(
        &self,
        scope: &Scope,
        caller: Option<CallerMark>,
        limit: u64,
    ) -> Result<u64, StoreError>;

    /// Stores a recipe under its id, for ever.
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn keep_recipe(&self, recipe: &Recipe) -> Result<(), StoreError>;

    /// Stores what `policy` says about the keys of `route`, for programs that settle keys in this store
    /// without the gateway: SQL functions. A store without such programs stores nothing.
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn keep_policy(&self, route: &str, policy: &Policy) -> Result<(), StoreError> {
        let _ = (route, policy);
        Ok(())
    }

    /// A stored recipe.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn recipe(&self, id: RecipeId) -> Result<Option<Recipe>, StoreError>;

    /// Stores `bytes` under `name`, for ever, unless the name is taken; returns the stored bytes
    /// (`conformance::blocks_are_kept`). A name has at most [`MAX_BLOCK_NAME`] bytes.
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn keep_block(&self, name: &str, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
        let _ = (name, bytes);
        Err(no_blocks())
    }

    /// The bytes stored under `name`.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn block(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let _ = name;
        Err(no_blocks())
    }

    /// Stores `mark`, a process's view of this store's clock, in place of the last one
    /// (`conformance::the_clock_is_noted`). A store that ends with its process stores nothing.
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn note_clock(&self, mark: &[u8]) -> Result<(), StoreError> {
        let _ = mark;
        Ok(())
    }

    /// The last stored mark.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn noted_clock(&self) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(None)
    }

    /// The identity of this store when it was opened. All nodes on the same store see the same one.
    fn identity(&self) -> Identity {
        Identity::of_secret(self.secret())
    }

    /// Reads the store's current identity and epoch (`conformance::the_epoch_rises`). `None` if the store
    /// cannot be exchanged under the process: it ends with the process, or the process has locked it.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn standing(&self) -> Result<Option<Standing>, StoreError> {
        Ok(None)
    }

    /// Raises the epoch by one, durably, and returns it. Each of any number of concurrent calls sees it
    /// higher than before.
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn raise_epoch(&self) -> Result<Epoch, StoreError> {
        Ok(Epoch::default())
    }

    /// Records, durably and with the time, that this store has lost keys: every gateway on it sees that in
    /// [`standing`](Self::standing).
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn note_lost(&self, loss: Loss) -> Result<(), StoreError> {
        let _ = loss;
        Ok(())
    }

    /// Records that an operator accepts the loss of keys: gateways that knew more go on with what is left.
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn accept_incomplete(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Gives this store a new identity, which no copy shares, and returns it. Records stay valid; gateways
    /// must be restarted.
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn renew_identity(&self) -> Result<Identity, StoreError> {
        Err(StoreError::Unavailable(
            "the identity of this store cannot be changed".into(),
        ))
    }

    /// `bytes` about the record `id` in the form in which they may be written to disk beside the store:
    /// encrypted if the store is.
    fn conceal(&self, id: RecordId, bytes: Vec<u8>) -> Vec<u8> {
        let _ = id;
        bytes
    }

    /// The bytes that [`conceal`](Self::conceal) was given.
    ///
    /// # Errors
    /// [`StoreError::Unreadable`] if they were made with another key, for another record, or changed.
    fn reveal(&self, id: RecordId, bytes: Vec<u8>) -> Result<Vec<u8>, StoreError> {
        let _ = id;
        Ok(bytes)
    }

    /// Whether answers are encrypted before they are written.
    fn encrypts(&self) -> bool {
        false
    }

    /// Writes something insignificant, durably, to see whether records could be written now.
    ///
    /// # Errors
    /// Any [`StoreError`]: records could not be written.
    async fn probe(&self) -> Result<(), StoreError>;

    /// Closes the store cleanly: acknowledged writes are in place, an embedded store's file is complete by
    /// itself, and every later call is refused. A killed process loses nothing that the level promises.
    async fn close(&self) {}

    /// `change` in the form for [`Outbox::end_with_key`], which bypasses [`swap`](Self::swap): encrypted if
    /// the store encrypts.
    fn sealed(&self, change: Change) -> Change {
        change
    }

    /// A journal row in the form for [`Outbox::decide`].
    fn sealed_note(&self, entry: JournalEntry) -> JournalEntry {
        entry
    }

    /// The messages beside the records, if the store supports them.
    fn outbox(&self) -> Option<Arc<dyn Outbox>> {
        None
    }

    /// Ids of records that changed on any node, for waiters. Only a hint: waiters must still poll.
    fn wakeups(&self) -> broadcast::Receiver<RecordId>;
}

fn no_blocks() -> StoreError {
    StoreError::Unavailable("this store cannot keep what encryption and dictionaries need".into())
}

/// The time `keep` before `now`.
pub(crate) fn cutoff(now: Timestamp, keep: Duration) -> Timestamp {
    let keep = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
    Timestamp(now.0.saturating_sub(keep))
}

/// Unguessable bytes.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system's random source does not fail on Linux");
    bytes
}

/// A secret for a new store.
pub(crate) fn random_secret() -> Secret {
    Secret::from_bytes(random_bytes())
}
