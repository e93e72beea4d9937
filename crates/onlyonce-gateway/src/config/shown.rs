//! The configuration that is in effect, for operators: the names of the file, every default filled in,
//! and no secret.

use std::{fmt::Debug, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue};
use onlyonce::reconcile::{Rule, Then};
use onlyonce_core::policy::{Enforce, KeyScope};
use serde_json::{Value, json};

use super::{
    AuthConfig, Backend, Broker, Config, CorsConfig, Endpoint, JwtKeys, Origins, OutboxConfig,
    ReconcileConfig, Route, TargetConfig, WayConfig, units::go_duration,
};

/// What stands for a secret.
pub(super) const MASKED: &str = "***";

/// `config` as JSON.
pub fn shown(config: &Config) -> Value {
    let (admin, store, workers) = (&config.admin, &config.store, &config.workers);
    json!({
        "listen": config.listen.to_string(),
        "tls": config.tls.as_ref().map(|tls| json!({ "cert": tls.cert, "key": tls.key })),
        "admin": {
            "listen": admin.listen.to_string(),
            "token_env": admin.token_env,
            "readonly_token_env": admin.readonly_token_env,
            "public_metrics": admin.public_metrics,
            "mask_keys": admin.mask_keys,
            "audit_retention": go_duration(admin.audit_retention),
        },
        "store": {
            "url": store.url.to_string(),
            "timeout": go_duration(store.timeout),
            "migrate": store.migrate,
            "create": store.create,
            "single_node": store.single_node,
            "encryption_key_env": store.encryption_key_env,
            "compression": word(store.compression),
            "plain_settle": store.plain_settle,
            "pooler": word(store.pooler),
            "cache": store.cache.as_ref().map(ToString::to_string),
            "allow_eviction": store.allow_eviction,
            "identity": store.identity,
            "spool_dir": store.spool_dir,
        },
        "auth": config.auth.as_ref().map(auth),
        "workers": {
            "sweep_every": go_duration(workers.sweep_every),
            "reap_every": go_duration(workers.reap_every),
            "reconcile_every": go_duration(workers.reconcile_every),
            "deliver_every": go_duration(workers.deliver_every),
        },
        "outbox": outbox(&config.outbox),
        "drain_timeout": go_duration(config.drain_timeout),
        "header_timeout": go_duration(config.header_timeout),
        "body_timeout": go_duration(config.body_timeout),
        "send_timeout": go_duration(config.send_timeout),
        "tunnel_idle": go_duration(config.tunnel_idle),
        "max_connections": config.max_connections,
        "max_header_size": config.max_header_bytes,
        "limits": { "held_bytes": config.held_bytes },
        "forwarded": {
            "headers": config.forwarded.headers.name(),
            "trust": config.forwarded.trust.iter().map(ToString::to_string).collect::<Vec<_>>(),
        },
        "request_id": config.request_id,
        "allow_scope_change": config.allow_scope_change,
        "routes": config.routes.iter().map(route).collect::<Vec<_>>(),
    })
}

fn outbox(outbox: &OutboxConfig) -> Value {
    json!({
        "keep_delivered": go_duration(outbox.keep_delivered),
        "targets": outbox.targets.iter().map(target).collect::<Vec<_>>(),
    })
}

fn target(target: &TargetConfig) -> Value {
    let rules = &target.rules;
    let mut shown = json!({
        "name": target.name,
        "dedups": rules.dedups,
        "key_ttl": go_duration(rules.key_ttl),
        "max_attempts": rules.max_attempts,
        "first_pause": go_duration(rules.first_pause),
        "longest_pause": go_duration(rules.longest_pause),
        "at_once": target.at_once,
        "timeout": go_duration(target.timeout),
    });
    let own = match &target.way {
        WayConfig::Http(http) => json!({
            "kind": "http",
            "url": address(&http.url),
            "ca_file": http.url.backend.tls.as_ref().and_then(|trust| trust.path()),
            "secret_env": http.secret_env,
            "headers": masked(&http.headers),
            "key_header": http.key_header.as_str(),
            "provider_id": http.provider_id.to_string(),
        }),
        WayConfig::Broker(broker) => match broker.broker {
            Broker::Nats => json!({ "subject": broker.place }),
            Broker::RabbitMq => json!({ "exchange": broker.exchange, "routing_key": broker.place }),
            Broker::Kafka => json!({ "topic": broker.place }),
        },
    };
    if let (Some(shown), Value::Object(own)) = (shown.as_object_mut(), own) {
        shown.extend(own);
    }
    if let WayConfig::Broker(broker) = &target.way {
        shown["kind"] = broker.broker.word().into();
        // It may hold a password.
        shown["url"] = MASKED.into();
    }
    shown
}

