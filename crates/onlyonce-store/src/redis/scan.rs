//! Scans by background loops and people, bucket by bucket.
//!
//! A scan takes ids from a set and then reads the records one by one: a script may only access keys that it
//! was given by name. A record may therefore have changed since; a caller that acts on it swaps by its
//! revision.

use std::collections::BinaryHeap;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use onlyonce_core::{CallerMark, Record, RecordId, Scope, State, Timestamp};
use redis::Value;

use super::{
    Inner,
    layout::{BUCKETS, Bucket, Of, Part},
    net::Does,
    script::{Call, PASSED, PRUNE},
};
use crate::{
    Counts, Filter, JournalRow, Listed, Page, Reply, StoreError, Walk,
    row::{self, Row},
};

/// Concurrent calls of one scan.
const AT_ONCE: usize = 64;
/// Ids that a list takes from one bucket at a time.
const LIST_STEP: usize = 16;
/// The share of a walk's stretch (one part in this many) that one bucket may fill, and its minimum.
const WALK_SHARE: usize = 8;
const WALK_LEAST: usize = 8;
/// Journal rows per bucket that a pruning reads at a time.
const PRUNE_STEP: usize = 500;

/// Ids, and the times by which they were found.
type Passed = Vec<(RecordId, i64)>;

/// The position of the reaper's walk: in this bucket, after these ids of this time.
#[derive(Clone, Debug, Default)]
pub(super) struct Position {
    bucket: u8,
    from: i64,
    seen: Vec<RecordId>,
}

/// The error for an answer that no script of ours returns.
pub(super) fn strange() -> StoreError {
    StoreError::Unreadable("the server answered what no script of ours returns".into())
}

pub(super) fn items(value: Value) -> Result<Vec<Value>, StoreError> {
    match value {
        Value::Array(items) => Ok(items),
        Value::Nil => Ok(Vec::new()),
        _ => Err(strange()),
    }
}

pub(super) fn time(value: Option<&Value>) -> Result<Timestamp, StoreError> {
    match value {
        Some(Value::Int(now)) => Ok(Timestamp(*now)),
        _ => Err(strange()),
    }
}

pub(super) fn bytes(value: Option<Value>) -> Option<Vec<u8>> {
    match value {
        Some(Value::BulkString(bytes)) => Some(bytes),
        _ => None,
    }
}

fn record_id(value: &Value) -> Result<RecordId, StoreError> {
    match value {
        Value::BulkString(bytes) => bytes[..].try_into().map(RecordId).map_err(|_| strange()),
        _ => Err(strange()),
    }
}

fn number<T: std::str::FromStr>(value: &Value) -> Result<T, StoreError> {
    let text = match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).map_err(|_| strange())?,
        Value::Int(number) => return number.to_string().parse().map_err(|_| strange()),
        _ => return Err(strange()),
    };
    text.parse().map_err(|_| strange())
}

/// Members and their scores, as returned by `WITHSCORES`.
fn scored<T: std::str::FromStr>(value: Value) -> Result<Vec<(Value, T)>, StoreError> {
    let items = items(value)?;
    items
        .chunks_exact(2)
        .map(|pair| Ok((pair[0].clone(), number(&pair[1])?)))
        .collect()
}

/// The number of a record or journal row across all buckets: unique, and higher for later ones.
fn overall(bucket: Bucket, number: u64) -> u64 {
    number * u64::from(BUCKETS) + u64::from(bucket.0)
}

/// The highest number within `bucket` that is before `cursor`.
fn before(bucket: Bucket, cursor: Option<u64>) -> Option<u64> {
    match cursor {
        None => Some(i64::MAX.unsigned_abs()),
        Some(cursor) => Some(cursor.checked_sub(1 + u64::from(bucket.0))? / u64::from(BUCKETS)),
    }
}

/// The newest members of one bucket, read a few at a time.
struct Strand {
    bucket: Bucket,
    part: Part,
    /// Newest last.
    waiting: Vec<(u64, Vec<u8>)>,
    /// Where the next members begin; `None` at the end.
    next: Option<u64>,
}

