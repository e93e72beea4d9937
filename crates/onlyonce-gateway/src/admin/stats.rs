//! Counters: `GET /idempotency` for people, `GET /metrics` for Prometheus.

use axum::{Json, extract::State, response::IntoResponse};
use http::header;
use onlyonce::{
    Engine,
    policy::{Enforce, KeyScope},
    shadow::Observations,
    stats::{Amount, Event},
};
use onlyonce_core::MessageState;
use serde_json::{Map, Value, json};

use super::{Admin, shadow};
use crate::{config::units::go_duration, edge::Lane};

/// `GET /idempotency`.
pub(super) async fn routes(State(admin): State<Admin>) -> Json<Value> {
    let edge = admin.0.current.edge();
    let routes: Map<String, Value> = edge
        .lanes
        .iter()
        .map(|lane| (lane.route.id.clone(), route(lane)))
        .collect();
    Json(Value::Object(routes))
}

fn route(lane: &Lane) -> Value {
    let policy = lane.layer.policy();
    let total = |event: Event| lane.layer.stats().total(event);
    let misses = total(Event::Created) + total(Event::Retried) + total(Event::ExecutedAfterExpiry);
    json!({
        "header_name": header_case(policy.header_name.as_str()),
        "ttl": go_duration(policy.ttl),
        "enforce": policy.enforce != Enforce::Off,
        "key_scope": match lane.route.edge.key_scope {
            Some(KeyScope::PerClient) => "per_client",
            Some(KeyScope::Global) | None => "global",
        },
        "mode": lane.route.mode_name,
        "total_requests": total(Event::Request),
        "cache_hits": total(Event::Replayed),
        "cache_misses": misses,
        "in_flight_waits": total(Event::Waited),
        "enforced": total(Event::Enforced),
        "invalid_key": total(Event::InvalidKey),
        "store_errors": total(Event::StoreError),
        "responses_stored": total(Event::Stored),
        "enabled": policy.enabled,
        "key_reused": total(Event::Misused),
        "caller_differs": total(Event::CallerDiffers),
        "in_progress": total(Event::InProgress),
        "refused_in_progress": total(Event::SentAway),
        "outcome_unknown": total(Event::Unknown),
        "became_unknown": total(Event::BecameUnknown),
        "executed_again": total(Event::Retried),
        "executed_after_expiry": total(Event::ExecutedAfterExpiry),
        "expired": total(Event::Expired),
        "response_not_stored": total(Event::NotStored),
        "request_too_large": total(Event::TooLarge),
        "grpc_unsupported": total(Event::GrpcUnsupported),
        "unauthenticated": total(Event::Unauthenticated),
        "upstream_not_reached": total(Event::NotSent),
        "request_incomplete": total(Event::Incomplete),
        "bypassed": total(Event::Bypassed),
        "rate_limited": total(Event::RateLimited),
        "key_quota": total(Event::KeyQuota),
        "overloaded": total(Event::Overloaded),
        "request_too_old": total(Event::TooOld),
        "history_lost": total(Event::HistoryLost),
        "authentication_unavailable": total(Event::AuthenticationUnavailable),
        "shadow": lane.layer.observations().map(observed),
    })
}

/// The observations of shadow mode since startup: a count for each word, and the latest requests worth
/// looking into. `GET /shadow` has the last week.
fn observed(observations: &Observations) -> Value {
    json!({
        "would": shadow::words(|would| observations.total(would)),
        "samples": shadow::samples(observations),
    })
}

/// A header's name in its usual capitalisation.
fn header_case(name: &str) -> String {
    let capital = |word: &str| {
        let mut letters = word.chars();
        letters.next().map_or_else(String::new, |first| {
            first.to_ascii_uppercase().to_string() + letters.as_str()
        })
    };
    name.split('-').map(capital).collect::<Vec<_>>().join("-")
}

/// `GET /metrics`.
pub(super) async fn metrics(State(admin): State<Admin>) -> impl IntoResponse {
    measure(&admin.0.engine).await;
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], admin.0.metrics.render())
}

/// Updates the gauges.
pub(crate) async fn measure(engine: &Engine) {
    if let Ok(counts) = engine.store().counts().await {
        for (state, count) in counts {
            Amount::Keys(state).set(count);
        }
    }
    if let Some(outbox) = engine.outbox()
        && let Ok(depth) = outbox.depth().await
    {
        for state in MessageState::OPEN {
            let count = depth.get(&state).copied().unwrap_or(0);
            Amount::Messages(state).set(count);
            if state == MessageState::Pending {
                Amount::OutboxDepth.set(count);
            }
        }
    }
    // Sets the gauges of dead letters and of the oldest unknown key; on failure they keep their values.
    let _ = engine.census().await;
    Amount::Waiters.set(engine.waiting() as u64);
    Amount::HeldBytes.set(engine.body_budget().held() as u64);
    Amount::Detached.set(engine.detached() as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_look_like_peoples() {
        assert_eq!(header_case("idempotency-key"), "Idempotency-Key");
    }
}
