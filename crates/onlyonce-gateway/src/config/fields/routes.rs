//! Routes, and everything about keys.

use super::{Item, Kind::*, Schema, field};

pub(in crate::config) const ROUTE: Schema = Schema {
    name: "a route",
    fields: &[
        field(
            "id",
            Name,
            "required",
            "1 to 64 letters, digits, `_` and `-`; unique",
        ),
        field("path", Path, "required", "a prefix, without patterns"),
        field(
            "methods",
            List(Item::Methods),
            "all",
            "the methods that the route takes",
        ),
        field(
            "backends",
            Sections(&BACKEND),
            "required",
            "[where its requests go](#a-backend); at least one",
        ),
        field(
            "timeout",
            Duration,
            "`30s`",
            "the same as `idempotency.timeout`; say it in one place",
        ),
        field(
            "max_execution",
            Duration,
            "`15m`",
            "the same as `idempotency.max_execution`; say it in one place",
        ),
        field("upstream_idle", Duration, "as the top level", ""),
        field(
            "upstream_reuse",
            Boolean,
            "as the top level; profile `payments`: `false`",
            "",
        ),
        field("connect_timeout", Duration, "as the top level", ""),
        field("first_byte_timeout", Duration, "as the top level", ""),
        field(
            "limits",
            Section(&LIMITS),
            "as the top level",
            "[limits](#limits)",
        ),
        field(
            "auth",
            Words(&["required", "optional"]),
            "`required`",
            "where `auth` is configured: with `optional`, requests without a key need no \
             credential",
        ),
        field(
            "cors",
            Section(&CORS),
            "none",
            "[which pages](#cors) may read the gateway's own answers",
        ),
        field(
            "shadow",
            Boolean,
            "as the top level",
            "the same as `idempotency.shadow`; say it in one place",
        ),
        field(
            "path_readings",
            Words(&["common", "exact"]),
            "as the top level",
            "the same as `idempotency.path_readings`; say it in one place",
        ),
        field(
            "idempotency",
            Section(&IDEMPOTENCY),
            "as the top level",
            "[options](#idempotency) of this route",
        ),
    ],
};

pub(in crate::config) const BACKEND: Schema = Schema {
    name: "a backend",
    fields: &[
        field(
            "url",
            Url,
            "required",
            "`http://` or `https://`, `HOST[:PORT][/PREFIX]`; the prefix is put before every path",
        ),
        field(
            "ca_file",
            File,
            "the public authorities",
            "with `https://`: the authorities in PEM form that its certificate may come from, \
             instead of the public ones. Certificates are always checked",
        ),
        field(
            "http2",
            Boolean,
            "by ALPN with `https://`, else `false`",
            "`true`: HTTP/2 only, in plain text with prior knowledge. `false`: HTTP/1.1 only",
        ),
        field(
            "weight",
            Number,
            "`1`",
            "its share of the requests, 1 to 1000; backends take turns",
        ),
    ],
};

pub(in crate::config) const CORS: Schema = Schema {
    name: "`cors`",
    fields: &[
        field(
            "origins",
            List(Item::Origins),
            "required",
            "such as `https://shop.example.com`; `[\"*\"]` is every one",
        ),
        field(
            "expose_headers",
            List(Item::Headers),
            "see below",
            "the headers of these answers that a page may read",
        ),
        field(
            "credentials",
            Boolean,
            "`false`",
            "whether requests with cookies may read them; not with every origin",
        ),
    ],
};

