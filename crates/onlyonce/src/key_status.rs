//! `Idempotency-Status`: what a client is told about its key, beside the answer itself.
//!
//! Every answer that this crate makes to a request with a key says it, and nobody else may: what an
//! upstream says under this name is removed. So the header itself carries the word to the place that
//! every answer goes through last, [`tell_only_keyed`].

use http::{HeaderMap, HeaderName, HeaderValue};
use onlyonce_core::record::State;

/// The header.
pub(crate) static STATUS: HeaderName = HeaderName::from_static("idempotency-status");

/// What a key is now, as far as whoever answers knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStatus {
    /// The state of its record.
    Is(State),
    /// The request was refused before anybody looked, or the store could not be asked.
    NotLookedUp,
    /// The request went through without protection.
    Bypassed,
}

impl KeyStatus {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Is(state) => state.as_str(),
            Self::NotLookedUp => "not-looked-up",
            Self::Bypassed => "bypassed",
        }
    }

    /// Says it in the headers of an answer.
    pub fn say(self, headers: &mut HeaderMap) {
        headers.insert(&STATUS, HeaderValue::from_static(self.as_str()));
    }
}

/// The last step of every answer: one to a request with a key says what the key is now, any other says
/// nothing.
pub fn tell_only_keyed(headers: &mut HeaderMap, is_keyed: bool) {
    if !is_keyed {
        headers.remove(&STATUS);
    } else if !headers.contains_key(&STATUS) {
        KeyStatus::NotLookedUp.say(headers);
    }
}
