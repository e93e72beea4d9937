//! Messages through real brokers that are killed and started again; through the client library's own
//! mock cluster for Kafka, of which no broker could be had.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod guide;
mod kafka;
mod nats;
mod rabbitmq;
mod shop;
