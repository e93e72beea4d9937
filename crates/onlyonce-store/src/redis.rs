//! The shared store without SQL: Redis or Valkey, as one server, with Sentinels, or as a cluster.
//!
//! Each operation is one script, which uses the server's own clock. Records are in a fixed number of buckets
//! whose keys share a slot, so that a script writes a record, its answer, its journal and the sets that the
//! workers walk in one step. Calls of many requests are pipelined on one connection to each server. A lease
//! is a time in a record, never a key that the server expires.
//!
//! Deliberately absent: any rule about states in Lua, and expiry by the server.

mod address;
pub(crate) mod cache;
mod failure;
mod identity;
mod layout;
mod net;
mod scan;
mod script;
mod server;
mod wake;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use onlyonce_core::{
    CallerMark, Recipe, RecipeId, Record, RecordId, Scope, Secret, Timestamp,
    record::{Change, Draft, JournalEntry, Revision},
};
use parking_lot::Mutex;
use redis::Value;
use tokio::{
    sync::{broadcast, mpsc},
    task::JoinSet,
};

use self::identity::{another_store, keep_meta, lost, mark, read_meta};
use crate::{
    BoxError, Boxed, CLOCK_MARK, Copies, Counts, Epoch, Filter, Identity, Inserted, JournalRow,
    LEVEL_EVERY, Level, Listed, Loss, Page, Reply, Standing, Store, StoreError, Swapped, Walk,
    cutoff,
    identity::{ACCEPTED, IDENTITY, IDENTITY_BYTES},
    random_bytes, random_secret, row,
    wake::{MAX_UNSAID, Wake},
};
use address::Address;
pub use address::AddressError;
use failure::Failure;
use layout::{Bucket, Names, Of, Part};
use net::{Does, Net, Use};
use scan::{Position, bytes, items, strange, time};
use script::{APPEND, Call, DELETE, INSERT, LOOKUP, META, SWAP};

/// The version of the layout.
pub const VERSION: u32 = 1;

/// Options for opening a store.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// The timeout of one call.
    pub timeout: Duration,
    /// Whether to create a store in an empty database.
    pub migrate: bool,
    /// Whether to accept a server that evicts records when its memory is full.
    pub allow_eviction: bool,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(2),
            migrate: true,
            allow_eviction: false,
        }
    }
}

/// Why a server could not be opened as a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL is invalid.
    #[error("the URL of the store cannot be used: {0}")]
    Url(AddressError),
    /// The server cannot be reached, or must not be used.
    #[error("the server cannot be used; nothing was started")]
    Connect(#[source] BoxError),
    /// There is no store, and none may be created.
    #[error(
        "there is no store under this URL: `onlyonce migrate --store URL` makes one; `serve` does so with store.migrate on and, where a route has profile `payments`, with `store.create: true`; a new store knows no key, and retries of earlier requests execute; nothing was changed"
    )]
    Empty,
    /// The layout is newer than this program.
    #[error(
        "the store has the layout {found}, and this program knows {VERSION}: run a newer program"
    )]
    Newer {
        /// The version found.
        found: u32,
    },
    /// The secret is missing or invalid.
    #[error("the store holds no usable secret: it is damaged, or not a store of this program")]
    Damaged,
}

/// Checks that `url` is valid, without connecting.
///
/// # Errors
/// [`AddressError`] says why not.
pub fn check_url(url: &str) -> Result<(), AddressError> {
    Address::parse(url).map(drop)
}

/// A store on Redis or Valkey.
pub struct RedisStore {
    secret: Secret,
    identity: Identity,
    inner: Arc<Inner>,
    walked: Mutex<Position>,
    /// The tasks end with the store.
    _tasks: JoinSet<()>,
}

/// State shared by the store and its tasks.
struct Inner {
    net: Arc<Net>,
    names: Names,
    meta_slot: u16,
    secret: Vec<u8>,
    /// The mark on every bucket: a hash of the secret.
    mark: Vec<u8>,
    /// Whether the server may evict marks and the secret like anything else.
    may_evict: bool,
    wake: Wake,
}

