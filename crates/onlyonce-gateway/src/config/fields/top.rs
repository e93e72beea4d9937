//! The top level and its smaller sections.

use std::{net::SocketAddr, ops::RangeInclusive, path::PathBuf, time::Duration};

use onlyonce_core::policy::{PathReadings, Policy};
use onlyonce_store::{at_rest::Compression, postgres::Pooler};

use super::Kind::*;
use super::{ANY, AUTH, FORWARDED, IDEMPOTENCY, LIMITS, OUTBOX, ROUTE, SOME, TLS};
use crate::config::{
    AuthConfig, Diagnostic, Forwarded, OutboxConfig, Route, StoreUrl, TlsConfig,
    setting::{Word, filled_variable},
    store::{identity, keys_variable},
};

/// Connections at once: at least one, and no more than a process can have open files.
const CONNECTIONS: RangeInclusive<u64> = 1..=1_000_000;
/// The largest head of a request, in bytes: below this browsers fail, above it nobody needs it.
const HEADER_BYTES: RangeInclusive<u64> = (8 << 10)..=(1 << 20);
/// Memory for recent answers, in bytes: beyond this a cache of its own is better.
const NEAR_BYTES: RangeInclusive<u64> = 0..=(16 << 30);
/// A worker that runs more often than this does nothing else.
const EVERY: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(86_400);

section! {
    /// A configuration without a mistake in it.
    pub struct Config: TOP = "the top level" {
        pub(crate) listen: SocketAddr = Address, "127.0.0.1:8080",
            "where requests are taken: HTTP/1.1, and HTTP/2 by ALPN with `tls` or with prior \
             knowledge without it" [restart];
        pub(crate) tls: Option<TlsConfig> = Section(&TLS), ("none"),
            "[a certificate](#tls) for `listen`; without it requests come in plain text";
        pub(crate) admin: AdminConfig = Section(&ADMIN), { "" }, "the [admin API](#admin)";
        pub store: StoreConfig = Section(&STORE), { "" },
            "[where records are kept](#store)" [restart];
        redis = Section(&REDIS), (""),
            "[a Redis server](#redis) as the store, in the form of older gateways";
        pub(crate) auth: Option<AuthConfig> = Section(&AUTH), (""),
            "[who is asking](#auth); without it nobody is asked for a credential";
        idempotency = Section(&IDEMPOTENCY), (""),
            "[options](#idempotency) for all routes, unless a route says otherwise";
        limits = Section(&LIMITS), (""),
            "[limits](#limits) for all routes, unless a route says otherwise";
        path_readings = Words(PathReadings::NAMES), "common",
            "the same as `idempotency.path_readings`; say it in one place";
        pub(crate) workers: Workers = Section(&WORKERS), { "" }, "[the background loops](#workers)";
        pub(crate) outbox: OutboxConfig = Section(&OUTBOX), { "" },
            "[where messages go](#outbox) that were left in a transaction";
        routes = Sections(&ROUTE), required,
            "[the routes](#a-route); at least one, but for `onlyonce worker`";
        upstream_idle = Duration(ANY), "1s",
            "a pooled upstream connection that was idle for longer is not used again";
        upstream_reuse = Boolean, "true",
            "whether requests with a key share HTTP/1.1 connections to backends; `false` gives \
             each one of its own";
        connect_timeout = Duration(SOME), "2s",
            "name resolution and connecting, for each backend that is tried";
        first_byte_timeout = Duration(SOME), ("as `timeout`"),
            "how long the first byte of an answer may take; then the client gets 504, and the \
             backend is read on as after `timeout`";
        pub(crate) drain_timeout: Duration = Duration(ANY), "30s",
            "how long running requests may go on after SIGTERM or SIGINT";
        pub(crate) header_timeout: Duration = Duration(SOME), "10s",
            "how long a client may take to send the head of a request";
        pub(crate) body_timeout: Duration = Duration(SOME), "60s",
            "how long a client may take to send a body that carries a key; a key's `timeout` \
             bounds it as well";
        pub(crate) send_timeout: Duration = Duration(SOME), "30s",
            "a client that takes nothing of its answer for this long is disconnected";
        pub(crate) tunnel_idle: Duration = Duration(SOME), "10m",
            "an upgraded connection, a WebSocket for instance, on which nothing goes either way \
             for this long is closed";
        pub(crate) max_connections: usize = Number(CONNECTIONS), "10000",
            "connections of clients at once, upgraded ones included; for one more the one that \
             has been silent for the longest is closed" [restart];
        pub(crate) max_header_size: usize = Size(HEADER_BYTES), "64KiB",
            "the largest head of a request, 8 KiB to 1 MiB";
        pub(crate) forwarded: Forwarded = Section(&FORWARDED), { "" },
            "[what backends are told](#forwarded) about where a request came from";
        pub(crate) request_id: bool = Boolean, "true",
            "give a request that brings no `X-Request-Id` one on its way to the backend";
        pub(crate) allow_scope_change: bool = Boolean, "false",
            "whether a [reload](#reload) may change what makes a scope";
    }
    and {
        /// Which requests go where. Empty only for a worker.
        pub routes: Vec<Route> = Vec::new();
        /// What holds for answers that no route gives.
        pub(crate) elsewhere: Policy = Policy::default();
        /// Bytes that are held for clients at once: `limits.held_bytes`.
        pub(crate) held_bytes: usize = 0;
        /// What is allowed and should be known; for the start-up log and `check`.
        pub(crate) warnings: Vec<Diagnostic> = Vec::new();
    }
}

