//! The top level and its smaller sections.

use super::{AUTH, FORWARDED, IDEMPOTENCY, LIMITS, OUTBOX, ROUTE, TLS};
use super::{Kind::*, Schema, field};

pub(in crate::config) const TOP: Schema = Schema {
    name: "the top level",
    fields: &[
        field(
            "listen",
            Address,
            "`127.0.0.1:8080`",
            "where requests are taken: HTTP/1.1, and HTTP/2 by ALPN with `tls` or with prior \
             knowledge without it",
        ),
        field(
            "tls",
            Section(&TLS),
            "none",
            "[a certificate](#tls) for `listen`; without it requests come in plain text",
        ),
        field("admin", Section(&ADMIN), "", "the [admin API](#admin)"),
        field(
            "store",
            Section(&STORE),
            "",
            "[where records are kept](#store)",
        ),
        field(
            "redis",
            Section(&REDIS),
            "",
            "[a Redis server](#redis) as the store, in the form of older gateways",
        ),
        field(
            "auth",
            Section(&AUTH),
            "",
            "[who is asking](#auth); without it nobody is asked for a credential",
        ),
        field(
            "idempotency",
            Section(&IDEMPOTENCY),
            "",
            "[options](#idempotency) for all routes, unless a route says otherwise",
        ),
        field(
            "limits",
            Section(&LIMITS),
            "",
            "[limits](#limits) for all routes, unless a route says otherwise",
        ),
        field(
            "path_readings",
            Words(&["common", "exact"]),
            "`common`",
            "the same as `idempotency.path_readings`; say it in one place",
        ),
        field(
            "workers",
            Section(&WORKERS),
            "",
            "[the background loops](#workers)",
        ),
        field(
            "outbox",
            Section(&OUTBOX),
            "",
            "[where messages go](#outbox) that were left in a transaction",
        ),
        field(
            "routes",
            Sections(&ROUTE),
            "required",
            "[the routes](#a-route); at least one, but for `onlyonce worker`",
        ),
        field(
            "upstream_idle",
            Duration,
            "`1s`",
            "a pooled upstream connection that was idle for longer is not used again",
        ),
        field(
            "upstream_reuse",
            Boolean,
            "`true`",
            "whether requests with a key share HTTP/1.1 connections to backends; `false` gives each one of its own",
        ),
        field(
            "connect_timeout",
            Duration,
            "`2s`",
            "name resolution and connecting, for each backend that is tried",
        ),
        field(
            "first_byte_timeout",
            Duration,
            "as `timeout`",
            "how long the first byte of an answer may take; then the client gets 504, and the \
             backend is read on as after `timeout`",
        ),
        field(
            "drain_timeout",
            Duration,
            "`30s`",
            "how long running requests may go on after SIGTERM or SIGINT",
        ),
        field(
            "header_timeout",
            Duration,
            "`10s`",
            "how long a client may take to send the head of a request",
        ),
        field(
            "body_timeout",
            Duration,
            "`60s`",
            "how long a client may take to send a body that carries a key; a key's `timeout` \
             bounds it as well",
        ),
        field(
            "send_timeout",
            Duration,
            "`30s`",
            "a client that takes nothing of its answer for this long is disconnected",
        ),
        field(
            "tunnel_idle",
            Duration,
            "`10m`",
            "an upgraded connection, a WebSocket for instance, on which nothing goes either way \
             for this long is closed",
        ),
        field(
            "max_connections",
            Number,
            "`10000`",
            "connections of clients at once, upgraded ones included; for one more the one that has \
             been silent for the longest is closed",
        ),
        field(
            "max_header_size",
            Size,
            "`64KiB`",
            "the largest head of a request, 8 KiB to 1 MiB",
        ),
        field(
            "forwarded",
            Section(&FORWARDED),
            "",
            "[what backends are told](#forwarded) about where a request came from",
        ),
        field(
            "request_id",
            Boolean,
            "`true`",
            "give a request that brings no `X-Request-Id` one on its way to the backend",
        ),
        field(
            "allow_scope_change",
            Boolean,
            "`false`",
            "whether a [reload](#reload) may change what makes a scope",
        ),
    ],
};

pub(in crate::config) const ADMIN: Schema = Schema {
    name: "`admin`",
    fields: &[
        field(
            "listen",
            Address,
            "`127.0.0.1:9090`",
            "the admin API's own listener",
        ),
        field(
            "token_env",
            Name,
            "`ONLYONCE_ADMIN_TOKEN`",
            "the environment variable that holds the admin token",
        ),
        field(
            "readonly_token_env",
            Name,
            "",
            "the variable that holds a token that may only look",
        ),
        field(
            "public_metrics",
            Boolean,
            "`false`",
            "whether `/metrics` needs no token",
        ),
        field(
            "mask_keys",
            Boolean,
            "`false`",
            "show a tag of each key instead of the key",
        ),
        field(
            "audit_retention",
            Duration,
            "`365d`",
            "how long the audit of keys that are gone is kept",
        ),
    ],
};

