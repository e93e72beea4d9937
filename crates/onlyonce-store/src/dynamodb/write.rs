//! The writes of records: each compares and replaces in one step of the service.

use std::collections::HashMap;

use aws_sdk_dynamodb::{
    operation::{
        delete_item::DeleteItemError, put_item::PutItemError,
        transact_write_items::TransactWriteItemsError, update_item::UpdateItemError,
    },
    types::{
        AttributeValue, Delete, Put, ReturnValue, ReturnValuesOnConditionCheckFailure,
        TransactWriteItem, Update,
    },
};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use onlyonce_core::{
    Record, RecordId, Timestamp,
    record::{Change, Draft, JournalEntry, Revision},
};

use super::{
    Inner, Item,
    item::{self, Beside, Outgoing, WRITTEN, WriteId},
    layout::{
        self, DATA, JOURNAL, Kind, LANE, NUMBER, ORDER_LANE, PIECE, PIECE_COUNT, PIECES, PK,
        RECORD, REVISION, SK, TIME, blob, journal_key, key, low_bits, number, numbered, order_lane,
        partition, piece_key, shard, strange, text, text_of,
    },
    net::{Came, refused},
};
use crate::{Inserted, Reply, StoreError, Swapped, random_bytes, row};

/// Concurrent writes and deletions of pieces.
const PIECES_AT_ONCE: usize = 4;
/// How often a record whose pieces are gone is read: it was replaced meanwhile.
const READS: usize = 3;
/// How long after pieces were written a worker checks whether a record names them, in milliseconds.
pub(super) const LOOK_AFTER: i64 = 3_600_000;
/// The most actions in one transaction.
const MAX_ACTIONS: usize = 100;

/// What a failed condition found.
enum Found {
    /// An item.
    Item(Item),
    /// Nothing.
    Nothing,
}

impl Inner {
    /// The current record.
    pub(super) async fn record(&self, id: RecordId) -> Result<Option<Record>, StoreError> {
        for _ in 0..READS {
            let Some(item) = self.item(&partition(id), RECORD).await? else {
                return Ok(None);
            };
            if let Some(record) = self.whole(id, &item).await? {
                return Ok(Some(record));
            }
        }
        Err(pieces_missing())
    }

    /// The record in an item; `None` if pieces that it names are gone.
    async fn whole(&self, id: RecordId, item: &Item) -> Result<Option<Record>, StoreError> {
        let beside = match Beside::of(item)? {
            None => None,
            Some(names) => match self.pieces(id, &names).await? {
                Some(bytes) => Some((names, bytes)),
                None => return Ok(None),
            },
        };
        item::whole(id, item, beside).map(Some)
    }

    /// The record that a failed condition found, as of then or later.
    async fn found(&self, id: RecordId, item: &Item) -> Result<Option<Record>, StoreError> {
        match self.whole(id, item).await? {
            Some(record) => Ok(Some(record)),
            None => self.record(id).await,
        }
    }

    pub(super) async fn insert(&self, draft: Draft) -> Result<Reply<Inserted>, StoreError> {
        let now = self.time.now();
        let record = draft.stamp(now);
        let id = record.id;
        let outgoing = Outgoing::new(&record);
        self.put_pieces(id, &outgoing).await?;
        let mut item = outgoing.attributes.clone();
        item.extend(key(partition(id), RECORD));
        let place = numbered(self.time.next_micros(), low_bits(id));
        item.insert(ORDER_LANE.to_owned(), text(order_lane(shard(id))));
        item.insert(NUMBER.to_owned(), number(place));
        let call = self
            .client
            .put_item()
            .table_name(&self.table)
            .set_item(Some(item))
            .condition_expression(format!("attribute_not_exists({PK})"))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let failed = match self.call(|| Box::pin(call.clone().send())).await? {
            Came::Done(_) => {
                let value = Inserted::New(record);
                return Ok(Reply { now, value });
            }
            Came::Refused {
                error: PutItemError::ConditionalCheckFailedException(failed),
                ..
            } => failed,
            Came::Refused { error, in_doubt } => return Err(refused(&error, in_doubt)),
        };
        let item = match self.there(id, failed.item).await? {
            Found::Item(item) => item,
            // The record was deleted in between. Nothing was written.
            Found::Nothing => {
                return Err(StoreError::Unavailable("the key was just deleted".into()));
            }
        };
        if item::is_of(&item, &outgoing.write) {
            let value = Inserted::New(record);
            return Ok(Reply { now, value });
        }
        let Some(existing) = self.found(id, &item).await? else {
            return Err(StoreError::Unavailable("the key was just deleted".into()));
        };
        if !existing.is_of(&record.scope, &record.key) {
            return Err(StoreError::Collision);
        }
        let value = Inserted::Existing(existing);
        let now = self.time.now();
        Ok(Reply { now, value })
    }

