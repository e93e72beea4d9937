//! Messages: list, show, retry, discard. Their payload is the application's own and is not shown.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Path, Query, State},
    routing::{get, post},
};
use http::StatusCode;
use onlyonce::outbox::Retried;
use onlyonce_core::{Key, MessageId, MessageState};
use onlyonce_store::{
    Page,
    clock::StoreClock,
    outbox::{ListedMessage, MessageFilter, Outbox},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Refused,
    keys::{Answer, Desk, bad, cursor, limit, names_nothing, printable, read},
    view::View,
};
use crate::{clock::rfc3339, edge::Current};

/// The longest reason, in bytes.
const MAX_REASON: usize = 1_000;
/// A due message with an ordering key, unsent for longer (in milliseconds), waits for an earlier one.
const LATE_MS: i64 = 5_000;
/// The states in which a message waits for a person.
const WAITING: [MessageState; 2] = [MessageState::Dead, MessageState::Unknown];

/// The routes of messages.
pub(super) fn routes(router: Router<Desk>) -> Router<Desk> {
    router
        .route("/outbox", get(list))
        .route("/outbox/{message}", get(show))
        .route("/outbox/{message}/retry", post(retry))
        .route("/outbox/{message}/discard", post(discard))
}

/// `GET /outbox`.
async fn list(State(desk): State<Desk>, Query(query): Query<HashMap<String, String>>) -> Answer {
    let text = |name: &str| query.get(name).filter(|text| !text.is_empty());
    let states = text("state").map(|words| words.split(',').map(state).collect());
    let filter = MessageFilter {
        states: states.transpose()?.unwrap_or_default(),
        target: text("target").cloned(),
    };
    let (cursor, limit) = (cursor(&query)?, limit(&query)?);
    let outbox = desk.engine().outbox();
    let Some(outbox) = outbox.filter(|_| !names_nothing([filter.target.as_ref()])) else {
        return Ok(Json(json!({ "messages": [], "next": null })));
    };
    let page = outbox.list(&filter, cursor, limit).await?;
    let messages: Vec<Value> = page.items.iter().map(|one| desk.shown(one)).collect();
    let next = page.next.map(|next| next.to_string());
    Ok(Json(json!({ "messages": messages, "next": next })))
}

fn state(word: &str) -> Result<MessageState, Refused> {
    MessageState::from_word(word).ok_or_else(|| {
        let words = MessageState::ALL.map(MessageState::as_str);
        bad(format!("`state` is one of {}.", words.join(", ")))
    })
}

/// `GET /outbox/{message}`.
async fn show(State(desk): State<Desk>, Path(id): Path<String>) -> Answer {
    let (_, message) = desk.message(&id).await?;
    Ok(Json(desk.shown(&message)))
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    #[serde(default)]
    reason: Option<String>,
    /// For a retry only.
    #[serde(default)]
    force: bool,
}

impl Said {
    fn read(body: &[u8]) -> Result<Self, Refused> {
        let said: Self = match body.is_empty() {
            true => Self::default(),
            false => read(body)?,
        };
        printable(said.reason())?;
        if said.reason().len() > MAX_REASON {
            return Err(bad(format!(
                "`reason` is at most {MAX_REASON} bytes long. Nothing was changed."
            )));
        }
        Ok(said)
    }

    fn reason(&self) -> &str {
        self.reason.as_deref().unwrap_or_default().trim()
    }
}

/// `POST /outbox/{message}/retry`.
async fn retry(State(desk): State<Desk>, Path(id): Path<String>, body: Bytes) -> Answer {
    let said = Said::read(&body)?;
    let (_, message) = desk.message(&id).await?;
    let retried = desk
        .engine()
        .retry_message(message.id, said.reason(), said.force);
    match retried.await? {
        Retried::MayHaveArrived => {
            let detail = "The message may have arrived, and its receiver would not know its key again: sent \
                again, it may take effect twice. Look there first; `force` sends it all the same. Nothing was \
                changed.";
            Err(Refused::new(
                StatusCode::CONFLICT,
                "may_have_arrived",
                detail,
            ))
        }
        retried => desk.decided(&id, retried == Retried::Done).await,
    }
}

/// `POST /outbox/{message}/discard`.
async fn discard(State(desk): State<Desk>, Path(id): Path<String>, body: Bytes) -> Answer {
    let said = Said::read(&body)?;
    let (_, message) = desk.message(&id).await?;
    if said.force {
        return Err(bad("`force` is for a retry. Nothing was changed."));
    }
    if said.reason().is_empty() {
        return Err(bad("`reason` is mandatory. Nothing was changed."));
    }
    let done = desk.engine().discard_message(message.id, said.reason());
    desk.decided(&id, done.await?).await
}

