//! Keys as text: a table of many, or one with its timeline.

use std::{
    fmt::Write as _,
    time::{Duration, SystemTime},
};

use onlyonce_gateway::clock;
use serde_json::Value;

use crate::table::{self, terminal_width};

/// An answer of the admin API as text.
pub(super) fn text(answer: &Value) -> String {
    if answer["forgotten"].is_u64() {
        return super::of_client::forgotten(answer);
    }
    if answer["erased"].is_u64() {
        return super::of_client::erased(answer);
    }
    if let Some(letters) = answer["dead_letters"].as_array() {
        return dead_letters(letters, answer["next"].as_str());
    }
    if let Some(matched) = answer["matched"].as_array() {
        return many(matched, answer);
    }
    match answer["keys"].as_array() {
        Some(keys) => list(keys, answer["next"].as_str()),
        None => one(answer),
    }
}

fn dead_letters(letters: &[Value], next: Option<&str>) -> String {
    if letters.is_empty() {
        return "no dead letters\n".to_owned();
    }
    let mut table = table::prose(
        &["id", "kind", "route", "since", "attempts", "reason"],
        None,
    );
    for letter in letters {
        table.add_row([
            field(letter, "id"),
            field(letter, "kind"),
            field(letter, "route"),
            moment(letter, "created_at"),
            field(letter, "attempts"),
            field(letter, "reason"),
        ]);
    }
    let mut text = format!("{table}\n");
    if let Some(next) = next {
        let _ = writeln!(text, "there are more: --cursor {next}");
    }
    text
}

fn many(matched: &[Value], answer: &Value) -> String {
    let mut text = String::new();
    if answer["dry_run"] == true {
        for id in matched.iter().filter_map(Value::as_str) {
            let _ = writeln!(text, "{id}");
        }
        let _ = writeln!(text, "{} would be resolved: --yes does it", matched.len());
        return text;
    }
    let resolved = answer["resolved"].as_array().map_or(0, Vec::len);
    let _ = writeln!(text, "{resolved} of {} resolved", matched.len());
    for refused in answer["refused"].as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "{}: {}",
            field(refused, "id"),
            field(refused, "detail")
        );
    }
    text
}

fn list(keys: &[Value], next: Option<&str>) -> String {
    if keys.is_empty() {
        return "no keys\n".to_owned();
    }
    let row = |key: &Value| {
        vec![
            field(key, "key"),
            state(key),
            status(key),
            field(key, "route"),
            field(key, "scope"),
            attempt(key),
            moment(key, "created_at"),
            moment(key, "expires_at"),
            short_id(key),
        ]
    };
    let columns = [
        "key", "state", "answer", "route", "scope", "attempt", "created", "expires", "id",
    ];
    let rows = keys.iter().map(row).collect();
    let dispensable = ["created", "route", "answer", "scope", "expires", "attempt"];
    let table = table::list(&columns, rows, &dispensable);
    let mut text = format!("{table}\n");
    if let Some(next) = next {
        // Writing to a String does not fail.
        let _ = writeln!(text, "there are more: --cursor {next}");
    }
    text
}

fn one(key: &Value) -> String {
    let request = format!("{} {}", field(key, "method"), field(key, "path"));
    let lines = [
        ("key", field(key, "key")),
        ("id", field(key, "id")),
        ("scope", field(key, "scope")),
        ("route", field(key, "route")),
        ("request", request),
        ("state", state(key)),
        ("attempt", attempt(key)),
        ("answer", answer(key)),
        ("created", field(key, "created_at")),
        ("last run", field(key, "last_run_at")),
        ("completed", field(key, "completed_at")),
        ("expires", field(key, "expires_at")),
        ("lease until", field(key, "lease_until")),
        ("looked into", field(key, "reconcile_after")),
        ("revision", field(key, "revision")),
    ];
    let mut text = String::new();
    for (name, value) in lines.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(text, "{name:<12} {value}");
    }
    text.push('\n');
    timeline(&mut text, key["history"].as_array());
    text
}

/// The events, each with the time since the previous one.
fn timeline(text: &mut String, history: Option<&Vec<Value>>) {
    let mut before = None;
    for (index, line) in history.into_iter().flatten().enumerate() {
        let at = field(line, "at");
        let now = clock::read_rfc3339(&at);
        if index > 0 {
            let gap = now.zip(before).map(|(now, before)| {
                let gap = now.duration_since(before).unwrap_or_default();
                gap_words(gap)
            });
            let _ = writeln!(text, "  │ {}", gap.unwrap_or_default());
        }
        before = now;
        let (from, to) = (field(line, "from"), field(line, "to"));
        let step = match (from.as_str(), to.as_str()) {
            (_, "") => String::new(),
            ("", to) => format!("  → {to}"),
            (from, to) => format!("  {from} → {to}"),
        };
        let (event, actor) = (field(line, "event"), field(line, "actor"));
        let attempt = field(line, "attempt");
        let _ = write!(
            text,
            "  ● {at}  {event}{step}  (attempt {attempt}, {actor})"
        );
        let detail = field(line, "detail");
        if !detail.is_empty() {
            let _ = write!(text, "\n  │   {detail}");
        }
        text.push('\n');
    }
}