    pub(super) async fn swap(
        &self,
        expected: Revision,
        change: Change,
    ) -> Result<Reply<Swapped>, StoreError> {
        let now = self.time.now();
        let record = change.draft.stamp(now);
        let id = record.id;
        let outgoing = Outgoing::new(&record);
        self.put_pieces(id, &outgoing).await?;
        let swapped = match change.journal.is_empty() {
            true => self.swap_alone(expected, id, &outgoing).await?,
            false => {
                let rows = self.journal_items(now, &change.journal);
                self.swap_with(expected, id, &outgoing, rows).await?
            }
        };
        let value = match swapped {
            None => Swapped::Done(record),
            Some(found) => {
                self.drop_pieces_of(id, &outgoing).await;
                match found {
                    Found::Nothing => Swapped::Absent,
                    Found::Item(item) => match self.found(id, &item).await? {
                        Some(record) => Swapped::Conflict(record),
                        None => Swapped::Absent,
                    },
                }
            }
        };
        let now = match &value {
            Swapped::Done(_) => now,
            _ => self.time.now(),
        };
        Ok(Reply { now, value })
    }

    /// Returns `None` if the swap succeeded.
    async fn swap_alone(
        &self,
        expected: Revision,
        id: RecordId,
        outgoing: &Outgoing,
    ) -> Result<Option<Found>, StoreError> {
        let (expression, values) = update(expected, outgoing);
        let call = self
            .client
            .update_item()
            .table_name(&self.table)
            .set_key(Some(key(partition(id), RECORD)))
            .update_expression(expression)
            .condition_expression(format!("{REVISION} = :expected"))
            .set_expression_attribute_values(Some(values))
            .return_values(ReturnValue::UpdatedOld)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        match self.call(|| Box::pin(call.clone().send())).await? {
            Came::Done(done) => {
                let before = done.attributes.unwrap_or_default();
                self.drop_beside(id, Beside::of(&before)?).await;
                Ok(None)
            }
            Came::Refused {
                error: UpdateItemError::ConditionalCheckFailedException(failed),
                ..
            } => self.unless_ours(id, failed.item, &outgoing.write).await,
            Came::Refused { error, in_doubt } => Err(refused(&error, in_doubt)),
        }
    }

    /// The same together with journal rows.
    async fn swap_with(
        &self,
        expected: Revision,
        id: RecordId,
        outgoing: &Outgoing,
        rows: Vec<Item>,
    ) -> Result<Option<Found>, StoreError> {
        let (expression, values) = update(expected, outgoing);
        let update = Update::builder()
            .table_name(&self.table)
            .set_key(Some(key(partition(id), RECORD)))
            .update_expression(expression)
            .condition_expression(format!("{REVISION} = :expected"))
            .set_expression_attribute_values(Some(values))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .build()
            .map_err(|error| StoreError::Unavailable(error.into()))?;
        let mut actions = vec![TransactWriteItem::builder().update(update).build()];
        for row in rows {
            let put = Put::builder().table_name(&self.table).set_item(Some(row));
            let put = put
                .build()
                .map_err(|error| StoreError::Unavailable(error.into()))?;
            actions.push(TransactWriteItem::builder().put(put).build());
        }
        let before = self.beside_of(id, expected).await?;
        match self.transact(actions, &outgoing.write).await? {
            None => {
                self.drop_beside(id, before).await;
                Ok(None)
            }
            Some((item, _)) => self.unless_ours(id, item, &outgoing.write).await,
        }
    }