fn no_message() -> Refused {
    let detail = "There is no such message.";
    Refused::new(StatusCode::NOT_FOUND, "not_found", detail)
}

impl Desk {
    async fn message(&self, id: &str) -> Result<(Arc<dyn Outbox>, ListedMessage), Refused> {
        let id: MessageId = id.parse().map_err(|_| no_message())?;
        let outbox = self.engine().outbox().ok_or_else(no_message)?;
        let found = outbox.message(id).await?;
        found
            .map(|message| (outbox, message))
            .ok_or_else(no_message)
    }

    fn shown(&self, message: &ListedMessage) -> Value {
        let mut shown = self.view().message(message);
        shown["waits_for"] = self.waits_for(message).into();
        shown
    }

    /// What a pending message waits for, as this gateway sees it; `None` in any other state.
    fn waits_for(&self, message: &ListedMessage) -> Option<&'static str> {
        if message.state != MessageState::Pending {
            return None;
        }
        let config = self.gateway().map(Current::config);
        let has_target = config.is_none_or(|config| {
            let mut targets = config.outbox.targets.iter();
            targets.any(|target| *target.name == *message.target)
        });
        let late = StoreClock::system()
            .now()
            .0
            .saturating_sub(message.due_at.0);
        Some(match (late < 0, message.attempts) {
            _ if !has_target => "no_such_target",
            (true, 0) => "due_time",
            (true, _) if message.last_error.is_some() => "next_attempt",
            (true, _) => "receiver",
            (false, _) if message.ordering_key.is_some() && late > LATE_MS => "earlier_message",
            (false, _) => "delivery",
        })
    }

    /// The message after a decision, or why the decision was refused.
    async fn decided(&self, id: &str, done: bool) -> Answer {
        let (_, message) = self.message(id).await?;
        if !done {
            let state = message.state.as_str();
            let detail = format!(
                "The message is {state}: only what is dead or unknown is decided upon. Nothing was changed."
            );
            return Err(Refused::new(StatusCode::CONFLICT, "state_conflict", detail));
        }
        Ok(Json(self.shown(&message)))
    }

    /// Messages that wait for a person, as dead letters.
    pub(super) async fn undelivered(
        &self,
        target: Option<String>,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Value>, Refused> {
        let Some(outbox) = self.engine().outbox() else {
            return Ok(Page {
                items: Vec::new(),
                next: None,
            });
        };
        let filter = MessageFilter {
            states: WAITING.to_vec(),
            target,
        };
        let page = outbox.list(&filter, cursor, limit).await?;
        Ok(Page {
            items: page.items.iter().map(letter).collect(),
            next: page.next,
        })
    }
}

fn letter(message: &ListedMessage) -> Value {
    json!({
        "id": message.id.to_string(),
        "kind": "outbox",
        "key_id": message.key.map(|key| key.to_string()),
        "route": message.target,
        "reason": message.last_error.as_deref().unwrap_or(message.state.as_str()),
        "attempts": message.attempts,
        "created_at": rfc3339(message.created_at),
    })
}

impl View<'_> {
    /// A message without its payload and headers.
    fn message(&self, message: &ListedMessage) -> Value {
        let downstream_key = match self.mask_keys {
            true => {
                let key = Key::from_stored(&message.downstream_key);
                self.engine.secret().key_tag(&key).to_string()
            }
            false => message.downstream_key.clone(),
        };
        let aggregate = message.aggregate.as_ref();
        json!({
            "id": message.id.to_string(),
            "state": message.state.as_str(),
            "target": message.target,
            "type": message.kind,
            "aggregate": aggregate.map(|(kind, id)| json!({ "type": kind, "id": id })),
            "ordering_key": message.ordering_key,
            "downstream_key": downstream_key,
            "key_id": message.key.map(|key| key.to_string()),
            "settles_key": message.settles,
            "attempts": message.attempts,
            "provider_id": message.provider_id,
            "last_error": message.last_error,
            "created_at": rfc3339(message.created_at),
            "due_at": rfc3339(message.due_at),
            "delivered_at": message.delivered_at.map(rfc3339),
            "bytes": message.bytes,
            "unclear_since": message.unclear_since.map(rfc3339),
        })
    }
}
