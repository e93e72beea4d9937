//! Where OnlyOnce keeps its records.
//!
//! A store compares a revision and swaps; it never decides. What may follow what is decided by
//! [`onlyonce_core::machine`], and the engine carries it out. This crate holds the contract
//! ([`Store`]) and the stores. The contract as tests is `onlyonce_testkit::conformance`.
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

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

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

/// How many settled ids a slow listener may fall behind before it has to look for itself.
pub const WAKEUP_BACKLOG: usize = 1_024;

/// How often a store reads again what its acknowledged writes survive.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "redis"))]
pub(crate) const LEVEL_EVERY: Duration = Duration::from_secs(2);

/// The name under which servers keep what is believed of their clock, beside the blocks.
pub(crate) const CLOCK_MARK: &str = "clock";

/// Scopes that a store names at once.
pub(crate) const SCOPES_AT_ONCE: usize = 1_000;

/// Bytes of a block's name.
pub const MAX_BLOCK_NAME: usize = 56;

/// What an acknowledged write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing: it is gone with the process.
    Volatile,
    /// Most things, but a failover may lose the newest writes.
    Async,
    /// A crash of the process and of the machine.
    Sync,
}

impl Level {
    /// The word for it.
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

/// Why a store could not do what it was asked. An outcome that the machine can judge is never an
/// error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Nothing was written.
    #[error("the store is unavailable; nothing was written")]
    Unavailable(#[source] BoxError),
    /// The write may have happened. Read before you speak to anybody.
    #[error("the store did not say whether it wrote")]
    Ambiguous(#[source] BoxError),
    /// A row of a newer version, or one that cannot be read. It is left as it is.
    #[error("a stored record cannot be read by this version")]
    Unreadable(#[source] BoxError),
    /// Somebody else is making this very key, in a transaction that stays open. Nothing was written, and
    /// the store is well.
    #[error("the key is being made in a transaction that is still open; nothing was written")]
    Held,
    /// The row under this id belongs to another scope or key. Something is deeply wrong.
    #[error("a stored record belongs to another key")]
    Collision,
}

/// Why a store that answers must not be used: what is wrong with it, and what an operator does about it.
/// Said to everybody who asks whether the gateway is ready, so it names no host and no secret. Stands as
/// the source of a [`StoreError::Unavailable`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Unfit {
    why: String,
    forgot: bool,
}

impl Unfit {
    /// Why, in words that anybody may read.
    pub fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            forgot: false,
        }
    }

    /// The same of a store that has lost keys, or is not the one that has them.
    pub fn forgot(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            forgot: true,
        }
    }

    /// Whether it has lost keys, or is not the one that has them.
    pub fn has_forgotten(&self) -> bool {
        self.forgot
    }
}

/// Any error, boxed.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl StoreError {
    /// Why the store must not be used, where it answers and says so.
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

/// A value, and what the store's clock said when it was read or written.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply<T> {
    /// The store's clock.
    pub now: Timestamp,
    /// The value.
    pub value: T,
}

/// What an insert found.
#[derive(Clone, Debug, PartialEq)]
pub enum Inserted {
    /// The key was absent; this is its record now.
    New(Record),
    /// The key was there.
    Existing(Record),
}

/// What a copy of a record in this process is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// Nothing: the store is as near.
    Needless,
    /// A read is spared, and only this process writes to the store.
    Owned,
    /// A read is spared, and other processes write to the store as well.
    Shared,
}

/// What a swap found.
#[derive(Clone, Debug, PartialEq)]
pub enum Swapped {
    /// The revision matched; this is the record now.
    Done(Record),
    /// It did not; this is what is there.
    Conflict(Record),
    /// There is no such record.
    Absent,
}

/// A record as lists show it: without its response, but with what is worth knowing of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// The record; `response` is `None`.
    pub record: Record,
    /// Status and stored bytes of the response, where there is one.
    pub response: Option<(StatusCode, u64)>,
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    /// The items, newest first.
    pub items: Vec<T>,
    /// Where the next page begins.
    pub next: Option<u64>,
}

impl<T> Page<T> {
    /// The page of numbered `rows`, of which one more than `limit` was asked for to see whether
    /// there are more.
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

/// What a list is to show.
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
    /// Only what waits for a person (`conformance::dead_letters_are_listed`).
    pub dead_letters: bool,
    /// Whether records under an encryption key that is not configured are left out. Otherwise they make the
    /// list fail: a person would take them for absent.
    pub is_lenient: bool,
}

impl Filter {
    /// Whether all that is to be shown is in progress or unknown, and so among the few that live.
    pub fn is_live(&self) -> bool {
        self.dead_letters || matches!(self.state, Some(State::InProgress | State::Unknown))
    }

