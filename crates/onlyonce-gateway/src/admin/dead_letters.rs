//! Dead letters: keys and messages that wait for a person, resolved singly or in bulk; and the probe that
//! proves that a provider can be queried.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Path, Query, State},
    routing::{get, post},
};
use http::StatusCode;
use onlyonce::{
    engine::{OperateError, Seen},
    layer::remembered,
    reconcile::Judged,
};
use onlyonce_core::{
    Record, State as KeyState, StoredResponse,
    machine::{Grounds, Heard, Resolution},
    record::{Evidence, JournalEvent},
};
use onlyonce_store::{Filter, JournalRow, Listed};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Refused,
    keys::{Answer, Decision, Desk, ResolveBody, bad, cursor, limit, names_nothing, read},
};
use crate::clock::rfc3339;

/// Dead letters per page of a bulk resolution.
const PAGE: usize = 200;
/// Why a contradictory answer is inconclusive.
const CONTRADICTS: &str = "it gives two answers, under two names of the key";
/// The most dead letters that one bulk resolution settles.
const MAX_RESOLVED: usize = 10_000;

/// The routes of dead letters.
pub(super) fn routes(router: Router<Desk>) -> Router<Desk> {
    router
        .route("/dead-letters", get(list))
        .route("/dead-letters/resolve", post(resolve))
        .route("/idempotency/keys/{id}/probe", post(probe))
}

/// Where a page of dead letters begins: among the keys, or, after all keys, among the messages.
#[derive(Clone, Copy)]
enum Place {
    Keys(Option<u64>),
    Messages(Option<u64>),
}

/// The prefix of a cursor among the messages.
const AMONG_MESSAGES: &str = "outbox-";

impl Place {
    fn of(query: &HashMap<String, String>) -> Result<Self, Refused> {
        let kind = query.get("kind").map_or("", String::as_str);
        let text = query.get("cursor").map_or("", String::as_str);
        if let Some(rest) = text.strip_prefix(AMONG_MESSAGES) {
            let rest = HashMap::from([("cursor".to_owned(), rest.to_owned())]);
            return Ok(Self::Messages(cursor(&rest)?));
        }
        let cursor = cursor(query)?;
        match kind {
            "" | "reconcile" => Ok(Self::Keys(cursor)),
            "outbox" => Ok(Self::Messages(cursor)),
            _ => Err(bad("`kind` is `reconcile` or `outbox`.")),
        }
    }

    fn shown(self) -> String {
        match self {
            Self::Keys(cursor) => cursor.map_or_else(String::new, |cursor| cursor.to_string()),
            Self::Messages(cursor) => {
                let cursor = cursor.map_or_else(String::new, |cursor| cursor.to_string());
                format!("{AMONG_MESSAGES}{cursor}")
            }
        }
    }
}

/// `GET /dead-letters`: keys, newest first, and then messages, newest first.
async fn list(State(desk): State<Desk>, Query(query): Query<HashMap<String, String>>) -> Answer {
    let text = |name: &str| query.get(name).filter(|text| !text.is_empty()).cloned();
    let (mut place, limit) = (Place::of(&query)?, limit(&query)?);
    if names_nothing(["route", "client"].map(|name| query.get(name))) {
        return Ok(Json(json!({ "dead_letters": [], "next": null })));
    }
    // Messages belong to no client.
    let keys_alone = text("kind").as_deref() == Some("reconcile") || text("client").is_some();
    let mut letters = Vec::new();
    let mut next = None;
    if let Place::Keys(cursor) = place {
        let filter = Filter {
            route: text("route"),
            client: text("client"),
            dead_letters: true,
            ..Filter::default()
        };
        let page = desk.engine().store().list(&filter, cursor, limit).await?;
        for Listed { record, .. } in page.items.iter().filter(|one| one.record.dead_letter) {
            let history = desk.engine().store().history(record.id).await?;
            letters.push(letter(record, &history));
        }
        next = page.next.map(|next| Place::Keys(Some(next)));
        if next.is_none() {
            place = Place::Messages(None);
        }
    }
    if let Place::Messages(cursor) = place
        && !keys_alone
    {
        // At least one, so that a full page knows whether another follows.
        let room = limit.saturating_sub(letters.len());
        let page = desk.undelivered(text("route"), cursor, room.max(1)).await?;
        next = match room {
            0 if page.items.is_empty() => None,
            0 => Some(Place::Messages(cursor)),
            _ => page.next.map(|next| Place::Messages(Some(next))),
        };
        letters.extend(page.items.into_iter().take(room));
    }
    let next = next.map(Place::shown);
    Ok(Json(json!({ "dead_letters": letters, "next": next })))
}

