//! The contract of a store, implemented for one that hides its content.

use async_trait::async_trait;
use onlyonce_core::{
    CallerMark, Record, RecordId, Scope,
    record::{Change, Draft, JournalEntry, Revision},
};

use super::{AtRest, FILE_MARK, OpenError, Packing, block, keyring::Place, names};
use crate::{Filter, Inserted, JournalRow, Listed, Page, Reply, Store, StoreError, Swapped, Walk};

/// Marks a list cursor that has reached the rows from before there were keys. Row numbers never come near.
const UNHIDDEN: u64 = 1 << 62;

/// The field name under which the name of a scope is encrypted.
const SCOPE: &str = "scope";

fn file_place(id: RecordId) -> Place<'static> {
    Place {
        field: "file",
        id,
        scope: "",
        key: "",
        generation: 0,
    }
}

impl AtRest {
    fn hide_draft(&self, draft: &Draft) -> Draft {
        Draft {
            record: self.hide(&draft.record),
            stamps: draft.stamps,
        }
    }

    async fn existing(&self, wanted: &Record, found: Record) -> Result<Inserted, StoreError> {
        let record = self.whole(found).await?;
        if !record.is_of(&wanted.scope, &wanted.key) {
            return Err(StoreError::Collision);
        }
        Ok(Inserted::Existing(record))
    }

    /// `filter` with the names as they are stored in hidden rows.
    fn hidden_filter(&self, filter: &Filter) -> Option<Filter> {
        let names = self.names.as_ref()?;
        if filter.client.is_none() && filter.key.is_none() {
            return None;
        }
        Some(Filter {
            client: filter.client.as_deref().map(|client| names.client(client)),
            key: filter.key.as_ref().map(|key| names.key(key)),
            ..filter.clone()
        })
    }

    /// The name of a scope. A name that cannot be opened stays as it is, and names no scope: it was encrypted
    /// with a key that is gone, and no record since has needed it.
    fn shown_scope(&self, id: RecordId, hidden: &str) -> String {
        let name = names::reveal(self.keys.as_ref(), SCOPE, id, hidden);
        let name = name.ok().and_then(|name| String::from_utf8(name).ok());
        name.unwrap_or_else(|| hidden.to_owned())
    }

    async fn show_page(
        &self,
        page: Page<Listed>,
        filter: &Filter,
    ) -> Result<Page<Listed>, StoreError> {
        let mut items = Vec::with_capacity(page.items.len());
        for Listed { record, response } in page.items {
            let record = self.shown(record, filter.is_lenient).await?;
            items.extend(record.map(|record| Listed { record, response }));
        }
        let next = page.next;
        Ok(Page { items, next })
    }
}

/// The draft that was written, with the times from the store, so that nothing has to be opened again.
fn written(draft: Draft, stored: &Record) -> Record {
    let mut record = draft.record;
    record.times = stored.times;
    record
}

#[async_trait]
impl Store for AtRest {
    fn peek(&self, id: RecordId) -> Option<Reply<Record>> {
        let Reply { now, value } = self.inner.peek(id)?;
        let value = self.whole_at_once(value)?;
        Some(Reply { now, value })
    }

    async fn lookup(&self, id: RecordId) -> Result<Reply<Option<Record>>, StoreError> {
        let Reply { now, value } = self.inner.lookup(id).await?;
        let value = match value {
            Some(record) => Some(self.whole(record).await?),
            None => None,
        };
        Ok(Reply { now, value })
    }

    async fn insert_or_get(&self, draft: Draft) -> Result<Reply<Inserted>, StoreError> {
        let hidden = self.hide_draft(&draft);
        let Reply { now, value } = match self.inner.insert_or_get(hidden).await {
            // A row from before there were keys has plain names.
            Err(StoreError::Collision) if self.keys.is_some() => {
                let Reply { now, value } = self.inner.lookup(draft.record.id).await?;
                let found = value.ok_or(StoreError::Collision)?;
                let value = self.existing(&draft.record, found).await?;
                return Ok(Reply { now, value });
            }
            other => other?,
        };
        let value = match value {
            Inserted::New(stored) => Inserted::New(written(draft, &stored)),
            Inserted::Existing(found) => self.existing(&draft.record, found).await?,
        };
        Ok(Reply { now, value })
    }

    async fn swap(&self, expected: Revision, change: Change) -> Result<Reply<Swapped>, StoreError> {
        let draft = change.draft.clone();
        let Reply { now, value } = self.inner.swap(expected, self.sealed(change)).await?;
        let value = match value {
            Swapped::Done(stored) => Swapped::Done(written(*draft, &stored)),
            Swapped::Conflict(found) => Swapped::Conflict(self.whole(found).await?),
            Swapped::Absent => Swapped::Absent,
        };
        Ok(Reply { now, value })
    }

    async fn append(&self, journal: Vec<JournalEntry>) -> Result<(), StoreError> {
        self.inner.append(self.hide_journal(journal)).await
    }

    async fn lapsed(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        let Reply { now, value } = self.inner.lapsed(limit).await?;
        let value = self.readable(value).await;
        Ok(Reply { now, value })
    }

    async fn due(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        let Reply { now, value } = self.inner.due(limit).await?;
        let value = self.readable(value).await;
        Ok(Reply { now, value })
    }

    async fn walk(&self, limit: usize) -> Result<Reply<Walk>, StoreError> {
        let Reply { now, value } = self.inner.walk(limit).await?;
        let value = Walk {
            candidates: self.readable(value.candidates).await,
            wrapped: value.wrapped,
        };
        Ok(Reply { now, value })
    }

