//! The machine against the design: each edge by itself, everything that is possible in one sweep, and
//! random histories. What holds of every change is written down once, in `invariants`.
//!
//! Everything goes through the public `machine::apply`. The records, the moments and the events are the
//! testkit's `scenarios`, through which the stores' SQL functions are compared with the machine as well.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod admit;
mod evidence;
mod exhaustive;
mod expire;
mod history;
mod invariants;
mod sequences;
mod settle;
mod steps;
mod table;
