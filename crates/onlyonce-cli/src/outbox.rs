//! `onlyonce outbox`: list, retry and discard messages, through a gateway or in a store.
//!
//! Unlike keys, messages may be settled in a store that gateways share: that needs nothing that only a
//! gateway knows.

use std::{fmt::Write as _, process::ExitCode};

use clap::{Args, Subcommand, builder::NonEmptyStringValueParser};
use http::Method;
use serde_json::{Value, json};

use crate::{
    keys::{
        self, Refusal, Wish,
        shown::{field, moment},
        way::{Way, Where},
        with_query,
    },
    table::list,
};

/// The default of `--state`: messages that wait for a person.
const DEAD_LETTERS: &str = "dead,unknown";

/// What `outbox` takes.
#[derive(Args)]
pub(crate) struct OutboxArgs {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    place: Where,
}

#[derive(Subcommand)]
enum Command {
    /// List messages, newest first: those that wait for a person, unless --state says otherwise
    List(ListArgs),
    /// Send messages again that are dead or unknown, under the same key
    Retry(RetryArgs),
    /// Discard dead or unknown messages; they are never sent again
    Discard(DiscardArgs),
}

#[derive(Args)]
struct ListArgs {
    /// Only this state: pending, delivered, dead, unknown or discarded
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Only this target
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    target: Option<String>,
    /// How many, 1 to 500
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// Where the page before ended
    #[arg(long, value_name = "NEXT", value_parser = NonEmptyStringValueParser::new())]
    cursor: Option<String>,
}

#[derive(Args)]
struct RetryArgs {
    /// The messages, as `outbox list` shows them
    #[arg(value_name = "ID", required = true, value_parser = NonEmptyStringValueParser::new())]
    ids: Vec<String>,
    /// Why; goes to the audit
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Send them although they may have arrived and their receiver would not know their keys again
    #[arg(long)]
    force: bool,
}

#[derive(Args)]
struct DiscardArgs {
    /// The messages, as `outbox list` shows them
    #[arg(value_name = "ID", required = true, value_parser = NonEmptyStringValueParser::new())]
    ids: Vec<String>,
    /// Why; goes to the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

/// Runs the command.
pub(crate) async fn run(args: OutboxArgs) -> anyhow::Result<ExitCode> {
    let json = args.place.json;
    let wish = match args.command {
        Command::List(_) => Wish::Look,
        Command::Retry(_) | Command::Discard(_) => Wish::Resolve,
    };
    let way = match args.place.open(wish).await? {
        Ok(way) => way,
        Err(why) => return Ok(keys::refused(Refusal::usage(why), json)),
    };
    match args.command {
        Command::List(list) => listed(&way, &list, json).await,
        Command::Retry(retry) => {
            let mut body = json!({ "reason": retry.reason });
            if retry.force {
                body["force"] = true.into();
            }
            decided(&way, "retry", &retry.ids, &body, json).await
        }
        Command::Discard(discard) => {
            let body = json!({ "reason": discard.reason });
            decided(&way, "discard", &discard.ids, &body, json).await
        }
    }
}

async fn listed(way: &Way, args: &ListArgs, json: bool) -> anyhow::Result<ExitCode> {
    let limit = args.limit.to_string();
    let parameters = [
        ("state", Some(args.state.as_deref().unwrap_or(DEAD_LETTERS))),
        ("target", args.target.as_deref()),
        ("limit", Some(limit.as_str())),
        ("cursor", args.cursor.as_deref()),
    ];
    let path = with_query("/outbox", &parameters);
    match way.ask(Method::GET, &path, None).await? {
        Ok(page) if json => outln!("{page:#}"),
        Ok(page) => out!("{}", crate::colour::output(&text(&page))),
        Err(refusal) => return Ok(keys::refused(refusal, json)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Applies the same decision to each message, and continues after a refusal.
async fn decided(
    way: &Way,
    verb: &str,
    ids: &[String],
    body: &Value,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let (mut done, mut refused, mut worst) = (Vec::new(), Vec::new(), None);
    for id in ids {
        let path = format!("/outbox/{}/{verb}", keys::encoded(id));
        match way.ask(Method::POST, &path, Some(body.clone())).await? {
            Ok(message) => {
                if !json {
                    outln!("{id}: {}", field(&message, "state"));
                }
                done.push(message);
            }
            Err(refusal) => {
                eprintln!("error: {id}: {}", refusal.why());
                refused.push(json!({ "id": id, "detail": refusal.why() }));
                worst = worst.max(Some(refusal.code()));
            }
        }
    }
    if json {
        outln!("{:#}", json!({ "messages": done, "refused": refused }));
    }
    Ok(worst.map_or(ExitCode::SUCCESS, ExitCode::from))
}

fn text(page: &Value) -> String {
    let messages = page["messages"].as_array().map_or(&[][..], Vec::as_slice);
    if messages.is_empty() {
        return "no messages\n".to_owned();
    }
    let row = |message: &Value| {
        vec![
            field(message, "id"),
            field(message, "state"),
            field(message, "target"),
            field(message, "type"),
            field(message, "attempts"),
            moment(message, "created_at"),
            moment(message, "due_at"),
            field(message, "downstream_key"),
            field(message, "last_error"),
        ]
    };
    let columns = [
        "id", "state", "target", "type", "attempts", "created", "due", "key", "reason",
    ];
    let rows = messages.iter().map(row).collect();
    let dispensable = ["reason", "created", "attempts", "type", "due", "key"];
    let table = list(&columns, rows, &dispensable);
    let mut text = format!("{table}\n");
    if let Some(next) = page["next"].as_str() {
        // Writing to a String does not fail.
        let _ = writeln!(text, "there are more: --cursor {next}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_shows_why_and_where_it_goes_on() {
        assert_eq!(
            text(&json!({ "messages": [], "next": null })),
            "no messages\n"
        );
        let shown = text(&json!({ "messages": [{ "id": "5e04", "state": "dead",
            "target": "mail", "attempts": 3, "last_error": "said\u{1b}[2J 500" }], "next": "17" }));
        assert!(
            shown.contains("dead") && shown.contains("said?[2J 500"),
            "{shown}"
        );
        assert!(shown.ends_with("there are more: --cursor 17\n"), "{shown}");
    }
}