    /// Rows that match a client or a key are found by their hashes, followed by those from before there were
    /// keys: each once, newest first within its kind.
    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, StoreError> {
        if filter.client.is_some() || filter.key.is_some() {
            self.can_name().await?;
        }
        let Some(hidden) = self.hidden_filter(filter) else {
            let page = self.inner.list(filter, cursor, limit).await?;
            return self.show_page(page, filter).await;
        };
        let mut items = Vec::new();
        let mut cursor = cursor;
        if cursor.is_none_or(|cursor| cursor < UNHIDDEN) {
            let page = self.inner.list(&hidden, cursor, limit).await?;
            let page = self.show_page(page, filter).await?;
            if page.next.is_some() || page.items.len() >= limit {
                let next = page.next.or(Some(UNHIDDEN));
                return Ok(Page { next, ..page });
            }
            items = page.items;
            cursor = Some(UNHIDDEN);
        }
        let older = cursor.map(|cursor| cursor - UNHIDDEN).filter(|at| *at > 0);
        let room = limit - items.len();
        let page = self.inner.list(filter, older, room).await?;
        let page = self.show_page(page, filter).await?;
        items.extend(page.items);
        let next = page.next.map(|next| next + UNHIDDEN);
        Ok(Page { items, next })
    }

    /// Hidden rows and those from before there were keys, together.
    async fn list_in(
        &self,
        scopes: &[Scope],
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Option<Page<Listed>>, StoreError> {
        self.can_name().await?;
        let mut stored = scopes.to_vec();
        if let Some(names) = &self.names {
            stored.extend(scopes.iter().map(|scope| names.scope(scope)));
        }
        let page = self.inner.list_in(&stored, filter, cursor, limit).await?;
        match page {
            Some(page) => Ok(Some(self.show_page(page, filter).await?)),
            None => Ok(None),
        }
    }

    /// Encrypted if there are keys, since a scope names its client.
    async fn keep_scope(&self, id: RecordId, name: &str) -> Result<(), StoreError> {
        match &self.keys {
            Some(keys) => {
                let hidden = names::hide(keys, SCOPE, id, name.as_bytes());
                self.inner.keep_scope(id, &hidden).await
            }
            None => self.inner.keep_scope(id, name).await,
        }
    }

    async fn scopes(
        &self,
        after: Option<RecordId>,
    ) -> Result<Option<Vec<(RecordId, String)>>, StoreError> {
        if after.is_none() {
            self.can_name().await?;
        }
        let kept = self.inner.scopes(after).await?;
        let shown = |(id, name): (RecordId, String)| {
            let shown = match names::is_hidden(&name) {
                true => self.shown_scope(id, &name),
                false => name,
            };
            (id, shown)
        };
        Ok(kept.map(|kept| kept.into_iter().map(shown).collect()))
    }

    async fn listed(&self, ids: &[RecordId]) -> Result<Vec<(u64, Listed)>, StoreError> {
        let mut shown = Vec::new();
        for (number, Listed { record, response }) in self.inner.listed(ids).await? {
            let record = self.shown(record, false).await?;
            shown.extend(record.map(|record| (number, Listed { record, response })));
        }
        Ok(shown)
    }

    async fn history(&self, id: RecordId) -> Result<Vec<JournalRow>, StoreError> {
        Ok(self.show_journal(self.inner.history(id).await?))
    }

    async fn audit(
        &self,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<JournalRow>, StoreError> {
        let Page { items, next } = self.inner.audit(cursor, limit).await?;
        let items = self.show_journal(items);
        Ok(Page { items, next })
    }

    async fn live(
        &self,
        scope: &Scope,
        caller: Option<CallerMark>,
        limit: u64,
    ) -> Result<u64, StoreError> {
        let as_it_is = self.inner.live(scope, caller, limit).await?;
        let hidden = self.names.as_ref().map(|names| names.scope(scope));
        let Some(hidden) = hidden.filter(|hidden| hidden != scope) else {
            return Ok(as_it_is);
        };
        let hidden = self.inner.live(&hidden, caller, limit).await?;
        Ok(limit.min(as_it_is + hidden))
    }

    fn encrypts(&self) -> bool {
        self.keys.is_some()
    }

    fn conceal(&self, id: RecordId, bytes: Vec<u8>) -> Vec<u8> {
        let Some(keys) = &self.keys else {
            return bytes;
        };
        let block = block::write(Some(keys), &file_place(id), Packing::None, &bytes);
        [FILE_MARK, &block].concat()
    }

    fn reveal(&self, id: RecordId, bytes: Vec<u8>) -> Result<Vec<u8>, StoreError> {
        let Some(block) = bytes.strip_prefix(FILE_MARK) else {
            return Ok(bytes);
        };
        match block::read(self.keys.as_ref(), &file_place(id), block) {
            Ok((Packing::None, bytes)) => Ok(bytes),
            Ok(_) => Err(self.alarm(id, OpenError::Damaged)),
            Err(error) => Err(self.alarm(id, error)),
        }
    }

    fn sealed(&self, change: Change) -> Change {
        Change {
            draft: Box::new(self.hide_draft(&change.draft)),
            journal: self.hide_journal(change.journal),
        }
    }

    fn sealed_note(&self, entry: JournalEntry) -> JournalEntry {
        let mut hidden = self.hide_journal(vec![entry.clone()]);
        hidden.pop().unwrap_or(entry)
    }

    crate::forward_store! {
        inner: level, copies, secret, delete, prune_audit, counts, keep_recipe, recipe,
        keep_policy, keep_block, block, identity, standing, raise_epoch, note_lost,
        accept_incomplete, renew_identity, note_clock, noted_clock, close, probe, outbox,
        wakeups,
    }
}
