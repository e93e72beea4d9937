//! Stored data: answers are compressed where that helps, and encrypted if keys are configured, once for every
//! store.
//!
//! [`AtRest`] wraps a store. On the way in it replaces the answer by one block, and, with keys, the client's
//! id and the key by keyed hashes, the path by the encrypted names, and the text of the journal by its
//! ciphertext. On the way out it reverses this, and compares scope and key with the record's id. A ciphertext
//! opens only in the record, the generation and the field that it was made for: one that was moved is an
//! error and an alarm, never somebody else's answer.
//!
//! Rows from before keys were configured are read as they are, and written back encrypted.
//!
//! Deliberately absent: a fallback. A block that cannot be opened makes its record unreadable, and the engine
//! answers 503 for it.

mod block;
mod dictionaries;
#[cfg(all(test, feature = "redis", feature = "sqlite"))]
mod fuzz;
mod keyring;
mod names;
mod store;
mod zip;

use std::sync::Arc;

use bytes::Bytes;
use onlyonce_core::{
    Record, RecordId, Spelling,
    record::{Evidence, JournalEntry, StoredBody, StoredResponse},
};

use crate::{Boxed, Filter, JournalRow, Listed, Store, StoreError, codec};
use block::Packing;
use dictionaries::Dictionaries;
use keyring::Place;
pub use keyring::{KEY_BYTES, Keyring, KeyringError, MAX_KEY_NAME, MAX_KEYS, OpenError};
use names::Names;
use zip::Zip;

/// A shorter answer is not compressed, since it would gain nothing.
const MIN_COMPRESSED: usize = 96;
/// Of a longer answer, a prefix of this length is tried first.
const TRIED_FIRST: usize = 64 << 10;
/// How many pages of the newest records are searched for an encrypted one if no key is configured.
const NEWEST_PAGES: usize = 20;
const NEWEST_PAGE: usize = 500;
/// The prefix of an encrypted file of the spool.
const FILE_MARK: &[u8] = b"onlyonce sealed 1\n";
/// The metric that counts what could not be opened, by `reason`.
pub const FAILURES: &str = "onlyonce_at_rest_failures_total";
/// The values of that label.
const REASONS: [&str; 4] = ["unknown_key", "forged", "damaged", "version"];

/// Registers [`FAILURES`] at zero.
pub fn declare() {
    for reason in REASONS {
        metrics::counter!(FAILURES, "reason" => reason).increment(0);
    }
}

/// How answers are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// zstd, if the answer gets smaller.
    #[default]
    Zstd,
    /// zstd with dictionaries trained from recent answers of each route.
    Dictionary,
}

/// Options for stored data.
#[derive(Clone, Debug, Default)]
pub struct AtRestOptions {
    /// The keys; without any, nothing is encrypted.
    pub keys: Option<Keyring>,
    /// How answers are compressed.
    pub compression: Compression,
}

/// The result of opening a block.
enum Unpacked {
    Answer(Arc<StoredResponse>),
    Needs(block::DictionaryId),
}

/// A store whose content is compressed and encrypted.
pub struct AtRest {
    inner: Arc<dyn Store>,
    keys: Option<Keyring>,
    names: Option<Names>,
    compression: Compression,
    plain: Zip,
    dictionaries: Arc<Dictionaries>,
}

