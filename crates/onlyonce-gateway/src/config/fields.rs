//! The names that a configuration may contain, section by section: all of them, whether this
//! version acts on them or, by `unsupported.rs`, refuses them.

/// A section: how messages name it, and its fields.
#[derive(Debug)]
pub(super) struct Schema {
    pub(super) name: &'static str,
    pub(super) fields: &'static [&'static str],
}

pub(super) const TOP: Schema = Schema {
    name: "the top level",
    fields: &[
        "listen",
        "tls",
        "admin",
        "store",
        "redis",
        "auth",
        "idempotency",
        "limits",
        "workers",
        "routes",
        "upstream_idle",
        "connect_timeout",
        "drain_timeout",
        "header_timeout",
        "body_timeout",
        "send_timeout",
        "allow_scope_change",
    ],
};

pub(super) const ADMIN: Schema = Schema {
    name: "`admin`",
    fields: &[
        "listen",
        "token_env",
        "readonly_token_env",
        "public_metrics",
        "mask_keys",
        "audit_retention",
    ],
};

pub(super) const STORE: Schema = Schema {
    name: "`store`",
    fields: &[
        "url",
        "timeout",
        "migrate",
        "cache",
        "encryption_key_env",
        "plain_settle",
        "pooler",
        "spool_dir",
    ],
};

pub(super) const AUTH: Schema = Schema {
    name: "`auth`",
    fields: &["api_keys", "jwt", "trusted_header", "external"],
};

pub(super) const API_KEY: Schema = Schema {
    name: "an API key",
    fields: &["client_id", "sha256"],
};

pub(super) const JWT: Schema = Schema {
    name: "`jwt`",
    fields: &[
        "jwks_file",
        "jwks_url",
        "secret_env",
        "public_key_file",
        "issuer",
        "audience",
        "client_id_claim",
        "leeway",
        "refresh",
    ],
};

pub(super) const TRUSTED_HEADER: Schema = Schema {
    name: "`trusted_header`",
    fields: &["name", "from"],
};

pub(super) const EXTERNAL: Schema = Schema {
    name: "`external`",
    fields: &["url", "client_id_header", "timeout"],
};

pub(super) const WORKERS: Schema = Schema {
    name: "`workers`",
    fields: &[
        "sweep_every",
        "reap_every",
        "reconcile_every",
        "deliver_every",
    ],
};

pub(super) const ROUTE: Schema = Schema {
    name: "a route",
    fields: &[
        "id",
        "path",
        "methods",
        "backends",
        "timeout",
        "max_execution",
        "upstream_idle",
        "connect_timeout",
        "limits",
        "auth",
        "shadow",
        "idempotency",
    ],
};

pub(super) const BACKEND: Schema = Schema {
    name: "a backend",
    fields: &["url", "weight"],
};

pub(super) const IDEMPOTENCY: Schema = Schema {
    name: "`idempotency`",
    fields: &[
        "enabled",
        "dialect",
        "profile",
        "mode",
        "header_name",
        "replayed_header",
        "methods",
        "enforce",
        "key_scope",
        "key_per_route",
        "credential_headers",
        "max_key_length",
        "min_key_length",
        "reject_sensitive_keys",
        "ttl",
        "tombstone_ttl",
        "after_expiry",
        "max_request_body",
        "max_body_size",
        "on_in_flight",
        "wait_timeout",
        "on_5xx",
        "release_statuses",
        "on_store_error",
        "lease",
        "timeout",
        "max_execution",
        "completion_grace",
        "error_format",
        "fingerprint",
        "limits",
        "max_request_age",
        "request_time_header",
        "reconcile",
        "shadow",
    ],
};

pub(super) const FINGERPRINT: Schema = Schema {
    name: "`fingerprint`",
    fields: &["mode", "fields", "ignore", "headers"],
};

pub(super) const LIMITS: Schema = Schema {
    name: "`limits`",
    fields: &[
        "new_keys_per_second",
        "burst",
        "live_keys",
        "lookups_per_second",
        "waiters_per_key",
        "waiters",
    ],
};

/// Every section, the likeliest home of a stray field first.
const ALL: [&Schema; 14] = [
    &IDEMPOTENCY,
    &ROUTE,
    &TOP,
    &STORE,
    &ADMIN,
    &LIMITS,
    &FINGERPRINT,
    &WORKERS,
    &BACKEND,
    &AUTH,
    &JWT,
    &TRUSTED_HEADER,
    &EXTERNAL,
    &API_KEY,
];

/// The section that `field` belongs to.
pub(super) fn home_of(field: &str) -> Option<&'static str> {
    ALL.iter()
        .find(|schema| schema.fields.contains(&field))
        .map(|schema| schema.name)
}
