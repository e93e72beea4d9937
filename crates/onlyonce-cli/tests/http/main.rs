//! Black-box tests of the gateway over HTTP: the real binary before an upstream that counts.
//!
//! Each module holds one behaviour of the contract. The evidence is the upstream's own count of
//! executions; the gateway's word (headers, admin API) is checked against it, never instead of it.
#![allow(
    clippy::unwrap_used,
    reason = "in a test a panic is the report, in helpers too"
)]

#[allow(dead_code, reason = "shared with the tests of crash points")]
mod harness;

mod acknowledged;
mod admin_api;
mod admin_surface;
mod asking;
mod at_rest;
mod audit;
mod backends;
mod bad_input;
mod bad_input_framing;
mod bad_input_http2;
mod bad_input_slow;
mod bodies;
mod browser;
mod budgets;
mod callers;
mod canaries;
mod check_is_serve;
mod client_helper;
mod clock;
mod command_line;
mod cors;
mod crash;
mod documents;
mod drills;
mod dumps;
mod enforce;
mod erase;
mod expiry;
mod fingerprint;
mod forwarding;
mod frameworks;
mod golden;
mod guides;
mod hang_ups;
mod harness_checks;
mod heads;
mod identity;
mod identity_tokens;
mod idle;
mod in_flight;
mod keys;
mod keys_cli;
mod ledgers;
mod levels;
mod lifecycle;
mod limits;
mod long_run;
mod lost_memory;
mod machine_faults;
mod mariadb;
mod mariadb_schema;
mod memory;
mod metrics;
mod mismatch;
mod operator;
mod outbox;
mod outbox_admin;
mod outcomes;
mod oversized;
mod payments;
mod postgres;
mod postgres_faults;
mod postgres_schema;
mod power_loss;
mod probes;
mod problems;
mod promised;
mod reconcile;
mod reconcile_soak;
mod redis;
mod redis_cluster;
mod redis_faults;
mod reload;
mod replay;
mod routing;
mod schema;
mod sdks;
mod sessions;
mod shadow;
mod shared_faults;
mod shared_store;
mod spelling;
mod sql;
mod sql_effects;
mod stopped_store;
mod store_identity;
mod tiered;
mod timeouts;
mod tls;
mod unasked;
mod upgrades;
mod verify;
mod viewers;
mod warnings;
mod way;
mod webhooks;
mod wholeness;
mod without_a_file;
