//! API keys, stored as hashes.

use aws_lc_rs::{constant_time::verify_slices_are_equal, digest};

use super::ClientId;
use crate::config::AuthConfig;

/// The accepted keys.
pub(super) struct ApiKeys(Vec<(ClientId, [u8; 32])>);

impl ApiKeys {
    pub(super) fn new(config: &AuthConfig) -> Self {
        let known = config.api_keys.iter().filter_map(|key| {
            let client = ClientId::new(&key.client_id)?;
            Some((client, key.sha256))
        });
        Self(known.collect())
    }

    /// The client that owns `key`. Every known key is compared, each in constant time, so that the duration
    /// does not reveal which one matched.
    pub(super) fn owner(&self, key: &[u8]) -> Option<ClientId> {
        if self.0.is_empty() {
            return None;
        }
        let hash = digest::digest(&digest::SHA256, key);
        let mut owner = None;
        for (client, known) in &self.0 {
            if verify_slices_are_equal(hash.as_ref(), known).is_ok() {
                owner = Some(client);
            }
        }
        owner.cloned()
    }
}
