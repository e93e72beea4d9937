//! The idempotency options of a route or of the whole gateway, as somebody wrote them down.
//!
//! Deliberately absent: defaults, dialects and profiles. [`Policy::resolve`] lays those beneath.
//!
//! [`Policy::resolve`]: onlyonce_core::policy::Policy::resolve

use std::{ops::RangeInclusive, time::Duration};

use http::{HeaderName, Method, StatusCode};
use onlyonce_core::{
    fingerprint::{BodyMode, Pointer},
    policy::{
        AfterExpiry, Dialect, Enforce, ErrorFormat, FingerprintOptions, KeyScope, On5xx,
        OnInFlight, OnStoreError, Options, PathReadings, Profile, Remember, usual_session_cookies,
    },
};

use super::{
    diagnostics::{Report, quoted},
    fields::{FINGERPRINT, LIMITS, TOP},
    reconcile::{self, StatedReconcile},
    scalar::{Found, header_name, method},
    section::Section,
    tree::{Span, Value},
    units::MAX_DURATION,
};

/// The longest key that anybody may ask for, in bytes.
const MAX_KEY_LENGTH: usize = 1_024;
/// The largest number of waiters that anybody may ask for.
const MAX_WAITERS: usize = 1_000_000;

/// The highest rate that anybody may ask for, a second.
const MAX_RATE: usize = 1_000_000;
/// The largest number of live keys that anybody may ask for.
const MAX_LIVE_KEYS: usize = 100_000_000;

/// Any duration, and none.
pub(super) const ANY: RangeInclusive<Duration> = Duration::ZERO..=MAX_DURATION;
/// Any duration that is one.
pub(super) const SOME: RangeInclusive<Duration> = Duration::from_millis(1)..=MAX_DURATION;
/// Times of requests are in seconds.
const AGE: RangeInclusive<Duration> = Duration::from_secs(1)..=MAX_DURATION;
/// Long enough to be renewed three times before it lapses.
const LEASE: RangeInclusive<Duration> = Duration::from_secs(1)..=MAX_DURATION;

/// What one `idempotency` section says.
pub(super) struct Stated<'n> {
    pub(super) options: Options,
    /// Whether the embedded store was asked for by name.
    pub(super) mode: Option<&'static str>,
    /// How unknown outcomes are looked into; `None` also for `operator`.
    pub(super) reconcile: Option<StatedReconcile>,
    /// Whether everything that was said could be read, so that a default is really meant.
    pub(super) sound: bool,
    section: Section<'n>,
    lifted: Vec<(&'static str, Span)>,
}

impl<'n> Stated<'n> {
    pub(super) fn read(section: Section<'n>, report: &mut Report<'_>) -> Self {
        let errors = report.errors();
        let mut options = Options {
            enabled: section.boolean("enabled", report),
            enforce: enforce(&section, report),
            path_readings: path_readings(&section, report),
            key_per_route: section.boolean("key_per_route", report),
            shadow: section.boolean("shadow", report),
            reject_sensitive_keys: section.boolean("reject_sensitive_keys", report),
            header_name: section.header("header_name", report),
            replayed_header: section.header("replayed_header", report),
            request_time_header: section.header("request_time_header", report),
            methods: section.list("methods", report, honoured_method),
            credential_headers: section.list("credential_headers", report, header_name),
            credential_cookies: credential_cookies(&section, report),
            release_statuses: section.list("release_statuses", report, release_status),
            max_key_length: section.number("max_key_length", 1..=MAX_KEY_LENGTH, report),
            min_key_length: section.number("min_key_length", 1..=MAX_KEY_LENGTH, report),
            max_request_body: section.size("max_request_body", report),
            max_body_size: section.size("max_body_size", report),
            fingerprint: fingerprint(&section, report),
            ..Options::default()
        };
        words(&section, &mut options, report);
        durations(&section, &mut options, report);
        limits(
            section.section("limits", &LIMITS, report),
            false,
            &mut options,
            report,
        );
        if section.is_empty_list("methods") {
            let at = section.place("methods").unwrap_or(section.at);
            report
                .error(at, "`methods` is empty")
                .hint("to switch keys off, say `enabled: false`");
        }
        let mode = mode(&section, report);
        let reconcile = reconcile::read(&section, report);
        let sound = report.errors() == errors;
        Self {
            options,
            mode,
            reconcile,
            sound,
            section,
            lifted: Vec::new(),
        }
    }