pub(in crate::config) const IDEMPOTENCY: Schema = Schema {
    name: "`idempotency`",
    fields: &[
        field(
            "enabled",
            Boolean,
            "`false`",
            "whether keys are looked at; `--upstream` switches it on",
        ),
        field(
            "dialect",
            Words(&["ietf", "stripe", "runway"]),
            "`ietf`",
            "whose statuses and marker to use; see below",
        ),
        field(
            "profile",
            Words(&["safe", "payments", "cache"]),
            "`safe`",
            "how much is at stake; see below",
        ),
        field(
            "mode",
            Words(&["local", "distributed"]),
            "follows `store.url`",
            "says which kind of store is meant, and is refused beside another kind: `local` \
             is embedded, `distributed` can be shared by several gateways",
        ),
        field(
            "header_name",
            Header,
            "`Idempotency-Key`",
            "the header that carries the key",
        ),
        field(
            "replayed_header",
            Header,
            "`X-Idempotent-Replayed`",
            "the header that marks a replay",
        ),
        field(
            "methods",
            List(Item::Methods),
            "`[POST, PUT, PATCH]`",
            "on which methods a key is honoured; never CONNECT or OPTIONS",
        ),
        field(
            "enforce",
            Words(&["true", "false", "all"]),
            "`false`",
            "`true`: POST and PATCH must carry a key, where they are among `methods`. `all`: \
             every listed method must",
        ),
        field(
            "path_readings",
            Words(&["common", "exact"]),
            "`common`",
            "`common`: a request whose path leads to a stricter route by any [common \
             reading](#which-rules-hold) is under that route's `idempotency`. `exact`, on either of the \
             two routes: it is not",
        ),
        field(
            "key_scope",
            Words(&["per_client", "global"]),
            "`per_client` with `auth`, else `global`",
            "whose keys share a namespace; `per_client` without `auth` is an error",
        ),
        field(
            "key_per_route",
            Boolean,
            "`false`",
            "whether each route has a namespace of its own",
        ),
        field(
            "credential_headers",
            List(Item::Headers),
            "`[Authorization, X-Api-Key]`",
            "what tells callers apart in the scope `global` without `auth`; with `auth` it is \
             the client's id. Another caller with the same key gets 422",
        ),
        field(
            "credential_cookies",
            WordsOrList(&["auto"], Item::Cookies),
            "`auto`",
            "the cookies that tell callers apart where none of `credential_headers` is sent, by \
             their own values; `auto` is JSESSIONID, PHPSESSID, ASP.NET_SessionId, connect.sid, \
             sessionid, session and laravel_session, `[]` is none",
        ),
        field(
            "max_key_length",
            Number,
            "`256`",
            "in bytes after unwrapping; at most 1024",
        ),
        field("min_key_length", Number, "`1`", "in bytes after unwrapping"),
        field(
            "reject_sensitive_keys",
            Boolean,
            "`true`",
            "refuse keys that are e-mail addresses, card numbers, telephone numbers or \
             national identity numbers",
        ),
        field(
            "ttl",
            Duration,
            "`24h`",
            "how long an answer is kept, from completion",
        ),
        field(
            "tombstone_ttl",
            Duration,
            "`24h`",
            "how long an expired key is still recognised",
        ),
        field(
            "after_expiry",
            Words(&["new", "reject"]),
            "`new`",
            "what the same request meets in that time: a new generation, or 409",
        ),
        field(
            "max_request_body",
            Size,
            "`1MiB`",
            "the largest body of a request with a key",
        ),
        field(
            "max_body_size",
            Size,
            "`1MiB`",
            "the largest answer that is stored",
        ),
        field(
            "remember",
            Words(&["full", "head"]),
            "`full`",
            "`head` keeps of an answer its status, `Location`, `Content-Location` and `ETag` only, \
             for answers that must not be stored: a retry gets 409 \
             `idempotency_response_not_stored`; see [at rest](../guide/at-rest.md)",
        ),
        field(
            "on_in_flight",
            Words(&["wait", "reject", "accept"]),
            "`wait`",
            "what a retry meets while the first is running: wait, 409, or 202",
        ),
        field(
            "wait_timeout",
            Duration,
            "`30s`",
            "how long a retry waits, from its arrival; then 409",
        ),
        field(
            "on_5xx",
            Words(&["retry", "store", "unknown"]),
            "`retry`",
            "what 500, 501, 503 and 505 to 511 mean; see below",
        ),
        field(
            "release_statuses",
            List(Item::Statuses),
            "`[401, 407, 421, 425, 429]`",
            "statuses that leave nothing behind; 400 to 599",
        ),
        field(
            "on_store_error",
            Words(&["refuse", "bypass"]),
            "`refuse`",
            "while the store is away: 503, or pass through unprotected with \
             `Idempotency-Status: bypassed`. A record that is there and cannot be read, and a \
             key that is known to be running, are never bypassed",
        ),
        field(
            "lease",
            Duration,
            "`60s`",
            "how long an execution counts as alive without a sign of life; at least `1s`; \
             renewed every third of it",
        ),
        field(
            "timeout",
            Duration,
            "`30s`",
            "from dispatch to the end of the answer, for the client; then 504, and the key stays in \
             progress",
        ),
        field(
            "max_execution",
            Duration,
            "`15m`",
            "until then the answer is read and completes the key; then the key is unknown; not \
             shorter than `timeout`",
        ),
        field(
            "completion_grace",
            Duration,
            "`10s`",
            "how long a client waits for its answer to become durable; then 503",
        ),
        field(
            "error_format",
            Words(&["hybrid", "problem", "stripe"]),
            "`hybrid`",
            "the shape of [error bodies](errors.md#the-body)",
        ),
        field(
            "fingerprint",
            Section(&FINGERPRINT),
            "",
            "[how requests are compared](#fingerprint)",
        ),
        field(
            "host_aliases",
            List(Item::Texts),
            "none",
            "the same as `fingerprint.host_aliases`",
        ),
        field("limits", Section(&LIMITS), "", "[limits](#limits)"),
        field(
            "max_request_age",
            Duration,
            "none",
            "a request that is older may not bring a new key: 400 `request_too_old`; at least \
             `1s`",
        ),
        field(
            "request_time_header",
            Header,
            "`X-Request-Timestamp`",
            "when the request was made, in Unix seconds or RFC 3339",
        ),
        field(
            "reconcile",
            WordsOrSection(&["operator"], &super::RECONCILE),
            "",
            "how [unknown outcomes are looked into](#reconcile); `operator` says that a person does. \
             `payments` demands one of them",
        ),
        field(
            "shadow",
            Boolean,
            "`false`",
            "only [observe](../guide/shadow.md): nothing is refused, replayed or remembered, \
             and duplicates are executed",
        ),
    ],
};

