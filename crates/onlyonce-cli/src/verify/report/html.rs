//! The report as one self-contained page: no script, no network.

use std::fmt::Write as _;

use super::{Report, escape, timeline};
use crate::verify::{
    exchange::Exchange,
    finding::{Finding, Verdict},
    shown,
};

/// The height of one bar with its gap, in pixels.
const BAR: usize = 18;
/// The width of the chart, in pixels.
const WIDTH: f64 = 620.0;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;\
    padding:0 1rem;color:#1b1f24;background:#fff}table{border-collapse:collapse;width:100%}\
    td,th{text-align:left;vertical-align:top;padding:.35rem .6rem;border-bottom:1px solid #d0d7de}\
    td:nth-child(-n+3){white-space:nowrap}.pass{color:#116329}.fail{color:#a40e26;font-weight:600}.not_applicable,.cannot_tell{color:#57606a}\
    pre{background:#f6f8fa;padding:.6rem;overflow-x:auto;font-size:12px;white-space:pre-wrap;\
    overflow-wrap:anywhere}section{margin:2rem 0}.cost{border-left:4px solid #a40e26;padding-left:.8rem}\
    svg{max-width:100%;font:11px system-ui,sans-serif}summary{cursor:pointer}";

impl Report {
    /// The report as one page.
    pub(super) fn html(&self) -> String {
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width\">\
             <title>Is it safe to retry? {url}</title><style>{STYLE}</style></head><body>\n\
             <h1>Is it safe to retry?</h1>\n<p><code>{method} {url}</code>, profile {profile}, \
             {requests} requests. Executions are {how}.</p>\n<p><strong>{conclusion}</strong></p>\n",
            url = escape(&self.url),
            method = escape(&self.method),
            profile = self.profile,
            requests = self.requests,
            how = escape(self.executions.words()),
            conclusion = escape(&self.conclusion()),
        );
        self.html_table(&mut page);
        for finding in self.findings.iter().filter(|f| f.verdict == Verdict::Fail) {
            section(&mut page, finding);
        }
        for finding in self.findings.iter().filter(|f| f.verdict != Verdict::Fail) {
            if !finding.race.is_empty() {
                let title = escape(finding.check.title());
                let _ = writeln!(
                    page,
                    "<section><h2>{title}</h2>{}</section>",
                    svg(&finding.race)
                );
            }
        }
        page.push_str("</body></html>\n");
        page
    }

    fn html_table(&self, page: &mut String) {
        page.push_str("<table><tr><th>check<th>verdict<th>how sure<th>what was seen</tr>\n");
        for finding in &self.findings {
            // Writing to a String does not fail.
            let _ = writeln!(
                page,
                "<tr><td title=\"{title}\">{id}<td class=\"{class}\">{verdict}<td>{sure}<td>{seen}</tr>",
                title = escape(finding.check.title()),
                id = finding.check.id(),
                class = finding.verdict.name(),
                verdict = finding.verdict.words().to_lowercase(),
                sure = finding.sure.words(),
                seen = escape(&finding.seen),
            );
        }
        page.push_str("</table>\n");
    }
}

fn section(page: &mut String, finding: &Finding) {
    let _ = write!(
        page,
        "<section><h2>{title}: <span class=\"fail\">no</span></h2>\n<p>{seen}.</p>\n\
         <p class=\"cost\">{cost}</p>\n<p>Expected by: {by}.</p>\n",
        title = escape(finding.check.title()),
        seen = escape(&finding.seen),
        cost = escape(finding.cost().unwrap_or_default()),
        by = escape(&finding.check.expected_by().join("; ")),
    );
    if !finding.race.is_empty() {
        page.push_str(&svg(&finding.race));
    }
    page.push_str("<details><summary>What was sent and answered</summary>\n");
    for exchange in &finding.evidence {
        let _ = writeln!(
            page,
            "<p>{}</p><pre>{}\n\n{}</pre>",
            escape(exchange.label),
            escape(&shown::request(&exchange.request).line()),
            escape(&shown::answer(exchange).line()),
        );
    }
    page.push_str("</details></section>\n");
}

fn svg(race: &[Exchange]) -> String {
    let (bars, milliseconds) = timeline::bars(race);
    let height = (bars.len() + 1) * BAR + 4;
    let mut picture = format!(
        "<svg viewBox=\"0 0 {full} {height}\" width=\"{full}\" height=\"{height}\" role=\"img\">\
         <text x=\"40\" y=\"12\">0</text><text x=\"{WIDTH}\" y=\"12\">{milliseconds:.0} ms</text>",
        full = WIDTH + 180.0,
    );
    for (line, bar) in bars.iter().enumerate() {
        let room = WIDTH - 40.0;
        let (x, y) = (40.0 + bar.begins * room, (line + 1) * BAR);
        let width = ((bar.ends - bar.begins) * room).max(2.0);
        let many = match bar.many {
            1 => String::new(),
            many => format!("{many} x"),
        };
        let _ = write!(
            picture,
            "<text x=\"0\" y=\"{base}\">{many}</text><rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" \
             height=\"12\" rx=\"2\" fill=\"#54708f\"/><text x=\"{end:.1}\" y=\"{base}\">{says}</text>",
            base = y + 11,
            end = x + width + 6.0,
            says = escape(&bar.says),
        );
    }
    picture.push_str("</svg>\n");
    picture
}
