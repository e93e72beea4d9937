//! What the store has to know before the first key of a layer: the recipe of its fingerprints, and the rules
//! of its policy for programs that settle keys in the store. Written once, when first needed.

use std::sync::Arc;

use onlyonce_core::Policy;
use onlyonce_store::StoreError;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::engine::{Engine, Unavailable};

/// Whether the store knows the policy of a layer, shared by all its clones.
pub(super) struct Preparation {
    policy: Arc<Policy>,
    done: OnceCell<()>,
    failed: Mutex<Failed>,
}

/// The number of failed attempts, and why the last one failed.
#[derive(Clone, Default)]
struct Failed {
    attempts: u64,
    last: Option<Arc<StoreError>>,
}

impl Preparation {
    pub(super) fn new(policy: Arc<Policy>) -> Self {
        Self {
            policy,
            done: OnceCell::new(),
            failed: Mutex::default(),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.done.initialized()
    }

    /// Returns once the store knows the policy. Of concurrent callers one writes, and the others wait for it.
    /// If it fails, they fail too: a store that hangs is waited for once. A later caller tries again.
    ///
    /// # Errors
    /// [`Unavailable`] if the store cannot keep the policy, or if a duration that must be positive is not.
    pub(super) async fn ensure(&self, engine: &Engine, route: &str) -> Result<(), Unavailable> {
        if self.is_done() {
            return Ok(());
        }
        let failed_before = self.failed.lock().attempts;
        let prepared = self.done.get_or_try_init(|| async {
            let failed = self.failed.lock().clone();
            if let Some(last) = failed.last
                && failed.attempts != failed_before
            {
                return Err(Unavailable(of_another(last)));
            }
            let kept = engine.prepare(route, &self.policy).await;
            kept.map_err(|Unavailable(error)| {
                let error = Arc::new(error);
                let mut failed = self.failed.lock();
                failed.attempts += 1;
                failed.last = Some(error.clone());
                Unavailable(of_another(error))
            })
        });
        prepared.await.copied()
    }
}

/// The error for everybody who waited for an attempt that failed with `error`.
fn of_another(error: Arc<StoreError>) -> StoreError {
    match &*error {
        StoreError::Unavailable(_) | StoreError::Held => StoreError::Unavailable(error.into()),
        StoreError::Ambiguous(_) => StoreError::Ambiguous(error.into()),
        // Any other error does not pass with the outage.
        _ => StoreError::Unreadable(error.into()),
    }
}