    /// Takes over what the section around this one says about `fields`.
    pub(super) fn lift(
        &mut self,
        around: Section<'n>,
        fields: &[&'static str],
        report: &mut Report<'_>,
    ) {
        let errors = report.errors();
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
            let options = &mut self.options;
            match field {
                "timeout" => options.timeout = around.duration(field, SOME, report),
                "max_execution" => options.max_execution = around.duration(field, SOME, report),
                "shadow" => options.shadow = around.boolean(field, report),
                "path_readings" => options.path_readings = path_readings(&around, report),
                "limits" => {
                    let is_top = around.name() == TOP.name;
                    let section = around.section(field, &LIMITS, report);
                    limits(section, is_top, options, report);
                }
                _ => {}
            }
        }
        self.sound &= report.errors() == errors;
    }

    pub(super) fn says(&self, field: &str) -> bool {
        self.section.says(field)
    }

    /// Where options stand that nobody switched on or off.
    pub(super) fn idle(&self) -> Option<Span> {
        (self.section.says_anything() && !self.says("enabled")).then_some(self.section.at)
    }

    /// Where the first of `fields` that was said stands.
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

fn words(section: &Section<'_>, options: &mut Options, report: &mut Report<'_>) {
    let dialects = [
        ("ietf", Dialect::Ietf),
        ("stripe", Dialect::Stripe),
        ("runway", Dialect::Runway),
    ];
    options.dialect = section.word("dialect", &dialects, report);
    let profiles = [
        ("safe", Profile::Safe),
        ("payments", Profile::Payments),
        ("cache", Profile::Cache),
    ];
    options.profile = section.word("profile", &profiles, report);
    let scopes = [
        ("per_client", KeyScope::PerClient),
        ("global", KeyScope::Global),
    ];
    options.key_scope = section.word("key_scope", &scopes, report);
    let expiry = [("new", AfterExpiry::New), ("reject", AfterExpiry::Reject)];
    options.after_expiry = section.word("after_expiry", &expiry, report);
    let in_flight = [
        ("wait", OnInFlight::Wait),
        ("reject", OnInFlight::Reject),
        ("accept", OnInFlight::Accept),
    ];
    let remember = [("full", Remember::Full), ("head", Remember::Head)];
    options.remember = section.word("remember", &remember, report);
    options.on_in_flight = section.word("on_in_flight", &in_flight, report);
    let errors = [
        ("retry", On5xx::Retry),
        ("store", On5xx::Store),
        ("unknown", On5xx::Unknown),
    ];
    options.on_5xx = section.word("on_5xx", &errors, report);
    let store = [
        ("refuse", OnStoreError::Refuse),
        ("bypass", OnStoreError::Bypass),
    ];
    options.on_store_error = section.word("on_store_error", &store, report);
    let formats = [
        ("hybrid", ErrorFormat::Hybrid),
        ("problem", ErrorFormat::Problem),
        ("stripe", ErrorFormat::Stripe),
    ];
    options.error_format = section.word("error_format", &formats, report);
}

fn durations(section: &Section<'_>, options: &mut Options, report: &mut Report<'_>) {
    options.ttl = section.duration("ttl", SOME, report);
    options.tombstone_ttl = section.duration("tombstone_ttl", SOME, report);
    options.wait_timeout = section.duration("wait_timeout", ANY, report);
    options.lease = section.duration("lease", LEASE, report);
    options.timeout = section.duration("timeout", SOME, report);
    options.max_execution = section.duration("max_execution", SOME, report);
    options.completion_grace = section.duration("completion_grace", ANY, report);
    options.max_request_age = section.duration("max_request_age", AGE, report);
}

fn credential_cookies(section: &Section<'_>, report: &mut Report<'_>) -> Option<Vec<String>> {
    const FIELD: &str = "credential_cookies";
    let (node, _) = section.node(FIELD)?;
    if let Value::List(_) = node.value {
        return section.list(FIELD, report, cookie_name);
    }
    section.word(FIELD, &[("auto", ())], report)?;
    Some(usual_session_cookies())
}

fn cookie_name(found: Found<'_>, report: &mut Report<'_>) -> Option<String> {
    // A token of RFC 9110, as a header's name is; but letter case counts.
    if HeaderName::from_bytes(found.text.as_bytes()).is_ok() {
        return Some(found.text.to_owned());
    }
    report
        .error(
            found.at,
            format!("{} cannot be the name of a cookie", quoted(found.written)),
        )
        .hint("for example `[session]`, or `auto`");
    None
}

fn enforce(section: &Section<'_>, report: &mut Report<'_>) -> Option<Enforce> {
    let words = [
        ("true", Enforce::On),
        ("false", Enforce::Off),
        ("all", Enforce::All),
    ];
    section.word("enforce", &words, report)
}

fn path_readings(section: &Section<'_>, report: &mut Report<'_>) -> Option<PathReadings> {
    let words = [
        ("common", PathReadings::Common),
        ("exact", PathReadings::Exact),
    ];
    section.word("path_readings", &words, report)
}

/// The limits of `section`; what concerns all routes together is for the top level alone.
fn limits(section: Section<'_>, is_top: bool, options: &mut Options, report: &mut Report<'_>) {
    let mut rate = |field: &str| {
        let found = section.number(field, 1..=MAX_RATE, report)?;
        u32::try_from(found).ok()
    };
    options.new_keys_per_second = options.new_keys_per_second.or(rate("new_keys_per_second"));
    options.burst = options.burst.or(rate("burst"));
    options.lookups_per_second = options.lookups_per_second.or(rate("lookups_per_second"));
    let live = section.number("live_keys", 1..=MAX_LIVE_KEYS, report);
    options.live_keys = options.live_keys.or(live.map(|count| count as u64));
    let said = section.number("waiters_per_key", 0..=MAX_WAITERS, report);
    options.waiters_per_key = options.waiters_per_key.or(said);
    options.waiters = options
        .waiters
        .or(section.number("waiters", 0..=MAX_WAITERS, report));
    options.detached = options
        .detached
        .or(section.number("detached", 1..=MAX_WAITERS, report));
    if let Some(at) = section.place("held_bytes").filter(|_| !is_top) {
        report
            .error(at, "`held_bytes` is for all routes together")
            .hint("say it under `limits` at the top level");
    }
}

/// Which kind of store was asked for by name.
fn mode(section: &Section<'_>, report: &mut Report<'_>) -> Option<&'static str> {
    let modes = [("local", "local"), ("distributed", "distributed")];
    section.word("mode", &modes, report)
}

