//! What the engine keeps besides keys: the policy of each route, and the recipes of fingerprints.

use std::sync::Arc;

use onlyonce_core::{Policy, Recipe, RecipeId, outbox::TargetRules};
use onlyonce_store::StoreError;

use super::{Engine, Unavailable};

impl Engine {
    /// Sets the policy of `route`, for the background loops and for operators.
    pub fn set_policy(&self, route: Arc<str>, policy: Arc<Policy>) {
        self.store_clock().learn(&policy);
        self.0.policies.write().insert(route, policy);
    }

    /// `policy`, as it is carried out on this store: what is encrypted need not be hidden.
    pub(crate) fn fitted(&self, mut policy: Policy) -> Arc<Policy> {
        policy.hide_card_numbers &= !self.store().encrypts();
        Arc::new(policy)
    }

    /// The policy of `route`; the default one for an unknown route.
    pub fn policy(&self, route: &str) -> Arc<Policy> {
        self.known_policy(route).unwrap_or_default()
    }

    /// The policy of `route`, if this process knows it.
    pub(super) fn known_policy(&self, route: &str) -> Option<Arc<Policy>> {
        self.0.policies.read().get(route).cloned()
    }

    /// Sets the delivery rules of `target`.
    pub(crate) fn set_target(&self, target: Arc<str>, rules: TargetRules) {
        self.0.targets.write().insert(target, rules);
    }

    /// The delivery rules of `target`, if this process delivers to it.
    pub(crate) fn target_rules(&self, target: &str) -> Option<TargetRules> {
        self.0.targets.read().get(target).copied()
    }

    /// Stores `recipe`, so that a retry of one of its keys can be compared after a change of the
    /// configuration.
    ///
    /// # Errors
    /// [`Unavailable`] if the store cannot keep the recipe.
    pub async fn keep_recipe(&self, recipe: &Recipe) -> Result<(), Unavailable> {
        self.bounded_read(self.0.store.keep_recipe(recipe))
            .await
            .map_err(Unavailable)
    }

    /// Stores the rules of `policy` for the keys of `route`, for programs that settle keys in the store.
    ///
    /// # Errors
    /// [`Unavailable`] if the store cannot keep them, or if a duration that must be positive is not.
    pub async fn keep_policy(&self, route: &str, policy: &Policy) -> Result<(), Unavailable> {
        if let Some(why) = unsound(route, policy) {
            return Err(Unavailable(StoreError::Unavailable(why.into())));
        }
        self.bounded_read(self.0.store.keep_policy(route, policy))
            .await
            .map_err(Unavailable)
    }

    /// Stores what the keys of `route` are compared and judged by under `policy`. The store must know this
    /// before the first of these keys.
    ///
    /// # Errors
    /// [`Unavailable`] if the store cannot keep it, or if a duration that must be positive is not.
    pub(crate) async fn prepare(&self, route: &str, policy: &Policy) -> Result<(), Unavailable> {
        if let Some(why) = unsound(route, policy) {
            // Not an outage: it does not count as one, and `bypass` does not apply.
            return Err(Unavailable(StoreError::Unreadable(why.into())));
        }
        self.unless_open()?;
        let kept = async {
            self.recall_time().await?;
            let (store, recipe) = (&self.0.store, &policy.recipe);
            self.bounded_read(store.keep_recipe(recipe)).await?;
            self.bounded_read(store.keep_policy(route, policy)).await
        };
        self.watched(kept.await).map_err(Unavailable)
    }

    pub(super) fn known_recipe(&self, id: RecipeId, policy: &Policy) -> Option<Arc<Recipe>> {
        if let Some(known) = self.0.recipes.lock().get(&id) {
            return Some(known.clone());
        }
        if id != policy.recipe.id() {
            return None;
        }
        let recipe = Arc::new(policy.recipe.clone());
        self.0.recipes.lock().insert(id, recipe.clone());
        Some(recipe)
    }

    /// The recipe of a record's fingerprint.
    pub(super) async fn recipe(
        &self,
        id: RecipeId,
        policy: &Policy,
    ) -> Result<Arc<Recipe>, Unavailable> {
        if let Some(known) = self.known_recipe(id, policy) {
            return Ok(known);
        }
        let found = self
            .bounded_read(self.0.store.recipe(id))
            .await
            .map_err(Unavailable)?;
        let missing = || {
            Unavailable(StoreError::Unreadable(
                "a record's recipe is missing".into(),
            ))
        };
        let recipe = Arc::new(found.ok_or_else(missing)?);
        self.0.recipes.lock().insert(id, recipe.clone());
        Ok(recipe)
    }
}

/// Why nothing may be executed under `policy`, if so.
fn unsound(route: &str, policy: &Policy) -> Option<String> {
    let name = policy.not_positive()?;
    Some(format!(
        "{name} of the policy of {route} must be a positive duration"
    ))
}
