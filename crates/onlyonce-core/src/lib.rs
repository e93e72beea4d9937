//! The pure core of OnlyOnce: what a key is, when two requests are the same, what is stored about a key, and
//! what a key's past permits.
//!
//! Everything here is a function from values to values. There is no I/O, no clock, no randomness and no
//! async: `now` and fresh attempt ids are arguments.
//!
//! The path of a request through this crate: [`key`] parses the header, [`fingerprint`] reduces the request
//! to 32 bytes, and [`machine`] decides what to do, given the [`record`] and a [`policy`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod fingerprint;
pub mod key;
pub mod machine;
pub mod outbox;
pub mod policy;
pub mod readings;
pub mod record;
pub mod scope;
pub mod secret;
pub mod time;
#[cfg(test)]
mod vectors;

pub use fingerprint::{Fingerprint, Recipe, RecipeId, RequestView};
pub use key::{Key, KeyError, KeyRules, Spelling};
pub use outbox::{MessageId, MessageState};
pub use policy::{Policy, PolicyBuilder};
pub use record::{AttemptId, Fence, Notes, Record, State, StoredResponse};
pub use scope::Scope;
pub use secret::{CallerMark, KeyTag, RecordId, ScopeHasher, Secret};
pub use time::Timestamp;
