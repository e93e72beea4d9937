//! A real store as one node sees it, with a witness of each acknowledged write. The witness lives
//! outside the node, and so learns how a write ended that the node did not live to see.

use std::sync::Arc;

use async_trait::async_trait;
use onlyonce_core::{
    CallerMark, Recipe, RecipeId, Record, RecordId, Scope,
    record::{Change, Draft, JournalEntry, Revision},
};
use onlyonce_store::{
    Counts, Filter, Inserted, JournalRow, Listed, Page, Reply, Store, StoreError, Swapped, Walk,
};
use tokio::runtime::Handle;

use crate::{
    history::Process,
    tape::{Commit, Tape, What},
};

pub struct Witnessed {
    pub store: Arc<dyn Store>,
    pub tape: Arc<Tape>,
    pub process: Process,
    /// Where the store and the witnesses live.
    pub outside: Handle,
}

impl Witnessed {
    async fn outside<T, C>(
        &self,
        call: impl FnOnce(Arc<dyn Store>, Arc<Tape>) -> C + Send,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        C: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let call = call(self.store.clone(), self.tape.clone());
        let ended = self.outside.spawn(call).await;
        ended.unwrap_or_else(|_| Err(StoreError::Ambiguous("the run is over".into())))
    }
}

/// Nothing here makes the real store fail, so that every write that may have happened is known.
fn certain<T>(tape: &Tape, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
    if let Err(StoreError::Ambiguous(error)) = &outcome {
        tape.saw(What::Wrong(format!(
            "the store itself did not know: {error}"
        )));
    }
    outcome
}

#[async_trait]
impl Store for Witnessed {
    fn peek(&self, id: RecordId) -> Option<Reply<Record>> {
        let reply = self.store.peek(id)?;
        self.tape.heard(reply.now);
        Some(reply)
    }

    async fn lookup(&self, id: RecordId) -> Result<Reply<Option<Record>>, StoreError> {
        self.outside(async move |store, tape| {
            let reply = store.lookup(id).await?;
            tape.heard(reply.now);
            Ok(reply)
        })
        .await
    }

    async fn insert_or_get(&self, draft: Draft) -> Result<Reply<Inserted>, StoreError> {
        let (process, began) = (self.process, self.tape.length());
        let (id, attempt) = (draft.record.id, draft.record.attempt_id);
        self.outside(move |store, tape| async move {
            let reply = certain(&tape, store.insert_or_get(draft).await)?;
            tape.heard(reply.now);
            tape.saw(match &reply.value {
                Inserted::New(record) => What::Committed(Box::new(Commit {
                    process,
                    began,
                    id,
                    expected: None,
                    after: Some(record.clone()),
                    journal: Vec::new(),
                })),
                Inserted::Existing(record) => What::Met {
                    record: Box::new(record.clone()),
                    attempt,
                },
            });
            Ok(reply)
        })
        .await
    }

    async fn swap(&self, expected: Revision, change: Change) -> Result<Reply<Swapped>, StoreError> {
        let (process, began) = (self.process, self.tape.length());
        self.outside(move |store, tape| async move {
            let (wanted, journal) = (change.draft.record.clone(), change.journal.clone());
            let reply = certain(&tape, store.swap(expected, change).await)?;
            tape.heard(reply.now);
            let wanted = Box::new(wanted);
            tape.saw(match &reply.value {
                Swapped::Done(after) => What::Committed(Box::new(Commit {
                    process,
                    began,
                    id: after.id,
                    expected: Some(expected),
                    after: Some(after.clone()),
                    journal,
                })),
                Swapped::Conflict(current) => What::Conflict {
                    wanted,
                    current: Box::new(current.clone()),
                },
                Swapped::Absent => What::Absent { wanted },
            });
            Ok(reply)
        })
        .await
    }

    async fn delete(&self, id: RecordId, expected: Revision) -> Result<bool, StoreError> {
        let (process, began) = (self.process, self.tape.length());
        self.outside(move |store, tape| async move {
            let gone = certain(&tape, store.delete(id, expected).await)?;
            if gone {
                tape.saw(What::Committed(Box::new(Commit {
                    process,
                    began,
                    id,
                    expected: Some(expected),
                    after: None,
                    journal: Vec::new(),
                })));
            }
            Ok(gone)
        })
        .await
    }

    async fn append(&self, journal: Vec<JournalEntry>) -> Result<(), StoreError> {
        self.outside(move |store, tape| async move {
            tape.saw(What::Noted(journal.clone()));
            store.append(journal).await
        })
        .await
    }

    async fn lapsed(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        self.outside(move |store, tape| async move {
            let reply = store.lapsed(limit).await?;
            tape.heard(reply.now);
            Ok(reply)
        })
        .await
    }

    async fn due(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        self.outside(move |store, _| async move { store.due(limit).await })
            .await
    }

    async fn walk(&self, limit: usize) -> Result<Reply<Walk>, StoreError> {
        self.outside(move |store, tape| async move {
            let reply = store.walk(limit).await?;
            tape.heard(reply.now);
            Ok(reply)
        })
        .await
    }

    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, StoreError> {
        let filter = filter.clone();
        self.outside(move |store, _| async move { store.list(&filter, cursor, limit).await })
            .await
    }

    async fn history(&self, id: RecordId) -> Result<Vec<JournalRow>, StoreError> {
        self.outside(move |store, _| async move { store.history(id).await })
            .await
    }

    async fn audit(
        &self,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<JournalRow>, StoreError> {
        self.outside(move |store, _| async move { store.audit(cursor, limit).await })
            .await
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        self.outside(|store, _| async move { store.counts().await })
            .await
    }

    async fn live(
        &self,
        scope: &Scope,
        caller: Option<CallerMark>,
        limit: u64,
    ) -> Result<u64, StoreError> {
        let scope = scope.clone();
        self.outside(move |store, _| async move { store.live(&scope, caller, limit).await })
            .await
    }

    async fn prune_audit(&self, older_than: std::time::Duration) -> Result<(), StoreError> {
        self.outside(move |store, _| async move { store.prune_audit(older_than).await })
            .await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.outside(|store, _| async move { store.probe().await })
            .await
    }

    async fn keep_recipe(&self, recipe: &Recipe) -> Result<(), StoreError> {
        let recipe = recipe.clone();
        self.outside(|store, _| async move { store.keep_recipe(&recipe).await })
            .await
    }

    async fn recipe(&self, id: RecipeId) -> Result<Option<Recipe>, StoreError> {
        self.outside(move |store, _| async move { store.recipe(id).await })
            .await
    }

    onlyonce_store::forward_store! {
        store: level, secret, wakeups,
    }
}
