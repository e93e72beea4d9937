//! Sends a request with an idempotency key until its outcome is known.
//!
//! Three rules make a retry safe, and this crate keeps them for its caller:
//!
//! 1. **The key is persisted before the first attempt**, in a [`Journal`]. A program that dies midway finds
//!    the key there after a restart, and continues with it.
//! 2. **The key is never changed.** Not after a timeout, not after a 5xx, and least of all when the outcome
//!    is unknown: a new key is a new operation.
//! 3. **The server's hints are followed**: `X-Should-Retry`, `Stripe-Should-Retry` and `Retry-After`. If the
//!    server says that the outcome is unknown, the client asks at `GET /.onlyonce/keys/{key}` until the
//!    server knows more.
//!
//! ```no_run
//! # async fn pay() -> Result<(), Box<dyn std::error::Error>> {
//! use onlyonce_client::{Call, Client, FileJournal, Journal};
//!
//! let journal = FileJournal::open("/var/lib/shop/keys")?;
//! let client = Client::new("https://api.example")?;
//! // The name is the caller's own for this one payment; the key is made for it and kept with it.
//! let call = Call::post("/payments").json(r#"{"amount":1000,"currency":"EUR"}"#);
//! let answer = client.send(&journal, "order-4711/payment", &call).await?;
//! record_in_our_database(answer.status, &answer.body);
//! // Only now: before this, a restart must find the key again.
//! journal.forget("order-4711/payment")?;
//! # Ok(())
//! # }
//! # fn record_in_our_database(_: http::StatusCode, _: &[u8]) {}
//! ```
//!
//! It works with any server that honours `Idempotency-Key`. If a server has no `/.onlyonce/keys`, an unknown
//! outcome is simply reported.
//!
//! Deliberately absent: pooled connections (each attempt has its own connection), redirects, and streaming;
//! requests and answers are held in memory.

mod call;
mod client;
mod hint;
mod journal;
mod wire;

pub use call::Call;
pub use client::{Answer, Client, Error, Patience};
pub use journal::{Entry, FileJournal, Journal, JournalError};
pub use wire::{BadAddress, Lost};