impl Inner {
    async fn read(&self, bucket: Bucket, call: &Call) -> Result<Value, StoreError> {
        let answer = self.net.call(self.names.slot(bucket), call, Does::Read);
        answer.await.map_err(|failure| failure.of_a_read())
    }

    /// Records without their answers' bodies. Skips records that are gone or, with a log message, unreadable:
    /// they must not keep the others from being swept, reaped or shown.
    async fn rows(&self, ids: Vec<RecordId>) -> Result<Vec<Row>, StoreError> {
        let reads = ids.into_iter().map(|id| async move {
            let call = Call::plain("GET").arg(self.names.of(id, Of::Record));
            let stored = bytes(Some(self.read(Bucket::of(id), &call).await?));
            let row = stored.map(|stored| row::read(id, &stored));
            Ok::<_, StoreError>(row)
        });
        let rows: Vec<_> = stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
        let readable = rows.into_iter().flatten().filter_map(|row| match row {
            Ok(row) => Some(row),
            Err(row::Unreadable(error)) => {
                tracing::error!(%error, "a row of the store cannot be read; it is left as it is");
                None
            }
        });
        Ok(readable.collect())
    }

    /// Ids in `part` whose time has passed, in each bucket from the given time on, up to `limit`.
    async fn passed(
        &self,
        part: Part,
        wanted: &[(Bucket, i64)],
        limit: usize,
    ) -> Result<(Timestamp, Vec<Passed>), StoreError> {
        // One call for all buckets of a single server; one per bucket in a cluster.
        let at_once = match self.net.is_one_server() {
            true => wanted.len().max(1),
            false => 1,
        };
        let calls: Vec<(Bucket, Call)> = wanted
            .chunks(at_once)
            .map(|chunk| {
                let names = chunk
                    .iter()
                    .map(|(bucket, _)| self.names.part(*bucket, part));
                let names: Vec<Vec<u8>> = names.collect();
                let call = PASSED.call(&names).arg(limit);
                let call = chunk.iter().fold(call, |call, (_, from)| call.arg(*from));
                (chunk[0].0, call)
            })
            .collect();
        let calls = calls
            .into_iter()
            .map(|(bucket, call)| async move { items(self.read(bucket, &call).await?) });
        let answers: Vec<Vec<Value>> = stream::iter(calls).buffered(AT_ONCE).try_collect().await?;
        let mut now = None;
        let mut found = Vec::with_capacity(wanted.len());
        for answer in answers {
            let read_at = time(answer.first())?;
            // The earliest of several clocks, so that nothing counts as passed too early.
            now = Some(now.map_or(read_at, |now: Timestamp| now.min(read_at)));
            for set in answer.into_iter().skip(1) {
                let ids = scored::<i64>(set)?;
                let ids = ids.iter().map(|(id, at)| Ok((record_id(id)?, *at)));
                found.push(ids.collect::<Result<_, StoreError>>()?);
            }
        }
        Ok((now.ok_or_else(strange)?, found))
    }

    /// Records in `part` of any bucket whose time has passed.
    pub(super) async fn passed_anywhere(
        &self,
        part: Part,
        limit: usize,
    ) -> Result<Reply<Vec<Record>>, StoreError> {
        let wanted: Vec<_> = Bucket::all().map(|bucket| (bucket, 0)).collect();
        let (now, found) = self.passed(part, &wanted, limit).await?;
        let mut ids: Passed = found.into_iter().flatten().collect();
        ids.sort_by_key(|(_, at)| *at);
        ids.truncate(limit);
        let rows = self
            .rows(ids.into_iter().map(|(id, _)| id).collect())
            .await?;
        let value = rows.into_iter().map(|row| row.listed.record).collect();
        Ok(Reply { now, value })
    }