impl RedisStore {
    /// Connects, checks the servers, and opens or creates the store.
    ///
    /// # Errors
    /// [`OpenError`] says why it cannot be used.
    pub fn open<'a>(url: &'a str, options: &'a RedisOptions) -> Boxed<'a, Result<Self, OpenError>> {
        Box::pin(Self::opened(url, options))
    }

    async fn opened(url: &str, options: &RedisOptions) -> Result<Self, OpenError> {
        let address = Address::parse(url).map_err(OpenError::Url)?;
        let names = Names::new(&address.prefix);
        let refused = |failure: Failure| match failure {
            Failure::Refused(error) | Failure::Lost(error) => OpenError::Connect(error),
        };
        let r#use = Use {
            timeout: options.timeout,
            allow_eviction: options.allow_eviction,
            is_fenced: true,
        };
        let net = Net::open(address, r#use).await.map_err(refused)?;
        let meta_slot = layout::slot(&names.meta());
        let call = match options.migrate {
            true => META
                .call(&[names.meta()])
                .arg(random_secret().as_bytes())
                .arg(VERSION),
            false => Call::plain("HMGET")
                .arg(names.meta())
                .arg("secret")
                .arg("version")
                .arg("marked"),
        };
        let told = net
            .call(meta_slot, &call, Does::Write)
            .await
            .map_err(refused)?;
        let (secret, version, is_marked) = read_meta(told)?;
        if version > VERSION {
            return Err(OpenError::Newer { found: version });
        }
        let (words, unsaid) = mpsc::channel(MAX_UNSAID);
        let inner = Arc::new(Inner {
            net,
            meta_slot,
            mark: mark(&secret),
            secret: secret.as_bytes().to_vec(),
            may_evict: options.allow_eviction,
            names,
            wake: Wake::new(Some(words)),
        });
        // An interrupted creation is completed. But a completed store that lacks a mark has lost the records
        // of that bucket, and is not repaired.
        if options.migrate && !is_marked {
            let marked = inner.mark_all().await;
            marked.map_err(|error| OpenError::Connect(error.into()))?;
        }
        let fields = Self::meta_fields(&inner, [IDENTITY]).await;
        let [own] = fields.map_err(|error| OpenError::Connect(error.into()))?;
        let identity = Identity::found(&secret, own.as_deref());
        let mut tasks = JoinSet::new();
        tasks.spawn(wake::speak(inner.clone(), unsaid));
        tasks.spawn(wake::listen(inner.clone()));
        tasks.spawn(keep_levels(inner.clone()));
        if options.allow_eviction {
            tasks.spawn(keep_meta(inner.clone()));
        }
        if !inner.net.is_alone() {
            tasks.spawn(inner.net.clone().watch());
        }
        Ok(Self {
            secret,
            identity,
            inner,
            walked: Mutex::default(),
            _tasks: tasks,
        })
    }
}

/// Reads the servers' settings periodically: they may change while a connection stays open.
async fn keep_levels(inner: Arc<Inner>) {
    loop {
        tokio::time::sleep(LEVEL_EVERY).await;
        inner.net.read_levels().await;
    }
}

impl Inner {
    async fn write(&self, bucket: Bucket, call: Call) -> Result<Vec<Value>, StoreError> {
        let answer = self.net.call(self.names.slot(bucket), &call, Does::Write);
        items(answer.await.map_err(Failure::of_a_write)?)
    }

    /// Appends a draft to a call: its id, revision and state, its times, its block.
    fn with_draft(call: Call, draft: &Draft) -> Call {
        let record = &draft.record;
        let mut call = call
            .arg(&record.id.0[..])
            .arg(record.revision.0)
            .arg(row::tag(record.state));
        for stamp in row::stamps(draft) {
            call = call.arg(stamp);
        }
        call.arg(row::block(record))
    }
}

