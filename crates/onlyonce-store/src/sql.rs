//! What the stores on SQL databases share.
//!
//! Every one of them: how rows are read ([`row`], [`message`]), and what people
//! and background loops ask ([`scan`], [`message`], [`phases`], [`meta`]) in the words of a [`dialect`]. The servers: the queue in front of their
//! connections, the lanes that serve it in batches, and how a failure is judged.
//!
//! Deliberately absent: the writes of the hot path, the schema and the level, which are each database's
//! own.

#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod batch;
pub(crate) mod dialect;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod doubt;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod failure;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod hosts;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod lane;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod line;
pub(crate) mod message;
pub(crate) mod meta;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod open;
pub(crate) mod phases;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod queue;
pub(crate) mod row;
pub(crate) mod scan;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod store;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod transaction;
