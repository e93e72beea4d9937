//! What the stores on SQL servers share: the queue in front of their connections, the lanes that
//! serve it in batches, how a failure is judged, and how a row is read.
//!
//! Deliberately absent: SQL. Each server has statements of its own, behind [`lane::Server`].

pub(crate) mod doubt;
pub(crate) mod failure;
pub(crate) mod hosts;
pub(crate) mod lane;
pub(crate) mod line;
pub(crate) mod open;
pub(crate) mod queue;
pub(crate) mod row;
pub(crate) mod transaction;
