//! Diagnostics: what is wrong with a configuration, where, and what to write instead.
//!
//! A [`Report`] collects while readers go on, so that one run shows every mistake. A [`Diagnostic`] contains
//! its own file name and source line, and can be printed after the text is gone.
//!
//! Deliberately absent: the values of environment variables. Messages quote the file, and the passwords and
//! header values in it are blotted out of the source line.

mod blot;

use std::{error::Error, fmt, sync::Arc};

use super::tree::Span;
use blot::{blotted, without_header_values};

/// The most characters shown of a source line; longer lines are cut around the caret.
const SHOWN_LINE_CHARS: usize = 160;
/// The most characters of a value quoted in a message.
const QUOTED_CHARS: usize = 60;
/// The most diagnostics kept; a file with more mistakes is not a configuration.
const MAX_DIAGNOSTICS: usize = 200;
/// Below this similarity (0 to 1) a suggestion would be a guess.
const SUGGESTION_LIKENESS: f64 = 0.75;

/// For messages that already say what is allowed, or when no better hint is known.
const USUAL_HINT: &str =
    "docs/reference/config.md describes every field, and `onlyonce schema` tells editors";

/// Whether the configuration can still be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// The configuration cannot be used.
    Error,
    /// The configuration can be used, but somebody should know.
    Warning,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Diagnostic {
    /// Whether the configuration can still be used.
    pub severity: Severity,
    /// The name of the file, as given.
    pub file: Arc<str>,
    /// The line, from 1; 0 without a position in a file.
    pub line: u32,
    /// The column in characters, from 1.
    pub col: u32,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// The caret's width in characters.
    width: u32,
    source: String,
}

/// `FILE:LINE:COL: error: message`, the source line, a caret line, and the hint; without a final line break.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        if self.line == 0 {
            write!(f, "{}: {word}: {}", self.file, self.message)?;
        } else {
            write!(
                f,
                "{}:{}:{}: {word}: {}",
                self.file, self.line, self.col, self.message
            )?;
            let (shown, column) = window(&self.source, self.col.saturating_sub(1) as usize);
            let room = shown.chars().count().saturating_sub(column).max(1);
            let carets = "^".repeat((self.width as usize).clamp(1, room));
            write!(f, "\n    {shown}\n    {}{carets}", " ".repeat(column))?;
        }
        let hint = self.hint.as_deref();
        let usual = self.severity == Severity::Error && self.line > 0;
        match hint.or(usual.then_some(USUAL_HINT)) {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

/// All diagnostics, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics(pub(crate) Vec<Diagnostic>);

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .enumerate()
            .try_for_each(|(index, diagnostic)| {
                let separator = if index == 0 { "" } else { "\n" };
                write!(f, "{separator}{diagnostic}")
            })
    }
}

impl Error for Diagnostics {}

impl Diagnostics {
    /// The number of errors and the position of the first, for places where the file's content does not
    /// belong.
    pub(crate) fn summary(&self) -> String {
        let is_error = |one: &&Diagnostic| one.severity == Severity::Error;
        let count = self.0.iter().filter(is_error).count();
        let first = self.0.iter().find(is_error);
        let errors = if count == 1 { "error" } else { "errors" };
        match first.filter(|first| first.line > 0) {
            Some(first) => format!(
                "{count} {errors}, the first in line {}, column {}: see the log",
                first.line, first.col
            ),
            None => format!("{count} {errors}: see the log"),
        }
    }
}

/// Looks up environment variables.
type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Collects the findings of readers.
pub(super) struct Report<'a> {
    file: Arc<str>,
    text: &'a str,
    /// The text as it may be shown, computed for the first finding.
    lines: Option<Vec<String>>,
    errors: usize,
    found: Vec<Diagnostic>,
    /// The positions of unknown fields' values: any of them may be a secret.
    hidden: Vec<Span>,
    /// Looks up environment variables; `None` if they are not read.
    env: Option<Env<'a>>,
}

impl<'a> Report<'a> {
    pub(super) fn new(file: &str, text: &'a str) -> Self {
        Self {
            file: file.into(),
            text,
            lines: None,
            errors: 0,
            found: Vec::new(),
            hidden: Vec::new(),
            env: None,
        }
    }

    /// A report that is thrown away, for reading again what was reported already.
    pub(super) fn quiet() -> Self {
        Self::new("", "")
    }

    /// Enables the check that named variables are not empty.
    pub(super) fn with_env(self, env: Env<'a>) -> Self {
        Self {
            env: Some(env),
            ..self
        }
    }

    /// Whether environment variables are read.
    pub(super) fn looks_at_env(&self) -> bool {
        self.env.is_some()
    }

