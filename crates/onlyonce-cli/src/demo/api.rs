//! The demo's payments API, which runs behind the gateway.
//!
//! It is naive on purpose. It never compares keys, so every request that reaches it moves money, and its
//! ledger shows how often. Deliberately absent: cancellation. A request that was read is executed even if its
//! caller is gone, as in most real APIs; a killed gateway leaves a booked payment behind, which is the point
//! of the demo.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

use super::fault::{After, Before, Dress, Faults};
use super::ledger::{Entry, Ledger, LedgerError, RefundOutcome};
use wire::{Padded, PaymentView, RefundView, parse_order, parse_refund, problem, seen};

#[cfg(test)]
mod tests;
mod wire;

/// How long to wait when no connection can be accepted, usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The API's inputs: its ledgers, and a clock.
#[derive(Clone)]
pub(super) struct Api {
    pub(super) ledger: Arc<Ledger>,
    /// The ledger of `/without`: the same API, for clients that bypass the gateway.
    pub(super) without: Arc<Ledger>,
    pub(super) now: fn() -> SystemTime,
}

/// Serves HTTP/1.1 on `listener` until the future is dropped.
pub(super) async fn serve(listener: TcpListener, api: Api) -> Infallible {
    let router = router(api);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(connection(stream, router.clone()))),
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Marks a response that must not be sent: the connection is closed instead.
#[derive(Clone, Copy)]
struct HangUp;

/// A service error, which makes hyper drop the connection without sending a byte.
#[derive(Debug, thiserror::Error)]
#[error("hung up, as the request asked")]
struct HungUp;

async fn connection(stream: TcpStream, router: Router) {
    // Answers are small and written at once: waiting for more data only delays them.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: Request<Incoming>| {
        // A separate task, because hyper drops the service's future with the connection.
        let answer = tokio::spawn(router.clone().oneshot(request));
        async move {
            let Ok(Ok(response)) = answer.await else {
                return Err(HungUp);
            };
            match response.extensions().get::<HangUp>() {
                None => Ok(response),
                Some(HangUp) => Err(HungUp),
            }
        }
    });
    // A connection fails whenever its client leaves early; that can be ignored here.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn router(api: Api) -> Router {
    let around = Api {
        ledger: api.without.clone(),
        ..api.clone()
    };
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .merge(bookings(api))
        .nest("/without", bookings(around))
        .fallback(async || problem(StatusCode::NOT_FOUND, "not_found", "There is no such path."))
}

/// The routes that use one ledger.
fn bookings(api: Api) -> Router {
    Router::new()
        .route("/payments", get(list_payments).post(pay))
        .route("/payments/{id}", get(show_payment))
        .route("/payments/{id}/refunds", post(refund))
        .route(
            "/ledger",
            get(async |State(api): State<Api>| Json(api.ledger.summary())),
        )
        .route("/ledger/count", get(count))
        .route("/ledger/entry", get(entry))
        .with_state(api)
}

async fn pay(State(api): State<Api>, headers: HeaderMap, body: Bytes) -> Response {
    faulty(&headers, async || {
        let order = match parse_order(&body) {
            Ok(order) => order,
            Err(detail) => return Err(problem(StatusCode::BAD_REQUEST, "invalid_payment", detail)),
        };
        let seen = seen(&headers);
        let paid = on_disk(&api, move |ledger, at| ledger.pay(order, seen, at)).await?;
        let location = format!("/payments/{}", paid.id);
        Ok((location, PaymentView::from(paid)))
    })
    .await
}

async fn refund(
    State(api): State<Api>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    faulty(&headers, async || {
        let amount = match parse_refund(&body) {
            Ok(amount) => amount,
            Err(detail) => return Err(problem(StatusCode::BAD_REQUEST, "invalid_refund", detail)),
        };
        let (id, seen) = (id.clone(), seen(&headers));
        match on_disk(&api, move |ledger, at| ledger.refund(&id, amount, seen, at)).await? {
            RefundOutcome::Booked(refund) => {
                let location = format!("/payments/{}", refund.payment);
                Ok((location, RefundView::from(refund)))
            }
            RefundOutcome::NoSuchPayment => Err(no_such_payment()),
            RefundOutcome::AlreadyRefunded => Err(problem(
                StatusCode::CONFLICT,
                "already_refunded",
                "All of this payment has been refunded.",
            )),
            RefundOutcome::MoreThanIsLeft { left } => Err(problem(
                StatusCode::BAD_REQUEST,
                "invalid_refund",
                &format!("Only {left} of this payment is left to refund."),
            )),
        }
    })
    .await
}

#[derive(Serialize)]
struct PaymentList {
    payments: Vec<PaymentView>,
}

async fn list_payments(State(api): State<Api>) -> Json<PaymentList> {
    let payments = api
        .ledger
        .latest_payments()
        .into_iter()
        .map(PaymentView::from)
        .collect();
    Json(PaymentList { payments })
}

async fn show_payment(State(api): State<Api>, Path(id): Path<String>) -> Response {
    match api.ledger.payment(&id) {
        Some(standing) => Json(PaymentView::from(standing)).into_response(),
        None => no_such_payment(),
    }
}

