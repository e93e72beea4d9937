//! The gateway as a library: everything that the server needs, and nothing of the command line.
//!
//! The modules, in the order in which a request passes through them:
//!
//! - `cores` runs one event loop per core and assigns each connection to one of them;
//! - `edge` accepts connections, reads heads, and passes requests through the layer of `onlyonce`;
//! - [`routing`] picks the route that takes the request and the route whose rules apply;
//! - `auth` identifies the client;
//! - `upstream` forwards the request to a backend, and knows whether a byte was sent.
//!
//! Beside that path:
//!
//! - `provider` resolves unknown keys, by querying the provider ([`http_client`]) and by webhooks;
//! - `outbox` delivers messages; `outbound` makes the HTTP requests of `auth`;
//! - [`admin`] is the admin API and the dashboard;
//! - [`config`] reads the configuration file, and `reload` reads it again;
//! - `telemetry` logs and counts; `tls` reads certificates; [`clock`] tells the wall-clock time;
//! - [`serve`] starts all of it, and runs until told to stop or until its [`parent`] exits.
//!
//! Deliberately absent: arguments, tables, colours and every tool. The binary is in `onlyonce-cli`, and only
//! what that crate needs is public here.

#![cfg_attr(test, allow(clippy::unwrap_used))]
// `println!` panics when the reader of standard output is gone.
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
