//! `POST /idempotency/keys/{id}/response`: the stored answer, shown on request and audited.
//!
//! Everything else shows only the answer's status and size. Showing it writes to the audit, so a read-only
//! token cannot do it.

use axum::{
    Json,
    body::Bytes,
    extract::{Path, State},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::StatusCode;
use onlyonce_core::{
    StoredResponse,
    record::{Actor, JournalEntry, JournalEvent, StoredBody},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Refused,
    keys::{Answer, Desk, read},
};

/// The most bytes of a body that are shown.
const MAX_SHOWN: usize = 256 << 10;
/// The longest reason, in bytes.
const MAX_REASON: usize = 1_000;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish {
    #[serde(default)]
    reason: Option<String>,
}

/// `POST /idempotency/keys/{id}/response`.
pub(super) async fn reveal(
    State(desk): State<Desk>,
    Path(id): Path<String>,
    body: Bytes,
) -> Answer {
    let wish: Wish = match body.is_empty() {
        true => Wish::default(),
        false => read(&body)?,
    };
    let reason = wish.reason.map(|reason| reason.trim().to_owned());
    let reason = reason.filter(|reason| !reason.is_empty());
    if reason
        .as_ref()
        .is_some_and(|reason| reason.len() > MAX_REASON)
    {
        let detail = format!("`reason` is at most {MAX_REASON} bytes long.");
        return Err(Refused::new(StatusCode::BAD_REQUEST, "bad_request", detail));
    }
    let record = desk.record(&id).await?;
    let Some(response) = record.response.as_deref() else {
        let detail = "This key has no stored answer.";
        return Err(Refused::new(StatusCode::NOT_FOUND, "not_found", detail));
    };
    let entry = JournalEntry {
        id: record.id,
        event: JournalEvent::ResponseShown,
        from: None,
        to: None,
        attempt: record.fence.0,
        actor: Actor::Operator,
        detail: reason,
    };
    // Audited first, so that nothing is shown without an entry.
    desk.engine().store().append(vec![entry]).await?;
    Ok(Json(shown(response)))
}

fn shown(response: &StoredResponse) -> Value {
    let mut headers: Map<String, Value> = Map::new();
    for name in response.headers.keys() {
        let values = response.headers.get_all(name).iter();
        let values: Vec<Value> = values
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into())
            .collect();
        headers.insert(name.as_str().to_owned(), values.into());
    }
    let (stored, bytes) = match &response.body {
        StoredBody::Full { bytes, .. } => (true, &bytes[..]),
        // Only the store layer sees packed bodies.
        StoredBody::NotStored | StoredBody::Packed { .. } => (false, &[][..]),
    };
    let truncated = bytes.len() > MAX_SHOWN;
    let mut value = json!({
        "status": response.status.as_u16(),
        "headers": headers,
        "stored": stored,
        "bytes": bytes.len(),
        "truncated": truncated,
    });
    let some = &bytes[..bytes.len().min(MAX_SHOWN)];
    let whole_text = std::str::from_utf8(some);
    match whole_text {
        Ok(text) => value["body"] = text.into(),
        // The cut may be inside a character.
        Err(error) if truncated && error.error_len().is_none() => {
            value["body"] = String::from_utf8_lossy(&some[..error.valid_up_to()]).into();
        }
        Err(_) => value["body_base64"] = STANDARD.encode(some).into(),
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_text_and_the_rest_is_base64() {
        let shown_of = |bytes: Vec<u8>| shown(&StoredResponse::plain(StatusCode::OK, bytes));
        assert_eq!(shown_of(b"<b>".to_vec())["body"], "<b>");
        assert_eq!(shown_of(vec![0xff, 0])["body_base64"], "/wA=");
        let long = "\u{e9}".repeat(MAX_SHOWN).into_bytes();
        let long = shown_of([b"a".to_vec(), long].concat());
        assert_eq!(long["truncated"], true);
        assert!(
            long["body"]
                .as_str()
                .is_some_and(|body| body.len() < MAX_SHOWN)
        );
    }
}