#[derive(Deserialize)]
struct CountQuery {
    key: Option<String>,
}

async fn count(State(api): State<Api>, Query(query): Query<CountQuery>) -> String {
    format!("{}\n", api.ledger.count(query.key.as_deref()))
}

/// `GET /ledger/entry?key=K`: the booking under a key, in the form of its original answer.
async fn entry(State(api): State<Api>, Query(query): Query<CountQuery>) -> Response {
    match api.ledger.of_key(query.key.as_deref().unwrap_or_default()) {
        Some(Entry::Payment(payment)) => Json(PaymentView::from(payment)).into_response(),
        Some(Entry::Refund(refund)) => Json(RefundView::from(refund)).into_response(),
        None => no_such_payment(),
    }
}

/// Runs a booking with the faults that its request asks for. `book` returns the location and the view of the
/// new booking, or the response that refuses it.
async fn faulty<T: Serialize>(
    headers: &HeaderMap,
    book: impl AsyncFnOnce() -> Result<(String, T), Response>,
) -> Response {
    let faults = match Faults::from_headers(headers) {
        Ok(faults) => faults,
        Err(unknown) => {
            return problem(
                StatusCode::BAD_REQUEST,
                "unknown_fault",
                &unknown.to_string(),
            );
        }
    };
    tokio::time::sleep(faults.slow_before).await;
    if let Some(before) = faults.before {
        return instead_of_booking(before);
    }
    let (location, answer) = match book().await {
        Ok(booked) => booked,
        Err(refused) => return refused,
    };
    tokio::time::sleep(faults.slow_after).await;
    match faults.after {
        Some(After::HangUp) => return hang_up(),
        Some(After::Fail) => return failed("The payment was booked; this answer hides it."),
        None => {}
    }
    let padding = faults.padding_bytes.map(|bytes| "x".repeat(bytes));
    let body = Padded { answer, padding };
    let answer = match faults.dressed {
        None => Json(body).into_response(),
        Some(dress) => dressed(dress, &body),
    };
    (StatusCode::CREATED, [(LOCATION, location)], answer).into_response()
}

/// The answer in a form that is harder to store than JSON with a length.
fn dressed<T: Serialize>(dress: Dress, answer: &T) -> Response {
    let json = serde_json::to_vec(answer).unwrap_or_default();
    match dress {
        Dress::Empty => Body::empty().into_response(),
        // The location distinguishes the answers; the body is every byte value.
        Dress::Binary => (
            [(CONTENT_TYPE, "application/octet-stream")],
            (0..=u8::MAX).collect::<Vec<u8>>(),
        )
            .into_response(),
        Dress::Chunked => {
            let halves: Vec<Result<Bytes, Infallible>> = json
                .chunks(json.len().div_ceil(2).max(1))
                .map(|half| Ok(Bytes::copy_from_slice(half)))
                .collect();
            let body = Body::from_stream(futures_util::stream::iter(halves));
            ([(CONTENT_TYPE, "application/json")], body).into_response()
        }
    }
}

fn instead_of_booking(before: Before) -> Response {
    match before {
        Before::Fail => failed("Nothing was booked."),
        Before::HangUp => hang_up(),
        Before::Status(status @ (StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)) => {
            status.into_response()
        }
        Before::Status(status) => {
            let answer = json!({ "demo_status": status.as_u16(), "booked": false });
            (status, Json(answer)).into_response()
        }
        Before::NotExecuted => {
            let detail = "Nothing was booked, and the header Idempotency-Outcome says so.";
            let mut response = problem(StatusCode::SERVICE_UNAVAILABLE, "not_executed", detail);
            let outcome = HeaderValue::from_static("not-executed");
            response
                .headers_mut()
                .insert("idempotency-outcome", outcome);
            response
        }
        Before::Decline => problem(
            StatusCode::PAYMENT_REQUIRED,
            "card_declined",
            "The card was declined.",
        ),
    }
}

/// Books on a blocking thread: the answer has to wait for the disk, other requests need not.
async fn on_disk<T: Send + 'static>(
    api: &Api,
    book: impl FnOnce(&Ledger, SystemTime) -> Result<T, LedgerError> + Send + 'static,
) -> Result<T, Response> {
    let (ledger, at) = (Arc::clone(&api.ledger), (api.now)());
    match tokio::task::spawn_blocking(move || book(&ledger, at)).await {
        Ok(Ok(booked)) => Ok(booked),
        Ok(Err(error)) => {
            eprintln!("demo-api: {error}: {:?}", std::error::Error::source(&error));
            Err(failed("The ledger could not be written."))
        }
        Err(_) => Err(failed("The booking was cut short.")),
    }
}

fn no_such_payment() -> Response {
    problem(
        StatusCode::NOT_FOUND,
        "no_such_payment",
        "There is no such payment.",
    )
}

fn failed(detail: &str) -> Response {
    problem(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
}

fn hang_up() -> Response {
    let mut response = Response::new(Body::empty());
    response.extensions_mut().insert(HangUp);
    response
}
