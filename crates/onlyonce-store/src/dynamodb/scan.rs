//! Scans by background loops and people: the indexes give the keys, and the current records are then read.
//!
//! An index lags slightly behind its table. A scan returns records read from the table itself that still
//! belong where they were found; a caller that acts on one swaps by its revision.

use std::{
    collections::{BinaryHeap, HashMap, HashSet},
    time::Duration,
};

use aws_sdk_dynamodb::types::{AttributeValue, KeysAndAttributes, Select};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use onlyonce_core::{CallerMark, Record, RecordId, Scope, State, Timestamp};
use tokio::time::Instant;

use super::{
    Inner, Item,
    item::{self, Beside, LISTED},
    layout::{
        DATA, JOURNAL, Kind, LANE, LANES, NUMBER, ORDER, ORDER_LANE, PIECE, PK, RECORD, SHARDS, SK,
        TIME, bytes_of, due_at, key, number, number_of, numbered, order_lane, partition, record_of,
        strange, text, text_of,
    },
    write::LOOK_AFTER,
};
use crate::{
    Counts, Filter, JournalRow, Listed, Page, Reply, StoreError, Walk,
    row::{self, Row},
};

/// Concurrent calls of one scan.
const AT_ONCE: usize = 16;
/// The most items that one call reads by key.
const KEYS_AT_ONCE: usize = 100;
/// Keys that a list takes from one lane at a time.
const LIST_STEP: usize = 16;
/// Sets of pieces per shard that are checked together; `PIECES_EVERY` is how often.
const PIECES_AT_ONCE: usize = 100;
const PIECES_EVERY: Duration = Duration::from_secs(600);
/// The states that the reaper may find due.
const REAPED: [State; 3] = [State::Completed, State::FailedRetryable, State::Expired];

/// The position of the reaper's walk: in this lane, after this key.
#[derive(Clone, Debug, Default)]
pub(super) struct Position {
    lane: usize,
    after: Option<Item>,
    /// When pieces were last checked.
    looked_at: Option<Instant>,
}

/// An index, and its keys.
#[derive(Clone, Copy)]
struct Index {
    name: &'static str,
    lane: &'static str,
    sort: &'static str,
}

const BY_TIME: Index = Index {
    name: LANES,
    lane: LANE,
    sort: TIME,
};
const BY_NUMBER: Index = Index {
    name: ORDER,
    lane: ORDER_LANE,
    sort: NUMBER,
};

/// A stretch of a lane.
struct Stretch {
    keys: Vec<Item>,
    next: Option<Item>,
}

/// The newest keys of one lane, read a few at a time.
struct Strand {
    lane: String,
    /// Newest last.
    waiting: Vec<(u64, Item)>,
    /// The next keys are below this number; `None` at the end.
    below: Option<u64>,
}

impl Inner {
    /// Keys of a lane from the lowest up to `most`.
    async fn stretch(
        &self,
        lane: String,
        most: i64,
        after: Option<Item>,
        limit: usize,
    ) -> Result<Stretch, StoreError> {
        let call = self
            .client
            .query()
            .table_name(&self.table)
            .index_name(LANES)
            .key_condition_expression(format!("{LANE} = :l AND {TIME} <= :t"))
            .expression_attribute_values(":l", text(lane))
            .expression_attribute_values(":t", number(most))
            .limit(i32::try_from(limit.max(1)).unwrap_or(i32::MAX))
            .set_exclusive_start_key(after);
        let found = self.read(|| Box::pin(call.clone().send())).await?;
        Ok(Stretch {
            keys: found.items.unwrap_or_default(),
            next: found.last_evaluated_key,
        })
    }

