//! `onlyonce keys forget --client` and `onlyonce keys erase --client`: apply to all keys of a client what the
//! admin API does to one key, with its audit row and its refusals.
//!
//! A forget is refused for keys in progress or unknown, and without `--force` for keys that took effect: a
//! retry would execute. An erase is never refused.

use futures_util::future::try_join_all;
use http::Method;
use serde_json::{Value, json};

use super::{Asked, EraseArgs, ForgetArgs, Refusal, encoded, way::Way, with_query};

/// Keys listed in one page.
const PAGE: &str = "500";
/// Keys processed at a time.
const AT_ONCE: usize = 32;
/// The reason in the audit log unless one is given.
const REASON: &str = "all keys of this client";

/// What became of the keys of a client.
#[derive(Default)]
struct Outcome {
    found: u64,
    done: u64,
    refused: Vec<Value>,
}

impl Outcome {
    fn take(&mut self, key: &Value, asked: Result<Value, Refusal>) {
        self.found += 1;
        match asked {
            Ok(_) => self.done += 1,
            Err(refusal) => self.refused.push(refusal_of(key, &refusal.why)),
        }
    }

    fn told(self, client: &str, is_dry_run: bool, done: &str) -> Result<Value, Refusal> {
        let Self {
            found,
            done: count,
            refused,
        } = self;
        let summary = json!({
            "client": client,
            "dry_run": is_dry_run,
            "found": found,
            done: count,
            "refused": refused,
        });
        if refused.is_empty() || is_dry_run {
            return Ok(summary);
        }
        let refused = refusals(&refused);
        Err(Refusal {
            why: format!("{count} of {found} keys were {done}; refused: {refused}"),
            body: summary,
            ..Refusal::no("")
        })
    }
}

impl Way {
    /// Forgets every key of `client` that may be forgotten, and reports the others.
    pub(super) async fn forget_client(&self, client: &str, args: &ForgetArgs) -> Asked {
        let forget = async |key: &Value| match args.dry_run {
            true => Ok(would_refuse(key, args.force).map_or(Ok(Value::Null), Err)),
            false => self.forget_one(key, args).await,
        };
        let outcome = self.each(client, forget).await?;
        Ok(outcome.and_then(|outcome| outcome.told(client, args.dry_run, "forgotten")))
    }

    /// Erases the personal data of every key of `client`.
    pub(super) async fn erase_client(&self, client: &str, args: &EraseArgs) -> Asked {
        let reason = args.reason.as_deref().unwrap_or(REASON);
        let erase = async |key: &Value| match args.dry_run {
            true => Ok(Ok(Value::Null)),
            false => {
                let id = key["id"].as_str().unwrap_or_default();
                let path = format!("/idempotency/keys/{}", encoded(id));
                self.erase_at(&path, Some(reason)).await
            }
        };
        let outcome = self.each(client, erase).await?;
        Ok(outcome.and_then(|mut outcome| {
            // None is refused, so their number says everything.
            if args.dry_run {
                outcome.done = 0;
            }
            outcome.told(client, args.dry_run, "erased")
        }))
    }

    /// Applies `does` to each key of `client`. Several at a time, since each waits until no gateway can have
    /// a copy of the answer.
    async fn each(
        &self,
        client: &str,
        does: impl AsyncFn(&Value) -> Asked,
    ) -> anyhow::Result<Result<Outcome, Refusal>> {
        let mut outcome = Outcome::default();
        let mut cursor: Option<String> = None;
        loop {
            let page = match self.page_of(client, cursor.as_deref()).await? {
                Ok(page) => page,
                Err(refusal) => return Ok(Err(refusal)),
            };
            let keys = page["keys"].as_array().map_or(&[][..], Vec::as_slice);
            for some in keys.chunks(AT_ONCE) {
                let asked = try_join_all(some.iter().map(|key| does(key))).await?;
                for (key, asked) in some.iter().zip(asked) {
                    outcome.take(key, asked);
                }
            }
            cursor = next(&page["next"]);
            if cursor.is_none() {
                return Ok(Ok(outcome));
            }
        }
    }

    async fn page_of(&self, client: &str, cursor: Option<&str>) -> Asked {
        let parameters = [
            ("client", Some(client)),
            ("limit", Some(PAGE)),
            ("cursor", cursor),
        ];
        let path = with_query("/idempotency/keys", &parameters);
        self.ask(Method::GET, &path, None).await
    }

    async fn forget_one(&self, key: &Value, args: &ForgetArgs) -> Asked {
        let id = key["id"].as_str().unwrap_or_default();
        let force = args.force.then_some("true");
        let reason = args.reason.as_deref().unwrap_or(REASON);
        let parameters = [("force", force), ("reason", Some(reason))];
        let path = format!("/idempotency/keys/{}", encoded(id));
        self.ask(Method::DELETE, &with_query(&path, &parameters), None)
            .await
    }
}

fn next(cursor: &Value) -> Option<String> {
    match cursor {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn refusal_of(key: &Value, why: &str) -> Value {
    json!({ "id": key["id"], "state": key["state"], "why": why })
}

/// The admin API's refusal of a forget of `key`: predicted, since asking would forget the key.
fn would_refuse(key: &Value, force: bool) -> Option<Refusal> {
    let status = key["response"]["status"].as_u64();
    let took_effect = status.is_some_and(|status| (200..400).contains(&status));
    let why = match key["state"].as_str() {
        Some("in_progress" | "unknown") => "its outcome is not known yet",
        Some("completed") if took_effect && !force => "it took effect: --force forgets it",
        _ => return None,
    };
    Some(Refusal::no(why))
}

/// The ids and states of refused keys, as many as fit into a line.
fn refusals(refused: &[Value]) -> String {
    const SHOWN: usize = 10;
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let mut lines: Vec<String> = refused
        .iter()
        .take(SHOWN)
        .map(|one| format!("{} ({})", text(&one["id"]), text(&one["state"])))
        .collect();
    if refused.len() > SHOWN {
        lines.push(format!("and {} more", refused.len() - SHOWN));
    }
    lines.join(", ")
}

/// The summary of an erasure as text.
pub(super) fn erased(summary: &Value) -> String {
    match summary["dry_run"].as_bool() {
        Some(true) => format!("{} keys of this client would be erased\n", summary["found"]),
        _ => format!(
            "{} of {} keys of this client were erased\n",
            summary["erased"], summary["found"]
        ),
    }
}

/// The summary of a forget as text.
pub(super) fn forgotten(summary: &Value) -> String {
    let refused = summary["refused"].as_array().map_or(&[][..], Vec::as_slice);
    let verb = match summary["dry_run"].as_bool() {
        Some(true) => "would be forgotten",
        _ => "were forgotten",
    };
    let mut out = format!(
        "{} of {} keys of this client {verb}\n",
        summary["forgotten"], summary["found"]
    );
    for one in refused {
        let text = |name: &str| one[name].as_str().unwrap_or("?").to_owned();
        out.push_str(&format!(
            "{}  {}  {}\n",
            text("id"),
            text("state"),
            text("why")
        ));
    }
    out
}
