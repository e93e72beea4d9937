//! Everything about keys: options of a route, or of all routes.
//!
//! Deliberately absent: the values of defaults, dialects and profiles. [`Policy::resolve`] lays
//! those beneath; a test compares the defaults of these tables with it.
//!
//! [`Policy::resolve`]: onlyonce_core::policy::Policy::resolve

use std::{ops::RangeInclusive, time::Duration};

use onlyonce_core::{
    fingerprint::BodyMode,
    policy::{
        AfterExpiry, Dialect, Enforce, ErrorFormat, FingerprintOptions, KeyScope, On5xx,
        OnInFlight, OnStoreError, Options, PathReadings, Profile, Remember,
    },
};

use super::{ANY, RECONCILE, SOME};
use super::{Item, Kind::*};
use crate::config::{
    reconcile,
    setting::Word,
    units::{MAX_DURATION, MAX_SIZE},
};

/// The length of a key, in bytes.
const KEY_LENGTH: RangeInclusive<u64> = 1..=1_024;
/// Times of requests are in seconds.
const AGE: RangeInclusive<Duration> = Duration::from_secs(1)..=MAX_DURATION;
/// Long enough to be renewed three times before it lapses.
const LEASE: RangeInclusive<Duration> = Duration::from_secs(1)..=MAX_DURATION;
/// Any size that can be written.
const ANY_SIZE: RangeInclusive<u64> = 0..=MAX_SIZE;
/// Events a second.
const RATE: RangeInclusive<u64> = 1..=1_000_000;
const LIVE_KEYS: RangeInclusive<u64> = 1..=100_000_000;
const WAITERS: RangeInclusive<u64> = 0..=1_000_000;
const DETACHED: RangeInclusive<u64> = 1..=1_000_000;
/// Bytes that are held for clients: fewer would refuse the bodies that are allowed.
const HELD_BYTES: RangeInclusive<u64> = (1 << 20)..=(1 << 40);

options! {
    /// What holds for keys.
    OptionTable: IDEMPOTENCY = "`idempotency`" of Options, shown by route {
        enabled = Boolean, "false", "whether keys are looked at; `--upstream` switches it on";
        dialect = Words(Dialect::NAMES), "ietf", "whose statuses and marker to use; see below";
        profile = Words(Profile::NAMES), "safe", "how much is at stake; see below";
        mode = Words(&["local", "distributed"]), ("follows `store.url`"),
            "says which kind of store is meant, and is refused beside another kind: `local` is \
             embedded, `distributed` can be shared by several gateways" [apart] => route.mode_name;
        header_name = Header, "Idempotency-Key", "the header that carries the key" [scope];
        replayed_header = Header, "X-Idempotent-Replayed", "the header that marks a replay";
        methods = List(Item::KeyedMethods), "[POST, PUT, PATCH]",
            "on which methods a key is honoured; never CONNECT or OPTIONS";
        enforce = Words(Enforce::NAMES), "false",
            "`true`: POST and PATCH must carry a key, where they are among `methods`. `all`: \
             every listed method must";
        path_readings = Words(PathReadings::NAMES), "common",
            "`common`: a request whose path leads to a stricter route by any [common \
             reading](#which-rules-hold) is under that route's `idempotency`. `exact`, on either \
             of the two routes: it is not" => route.edge.path_readings;
        key_scope = Words(KeyScope::NAMES), ("`per_client` with `auth`, else `global`"),
            "whose keys share a namespace; `per_client` without `auth` is an error"
            [scope] => route.edge.key_scope.unwrap_or(KeyScope::Global);
        key_per_route = Boolean, "false", "whether each route has a namespace of its own"
            [scope] => route.edge.key_per_route;
        credential_headers = List(Item::Headers), "[Authorization, X-Api-Key]",
            "what tells callers apart in the scope `global` without `auth`; with `auth` it is the \
             client's id. Another caller with the same key gets 422"
            [callers] => route.edge.credential_headers;
        credential_cookies = WordsOrList(&["auto"], Item::Cookies), "auto",
            "the cookies that tell callers apart where none of `credential_headers` is sent, by \
             their own values; `auto` is JSESSIONID, PHPSESSID, ASP.NET_SessionId, connect.sid, \
             sessionid, session and laravel_session, `[]` is none"
            [apart, callers] => route.edge.credential_cookies;
        max_key_length = Number(KEY_LENGTH), "256",
            "in bytes after unwrapping; at most 1024" => route.policy.key_rules.max_length;
        min_key_length = Number(KEY_LENGTH), "1",
            "in bytes after unwrapping" => route.policy.key_rules.min_length;
        reject_sensitive_keys = Boolean, "true",
            "refuse keys that are e-mail addresses, card numbers, telephone numbers or national \
             identity numbers" => route.policy.key_rules.reject_sensitive;
        ttl = Duration(SOME), "24h", "how long an answer is kept, from completion";
        tombstone_ttl = Duration(SOME), "24h", "how long an expired key is still recognised";
        after_expiry = Words(AfterExpiry::NAMES), "new",
            "what the same request meets in that time: a new generation, or 409";
        max_request_body = Size(ANY_SIZE), "1MiB", "the largest body of a request with a key";
        max_body_size = Size(ANY_SIZE), "1MiB", "the largest answer that is stored";
        remember = Words(Remember::NAMES), "full",
            "`head` keeps of an answer its status, `Location`, `Content-Location` and `ETag` \
             only, for answers that must not be stored: a retry gets 409 \
             `idempotency_response_not_stored`; see [at rest](../guide/at-rest.md)";
        on_in_flight = Words(OnInFlight::NAMES), "wait",
            "what a retry meets while the first is running: wait, 409, or 202";
        wait_timeout = Duration(ANY), "30s", "how long a retry waits, from its arrival; then 409";
        on_5xx = Words(On5xx::NAMES), "retry", "what 500, 501, 503 and 505 to 511 mean; see below";
        release_statuses = List(Item::Statuses), "[401, 407, 421, 425, 429]",
            "statuses that leave nothing behind; 400 to 599";
        on_store_error = Words(OnStoreError::NAMES), "refuse",
            "while the store is away: 503, or pass through unprotected with `Idempotency-Status: \
             bypassed`. A record that is there and cannot be read, and a key that is known to be \
             running, are never bypassed";
        lease = Duration(LEASE), "60s",
            "how long an execution counts as alive without a sign of life; at least `1s`; renewed \
             every third of it";
        timeout = Duration(SOME), "30s",
            "from dispatch to the end of the answer, for the client; then 504, and the key stays \
             in progress";
        max_execution = Duration(SOME), "15m",
            "until then the answer is read and completes the key; then the key is unknown; not \
             shorter than `timeout`";
        completion_grace = Duration(ANY), "10s",
            "how long a client waits for its answer to become durable; then 503";
        error_format = Words(ErrorFormat::NAMES), "hybrid",
            "the shape of [error bodies](errors.md#the-body)";
        fingerprint = Section(&FINGERPRINT), (""),
            "[how requests are compared](#fingerprint)" [apart] => FingerprintTable::view(route);
        host_aliases = List(Item::Texts), ("none"),
            "the same as `fingerprint.host_aliases`" [apart];
        ignore_query = List(Item::Texts), ("none"),
            "the same as `fingerprint.ignore_query`" [apart];
        limits = Section(&LIMITS), (""), "[limits](#limits)" [apart] => LimitTable::view(route);
        max_request_age = Duration(AGE), ("none"),
            "a request that is older may not bring a new key: 400 `request_too_old`; at least \
             `1s`";
        request_time_header = Header, "X-Request-Timestamp",
            "when the request was made, in Unix seconds or RFC 3339";
        reconcile = WordsOrSection(&["operator"], &RECONCILE), (""),
            "how [unknown outcomes are looked into](#reconcile); `operator` says that a person \
             does. `payments` demands one of them" [apart] => reconcile::view(route);
        shadow = Boolean, "false",
            "only [observe](../guide/shadow.md): nothing is refused, replayed or remembered, and \
             duplicates are executed";
    }
}