    /// Whether the variable `name` is known to be empty or unset.
    pub(super) fn is_unset(&self, name: &str) -> bool {
        let value = self.env.map(|env| env(name));
        value.is_some_and(|value| value.is_none_or(|value| value.is_empty()))
    }

    /// The value of the variable `name`, if variables are read and it is not empty.
    pub(super) fn value(&self, name: &str) -> Option<String> {
        let value = self.env.and_then(|env| env(name));
        value.filter(|value| !value.is_empty())
    }

    /// Hides the text at `at` in every finding that shows its line.
    pub(super) fn hide(&mut self, at: Span) {
        self.hidden.push(at);
    }

    /// Adds an error at `at`.
    pub(super) fn error(&mut self, at: Span, message: impl Into<String>) -> Noted<'_> {
        self.note(Severity::Error, at, message.into())
    }

    /// Adds a warning at `at`.
    pub(super) fn warning(&mut self, at: Span, message: impl Into<String>) -> Noted<'_> {
        self.note(Severity::Warning, at, message.into())
    }

    pub(super) fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// The errors so far, including those that were too many to keep.
    pub(super) fn errors(&self) -> usize {
        self.errors
    }

    /// All findings, in the order of the file, without duplicates: the target of an alias is read once per
    /// alias.
    pub(super) fn into_found(self) -> Vec<Diagnostic> {
        let mut found = self.found;
        for one in &mut found {
            for at in self.hidden.iter().filter(|at| at.line == one.line) {
                one.source = blot::without(&one.source, *at);
            }
        }
        found.sort_by_key(|one| (one.line, one.col));
        let mut each_once: Vec<Diagnostic> = Vec::with_capacity(found.len());
        for one in found {
            if !each_once.contains(&one) {
                each_once.push(one);
            }
        }
        each_once
    }

    fn note(&mut self, severity: Severity, at: Span, message: String) -> Noted<'_> {
        self.errors += usize::from(severity == Severity::Error);
        let text = self.text;
        let lines = self
            .lines
            .get_or_insert_with(|| without_header_values(text));
        let source = match at.line {
            0 => "",
            line => lines.get(line as usize - 1).map_or("", String::as_str),
        };
        // Once full, the last slot is overwritten: the list is bounded, and still has an error.
        if self.found.len() >= MAX_DIAGNOSTICS {
            self.found.pop();
        }
        self.found.push(Diagnostic {
            severity,
            file: self.file.clone(),
            line: at.line,
            col: at.col,
            message,
            hint: None,
            width: at.width,
            source: blotted(source),
        });
        Noted(self.found.last_mut())
    }
}

/// A diagnostic that was just added and may still get a hint.
pub(super) struct Noted<'a>(Option<&'a mut Diagnostic>);

impl Noted<'_> {
    pub(super) fn hint(self, hint: impl Into<String>) {
        self.hint_if(Some(hint.into()));
    }

    pub(super) fn hint_if(self, hint: Option<String>) {
        if let Some(diagnostic) = self.0 {
            diagnostic.hint = hint;
        }
    }
}

/// `text` in backticks, shortened and without control characters.
pub(super) fn quoted(text: &str) -> String {
    // Blotted before it is cut, since the cut may remove what reveals a password.
    let text = blotted(text);
    let mut short: String = text.chars().take(QUOTED_CHARS).map(printable).collect();
    if text.chars().nth(QUOTED_CHARS).is_some() {
        short.push('…');
    }
    format!("`{short}`")
}

/// A list of words in prose: `a`, `b` or `c`.
pub(super) fn listed(words: &[&str]) -> String {
    let ticked: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match ticked.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [rest @ .., last] => format!("{} or {last}", rest.join(", ")),
    }
}

/// The word that `text` was probably meant to be.
pub(super) fn nearest<'w>(text: &str, words: &[&'w str]) -> Option<&'w str> {
    let text = text.to_lowercase().replace('-', "_");
    words
        .iter()
        .map(|word| (strsim::jaro_winkler(&text, word), *word))
        .filter(|(likeness, _)| *likeness >= SUGGESTION_LIKENESS)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, word)| word)
}

fn printable(character: char) -> char {
    if character.is_control() {
        ' '
    } else {
        character
    }
}

/// The part of `line` around `column` that is shown, and the column within it.
fn window(line: &str, column: usize) -> (String, usize) {
    let start = column.saturating_sub(SHOWN_LINE_CHARS / 2);
    let start = if line.chars().count() <= SHOWN_LINE_CHARS {
        0
    } else {
        start
    };
    let shown = line
        .chars()
        .skip(start)
        .take(SHOWN_LINE_CHARS)
        .map(printable)
        .collect();
    (shown, column - start)
}

#[cfg(test)]
mod tests;