    /// Whether `record` is to be shown.
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

/// A line of the journal as it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalRow {
    /// Its number; later rows have higher ones.
    pub number: u64,
    /// When it was written, by the store's clock.
    pub at: Timestamp,
    /// What it says.
    pub entry: JournalEntry,
}

/// A step of the reaper's walk.
#[derive(Clone, Debug, PartialEq)]
pub struct Walk {
    /// Records on this stretch that may be due.
    pub candidates: Vec<Record>,
    /// Whether the walk has come to its end and begins anew.
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
    /// What an acknowledged write survives, as it was last seen: read from the server on every new
    /// connection and every few seconds on those in use, never assumed. The engine asks before every
    /// reservation, so this must not wait.
    fn level(&self) -> Level;

    /// Whether copies of recent answers are worth keeping in memory, and who else could make them untrue.
    fn copies(&self) -> Copies {
        Copies::Needless
    }

    /// The secret that was created with the schema, so that every node agrees on hashes.
    fn secret(&self) -> &Secret;

    /// What is remembered of `id`, if the store can tell at once, without waiting for a disk or a
    /// network. `None` means "ask properly", never "absent". The engine asks this first, so a store
    /// on this machine answers replays here.
    fn peek(&self, id: RecordId) -> Option<Reply<Record>> {
        let _ = id;
        None
    }

    /// The latest committed record (`conformance::fresh`).
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn lookup(&self, id: RecordId) -> Result<Reply<Option<Record>>, StoreError>;

    /// Inserts the draft if the key is absent; otherwise returns what is there, unchanged.
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

    /// Writes the change if the record's revision is `expected`; otherwise returns what is there.
    ///
    /// - **Atomic with its journal.** Both or neither (`conformance::journal_with_the_swap`).
    /// - **One winner.** Of concurrent swaps from one revision, one succeeds
    ///   (`conformance::one_swap_wins`).
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn swap(&self, expected: Revision, change: Change) -> Result<Reply<Swapped>, StoreError>;

    /// Deletes the record if its revision is `expected`, and says whether it did.
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn delete(&self, id: RecordId, expected: Revision) -> Result<bool, StoreError>;

    /// Writes journal rows that belong to no change.
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn append(&self, journal: Vec<JournalEntry>) -> Result<(), StoreError>;

    /// Deletes the journal rows of operators that are older than `keep` and whose record is gone. Rows
    /// of a record that is still there are its history, and stay
    /// (`conformance::operators_rows_outlive_their_key`).
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn prune_audit(&self, keep: Duration) -> Result<(), StoreError>;

    /// Records in progress whose lease has run out, without their responses.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn lapsed(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError>;

    /// Unknown records that the reconciler is due to look at.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn due(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError>;

    /// The next stretch of the reaper's walk over all records: looks at up to `limit` of them and
    /// returns those that may be due for expiry or deletion. The store remembers where it was.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn walk(&self, limit: usize) -> Result<Reply<Walk>, StoreError>;

    /// Records, newest first. `cursor` is the `next` of an earlier page; records that were there
    /// all along are seen once each (`conformance::pages_are_stable`).
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, StoreError>;

    /// Records in any of `scopes`, newest first, as [`list`](Self::list) shows them; `filter` names neither
    /// a client nor a key. It takes no longer among many records of others than among few
    /// (`conformance::a_client_is_listed_in_pages`). `None` where the store would have to walk all records.
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

    /// Keeps `name` under `id`, in place of what is kept there: the name of a scope, under its
    /// [`scope_id`]. Durable once it returns; whoever makes a record sees to it first that its scope is
    /// known (`conformance::scopes_are_kept`).
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn keep_scope(&self, id: RecordId, name: &str) -> Result<(), StoreError> {
        let _ = (id, name);
        Ok(())
    }

    /// The next scopes after `after`, in the order of their ids: some, or none at the end. One that several
    /// keep at once may be named twice. `None` where the store keeps none, or may lose some.
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

    /// Those of `ids` that are there, each with its number: lists are in the order of numbers, and a cursor
    /// is one (`conformance::a_key_is_found_by_probes`). A store that keeps scopes has to have it.
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