fn letter(record: &Record, history: &[JournalRow]) -> Value {
    let row = history
        .iter()
        .rev()
        .find(|row| row.entry.event == JournalEvent::DeadLettered);
    let since = row.map(|row| row.at).or(record.times.unknown_since);
    json!({
        "id": record.id.to_string(),
        "kind": "reconcile",
        "key_id": record.id.to_string(),
        "route": &*record.route,
        "reason": row.and_then(|row| row.entry.detail.as_deref()).unwrap_or("unknown"),
        "attempts": record.inconclusive,
        "created_at": since.map(rfc3339),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BulkBody {
    #[serde(default)]
    filter: BulkFilter,
    outcome: String,
    #[serde(default)]
    response: Option<Value>,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    force: bool,
    /// Nothing is changed unless this is `false`.
    #[serde(default = "yes")]
    dry_run: bool,
}

fn yes() -> bool {
    true
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct BulkFilter {
    route: Option<String>,
    client: Option<String>,
    /// Only dead letters whose reason contains this text.
    reason: Option<String>,
}

/// `POST /dead-letters/resolve`.
async fn resolve(State(desk): State<Desk>, body: Bytes) -> Answer {
    let bulk: BulkBody = read(&body)?;
    let one = ResolveBody::of(bulk.outcome, bulk.response, bulk.reason, bulk.force)?;
    if let Decision::Completed(_) = one.decision()? {
        return Err(bad(
            "Many keys are completed by the provider's answer to each: `\"response\": \"provider\"`. \
             Nothing was changed.",
        ));
    }
    let wanted = Filter {
        route: bulk.filter.route,
        client: bulk.filter.client,
        dead_letters: true,
        ..Filter::default()
    };
    let found = desk.letters(&wanted, &bulk.filter.reason).await?;
    let (mut resolved, mut refused) = (Vec::new(), Vec::new());
    for record in &found {
        if bulk.dry_run {
            continue;
        }
        // A record that changed since it was found is left alone.
        let seen = Seen::Revision(record.revision);
        match desk.resolved(record, seen, &one).await {
            Ok(record) => resolved.push(record.id.to_string()),
            Err(why) => {
                let (id, code) = (record.id.to_string(), why.code);
                refused.push(json!({ "id": id, "code": code, "detail": why.detail }));
            }
        }
    }
    let matched: Vec<String> = found.iter().map(|record| record.id.to_string()).collect();
    Ok(Json(json!({
        "dry_run": bulk.dry_run,
        "matched": matched,
        "resolved": resolved,
        "refused": refused,
    })))
}

/// `POST /idempotency/keys/{id}/probe`: queries the provider about a key. If the provider finds the key, its
/// negative answers to the same query count from now on.
async fn probe(State(desk): State<Desk>, Path(id): Path<String>) -> Answer {
    let record = desk.record(&id).await?;
    let answer = desk.provider().ask(&record).await;
    let (outcome, detail) = in_words(&answer.judged);
    let found = outcome == "completed";
    let proven = match &answer.question {
        Some(question) if found => {
            desk.engine().prove(&record.route, question).await?;
            true
        }
        Some(question) => desk.engine().is_proven(&record.route, question).await?,
        None => false,
    };
    Ok(Json(json!({
        "id": record.id.to_string(),
        "route": &*record.route,
        "found": found,
        "outcome": outcome,
        "detail": detail,
        "proven": proven,
    })))
}

impl Desk {
    /// The dead letters that match `wanted`, up to a limit.
    async fn letters(
        &self,
        wanted: &Filter,
        reason: &Option<String>,
    ) -> Result<Vec<Record>, Refused> {
        let mut found = Vec::new();
        if names_nothing([wanted.route.as_ref(), wanted.client.as_ref()]) {
            return Ok(found);
        }
        let mut cursor = None;
        loop {
            let page = self.engine().store().list(wanted, cursor, PAGE).await?;
            for Listed { record, .. } in page.items {
                let matches = record.dead_letter && self.has_reason(&record, reason).await?;
                if matches && found.len() < MAX_RESOLVED {
                    found.push(record);
                }
            }
            cursor = page.next;
            if cursor.is_none() || found.len() >= MAX_RESOLVED {
                return Ok(found);
            }
        }
    }

    async fn has_reason(&self, record: &Record, part: &Option<String>) -> Result<bool, Refused> {
        let Some(part) = part else { return Ok(true) };
        let history = self.engine().store().history(record.id).await?;
        let letter = letter(record, &history);
        Ok(letter["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains(part)))
    }

    /// The provider's own answer about the outcome of `record`.
    pub(super) async fn providers_answer(
        &self,
        record: &Record,
    ) -> Result<Arc<StoredResponse>, Refused> {
        let judged = self.provider().ask(record).await.judged;
        if let Judged::Says(Evidence::Completed(response)) = judged {
            return Ok(response);
        }
        let (_, why) = in_words(&judged);
        let detail =
            format!("The provider does not say that it took effect: {why}. Nothing was changed.");
        Err(Refused::new(StatusCode::CONFLICT, "state_conflict", detail))
    }

    /// The grounds for releasing `record`. If its route has a query, the provider is asked first.
    async fn grounds(&self, record: &Record, force: bool) -> Result<Grounds, Refused> {
        let policy = self.engine().policy(&record.route);
        let asks = policy.reconcile.as_ref().is_some_and(|how| how.asks);
        let mut asked_at = None;
        let heard = match () {
            () if !self.can_ask() => Heard::Nothing,
            // Only an unknown key is released; the machine refuses any other.
            () if !asks || record.state != KeyState::Unknown => Heard::Nobody,
            () => {
                let now = self.engine().store_now().await?;
                asked_at = Some(now);
                let answer = self.provider().ask(record).await;
                let (outcome, mut detail) = in_words(&answer.judged);
                let proven = match &answer.question {
                    Some(question) => self.engine().is_proven(&record.route, question).await?,
                    None => false,
                };
                if !proven && outcome == "not_executed" {
                    detail.push_str(", and this query has never been seen to find a key");
                }
                let said = json!({ "outcome": outcome, "detail": detail });
                match &answer.judged {
                    Judged::Says(Evidence::Completed(_)) => {
                        self.engine().heard(record.clone(), now, answer).await?;
                        return Err(already_executed().with("provider", said));
                    }
                    Judged::Says(Evidence::NotExecuted) if proven => Heard::Denial,
                    _ if force => Heard::Nothing,
                    _ => return Err(inconclusive(&detail).with("provider", said)),
                }
            }
        };
        Ok(Grounds {
            heard,
            asked_at,
            force,
        })
    }

    /// Settles `record` as `body` decides.
    pub(super) async fn resolved(
        &self,
        record: &Record,
        seen: Seen,
        body: &ResolveBody,
    ) -> Result<Record, Refused> {
        self.learn(&record.route);
        let resolution = match body.decision()? {
            Decision::Completed(given) => {
                let policy = self.engine().policy(&record.route);
                let mut given = Arc::unwrap_or_clone(given);
                // Headers about one exchange do not belong in an answer that is replayed.
                given.headers = remembered(given.headers, given.status, &policy);
                Resolution::Completed(Arc::new(given))
            }
            Decision::AsProviderSays => Resolution::Completed(self.providers_answer(record).await?),
            Decision::Release { force } => {
                Resolution::FailedRetryable(self.grounds(record, force).await?)
            }
        };
        let reason = body.reason()?;
        let resolved = self.engine().resolve(record.id, seen, &resolution, reason);
        resolved.await.map_err(|error| match error {
            OperateError::AlreadyExecuted => already_executed(),
            OperateError::Inconclusive => inconclusive("this command can ask nobody"),
            error => error.into(),
        })
    }
}

fn already_executed() -> Refused {
    let detail = "The provider says that the operation took effect, so a retry must not execute it. \
                  Nothing was released: the key has the provider's answer now.";
    Refused::new(StatusCode::CONFLICT, "already_executed", detail)
}

fn inconclusive(why: &str) -> Refused {
    let detail = format!(
        "The provider does not say what became of the operation: {why}. A retry of a released key would \
         execute it, for a second time if it took effect. Nothing was changed. Look at the provider's own \
         records; \"force\": true (`--force` on the command line) releases the key all the same."
    );
    Refused::new(StatusCode::CONFLICT, "inconclusive", detail)
}

/// A provider's answer as a word, and as a sentence without its full stop.
fn in_words(judged: &Judged) -> (&'static str, String) {
    match judged {
        Judged::Says(Evidence::Completed(response)) => {
            let status = response.status.as_u16();
            (
                "completed",
                format!("found, with an answer of status {status}"),
            )
        }
        Judged::Says(Evidence::Contradictory) => ("inconclusive", CONTRADICTS.to_owned()),
        Judged::Says(Evidence::NotExecuted) => {
            ("not_executed", "the provider does not know it".to_owned())
        }
        Judged::Pending => ("inconclusive", "it is still under way".to_owned()),
        Judged::Several(list) => ("inconclusive", format!("several operations: {list}")),
        Judged::Inconclusive(why) => ("inconclusive", why.clone()),
    }
}
