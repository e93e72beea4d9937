//! Results that a shared store could not take in time, kept on this machine's disk.
//!
//! An execution whose answer cannot be committed keeps trying for as long as it may live. If the process
//! ended before the store is back, the answer would be lost and its key unknown. With a spool the answer is
//! on disk by then. This process or the next one delivers it later as a late result, judged by the attempt id
//! like any other.
//!
//! Deliberately absent: any promise to a client. A client got a 503 because the shared store does not know
//! the answer yet.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use onlyonce_core::{
    AttemptId, RecordId, Timestamp,
    machine::Settlement,
    record::{Actor, Evidence, JournalEntry, JournalEvent, LastError},
};
use onlyonce_store::{
    Epoch, Level, Store, StoreError, codec,
    identity::{Hex, Numbered},
};

use crate::engine::{Engine, known_store::Known};

/// The version of the file format.
const VERSION: u8 = 1;
/// The extension of a complete file; a file being written has another.
const ENDING: &str = "result";
/// The file that holds what is known of the store.
const KNOWN_STORE: &str = "store.known";
/// How long the store has to take one result; the route's `completion_grace` if that is longer.
const SETTLE_WITHIN: Duration = Duration::from_secs(10);
/// Files examined in one round.
const FILES_PER_ROUND: usize = 1_000;
/// The largest file, in bytes. Answers are bounded by `max_body_size`, far below.
const MAX_FILE: u64 = 1 << 30;

/// A folder that outlives the process.
#[derive(Clone, Debug)]
pub struct Spool(Arc<PathBuf>);

/// A result in the spool.
struct Kept {
    id: RecordId,
    attempt: AttemptId,
    fence: u32,
    route: String,
    settlement: Settlement,
}

impl Spool {
    /// Opens the folder, or creates it with access for its owner only.
    ///
    /// # Errors
    /// If it cannot be created or written, which is checked now rather than when it is needed.
    pub fn open(folder: &Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        if !folder.is_dir() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)?;
        }
        let spool = Self(Arc::new(folder.to_owned()));
        spool.write("writable.test", b"")?;
        fs::remove_file(folder.join("writable.test"))?;
        Ok(spool)
    }

    fn path(&self, id: RecordId, attempt: AttemptId) -> PathBuf {
        self.0.join(format!("{id}-{attempt}.{ENDING}"))
    }

    /// Writes a file atomically, and returns when it is on disk.
    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let unfinished = self.0.join(format!("{name}.unfinished"));
        let mut file = File::options()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, self.0.join(name))?;
        File::open(&*self.0)?.sync_all()
    }

    /// Saves how `attempt` ended. Returns whether there was anything to save: an unknown outcome needs no
    /// file.
    pub(crate) async fn keep(
        &self,
        store: &dyn Store,
        record: &onlyonce_core::Record,
        attempt: AttemptId,
        settlement: &Settlement,
    ) -> io::Result<bool> {
        let Some(bytes) = encode(record.fence.0, &record.route, settlement) else {
            return Ok(false);
        };
        // Encrypted if the store encrypts: an answer is as secret here as there.
        let bytes = store.conceal(record.id, bytes);
        let (spool, path) = (self.clone(), self.path(record.id, attempt));
        tokio::task::spawn_blocking(move || {
            let name = path.file_name().and_then(|name| name.to_str());
            spool.write(name.unwrap_or_default(), &bytes)
        })
        .await
        .map_err(io::Error::other)??;
        Ok(true)
    }

    /// Saves what is known of the store.
    pub(crate) fn keep_known_store(&self, known: &Known) -> io::Result<()> {
        let Epoch { count, at } = known.epoch;
        let (identity, level) = (Hex(known.identity), known.level);
        let (server, next) = match &known.numbered {
            Some(numbered) => (&*numbered.server, numbered.next),
            None => ("-", 0),
        };
        let text = format!("1 {identity} {count} {} {level} {server} {next}\n", at.0);
        self.write(KNOWN_STORE, text.as_bytes())
    }

    /// What is known of the store, if an earlier process saved it.
    ///
    /// # Errors
    /// If the file cannot be read: then it is not known whether the store is the same.
    pub(crate) fn known_store(&self) -> io::Result<Option<Known>> {
        let text = match fs::read_to_string(self.0.join(KNOWN_STORE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let damaged = || damaged("what the spool says of the store cannot be read: store.known");
        read_known(&text).map(Some).ok_or_else(damaged)
    }

    /// The identity of the store that an earlier process knew.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn known_identity(&self) -> io::Result<Option<String>> {
        let known = self.known_store()?;
        Ok(known.map(|known| Hex(known.identity).to_string()))
    }

    /// Removes a result that the store has taken.
    pub(crate) async fn remove(&self, id: RecordId, attempt: AttemptId) {
        let path = self.path(id, attempt);
        // A file that stays is delivered once more, and changes nothing.
        let _ = tokio::task::spawn_blocking(move || fs::remove_file(path)).await;
    }

    /// The paths of the results.
    fn names(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&*self.0)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == ENDING) {
                found.push(path);
            }
            if found.len() == FILES_PER_ROUND {
                break;
            }
        }
        Ok(found)
    }

    /// Delivers the results to the store. Returns how many the store took.
    ///
    /// # Errors
    /// A [`StoreError`] if the store is still down; the other results stay.
    pub async fn drain(&self, engine: &Engine) -> Result<usize, StoreError> {
        let spool = self.clone();
        let names = tokio::task::spawn_blocking(move || spool.names()).await;
        let names = match names {
            Ok(Ok(names)) => names,
            Ok(Err(error)) => {
                tracing::error!(%error, "the spool cannot be read");
                return Ok(0);
            }
            Err(_) => return Ok(0),
        };
        let mut taken = 0;
        for path in names {
            let from = path.clone();
            let kept = tokio::task::spawn_blocking(move || read(&from)).await;
            let kept = kept.map(|found| found.and_then(|found| found.kept(&**engine.store())));
            match kept {
                Ok(Ok(kept)) => match deliver(engine, &kept).await {
                    Ok(false) => {
                        tracing::error!(file = %path.display(), "the store does not take a result in the spool; it is left as it is");
                    }
                    Ok(true) => {
                        self.remove(kept.id, kept.attempt).await;
                        taken += 1;
                    }
                    // The error concerns this record alone, and must not hold up the other results.
                    Err(error @ (StoreError::Unreadable(_) | StoreError::Collision)) => {
                        tracing::error!(%error, file = %path.display(), "a result in the spool cannot be taken to its key; it is left as it is");
                    }
                    Err(error) => return Err(error),
                },
                Ok(Err(error)) => {
                    tracing::error!(%error, file = %path.display(), "a result in the spool cannot be read; it is left as it is");
                }
                Err(_) => {}
            }
        }
        Ok(taken)
    }
}

