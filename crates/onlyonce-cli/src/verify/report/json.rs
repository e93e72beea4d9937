//! The report for programs.

use serde_json::{Value, json};

use super::Report;
use crate::verify::{
    exchange::Exchange,
    finding::{Finding, Severity, Sure, Verdict},
    shown::{self, Shown},
};

impl Report {
    /// The report as one JSON document.
    pub(in crate::verify) fn json(&self) -> String {
        let summary: serde_json::Map<String, Value> = Verdict::ALL
            .into_iter()
            .map(|verdict| (verdict.name().to_owned(), self.count(verdict).into()))
            .collect();
        let document = json!({
            "method": self.method,
            "url": self.url,
            "profile": self.profile,
            "executions": self.executions.name(),
            "requests": self.requests,
            "conclusion": self.conclusion(),
            "summary": summary,
            "checks": self.findings.iter().map(finding).collect::<Vec<_>>(),
        });
        format!("{document:#}")
    }
}

fn finding(finding: &Finding) -> Value {
    let sure = (finding.sure != Sure::No).then(|| finding.sure.words());
    json!({
        "id": finding.check.id(),
        "title": finding.check.title(),
        "verdict": finding.verdict.name(),
        "severity": finding.severity.map(Severity::name),
        "sure": sure,
        "seen": finding.seen,
        "cost": finding.cost(),
        "expected_by": finding.check.expected_by(),
        "evidence": finding.evidence.iter().map(exchange).collect::<Vec<_>>(),
        "timeline": finding.race.iter().map(moment).collect::<Vec<_>>(),
    })
}

fn exchange(exchange: &Exchange) -> Value {
    json!({
        "label": exchange.label,
        "request": side(&shown::request(&exchange.request)),
        "answer": side(&shown::answer(exchange)),
        "status": exchange.ok().map(|answer| answer.status.as_u16()),
    })
}

fn side(shown: &Shown) -> Value {
    json!({ "head": shown.head, "headers": shown.headers, "body": shown.body })
}

fn moment(exchange: &Exchange) -> Value {
    let milliseconds = |at: std::time::Duration| (at.as_secs_f64() * 1e6).round() / 1e3;
    json!({
        "sent_ms": milliseconds(exchange.sent),
        "ended_ms": milliseconds(exchange.ended),
        "status": exchange.ok().map(|answer| answer.status.as_u16()),
    })
}