    /// How many records of this scope and caller are in progress, counted up to `limit`: those with a
    /// lease, which their times tell (`conformance::live_counts_one_client`). Unknown ones do not count: a
    /// brownout of the upstream would refuse everybody. The engine asks only where a client's live keys are
    /// limited, and at most every so often for one client.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn live(
        &self,
        scope: &Scope,
        caller: Option<CallerMark>,
        limit: u64,
    ) -> Result<u64, StoreError>;

    /// Keeps a recipe under its id, for ever.
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn keep_recipe(&self, recipe: &Recipe) -> Result<(), StoreError>;

    /// Notes what `policy` says of the keys of `route`, for programs that settle keys in this store
    /// without being told: SQL functions. A store that has no such programs has nothing to note.
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn keep_policy(&self, route: &str, policy: &Policy) -> Result<(), StoreError> {
        let _ = (route, policy);
        Ok(())
    }

    /// A recipe that was kept.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn recipe(&self, id: RecipeId) -> Result<Option<Recipe>, StoreError>;

    /// Keeps `bytes` under `name`, for ever, unless something is kept there; returns what is
    /// (`conformance::blocks_are_kept`). A name has at most [`MAX_BLOCK_NAME`] bytes.
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn keep_block(&self, name: &str, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
        let _ = (name, bytes);
        Err(no_blocks())
    }

    /// What is kept under `name`.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn block(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let _ = name;
        Err(no_blocks())
    }

    /// Keeps `mark`, what a process believes of this store's clock, in place of the last one
    /// (`conformance::the_clock_is_noted`). A store that ends with its process has nothing to keep.
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn note_clock(&self, mark: &[u8]) -> Result<(), StoreError> {
        let _ = mark;
        Ok(())
    }

    /// What was noted last.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn noted_clock(&self) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(None)
    }

    /// Which store this is, as it was opened. Other nodes on the same store say the same.
    fn identity(&self) -> Identity {
        Identity::of_secret(self.secret())
    }

    /// Reads which store this is now, and how far it has come (`conformance::the_epoch_rises`). `None`
    /// where nobody can exchange the store under the process: it ends with it, or is locked by it.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn standing(&self) -> Result<Option<Standing>, StoreError> {
        Ok(None)
    }

    /// Raises the epoch by one, durably, and returns it. Of any number of concurrent calls each sees it
    /// higher than it was before.
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn raise_epoch(&self) -> Result<Epoch, StoreError> {
        Ok(Epoch::default())
    }

    /// Notes, durably and with the time, that this store has lost keys: every gateway on it reads that in
    /// [`standing`](Self::standing).
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn note_lost(&self, loss: Loss) -> Result<(), StoreError> {
        let _ = loss;
        Ok(())
    }

    /// An operator's word that what is missing in this store is to be missed: gateways that know more of
    /// it go on with what there is.
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn accept_incomplete(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Gives this store an identity of its own, which no copy shares, and returns it. Its records stay
    /// valid; gateways must be started again.
    ///
    /// # Errors
    /// As [`insert_or_get`](Self::insert_or_get).
    async fn renew_identity(&self) -> Result<Identity, StoreError> {
        Err(StoreError::Unavailable(
            "the identity of this store cannot be changed".into(),
        ))
    }

    /// `bytes` about the record `id` as they may lie on a disk beside the store: encrypted where the
    /// store is.
    fn conceal(&self, id: RecordId, bytes: Vec<u8>) -> Vec<u8> {
        let _ = id;
        bytes
    }

    /// What [`conceal`](Self::conceal) was given.
    ///
    /// # Errors
    /// [`StoreError::Unreadable`] if it was made with another key, for another record, or changed.
    fn reveal(&self, id: RecordId, bytes: Vec<u8>) -> Result<Vec<u8>, StoreError> {
        let _ = id;
        Ok(bytes)
    }

    /// Whether answers are encrypted before they are written.
    fn encrypts(&self) -> bool {
        false
    }

    /// Writes something of no account, durably: whether records could be written now.
    ///
    /// # Errors
    /// Any [`StoreError`]: they could not.
    async fn probe(&self) -> Result<(), StoreError>;

    /// Ends the store in good order: what was acknowledged is where it is looked for, an embedded store's
    /// file is whole by itself, and every later call is refused. A process that is killed instead loses
    /// nothing that the level promises.
    async fn close(&self) {}

    /// `change` as it may be written past [`swap`](Self::swap), by [`Outbox::end_with_key`]: hidden where
    /// the store hides what it holds.
    fn sealed(&self, change: Change) -> Change {
        change
    }

    /// A journal row as it may be written by [`Outbox::decide`].
    fn sealed_note(&self, entry: JournalEntry) -> JournalEntry {
        entry
    }

    /// The messages that stand beside the records, where the store has any.
    fn outbox(&self) -> Option<Arc<dyn Outbox>> {
        None
    }

    /// Ids of records that changed, from any node, for waiters. A hint: polling is the truth.
    fn wakeups(&self) -> broadcast::Receiver<RecordId>;
}

fn no_blocks() -> StoreError {
    StoreError::Unavailable("this store cannot keep what encryption and dictionaries need".into())
}

/// The moment that is `keep` before `now`.
pub(crate) fn cutoff(now: Timestamp, keep: Duration) -> Timestamp {
    let keep = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
    Timestamp(now.0.saturating_sub(keep))
}

/// Bytes that nobody can guess.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system's random source does not fail on Linux");
    bytes
}

/// A secret for a new store.
pub(crate) fn random_secret() -> Secret {
    Secret::from_bytes(random_bytes())
}
