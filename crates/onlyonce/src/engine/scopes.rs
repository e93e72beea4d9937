//! The scopes that the store knows, so that a key is found with one probe for each.
//!
//! A scope is registered before the first record in it is written. Records written by an earlier version,
//! before stores knew scopes or beside a newer gateway, are searched once, and again for a day.

use std::{collections::HashMap, time::Duration};

use onlyonce_core::{Scope, Timestamp};
use onlyonce_store::{Filter, ROUTES_KNOWN, SCOPES_KNOWN, StoreError, is_mark, mark_of, scope_id};
use parking_lot::RwLock;

use super::Engine;
use crate::clock::Moment;

/// Registered scopes that are remembered. Beyond this, scopes are registered again.
const MAX_REMEMBERED: usize = 100_000;
/// Records examined at a time.
const STRETCH: usize = 500;
/// The pause after each batch, so that requests are not held up.
const PAUSE: Duration = Duration::from_millis(5);
/// How long gateways of an earlier version may run beside this one after scopes were first registered.
const BESIDE_OTHERS: Duration = Duration::from_secs(24 * 3_600);

/// After this a scope is registered again: a failover or a restored copy may have lost it.
const TELL_AGAIN: Duration = Duration::from_secs(3_600);

/// Scopes that this process has registered, and when, by the local clock.
#[derive(Default)]
pub(super) struct KnownScopes(RwLock<HashMap<Scope, Moment>>);

/// When a scope was registered.
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
    /// `scope`, unless it was registered recently.
    pub(super) fn unfamiliar(&self, scope: &Scope) -> Option<Scope> {
        let now = self.0.options.clock.moment();
        match self.0.scopes.told(scope, now) {
            Told::Lately => None,
            Told::LongAgo | Told::Never => Some(scope.clone()),
        }
    }

    /// Registers `scope` with the store if needed, and returns whether the call had to wait for that. No
    /// record is written. A scope registered long ago is registered again in the background.
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
            // Either way there is no record yet.
            StoreError::Ambiguous(why) => StoreError::Unavailable(why),
            other => other,
        })?;
        self.0.scopes.add(scope.clone(), now);
        Ok(true)
    }

    /// Marks the scope's route first: a client's scopes are found by that mark.
    async fn tell_scope(&self, scope: &Scope) -> Result<(), StoreError> {
        self.mark_route(scope).await?;
        let id = scope_id(self.secret(), scope);
        self.0.store.keep_scope(id, scope.as_str()).await
    }

    /// Marks the route of `scope`, if it is a client's scope on one route.
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

    /// Registers the scopes of all records in the store, and then their routes, unless that was done long
    /// enough ago. Returns how many scopes had to be registered.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be reached; scopes registered until then stay registered.
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

    /// Whether `mark` says that registration was completed so long ago that no gateway of an earlier version
    /// adds records any more.
    async fn is_known_since(&self, mark: &str, now: Timestamp) -> Result<bool, StoreError> {
        let since = self.bounded_read(self.0.store.block(mark)).await?;
        Ok(since.is_some_and(|since| read_moment(&since).plus(BESIDE_OTHERS) <= now))
    }

    async fn note_known(&self, mark: &str, seen: usize, now: Timestamp) -> Result<(), StoreError> {
        // To an empty store no earlier version has added anything.
        let since = if seen == 0 { Timestamp(0) } else { now };
        let since = since.0.to_string();
        self.0.store.keep_block(mark, since.as_bytes()).await?;
        Ok(())
    }

    /// Marks the routes of all registered scopes.
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

/// The time in a mark. An unreadable one counts as the oldest.
fn read_moment(mark: &[u8]) -> Timestamp {
    let digits = std::str::from_utf8(mark).ok();
    Timestamp(digits.and_then(|digits| digits.parse().ok()).unwrap_or(0))
}
