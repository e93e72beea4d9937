//! Every problem against the contract's table, in every dialect: status, code, type, hint, `Retry-After`,
//! `Idempotency-Status`.

use onlyonce_core::policy::{Dialect, Options};

use super::*;

/// What the contract says of a problem.
struct Row {
    problem: Problem,
    /// In the dialects `ietf`, `stripe` and `runway`.
    statuses: [u16; 3],
    code: &'static str,
    kind: &'static str,
    hint: Option<bool>,
    retry_after: bool,
    key: &'static str,
}

fn row(problem: Problem, status: u16, code: &'static str, kind: &'static str) -> Row {
    Row {
        problem,
        statuses: [status; 3],
        code,
        kind,
        hint: None,
        retry_after: false,
        key: "not-looked-up",
    }
}

impl Row {
    fn hint(self, hint: bool) -> Self {
        Self {
            hint: Some(hint),
            ..self
        }
    }

    /// To be tried again, and when.
    fn later(self) -> Self {
        Self {
            hint: Some(true),
            retry_after: true,
            ..self
        }
    }

    fn key(self, key: &'static str) -> Self {
        Self { key, ..self }
    }
}

const KEY: &str = "idempotency_error";
const REQUEST: &str = "invalid_request_error";
const API: &str = "api_error";

fn contract() -> Vec<Row> {
    let at = || "/.onlyonce/keys/k".to_owned();
    let not_stored = Problem::NotStored {
        original_status: StatusCode::CREATED,
        location: Some(HeaderValue::from_static("/payments/1")),
        broke_off: false,
    };
    let in_progress = "idempotency_key_in_progress";
    let unknown = "idempotency_outcome_unknown";
    let mut rows = vec![
        Row {
            statuses: [400, 400, 422],
            ..row(Problem::KeyMissing, 400, "idempotency_key_missing", KEY).hint(false)
        },
        row(
            Problem::KeyInvalid("why".to_owned()),
            400,
            "idempotency_key_invalid",
            KEY,
        )
        .hint(false),
        row(
            Problem::RequestTooLarge(1),
            413,
            "request_too_large",
            REQUEST,
        ),
        row(Problem::RequestTimeout, 408, "request_timeout", REQUEST),
        row(
            Problem::RequestIncomplete,
            400,
            "request_incomplete",
            REQUEST,
        ),
        row(
            Problem::RequestMalformed("why"),
            400,
            "request_malformed",
            REQUEST,
        ),
        row(
            Problem::HeadersTooLarge(1),
            431,
            "request_headers_too_large",
            REQUEST,
        ),
        row(Problem::InProgress, 409, in_progress, KEY)
            .later()
            .key("in_progress"),
        row(Problem::InProgressAt(at()), 202, in_progress, KEY)
            .later()
            .key("in_progress"),
        row(Problem::StillRunning, 504, in_progress, API)
            .later()
            .key("in_progress"),
        row(Problem::OutcomeUnknown(at()), 409, unknown, KEY)
            .hint(false)
            .key("unknown"),
        row(Problem::TimedOut, 504, unknown, API)
            .hint(false)
            .key("unknown"),
        row(Problem::ConnectionLost, 502, unknown, API)
            .hint(false)
            .key("unknown"),
        row(Problem::NotDurable, 503, unknown, API)
            .hint(false)
            .key("unknown"),
        row(not_stored, 409, "idempotency_response_not_stored", KEY)
            .hint(false)
            .key("completed"),
        row(
            Problem::StoreUnavailable,
            503,
            "idempotency_store_unavailable",
            API,
        )
        .later(),
        row(Problem::HistoryLost, 503, "idempotency_history_lost", API).later(),
        row(
            Problem::UpstreamNotReached,
            503,
            "upstream_not_reached",
            API,
        )
        .later()
        .key("failed_retryable"),
        row(Problem::KeyExpired, 409, "idempotency_key_expired", KEY)
            .hint(false)
            .key("expired"),
        row(
            Problem::RateLimited(7),
            429,
            "idempotency_rate_limited",
            REQUEST,
        )
        .later(),
        row(Problem::KeyQuota(7), 429, "idempotency_key_quota", REQUEST).later(),
        Row {
            retry_after: true,
            ..row(Problem::Overloaded, 503, "overloaded", API)
        },
        Row {
            retry_after: true,
            ..row(Problem::AnswerOverloaded, 503, "overloaded", KEY).key("completed")
        },
        row(Problem::TooManyDetached, 429, "overloaded", REQUEST).later(),
        row(Problem::RequestTooOld, 400, "request_too_old", REQUEST),
        row(Problem::UpstreamFailed, 502, "upstream_failed", API).key("bypassed"),
        row(Problem::UpstreamTimeout, 504, "upstream_timeout", API).key("bypassed"),
        row(
            Problem::Unauthenticated,
            401,
            "unauthenticated",
            "authentication_error",
        ),
        Row {
            retry_after: true,
            ..row(
                Problem::AuthenticationUnavailable,
                503,
                "authentication_unavailable",
                API,
            )
        },
        row(Problem::NoRoute, 404, "no_route", REQUEST),
        row(Problem::KeyNotFound, 404, "key_not_found", REQUEST),
    ];
    for state in State::ALL {
        for (problem, code) in [
            (Problem::KeyReused(state), "idempotency_key_reused"),
            (Problem::CallerDiffers(state), "idempotency_caller_differs"),
        ] {
            rows.push(Row {
                statuses: [422, 400, 422],
                ..row(problem, 422, code, KEY).hint(false).key(state.as_str())
            });
        }
    }
    rows
}

