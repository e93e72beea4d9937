//! Profiles and dialects: what each sets, as the files, the warnings and the reference have it.

use onlyonce_core::policy::{Dialect, Enforce, Options, Profile};
use serde_json::Value as Json;

use super::{documents::docs, *};
use crate::config::{
    fields::{FINGERPRINT, FingerprintTable, IDEMPOTENCY, LIMITS, LimitTable, OptionTable, Schema},
    overruled::reuse_by_profile,
    setting::{Table, View, Word},
};

/// A value of each option that a profile or a dialect sets, of another kind than any of them sets: two where
/// they differ among themselves.
const OTHERS: [(&str, [&str; 2]); 16] = [
    ("enforce", ["all", "false"]),
    ("on_5xx", ["retry", "retry"]),
    ("release_statuses", ["[403]", "[403]"]),
    ("ttl", ["7h", "7h"]),
    ("after_expiry", ["new", "new"]),
    ("tombstone_ttl", ["7h", "7h"]),
    ("min_key_length", ["4", "4"]),
    ("max_key_length", ["77", "77"]),
    ("on_store_error", ["bypass", "refuse"]),
    ("replayed_header", ["X-Other", "X-Other"]),
    ("on_in_flight", ["reject", "reject"]),
    ("key_scope", ["per_client", "per_client"]),
    ("key_per_route", ["false", "false"]),
    ("fingerprint.headers", ["[x-other]", "[x-other]"]),
    ("upstream_reuse", ["true", "true"]),
    ("limits", ["1000000", "1000000"]),
];

/// The options that `options` sets, with their values as a file could say them.
fn set(options: &Options) -> Vec<(String, Json)> {
    let fingerprint = FingerprintTable::said(&options.fingerprint.clone().unwrap_or_default());
    let sections = [
        ("", OptionTable::said(options)),
        ("fingerprint.", fingerprint),
        ("limits.", LimitTable::said(options)),
    ];
    let named = sections.into_iter().flat_map(|(section, said)| {
        let said = said.into_iter();
        said.filter_map(move |(field, value)| Some((format!("{section}{field}"), value?)))
    });
    named.collect()
}

/// A file in which all routes say `of_all` about `field`, and one route has `voice` in its section.
fn contradicted(voice: &str, field: &str, of_all: &str) -> String {
    let (top, option) = match field.split_once('.') {
        Some((section, field)) => (String::new(), format!("{section}: {{ {field}: {of_all} }}")),
        None if field == "upstream_reuse" => (format!("{field}: {of_all}\n"), String::new()),
        None => (String::new(), format!("{field}: {of_all}")),
    };
    format!(
        "{top}store: {{ url: 'sqlite:a.db', single_node: true }}\n\
         auth: {{ trusted_header: {{ name: X-Client-Id, from: ['10.0.0.0/8'] }} }}\n\
         idempotency: {{ enabled: true, reconcile: operator, {option} }}\n\
         routes: [{{ id: a, path: /, backends: [{{ url: http://up }}], idempotency: {{ {voice} }} }}]\n"
    )
}

/// What holds for the first route about `field`.
fn held(config: &Config, field: &str) -> Json {
    let route = &config.routes[0];
    let shown = match field {
        "upstream_reuse" => return route.upstream_reuse.view(),
        _ => OptionTable::view(route),
    };
    let pointer = format!("/{}", field.replace('.', "/"));
    ordered(shown.pointer(&pointer).cloned().unwrap_or_default())
}

/// Lists of these options mean the same in any order.
fn ordered(mut value: Json) -> Json {
    if let Json::Array(items) = &mut value {
        items.sort_by_key(Json::to_string);
    }
    value
}

