//! Takes messages of an outbox to their receivers.
//!
//! Each publisher here is an [`onlyonce::outbox::Publish`]: it sends one message once, and says truly
//! what came of it. When to send, how often and what becomes of the message is not decided here.
//!
//! - [`http`]: a POST with an idempotency key and a Standard Webhooks signature. Always there.
//!
//! A message may arrive more than once under any of them, always under the same key. Receivers over
//! HTTP know the key again.
//!
//! Deliberately absent: retries, time limits and queues. A future that is dropped is an attempt whose
//! end nobody saw.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod http;
