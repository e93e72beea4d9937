//! Every kind of record, every moment at which its treatment changes, and every event, for tests against the
//! whole machine: the machine's own, and that of the SQL functions.

#![allow(
    missing_docs,
    reason = "these are tables of a test: their names say what they hold"
)]

pub mod events;
pub mod world;