/// `field` is `value` on a route with `voice`, whatever is said for all routes, and `check` says so.
fn assert_set(voice: &str, field: &str, value: Json) {
    let value = ordered(value);
    let kind = field
        .split_once('.')
        .filter(|(section, _)| *section == "limits");
    let name = kind.map_or(field, |(section, _)| section);
    let (_, others) = OTHERS
        .iter()
        .find(|(option, _)| *option == name)
        .unwrap_or_else(|| panic!("`{voice}` sets `{field}`: say another value of it in OTHERS"));
    let mut contradictions = 0;
    for other in others {
        let silent = good(&contradicted("", field, other));
        if held(&silent, field) == value {
            continue;
        }
        contradictions += 1;
        let config = good(&contradicted(voice, field, other));
        assert_eq!(
            held(&config, field),
            value,
            "{voice} under {field}: {other}"
        );
        let of_field = format!("`{}: ", field.strip_prefix("limits.").unwrap_or(field));
        let is_said = config.warnings.iter().any(|warning| {
            let message = &warning.message;
            message.contains(&of_field)
                && (message.contains("overrules") || message.contains("is looser than"))
        });
        assert!(
            is_said,
            "{voice} under {field}: {other}\n{:#?}",
            config.warnings
        );
    }
    assert!(
        contradictions > 0,
        "`{voice}` sets `{field}`: OTHERS has nothing else"
    );
}

/// Goal: what a profile or a dialect sets on a route, nothing that is said for all routes changes, and
/// nobody is surprised by it.
///
/// Method: for every option that one of them sets, say another value for all routes.
/// Evidence: the value that `GET /config` shows of the route, and a warning of `check`.
#[test]
fn what_is_set_overrules_what_is_said_for_all() {
    for profile in Profile::VALUES {
        let voice = format!("profile: {}", profile.name());
        for (field, value) in set(&profile.options()) {
            assert_set(&voice, &field, value);
        }
        if let Some(reuse) = reuse_by_profile(*profile) {
            assert_set(&voice, "upstream_reuse", reuse.into());
        }
    }
    for dialect in Dialect::VALUES {
        for enforce in Enforce::VALUES {
            let voice = format!("dialect: {}, enforce: {}", dialect.name(), enforce.name());
            for (field, value) in set(&dialect.options(*enforce)) {
                assert_set(&voice, &field, value);
            }
        }
    }
}

/// An option that a route's profile sets is none of its dialect's business, and no warning speaks of it.
#[test]
fn of_a_profile_and_a_dialect_the_profile_is_named() {
    let config = good(&contradicted(
        "profile: payments, dialect: stripe",
        "on_5xx",
        "retry",
    ));
    let found = config.warnings.iter().map(|one| one.message.as_str());
    let about: Vec<&str> = found.filter(|one| one.contains("overrules")).collect();
    assert_eq!(
        about,
        ["route `a`: profile `payments` overrules `on_5xx: retry` with `on_5xx: unknown`"]
    );
}

/// A value as the tables of the reference have it.
fn cell(value: &Json) -> String {
    match value {
        Json::String(text) => {
            let hours = text
                .strip_suffix("h0m0s")
                .and_then(|h| h.parse::<u64>().ok());
            match hours {
                Some(hours) if hours % 24 == 0 && hours > 72 => format!("`{}d`", hours / 24),
                Some(hours) => format!("`{hours}h`"),
                None => format!("`{text}`"),
            }
        }
        Json::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| item.to_string()).collect();
            format!("`[{}]`", items.join(", "))
        }
        other => format!("`{other}`"),
    }
}

/// What holds without a word, as the reference has it.
fn default(field: &str) -> String {
    let (schema, name): (&Schema, &str) = match field.split_once('.') {
        Some(("fingerprint", name)) => (&FINGERPRINT, name),
        Some((_, name)) => (&LIMITS, name),
        None if field == "upstream_reuse" => (&crate::config::fields::TOP, field),
        None => (&IDEMPOTENCY, field),
    };
    let declared = schema.field(name).unwrap();
    let words = declared.default.split(';').next().unwrap_or_default();
    declared
        .value
        .map_or(words.to_owned(), |value| format!("`{value}`"))
}

