//! Which scopes the store knows, so that a key is found by one probe for each.
//!
//! A scope is made known before the first record in it is written. What an earlier version wrote, before
//! stores knew scopes or beside a gateway that is newer, is looked through once, and again for a day.

use std::{collections::HashMap, time::Duration};

use onlyonce_core::{Scope, Timestamp};
use onlyonce_store::{Filter, ROUTES_KNOWN, SCOPES_KNOWN, StoreError, is_mark, mark_of, scope_id};
use parking_lot::RwLock;

use super::Engine;
use crate::clock::Moment;

/// Scopes of which it is remembered that the store knows them. Beyond it they are told to it again.
const MAX_REMEMBERED: usize = 100_000;
/// Records that are looked at at once.
const STRETCH: usize = 500;
/// The pause after each stretch, so that requests are not held up.
const PAUSE: Duration = Duration::from_millis(5);
/// How long gateways of an earlier version may run beside this one after the scopes were first known.
const BESIDE_OTHERS: Duration = Duration::from_secs(24 * 3_600);

/// After this the store is told of a scope again: a failover or a restored copy may have lost it.
const TELL_AGAIN: Duration = Duration::from_secs(3_600);

/// Scopes that the store has been told of by this process, and when, by the local clock.
#[derive(Default)]
pub(super) struct KnownScopes(RwLock<HashMap<Scope, Moment>>);

/// What is remembered of a scope.
enum Told {
    Never,
    LongAgo,
    Lately,
}

impl KnownScopes {
    fn told(&self, scope: &Scope, now: Moment) -> Told {
        match self.0.read().get(scope) {
            None => Told::Never,
            Some(told) if told.is_within(TELL_AGAIN, now) => Told::Lately,
            Some(_) => Told::LongAgo,
        }
    }

    fn add(&self, scope: Scope, now: Moment) {
        let mut known = self.0.write();
        if known.len() >= MAX_REMEMBERED {
            known.clear();
        }
        known.insert(scope, now);
    }
}

impl Engine {
    /// `scope`, if the store may not know it, or was told of it long ago.
    pub(super) fn unfamiliar(&self, scope: &Scope) -> Option<Scope> {
        let now = self.0.options.clock.moment();
        match self.0.scopes.told(scope, now) {
            Told::Lately => None,
            Told::LongAgo | Told::Never => Some(scope.clone()),
        }
    }

    /// Sees to it that the store knows `scope`, and says whether it had to be told. Nothing of a record is
    /// written by this. A scope that the store was told of long ago is told again, but not waited for.
    pub(super) async fn make_known(&self, scope: &Scope) -> Result<bool, StoreError> {
        let now = self.0.options.clock.moment();
        match self.0.scopes.told(scope, now) {
            Told::Lately => return Ok(false),
            Told::LongAgo => {
                self.0.scopes.add(scope.clone(), now);
                let (engine, scope) = (self.clone(), scope.clone());
                tokio::spawn(async move {
                    if let Err(error) = engine.tell_scope(&scope).await {
                        tracing::debug!(%error, "a scope is told to the store again later");
                    }
                });
                return Ok(false);
            }
            Told::Never => {}
        }
        self.tell_scope(scope).await.map_err(|error| match error {
            // Whether it happened or not, there is no record yet.
            StoreError::Ambiguous(why) => StoreError::Unavailable(why),
            other => other,
        })?;
        self.0.scopes.add(scope.clone(), now);
        Ok(true)
    }

    /// The mark of a scope's route first: a client's scopes are found by it.
    async fn tell_scope(&self, scope: &Scope) -> Result<(), StoreError> {
        self.mark_route(scope).await?;
        let id = scope_id(self.secret(), scope);
        self.0.store.keep_scope(id, scope.as_str()).await
    }

    /// Sees to it that the route of `scope` is marked, where it is a client's on one.
    async fn mark_route(&self, scope: &Scope) -> Result<(), StoreError> {
        let Some((id, nobodys)) = mark_of(self.secret(), scope) else {
            return Ok(());
        };
        let now = self.0.options.clock.moment();
        if !matches!(self.0.scopes.told(&nobodys, now), Told::Lately) {
            self.0.store.keep_scope(id, nobodys.as_str()).await?;
            self.0.scopes.add(nobodys, now);
        }
        Ok(())
    }

    /// Makes the scopes known of all records that the store holds, and then their routes, unless that was
    /// done long enough ago. Says how many scopes the store had to be told of.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be asked; what was made known until then stays so.
    pub async fn learn_scopes(&self) -> Result<usize, StoreError> {
        let store = &self.0.store;
        if self.bounded_read(store.scopes(None)).await?.is_none() {
            return Ok(0);
        }
        let now = self.store_now().await?;
        let told = match self.is_known_since(SCOPES_KNOWN, now).await? {
            true => 0,
            false => self.learn_from_records(now).await?,
        };
        if !self.is_known_since(ROUTES_KNOWN, now).await? {
            self.learn_routes(now).await?;
        }
        Ok(told)
    }

    /// Whether `mark` says that something is known, and has been for so long that nobody adds to it
    /// without saying so.
    async fn is_known_since(&self, mark: &str, now: Timestamp) -> Result<bool, StoreError> {
        let since = self.bounded_read(self.0.store.block(mark)).await?;
        Ok(since.is_some_and(|since| read_moment(&since).plus(BESIDE_OTHERS) <= now))
    }

    async fn note_known(&self, mark: &str, seen: usize, now: Timestamp) -> Result<(), StoreError> {
        // In a store that holds nothing, no earlier version has anything to add to.
        let since = if seen == 0 { Timestamp(0) } else { now };
        let since = since.0.to_string();
        self.0.store.keep_block(mark, since.as_bytes()).await?;
        Ok(())
    }

    /// Marks the routes of all scopes that are known.
    async fn learn_routes(&self, now: Timestamp) -> Result<(), StoreError> {
        let (mut seen, mut after) = (0, None);
        loop {
            let known = self.bounded_read(self.0.store.scopes(after)).await?;
            let known = known.unwrap_or_default();
            for (_, name) in known.iter().filter(|(id, _)| !is_mark(*id)) {
                seen += 1;
                let scope = Scope::from_stored(name);
                self.bounded_read(self.mark_route(&scope)).await?;
            }
            after = known.last().map(|(id, _)| *id);
            if after.is_none() {
                return self.note_known(ROUTES_KNOWN, seen, now).await;
            }
        }
    }

    async fn learn_from_records(&self, now: Timestamp) -> Result<usize, StoreError> {
        let store = &self.0.store;
        let all = Filter::default();
        let (mut told, mut seen, mut cursor) = (0, 0, None);
        loop {
            let page = self.bounded_read(store.list(&all, cursor, STRETCH)).await?;
            seen += page.items.len();
            for listed in &page.items {
                let known = self.bounded_read(self.make_known(&listed.record.scope));
                told += usize::from(known.await?);
            }
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.note_known(SCOPES_KNOWN, seen, now).await?;
        Ok(told)
    }
}

/// The moment in a mark. One that cannot be read is taken for the oldest.
fn read_moment(mark: &[u8]) -> Timestamp {
    let digits = std::str::from_utf8(mark).ok();
    Timestamp(digits.and_then(|digits| digits.parse().ok()).unwrap_or(0))
}