    /// Runs a transaction whose first action is conditional. Returns `None` if it succeeded, otherwise the
    /// item that the condition found, and whether an earlier try may have succeeded.
    async fn transact(
        &self,
        actions: Vec<TransactWriteItem>,
        write: &WriteId,
    ) -> Result<Option<(Option<Item>, bool)>, StoreError> {
        // Under this token the service runs the transaction once, however often it is sent.
        let token = format!("{:032x}", u128::from_be_bytes(*write));
        let call = self
            .client
            .transact_write_items()
            .set_transact_items(Some(actions))
            .client_request_token(token);
        match self.call(|| Box::pin(call.clone().send())).await? {
            Came::Done(_) => Ok(None),
            Came::Refused {
                error: TransactWriteItemsError::TransactionCanceledException(cancelled),
                in_doubt,
            } => {
                let first = cancelled.cancellation_reasons().first();
                match first.filter(|first| first.code() == Some("ConditionalCheckFailed")) {
                    Some(first) => Ok(Some((first.item().cloned(), in_doubt))),
                    None => {
                        let error =
                            TransactWriteItemsError::TransactionCanceledException(cancelled);
                        Err(refused(&error, in_doubt))
                    }
                }
            }
            Came::Refused { error, in_doubt } => Err(refused(&error, in_doubt)),
        }
    }

    /// What a failed condition found, or `None` if this very write has made it before.
    async fn unless_ours(
        &self,
        id: RecordId,
        item: Option<Item>,
        write: &WriteId,
    ) -> Result<Option<Found>, StoreError> {
        match self.there(id, item).await? {
            Found::Item(item) if item::is_of(&item, write) => Ok(None),
            found => Ok(Some(found)),
        }
    }

    /// The item that a failed condition returned; if the service returned none, it is read.
    async fn there(&self, id: RecordId, item: Option<Item>) -> Result<Found, StoreError> {
        let item = match item.filter(|item| !item.is_empty()) {
            Some(item) => Some(item),
            None => self.item(&partition(id), RECORD).await?,
        };
        Ok(item.map_or(Found::Nothing, Found::Item))
    }

    /// Deletes the record and the journal rows that do not outlive it.
    pub(super) async fn delete(
        &self,
        id: RecordId,
        expected: Revision,
    ) -> Result<bool, StoreError> {
        let mut rows = self
            .journal_keys(id, |row| !row::outlives_its_record(row))
            .await?;
        let before = self.beside_of(id, expected).await?;
        let later = rows.split_off(rows.len().min(MAX_ACTIONS - 1));
        let (is_done, in_doubt) = match rows.is_empty() {
            true => self.delete_alone(id, expected).await?,
            false => self.delete_with(id, expected, rows).await?,
        };
        if !is_done {
            // The record may be absent because of a try whose answer was lost.
            return match in_doubt && self.item(&partition(id), RECORD).await?.is_none() {
                true => Err(StoreError::Ambiguous("the record is gone".into())),
                false => Ok(false),
            };
        }
        for sort in later {
            self.forget_item(&partition(id), &sort).await;
        }
        self.drop_beside(id, before).await;
        Ok(true)
    }

    async fn delete_alone(
        &self,
        id: RecordId,
        expected: Revision,
    ) -> Result<(bool, bool), StoreError> {
        let call = self
            .client
            .delete_item()
            .table_name(&self.table)
            .set_key(Some(key(partition(id), RECORD)))
            .condition_expression(format!("{REVISION} = :expected"))
            .expression_attribute_values(":expected", number(expected.0));
        match self.call(|| Box::pin(call.clone().send())).await? {
            Came::Done(_) => Ok((true, false)),
            Came::Refused {
                error: DeleteItemError::ConditionalCheckFailedException(_),
                in_doubt,
            } => Ok((false, in_doubt)),
            Came::Refused { error, in_doubt } => Err(refused(&error, in_doubt)),
        }
    }

