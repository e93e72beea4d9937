//! Outgoing messages: reading them back, and the queries of people and of the worker's gauges, for every SQL
//! database.
//!
//! Deliberately absent: claims and endings. How a message is claimed depends on each database's locks.

use onlyonce_core::{AttemptId, MessageId, MessageState, RecordId, outbox::Tried};

use super::{
    dialect::{Dialect, Value},
    row::{
        Columns, RowError, array, blob, missing, moment, now, number, optional_array, text,
        unreadable, word,
    },
    scan::{Reader, before, no_row},
};
use crate::{
    Page, StoreError,
    outbox::{Claimed, Depth, ListedMessage, MAX_COUNTED, MessageFilter},
    transactional::{Message, Settles},
};

/// The message in `row` that `attempt` has claimed. The columns are `id, attempts, unclear_since, created_at,
/// target, type, aggregatetype, aggregateid, ordering_key, downstream_key, headers, key_id, settles, n,
/// payload`; the last is NULL if the payload is not read with the claim.
pub(crate) fn claimed(row: &impl Columns, attempt: AttemptId) -> Result<Claimed, RowError> {
    let payload = row.bytes(14)?;
    Ok(Claimed {
        unread: payload.is_none(),
        id: MessageId(array(row, 0)?),
        number: number(row, 13)?,
        attempt,
        tried: Tried {
            attempts: number(row, 1)?,
            unclear_since: moment(row, 2)?,
        },
        created_at: now(row, 3)?,
        message: Message {
            target: text(row, 4)?.to_owned(),
            kind: text(row, 5)?.to_owned(),
            aggregate: word(row, 6)?.zip(word(row, 7)?),
            ordering_key: word(row, 8)?,
            downstream_key: Some(text(row, 9)?.to_owned()),
            headers: text(row, 10)?.to_owned(),
            payload: payload.unwrap_or_default().to_vec(),
            key: optional_array(row, 11)?.map(RecordId),
            settles: row.text(12)?.and_then(Settles::decode),
        },
    })
}

/// The columns of a message `o` for lists, as [`listed`] reads them.
fn listed_columns<D: Dialect>() -> String {
    format!(
        "o.id, o.state, o.target, o.type, o.aggregatetype, o.aggregateid, o.ordering_key, \
         o.downstream_key, o.key_id, o.settles IS NOT NULL, o.attempts, o.provider_id, \
         o.last_error, o.created_at, {}, o.delivered_at, {}, o.n, o.unclear_since",
        D::DUE_AT,
        D::PAYLOAD_BYTES
    )
}

/// The message in `row` as shown in lists, and its number.
fn listed(row: &impl Columns) -> Result<(u64, ListedMessage), RowError> {
    let state = MessageState::from_word(text(row, 1)?);
    let message = ListedMessage {
        id: MessageId(array(row, 0)?),
        state: state.ok_or_else(|| unreadable("a state that this program does not know"))?,
        target: text(row, 2)?.to_owned(),
        kind: text(row, 3)?.to_owned(),
        aggregate: word(row, 4)?.zip(word(row, 5)?),
        ordering_key: word(row, 6)?,
        downstream_key: text(row, 7)?.to_owned(),
        key: optional_array(row, 8)?.map(RecordId),
        settles: row.flag(9)?,
        attempts: number(row, 10)?,
        provider_id: word(row, 11)?,
        last_error: word(row, 12)?,
        created_at: now(row, 13)?,
        due_at: now(row, 14)?,
        delivered_at: moment(row, 15)?,
        bytes: number(row, 16)?,
        unclear_since: moment(row, 18)?,
    };
    Ok((number(row, 17)?, message))
}

/// Messages, newest first.
pub(crate) async fn list<R: Reader>(
    reader: &R,
    filter: &MessageFilter,
    cursor: Option<u64>,
    limit: usize,
) -> Result<Page<ListedMessage>, StoreError> {
    // Some states have an index, which the statement must name literally.
    let states = match filter.states.as_slice() {
        [] => &MessageState::ALL[..],
        states => states,
    };
    let words: Vec<_> = states.iter().map(|state| quoted(*state)).collect();
    let mut values = vec![before(cursor), Value::count(limit.saturating_add(1))];
    let of_target = match &filter.target {
        Some(target) => {
            values.push(Value::text(target));
            " AND o.target = ?3"
        }
        None => "",
    };
    let sql = format!(
        "SELECT {} FROM {}outbox o{} WHERE o.n < ?1 AND o.state IN ({}){of_target} \
         ORDER BY o.n DESC LIMIT ?2",
        listed_columns::<R::Dialect>(),
        R::Dialect::TABLES,
        R::Dialect::messages(states),
        words.join(", ")
    );
    let rows = reader.ask(&sql, values, |row| listed(row));
    Ok(Page::cut(rows.await?, limit))
}

/// One message.
pub(crate) async fn one<R: Reader>(
    reader: &R,
    id: MessageId,
) -> Result<Option<ListedMessage>, StoreError> {
    let (columns, tables) = (listed_columns::<R::Dialect>(), R::Dialect::TABLES);
    for among in R::Dialect::AMONG {
        let sql = format!("SELECT {columns} FROM {tables}outbox o WHERE o.id = ?1{among}");
        let rows = reader.ask(&sql, vec![Value::Id(id.0)], |row| listed(row));
        if let Some((_, message)) = rows.await?.pop() {
            return Ok(Some(message));
        }
    }
    Ok(None)
}

/// The payload of a message that `attempt` has claimed; `None` if the claim is no longer valid.
pub(crate) async fn payload<R: Reader>(
    reader: &R,
    number: u64,
    attempt: AttemptId,
) -> Result<Option<Vec<u8>>, StoreError> {
    let sql = format!(
        "SELECT {} FROM {}outbox WHERE n = ?1 AND attempt_id = ?2 AND state = 'pending' \
         AND claimed_at IS NOT NULL",
        R::Dialect::PAYLOAD,
        R::Dialect::TABLES
    );
    let values = vec![
        Value::Number(number.cast_signed()),
        Value::Id(attempt.0.to_be_bytes()),
    ];
    let rows = reader.ask(&sql, values, |row| blob(row, 0)?.ok_or_else(missing));
    Ok(rows.await?.pop())
}

/// The number of pending, dead and unknown messages.
pub(crate) async fn depth<R: Reader>(reader: &R) -> Result<Depth, StoreError> {
    // The states are literals in the statement, so that indexes with these conditions are used.
    let counts = MessageState::OPEN.map(|state| {
        format!(
            "(SELECT count(*) FROM (SELECT 1 FROM {}outbox o{} WHERE state = {} \
             LIMIT {MAX_COUNTED}) AS counted)",
            R::Dialect::TABLES,
            R::Dialect::messages(&[state]),
            quoted(state)
        )
    });
    let sql = format!("SELECT {}", counts.join(", "));
    let rows = reader.ask(&sql, Vec::new(), |row| {
        let counted = |(column, state)| Ok((state, number(row, column)?));
        MessageState::OPEN
            .into_iter()
            .enumerate()
            .map(counted)
            .collect()
    });
    rows.await?.pop().ok_or_else(no_row)
}

fn quoted(state: MessageState) -> String {
    format!("'{}'", state.as_str())
}
