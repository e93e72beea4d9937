//! What every node's faulty store stands on: the one shared store, and a witness of each committed
//! write. It sits below the faults, so it sees what happened and not what anybody was told.

use std::sync::Arc;

use async_trait::async_trait;
use onlyonce_core::{
    Record, RecordId,
    record::{Change, Draft, JournalEntry, Revision},
};
use onlyonce_store::{Copies, Inserted, Reply, Store, StoreError, Swapped, memory::MemoryStore};
use parking_lot::Mutex;

use crate::history::{History, Process};

tokio::task_local! {
    /// Set while the sweep runs, so that its lapses can be told from those that a request makes.
    pub static SWEEPING: ();
}

/// The shared store as one process sees it.
pub struct Recorder {
    pub store: Arc<MemoryStore>,
    pub history: Arc<Mutex<History>>,
    pub process: Process,
}

impl Recorder {
    fn readable(&self, id: RecordId) -> Result<(), StoreError> {
        if self.history.lock().unreadable == Some(id) {
            return Err(StoreError::Unreadable("a row of a newer version".into()));
        }
        Ok(())
    }

    fn before(&self, id: RecordId) -> Option<Record> {
        self.store.peek(id).map(|reply| reply.value)
    }
}

#[async_trait]
impl Store for Recorder {
    /// As of any store that several processes write to.
    fn copies(&self) -> Copies {
        Copies::Shared
    }

    fn peek(&self, id: RecordId) -> Option<Reply<Record>> {
        self.readable(id).ok()?;
        self.store.peek(id)
    }

    async fn lookup(&self, id: RecordId) -> Result<Reply<Option<Record>>, StoreError> {
        self.readable(id)?;
        self.store.lookup(id).await
    }

    async fn insert_or_get(&self, draft: Draft) -> Result<Reply<Inserted>, StoreError> {
        self.readable(draft.record.id)?;
        let attempt = draft.record.attempt_id;
        let reply = self.store.insert_or_get(draft).await?;
        let mut history = self.history.lock();
        match &reply.value {
            Inserted::New(record) => {
                history.committed(self.process, None, Some(record), &[], false)
            }
            Inserted::Existing(record) => history.met(record, attempt),
        }
        Ok(reply)
    }

    async fn swap(&self, expected: Revision, change: Change) -> Result<Reply<Swapped>, StoreError> {
        let id = change.draft.record.id;
        self.readable(id)?;
        let sweeping = SWEEPING.try_with(|()| ()).is_ok();
        let before = self.before(id);
        let (wanted, journal) = (change.draft.record.clone(), change.journal.clone());
        let reply = self.store.swap(expected, change).await?;
        let mut history = self.history.lock();
        match &reply.value {
            Swapped::Done(after) => {
                let before = before.as_ref();
                history.committed(self.process, before, Some(after), &journal, sweeping);
            }
            Swapped::Conflict(current) => history.conflict(&wanted, current),
            Swapped::Absent => history.absent(&wanted),
        }
        Ok(reply)
    }

    async fn delete(&self, id: RecordId, expected: Revision) -> Result<bool, StoreError> {
        self.readable(id)?;
        let before = self.before(id);
        let gone = self.store.delete(id, expected).await?;
        if gone {
            self.history
                .lock()
                .committed(self.process, before.as_ref(), None, &[], false);
        }
        Ok(gone)
    }

    async fn append(&self, journal: Vec<JournalEntry>) -> Result<(), StoreError> {
        self.history.lock().noted(&journal);
        self.store.append(journal).await
    }

    onlyonce_store::forward_store! {
        store: level, secret, prune_audit, lapsed, due, walk, list, history, audit, counts,
        live, close, note_clock, noted_clock, probe, keep_recipe, recipe, wakeups,
    }
}