    async fn delete_with(
        &self,
        id: RecordId,
        expected: Revision,
        rows: Vec<String>,
    ) -> Result<(bool, bool), StoreError> {
        let delete = |sort: &str| {
            Delete::builder()
                .table_name(&self.table)
                .set_key(Some(key(partition(id), sort)))
        };
        let record = delete(RECORD)
            .condition_expression(format!("{REVISION} = :expected"))
            .expression_attribute_values(":expected", number(expected.0));
        let deletes = std::iter::once(record).chain(rows.iter().map(|sort| delete(sort)));
        let actions = deletes.map(|delete| {
            let delete = delete.build()?;
            Ok(TransactWriteItem::builder().delete(delete).build())
        });
        let actions: Result<Vec<_>, aws_sdk_dynamodb::error::BuildError> = actions.collect();
        let actions = actions.map_err(|error| StoreError::Unavailable(error.into()))?;
        match self.transact(actions, &random_bytes()).await? {
            None => Ok((true, false)),
            Some((_, in_doubt)) => Ok((false, in_doubt)),
        }
    }

    pub(super) async fn append(&self, journal: Vec<JournalEntry>) -> Result<(), StoreError> {
        let mut has_written = false;
        for item in self.journal_items(self.time.now(), &journal) {
            match self.put(item).await {
                Ok(()) => has_written = true,
                Err(StoreError::Unavailable(why)) if has_written => {
                    return Err(StoreError::Ambiguous(why));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn journal_items(&self, now: Timestamp, journal: &[JournalEntry]) -> Vec<Item> {
        let rows = journal.iter().map(|entry| {
            let place = numbered(self.time.next_micros(), u16::from_be_bytes(random_bytes()));
            let mut item = key(partition(entry.id), journal_key(place));
            let lane = Kind::Journal.lane(shard(entry.id));
            item.insert(LANE.to_owned(), text(lane));
            item.insert(TIME.to_owned(), number(place));
            let row = row::stored_journal(entry, place, now);
            item.insert(DATA.to_owned(), blob(row));
            item
        });
        rows.collect()
    }

    /// The sort keys of a record's journal rows that match `wanted`.
    async fn journal_keys(
        &self,
        id: RecordId,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<String>, StoreError> {
        let rows = self.below(id, JOURNAL, None).await?;
        let wanted = rows
            .iter()
            .filter(|item| layout::bytes_of(item, DATA).is_some_and(&wanted));
        wanted
            .map(|item| Ok(text_of(item, SK)?.to_owned()))
            .collect()
    }

    /// A record's items whose sort keys begin with `start`, in order.
    pub(super) async fn below(
        &self,
        id: RecordId,
        start: &str,
        only: Option<&str>,
    ) -> Result<Vec<Item>, StoreError> {
        let mut items = Vec::new();
        let mut from = None;
        loop {
            let call = self
                .client
                .query()
                .table_name(&self.table)
                .consistent_read(true)
                .key_condition_expression(format!("{PK} = :p AND begins_with({SK}, :s)"))
                .expression_attribute_values(":p", text(partition(id)))
                .expression_attribute_values(":s", text(start))
                .set_projection_expression(only.map(str::to_owned))
                .set_exclusive_start_key(from);
            let found = self.read(|| Box::pin(call.clone().send())).await?;
            items.extend(found.items.unwrap_or_default());
            from = found.last_evaluated_key;
            if from.is_none() {
                return Ok(items);
            }
        }
    }

    /// Writes the pieces of a record that is about to name them. Nobody sees them before that, so no failure
    /// here has written anything that counts.
    async fn put_pieces(&self, id: RecordId, outgoing: &Outgoing) -> Result<(), StoreError> {
        let Some((name, pieces)) = &outgoing.pieces else {
            return Ok(());
        };
        let look_at = self.time.now().0 + LOOK_AFTER;
        let puts = pieces.iter().enumerate().map(|(index, piece)| {
            let mut item = key(partition(id), piece_key(name, index));
            item.insert(DATA.to_owned(), blob(&piece[..]));
            if index == 0 {
                // By the first piece, a worker finds pieces that no record came to name.
                let lane = Kind::Pieces.lane(shard(id));
                item.insert(LANE.to_owned(), text(lane));
                item.insert(TIME.to_owned(), number(look_at));
            }
            self.put(item)
        });
        let puts: Vec<_> = puts.collect();
        let written = stream::iter(puts)
            .buffer_unordered(PIECES_AT_ONCE)
            .try_collect::<()>();
        match written.await {
            Err(StoreError::Ambiguous(why)) => Err(StoreError::Unavailable(why)),
            written => written,
        }
    }

    /// The joined pieces; `None` if one is gone.
    pub(super) async fn pieces(
        &self,
        id: RecordId,
        names: &Beside,
    ) -> Result<Option<Bytes>, StoreError> {
        let found = self
            .below(id, &format!("{PIECE}{}#", names.name), None)
            .await?;
        if found.len() != names.count {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        for item in &found {
            bytes.extend_from_slice(layout::bytes_of(item, DATA).ok_or_else(strange)?);
        }
        Ok(Some(bytes.into()))
    }

    async fn drop_pieces_of(&self, id: RecordId, outgoing: &Outgoing) {
        if let Some((name, pieces)) = &outgoing.pieces {
            self.drop_pieces(id, name, pieces.len()).await;
        }
    }

    /// Deletes unnamed pieces. The first one goes last: by it a worker can still find the others.
    pub(super) async fn drop_pieces(&self, id: RecordId, name: &str, count: usize) {
        for index in (0..count).rev() {
            self.forget_item(&partition(id), &piece_key(name, index))
                .await;
        }
    }

    async fn drop_beside(&self, id: RecordId, names: Option<Beside>) {
        if let Some(names) = names {
            self.drop_pieces(id, &names.name, names.count).await;
        }
    }

    /// The pieces named by the record with this revision: a transaction does not return what it replaced.
    /// Other pieces may belong to a write under way.
    async fn beside_of(
        &self,
        id: RecordId,
        expected: Revision,
    ) -> Result<Option<Beside>, StoreError> {
        let call = self
            .client
            .get_item()
            .table_name(&self.table)
            .set_key(Some(key(partition(id), RECORD)))
            .consistent_read(true)
            .projection_expression([REVISION, PIECES, PIECE_COUNT].join(", "));
        let found = self.read(|| Box::pin(call.clone().send())).await?;
        let item = found.item.unwrap_or_default();
        match layout::number_of(&item, REVISION)? == Some(expected.0) {
            true => Beside::of(&item),
            false => Ok(None),
        }
    }

    /// Deletes an item that nothing names. If that fails, the item stays for a worker.
    pub(super) async fn forget_item(&self, partition: &str, sort: &str) {
        let call = self
            .client
            .delete_item()
            .table_name(&self.table)
            .set_key(Some(key(partition, sort)));
        if let Err(error) = self.write(|| Box::pin(call.clone().send())).await {
            tracing::debug!(%error, "what no record names could not be deleted yet");
        }
    }
}

/// The update expression for `outgoing`, and its values.
fn update(expected: Revision, outgoing: &Outgoing) -> (String, HashMap<String, AttributeValue>) {
    let mut values = HashMap::from([(":expected".to_owned(), number(expected.0))]);
    let (mut sets, mut removes) = (Vec::new(), Vec::new());
    for name in WRITTEN {
        match outgoing.attributes.get(name) {
            Some(value) => {
                values.insert(format!(":{name}"), value.clone());
                sets.push(format!("{name} = :{name}"));
            }
            None => removes.push(name),
        }
    }
    let expression = format!("SET {} REMOVE {}", sets.join(", "), removes.join(", "));
    (expression, values)
}

fn pieces_missing() -> StoreError {
    StoreError::Unreadable("parts of a stored answer are missing".into())
}
