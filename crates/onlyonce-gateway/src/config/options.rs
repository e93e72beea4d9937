//! The idempotency options of a route or of the whole gateway, as written.
//!
//! Deliberately absent: defaults, dialects and profiles. [`Policy::resolve`] adds them.
//!
//! [`Policy::resolve`]: onlyonce_core::policy::Policy::resolve

use onlyonce_core::{
    fingerprint::BodyMode,
    policy::{FingerprintOptions, Options, usual_session_cookies},
};

use super::{
    diagnostics::Report,
    fields::{FINGERPRINT, FingerprintTable, LIMITS, LimitTable, OptionTable, TOP},
    reconcile::{self, StatedReconcile},
    section::Section,
    setting::Table,
    tree::{Span, Value},
};

/// The content of one `idempotency` section.
pub(super) struct Stated<'n> {
    pub(super) options: Options,
    /// The word of `mode`, which may ask for the embedded store.
    pub(super) mode: Option<&'static str>,
    /// How unknown outcomes are reconciled; also `None` for `operator`.
    pub(super) reconcile: Option<StatedReconcile>,
    /// Options with invalid values: the default in their place was not intended.
    garbled: Vec<&'static str>,
    section: Section<'n>,
    lifted: Vec<(&'static str, Span)>,
}

impl<'n> Stated<'n> {
    pub(super) fn read(section: Section<'n>, report: &mut Report<'_>) -> Self {
        let (mut options, mut garbled) = (Options::default(), Vec::new());
        for field in OptionTable::SCHEMA.fields {
            option::<OptionTable>(&section, field.name, &mut options, &mut garbled, report);
        }
        options.credential_cookies = credential_cookies(&section, report);
        options.fingerprint = fingerprint(&section, report);
        let own = section.section("limits", &LIMITS, report);
        limits(own, false, &mut options, &mut garbled, report);
        if section.is_empty_list("methods") {
            let at = section.place("methods").unwrap_or(section.at);
            report
                .error(at, "`methods` is empty")
                .hint("to switch keys off, say `enabled: false`");
        }
        let mode = section.word("mode", report);
        let reconcile = reconcile::read(&section, report);
        Self {
            options,
            mode,
            reconcile,
            garbled,
            section,
            lifted: Vec::new(),
        }
    }

    /// Takes `fields` from the enclosing section.
    pub(super) fn lift(
        &mut self,
        around: Section<'n>,
        fields: &[&'static str],
        report: &mut Report<'_>,
    ) {
        for field in fields.iter().copied() {
            let Some(at) = around.place(field) else {
                continue;
            };
            if self.section.says(field) {
                report
                    .error(
                        at,
                        format!("`{field}` is said here and under `idempotency`"),
                    )
                    .hint("keep one of them");
                continue;
            }
            self.lifted.push((field, at));
            let (options, garbled) = (&mut self.options, &mut self.garbled);
            if field == "limits" {
                let is_top = around.name() == TOP.name;
                let section = around.section(field, &LIMITS, report);
                limits(section, is_top, options, garbled, report);
            } else {
                option::<OptionTable>(&around, field, options, garbled, report);
            }
        }
    }

    /// Whether one of `fields` has an invalid value.
    pub(super) fn garbles(&self, fields: &[&str]) -> bool {
        self.garbled.iter().any(|field| fields.contains(field))
    }

    pub(super) fn says(&self, field: &str) -> bool {
        self.section.says(field)
    }

    /// The position of options that are neither enabled nor disabled.
    pub(super) fn idle(&self) -> Option<Span> {
        (self.section.says_anything() && !self.says("enabled")).then_some(self.section.at)
    }

    /// The position of the first of `fields` that is present.
    pub(super) fn place(&self, fields: &[&str]) -> Option<Span> {
        let lifted = |field: &str| {
            self.lifted
                .iter()
                .find(|(name, _)| *name == field)
                .map(|(_, at)| *at)
        };
        fields
            .iter()
            .find_map(|field| self.section.place(field).or_else(|| lifted(field)))
    }
}

/// Reads one option, and notes whether its value is invalid.
fn option<T: Table<Options = Options>>(
    section: &Section<'_>,
    field: &'static str,
    options: &mut Options,
    garbled: &mut Vec<&'static str>,
    report: &mut Report<'_>,
) {
    let errors = report.errors();
    T::read(section, field, options, report);
    if report.errors() != errors {
        garbled.push(field);
    }
}

fn credential_cookies(section: &Section<'_>, report: &mut Report<'_>) -> Option<Vec<String>> {
    const FIELD: &str = "credential_cookies";
    let (node, _) = section.node(FIELD)?;
    if let Value::List(_) = node.value {
        return section.get(FIELD, report);
    }
    section.word(FIELD, report)?;
    Some(usual_session_cookies())
}

/// Reads the limits in `section`; those for all routes together are allowed at the top level only.
fn limits(
    section: Section<'_>,
    is_top: bool,
    options: &mut Options,
    garbled: &mut Vec<&'static str>,
    report: &mut Report<'_>,
) {
    for field in LimitTable::SCHEMA.fields {
        option::<LimitTable>(&section, field.name, options, garbled, report);
    }
    if let Some(at) = section.place("held_bytes").filter(|_| !is_top) {
        report
            .error(at, "`held_bytes` is for all routes together")
            .hint("say it under `limits` at the top level");
    }
}

fn fingerprint(parent: &Section<'_>, report: &mut Report<'_>) -> Option<FingerprintOptions> {
    let mut options = FingerprintOptions::default();
    let section = parent.section("fingerprint", &FINGERPRINT, report);
    FingerprintTable::read_all(&section, &mut options, report);
    lone_alias(&section, options.host_aliases.as_deref(), report);
    // These two may also be beside the section, but not in both places.
    for field in ["host_aliases", "ignore_query"] {
        if let Some(at) = parent.place(field).filter(|_| section.says(field)) {
            report
                .error(at, format!("`{field}` beside `fingerprint.{field}`"))
                .hint("leave one of them out");
        }
    }
    let aliases: Option<Vec<String>> = parent.get("host_aliases", report);
    lone_alias(parent, aliases.as_deref(), report);
    let ignored: Option<Vec<String>> = parent.get("ignore_query", report);
    let is_said = parent.says("fingerprint") || aliases.is_some() || ignored.is_some();
    options.host_aliases = options.host_aliases.or(aliases);
    options.ignore_query = options.ignore_query.or(ignored);
    if options.mode == Some(BodyMode::Raw) {
        for field in ["fields", "ignore"] {
            if let Some(at) = section.place(field) {
                report
                    .error(at, format!("`{field}` has no meaning under `mode: raw`"))
                    .hint("raw bodies are compared byte by byte; pointers need `mode: json`");
            }
        }
    }
    is_said.then_some(options)
}

/// Reports `host_aliases` with a single name, which has no effect.
fn lone_alias(section: &Section<'_>, names: Option<&[String]>, report: &mut Report<'_>) {
    if let Some([_]) = names {
        let at = section.place("host_aliases").unwrap_or(section.at);
        report
            .error(at, "`host_aliases` with one name makes nothing equal")
            .hint("list all names of the host, for example `[api.example.com, api.example.net]`");
    }
}