    /// The next stretch of the reaper's walk, which meets only due records, and its end position.
    pub(super) async fn walk(
        &self,
        mut position: Position,
        limit: usize,
    ) -> Result<(Reply<Walk>, Position), StoreError> {
        let here = position.bucket;
        let others = Bucket::all().filter(|bucket| bucket.0 > here);
        let mut wanted = vec![(Bucket(here), position.from)];
        wanted.extend(others.map(|bucket| (bucket, 0)));
        let most = (limit / WALK_SHARE).max(WALK_LEAST) + position.seen.len();
        let (now, found) = self.passed(Part::Expiry, &wanted, most).await?;
        let mut ids = Vec::new();
        let mut wrapped = true;
        for ((bucket, from), found) in wanted.into_iter().zip(found) {
            if bucket.0 != here {
                position = Position {
                    bucket: bucket.0,
                    from,
                    seen: Vec::new(),
                };
            }
            let is_full = found.len() == most;
            for (id, at) in found {
                if ids.len() >= limit {
                    break;
                }
                if at > position.from {
                    position.from = at;
                    position.seen.clear();
                } else if position.seen.contains(&id) {
                    continue;
                }
                position.seen.push(id);
                ids.push(id);
            }
            if is_full || ids.len() >= limit {
                wrapped = false;
                break;
            }
        }
        if wrapped {
            position = Position::default();
        }
        let rows = self.rows(ids).await?;
        let value = Walk {
            candidates: rows.into_iter().map(|row| row.listed.record).collect(),
            wrapped,
        };
        Ok((Reply { now, value }, position))
    }

    /// All ids of one part, in every bucket.
    async fn ids(&self, part: Part) -> Result<Vec<RecordId>, StoreError> {
        let scans = Bucket::all().map(|bucket| async move {
            let name = self.names.part(bucket, part);
            let call = Call::plain("ZRANGE").arg(name).arg(0).arg(-1);
            items(self.read(bucket, &call).await?)
        });
        let found: Vec<_> = stream::iter(scans).buffered(AT_ONCE).try_collect().await?;
        found.iter().flatten().map(record_id).collect()
    }

