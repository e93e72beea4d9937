//! The request and response bodies of the demo's API. No booking happens here.

use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::demo::ledger::{Order, Payment, Refund, Seen, Standing};

/// The largest amount of one payment, in the currency's smallest unit.
const MAX_AMOUNT: u64 = 1_000_000_000_000;
const MAX_CUSTOMER_BYTES: usize = 200;

#[derive(Deserialize)]
struct OrderBody {
    amount: u64,
    currency: String,
    customer: Option<String>,
}

#[derive(Deserialize)]
struct RefundBody {
    amount: Option<u64>,
}

/// A payment as clients see it: without the headers it came with.
#[derive(Serialize)]
pub(super) struct PaymentView {
    id: String,
    amount: u64,
    currency: String,
    customer: Option<String>,
    status: &'static str,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    refunded: Option<u64>,
}

/// A refund as clients see it.
#[derive(Serialize)]
pub(super) struct RefundView {
    id: String,
    payment: String,
    amount: u64,
    currency: String,
    status: &'static str,
    created_at: String,
}

/// An answer, padded if the fault `big` asks for it.
#[derive(Serialize)]
pub(super) struct Padded<T> {
    #[serde(flatten)]
    pub(super) answer: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) padding: Option<String>,
}

/// Parses an order whatever its Content-Type, so that a bare `curl -d` works too.
pub(super) fn parse_order(body: &[u8]) -> Result<Order, &'static str> {
    let shape = "Send JSON such as {\"amount\":1000,\"currency\":\"eur\",\"customer\":\"ada\"}; \
                 the amount is a whole number of cents.";
    let order: OrderBody = serde_json::from_slice(body).map_err(|_| shape)?;
    if !(1..=MAX_AMOUNT).contains(&order.amount) {
        return Err("The amount must be from 1 to 1000000000000.");
    }
    if order.currency.len() != 3 || !order.currency.bytes().all(|b| b.is_ascii_alphabetic()) {
        return Err("The currency must be three letters, such as eur.");
    }
    let customer_bytes = order.customer.as_ref().map_or(1, String::len);
    if !(1..=MAX_CUSTOMER_BYTES).contains(&customer_bytes) {
        return Err("The customer must be 1 to 200 bytes long.");
    }
    let currency = order.currency.to_ascii_lowercase();
    Ok(Order {
        amount: order.amount,
        currency,
        customer: order.customer,
    })
}

/// The amount to refund; without a body or an amount, the whole rest.
pub(super) fn parse_refund(body: &[u8]) -> Result<Option<u64>, &'static str> {
    if body.is_empty() {
        return Ok(None);
    }
    match serde_json::from_slice(body) {
        Ok(RefundBody { amount: None }) => Ok(None),
        Ok(RefundBody {
            amount: Some(amount),
        }) if amount > 0 => Ok(Some(amount)),
        _ => Err("Send no body, or JSON such as {\"amount\":500}."),
    }
}

/// The idempotency headers of a request, for the ledger.
pub(super) fn seen(headers: &HeaderMap) -> Seen {
    let text = |name| {
        let value: &HeaderValue = headers.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    Seen {
        idempotency_key: text("idempotency-key"),
        idempotency_attempt: text("idempotency-attempt"),
    }
}

impl From<Payment> for PaymentView {
    fn from(payment: Payment) -> Self {
        Standing {
            payment,
            refunded: 0,
        }
        .into()
    }
}

impl From<Standing> for PaymentView {
    fn from(Standing { payment, refunded }: Standing) -> Self {
        let status = match refunded {
            0 => "succeeded",
            part if part < payment.amount => "partially_refunded",
            _ => "refunded",
        };
        Self {
            id: payment.id,
            amount: payment.amount,
            currency: payment.currency,
            customer: payment.customer,
            status,
            created_at: payment.created_at,
            refunded: (refunded > 0).then_some(refunded),
        }
    }
}

impl From<Refund> for RefundView {
    fn from(refund: Refund) -> Self {
        Self {
            id: refund.id,
            payment: refund.payment,
            amount: refund.amount,
            currency: refund.currency,
            status: "succeeded",
            created_at: refund.created_at,
        }
    }
}

pub(super) fn problem(status: StatusCode, code: &str, message: &str) -> Response {
    let body = json!({ "error": { "code": code, "message": message } });
    (
        status,
        [(CONTENT_TYPE, "application/json")],
        body.to_string(),
    )
        .into_response()
}