/// Whether the store has the result now. A result that is never taken must not hold up the others.
async fn deliver(engine: &Engine, kept: &Kept) -> Result<bool, StoreError> {
    let policy = engine.policy(&kept.route);
    let found = engine.store().lookup(kept.id).await?;
    match found.value {
        Some(record) => {
            let settled = engine.settle_late(record, kept.attempt, &kept.settlement, &policy);
            let longest = policy.completion_grace.max(SETTLE_WITHIN);
            let settled = tokio::time::timeout(longest, settled).await;
            Ok(settled.is_ok())
        }
        None => {
            let entry = JournalEntry {
                id: kept.id,
                event: JournalEvent::DuplicateExecutionSuspected,
                from: None,
                to: None,
                attempt: kept.fence,
                actor: Actor::Executor,
                detail: Some("a result from the spool; the record is gone".to_owned()),
            };
            engine.store().append(vec![entry]).await.map(|()| true)
        }
    }
}

fn encode(fence: u32, route: &str, settlement: &Settlement) -> Option<Vec<u8>> {
    let (word, evidence) = match settlement {
        Settlement::Complete(response) => ("", Evidence::Completed(response.clone())),
        Settlement::Release(error) => (error.as_str(), Evidence::NotExecuted),
        Settlement::Unknown(_) => return None,
    };
    let mut out = vec![VERSION];
    out.extend_from_slice(&fence.to_le_bytes());
    for text in [route, word] {
        out.extend_from_slice(&u32::try_from(text.len()).ok()?.to_le_bytes());
        out.extend_from_slice(text.as_bytes());
    }
    out.extend_from_slice(&codec::encode_evidence(&evidence));
    let sum = digest(&SHA256, &out);
    out.extend_from_slice(sum.as_ref());
    Some(out)
}