/// Headers by their names alone.
fn masked(headers: &HeaderMap) -> serde_json::Map<String, Value> {
    let names = headers.keys();
    names
        .map(|name| (name.to_string(), json!(MASKED)))
        .collect()
}

fn auth(auth: &AuthConfig) -> Value {
    let api_keys = auth.api_keys.iter();
    let api_keys = api_keys.map(|key| json!({ "client_id": key.client_id, "sha256": MASKED }));
    json!({
        "shared_client_ids": auth.shared_client_ids,
        "api_keys": api_keys.collect::<Vec<_>>(),
        "jwt": auth.jwt.as_ref().map(|jwt| {
            let (name, source) = match &jwt.keys {
                JwtKeys::File(path) => ("jwks_file", json!(path)),
                JwtKeys::Url(endpoint) => ("jwks_url", address(endpoint)),
                JwtKeys::Secret(name) => ("secret_env", json!(name)),
                JwtKeys::PublicKey(path) => ("public_key_file", json!(path)),
            };
            let mut shown = json!({
                "issuer": jwt.issuer,
                "audience": jwt.audience,
                "client_id_claim": jwt.client_id_claim,
                "leeway": go_duration(jwt.leeway),
                "refresh": go_duration(jwt.refresh),
            });
            shown[name] = source;
            shown
        }),
        "trusted_header": auth.trusted_header.as_ref().map(|trusted| json!({
            "name": trusted.name.as_str(),
            "from": trusted.from.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })),
        "external": auth.external.as_ref().map(|external| json!({
            "url": address(&external.url),
            "client_id_header": external.client_id_header.as_str(),
            "timeout": go_duration(external.timeout),
        })),
    })
}

fn route(route: &Route) -> Value {
    let methods = route.methods.as_ref();
    let backends = route.backends.iter();
    let backends = backends.map(|one| {
        json!({
            "url": url(one, &one.prefix),
            "weight": one.weight,
            "ca_file": one.tls.as_ref().and_then(|trust| trust.path()),
            "http2": one.http2,
        })
    });
    json!({
        "id": route.id,
        "path": route.path,
        "methods": methods.map(|methods| {
            methods.iter().map(http::Method::as_str).collect::<Vec<_>>()
        }),
        "backends": backends.collect::<Vec<_>>(),
        "upstream_idle": go_duration(route.upstream_idle),
        "upstream_reuse": route.upstream_reuse,
        "connect_timeout": go_duration(route.connect_timeout),
        "first_byte_timeout": route.first_byte_timeout.map(go_duration),
        "auth": if route.auth_optional { "optional" } else { "required" },
        "cors": route.cors.as_ref().map(|cors| cors_of(cors, route)),
        "idempotency": idempotency(route),
    })
}

fn cors_of(cors: &CorsConfig, route: &Route) -> Value {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    json!({
        "origins": match &cors.origins {
            Origins::Any => vec!["*".to_owned()],
            Origins::These(origins) => origins.iter().map(text).collect(),
        },
        "expose_headers": cors.exposed(&route.policy).iter().map(HeaderName::as_str).collect::<Vec<_>>(),
        "credentials": cors.credentials,
    })
}

