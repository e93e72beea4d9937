//! Finds keys without walking all records.
//!
//! A record's id is a keyed hash of its scope and its key, so a key is found by one probe for each scope that
//! the store knows, or for each scope of its client if the client is named. A client's records are listed
//! scope by scope. [`Store::keep_scope`] stores every scope before the first record in it is written. Until
//! the scopes of records from earlier versions are stored as well, which [`SCOPES_KNOWN`] indicates, keys are
//! found by a walk.
//!
//! With `key_per_route` a client has a scope for each route. Marks tell which routes exist: a mark is the
//! scope of nobody on a route, stored under an id that sorts before the ids of all scopes.
//!
//! Deliberately absent: an index of keys, which every new key would have to be written into.

use std::{cmp::Reverse, collections::HashMap};

use onlyonce_core::{Key, RecordId, Scope, Secret};

use crate::{Filter, Listed, Page, Store, StoreError};

/// The block that is stored once the scope of every record has been stored. It contains the time of that, in
/// milliseconds; 0 if the store was empty.
pub const SCOPES_KNOWN: &str = "scopes";
/// The block that is stored once the route of every scope has been marked, with the same content.
pub const ROUTES_KNOWN: &str = "scope-routes";

/// The most records requested at once.
const PROBES: usize = 500;
/// The first bytes of a mark's id. A keyed hash begins like this once in 2^64.
const MARK: [u8; 8] = [0; 8];

/// The id under which a scope is stored: the hash of the empty key in it, which no record has.
pub fn scope_id(secret: &Secret, scope: &Scope) -> RecordId {
    secret.record_id(scope.as_str(), &Key::from_stored(""))
}

/// The mark for the route of `scope`, and the mark's id; `None` if `scope` is of no route, or of no client.
pub fn mark_of(secret: &Secret, scope: &Scope) -> Option<(RecordId, Scope)> {
    let nobodys = scope.of_other_client("")?;
    let mut id = scope_id(secret, &nobodys);
    id.0.copy_within(..8, 8);
    id.0[..8].copy_from_slice(&MARK);
    Some((id, nobodys))
}

/// Whether the entry under `id` is a mark, rather than a scope with records.
pub fn is_mark(id: RecordId) -> bool {
    id.0.starts_with(&MARK)
}

/// Records, newest first, as [`Store::list`] returns them. A key, even an erased one, is found by probes, and
/// a client's records scope by scope, so that neither takes longer among many records than among few.
///
/// # Errors
/// Any [`StoreError`] but `Ambiguous`.
pub async fn find(
    store: &dyn Store,
    filter: &Filter,
    cursor: Option<u64>,
    limit: usize,
) -> Result<Page<Listed>, StoreError> {
    if filter.key.is_some() {
        return by_key(store, filter, cursor, limit).await;
    }
    if let Some(client) = filter.client.as_deref().filter(|_| !filter.is_live())
        && let Some(scopes) = scopes_of(store, client).await?
    {
        let others = Filter {
            client: None,
            ..filter.clone()
        };
        if let Some(page) = store.list_in(&scopes, &others, cursor, limit).await? {
            return Ok(page);
        }
    }
    store.list(filter, cursor, limit).await
}

/// The scopes in which `client` may have records; `None` if the store does not know all of them.
async fn scopes_of(store: &dyn Store, client: &str) -> Result<Option<Vec<Scope>>, StoreError> {
    // Read first, so that every scope stored before this block is visible.
    if store.block(SCOPES_KNOWN).await?.is_none() {
        return Ok(None);
    }
    let only_marks = store.block(ROUTES_KNOWN).await?.is_some();
    let mut found = vec![Scope::client(client)];
    let Some(mut known) = store.scopes(None).await? else {
        return Ok(None);
    };
    while let Some((last, _)) = known.last() {
        let last = *last;
        for (id, name) in known {
            let scope = Scope::from_stored(&name);
            if is_mark(id) {
                found.extend(scope.of_other_client(client));
            } else if !only_marks && scope.client_id() == Some(client) {
                found.push(scope);
            }
        }
        // Marks sort before all scopes.
        if only_marks && !is_mark(last) {
            break;
        }
        known = store.scopes(Some(last)).await?.unwrap_or_default();
    }
    found.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
    found.dedup();
    Ok(Some(found))
}

/// The records of a key.
async fn by_key(
    store: &dyn Store,
    filter: &Filter,
    cursor: Option<u64>,
    limit: usize,
) -> Result<Page<Listed>, StoreError> {
    let mut probe = Probe::of(store, filter, cursor, limit);
    if let Some(client) = filter.client.as_deref()
        && let Some(scopes) = scopes_of(store, client).await?
    {
        probe.look_in(scopes.into_iter()).await?;
        return Ok(probe.page());
    }
    let all_known = store.block(SCOPES_KNOWN).await?.is_some();
    let Some(mut known) = store.scopes(None).await? else {
        return store.list(filter, cursor, limit).await;
    };
    while let Some((last, _)) = known.last() {
        let last = *last;
        let scopes = known.iter().filter(|(id, _)| !is_mark(*id));
        let scopes = scopes.map(|(_, name)| Scope::from_stored(name));
        probe.look_in(scopes).await?;
        known = store.scopes(Some(last)).await?.unwrap_or_default();
    }
    let probed = probe.page();
    if all_known {
        return Ok(probed);
    }
    let walked = store.list(filter, cursor, limit).await?;
    // A walk does not find erased keys.
    let is_whole = !walked.items.is_empty() || cursor.is_some();
    Ok(if is_whole { walked } else { probed })
}

/// A search for one key, scope by scope.
struct Probe<'s> {
    store: &'s dyn Store,
    key: Key,
    /// The criteria beside the key.
    others: Filter,
    cursor: Option<u64>,
    limit: usize,
    /// Newest first, with one more than is returned: it tells that there are more.
    found: Vec<(u64, Listed)>,
}

impl<'s> Probe<'s> {
    fn of(store: &'s dyn Store, filter: &Filter, cursor: Option<u64>, limit: usize) -> Self {
        let mut others = filter.clone();
        let key = others.key.take().unwrap_or_else(|| Key::from_stored(""));
        Self {
            store,
            key,
            others,
            cursor,
            limit,
            found: Vec::new(),
        }
    }

    async fn look_in(&mut self, scopes: impl Iterator<Item = Scope>) -> Result<(), StoreError> {
        let client = self.others.client.as_deref();
        let scopes = scopes.filter(|scope| client.is_none_or(|id| scope.client_id() == Some(id)));
        let secret = self.store.secret();
        let wanted: HashMap<RecordId, Scope> = scopes
            .map(|scope| (secret.record_id(scope.as_str(), &self.key), scope))
            .collect();
        let ids: Vec<RecordId> = wanted.keys().copied().collect();
        for ids in ids.chunks(PROBES) {
            let there = self.store.listed(ids).await?.into_iter();
            let wanted = there.filter(|(number, Listed { record, .. })| {
                self.cursor.is_none_or(|cursor| *number < cursor)
                    && wanted
                        .get(&record.id)
                        .is_some_and(|scope| record.is_of(scope, &self.key))
                    && self.others.admits(record)
            });
            self.found.extend(wanted);
            self.found.sort_by_key(|(number, _)| Reverse(*number));
            self.found.truncate(self.limit.saturating_add(1));
        }
        Ok(())
    }

    fn page(self) -> Page<Listed> {
        Page::cut(self.found, self.limit)
    }
}
