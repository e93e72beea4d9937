//! The gateway: everything that the server needs, and nothing of the command line.
//!
//! The rooms, in the order in which a request passes through them:
//!
//! - `cores` gives each core an event loop of its own, and each connection to one of them;
//! - `edge` takes connections, reads heads, and puts a request through the layer of `onlyonce`;
//! - [`routing`] says which route takes the request, and whose rules hold for it;
//! - `auth` says who is asking;
//! - `upstream` takes it to a backend, and knows whether a byte was sent.
//!
//! What stands beside that path:
//!
//! - `provider` finds out what became of unknown keys, by asking ([`http_client`]) and by webhooks;
//! - `outbox` delivers messages; `outbound` is for the questions of `auth`;
//! - [`admin`] is the admin API and the dashboard;
//! - [`config`] reads the file, and `reload` reads it again;
//! - `telemetry` logs and counts; `tls` reads certificates; [`clock`] tells people the time;
//! - [`serve`] puts all of it together, until it is told to stop or its [`parent`] is gone.
//!
//! Deliberately absent: arguments, tables, colours and every tool. The binary is in `onlyonce-cli`, and
//! what is public here is what that needs.

#![cfg_attr(test, allow(clippy::unwrap_used))]
// A reader that goes away is no reason to panic.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod admin;
mod auth;
pub mod clock;
pub mod config;
mod cores;
mod edge;
pub mod http_client;
mod outbound;
mod outbox;
pub mod parent;
mod provider;
mod reload;
pub mod routing;
pub mod serve;
mod telemetry;
mod tls;
mod upstream;
