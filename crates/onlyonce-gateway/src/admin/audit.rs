//! `GET /audit`: the journal of all keys, newest first, with filters by actor, event, key and client.
//!
//! Stores return the journal in pages and do not know these filters: one order for every store, and no index
//! that every write would pay for. So a filtered request reads a bounded number of lines and says how far it
//! got.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use axum::{
    Json,
    extract::{Query, State},
};
use futures_util::{StreamExt, stream};
use onlyonce_core::{
    Key, RecordId,
    record::{Actor, JournalEvent},
};
use onlyonce_store::{Filter, JournalRow, Page};
use serde_json::{Value, json};

use super::{
    Refused,
    keys::{Answer, Desk, bad, cursor, limit, names_nothing},
};

/// The most lines that one request reads.
const MAX_READ: usize = 10_000;
/// Lines per read from the store.
const STRETCH: usize = 500;
/// Concurrent look-ups of records for their keys.
const LOOKUPS: usize = 8;
/// The most keys of the same spelling, one per scope, whose lines are read.
const MAX_SAME_KEY: usize = 50;

/// Which lines to return.
struct Wanted {
    actors: Vec<Actor>,
    events: Vec<JournalEvent>,
}

impl Wanted {
    fn from(query: &HashMap<String, String>) -> Result<Self, Refused> {
        let words = |name: &str| {
            let text = query.get(name).filter(|text| !text.is_empty());
            text.map(|text| text.split(',').collect::<Vec<_>>())
                .unwrap_or_default()
        };
        let actors = words("actor").into_iter().map(|word| {
            let detail = "`actor` is one of executor, sweeper, reaper, reconciler, operator.";
            Actor::from_word(word).ok_or_else(|| bad(detail))
        });
        let events = words("event").into_iter().map(|word| {
            let all = JournalEvent::ALL.map(JournalEvent::as_str);
            let detail = || bad(format!("`event` is one of {}.", all.join(", ")));
            JournalEvent::from_word(word).ok_or_else(detail)
        });
        Ok(Self {
            actors: actors.collect::<Result<_, _>>()?,
            events: events.collect::<Result<_, _>>()?,
        })
    }

    fn is_everything(&self) -> bool {
        self.actors.is_empty() && self.events.is_empty()
    }

    fn takes(&self, row: &JournalRow) -> bool {
        let entry = &row.entry;
        (self.actors.is_empty() || self.actors.contains(&entry.actor))
            && (self.events.is_empty() || self.events.contains(&entry.event))
    }
}

/// `GET /audit`.
pub(super) async fn audit(
    State(desk): State<Desk>,
    Query(query): Query<HashMap<String, String>>,
) -> Answer {
    let (cursor, limit) = (cursor(&query)?, limit(&query)?);
    let wanted = Wanted::from(&query)?;
    if names_nothing(["key", "client"].map(|name| query.get(name))) {
        return Ok(Json(json!({ "audit": [], "next": null })));
    }
    let named = |name| query.get(name).filter(|text| !text.is_empty());
    let page = match (named("key"), named("client")) {
        (Some(key), client) => of_key(&desk, key, client, &wanted, cursor, limit).await?,
        // A line names no client, and its record may be gone.
        (None, Some(_)) => {
            return Err(bad(
                "`client` needs `key`: the audit is not kept by client.",
            ));
        }
        (None, None) => of_all(&desk, &wanted, cursor, limit).await?,
    };
    let with_keys = query.get("keys").is_some_and(|keys| keys == "true");
    let keys = match with_keys {
        true => keys(&desk, &page.items).await?,
        false => BTreeMap::new(),
    };
    let view = desk.view();
    let rows = page.items.iter().map(|row| {
        let mut line = view.line(row);
        line["key_id"] = row.entry.id.to_string().into();
        if with_keys {
            line["key"] = keys.get(&row.entry.id).cloned().into();
        }
        line
    });
    let rows: Vec<Value> = rows.collect();
    let next = page.next.map(|next| next.to_string());
    Ok(Json(json!({ "audit": rows, "next": next })))
}

async fn of_all(
    desk: &Desk,
    wanted: &Wanted,
    cursor: Option<u64>,
    limit: usize,
) -> Result<Page<JournalRow>, Refused> {
    let store = desk.engine().store();
    if wanted.is_everything() {
        return Ok(store.audit(cursor, limit).await?);
    }
    let (mut items, mut from, mut read) = (Vec::new(), cursor, 0);
    loop {
        let page = store.audit(from, STRETCH).await?;
        read += page.items.len();
        let taken = page.items.into_iter().filter(|row| wanted.takes(row));
        items.extend(taken);
        if items.len() > limit {
            return Ok(cut(items, limit));
        }
        from = page.next;
        if from.is_none() || read >= MAX_READ {
            return Ok(Page { items, next: from });
        }
    }
}

/// The lines of one key, in every scope that has it.
async fn of_key(
    desk: &Desk,
    key: &str,
    client: Option<&String>,
    wanted: &Wanted,
    cursor: Option<u64>,
    limit: usize,
) -> Result<Page<JournalRow>, Refused> {
    let key = Key::asked_for(key)
        .map_err(|why| bad(format!("`key` is written as in the header. {why}")))?;
    let filter = Filter {
        key: Some(key),
        client: client.cloned(),
        ..Filter::default()
    };
    let store = desk.engine().store();
    let found = desk.find(&filter, None, MAX_SAME_KEY).await?;
    let mut rows = Vec::new();
    for listed in &found.items {
        rows.extend(store.history(listed.record.id).await?);
    }
    rows.retain(|row| wanted.takes(row) && cursor.is_none_or(|cursor| row.number < cursor));
    rows.sort_by_key(|row| std::cmp::Reverse(row.number));
    Ok(cut(rows, limit))
}

fn cut(mut items: Vec<JournalRow>, limit: usize) -> Page<JournalRow> {
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().map(|row| row.number).filter(|_| more);
    Page { items, next }
}

/// The keys of these lines, as lists show them. A deleted key and a message's own line have none.
async fn keys(desk: &Desk, rows: &[JournalRow]) -> Result<BTreeMap<RecordId, String>, Refused> {
    let ids: BTreeSet<RecordId> = rows.iter().map(|row| row.entry.id).collect();
    let store = desk.engine().store();
    let lookups = ids.into_iter().map(|id| store.lookup(id));
    let found: Vec<_> = stream::iter(lookups).buffered(LOOKUPS).collect().await;
    let view = desk.view();
    let mut keys = BTreeMap::new();
    for reply in found {
        if let Some(record) = reply?.value {
            keys.insert(record.id, view.key(&record));
        }
    }
    Ok(keys)
}