options! {
    /// How requests are compared.
    FingerprintTable: FINGERPRINT = "`fingerprint`" of FingerprintOptions, shown by route {
        mode = Words(BodyMode::NAMES), "json",
            "`json`: JSON by its content, forms by their pairs, multipart by its parts, anything \
             else byte by byte. `raw`: always byte by byte" => route.policy.recipe.mode();
        fields = List(Item::Pointers), ("all"),
            "only these values of a JSON body count" => route.policy.recipe.fields();
        ignore = List(Item::Pointers), ("none"),
            "these values of a JSON body do not count" => route.policy.recipe.ignore();
        headers = List(Item::Headers), ("see below"),
            "the headers that count; Content-Type without its parameters"
            => route.policy.recipe.headers();
        host = Boolean, "true",
            "whether the host counts: that of `Host`, `:authority` or an absolute target, in \
             lower case, without a trailing dot and a default port" => route.policy.recipe.host();
        host_aliases = List(Item::Texts), ("none"),
            "names of one host, which count as equal; may stand beside `fingerprint`, too"
            => route.policy.recipe.host_aliases();
        ignore_query = List(Item::Texts), ("none"),
            "parameters of the query that do not count, by their names; may stand beside \
             `fingerprint`, too"
            => route.policy.recipe.ignore_query();
    }
}

options! {
    /// What one client may take.
    LimitTable: LIMITS = "`limits`" of Options, shown by route {
        new_keys_per_second = Number(RATE), ("none; `payments` 1000; `safe` with `auth` 10000"),
            "new keys a second; further ones get 429 `idempotency_rate_limited`"
            => route.policy.new_keys.map(|(rate, _)| rate);
        burst = Number(RATE),
            ("as `new_keys_per_second`; `payments` 2000; `safe` with `auth` 20000"),
            "new keys at once" => route.policy.new_keys.map(|(_, burst)| burst);
        live_keys = Number(LIVE_KEYS), ("none; `payments` 10000; `safe` with `auth` 100000"),
            "keys that are in progress; a new one beyond it gets 429 `idempotency_key_quota`";
        lookups_per_second = Number(RATE), ("none; `payments` 100"),
            "questions to `/.onlyonce/keys`, and uses of a key for another request; further ones \
             get 429";
        waiters_per_key = Number(WAITERS), "1000",
            "requests that wait for one key; further ones get 409";
        waiters = Number(WAITERS), "10000",
            "requests of one client that wait for any key; further ones get 409";
        detached = Number(DETACHED), "250",
            "executions that run on after their client has gone or has been answered; beyond it \
             new keys get 429 `overloaded`. Counted for each connection without `auth`";
        held_bytes = Size(HELD_BYTES), "256MiB",
            "at the top level only: bytes that are held for all clients together, request bodies \
             and answers; beyond it requests get 503 `overloaded`" [apart];
    }
}