    /// All keys of a kind, whatever their time.
    async fn all(&self, kind: Kind) -> Result<Vec<Item>, StoreError> {
        let lanes = (0..SHARDS).map(|shard| async move {
            let mut keys = Vec::new();
            let mut after = None;
            loop {
                let stretch = self.stretch(kind.lane(shard), i64::MAX, after, 1_000);
                let stretch = stretch.await?;
                keys.extend(stretch.keys);
                after = stretch.next;
                if after.is_none() {
                    return Ok::<_, StoreError>(keys);
                }
            }
        });
        let lanes: Vec<_> = lanes.collect();
        let found: Vec<_> = stream::iter(lanes).buffered(AT_ONCE).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// The existing items under these keys, in no order.
    async fn batch(&self, keys: Vec<Item>, only: Option<String>) -> Result<Vec<Item>, StoreError> {
        let batches: Vec<Vec<Item>> = keys.chunks(KEYS_AT_ONCE).map(<[Item]>::to_vec).collect();
        let reads: Vec<_> = batches
            .into_iter()
            .map(|keys| self.one_batch(keys, only.clone()))
            .collect();
        let found: Vec<_> = stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    async fn one_batch(
        &self,
        keys: Vec<Item>,
        only: Option<String>,
    ) -> Result<Vec<Item>, StoreError> {
        let wanted = KeysAndAttributes::builder()
            .set_keys(Some(keys))
            .consistent_read(true)
            .set_projection_expression(only)
            .build()
            .map_err(|error| StoreError::Unavailable(error.into()))?;
        let mut left = HashMap::from([(self.table.clone(), wanted)]);
        let mut items = Vec::new();
        // Every round makes progress: the service returns at least one item or refuses.
        while !left.is_empty() {
            let call = self.client.batch_get_item().set_request_items(Some(left));
            let found = self.read(|| Box::pin(call.clone().send())).await?;
            let mut of_tables = found.responses.unwrap_or_default();
            items.extend(of_tables.remove(&self.table).unwrap_or_default());
            left = found.unprocessed_keys.unwrap_or_default();
        }
        Ok(items)
    }

    /// Records without their answers' bodies, in the order of `ids`. Skips records that are gone or, with a
    /// log message, unreadable: they must not keep the others from being swept, reaped or shown.
    pub(super) async fn rows(&self, ids: &[RecordId]) -> Result<Vec<Row>, StoreError> {
        let mut seen = HashSet::new();
        let keys = ids.iter().filter(|id| seen.insert(**id));
        let keys = keys.map(|id| key(partition(*id), RECORD)).collect();
        let mut rows = HashMap::new();
        for item in self.batch(keys, Some(LISTED.join(", "))).await? {
            let id = record_of(text_of(&item, PK)?)?;
            match self.row(id, &item).await {
                Ok(row) => {
                    rows.insert(id, row);
                }
                Err(StoreError::Unreadable(error)) => {
                    tracing::error!(%error, "an item of the table cannot be read; it is left as it is");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(ids.iter().filter_map(|id| rows.remove(id)).collect())
    }

    async fn row(&self, id: RecordId, item: &Item) -> Result<Row, StoreError> {
        let beside = match Beside::of(item)? {
            Some(names) if names.has_row() => {
                let bytes = self.pieces(id, &names).await?;
                Some((names, bytes.ok_or_else(strange)?))
            }
            _ => None,
        };
        item::listed(id, item, beside)
    }

    /// The records under these keys of an index.
    async fn records(&self, keys: &[Item]) -> Result<Vec<Record>, StoreError> {
        let rows = self.rows(&ids(keys)?).await?;
        Ok(rows.into_iter().map(|row| row.listed.record).collect())
    }

    /// Records of a kind whose time has passed, earliest first.
    pub(super) async fn passed(
        &self,
        kind: Kind,
        limit: usize,
    ) -> Result<Reply<Vec<Record>>, StoreError> {
        let now = self.time.now();
        let lanes: Vec<_> = (0..SHARDS)
            .map(|shard| self.stretch(kind.lane(shard), now.0, None, limit))
            .collect();
        let found: Vec<Stretch> = stream::iter(lanes).buffered(AT_ONCE).try_collect().await?;
        let mut keys = Vec::new();
        for key in found.into_iter().flat_map(|stretch| stretch.keys) {
            keys.push((number_of::<i64>(&key, TIME)?.ok_or_else(strange)?, key));
        }
        keys.sort_by_key(|(at, _)| *at);
        keys.truncate(limit);
        let keys: Vec<Item> = keys.into_iter().map(|(_, key)| key).collect();
        let mut value = self.records(&keys).await?;
        value.retain(|record| is_due(record, kind, now));
        Ok(Reply { now, value })
    }

    /// The next stretch of the reaper's walk, which meets only due records, and its end position.
    pub(super) async fn walk(
        &self,
        mut position: Position,
        limit: usize,
    ) -> Result<(Reply<Walk>, Position), StoreError> {
        let now = self.time.now();
        let mut candidates = Vec::new();
        let mut looked_at = 0;
        let lanes = REAPED.len() * usize::from(SHARDS);
        while looked_at < limit && position.lane < lanes {
            let (state, shard) = place(position.lane);
            let kind = Kind::Records(state);
            let after = position.after.take();
            let stretch = self.stretch(kind.lane(shard), now.0, after, limit - looked_at);
            let stretch = stretch.await?;
            looked_at += stretch.keys.len();
            let records = self.records(&stretch.keys).await?;
            candidates.extend(
                records
                    .into_iter()
                    .filter(|record| is_due(record, kind, now)),
            );
            position.after = stretch.next;
            if position.after.is_none() {
                position.lane += 1;
            }
        }
        let wrapped = position.lane >= lanes;
        if wrapped {
            let looked_at = position.looked_at.take();
            position = Position::default();
            position.looked_at = match looked_at {
                Some(at) if at.elapsed() < PIECES_EVERY => looked_at,
                _ => {
                    self.look_at_pieces(now).await?;
                    Some(Instant::now())
                }
            };
        }
        let value = Walk {
            candidates,
            wrapped,
        };
        Ok((Reply { now, value }, position))
    }

    /// Deletes pieces that no record came to name, or that none names any more.
    async fn look_at_pieces(&self, now: Timestamp) -> Result<(), StoreError> {
        for shard in 0..SHARDS {
            let lane = Kind::Pieces.lane(shard);
            let stretch = self.stretch(lane, now.0, None, PIECES_AT_ONCE).await?;
            for found in stretch.keys {
                self.look_at_piece(&found, now).await?;
            }
        }
        Ok(())
    }

    async fn look_at_piece(&self, found: &Item, now: Timestamp) -> Result<(), StoreError> {
        let (own, sort) = (text_of(found, PK)?, text_of(found, SK)?);
        let id = record_of(own)?;
        let name = sort
            .strip_prefix(PIECE)
            .and_then(|rest| rest.split('#').next())
            .ok_or_else(strange)?;
        let record = self.item(own, RECORD).await?.unwrap_or_default();
        let names = Beside::of(&record)?;
        if names.is_some_and(|names| names.name == name) {
            // Still named. Checked again later: whoever replaces the record may not delete the pieces.
            let call = self
                .client
                .update_item()
                .table_name(&self.table)
                .set_key(Some(key(own, sort)))
                .update_expression(format!("SET {TIME} = :t"))
                .condition_expression(format!("attribute_exists({PK})"))
                .expression_attribute_values(":t", number(now.0 + LOOK_AFTER));
            // If it has just been deleted, there is nothing to check.
            self.call(|| Box::pin(call.clone().send())).await?;
            return Ok(());
        }
        let pieces = self.below(id, &format!("{PIECE}{name}#"), Some(SK)).await?;
        self.drop_pieces(id, name, pieces.len()).await;
        Ok(())
    }

    pub(super) async fn list(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, StoreError> {
        let state = match filter.state {
            Some(state @ (State::InProgress | State::Unknown)) => state,
            None if filter.dead_letters => State::Unknown,
            _ => return self.list_all(filter, cursor, limit).await,
        };
        // These are few among many, and have lanes of their own.
        let keys = self.all(Kind::Records(state)).await?;
        let rows = self.rows(&ids(&keys)?).await?;
        let mut found: Vec<(u64, Listed)> = rows
            .into_iter()
            .filter(|row| {
                cursor.is_none_or(|cursor| row.number < cursor) && filter.admits(&row.listed.record)
            })
            .map(|row| (row.number, row.listed))
            .collect();
        found.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        Ok(Page::cut(found, limit))
    }

    async fn list_all(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, StoreError> {
        let mut strands = strands(order_lane, cursor);
        let mut found = Vec::new();
        while found.len() <= limit {
            let wanted = (limit + 1 - found.len()).max(LIST_STEP);
            let newest = self.newest(BY_NUMBER, &mut strands, wanted).await?;
            if newest.is_empty() {
                break;
            }
            let rows = self.rows(&ids(&newest)?).await?;
            let wanted = rows
                .into_iter()
                .filter(|row| filter.admits(&row.listed.record));
            found.extend(wanted.map(|row| (row.number, row.listed)));
        }
        Ok(Page::cut(found, limit))
    }

    /// The newest keys of all strands, in order; empty at the end.
    async fn newest(
        &self,
        index: Index,
        strands: &mut [Strand],
        wanted: usize,
    ) -> Result<Vec<Item>, StoreError> {
        self.refill(index, strands, wanted).await?;
        let mut heap: BinaryHeap<(u64, usize)> = strands
            .iter()
            .enumerate()
            .filter_map(|(place, strand)| Some((strand.waiting.last()?.0, place)))
            .collect();
        let mut taken = Vec::with_capacity(wanted);
        while taken.len() < wanted {
            let Some((_, place)) = heap.pop() else {
                break;
            };
            let strand = &mut strands[place];
            taken.extend(strand.waiting.pop().map(|(_, key)| key));
            match strand.waiting.last() {
                Some((next, _)) => heap.push((*next, place)),
                // The strand's next keys may be newer than those of the others.
                None if strand.below.is_some() => break,
                None => {}
            }
        }
        Ok(taken)
    }

    /// Refills every strand that is empty and has more.
    async fn refill(
        &self,
        index: Index,
        strands: &mut [Strand],
        wanted: usize,
    ) -> Result<(), StoreError> {
        let step = (wanted / usize::from(SHARDS)).max(LIST_STEP);
        let empty: Vec<_> = strands
            .iter()
            .enumerate()
            .filter(|(_, strand)| strand.waiting.is_empty())
            .filter_map(|(place, strand)| Some((place, strand.lane.clone(), strand.below?)))
            .collect();
        let reads: Vec<_> = empty
            .into_iter()
            .map(|(place, lane, below)| async move {
                let call = self
                    .client
                    .query()
                    .table_name(&self.table)
                    .index_name(index.name)
                    .key_condition_expression(format!(
                        "{} = :l AND {} < :n",
                        index.lane, index.sort
                    ))
                    .expression_attribute_values(":l", text(lane))
                    .expression_attribute_values(":n", number(below))
                    .scan_index_forward(false)
                    .limit(i32::try_from(step).unwrap_or(i32::MAX));
                let found = self.read(|| Box::pin(call.clone().send())).await?;
                let has_more = found.last_evaluated_key.is_some();
                let mut keys = Vec::new();
                for key in found.items.unwrap_or_default() {
                    keys.push((number_of(&key, index.sort)?.ok_or_else(strange)?, key));
                }
                Ok::<_, StoreError>((place, keys, has_more))
            })
            .collect();
        let found: Vec<_> = stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
        for (place, mut keys, has_more) in found {
            let strand = &mut strands[place];
            let last: Option<u64> = keys.last().map(|(number, _)| *number);
            strand.below = last.filter(|_| has_more);
            keys.reverse();
            strand.waiting = keys;
        }
        Ok(())
    }

    pub(super) async fn history(&self, id: RecordId) -> Result<Vec<JournalRow>, StoreError> {
        let items = self.below(id, JOURNAL, None).await?;
        Ok(items.iter().filter_map(journal_row).collect())
    }

    pub(super) async fn audit(
        &self,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<JournalRow>, StoreError> {
        let mut strands = strands(|shard| Kind::Journal.lane(shard), cursor);
        let mut found = Vec::new();
        while found.len() <= limit {
            let wanted = limit + 1 - found.len();
            let newest = self.newest(BY_TIME, &mut strands, wanted).await?;
            if newest.is_empty() {
                break;
            }
            let items = self.batch(bare(&newest)?, None).await?;
            let mut rows: Vec<JournalRow> = items.iter().filter_map(journal_row).collect();
            rows.sort_by_key(|row| std::cmp::Reverse(row.number));
            found.extend(rows.into_iter().map(|row| (row.number, row)));
        }
        Ok(Page::cut(found, limit))
    }

    /// Deletes journal rows from before `cutoff` whose record is gone.
    pub(super) async fn prune_audit(&self, cutoff: Timestamp) -> Result<(), StoreError> {
        let micros = cutoff.0.saturating_mul(1_000).max(0).unsigned_abs();
        let most = i64::try_from(numbered(micros, 0)).unwrap_or(i64::MAX);
        for shard in 0..SHARDS {
            let mut after = None;
            loop {
                let lane = Kind::Journal.lane(shard);
                let stretch = self.stretch(lane, most, after, KEYS_AT_ONCE).await?;
                let records = ids(&stretch.keys)?;
                let mut keys: Vec<Item> = Vec::new();
                let mut asked = HashSet::new();
                for id in records.iter().filter(|id| asked.insert(**id)) {
                    keys.push(key(partition(*id), RECORD));
                }
                let there = self.batch(keys, Some(PK.to_owned())).await?;
                let there: HashSet<RecordId> = ids(&there)?.into_iter().collect();
                for (found, id) in stretch.keys.iter().zip(records) {
                    if !there.contains(&id) {
                        self.forget_item(&partition(id), text_of(found, SK)?).await;
                    }
                }
                after = stretch.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    pub(super) async fn counts(&self) -> Result<Counts, StoreError> {
        let lanes = State::ALL
            .into_iter()
            .flat_map(|state| (0..SHARDS).map(move |shard| (state, shard)));
        let reads: Vec<_> = lanes
            .map(|(state, shard)| async move {
                let lane = Kind::Records(state).lane(shard);
                Ok::<_, StoreError>((state, self.count(lane).await?))
            })
            .collect();
        let found: Vec<_> = stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
        let mut counts: Counts = State::ALL.into_iter().map(|state| (state, 0)).collect();
        for (state, count) in found {
            *counts.entry(state).or_default() += count;
        }
        Ok(counts)
    }

    async fn count(&self, lane: String) -> Result<u64, StoreError> {
        let mut count = 0;
        let mut after: Option<HashMap<String, AttributeValue>> = None;
        loop {
            let call = self
                .client
                .query()
                .table_name(&self.table)
                .index_name(LANES)
                .select(Select::Count)
                .key_condition_expression(format!("{LANE} = :l"))
                .expression_attribute_values(":l", text(&lane))
                .set_exclusive_start_key(after);
            let found = self.read(|| Box::pin(call.clone().send())).await?;
            count += u64::from(found.count.unsigned_abs());
            after = found.last_evaluated_key;
            if after.is_none() {
                return Ok(count);
            }
        }
    }

    /// The number of one client's keys in progress. Walks the lanes of keys in progress, which the limit of
    /// each client keeps small.
    pub(super) async fn live(
        &self,
        scope: &Scope,
        caller: Option<CallerMark>,
        limit: u64,
    ) -> Result<u64, StoreError> {
        let keys = self.all(Kind::Records(State::InProgress)).await?;
        let records = self.records(&keys).await?;
        let of_this = records.iter().filter(|record| {
            record.times.lease_until.is_some() && record.scope == *scope && record.caller == caller
        });
        Ok((of_this.count() as u64).min(limit))
    }
}

/// The state and the shard of a lane of the reaper's walk.
fn place(lane: usize) -> (State, u8) {
    let shards = usize::from(SHARDS);
    let shard = u8::try_from(lane % shards).unwrap_or(0);
    (REAPED[lane / shards], shard)
}

/// Whether a record still belongs where an index named it.
fn is_due(record: &Record, kind: Kind, now: Timestamp) -> bool {
    kind == Kind::Records(record.state) && due_at(record) <= now.0
}

/// The records that keys of an index belong to.
fn ids(keys: &[Item]) -> Result<Vec<RecordId>, StoreError> {
    keys.iter()
        .map(|key| record_of(text_of(key, PK)?))
        .collect()
}

/// The table keys in keys of an index.
fn bare(keys: &[Item]) -> Result<Vec<Item>, StoreError> {
    keys.iter()
        .map(|found| Ok(key(text_of(found, PK)?, text_of(found, SK)?)))
        .collect()
}

fn strands(lane: impl Fn(u8) -> String, cursor: Option<u64>) -> Vec<Strand> {
    let strand = |shard| Strand {
        lane: lane(shard),
        waiting: Vec::new(),
        below: Some(cursor.unwrap_or(i64::MAX.unsigned_abs())),
    };
    (0..SHARDS).map(strand).collect()
}

/// A journal row; `None`, with a log message, if it is unreadable.
fn journal_row(item: &Item) -> Option<JournalRow> {
    let stored = bytes_of(item, DATA)?;
    match row::read_journal(stored) {
        Ok(row) => Some(row),
        Err(row::Unreadable(error)) => {
            tracing::error!(%error, "a journal row of the table cannot be read; it is left as it is");
            None
        }
    }
}