impl AtRest {
    /// Wraps `inner`.
    ///
    /// # Errors
    /// Any [`StoreError`]: the store did not answer, or its content is encrypted with keys that are not
    /// configured.
    pub fn open(
        inner: Arc<dyn Store>,
        options: AtRestOptions,
    ) -> Boxed<'static, Result<Self, StoreError>> {
        Box::pin(Self::opened(inner, options))
    }

    async fn opened(inner: Arc<dyn Store>, options: AtRestOptions) -> Result<Self, StoreError> {
        declare();
        let names = match &options.keys {
            Some(keys) => Some(Names::new(&names_secret(&*inner, keys).await?)),
            None => None,
        };
        Ok(Self {
            dictionaries: Arc::new(Dictionaries::new(&inner, options.keys.clone())),
            inner,
            keys: options.keys,
            names,
            compression: options.compression,
            plain: Zip::new(zip::THOROUGH, Vec::new()),
        })
    }

    /// The answer as a block, or unchanged if a block would be no better.
    fn pack(
        &self,
        field: &'static str,
        record: &Record,
        response: &Arc<StoredResponse>,
    ) -> Arc<StoredResponse> {
        let body = match &response.body {
            StoredBody::Full { bytes, .. } => bytes.as_ref(),
            StoredBody::NotStored => &[],
            StoredBody::Packed { .. } => return response.clone(),
        };
        let head = codec::encode_head(response);
        let mut whole = Vec::with_capacity(2 + head.len() + body.len());
        // The HTTP parser bounds heads, far below this.
        whole.extend_from_slice(&(head.len() as u32).to_le_bytes());
        whole.extend_from_slice(&head);
        whole.extend_from_slice(body);
        let packed = self.compress(&record.route, &whole);
        if packed.is_none() && self.keys.is_none() {
            return response.clone();
        }
        let place = place(field, record);
        let block = match &packed {
            Some((packing, bytes)) => block::write(self.keys.as_ref(), &place, *packing, bytes),
            None => block::write(self.keys.as_ref(), &place, Packing::None, &whole),
        };
        Arc::new(StoredResponse {
            status: response.status,
            headers: http::HeaderMap::new(),
            body: StoredBody::Packed {
                block: block.into(),
                length: response.stored_bytes(),
            },
        })
    }

    fn compress(&self, route: &str, whole: &[u8]) -> Option<(Packing, Vec<u8>)> {
        if self.compression == Compression::None || whole.len() < MIN_COMPRESSED {
            return None;
        }
        let length = whole.len();
        if let Some(beginning) = whole.get(..TRIED_FIRST)
            && self.plain.pack(beginning)?.len() >= beginning.len()
        {
            return None;
        }
        let (packing, packed) = if length > TRIED_FIRST {
            // A dictionary helps only short answers.
            (Packing::Plain { length }, self.plain.pack(whole)?)
        } else {
            let (id, zip) = match self.compression {
                Compression::Dictionary => {
                    self.dictionaries.sample(route, whole);
                    self.dictionaries.current(route)
                }
                _ => (
                    dictionaries::BUILT_IN_ID,
                    self.dictionaries.built_in().clone(),
                ),
            };
            (Packing::Dictionary { id, length }, zip.pack(whole)?)
        };
        (packed.len() < length).then_some((packing, packed))
    }

    /// The answer that [`pack`](Self::pack) was given, or the dictionary that is needed first.
    fn try_unpack(
        &self,
        field: &'static str,
        record: &Record,
        response: &Arc<StoredResponse>,
    ) -> Result<Unpacked, StoreError> {
        let StoredBody::Packed { block, .. } = &response.body else {
            return Ok(Unpacked::Answer(response.clone()));
        };
        let place = place(field, record);
        let opened = block::read(self.keys.as_ref(), &place, block);
        let (packing, bytes) = opened.map_err(|error| self.alarm(record.id, error))?;
        let damaged = || self.alarm(record.id, OpenError::Damaged);
        let whole = match packing {
            Packing::None => bytes,
            Packing::Plain { length } => self.plain.unpack(&bytes, length).ok_or_else(damaged)?,
            Packing::Dictionary { id, length } => {
                let Some(zip) = self.dictionaries.known(id) else {
                    return Ok(Unpacked::Needs(id));
                };
                zip.unpack(&bytes, length).ok_or_else(damaged)?
            }
        };
        let answer = response_in(&whole).ok_or_else(damaged)?;
        Ok(Unpacked::Answer(Arc::new(answer)))
    }

    async fn unpack(
        &self,
        field: &'static str,
        record: &Record,
        response: &Arc<StoredResponse>,
    ) -> Result<Arc<StoredResponse>, StoreError> {
        loop {
            match self.try_unpack(field, record, response)? {
                Unpacked::Answer(answer) => return Ok(answer),
                // Once fetched, a dictionary stays known.
                Unpacked::Needs(id) => drop(self.dictionaries.fetch(id).await?),
            }
        }
    }

    /// `record` in its stored form.
    fn hide(&self, record: &Record) -> Record {
        let mut hidden = record.clone();
        if let Some(response) = &record.response {
            hidden.response = Some(self.pack("answer", record, response));
        }
        if let Some(Evidence::Completed(response)) = &record.evidence {
            let packed = self.pack("evidence", record, response);
            hidden.evidence = Some(Evidence::Completed(packed));
        }
        if let (Some(keys), Some(names)) = (&self.keys, &self.names) {
            let joined = names::join(record.scope.as_str(), record.key.as_str(), &record.path);
            hidden.path = names::hide(keys, "names", record.id, &joined).into();
            hidden.scope = names.scope(&record.scope);
            hidden.key = names.key(&record.key);
            if let Some(Spelling::Quoted(value)) = &record.notes.spelling {
                let value = names::hide(keys, "spelling", record.id, value);
                hidden.notes.spelling = Some(Spelling::Quoted(value.into_bytes().into()));
            }
        }
        hidden
    }

    /// The record that [`hide`](Self::hide) was given, except for its answers.
    fn named(&self, mut record: Record) -> Result<Record, StoreError> {
        if names::is_hidden(&record.path) {
            let joined = names::reveal(self.keys.as_ref(), "names", record.id, &record.path);
            let split = joined.and_then(|joined| names::split(&joined));
            let (scope, key, path) = split.map_err(|error| self.alarm(record.id, error))?;
            // Of an erased record's key only the hash is left; the block is bound to it too.
            let id = self.inner.secret().record_id(scope.as_str(), &key);
            if !record.notes.erased && id != record.id {
                return Err(self.alarm(record.id, OpenError::Forged));
            }
            record.scope = scope;
            record.key = key;
            record.path = path.into();
            if let Some(Spelling::Quoted(value)) = &record.notes.spelling {
                let hidden = str::from_utf8(value).map_err(|_| OpenError::Damaged);
                let value = hidden.and_then(|hidden| {
                    names::reveal(self.keys.as_ref(), "spelling", record.id, hidden)
                });
                let value = value.map_err(|error| self.alarm(record.id, error))?;
                record.notes.spelling = Some(Spelling::Quoted(value.into()));
            }
        }
        Ok(record)
    }

    /// The record that [`hide`](Self::hide) was given.
    async fn whole(&self, record: Record) -> Result<Record, StoreError> {
        let mut record = self.named(record)?;
        if let Some(response) = &record.response {
            record.response = Some(self.unpack("answer", &record, response).await?);
        }
        if let Some(Evidence::Completed(response)) = &record.evidence {
            let opened = self.unpack("evidence", &record, response).await?;
            record.evidence = Some(Evidence::Completed(opened));
        }
        Ok(record)
    }

    /// Like `whole` without waiting; `None` if that is not possible.
    fn whole_at_once(&self, record: Record) -> Option<Record> {
        let mut record = self.named(record).ok()?;
        if let Some(response) = &record.response {
            match self.try_unpack("answer", &record, response).ok()? {
                Unpacked::Answer(answer) => record.response = Some(answer),
                Unpacked::Needs(_) => return None,
            }
        }
        if let Some(Evidence::Completed(response)) = &record.evidence {
            match self.try_unpack("evidence", &record, response).ok()? {
                Unpacked::Answer(answer) => record.evidence = Some(Evidence::Completed(answer)),
                Unpacked::Needs(_) => return None,
            }
        }
        Some(record)
    }

    /// The record that [`hide`](Self::hide) was given, for lists and workers: its answer stays packed, since
    /// nobody needs it there, and is written back unchanged.
    async fn listed(&self, record: Record) -> Result<Record, StoreError> {
        let mut record = self.named(record)?;
        if let Some(Evidence::Completed(response)) = &record.evidence {
            let opened = self.unpack("evidence", &record, response).await?;
            record.evidence = Some(Evidence::Completed(opened));
        }
        Ok(record)
    }

    /// The readable ones among `records`. An unreadable one must not keep the others from being swept or
    /// reaped.
    async fn readable(&self, records: Vec<Record>) -> Vec<Record> {
        let mut readable = Vec::with_capacity(records.len());
        for record in records {
            readable.extend(self.listed(record).await.ok());
        }
        readable
    }

    /// The record as shown in a list; `None` if it is damaged, which must not keep the others from being
    /// shown. But a key that is not configured is an error: a reader would take the records under it for
    /// absent.
    async fn shown(&self, record: Record, is_lenient: bool) -> Result<Option<Record>, StoreError> {
        match self.listed(record).await {
            Ok(record) => Ok(Some(record)),
            Err(error) if !is_lenient && OpenError::is_missing_key(&error) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Refuses to look up names if the store contains their hashes and no key is configured to compute them.
    /// The newest records tell whether a store that was once encrypted still is.
    async fn can_name(&self) -> Result<(), StoreError> {
        if self.keys.is_some() || !is_encrypted(&*self.inner).await? {
            return Ok(());
        }
        let mut cursor = None;
        for _ in 0..NEWEST_PAGES {
            let page = self
                .inner
                .list(&Filter::default(), cursor, NEWEST_PAGE)
                .await?;
            for Listed { record, .. } in page.items {
                if names::is_hidden(&record.path) {
                    self.named(record)?;
                }
            }
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn hide_journal(&self, journal: Vec<JournalEntry>) -> Vec<JournalEntry> {
        let Some(keys) = &self.keys else {
            return journal;
        };
        let hide = |mut entry: JournalEntry| {
            let detail = entry.detail.as_deref();
            entry.detail =
                detail.map(|text| names::hide(keys, "detail", entry.id, text.as_bytes()));
            entry
        };
        journal.into_iter().map(hide).collect()
    }

    /// Journal rows with their texts. An unreadable text is replaced by a notice: the rest of the row is
    /// still worth showing.
    fn show_journal(&self, rows: Vec<JournalRow>) -> Vec<JournalRow> {
        let show = |mut row: JournalRow| {
            if let Some(hidden) = row.entry.detail.as_deref()
                && names::is_hidden(hidden)
            {
                let id = row.entry.id;
                let opened = names::reveal(self.keys.as_ref(), "detail", id, hidden);
                let text =
                    opened.and_then(|text| String::from_utf8(text).map_err(|_| OpenError::Damaged));
                row.entry.detail = Some(text.unwrap_or_else(|error| {
                    drop(self.alarm(id, error));
                    "(cannot be decrypted)".to_owned()
                }));
            }
            row
        };
        rows.into_iter().map(show).collect()
    }

    /// Reports, in a metric and in the log, that something could not be opened.
    fn alarm(&self, id: RecordId, error: OpenError) -> StoreError {
        metrics::counter!(FAILURES, "reason" => error.word()).increment(1);
        tracing::error!(%error, record = %id, "what is stored of a record cannot be opened; it is refused and left as it is");
        StoreError::Unreadable(Box::new(error))
    }
}

fn place<'a>(field: &'static str, record: &'a Record) -> Place<'a> {
    Place {
        field,
        id: record.id,
        scope: record.scope.as_str(),
        key: record.key.as_str(),
        generation: record.generation,
    }
}

fn response_in(whole: &[u8]) -> Option<StoredResponse> {
    let (length, rest) = whole.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (head, body) = rest.split_at_checked(length)?;
    let body = match codec::has_body(head) {
        true => Some(Bytes::copy_from_slice(body)),
        false if body.is_empty() => None,
        false => return None,
    };
    codec::decode_head(head, body).ok()
}

/// The block that a store has since it was first opened with keys.
const FIRST: &str = "names-secret";

/// Whether `store`, which is not wrapped, has ever been opened with keys.
///
/// # Errors
/// Any [`StoreError`] but `Ambiguous`.
pub async fn is_encrypted(store: &dyn Store) -> Result<bool, StoreError> {
    Ok(store.block(FIRST).await?.is_some())
}

/// The secret for hashing names: created once, stored under the first key of that time, and again under each
/// key that became the first later. A ring that can open none of these does not belong to the store.
async fn names_secret(store: &dyn Store, keys: &Keyring) -> Result<Vec<u8>, StoreError> {
    let name_of = |key: &str| format!("{FIRST}/{key}");
    let place = block::nowhere(FIRST, "");
    let open = |block: &[u8]| match block::read(Some(keys), &place, block) {
        Ok((Packing::None, bytes)) => Ok(bytes),
        Ok(_) => Err(StoreError::Unreadable(Box::new(OpenError::Damaged))),
        Err(error) => Err(StoreError::Unreadable(Box::new(error))),
    };
    let seal = |secret: &[u8]| block::write(Some(keys), &place, Packing::None, secret);
    let mut found = None;
    for (at, key) in keys.names().enumerate() {
        if let Some(block) = store.block(&name_of(key)).await? {
            found = Some(open(&block)?);
            if at == 0 {
                return open(&block);
            }
            break;
        }
    }
    let secret = match (found, store.block(FIRST).await?) {
        (Some(secret), _) => secret,
        (None, Some(block)) => open(&block)?,
        (None, None) => {
            let made = seal(crate::random_secret().as_bytes());
            open(&store.keep_block(FIRST, &made).await?)?
        }
    };
    if let Some(first) = keys.names().next() {
        store.keep_block(&name_of(first), &seal(&secret)).await?;
    }
    Ok(secret)
}