pub(in crate::config) const STORE: Schema = Schema {
    name: "`store`",
    fields: &[
        field(
            "url",
            Url,
            "`sqlite:onlyonce.db`",
            "`sqlite:FILE`, `memory:`, `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, \
             `mysql://USER:PASSWORD@HOST:PORT/DATABASE` for MySQL and MariaDB, or \
             `redis://USER:PASSWORD@HOST:PORT/DB`; several hosts of one SQL cluster may stand \
             there, with commas between them; `rediss://` is Redis with TLS, \
             `redis+sentinel://HOST,HOST/MASTER` and `redis+cluster://HOST,HOST` are for several \
             servers; see [stores](../guide/stores.md)",
        ),
        field(
            "timeout",
            Duration,
            "`2s`",
            "how long one call may take before the store counts as unavailable",
        ),
        field(
            "migrate",
            Boolean,
            "`true`",
            "create or upgrade the schema at the start; with `false`, a file with an old or \
             no schema is refused",
        ),
        field(
            "create",
            Boolean,
            "`false`",
            "with profile `payments`: let `serve` make a store where there is none. A new store knows no \
             key, so retries of earlier requests execute; without this, `onlyonce migrate` makes it. Other \
             profiles need no leave",
        ),
        field(
            "single_node",
            Boolean,
            "`false`",
            "with profile `payments` on an embedded store: your word that this is the only gateway. A second \
             one with a file of its own would execute every key again",
        ),
        field(
            "cache",
            Url,
            "none",
            "`redis://…` in front of a SQL store: replays of completed keys come from there for up \
             to 60 s after the record was last read from SQL; see [stores](../guide/stores.md)",
        ),
        field(
            "encryption_key_env",
            Name,
            "none",
            "the environment variable that holds `ID:BASE64[,ID:BASE64…]`, keys of 32 bytes: the \
             first encrypts what is stored, all decrypt; see [at rest](../guide/at-rest.md)",
        ),
        field(
            "compression",
            Words(&["none", "zstd", "dictionary"]),
            "`zstd`; `none` in memory",
            "how answers are made smaller, where that helps; `dictionary` trains one for each route \
             from its recent answers",
        ),
        field(
            "plain_settle",
            Boolean,
            "`false`",
            "with encryption: whether the SQL function `settle` may store answers as they are",
        ),
        field(
            "pooler",
            Words(&["none", "transaction"]),
            "`none`",
            "`transaction` where PgBouncer in transaction mode stands before PostgreSQL",
        ),
        field(
            "allow_eviction",
            Boolean,
            "`false`",
            "use a Redis server whose `maxmemory-policy` throws records away when its memory is \
             full; the retry of such a key is executed again",
        ),
        field(
            "identity",
            Text,
            "none",
            "the identity that the store must have, as `migrate` and the start-up line print it: a start on \
             any other store is refused, and none is made; see [stores](../guide/stores.md#a-store-that-forgets)",
        ),
        field(
            "spool_dir",
            Folder,
            "none",
            "with a shared store: where a result that could not be committed within \
             `completion_grace` is kept, with an fsync, until the store takes it, by this \
             process or the next. It must outlive the process, and is encrypted as the store is. What is known of the store \
             is kept there too, and a start on one that has forgotten is refused",
        ),
    ],
};

pub(in crate::config) const REDIS: Schema = Schema {
    name: "`redis`",
    fields: &[field(
        "address",
        Text,
        "required",
        "`HOST:PORT`, or a URL as in `store.url`: where records are kept, unless `store.url` says \
         so",
    )],
};

pub(in crate::config) const WORKERS: Schema = Schema {
    name: "`workers`",
    fields: &[
        field(
            "sweep_every",
            Duration,
            "`5s`",
            "how often lapsed leases are looked for",
        ),
        field(
            "reap_every",
            Duration,
            "`60s`",
            "how often expired records are looked for",
        ),
        field(
            "reconcile_every",
            Duration,
            "`5s`",
            "how often unknown outcomes are looked into",
        ),
        field(
            "deliver_every",
            Duration,
            "`500ms`",
            "how often messages are looked for that are due; new ones are delivered at once where the store \
             tells of them",
        ),
    ],
};
