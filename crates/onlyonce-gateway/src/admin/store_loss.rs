//! `POST /store/accept-loss`: an operator accepts that the store has lost keys.

use axum::{Json, Router, body::Bytes, extract::State, routing::post};
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::{
    Refused,
    keys::{Answer, Desk, bad, printable, read},
};

pub(super) fn routes(router: Router<Desk>) -> Router<Desk> {
    router.route("/store/accept-loss", post(accept))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Acceptance {
    reason: String,
}

async fn accept(State(desk): State<Desk>, body: Bytes) -> Answer {
    let Acceptance { reason } = read(&body)?;
    let reason = printable(reason.trim())?;
    if reason.is_empty() {
        return Err(bad("`reason` is mandatory. Nothing was changed."));
    }
    let engine = desk.engine();
    engine.look_at_store().await?;
    if engine.history().lost_since().is_none() {
        let detail = "The store is not known to have lost keys that nobody has accepted. Nothing was changed.";
        return Err(Refused::new(StatusCode::CONFLICT, "state_conflict", detail));
    }
    engine.accept_loss(reason).await?;
    Ok(Json(json!({ "accepted": true })))
}