section! {
    /// The admin API.
    pub(crate) struct AdminConfig: ADMIN = "`admin`" {
        pub listen: SocketAddr = Address, "127.0.0.1:9090",
            "the admin API's own listener" [restart];
        pub token_env: String = Name(filled_variable), "ONLYONCE_ADMIN_TOKEN",
            "the environment variable that holds the admin token";
        pub readonly_token_env: Option<String> = Name(filled_variable), (""),
            "the variable that holds a token that may only look";
        pub public_metrics: bool = Boolean, "false", "whether `/metrics` needs no token";
        pub mask_keys: bool = Boolean, "false", "show a tag of each key instead of the key";
        pub audit_retention: Duration = Duration(SOME), "365d",
            "how long the audit of keys that are gone is kept";
    }
    and {
        /// Whether anything was said about it: a worker listens only then.
        pub is_said: bool = false;
    }
}

section! {
    /// Where records are kept.
    pub struct StoreConfig: STORE = "`store`" {
        pub url: StoreUrl = Url, "sqlite:onlyonce.db",
            "`sqlite:FILE`, `memory:`, `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, \
             `mysql://USER:PASSWORD@HOST:PORT/DATABASE` for MySQL and MariaDB, or \
             `redis://USER:PASSWORD@HOST:PORT/DB`; several hosts of one SQL cluster may stand \
             there, with commas between them; `rediss://` is Redis with TLS, \
             `redis+sentinel://HOST,HOST/MASTER` and `redis+cluster://HOST,HOST` are for several \
             servers; `dynamodb://TABLE?region=REGION` where the program is built with it; see \
             [stores](../guide/stores.md)";
        pub(crate) timeout: Duration = Duration(SOME), "2s",
            "how long one call may take before the store counts as unavailable";
        pub(crate) migrate: bool = Boolean, "true",
            "create or upgrade the schema at the start; with `false`, a file with an old or no \
             schema is refused";
        pub(crate) create: bool = Boolean, "false",
            "with profile `payments`: let `serve` make a store where there is none. A new store \
             knows no key, so retries of earlier requests execute; without this, `onlyonce \
             migrate` makes it. Other profiles need no leave";
        pub(crate) single_node: bool = Boolean, "false",
            "with profile `payments` on an embedded store: your word that this is the only \
             gateway. A second one with a file of its own would execute every key again";
        pub(crate) near_cache: usize = Size(NEAR_BYTES), "32MiB",
            "memory of this process for recent answers, so that a storm of retries costs the store \
             one read of each key in a second; `0` keeps none";
        pub(crate) cache: Option<StoreUrl> = RedisUrl, ("none"),
            "`redis://…` in front of a SQL store: replays of completed keys come from there for \
             up to 60 s after the record was last read from SQL; see \
             [stores](../guide/stores.md)";
        pub(crate) encryption_key_env: Option<String> = Name(keys_variable), ("none"),
            "the environment variable that holds `ID:BASE64[,ID:BASE64…]`, keys of 32 bytes: the \
             first encrypts what is stored, all decrypt; see [at rest](../guide/at-rest.md)";
        pub(crate) compression: Compression = Words(Compression::NAMES),
            "zstd" as "`zstd`; `none` in memory",
            "how answers are made smaller, where that helps; `dictionary` trains one for each \
             route from its recent answers";
        pub(crate) plain_settle: bool = Boolean, "false",
            "with encryption: whether the SQL function `settle` may store answers as they are";
        pub(crate) pooler: Pooler = Words(Pooler::NAMES), "none",
            "`transaction` where PgBouncer in transaction mode stands before PostgreSQL";
        pub(crate) allow_eviction: bool = Boolean, "false",
            "use a Redis server whose `maxmemory-policy` throws records away when its memory is \
             full; the retry of such a key is executed again";
        pub(crate) identity: Option<String> = CheckedText(identity), ("none"),
            "the identity that the store must have, as `migrate` and the start-up line print it: \
             a start on any other store is refused, and none is made; see \
             [stores](../guide/stores.md#a-store-that-forgets)";
        pub(crate) spool_dir: Option<PathBuf> = Folder, ("none"),
            "where a result that could not be committed within `completion_grace` is kept, with an \
             fsync, until the store takes it, by this process or the next. It must outlive the \
             process and be on another disk than the store, and is encrypted as the store is. What \
             is known of the store is kept there too: without it, keys that the store loses while \
             the gateway is stopped [are not missed](../guide/stores.md#a-store-that-forgets)";
    }
}

schema! {
    REDIS = "`redis`" {
        address = RedisAddress, required,
            "`HOST:PORT`, or a URL as in `store.url`: where records are kept, in place of \
             `store.url`";
    }
}

section! {
    /// How often the background loops run.
    pub(crate) struct Workers: WORKERS = "`workers`" {
        pub sweep_every: Duration = Duration(EVERY), "5s", "how often lapsed leases are looked for";
        pub reap_every: Duration = Duration(EVERY), "60s",
            "how often expired records are looked for";
        pub reconcile_every: Duration = Duration(EVERY), "5s",
            "how often unknown outcomes are looked into";
        pub deliver_every: Duration = Duration(EVERY), "500ms",
            "how often messages are looked for that are due; new ones are delivered at once where \
             the store tells of them";
    }
}
