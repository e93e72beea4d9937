//! Publishers, which take outbox messages to their receivers.
//!
//! Each publisher here is an [`onlyonce::outbox::Publish`]: it sends one message once, and reports the result
//! truthfully. It does not decide when to send, how often, or what happens to the message.
//!
//! - [`http`]: a POST with an idempotency key and a Standard Webhooks signature. Always available.
//! - `nats` (feature `nats`): NATS JetStream, with the message's key as its id.
//! - `rabbitmq` (feature `rabbitmq`): RabbitMQ, with publisher confirms.
//! - `kafka` (feature `kafka`): Kafka, with an idempotent producer.
//!
//! With any of them a message may arrive more than once, always under the same key. HTTP receivers recognise
//! the key; consumers of a broker use [`process_once`](onlyonce::Transactions::process_once).
//!
//! Deliberately absent: retries and queues of our own, and a timeout for the whole attempt. A dropped future
//! is an attempt with an unseen end.

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