    pub(super) async fn list(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, StoreError> {
        let part = match filter.state {
            Some(State::InProgress) => Part::Leases,
            Some(State::Unknown) => Part::Unknown,
            None if filter.dead_letters => Part::Unknown,
            _ => return self.list_all(filter, cursor, limit).await,
        };
        // These have a small set of their own, so that few among many are found quickly.
        let numbered = self.listed(&self.ids(part).await?).await?;
        let mut found: Vec<(u64, Listed)> = numbered
            .into_iter()
            .filter(|(number, listed)| {
                cursor.is_none_or(|cursor| *number < cursor) && filter.admits(&listed.record)
            })
            .collect();
        found.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        Ok(Page::cut(found, limit))
    }

    /// Records of given ids, with their numbers.
    pub(super) async fn listed(&self, ids: &[RecordId]) -> Result<Vec<(u64, Listed)>, StoreError> {
        let rows = self.rows(ids.to_vec()).await?;
        let numbered = rows.into_iter().map(|row| {
            let number = overall(Bucket::of(row.listed.record.id), row.number);
            (number, row.listed)
        });
        Ok(numbered.collect())
    }

    /// The scopes of the next buckets that have any, in the order of their ids.
    pub(super) async fn scopes(
        &self,
        after: Option<RecordId>,
    ) -> Result<Vec<(RecordId, String)>, StoreError> {
        let from = after.map_or(0, |id| usize::from(Bucket::of(id).0) + 1);
        let buckets: Vec<Bucket> = Bucket::all().skip(from).collect();
        for buckets in buckets.chunks(AT_ONCE) {
            let reads = buckets.iter().copied().map(|bucket| async move {
                let call = Call::plain("HGETALL").arg(self.names.part(bucket, Part::Scopes));
                items(self.read(bucket, &call).await?)
            });
            let found: Vec<_> = stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
            let mut scopes = Vec::new();
            for pair in found.iter().flat_map(|fields| fields.chunks_exact(2)) {
                let name =
                    bytes(Some(pair[1].clone())).and_then(|name| String::from_utf8(name).ok());
                scopes.push((record_id(&pair[0])?, name.ok_or_else(strange)?));
            }
            if !scopes.is_empty() {
                scopes.sort_unstable();
                return Ok(scopes);
            }
        }
        Ok(Vec::new())
    }

    async fn list_all(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, StoreError> {
        let mut strands = self.strands(Part::Numbers, cursor);
        let mut found = Vec::new();
        while found.len() <= limit {
            let wanted = (limit + 1 - found.len()).max(LIST_STEP);
            let newest = self.newest(&mut strands, wanted).await?;
            if newest.is_empty() {
                break;
            }
            let ids = newest.iter().map(|(_, id)| {
                let id = id[..].try_into().map_err(|_| strange())?;
                Ok(RecordId(id))
            });
            let rows = self.rows(ids.collect::<Result<_, StoreError>>()?).await?;
            let wanted = rows
                .into_iter()
                .filter(|row| filter.admits(&row.listed.record));
            found.extend(wanted.map(|row| {
                let number = overall(Bucket::of(row.listed.record.id), row.number);
                (number, row.listed)
            }));
        }
        Ok(Page::cut(found, limit))
    }

    fn strands(&self, part: Part, cursor: Option<u64>) -> Vec<Strand> {
        let strand = |bucket| Strand {
            bucket,
            part,
            waiting: Vec::new(),
            next: before(bucket, cursor),
        };
        Bucket::all().map(strand).collect()
    }

    /// The newest members of all strands, in order; empty at the end.
    async fn newest(
        &self,
        strands: &mut [Strand],
        wanted: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        let mut taken = Vec::with_capacity(wanted);
        self.refill(strands, wanted).await?;
        let mut heap: BinaryHeap<(u64, usize)> = strands
            .iter()
            .enumerate()
            .filter_map(|(index, strand)| Some((strand.newest()?, index)))
            .collect();
        while taken.len() < wanted {
            let Some((number, index)) = heap.pop() else {
                break;
            };
            let strand = &mut strands[index];
            if let Some((_, member)) = strand.waiting.pop() {
                taken.push((number, member));
            }
            if strand.waiting.is_empty() && strand.next.is_some() {
                // The strand's next members may be newer than those of the others.
                break;
            }
            if let Some(next) = strand.newest() {
                heap.push((next, index));
            }
        }
        Ok(taken)
    }

    /// Refills every strand that is empty and has more.
    async fn refill(&self, strands: &mut [Strand], wanted: usize) -> Result<(), StoreError> {
        let step = (wanted / usize::from(BUCKETS)).max(LIST_STEP);
        let empty: Vec<_> = strands
            .iter()
            .enumerate()
            .filter(|(_, strand)| strand.waiting.is_empty())
            .filter_map(|(index, strand)| Some((index, strand.bucket, strand.part, strand.next?)))
            .collect();
        let reads = empty
            .into_iter()
            .map(|(index, bucket, part, from)| async move {
                let call = Call::plain("ZREVRANGEBYSCORE")
                    .arg(self.names.part(bucket, part))
                    .arg(from)
                    .arg("-inf")
                    .arg("WITHSCORES")
                    .arg("LIMIT")
                    .arg(0)
                    .arg(step);
                let found = scored::<u64>(self.read(bucket, &call).await?)?;
                Ok::<_, StoreError>((index, found))
            });
        let found: Vec<_> = stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
        for (index, found) in found {
            let strand = &mut strands[index];
            strand.next = match found.last() {
                Some((_, last)) if found.len() == step => last.checked_sub(1),
                _ => None,
            };
            let members = found.into_iter().rev();
            strand.waiting = members
                .filter_map(|(member, number)| Some((number, bytes(Some(member))?)))
                .collect();
        }
        Ok(())
    }

    pub(super) async fn history(&self, id: RecordId) -> Result<Vec<JournalRow>, StoreError> {
        let name = self.names.of(id, Of::History);
        let call = Call::plain("ZRANGE").arg(name).arg(0).arg(-1);
        let rows = items(self.read(Bucket::of(id), &call).await?)?;
        let rows = rows.into_iter().filter_map(|row| bytes(Some(row)));
        Ok(rows.filter_map(|row| journal_row(&row)).collect())
    }

    pub(super) async fn audit(
        &self,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<JournalRow>, StoreError> {
        let mut strands = self.strands(Part::Journal, cursor);
        let mut found = Vec::new();
        while found.len() <= limit {
            let newest = self.newest(&mut strands, limit + 1 - found.len()).await?;
            if newest.is_empty() {
                break;
            }
            let rows = newest.iter().filter_map(|(_, row)| journal_row(row));
            found.extend(rows.map(|row| (row.number, row)));
        }
        Ok(Page::cut(found, limit))
    }

    pub(super) async fn prune_audit(&self, cutoff: Timestamp) -> Result<(), StoreError> {
        for bucket in Bucket::all() {
            let mut from = 0_i64;
            loop {
                let call = Call::plain("ZRANGEBYSCORE")
                    .arg(self.names.part(bucket, Part::Kept))
                    .arg(from)
                    .arg(format!("({}", cutoff.0))
                    .arg("WITHSCORES")
                    .arg("LIMIT")
                    .arg(0)
                    .arg(PRUNE_STEP);
                let found = scored::<i64>(self.read(bucket, &call).await?)?;
                for (row, _) in &found {
                    self.prune(bucket, row).await?;
                }
                match found.last() {
                    // Further rows of the last millisecond of a full step wait for the next pruning.
                    Some((_, last)) if found.len() == PRUNE_STEP => from = last + 1,
                    _ => break,
                }
            }
        }
        Ok(())
    }

    async fn prune(&self, bucket: Bucket, row: &Value) -> Result<(), StoreError> {
        let Some(stored) = bytes(Some(row.clone())) else {
            return Ok(());
        };
        let Some(read) = journal_row(&stored) else {
            return Ok(());
        };
        let id = read.entry.id;
        let call = PRUNE.call(&[
            self.names.of(id, Of::Record),
            self.names.part(bucket, Part::Journal),
            self.names.of(id, Of::History),
            self.names.part(bucket, Part::Kept),
        ]);
        let slot = self.names.slot(bucket);
        let done = self.net.call(slot, &call.arg(stored), Does::Write).await;
        done.map(|_| ()).map_err(|failure| failure.of_a_write())
    }

    pub(super) async fn counts(&self) -> Result<Counts, StoreError> {
        let reads = Bucket::all().map(|bucket| async move {
            let mut call = Call::plain("HMGET").arg(self.names.part(bucket, Part::Counts));
            for state in State::ALL {
                call = call.arg(row::tag(state));
            }
            items(self.read(bucket, &call).await?)
        });
        let found: Vec<_> = stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
        let mut counts: Counts = State::ALL.into_iter().map(|state| (state, 0)).collect();
        for bucket in found {
            for (state, count) in State::ALL.into_iter().zip(bucket) {
                if count != Value::Nil {
                    *counts.entry(state).or_default() += number::<u64>(&count)?;
                }
            }
        }
        Ok(counts)
    }

    /// The number of one client's keys in progress. Walks the sets of leases, which the limit of each client
    /// keeps small.
    pub(super) async fn live(
        &self,
        scope: &Scope,
        caller: Option<CallerMark>,
        limit: u64,
    ) -> Result<u64, StoreError> {
        let rows = self.rows(self.ids(Part::Leases).await?).await?;
        let of_this = rows.iter().filter(|row| {
            let record = &row.listed.record;
            record.scope == *scope && record.caller == caller
        });
        Ok((of_this.count() as u64).min(limit))
    }

    /// Reads the whole record from a script's answer.
    pub(super) fn whole(
        id: RecordId,
        stored: Option<Value>,
        body: Option<Value>,
    ) -> Result<Option<Record>, StoreError> {
        let Some(stored) = bytes(stored) else {
            return Ok(None);
        };
        let body = bytes(body).map(Bytes::from);
        Ok(Some(row::read_whole(id, &stored, body)?))
    }
}

impl Strand {
    fn newest(&self) -> Option<u64> {
        let (number, _) = self.waiting.last()?;
        Some(overall(self.bucket, *number))
    }
}

/// A journal row with its number across all buckets; `None`, with a log message, if it is unreadable.
fn journal_row(stored: &[u8]) -> Option<JournalRow> {
    match row::read_journal(stored) {
        Ok(mut row) => {
            row.number = overall(Bucket::of(row.entry.id), row.number);
            Some(row)
        }
        Err(row::Unreadable(error)) => {
            tracing::error!(%error, "a journal row of the store cannot be read; it is left as it is");
            None
        }
    }
}
