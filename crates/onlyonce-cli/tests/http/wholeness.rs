//! Wholeness by enumeration: every prefix of a small message, and every way to end it there.
//!
//! A request of which a part arrived is not executed; an answer of which a part arrived is not stored.
//! Over HTTP/1.1 and HTTP/2, in plain text and over TLS.

mod answers;
mod requests;
mod transport;
