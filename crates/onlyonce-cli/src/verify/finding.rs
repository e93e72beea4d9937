//! The result of a check, and its certainty.

use super::{catalogue::Check, exchange::Exchange};

/// The verdict of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    Fail,
    NotApplicable,
    CannotTell,
}

impl Verdict {
    pub(super) const ALL: [Self; 4] = [
        Self::Pass,
        Self::Fail,
        Self::NotApplicable,
        Self::CannotTell,
    ];

    /// The word for people.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "FAIL",
            Self::NotApplicable => "not applicable",
            Self::CannotTell => "cannot tell",
        }
    }

    /// The word for programs.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::NotApplicable => "not_applicable",
            Self::CannotTell => "cannot_tell",
        }
    }
}

/// What a verdict is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sure {
    /// The API's own count of executions.
    Counted,
    /// Answers that differ from execution to execution.
    Answers,
    /// What the API says about itself: a marker, a refusal.
    Word,
    /// What was sent over the wire, without any inference.
    Seen,
    /// Nothing.
    No,
}

impl Sure {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Counted => "counted",
            Self::Answers => "from answers",
            Self::Word => "its word",
            Self::Seen => "seen",
            Self::No => "",
        }
    }
}

/// How bad a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    /// An operation is executed twice or not at all, or an answer is shown to the wrong person.
    Danger,
    /// Nothing is executed twice, but a client is misled or left without its answer.
    Trouble,
}

impl Severity {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Danger => "danger",
            Self::Trouble => "trouble",
        }
    }
}

/// One line of the table, and its evidence.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) check: Check,
    pub(super) verdict: Verdict,
    pub(super) severity: Option<Severity>,
    pub(super) sure: Sure,
    pub(super) seen: String,
    pub(super) evidence: Vec<Exchange>,
    /// Requests that ran at the same time, for the chart.
    pub(super) race: Vec<Exchange>,
}

impl Finding {
    fn new(check: Check, verdict: Verdict, sure: Sure, seen: impl Into<String>) -> Self {
        Self {
            check,
            verdict,
            severity: None,
            sure,
            seen: seen.into(),
            evidence: Vec::new(),
            race: Vec::new(),
        }
    }

    pub(super) fn pass(check: Check, sure: Sure, seen: impl Into<String>) -> Self {
        Self::new(check, Verdict::Pass, sure, seen)
    }

    /// Executed twice or not at all, or shown to the wrong person.
    pub(super) fn danger(check: Check, sure: Sure, seen: impl Into<String>) -> Self {
        Self {
            severity: Some(Severity::Danger),
            ..Self::new(check, Verdict::Fail, sure, seen)
        }
    }

    /// A client is misled or left without its answer.
    pub(super) fn trouble(check: Check, sure: Sure, seen: impl Into<String>) -> Self {
        Self {
            severity: Some(Severity::Trouble),
            ..Self::new(check, Verdict::Fail, sure, seen)
        }
    }

    pub(super) fn not_applicable(check: Check, why: impl Into<String>) -> Self {
        Self::new(check, Verdict::NotApplicable, Sure::No, why)
    }

    pub(super) fn cannot_tell(check: Check, why: impl Into<String>) -> Self {
        Self::new(check, Verdict::CannotTell, Sure::No, why)
    }

    pub(super) fn with(mut self, evidence: &[&Exchange]) -> Self {
        self.evidence = evidence
            .iter()
            .map(|exchange| (*exchange).clone())
            .collect();
        self
    }

    pub(super) fn race(mut self, race: &[Exchange]) -> Self {
        self.race = race.to_vec();
        self
    }

    /// What it costs, if it failed.
    pub(super) fn cost(&self) -> Option<&'static str> {
        self.severity.map(|severity| self.check.cost(severity))
    }
}
