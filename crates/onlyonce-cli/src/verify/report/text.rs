//! The report on a terminal: the table, the charts, and what each failure costs.

use std::fmt::Write as _;

use comfy_table::Table;

use super::{Report, timeline};
use crate::table::{PIPED_WIDTH, prose, terminal_width};
use crate::verify::{
    catalogue::Check,
    finding::{Finding, Verdict},
    shown,
};

/// The minimum and maximum width of a chart, in columns.
const WIDTHS: (u16, u16) = (60, 130);
/// The width if there is no terminal.
const DEFAULT_WIDTH: u16 = 100;
/// The maximum number of exchanges shown for one failure.
const MOST_EVIDENCE: usize = 6;

impl Report {
    /// The report for people.
    pub(in crate::verify) fn text(&self) -> String {
        let width = width();
        let mut text = format!(
            "{} {}, profile {}, {} requests\nExecutions are {}.\n\n{}\n",
            self.method,
            self.url,
            self.profile,
            self.requests,
            self.executions.words(),
            self.table(),
        );
        self.pictures(&mut text, width);
        for finding in &self.findings {
            if finding.verdict == Verdict::Fail {
                failure(&mut text, finding);
            }
        }
        let counts = Verdict::ALL.map(|verdict| {
            let words = verdict.words().to_lowercase();
            format!("{} {words}", self.count(verdict))
        });
        // Writing to a String does not fail.
        let _ = writeln!(text, "\n{}\n{}", counts.join(", "), self.conclusion());
        text
    }

    fn table(&self) -> Table {
        let columns = ["check", "verdict", "how sure", "what was seen"];
        let mut table = prose(&columns, Some(PIPED_WIDTH));
        for finding in &self.findings {
            table.add_row([
                finding.check.id(),
                finding.verdict.words(),
                finding.sure.words(),
                &finding.seen,
            ]);
        }
        table
    }

    /// Charts of the race and of every other overlapping failure.
    fn pictures(&self, text: &mut String, width: u16) {
        for finding in &self.findings {
            let wanted = finding.check == Check::Concurrent || finding.verdict == Verdict::Fail;
            if wanted && !finding.race.is_empty() {
                let _ = writeln!(text, "\n{}:", finding.check.title());
                text.push_str(&timeline::draw(&finding.race, usize::from(width)));
            }
        }
    }
}

fn failure(text: &mut String, finding: &Finding) {
    let severity = finding.severity.map_or("", |severity| severity.name());
    let _ = writeln!(text, "\n{}", finding.seen);
    let _ = writeln!(text, "  check:        {} ({severity})", finding.check.id());
    let _ = writeln!(text, "  should be:    {}", finding.check.title());
    if let Some(cost) = finding.cost() {
        let _ = writeln!(text, "  costs:        {cost}");
    }
    let _ = writeln!(
        text,
        "  expected by:  {}",
        finding.check.expected_by().join("; ")
    );
    for exchange in finding.evidence.iter().take(MOST_EVIDENCE) {
        let _ = writeln!(
            text,
            "  > {}: {}",
            exchange.label,
            shown::request(&exchange.request).line()
        );
        let _ = writeln!(text, "  < {}", shown::answer(exchange).line());
    }
    let more = finding.evidence.len().saturating_sub(MOST_EVIDENCE);
    if more > 0 {
        let _ = writeln!(text, "  and {more} more, in --json");
    }
}

fn width() -> u16 {
    let columns = terminal_width().unwrap_or(DEFAULT_WIDTH);
    columns.clamp(WIDTHS.0, WIDTHS.1)
}