pub(in crate::config) const FINGERPRINT: Schema = Schema {
    name: "`fingerprint`",
    fields: &[
        field(
            "mode",
            Words(&["json", "raw"]),
            "`json`",
            "`json`: JSON by its content, forms by their pairs, multipart by its parts, \
             anything else byte by byte. `raw`: always byte by byte",
        ),
        field(
            "fields",
            List(Item::Pointers),
            "all",
            "only these values of a JSON body count",
        ),
        field(
            "ignore",
            List(Item::Pointers),
            "none",
            "these values of a JSON body do not count",
        ),
        field(
            "headers",
            List(Item::Headers),
            "see below",
            "the headers that count; Content-Type without its parameters",
        ),
        field(
            "host",
            Boolean,
            "`true`",
            "whether the host counts: that of `Host`, `:authority` or an absolute target, in lower case, \
             without a trailing dot and a default port",
        ),
        field(
            "host_aliases",
            List(Item::Texts),
            "none",
            "names of one host, which count as equal; may stand beside `fingerprint`, too",
        ),
        field(
            "ignore_query",
            List(Item::Texts),
            "none",
            "parameters of the query that do not count, by their names",
        ),
    ],
};

pub(in crate::config) const LIMITS: Schema = Schema {
    name: "`limits`",
    fields: &[
        field(
            "new_keys_per_second",
            Number,
            "none; `payments` 1000; `safe` with `auth` 10000",
            "new keys a second; further ones get 429 `idempotency_rate_limited`",
        ),
        field(
            "burst",
            Number,
            "as `new_keys_per_second`; `payments` 2000; `safe` with `auth` 20000",
            "new keys at once",
        ),
        field(
            "live_keys",
            Number,
            "none; `payments` 10000; `safe` with `auth` 100000",
            "keys that are in progress; a new one beyond it gets 429 \
             `idempotency_key_quota`",
        ),
        field(
            "lookups_per_second",
            Number,
            "none; `payments` 100",
            "questions to `/.onlyonce/keys`, and uses of a key for another request; further \
             ones get 429",
        ),
        field(
            "waiters_per_key",
            Number,
            "`1000`",
            "requests that wait for one key; further ones get 409",
        ),
        field(
            "waiters",
            Number,
            "`10000`",
            "requests of one client that wait for any key; further ones get 409",
        ),
        field(
            "detached",
            Number,
            "`250`",
            "executions that run on after their client has gone or has been answered; beyond it \
             new keys get 429 `overloaded`. Counted for each connection without `auth`",
        ),
        field(
            "held_bytes",
            Size,
            "`256MiB`",
            "at the top level only: bytes that are held for all clients together, request bodies \
             and answers; beyond it requests get 503 `overloaded`",
        ),
    ],
};
