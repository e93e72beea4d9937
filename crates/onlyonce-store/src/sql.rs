//! What the stores on SQL databases share.
//!
//! For every database: reading rows ([`row`]), and the queries of people, background loops and applications
//! ([`scan`], [`scopes`], [`stretches`], [`message`], [`phases`], [`meta`]), in its own [`dialect`].
//!
//! For every server, unlike SQLite: the store itself ([`store`]), the queue in front of its connections, the
//! lanes that serve the queue in batches, opening connections, and classifying failures.
//!
//! Deliberately absent: the writes of the hot path, the schema and the level, which are specific to each
//! database.

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
pub(crate) mod scopes;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod store;
pub(crate) mod stretches;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod transaction;
