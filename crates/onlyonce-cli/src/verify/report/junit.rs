//! The report for build servers.

use std::fmt::Write as _;

use super::{Report, escape};
use crate::verify::{finding::Verdict, shown};

impl Report {
    /// The report as a JUnit file. Checks that do not apply or are inconclusive are skipped, with the reason.
    pub(super) fn junit(&self) -> String {
        let skipped = self.count(Verdict::NotApplicable) + self.count(Verdict::CannotTell);
        let mut xml = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <testsuite name=\"onlyonce verify {}\" tests=\"{}\" failures=\"{}\" errors=\"0\" \
             skipped=\"{skipped}\">\n",
            escape(&self.url),
            self.findings.len(),
            self.count(Verdict::Fail),
        );
        for finding in &self.findings {
            let (id, seen) = (finding.check.id(), escape(&finding.seen));
            let title = escape(finding.check.title());
            // Writing to a String does not fail.
            let _ = write!(
                xml,
                "  <testcase classname=\"onlyonce.verify\" name=\"{id}: {title}\""
            );
            let _ = match finding.verdict {
                Verdict::Pass => writeln!(xml, "/>"),
                Verdict::NotApplicable | Verdict::CannotTell => {
                    let why = finding.verdict.words();
                    writeln!(xml, "><skipped message=\"{why}: {seen}\"/></testcase>")
                }
                Verdict::Fail => {
                    let mut details = finding.cost().unwrap_or_default().to_owned();
                    for exchange in &finding.evidence {
                        let request = shown::request(&exchange.request).line();
                        let answer = shown::answer(exchange).line();
                        let _ = write!(details, "\n> {}: {request}\n< {answer}", exchange.label);
                    }
                    let details = escape(&details);
                    let kind = finding.severity.map_or("", |severity| severity.name());
                    writeln!(
                        xml,
                        "><failure type=\"{kind}\" message=\"{seen}\">{details}</failure></testcase>"
                    )
                }
            };
        }
        xml.push_str("</testsuite>\n");
        xml
    }
}
