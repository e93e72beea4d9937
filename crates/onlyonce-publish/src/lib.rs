//! Takes messages of an outbox to their receivers.
//!
//! Each publisher here is an [`onlyonce::outbox::Publish`]: it sends one message once, and says truly
//! what came of it. When to send, how often and what becomes of the message is not decided here.
//!
//! - [`http`]: a POST with an idempotency key and a Standard Webhooks signature. Always there.
//! - `nats` (feature `nats`): NATS JetStream, with the message's key as its id.
//! - `rabbitmq` (feature `rabbitmq`): RabbitMQ, with publisher confirms.
//! - `kafka` (feature `kafka`): Kafka, with an idempotent producer.
//!
//! A message may arrive more than once under any of them, always under the same key. Receivers over
//! HTTP know the key again; consumers of a broker use
//! [`process_once`](onlyonce::Transactions::process_once).
//!
//! Deliberately absent: retries, time limits and queues. A future that is dropped is an attempt whose
//! end nobody saw.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod http;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq"))]
mod template;

#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq"))]
pub use template::{BadTemplate, Template};
