//! The findings, for people and for programs.

mod html;
mod json;
mod junit;
mod text;
mod timeline;

use std::{fs::OpenOptions, path::Path};

use anyhow::Context;

use super::{
    args::VerifyArgs,
    finding::{Finding, Severity, Verdict},
    lab::Lab,
};

/// All findings, and their subject.
pub(super) struct Report {
    method: String,
    url: String,
    profile: &'static str,
    /// How executions were distinguished.
    executions: Executions,
    requests: usize,
    findings: Vec<Finding>,
}

/// How executions are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Executions {
    Counted,
    Answers,
    Word,
}

impl Executions {
    fn name(self) -> &'static str {
        match self {
            Self::Counted => "counted",
            Self::Answers => "inferred_from_answers",
            Self::Word => "the_api_s_word",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Counted => "counted by the API itself, at --count-url",
            Self::Answers => {
                "concluded from the answers, which differ from execution to execution; a --count-url \
                 would be proof"
            }
            Self::Word => {
                "hardly known: every execution has the same answer, so only what the API says about \
                 itself is left; name a --count-url"
            }
        }
    }
}

impl Report {
    pub(super) fn new(lab: &Lab, findings: Vec<Finding>) -> Self {
        let executions = match (&lab.target.count, lab.tells_apart) {
            (Some(_), _) => Executions::Counted,
            (None, true) => Executions::Answers,
            (None, false) => Executions::Word,
        };
        Self {
            method: lab.target.method.to_string(),
            url: lab.target.endpoint.shown(),
            profile: lab.target.rules.name,
            executions,
            requests: lab.sent(),
            findings,
        }
    }

    pub(super) fn count(&self, verdict: Verdict) -> usize {
        let found = self.findings.iter();
        found.filter(|finding| finding.verdict == verdict).count()
    }

    fn dangers(&self) -> usize {
        let danger = |finding: &&Finding| finding.severity == Some(Severity::Danger);
        self.findings.iter().filter(danger).count()
    }

    /// The result in one sentence.
    fn conclusion(&self) -> String {
        let (fails, unsure) = (self.count(Verdict::Fail), self.count(Verdict::CannotTell));
        let checks = |count: usize| match count {
            1 => "1 check".to_owned(),
            count => format!("{count} checks"),
        };
        match (fails, self.dangers(), unsure) {
            (0, _, 0) => "Safe to retry, as far as these checks go.".to_owned(),
            (0, _, unsure) => format!("No failure seen; {} could not be told.", checks(unsure)),
            (fails, 0, _) => format!(
                "Nothing was done twice, but {} failed: clients will be misled.",
                checks(fails)
            ),
            (_, dangers, _) => format!(
                "Not safe to retry: {} failed in a way that repeats, loses or leaks an operation.",
                checks(dangers)
            ),
        }
    }

    /// Writes the requested files.
    pub(super) fn write_files(&self, args: &VerifyArgs) -> anyhow::Result<()> {
        if let Some(file) = &args.junit {
            write(file, &self.junit())?;
        }
        if let Some(file) = &args.html {
            write(file, &self.html())?;
        }
        Ok(())
    }
}

/// Checks that `file` can be written, and keeps its content.
pub(super) fn writable(file: &Path) -> anyhow::Result<()> {
    let opened = OpenOptions::new().create(true).append(true).open(file);
    opened
        .map(drop)
        .with_context(|| format!("cannot write {}", file.display()))
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// `text` escaped for HTML and XML.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // XML has no other control characters, escaped or not.
            c if c.is_control() && !matches!(c, '\n' | '\t') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn what_an_api_says_cannot_become_markup() {
        let said = "<script>alert('x')</script> & \"\u{1b}[31m\n";
        let escaped = escape(said);
        assert!(
            !escaped.contains(['<', '>', '"', '\'', '\u{1b}']),
            "{escaped}"
        );
        assert!(escaped.contains("&lt;script&gt;") && escaped.ends_with('\n'));
    }
}
