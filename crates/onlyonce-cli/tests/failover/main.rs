//! Clusters of servers that replace each other, the real binary in front, and the checker that knows only the
//! promise. What is to be cut off from others is in network namespaces that the test makes for itself.
#![allow(
    clippy::unwrap_used,
    reason = "in a test a panic is the report, in helpers too"
)]

#[path = "../http"]
mod black_box {
    #[allow(dead_code, unused_imports, reason = "shared with the tests over HTTP")]
    pub(crate) mod harness;
}

mod galera;
mod levels;
mod mariadb;
mod nemesis;
mod patroni;
mod redis_cluster;
mod redis_sentinels;
mod trial;

use black_box::harness;
