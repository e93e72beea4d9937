//! Where a profile overrules what somebody wrote: the precedence stands, and nobody should be surprised by it.
//!
//! A profile of a route is stronger than an option of all routes. A limit is different: the stricter
//! number holds, so a profile overrules only larger ones, a route's own included.

use http::StatusCode;
use onlyonce_core::policy::{Enforce, Options, Profile};

use super::{
    diagnostics::Report,
    rules::{Ruled, Surroundings},
    shown::word,
    units::go_duration,
};

/// An option and its value as it would be written down.
type Written = (&'static str, Option<String>);

/// Every option that a profile may have an opinion on, but for the limits.
fn options(said: &Options) -> [Written; 8] {
    let enforce = said.enforce.map(|enforce| match enforce {
        Enforce::Off => "false",
        Enforce::On => "true",
        Enforce::All => "all",
    });
    let statuses = said.release_statuses.as_deref().map(|statuses| {
        let codes: Vec<&str> = statuses.iter().map(StatusCode::as_str).collect();
        format!("[{}]", codes.join(", "))
    });
    [
        ("enforce", enforce.map(str::to_owned)),
        ("on_5xx", said.on_5xx.map(word)),
        ("release_statuses", statuses),
        ("ttl", said.ttl.map(go_duration)),
        ("after_expiry", said.after_expiry.map(word)),
        ("tombstone_ttl", said.tombstone_ttl.map(go_duration)),
        (
            "min_key_length",
            said.min_key_length.map(|length| length.to_string()),
        ),
        ("on_store_error", said.on_store_error.map(word)),
    ]
}

fn limits(said: &Options) -> [(&'static str, Option<u64>); 4] {
    [
        (
            "new_keys_per_second",
            said.new_keys_per_second.map(u64::from),
        ),
        ("burst", said.burst.map(u64::from)),
        ("live_keys", said.live_keys),
        ("lookups_per_second", said.lookups_per_second.map(u64::from)),
    ]
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
    let (name, word) = (ruled.name(), word(profile));
    let said = limits(&route.options)
        .into_iter()
        .zip(limits(&global.options));
    for (((field, own), (_, of_all)), (_, limit)) in said.zip(limits(&profile.options())) {
        let stated = match own {
            Some(_) => route,
            None => global,
        };
        if let (Some(explicit), Some(limit)) = (own.or(of_all), limit)
            && limit < explicit
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
    let (name, word) = (ruled.name(), word(profile));
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
    let own = options(&ruled.route.stated.options);
    let said = own.into_iter().zip(options(&around.global.options));
    for (((field, own), (_, of_all)), (_, by_profile)) in said.zip(options(&profile.options())) {
        if let (None, Some(of_all), Some(by_profile)) = (own, of_all, by_profile)
            && of_all != by_profile
        {
            let at = around.global.place(&[field]).unwrap_or(ruled.route.at);
            overruled(field, &of_all, &by_profile, at);
        }
    }
    // A profile is stricter than what is said for all about connections, too.
    if let Some(at) = around.reuse_at
        && profile == Profile::Payments
        && ruled.route.upstream_reuse.is_none()
    {
        overruled("upstream_reuse", "true", "false", at);
    }
}
