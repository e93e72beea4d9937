//! `Idempotency-Status`: what a client is told about its key, besides the answer itself.
//!
//! Every answer of this crate to a request with a key carries the header, and no other code may set it: an
//! upstream's header of this name is removed. The header itself therefore carries the word to the last step
//! of every answer, [`tell_only_keyed`].

use http::{HeaderMap, HeaderName, HeaderValue};
use onlyonce_core::record::State;

/// The header.
pub(crate) static STATUS: HeaderName = HeaderName::from_static("idempotency-status");

/// The status of a key, as far as it is known when answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStatus {
    /// The state of its record.
    Is(State),
    /// The request was refused before the key was looked up, or the store was unavailable.
    NotLookedUp,
    /// The request went through without protection.
    Bypassed,
}

impl KeyStatus {
    /// The header's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Is(state) => state.as_str(),
            Self::NotLookedUp => "not-looked-up",
            Self::Bypassed => "bypassed",
        }
    }

    /// Sets the header.
    pub fn say(self, headers: &mut HeaderMap) {
        headers.insert(&STATUS, HeaderValue::from_static(self.as_str()));
    }
}

/// The last step of every answer: the answer to a request with a key carries the key's status, any other
/// answer does not.
pub fn tell_only_keyed(headers: &mut HeaderMap, is_keyed: bool) {
    if !is_keyed {
        headers.remove(&STATUS);
    } else if !headers.contains_key(&STATUS) {
        KeyStatus::NotLookedUp.say(headers);
    }
}
