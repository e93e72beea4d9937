//! Where a profile overrules what somebody wrote: the precedence stands, and nobody should be surprised by it.
//!
//! A profile of a route is stronger than an option of all routes. A limit is different: the stricter
//! number holds, so a profile overrules only larger ones, a route's own included.

use onlyonce_core::policy::Profile;
use serde_json::Value;

use super::{
    diagnostics::Report,
    fields::{LimitTable, OptionTable},
    rules::{Ruled, Surroundings},
    setting::{Table, Word},
};

/// A value as a file would say it.
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

/// Warns of each value that a profile overrules on this route.
pub(super) fn warn(ruled: &Ruled<'_, '_>, around: &Surroundings<'_, '_>, report: &mut Report<'_>) {
    let (route, global) = (&ruled.route.stated, around.global);
    let profile = ruled.policy.profile;
    if let Some(own) = route.options.profile {
        overruled_options(ruled, around, own, report);
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

fn overruled_options(
    ruled: &Ruled<'_, '_>,
    around: &Surroundings<'_, '_>,
    profile: Profile,
    report: &mut Report<'_>,
) {
    let (name, word) = (ruled.name(), profile.name());
    let mut overruled = |field: &str, of_all: &str, by_profile: &str, at| {
        let weaker = match (field, of_all) {
            ("enforce", "all") => ", which demands fewer keys",
            _ => "",
        };
        let message = format!(
            "route `{name}`: profile `{word}` overrules `{field}: {of_all}` with \
             `{field}: {by_profile}`{weaker}"
        );
        report.warning(at, message).hint(format!(
            "what is said for all routes is weaker than a route's profile: say `{field}: {of_all}` or \
             `{field}: {by_profile}` on the route"
        ));
    };
    let own = OptionTable::said(&ruled.route.stated.options).into_iter();
    let said = own.zip(OptionTable::said(&around.global.options));
    let by_profile = OptionTable::said(&profile.options());
    for (((field, own), (_, of_all)), (_, by_profile)) in said.zip(by_profile) {
        if let (None, Some(of_all), Some(by_profile)) = (own, of_all, by_profile)
            && of_all != by_profile
        {
            let at = around.global.place(&[field]).unwrap_or(ruled.route.at);
            overruled(field, &written(&of_all), &written(&by_profile), at);
        }
    }
    // A profile is stricter than what is said for all about connections, too.
    if let Some(at) = around.reuse_at
        && profile == Profile::Payments
        && ruled.route.fields.upstream_reuse.is_none()
    {
        overruled("upstream_reuse", "true", "false", at);
    }
}