fn gap_words(gap: Duration) -> String {
    match gap {
        gap if gap.is_zero() => "at once".to_owned(),
        gap if gap < Duration::from_secs(60) => format!("{gap:?} later"),
        gap => {
            let whole = Duration::from_secs(gap.as_secs());
            format!("{} later", humantime::format_duration(whole))
        }
    }
}

/// A member as text; empty if there is none. Control characters are replaced.
pub(crate) fn field(value: &Value, name: &str) -> String {
    let text = match &value[name] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    text.replace(char::is_control, "?")
}

/// The length of an id in a list: enough to name the key to `keys show`.
const SHORT_ID: usize = 8;

fn short_id(key: &Value) -> String {
    let id = field(key, "id");
    match (terminal_width(), id.get(..SHORT_ID)) {
        (Some(_), Some(short)) => short.to_owned(),
        _ => id,
    }
}

/// A time in a list: relative on a terminal, elsewhere to the second.
pub(crate) fn moment(key: &Value, name: &str) -> String {
    let text = field(key, name);
    if terminal_width().is_some()
        && let Some(at) = clock::read_rfc3339(&text)
    {
        return relative(at, clock::now());
    }
    match text.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => text,
    }
}

/// `at` relative to `now`, in words.
fn relative(at: SystemTime, now: SystemTime) -> String {
    let (gap, is_past) = match now.duration_since(at) {
        Ok(gap) => (gap.as_secs(), true),
        Err(error) => (error.duration().as_secs(), false),
    };
    let size = match gap {
        0..60 => format!("{gap}s"),
        60..3_600 => format!("{}m", gap / 60),
        3_600..172_800 => format!("{}h", gap / 3_600),
        _ => format!("{}d", gap / 86_400),
    };
    match is_past {
        true => format!("{size} ago"),
        false => format!("in {size}"),
    }
}

fn state(key: &Value) -> String {
    match field(key, "last_error").as_str() {
        "" => field(key, "state"),
        error => format!("{} ({error})", field(key, "state")),
    }
}

fn attempt(key: &Value) -> String {
    match field(key, "generation").as_str() {
        "" | "1" => field(key, "attempt"),
        generation => format!("{}, generation {generation}", field(key, "attempt")),
    }
}

fn status(key: &Value) -> String {
    field(&key["response"], "status")
}

fn answer(key: &Value) -> String {
    match status(key).as_str() {
        "" => String::new(),
        status => format!("{status}, {} bytes", field(&key["response"], "bytes")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_timeline_tells_the_steps_and_the_time_between() {
        let shown = text(&json!({
            "id": "5e04", "key": "order-1", "state": "unknown", "last_error": "connection_lost",
            "method": "POST", "path": "/payments", "attempt": 1, "generation": 1, "response": null,
            "history": [
                { "at": "2026-01-15T09:22:59.284Z", "event": "reserved", "from": null,
                  "to": "in_progress", "attempt": 1, "actor": "executor", "detail": null },
                { "at": "2026-01-15T09:22:59.787Z", "event": "became_unknown",
                  "from": "in_progress", "to": "unknown", "attempt": 1, "actor": "executor",
                  "detail": "a\u{1b}[2Jb" },
            ],
        }));
        assert!(
            shown.contains("state        unknown (connection_lost)"),
            "{shown}"
        );
        assert!(shown.contains("  │ 503ms later\n"), "{shown}");
        assert!(shown.contains("became_unknown  in_progress → unknown  (attempt 1, executor)"));
        assert!(shown.contains("  │   a?[2Jb\n"), "{shown}");
        assert!(!shown.contains("answer"), "{shown}");
    }

    #[test]
    fn times_are_told_from_now_on() {
        let now = clock::read_rfc3339("2026-01-15T09:00:00.000Z").unwrap();
        for (at, expected) in [
            ("2026-01-15T08:59:58.500Z", "1s ago"),
            ("2026-01-15T08:29:00.000Z", "31m ago"),
            ("2026-01-16T09:00:00.000Z", "in 24h"),
            ("2026-01-25T09:00:00.000Z", "in 10d"),
        ] {
            let at = clock::read_rfc3339(at).unwrap();
            assert_eq!(relative(at, now), expected);
        }
    }

    #[test]
    fn a_list_says_where_it_goes_on() {
        assert_eq!(text(&json!({ "keys": [], "next": null })), "no keys\n");
        let shown = text(&json!({ "keys": [{ "id": "5e04", "state": "completed",
            "response": { "status": 201, "bytes": 3 } }], "next": "17" }));
        assert!(
            shown.contains("completed") && shown.contains("201"),
            "{shown}"
        );
        assert!(shown.ends_with("there are more: --cursor 17\n"), "{shown}");
    }
}
