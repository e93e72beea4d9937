//! Shared test code of OnlyOnce. Never shipped: crates use it as a dev-dependency only.
//!
//! - `conformance`: the contract of a store as tests
//! - [`servers`]: private database servers and message brokers
//! - [`namespaces`]: machines that can be cut off from each other
//! - `faulty_store` and [`tcp_faults`]: a store and a connection that fail on purpose
//! - [`scenarios`]: every kind of record, moment and event, for tests of the whole machine
//! - [`soak`]: how long random tests run
//! - [`fuzz`]: mutated inputs, and targets that judge them
//! - [`promise`]: the checker, which judges a history of what clients sent and heard and of what an API
//!   executed
//!
//! The checker deliberately uses nothing of OnlyOnce, not even its types: a rule that is wrong in the program
//! cannot be wrong there in the same way.
//!
//! Unit tests of a crate must not pass that crate's types to this one: they would be those of a second copy
//! of it. Tests in `tests/` may.

#![allow(
    clippy::unwrap_used,
    reason = "this serves tests: what goes wrong here must stop them, loudly"
)]

#[cfg(feature = "store")]
pub mod conformance;
#[cfg(feature = "store")]
pub mod faulty_store;
pub mod fuzz;
pub mod namespaces;
pub mod promise;
pub mod scenarios;
pub mod servers;
pub mod soak;
pub mod tcp_faults;