/// A table of what each of `voices` sets, in bold, and the default where it sets nothing.
fn table(voices: &[(&str, Vec<(String, String)>)]) -> String {
    let names: Vec<String> = voices.iter().map(|(name, _)| format!("`{name}`")).collect();
    let mut table = format!(
        "| | {} |\n|---{}|\n",
        names.join(" | "),
        "|---".repeat(names.len())
    );
    let mut rows: Vec<&str> = Vec::new();
    for (field, _) in voices.iter().flat_map(|(_, set)| set) {
        if !rows.contains(&field.as_str()) {
            rows.push(field);
        }
    }
    for row in rows {
        let cells = voices.iter().map(|(_, set)| {
            let set = set.iter().find(|(field, _)| field == row);
            set.map_or_else(|| default(row), |(_, value)| format!("**{value}**"))
        });
        let cells: Vec<String> = cells.collect();
        let name = match row.contains(' ') {
            true => row.to_owned(),
            false => format!("`{row}`"),
        };
        table.push_str(&format!("| {name} | {} |\n", cells.join(" | ")));
    }
    table
}

fn of_profiles() -> String {
    let columns: Vec<_> = Profile::VALUES
        .iter()
        .map(|profile| {
            let options = set(&profile.options()).into_iter();
            let reuse =
                reuse_by_profile(*profile).map(|reuse| ("upstream_reuse".to_owned(), reuse.into()));
            let all = options.chain(reuse);
            (
                profile.name(),
                all.map(|(field, value)| (field, cell(&value))).collect(),
            )
        })
        .collect();
    table(&columns)
}

fn of_dialects() -> String {
    let columns: Vec<_> = Dialect::VALUES
        .iter()
        .map(|dialect| {
            let open = dialect.options(Enforce::Off);
            let status = |status: Option<http::StatusCode>| status.unwrap().as_str().to_owned();
            let covered = match dialect {
                Dialect::Runway => "every listed method",
                _ => "POST, PATCH",
            };
            let mut rows = vec![
                (
                    "other request under the key".to_owned(),
                    status(open.reused_status),
                ),
                ("key missing".to_owned(), status(open.missing_status)),
                ("what `enforce: true` covers".to_owned(), covered.to_owned()),
            ];
            let enforced = set(&dialect.options(Enforce::On));
            for (field, value) in set(&open) {
                let other = enforced.iter().find(|(name, _)| *name == field);
                let cell = match (field.as_str(), other) {
                    ("fingerprint.headers", _) => {
                        "those below, and `Stripe-Account`, `Stripe-Version`".to_owned()
                    }
                    ("replayed_header", _) => format!("`{}`", title(value.as_str().unwrap())),
                    (_, Some((_, enforced))) if *enforced != value => {
                        format!("{}; with `enforce` {}", cell(&value), cell(enforced))
                    }
                    _ => cell(&value),
                };
                rows.push((field, cell));
            }
            (dialect.name(), rows)
        })
        .collect();
    table(&columns)
}

/// `x-again` as people write it: `X-Again`.
fn title(header: &str) -> String {
    let words = header.split('-').map(|word| {
        let (first, rest) = word.split_at(1);
        first.to_uppercase() + rest
    });
    words.collect::<Vec<_>>().join("-")
}

/// The tables are made from the declarations; `ONLYONCE_WRITE_DOCS=1` writes them anew.
#[test]
fn the_reference_shows_what_is_set() {
    let path = docs().join("reference/config.md");
    let mut page = fs::read_to_string(&path).unwrap();
    let writes = std::env::var_os("ONLYONCE_WRITE_DOCS").is_some();
    for (heading, made) in [
        ("### Dialects", of_dialects()),
        ("### Profiles", of_profiles()),
    ] {
        let begins = page.find(heading).expect("the heading");
        let begins = begins + page[begins..].find("\n| | ").expect("a table") + 1;
        let ends = begins + page[begins..].find("\n\n").expect("an end of the table") + 1;
        if writes {
            page.replace_range(begins..ends, &made);
        } else {
            assert_eq!(&page[begins..ends], made, "{heading}");
        }
    }
    if writes {
        fs::write(path, page).unwrap();
    }
}