/// A script's answer.
struct Told {
    now: Timestamp,
    word: Vec<u8>,
    stored: Option<Value>,
    body: Option<Value>,
}

impl Told {
    fn read(answer: Vec<Value>) -> Result<Self, StoreError> {
        let now = time(answer.first())?;
        let mut rest = answer.into_iter().skip(1);
        Ok(Self {
            now,
            word: bytes(rest.next()).ok_or_else(strange)?,
            stored: rest.next(),
            body: rest.next(),
        })
    }
}

/// An unreadable answer to a write does not tell whether the write happened.
fn unclear(error: StoreError) -> StoreError {
    StoreError::Ambiguous(Box::new(error))
}

#[async_trait]
impl Store for RedisStore {
    fn level(&self) -> Level {
        self.inner.net.level()
    }

    fn copies(&self) -> Copies {
        Copies::Shared
    }

    fn secret(&self) -> &Secret {
        &self.secret
    }

    async fn lookup(&self, id: RecordId) -> Result<Reply<Option<Record>>, StoreError> {
        let names = &self.inner.names;
        let call = LOOKUP.call(&[names.of(id, Of::Record), names.of(id, Of::Answer)]);
        let slot = names.slot(Bucket::of(id));
        let answer = self.inner.net.call(slot, &call, Does::Read).await;
        let answer = items(answer.map_err(Failure::of_a_read)?)?;
        let now = time(answer.first())?;
        let mut rest = answer.into_iter().skip(1);
        let value = Inner::whole(id, rest.next(), rest.next())?;
        if let Some(record) = &value {
            self.inner.wake.ask_for(record);
        }
        Ok(Reply { now, value })
    }

    async fn insert_or_get(&self, draft: Draft) -> Result<Reply<Inserted>, StoreError> {
        let (inner, id) = (&self.inner, draft.record.id);
        let (names, bucket) = (&inner.names, Bucket::of(id));
        let call = INSERT.call(&[
            names.of(id, Of::Record),
            names.of(id, Of::Answer),
            names.part(bucket, Part::Numbers),
            names.part(bucket, Part::Leases),
            names.part(bucket, Part::Counts),
            names.part(bucket, Part::Mark),
        ]);
        let call = Inner::with_draft(call.arg(&inner.mark), &draft).arg(u8::from(inner.may_evict));
        let told = Told::read(inner.write(bucket, call).await?).map_err(unclear)?;
        let value = match &told.word[..] {
            b"new" => Inserted::New(draft.stamp(told.now)),
            b"there" => {
                let record = Inner::whole(id, told.stored, told.body)?.ok_or_else(strange)?;
                if !record.is_of(&draft.record.scope, &draft.record.key) {
                    return Err(StoreError::Collision);
                }
                inner.wake.ask_for(&record);
                Inserted::Existing(record)
            }
            b"other" => return Err(another_store()),
            b"lost" => return Err(lost()),
            _ => return Err(unclear(strange())),
        };
        Ok(Reply {
            now: told.now,
            value,
        })
    }

    async fn swap(&self, expected: Revision, change: Change) -> Result<Reply<Swapped>, StoreError> {
        let (inner, id) = (&self.inner, change.draft.record.id);
        let (names, bucket) = (&inner.names, Bucket::of(id));
        let call = SWAP.call(&[
            names.of(id, Of::Record),
            names.of(id, Of::Answer),
            names.part(bucket, Part::Leases),
            names.part(bucket, Part::Unknown),
            names.part(bucket, Part::Due),
            names.part(bucket, Part::Expiry),
            names.part(bucket, Part::Counts),
            names.part(bucket, Part::Journal),
            names.of(id, Of::History),
            names.part(bucket, Part::Kept),
        ]);
        let mut call = Inner::with_draft(call.arg(expected.0), &change.draft);
        call = match row::body(&change.draft.record) {
            Some(body) => call.arg(1).arg(&body[..]),
            None => call.arg(0).arg(""),
        };
        for entry in &change.journal {
            call = call.arg(row::journal_row(entry));
        }
        let told = Told::read(inner.write(bucket, call).await?).map_err(unclear)?;
        let value = match &told.word[..] {
            b"done" => {
                inner.wake.settled(id);
                Swapped::Done(change.draft.stamp(told.now))
            }
            b"there" => {
                Swapped::Conflict(Inner::whole(id, told.stored, told.body)?.ok_or_else(strange)?)
            }
            b"absent" => Swapped::Absent,
            _ => return Err(unclear(strange())),
        };
        Ok(Reply {
            now: told.now,
            value,
        })
    }