/// A name that stands for itself.
fn text(found: Found<'_>, report: &mut Report<'_>) -> Option<String> {
    if found.text.is_empty() {
        report.error(found.at, "an empty name");
    }
    Some(found.text.to_owned())
}

/// Hosts that count as one: without a second name there is nothing to make equal.
fn host_aliases(section: &Section<'_>, report: &mut Report<'_>) -> Option<Vec<String>> {
    let names = section.list("host_aliases", report, text)?;
    if names.len() == 1 {
        let at = section.place("host_aliases").unwrap_or(section.at);
        report
            .error(at, "`host_aliases` with one name makes nothing equal")
            .hint("list all names of the host, for example `[api.example.com, api.example.net]`");
    }
    Some(names)
}

fn fingerprint(parent: &Section<'_>, report: &mut Report<'_>) -> Option<FingerprintOptions> {
    let beside = host_aliases(parent, report);
    if !parent.says("fingerprint") {
        return beside.map(|names| FingerprintOptions {
            host_aliases: Some(names),
            ..FingerprintOptions::default()
        });
    }
    let section = parent.section("fingerprint", &FINGERPRINT, report);
    let modes = [("json", BodyMode::Json), ("raw", BodyMode::Raw)];
    let options = FingerprintOptions {
        mode: section.word("mode", &modes, report),
        fields: section.list("fields", report, pointer),
        ignore: section.list("ignore", report, pointer),
        headers: section.list("headers", report, |found, report| {
            header_name(found, report).map(|name| name.as_str().to_owned())
        }),
        host: section.boolean("host", report),
        host_aliases: host_aliases(&section, report).or(beside),
        ignore_query: section.list("ignore_query", report, text),
    };
    if options.mode == Some(BodyMode::Raw) {
        for field in ["fields", "ignore"] {
            if let Some(at) = section.place(field) {
                report
                    .error(at, format!("`{field}` has no meaning under `mode: raw`"))
                    .hint("raw bodies are compared byte by byte; pointers need `mode: json`");
            }
        }
    }
    Some(options)
}

pub(super) fn pointer(found: Found<'_>, report: &mut Report<'_>) -> Option<Pointer> {
    let pointer = Pointer::parse(found.text);
    if let Err(error) = &pointer {
        report
            .error(found.at, format!("{error}: {}", quoted(found.written)))
            .hint("for example `/metadata/trace_id`");
    }
    pointer.ok()
}

fn honoured_method(found: Found<'_>, report: &mut Report<'_>) -> Option<Method> {
    let method = method(found, report)?;
    if method == Method::CONNECT || method == Method::OPTIONS {
        report.error(
            found.at,
            format!("{method} always passes through and takes no key"),
        );
        return None;
    }
    Some(method)
}

fn release_status(found: Found<'_>, report: &mut Report<'_>) -> Option<StatusCode> {
    let status = found
        .text
        .parse()
        .ok()
        .and_then(|code: u16| StatusCode::from_u16(code).ok());
    match status.filter(|status| status.as_u16() <= 599) {
        Some(status) if status.as_u16() >= 400 => Some(status),
        Some(status) => {
            report
                .error(
                    found.at,
                    format!("`release_statuses` cannot hold {}", status.as_u16()),
                )
                .hint("a request that succeeded would be executed again");
            None
        }
        None => {
            report.error(
                found.at,
                format!("{} is not a status", quoted(found.written)),
            );
            None
        }
    }
}