fn idempotency(route: &Route) -> Value {
    let (policy, mode) = (&route.policy, route.mode_name);
    let names = |names: &[HeaderName]| names.iter().map(HeaderName::to_string).collect::<Vec<_>>();
    let recipe = &policy.recipe;
    let (rate, burst) = policy.new_keys.unzip();
    json!({
        "enabled": policy.enabled,
        "dialect": word(policy.dialect),
        "profile": word(policy.profile),
        "mode": mode,
        "header_name": policy.header_name.as_str(),
        "replayed_header": policy.replayed_header.as_str(),
        "methods": policy.methods.iter().map(http::Method::as_str).collect::<Vec<_>>(),
        "enforce": match policy.enforce {
            Enforce::Off => json!(false),
            Enforce::On => json!(true),
            Enforce::All => json!("all"),
        },
        "path_readings": word(policy.path_readings),
        "key_scope": word(policy.key_scope.unwrap_or(KeyScope::Global)),
        "key_per_route": policy.key_per_route,
        "credential_headers": names(&policy.credential_headers),
        "credential_cookies": policy.credential_cookies,
        "max_key_length": policy.key_rules.max_length,
        "min_key_length": policy.key_rules.min_length,
        "reject_sensitive_keys": policy.key_rules.reject_sensitive,
        "ttl": go_duration(policy.ttl),
        "tombstone_ttl": go_duration(policy.tombstone_ttl),
        "after_expiry": word(policy.after_expiry),
        "max_request_body": policy.max_request_body,
        "max_body_size": policy.max_body_size,
        "remember": word(policy.remember),
        "on_in_flight": word(policy.on_in_flight),
        "wait_timeout": go_duration(policy.wait_timeout),
        "on_5xx": word(policy.on_5xx),
        "release_statuses": policy.release_statuses.iter().map(|one| one.as_u16()).collect::<Vec<_>>(),
        "on_store_error": word(policy.on_store_error),
        "lease": go_duration(policy.lease),
        "timeout": go_duration(policy.timeout),
        "max_execution": go_duration(policy.max_execution),
        "completion_grace": go_duration(policy.completion_grace),
        "error_format": word(policy.error_format),
        "fingerprint": {
            "mode": word(recipe.mode()),
            "fields": recipe.fields().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "ignore": recipe.ignore().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "headers": recipe.headers(),
            "host": recipe.host(),
            "host_aliases": recipe.host_aliases(),
            "ignore_query": recipe.ignore_query(),
        },
        "limits": {
            "new_keys_per_second": rate,
            "burst": burst,
            "live_keys": policy.live_keys,
            "lookups_per_second": policy.lookups_per_second,
            "waiters_per_key": policy.waiters_per_key,
            "waiters": policy.waiters,
            "detached": policy.detached,
        },
        "max_request_age": policy.max_request_age.map(duration),
        "request_time_header": policy.request_time_header.as_str(),
        "shadow": policy.shadow,
        "reconcile": route.reconcile.as_deref().map_or_else(|| json!("operator"), reconcile),
    })
}

fn reconcile(config: &ReconcileConfig) -> Value {
    let policy = &config.policy;
    json!({
        "query": config.query.as_ref().map(|query| json!({
            "url": query.shown_url,
            "ca_file": query.trust.path(),
            "headers": masked(&query.headers),
            "timeout": go_duration(query.timeout),
        })),
        "outcomes": config.outcomes.iter().map(outcome).collect::<Vec<_>>(),
        "upstream_max_execution": policy.upstream_max_execution.map(duration),
        "negative_gap": go_duration(policy.negative_gap),
        "after": go_duration(policy.after),
        "attempts": policy.attempts,
        "webhook": config.webhook.as_ref().map(|webhook| json!({
            "scheme": word(webhook.scheme),
            "secret_env": webhook.secret_env,
            "key": webhook.key.to_string(),
            "client": webhook.client.as_ref().map(ToString::to_string),
            "at": webhook.at.as_ref().map(ToString::to_string),
            "outcomes": webhook.outcomes.iter().map(outcome).collect::<Vec<_>>(),
            "tolerance": go_duration(webhook.tolerance),
        })),
        "provider_keys_unique": config.provider_keys_unique,
    })
}

fn outcome(rule: &Rule) -> Value {
    let when = &rule.when;
    let mut shown = json!({ "when": {
        "status": when.status.iter().map(|status| status.as_u16()).collect::<Vec<_>>(),
        "pointer": when.pointer.as_ref().map(ToString::to_string),
        "in": when.one_of,
        "empty": when.empty.as_ref().map(ToString::to_string),
        "absent": when.absent.as_ref().map(ToString::to_string),
    }});
    match &rule.then {
        Then::NotExecuted => shown["not_executed"] = true.into(),
        Then::Pending => shown["pending"] = true.into(),
        Then::Complete { status, body } => {
            shown["complete"] = json!({
                "status": status.as_u16(),
                "body": body.as_ref().map(ToString::to_string),
            });
        }
    }
    shown
}

fn duration(duration: Duration) -> String {
    go_duration(duration)
}

/// `PerClient` is `per_client` in a file.
pub(super) fn word(value: impl Debug) -> String {
    let mut word = String::new();
    for letter in format!("{value:?}").chars() {
        if letter.is_ascii_uppercase() && !word.is_empty() {
            word.push('_');
        }
        word.push(letter.to_ascii_lowercase());
    }
    word
}

/// A query may hold a credential.
fn address(endpoint: &Endpoint) -> Value {
    let path = endpoint.target.split('?').next().unwrap_or_default();
    let query = if endpoint.target.contains('?') {
        format!("?{MASKED}")
    } else {
        String::new()
    };
    json!(format!("{}{query}", url(&endpoint.backend, path)))
}

fn url(backend: &Backend, path: &str) -> String {
    let (scheme, host, port) = (backend.scheme(), &backend.host, backend.port);
    match host.contains(':') {
        true => format!("{scheme}://[{host}]:{port}{path}"),
        false => format!("{scheme}://{host}:{port}{path}"),
    }
}
