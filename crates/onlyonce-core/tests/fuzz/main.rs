//! Fuzzing of what reads a client's bytes: keys, and bodies as the fingerprint takes them. Each target is
//! compared with a reading of its own, written from the contract and not from the code.

#![allow(
    clippy::unwrap_used,
    reason = "tests: what goes wrong here must stop them, loudly"
)]

mod form;
mod json;
mod key;
mod multipart;
mod recipe;

use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
use onlyonce_core::{
    Fingerprint,
    fingerprint::{Recipe, RequestView},
    secret::{ScopeHasher, Secret},
};

/// Fingerprints of bodies, everything else being equal.
struct Bodies {
    hasher: ScopeHasher,
    recipe: Recipe,
}

impl Bodies {
    fn new() -> Self {
        Self {
            hasher: Secret::from_bytes([1; 32]).scope_hasher("global"),
            recipe: Recipe::default(),
        }
    }

    fn fingerprint(&self, content_type: &HeaderValue, body: &[u8]) -> Fingerprint {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, content_type.clone())]);
        let request = RequestView {
            method: "POST",
            authority: None,
            target: "/",
            headers: &headers,
            body,
        };
        self.hasher.fingerprint(&self.recipe, &request)
    }
}