fn policies() -> [Policy; 3] {
    [Dialect::Ietf, Dialect::Stripe, Dialect::Runway].map(|dialect| {
        let options = Options {
            dialect: Some(dialect),
            ..Options::default()
        };
        Policy::resolve(&options, &Options::default())
    })
}

async fn body(response: Response<Body>) -> serde_json::Value {
    use http_body_util::BodyExt;
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&bytes).unwrap()
}

#[tokio::test]
async fn every_problem_says_what_the_contract_says() {
    let rows = contract();
    for code in Problem::CODES {
        let is_there = rows.iter().any(|row| row.code == code) || code == "grpc_unsupported";
        assert!(is_there, "{code} has no row");
    }
    for (dialect, policy) in policies().iter().enumerate() {
        for row in &rows {
            let response = row.problem.response(policy);
            let said = |name: &str| {
                let value = response.headers().get(name);
                value.map(|value| value.to_str().unwrap().to_owned())
            };
            let problem = &row.problem;
            assert_eq!(
                response.status().as_u16(),
                row.statuses[dialect],
                "{problem:?}"
            );
            let hint = row.hint.map(|hint| hint.to_string());
            assert_eq!(said("x-should-retry"), hint, "{problem:?}");
            assert_eq!(said("stripe-should-retry"), hint, "{problem:?}");
            assert_eq!(
                said("retry-after").is_some(),
                row.retry_after,
                "{problem:?}"
            );
            assert_eq!(
                said("idempotency-status").as_deref(),
                Some(row.key),
                "{problem:?}"
            );
            assert_eq!(
                said("cache-control").as_deref(),
                Some("no-store"),
                "{problem:?}"
            );
            let unkeyed = row.problem.unkeyed_response(policy);
            assert!(
                !unkeyed.headers().contains_key("idempotency-status"),
                "{problem:?}"
            );
            let body = body(response).await;
            assert_eq!(body["code"], row.code, "{problem:?}");
            assert_eq!(body["error"]["code"], row.code, "{problem:?}");
            assert_eq!(body["error"]["type"], row.kind, "{problem:?}");
        }
    }
}

#[tokio::test]
async fn an_unknown_outcome_says_where_to_ask_and_not_when_to_retry() {
    let at = "/.onlyonce/keys/k?route=r";
    let response = Problem::OutcomeUnknown(at.to_owned()).response(&Policy::default());
    assert_eq!(response.headers()[header::LOCATION], at);
    assert!(!response.headers().contains_key(header::RETRY_AFTER));
    let body = body(response).await;
    assert_eq!(body["ask_again_after_seconds"], ASK_AGAIN_AFTER_SECONDS);
    let detail = body["detail"].as_str().unwrap();
    assert!(detail.contains("Do not retry with a new key"), "{detail}");
}

#[test]
fn a_call_of_grpc_is_answered_in_its_own_form() {
    let response = Problem::GrpcUnsupported.response(&Policy::default());
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "application/grpc");
    assert_eq!(response.headers()["grpc-status"], "12");
    assert!(response.headers().contains_key("grpc-message"));
    assert!(http_body::Body::is_end_stream(response.body()));
    assert_eq!(grpc_message("50 % of \u{e4}"), "50 %25 of %C3%A4");
}
