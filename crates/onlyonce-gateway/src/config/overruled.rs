//! Warnings where a profile or a dialect overrules a written value, so that the precedence surprises nobody.
//!
//! A route's profile or dialect overrules an option for all routes. Limits are different: the stricter value
//! holds, so a profile overrules only larger limits, including the route's own.

use onlyonce_core::policy::{Options, Profile};
use serde_json::Value;

use super::{
    diagnostics::Report,
    fields::{FingerprintTable, LimitTable, OptionTable},
    rules::{Ruled, Surroundings},
    setting::{Table, Word},
    tree::Span,
};

/// A value as written in a file.
fn written(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(written).collect();
            format!("[{}]", items.join(", "))
        }
        other => other.to_string(),
    }
}

/// A profile's setting for connection reuse, which is not part of a policy.
pub(super) fn reuse_by_profile(profile: Profile) -> Option<bool> {
    (profile == Profile::Payments).then_some(false)
}

/// Warns of each value that a profile or a dialect overrules on this route.
pub(super) fn warn(ruled: &Ruled<'_, '_>, around: &Surroundings<'_, '_>, report: &mut Report<'_>) {
    let (route, global) = (&ruled.route.stated, around.global);
    let profile = ruled.policy.profile;
    let own = route.options.profile.map(Profile::options);
    if let Some(own) = &own {
        let voice = Voice::new("profile", profile.name(), own);
        overruled_options(ruled, around, &voice, &[&route.options], report);
        overruled_reuse(ruled, around, &voice, profile, report);
    }
    if let Some(dialect) = route.options.dialect {
        let says = dialect.options(ruled.policy.enforce);
        let voice = Voice::new("dialect", dialect.name(), &says);
        let stronger: Vec<&Options> = [&route.options].into_iter().chain(&own).collect();
        overruled_options(ruled, around, &voice, &stronger, report);
    }
    if route.options.profile.or(global.options.profile).is_none() {
        return;
    }
    let (name, word) = (ruled.name(), profile.name());
    let own = LimitTable::said(&route.options).into_iter();
    let said = own.zip(LimitTable::said(&global.options));
    for (((field, own), (_, of_all)), (_, limit)) in said.zip(LimitTable::said(&profile.options()))
    {
        let stated = match own {
            Some(_) => route,
            None => global,
        };
        if let (Some(explicit), Some(limit)) = (own.or(of_all), limit)
            && limit.as_u64() < explicit.as_u64()
        {
            let message = format!(
                "route `{name}`: `{field}: {explicit}` is looser than profile `{word}`, so {limit} holds"
            );
            report
                .warning(stated.place(&["limits"]).unwrap_or(ruled.route.at), message)
                .hint(format!(
                    "of a limit and a profile's the stricter holds: say `{field}: {limit}` or less on \
                     the route, or choose another profile for it"
                ));
        }
    }
}

/// A profile or a dialect named by a route.
struct Voice<'a> {
    kind: &'static str,
    name: &'static str,
    says: &'a Options,
}

impl<'a> Voice<'a> {
    fn new(kind: &'static str, name: &'static str, says: &'a Options) -> Self {
        Self { kind, name, says }
    }

    fn overrules(
        &self,
        ruled: &Ruled<'_, '_>,
        (field, of_all, held): (&str, &str, &str),
        at: Span,
        report: &mut Report<'_>,
    ) {
        let weaker = match (field, of_all) {
            ("enforce", "all") => ", which demands fewer keys",
            _ => "",
        };
        let (route, kind, name) = (ruled.name(), self.kind, self.name);
        let message = format!(
            "route `{route}`: {kind} `{name}` overrules `{field}: {of_all}` with \
             `{field}: {held}`{weaker}"
        );
        report.warning(at, message).hint(format!(
            "what is said for all routes is weaker than a route's {kind}: say `{field}: {of_all}` or \
             `{field}: {held}` on the route"
        ));
    }
}

/// The options that were set, by name; those of the fingerprint have its prefix.
fn said(options: &Options) -> Vec<(String, Option<Value>)> {
    let beside = OptionTable::said(options).into_iter();
    let fingerprint = FingerprintTable::said(&options.fingerprint.clone().unwrap_or_default());
    let inside = fingerprint.into_iter();
    beside
        .map(|(field, value)| (field.to_owned(), value))
        .chain(inside.map(|(field, value)| (format!("fingerprint.{field}"), value)))
        .collect()
}

/// Warns of each option for all routes that `voice` overrules and that nothing `stronger` sets.
fn overruled_options(
    ruled: &Ruled<'_, '_>,
    around: &Surroundings<'_, '_>,
    voice: &Voice<'_>,
    stronger: &[&Options],
    report: &mut Report<'_>,
) {
    let stronger: Vec<_> = stronger.iter().map(|options| said(options)).collect();
    let of_all = said(&around.global.options);
    for (index, ((field, of_all), (_, held))) in of_all.iter().zip(said(voice.says)).enumerate() {
        let is_overruled = stronger.iter().any(|said| said[index].1.is_some());
        if let (false, Some(of_all), Some(held)) = (is_overruled, of_all, held)
            && *of_all != held
        {
            let (section, _) = field.split_once('.').unwrap_or((field, ""));
            let at = around.global.place(&[section]).unwrap_or(ruled.route.at);
            let words = (field.as_str(), &*written(of_all), &*written(&held));
            voice.overrules(ruled, words, at, report);
        }
    }
}

/// Warns if the profile overrules connection reuse for all routes.
fn overruled_reuse(
    ruled: &Ruled<'_, '_>,
    around: &Surroundings<'_, '_>,
    voice: &Voice<'_>,
    profile: Profile,
    report: &mut Report<'_>,
) {
    if let (Some(at), Some(false)) = (around.reuse_at, reuse_by_profile(profile))
        && ruled.route.fields.upstream_reuse.is_none()
    {
        voice.overrules(ruled, ("upstream_reuse", "true", "false"), at, report);
    }
}
