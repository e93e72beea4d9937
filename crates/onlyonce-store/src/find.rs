//! How a key is found without walking all records.
//!
//! A record's id is a keyed hash of its scope and its key, so a key is found by one probe for each scope
//! that a store knows. Every scope is made known before the first record in it is written, by
//! [`Store::keep_scope`]. Until the scopes of what earlier versions wrote are known as well, which
//! [`SCOPES_KNOWN`] says, keys are looked for by a walk.
//!
//! Deliberately absent: an index of keys, which every new key would have to be written into.

use std::{cmp::Reverse, collections::HashMap};

use onlyonce_core::{Key, RecordId, Scope, Secret};

use crate::{Filter, Listed, Page, Store, StoreError};

/// The block that is kept once every record was looked at and its scope made known. It holds when that
/// was, in milliseconds; 0 in a store that held nothing.
pub const SCOPES_KNOWN: &str = "scopes";

/// Records that are asked for at once.
const PROBES: usize = 500;

/// What a scope is known under: the hash of the empty key in it, which no record has.
pub fn scope_id(secret: &Secret, scope: &Scope) -> RecordId {
    secret.record_id(scope.as_str(), &Key::from_stored(""))
}

/// Records, newest first, as [`Store::list`] shows them. A key is found by probes, erased keys as well, so
/// that it takes no longer among many records than among few.
///
/// # Errors
/// Any [`StoreError`] but `Ambiguous`.
pub async fn find(
    store: &dyn Store,
    filter: &Filter,
    cursor: Option<u64>,
    limit: usize,
) -> Result<Page<Listed>, StoreError> {
    let Some(key) = &filter.key else {
        return store.list(filter, cursor, limit).await;
    };
    // Asked first: what is made known after this was not needed for it to be so.
    let first = store.scopes(None).await?;
    let Some(first) = first else {
        return store.list(filter, cursor, limit).await;
    };
    let all_known = store.block(SCOPES_KNOWN).await?.is_some();
    let probed = probe(store, first, key, filter, cursor, limit).await?;
    if all_known {
        return Ok(probed);
    }
    let walked = store.list(filter, cursor, limit).await?;
    // A walk does not find what was erased.
    let is_whole = !walked.items.is_empty() || cursor.is_some();
    Ok(if is_whole { walked } else { probed })
}

/// The records of `key` in the scopes that are known, of which `scopes` are the first.
async fn probe(
    store: &dyn Store,
    mut scopes: Vec<(RecordId, String)>,
    key: &Key,
    filter: &Filter,
    cursor: Option<u64>,
    limit: usize,
) -> Result<Page<Listed>, StoreError> {
    let others = Filter {
        key: None,
        ..filter.clone()
    };
    let client = filter.client.as_deref();
    let mut found: Vec<(u64, Listed)> = Vec::new();
    while let Some((last, _)) = scopes.last() {
        let last = *last;
        let named = scopes.iter().map(|(_, name)| Scope::from_stored(name));
        let named = named.filter(|scope| client.is_none_or(|id| scope.client_id() == Some(id)));
        let wanted: HashMap<RecordId, Scope> = named
            .map(|scope| (store.secret().record_id(scope.as_str(), key), scope))
            .collect();
        let ids: Vec<RecordId> = wanted.keys().copied().collect();
        for ids in ids.chunks(PROBES) {
            let there = store.listed(ids).await?.into_iter();
            found.extend(there.filter(|(number, Listed { record, .. })| {
                cursor.is_none_or(|cursor| *number < cursor)
                    && wanted
                        .get(&record.id)
                        .is_some_and(|scope| record.is_of(scope, key))
                    && others.admits(record)
            }));
            // One more than is shown says that there are more.
            found.sort_by_key(|(number, _)| Reverse(*number));
            found.truncate(limit.saturating_add(1));
        }
        scopes = store.scopes(Some(last)).await?.unwrap_or_default();
    }
    Ok(Page::cut(found, limit))
}
