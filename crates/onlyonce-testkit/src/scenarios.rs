//! Every kind of record, every moment at which something about it changes, and every event, for those who
//! hold something against the whole machine: the machine's own tests, and the test of the SQL functions.

#![allow(
    missing_docs,
    reason = "these are tables of a test: their names say what they hold"
)]

pub mod events;
pub mod world;