    async fn delete(&self, id: RecordId, expected: Revision) -> Result<bool, StoreError> {
        let (names, bucket) = (&self.inner.names, Bucket::of(id));
        let call = DELETE.call(&[
            names.of(id, Of::Record),
            names.of(id, Of::Answer),
            names.part(bucket, Part::Numbers),
            names.part(bucket, Part::Leases),
            names.part(bucket, Part::Unknown),
            names.part(bucket, Part::Due),
            names.part(bucket, Part::Expiry),
            names.part(bucket, Part::Counts),
            names.part(bucket, Part::Journal),
            names.of(id, Of::History),
        ]);
        let call = call.arg(expected.0).arg(&id.0[..]);
        let told = Told::read(self.inner.write(bucket, call).await?).map_err(unclear)?;
        Ok(told.word == b"done")
    }

    async fn append(&self, journal: Vec<JournalEntry>) -> Result<(), StoreError> {
        let names = &self.inner.names;
        // Rows of one record stay together and in order; rows of different records need not.
        let mut ids: Vec<RecordId> = journal.iter().map(|entry| entry.id).collect();
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            let bucket = Bucket::of(id);
            let mut call = APPEND.call(&[
                names.part(bucket, Part::Journal),
                names.of(id, Of::History),
                names.part(bucket, Part::Kept),
            ]);
            for entry in journal.iter().filter(|entry| entry.id == id) {
                call = call.arg(row::journal_row(entry));
            }
            self.inner.write(bucket, call).await?;
        }
        Ok(())
    }

    async fn prune_audit(&self, keep: Duration) -> Result<(), StoreError> {
        let now = self.inner.passed_anywhere(Part::Leases, 0).await?.now;
        self.inner.prune_audit(cutoff(now, keep)).await
    }

    async fn lapsed(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        self.inner.passed_anywhere(Part::Leases, limit).await
    }

    async fn due(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        self.inner.passed_anywhere(Part::Due, limit).await
    }

    async fn walk(&self, limit: usize) -> Result<Reply<Walk>, StoreError> {
        let from = self.walked.lock().clone();
        let (reply, position) = self.inner.walk(from, limit).await?;
        *self.walked.lock() = position;
        Ok(reply)
    }

    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, StoreError> {
        self.inner.list(filter, cursor, limit).await
    }

    async fn keep_scope(&self, id: RecordId, name: &str) -> Result<(), StoreError> {
        let bucket = Bucket::of(id);
        let names = &self.inner.names;
        let call = Call::plain("HSET")
            .arg(names.part(bucket, Part::Scopes))
            .arg(&id.0[..])
            .arg(name);
        let kept = self.inner.net.call(names.slot(bucket), &call, Does::Write);
        kept.await.map(|_| ()).map_err(Failure::of_a_write)
    }

    /// A server that may evict scopes is not trusted to know them all.
    async fn scopes(
        &self,
        after: Option<RecordId>,
    ) -> Result<Option<Vec<(RecordId, String)>>, StoreError> {
        match self.inner.may_evict {
            true => Ok(None),
            false => self.inner.scopes(after).await.map(Some),
        }
    }

    async fn listed(&self, ids: &[RecordId]) -> Result<Vec<(u64, Listed)>, StoreError> {
        self.inner.listed(ids).await
    }

    async fn history(&self, id: RecordId) -> Result<Vec<JournalRow>, StoreError> {
        self.inner.history(id).await
    }

    async fn audit(
        &self,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<JournalRow>, StoreError> {
        self.inner.audit(cursor, limit).await
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        self.inner.counts().await
    }

    async fn live(
        &self,
        scope: &Scope,
        caller: Option<CallerMark>,
        limit: u64,
    ) -> Result<u64, StoreError> {
        self.inner.live(scope, caller, limit).await
    }

    async fn keep_recipe(&self, recipe: &Recipe) -> Result<(), StoreError> {
        let name = self.inner.names.recipes();
        let slot = layout::slot(&name);
        let call = Call::plain("HSETNX")
            .arg(name)
            .arg(&recipe.id().0[..])
            .arg(recipe.encode());
        let kept = self.inner.net.call(slot, &call, Does::Write).await;
        kept.map(|_| ()).map_err(Failure::of_a_write)
    }

    async fn recipe(&self, id: RecipeId) -> Result<Option<Recipe>, StoreError> {
        let name = self.inner.names.recipes();
        let slot = layout::slot(&name);
        let call = Call::plain("HGET").arg(name).arg(&id.0[..]);
        let found = self.inner.net.call(slot, &call, Does::Read).await;
        let Some(found) = bytes(Some(found.map_err(Failure::of_a_read)?)) else {
            return Ok(None);
        };
        let recipe =
            Recipe::decode(&found).map_err(|error| StoreError::Unreadable(error.into()))?;
        Ok(Some(recipe))
    }

    async fn keep_block(&self, name: &str, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
        let blocks = self.inner.names.blocks();
        let slot = layout::slot(&blocks);
        let call = Call::plain("HSETNX").arg(blocks).arg(name).arg(bytes);
        let kept = self.inner.net.call(slot, &call, Does::Write).await;
        kept.map_err(Failure::of_a_write)?;
        let lost = || StoreError::Unavailable("a block that was written is not there".into());
        self.block(name).await?.ok_or_else(lost)
    }

    async fn block(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let blocks = self.inner.names.blocks();
        let slot = layout::slot(&blocks);
        let call = Call::plain("HGET").arg(blocks).arg(name);
        let found = self.inner.net.call(slot, &call, Does::Read).await;
        let found = bytes(Some(found.map_err(Failure::of_a_read)?));
        Ok(found.map(|found| found.to_vec()))
    }

    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    async fn standing(&self) -> Result<Option<Standing>, StoreError> {
        match self.inner.may_evict {
            // The server may evict the epoch like anything else.
            true => Ok(None),
            false => self.read_standing().await.map(Some),
        }
    }

    async fn raise_epoch(&self) -> Result<Epoch, StoreError> {
        self.raise().await
    }

    async fn accept_incomplete(&self) -> Result<(), StoreError> {
        self.keep_time(ACCEPTED).await
    }

    async fn note_lost(&self, loss: Loss) -> Result<(), StoreError> {
        self.keep_time(loss.name()).await
    }

    async fn renew_identity(&self) -> Result<Identity, StoreError> {
        let own = random_bytes::<IDENTITY_BYTES>();
        self.keep_field(IDENTITY, &own).await?;
        Ok(Identity::found(&self.secret, Some(&own)))
    }

    async fn note_clock(&self, mark: &[u8]) -> Result<(), StoreError> {
        let blocks = self.inner.names.blocks();
        let slot = layout::slot(&blocks);
        let call = Call::plain("HSET").arg(blocks).arg(CLOCK_MARK).arg(mark);
        let noted = self.inner.net.call(slot, &call, Does::Write).await;
        noted.map(|_| ()).map_err(Failure::of_a_write)
    }

    async fn noted_clock(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.block(CLOCK_MARK).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.inner.net.read_levels().await;
        self.inner.probe().await
    }

    fn wakeups(&self) -> broadcast::Receiver<RecordId> {
        self.inner.wake.subscribe()
    }
}
