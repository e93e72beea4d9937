//! The meaning of a provider's answers and events for a key.

use http::StatusCode;
use onlyonce::reconcile::{Rule, Then, When};
use serde_json::{Value as Json, json};

use super::require;
use crate::config::{
    diagnostics::Report,
    fields::{COMPLETE, Field, OUTCOME, WEBHOOK, WHEN},
    section::Section,
    setting::{Setting, View},
    tree::{Node, Span, Value},
};

/// Whether the input of the rules has a status.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answers {
    Have,
    HaveNot,
}

impl Setting for Vec<Rule> {
    fn read(parent: &Section<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let (node, at) = parent.node(field.name)?;
        let Value::List(items) = &node.value else {
            report
                .error(at, "`outcomes` must be a list")
                .hint("for example `[{ when: { status: [404] }, not_executed: true }]`");
            return None;
        };
        if items.is_empty() {
            report.error(at, "`outcomes` is empty, so that nothing is ever decided");
        }
        let answers = match parent.name() == WEBHOOK.name {
            true => Answers::HaveNot,
            false => Answers::Have,
        };
        let read = |item| outcome(item, answers, report);
        Some(items.iter().filter_map(read).collect())
    }
}

fn outcome(node: &Node, answers: Answers, report: &mut Report<'_>) -> Option<Rule> {
    let section = Section::open(&OUTCOME, node, node.at, report);
    require(&section, &["when"], node.at, report);
    let (node_of_when, at) = section.node("when")?;
    let condition = Section::open(&WHEN, node_of_when, at, report);
    let when = when(&condition, at, answers, report);
    let mut said = Vec::new();
    if section.says("complete") {
        said.push(complete(&section, report));
    }
    for (place, name, then) in [
        (&section, "not_executed", Then::NotExecuted),
        (&section, "pending", Then::Pending),
        // `pending` may also be inside the condition.
        (&condition, "pending", Then::Pending),
    ] {
        if place.says(name) {
            let word = place.word(name, report);
            said.push(word.map(|_| then));
        }
    }
    match <[_; 1]>::try_from(said) {
        Ok([then]) => Some(Rule { when, then: then? }),
        Err(_) => {
            report
                .error(
                    node.at,
                    "an outcome says one of `complete`, `not_executed` and `pending`",
                )
                .hint("what is none of them is left out: no match is inconclusive");
            None
        }
    }
}

fn when(section: &Section<'_>, at: Span, answers: Answers, report: &mut Report<'_>) -> When {
    if answers == Answers::HaveNot
        && let Some(at) = section.place("status")
    {
        report.error(at, "an event has no status");
    }
    if section.says("in") && !section.says("pointer") {
        report
            .error(at, "`in` without `pointer`: there is no value to compare")
            .hint("for example `{ pointer: /status, in: [succeeded] }`");
    }
    let conditions = ["status", "pointer", "in", "empty", "absent"];
    if !conditions.iter().any(|name| section.says(name)) {
        report
            .error(at, "`when` is empty, and would match every answer")
            .hint("say which answers are meant, for example `{ status: [404] }`");
    }
    When {
        status: section.get("status", report).unwrap_or_default(),
        pointer: section.get("pointer", report),
        one_of: section.get("in", report).unwrap_or_default(),
        empty: section.get("empty", report),
        absent: section.get("absent", report),
    }
}

fn complete(parent: &Section<'_>, report: &mut Report<'_>) -> Option<Then> {
    let (node, at) = parent.node("complete")?;
    let section = Section::open(&COMPLETE, node, at, report);
    require(&section, &["status"], at, report);
    let body = section.get("body", report);
    let status = StatusCode::from_u16(section.get("status", report)?).ok()?;
    Some(Then::Complete { status, body })
}

impl View for Rule {
    fn view(&self) -> Json {
        let when = &self.when;
        let mut shown = json!({ "when": {
            "status": when.status.view(),
            "pointer": when.pointer.view(),
            "in": when.one_of,
            "empty": when.empty.view(),
            "absent": when.absent.view(),
        }});
        match &self.then {
            Then::NotExecuted => shown["not_executed"] = true.into(),
            Then::Pending => shown["pending"] = true.into(),
            Then::Complete { status, body } => {
                shown["complete"] = json!({ "status": status.view(), "body": body.view() });
            }
        }
        shown
    }
}