fn damaged(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A file of the spool.
struct Found {
    id: RecordId,
    attempt: AttemptId,
    bytes: Vec<u8>,
}

impl Found {
    fn kept(self, store: &dyn Store) -> io::Result<Kept> {
        let bytes = store
            .reveal(self.id, self.bytes)
            .map_err(io::Error::other)?;
        let (fence, route, settlement) = decode(&bytes)?;
        Ok(Kept {
            id: self.id,
            attempt: self.attempt,
            fence,
            route,
            settlement,
        })
    }
}

fn read(path: &Path) -> io::Result<Found> {
    if fs::metadata(path)?.len() > MAX_FILE {
        return Err(damaged("it is too large to be one of ours"));
    }
    let name = path.file_stem().and_then(|name| name.to_str());
    let (id, attempt) = name
        .and_then(|name| name.split_once('-'))
        .filter(|(id, attempt)| id.len() == 32 && attempt.len() == 32)
        .and_then(|(id, attempt)| {
            let number = |hex| u128::from_str_radix(hex, 16).ok();
            Some((number(id)?, number(attempt)?))
        })
        .ok_or_else(|| damaged("its name is not one of ours"))?;
    Ok(Found {
        id: RecordId(id.to_be_bytes()),
        attempt: AttemptId(attempt),
        bytes: fs::read(path)?,
    })
}

fn decode(bytes: &[u8]) -> io::Result<(u32, String, Settlement)> {
    let short = || damaged("it is cut off");
    let at = bytes
        .len()
        .checked_sub(SHA256_OUTPUT_LEN)
        .ok_or_else(short)?;
    let (content, sum) = bytes.split_at(at);
    if digest(&SHA256, content).as_ref() != sum {
        return Err(damaged("its checksum is wrong"));
    }
    let (version, rest) = content.split_first().ok_or_else(short)?;
    if *version != VERSION {
        return Err(damaged("it was written by a newer version"));
    }
    let (fence, mut rest) = take_u32(rest).ok_or_else(short)?;
    let mut texts = [String::new(), String::new()];
    for text in &mut texts {
        let (length, after) = take_u32(rest).ok_or_else(short)?;
        let (found, after) = usize::try_from(length)
            .ok()
            .and_then(|length| after.split_at_checked(length))
            .ok_or_else(short)?;
        *text = String::from_utf8(found.to_vec()).map_err(|_| damaged("it is not text"))?;
        rest = after;
    }
    let [route, word] = texts;
    let evidence = codec::decode_evidence(rest).map_err(io::Error::other)?;
    let settlement = match evidence {
        Evidence::Completed(response) => Settlement::Complete(response),
        Evidence::NotExecuted => Settlement::Release(
            LastError::from_word(&word).ok_or_else(|| damaged("it holds an unknown word"))?,
        ),
        Evidence::Contradictory => return Err(damaged("no attempt ends in contradiction")),
    };
    Ok((fence, route, settlement))
}

fn read_known(text: &str) -> Option<Known> {
    let mut words = text.split_ascii_whitespace();
    (words.next()? == "1").then_some(())?;
    let identity = u128::from_str_radix(words.next()?, 16).ok()?;
    let epoch = Epoch {
        count: words.next()?.parse().ok()?,
        at: Timestamp(words.next()?.parse().ok()?),
    };
    let level = words.next()?;
    let levels = [Level::Volatile, Level::Async, Level::Sync];
    let level = levels.into_iter().find(|one| one.as_str() == level)?;
    let (server, next) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
    Some(Known {
        identity: identity.to_be_bytes(),
        epoch,
        level,
        numbered: (server != "-").then_some(Numbered { server, next }),
    })
}

fn take_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*number), rest))
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use onlyonce_core::StoredResponse;
    use proptest::prelude::*;

    use super::*;

    fn whole() -> Vec<u8> {
        let answer = StoredResponse::plain(StatusCode::CREATED, "paid");
        encode(3, "payments", &Settlement::Complete(answer.into())).unwrap()
    }

    #[test]
    fn a_result_comes_back_as_it_was() {
        let answer = Arc::new(StoredResponse::plain(StatusCode::CREATED, "paid"));
        for settlement in [
            Settlement::Complete(answer),
            Settlement::Release(LastError::NotSent),
        ] {
            let bytes = encode(3, "payments", &settlement).unwrap();
            let (fence, route, read) = decode(&bytes).unwrap();
            assert_eq!((fence, route.as_str(), read), (3, "payments", settlement));
        }
        assert!(encode(1, "r", &Settlement::Unknown(LastError::Timeout)).is_none());
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_refused_at_once() {
        assert!(Spool::open(Path::new("/proc/nowhere")).is_err());
    }

    proptest! {
        #[test]
        fn damaged_files_are_errors(at in 0usize..200, byte in any::<u8>(), cut in 0usize..200) {
            let mut bytes = whole();
            let length = bytes.len();
            let changed = bytes[at % length] != byte;
            bytes[at % length] = byte;
            prop_assert_eq!(decode(&bytes).is_err(), changed);
            prop_assert!(decode(&whole()[..cut % length]).is_err());
        }
    }
}
