//! What dialects and profiles say, who overrules whom, and what an answer means.

use std::time::Duration;

use super::*;
use crate::fingerprint::BodyMode;

fn named(dialect: Option<Dialect>, profile: Option<Profile>) -> Options {
    Options {
        enabled: Some(true),
        dialect,
        profile,
        ..Options::default()
    }
}

fn dialect(dialect: Dialect) -> Options {
    named(Some(dialect), None)
}

fn profile(profile: Profile) -> Options {
    named(None, Some(profile))
}

fn alone(options: &Options) -> Policy {
    Policy::resolve(options, &Options::default())
}

fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap()
}

fn codes(statuses: &[StatusCode]) -> Vec<u16> {
    statuses.iter().map(StatusCode::as_u16).collect()
}

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn the_defaults_are_those_of_the_contract() {
    let policy = Policy::default();
    assert!(policy.enabled);
    assert!(!alone(&Options::default()).enabled, "off unless said");
    assert_eq!(
        (policy.dialect, policy.profile),
        (Dialect::Ietf, Profile::Safe)
    );
    assert_eq!(policy.header_name, "idempotency-key");
    assert_eq!(policy.replayed_header, "x-idempotent-replayed");
    assert_eq!(policy.methods, [Method::POST, Method::PUT, Method::PATCH]);
    assert_eq!(policy.enforce, Enforce::Off);
    let edge = EdgeRules::resolve(&Options::default(), &Options::default());
    assert_eq!((edge.key_scope, edge.key_per_route), (None, false));
    assert_eq!(policy.key_rules, KeyRules::default());
    assert_eq!((policy.ttl, policy.tombstone_ttl), (24 * HOUR, 24 * HOUR));
    assert_eq!(policy.after_expiry, AfterExpiry::New);
    assert_eq!(
        (policy.max_request_body, policy.max_body_size),
        (1 << 20, 1 << 20)
    );
    assert_eq!(policy.on_in_flight, OnInFlight::Wait);
    assert_eq!(policy.wait_timeout, Duration::from_secs(30));
    assert_eq!(policy.on_5xx, On5xx::Retry);
    assert_eq!(codes(&policy.release_statuses), [401, 407, 421, 425, 429]);
    assert_eq!(policy.on_store_error, OnStoreError::Refuse);
    assert_eq!(policy.lease, Duration::from_secs(60));
    assert_eq!(policy.timeout, Duration::from_secs(30));
    assert_eq!(policy.max_execution, Duration::from_secs(900));
    assert_eq!(policy.completion_grace, Duration::from_secs(10));
    assert_eq!(policy.error_format, ErrorFormat::Hybrid);
    assert_eq!(
        (
            policy.reused_status.as_u16(),
            policy.missing_status.as_u16()
        ),
        (422, 400)
    );
    assert_eq!(edge.credential_headers, ["authorization", "x-api-key"]);
    assert_eq!(policy.recipe, Recipe::default());
    assert_eq!(policy.waiters_per_key, 1_000);
    assert_eq!(policy.reconcile, None);
}

#[test]
fn to_say_the_default_dialect_and_profile_changes_nothing() {
    let said = named(Some(Dialect::Ietf), Some(Profile::Safe));
    assert_eq!(alone(&said), Policy::default());
}

#[test]
fn stripe_changes_statuses_marker_5xx_key_length_and_headers() {
    let policy = alone(&dialect(Dialect::Stripe));
    let headers = ["stripe-account", "stripe-version"].map(str::to_owned);
    let recipe = Recipe::new(
        BodyMode::Json,
        Vec::new(),
        Vec::new(),
        Recipe::default()
            .headers()
            .iter()
            .cloned()
            .chain(headers)
            .collect(),
    );
    let expected = Policy {
        dialect: Dialect::Stripe,
        reused_status: StatusCode::BAD_REQUEST,
        replayed_header: HeaderName::from_static("idempotent-replayed"),
        on_5xx: On5xx::Store,
        key_rules: KeyRules {
            max_length: 255,
            ..KeyRules::default()
        },
        recipe,
        ..Policy::default()
    };
    assert_eq!(policy, expected);
}

#[test]
fn runway_changes_missing_scope_and_failing_open() {
    let expected = Policy {
        dialect: Dialect::Runway,
        missing_status: StatusCode::UNPROCESSABLE_ENTITY,
        on_store_error: OnStoreError::Bypass,
        ..Policy::default()
    };
    assert_eq!(alone(&dialect(Dialect::Runway)), expected);
    let nothing = Options::default();
    let expected = EdgeRules {
        key_scope: Some(KeyScope::Global),
        key_per_route: true,
        ..EdgeRules::resolve(&nothing, &nothing)
    };
    let edge = EdgeRules::resolve(&dialect(Dialect::Runway), &nothing);
    assert_eq!(edge, expected);
}

#[test]
fn runway_fails_open_unless_it_enforces_wherever_that_is_said() {
    for enforce in [Enforce::On, Enforce::All] {
        let enforced = Options {
            enforce: Some(enforce),
            ..Options::default()
        };
        let said = Options {
            enforce: Some(enforce),
            ..dialect(Dialect::Runway)
        };
        let policies = [
            alone(&said),
            Policy::resolve(&dialect(Dialect::Runway), &enforced),
            Policy::resolve(&enforced, &dialect(Dialect::Runway)),
            Policy::resolve(&dialect(Dialect::Runway), &profile(Profile::Payments)),
            Policy::resolve(&said, &profile(Profile::Cache)),
        ];
        for policy in policies {
            assert_eq!(policy.on_store_error, OnStoreError::Refuse);
        }
    }
    let closed = Options {
        on_store_error: Some(OnStoreError::Refuse),
        ..dialect(Dialect::Runway)
    };
    assert_eq!(alone(&closed).on_store_error, OnStoreError::Refuse);
}

#[test]
fn payments_demands_keys_distrusts_5xx_and_remembers_for_long() {
    let expected = Policy {
        profile: Profile::Payments,
        enforce: Enforce::On,
        on_5xx: On5xx::Unknown,
        release_statuses: vec![status(401), status(429)],
        ttl: 72 * HOUR,
        after_expiry: AfterExpiry::Reject,
        tombstone_ttl: 30 * 24 * HOUR,
        hide_card_numbers: true,
        key_rules: KeyRules {
            min_length: 16,
            ..KeyRules::default()
        },
        new_keys: Some((1_000, 2_000)),
        live_keys: Some(10_000),
        lookups_per_second: Some(100),
        ..Policy::default()
    };
    assert_eq!(alone(&profile(Profile::Payments)), expected);
}

#[test]
fn cache_lets_requests_through_when_the_store_is_down() {
    let expected = Policy {
        profile: Profile::Cache,
        on_store_error: OnStoreError::Bypass,
        ..Policy::default()
    };
    assert_eq!(alone(&profile(Profile::Cache)), expected);
}

/// The seven voices about `on_5xx`, the strongest first: whoever is on top of those that speak wins.
#[test]
fn the_route_overrules_the_gateway_and_options_overrule_profiles_and_dialects() {
    // (explicit, payments, stripe) of the route, then of the gateway.
    for voices in 0_u32..64 {
        let speaks = |voice: u32| voices & (1 << voice) != 0;
        let level = |first: u32| Options {
            enabled: Some(true),
            on_5xx: speaks(first).then_some(On5xx::Retry),
            profile: speaks(first + 1).then_some(Profile::Payments),
            dialect: speaks(first + 2).then_some(Dialect::Stripe),
            ..Options::default()
        };
        let said = [On5xx::Retry, On5xx::Unknown, On5xx::Store];
        let strongest = (0..6).find(|voice| speaks(*voice));
        let expected = strongest.map_or(On5xx::Retry, |voice| said[voice as usize % 3]);
        let policy = Policy::resolve(&level(0), &level(3));
        assert_eq!(policy.on_5xx, expected, "voices {voices:06b}");
    }
}

#[test]
fn a_route_that_names_its_own_dialect_or_profile_is_not_under_the_gateways() {
    let strict = named(Some(Dialect::Stripe), Some(Profile::Payments));
    let plain = named(Some(Dialect::Ietf), Some(Profile::Safe));
    assert_eq!(Policy::resolve(&plain, &strict), Policy::default());

    let ietf = Policy::resolve(&dialect(Dialect::Ietf), &dialect(Dialect::Stripe));
    assert_eq!(ietf, Policy::default());

    let safe = Policy::resolve(&profile(Profile::Safe), &profile(Profile::Payments));
    assert_eq!(safe, Policy::default());

    let both = Policy::resolve(&dialect(Dialect::Ietf), &strict);
    assert_eq!(
        both,
        alone(&profile(Profile::Payments)),
        "the global profile still holds"
    );

    let runway = Policy::resolve(&dialect(Dialect::Runway), &dialect(Dialect::Stripe));
    assert_eq!(runway, alone(&dialect(Dialect::Runway)));
}

#[test]
fn a_routes_dialect_overrules_what_is_said_for_all() {
    let global = Options {
        replayed_header: Some(HeaderName::from_static("x-again")),
        reused_status: Some(StatusCode::CONFLICT),
        ttl: Some(HOUR),
        ..Options::default()
    };
    for own in [Dialect::Ietf, Dialect::Stripe, Dialect::Runway] {
        let policy = Policy::resolve(&dialect(own), &global);
        let expected = Policy {
            ttl: HOUR,
            ..alone(&dialect(own))
        };
        assert_eq!(policy, expected, "{own:?}");
    }
    let unsaid = Policy::resolve(&Options::default(), &global);
    assert_eq!(unsaid.replayed_header, "x-again");
    assert_eq!(unsaid.reused_status, StatusCode::CONFLICT);
}

#[test]
fn a_routes_profile_overrules_what_is_said_for_all_but_not_what_the_route_says() {
    let global = Options {
        ttl: Some(HOUR),
        enforce: Some(Enforce::All),
        ..Options::default()
    };
    let policy = Policy::resolve(&profile(Profile::Payments), &global);
    assert_eq!((policy.ttl, policy.enforce), (72 * HOUR, Enforce::On));
    let route = Options {
        ttl: Some(2 * HOUR),
        ..profile(Profile::Payments)
    };
    assert_eq!(Policy::resolve(&route, &global).ttl, 2 * HOUR);
}

/// Goal: whatever is said for all routes, a route with `payments` gives what the profile promises.
///
/// Method: contradict each promise for all routes, and choose the dialect that fails open.
/// Evidence: the policy that the profile gives alone, but for the dialect's own.
#[test]
fn nothing_that_is_said_for_all_weakens_payments() {
    let global = Options {
        enforce: Some(Enforce::Off),
        on_5xx: Some(On5xx::Retry),
        release_statuses: Some(Vec::new()),
        ttl: Some(HOUR),
        after_expiry: Some(AfterExpiry::New),
        tombstone_ttl: Some(HOUR),
        min_key_length: Some(1),
        on_store_error: Some(OnStoreError::Bypass),
        new_keys_per_second: Some(u32::MAX),
        burst: Some(u32::MAX),
        live_keys: Some(u64::MAX),
        lookups_per_second: Some(u32::MAX),
        ..Options::default()
    };
    let payments = profile(Profile::Payments);
    assert_eq!(Policy::resolve(&payments, &global), alone(&payments));
    let weakest = named(Some(Dialect::Runway), Some(Profile::Payments));
    let unenforced = Options {
        enforce: Some(Enforce::Off),
        ..weakest
    };
    let policy = Policy::resolve(&unenforced, &global);
    assert_eq!(policy.on_store_error, OnStoreError::Refuse);
}

/// A limit is the one kind of option where neither side may loosen the other.
#[test]
fn of_an_explicit_limit_and_a_profiles_the_stricter_holds() {
    let limits = |rate, burst, live, lookups| Options {
        new_keys_per_second: rate,
        burst,
        live_keys: live,
        lookups_per_second: lookups,
        ..Options::default()
    };
    let payments = profile(Profile::Payments);
    let strict = limits(Some(5), Some(6), Some(7), Some(8));
    let loose = limits(Some(100_000), Some(200_000), Some(50_000), Some(9_999));
    let held = |policy: Policy| (policy.new_keys, policy.live_keys, policy.lookups_per_second);
    for (said, expected) in [
        (&strict, (Some((5, 6)), Some(7), Some(8))),
        (&loose, (Some((1_000, 2_000)), Some(10_000), Some(100))),
    ] {
        let both = Options {
            profile: Some(Profile::Payments),
            ..said.clone()
        };
        for (route, global) in [
            (&payments, said),
            (said, &payments),
            (&both, &Options::default()),
            (&Options::default(), &both),
        ] {
            assert_eq!(held(Policy::resolve(route, global)), expected);
        }
        // Between two numbers the route's is the one, and the profile's still bounds it.
        let other = limits(Some(1), Some(1), Some(1), Some(1));
        assert_eq!(held(Policy::resolve(&both, &other)), expected);
    }
    let rate_alone = limits(Some(50), None, None, None);
    let policy = Policy::resolve(&payments, &rate_alone);
    assert_eq!(policy.new_keys, Some((50, 50)));
    let safe = profile(Profile::Safe);
    assert_eq!(
        held(Policy::resolve(&safe, &loose)),
        (Some((100_000, 200_000)), Some(50_000), Some(9_999))
    );
}

#[test]
fn safe_has_limits_for_authenticated_clients_that_anything_said_replaces() {
    let known = |route: &Options, global: &Options| {
        let policy = Policy::resolve(route, global).for_authenticated(route, global);
        (policy.new_keys, policy.live_keys)
    };
    let nothing = Options::default();
    let defaults = (Some((10_000, 20_000)), Some(100_000));
    assert_eq!(known(&nothing, &nothing), defaults);
    assert_eq!(known(&profile(Profile::Safe), &nothing), defaults);
    let said = Options {
        new_keys_per_second: Some(50_000),
        live_keys: Some(200_000),
        ..Options::default()
    };
    let replaced = (Some((50_000, 50_000)), Some(200_000));
    assert_eq!(known(&said, &nothing), replaced);
    assert_eq!(known(&profile(Profile::Safe), &said), replaced);
    let burst = Options {
        burst: Some(7),
        ..Options::default()
    };
    assert_eq!(known(&nothing, &burst).0, Some((10_000, 7)));
    let payments = profile(Profile::Payments);
    let own = (Some((1_000, 2_000)), Some(10_000));
    assert_eq!(known(&payments, &nothing), own);
    assert_eq!(known(&profile(Profile::Cache), &nothing), (None, None));
}

#[test]
fn a_list_replaces_the_default_list() {
    let said = Options {
        release_statuses: Some(vec![status(418)]),
        methods: Some(vec![Method::DELETE]),
        credential_headers: Some(Vec::new()),
        ..profile(Profile::Payments)
    };
    let policy = alone(&said);
    assert_eq!(codes(&policy.release_statuses), [418]);
    assert_eq!(policy.methods, [Method::DELETE]);
    let edge = EdgeRules::resolve(&said, &Options::default());
    assert!(edge.credential_headers.is_empty());
}

#[test]
fn the_parts_of_the_fingerprint_are_options_of_their_own() {
    let fingerprint = |mode, headers: Option<&str>| Options {
        fingerprint: Some(FingerprintOptions {
            mode,
            headers: headers.map(|header| vec![header.to_owned()]),
            ..FingerprintOptions::default()
        }),
        ..Options::default()
    };
    let raw = fingerprint(Some(BodyMode::Raw), None);
    let global = fingerprint(None, Some("x-tenant"));

    let both = Policy::resolve(&raw, &global).recipe;
    assert_eq!(
        (both.mode(), both.headers()),
        (BodyMode::Raw, &["x-tenant".to_owned()][..])
    );

    let stripe = alone(&dialect(Dialect::Stripe)).recipe;
    let route = Options {
        dialect: Some(Dialect::Stripe),
        ..raw
    };
    let recipe = Policy::resolve(&route, &global).recipe;
    assert_eq!(recipe.mode(), BodyMode::Raw);
    assert_eq!(
        recipe.headers(),
        stripe.headers(),
        "the route's dialect is above the gateway"
    );

    let route = Options {
        dialect: Some(Dialect::Stripe),
        ..fingerprint(None, Some("x-own"))
    };
    assert_eq!(alone(&route).recipe.headers(), ["x-own".to_owned()]);
}

#[test]
fn a_route_inherits_enabled_and_may_switch_it_off() {
    let on = Options {
        enabled: Some(true),
        ..Options::default()
    };
    let off = Options {
        enabled: Some(false),
        ..Options::default()
    };
    assert!(Policy::resolve(&Options::default(), &on).enabled);
    assert!(!Policy::resolve(&off, &on).enabled);
    assert!(Policy::resolve(&on, &off).enabled);
}

/// The contract once more, as a table from status to meaning.
fn expected(policy: &Policy, code: u16, answered: &Answered) -> Verdict {
    let released = codes(&policy.release_statuses).contains(&code);
    match (answered.declared, code) {
        (Some(Declared::NotExecuted), _) => Verdict::Release(LastError::DeclaredNotExecuted),
        (Some(Declared::Final), _) => Verdict::Complete,
        (Some(Declared::Unknown), _) => Verdict::Unknown(LastError::DeclaredUnknown),
        (None, _) if answered.lost_by_proxy => Verdict::Unknown(LastError::LostByProxy),
        (None, 409 | 423 | 425) if answered.reached_before => {
            Verdict::Unknown(LastError::ConflictOnRetry)
        }
        (None, 307 | 308) => Verdict::Release(LastError::Redirected),
        (None, 401 | 407) if released => Verdict::Release(LastError::CredentialRefused),
        (None, _) if released => Verdict::Release(LastError::ReleasedStatus),
        (None, ..200 | 408 | 499 | 502 | 504 | 512..) => Verdict::Unknown(LastError::UpstreamError),
        (None, 500..) => match policy.on_5xx {
            On5xx::Retry => Verdict::Release(LastError::UpstreamError),
            On5xx::Store => Verdict::Complete,
            On5xx::Unknown => Verdict::Unknown(LastError::UpstreamError),
        },
        (None, _) => Verdict::Complete,
    }
}

/// Every status x what the upstream declares x whether an earlier attempt reached it x whether a proxy lost
/// the request.
fn answers() -> impl Iterator<Item = Answered> {
    let said = [
        None,
        Some(Declared::NotExecuted),
        Some(Declared::Final),
        Some(Declared::Unknown),
    ];
    (100..=999).flat_map(move |code| {
        said.into_iter().flat_map(move |declared| {
            [(false, false), (false, true), (true, false), (true, true)].map(|(before, lost)| {
                Answered {
                    status: status(code),
                    declared,
                    reached_before: before,
                    lost_by_proxy: lost,
                }
            })
        })
    })
}

#[test]
fn every_status_has_its_meaning_at_every_attempt_and_declaration() {
    let policies = [
        Policy::default(),
        alone(&dialect(Dialect::Stripe)),
        alone(&dialect(Dialect::Runway)),
        alone(&profile(Profile::Payments)),
        alone(&profile(Profile::Cache)),
        Policy {
            release_statuses: vec![status(408), status(409), status(503)],
            ..Policy::default()
        },
    ];
    for policy in &policies {
        for answered in answers() {
            let expected = expected(policy, answered.status.as_u16(), &answered);
            assert_eq!(policy.judge(&answered), expected, "{answered:?}");
        }
    }
}

/// A first answer without any word beside its status.
fn plain(code: u16) -> Answered {
    Answered {
        status: status(code),
        declared: None,
        reached_before: false,
        lost_by_proxy: false,
    }
}

#[test]
fn the_statuses_that_the_contract_names_mean_what_it_says() {
    let judge = |policy: &Policy, code| policy.judge(&plain(code));
    let safe = Policy::default();
    for code in [200, 201, 204, 301, 304, 400, 402, 404, 409, 422, 423] {
        assert_eq!(judge(&safe, code), Verdict::Complete, "{code}");
    }
    for code in [421, 425, 429] {
        let released = Verdict::Release(LastError::ReleasedStatus);
        assert_eq!(judge(&safe, code), released, "{code}");
    }
    for code in [401, 407] {
        let released = Verdict::Release(LastError::CredentialRefused);
        assert_eq!(judge(&safe, code), released, "{code}");
    }
    for code in [307, 308] {
        let released = Verdict::Release(LastError::Redirected);
        assert_eq!(judge(&safe, code), released, "{code}");
    }
    for code in [500, 501, 503, 505, 507, 511] {
        let released = Verdict::Release(LastError::UpstreamError);
        assert_eq!(judge(&safe, code), released, "{code}");
    }
    let unknown = Verdict::Unknown(LastError::UpstreamError);
    for code in [408, 499, 502, 504, 512, 520, 522, 524, 530, 599, 600, 999] {
        assert_eq!(judge(&safe, code), unknown, "{code}");
    }
    let payments = alone(&profile(Profile::Payments));
    for code in 500..=599 {
        assert_eq!(judge(&payments, code), unknown, "{code}");
    }
    assert_eq!(
        judge(&payments, 421),
        Verdict::Complete,
        "the list is replaced"
    );
    let stripe = alone(&dialect(Dialect::Stripe));
    assert_eq!(judge(&stripe, 500), Verdict::Complete);
    for code in [408, 502, 504, 520] {
        assert_eq!(judge(&stripe, code), unknown, "{code}");
    }
}

/// The table of `docs/reference/statuses.md`: ranges of statuses that mean the same to the default policy, on a
/// first attempt and on one after an attempt that may have reached the handler.
#[test]
fn statuses_page_says_what_the_policy_does() {
    const PAGE: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reference/statuses.md"
    );
    let policy = Policy {
        // So that what the option decides stands out.
        on_5xx: On5xx::Store,
        ..Policy::default()
    };
    let retried = Policy::default();
    let word = |answered: &Answered| {
        let verdict = policy.judge(answered);
        if verdict != retried.judge(answered) {
            return "as `on_5xx` says".to_owned();
        }
        match verdict {
            Verdict::Complete => "`completed`".to_owned(),
            Verdict::Release(error) => format!("`failed_retryable` ({})", error.as_str()),
            Verdict::Unknown(error) => format!("`unknown` ({})", error.as_str()),
        }
    };
    let row = |code: u16| {
        let again = Answered {
            reached_before: true,
            ..plain(code)
        };
        (word(&plain(code)), word(&again))
    };
    let mut table = String::new();
    let mut from = 100;
    for code in 100..=999 {
        if code == 999 || row(code + 1) != row(from) {
            let (first, again) = row(from);
            let codes = match code == from {
                true => code.to_string(),
                false => format!("{from} to {code}"),
            };
            table.push_str(&format!("| {codes} | {first} | {again} |\n"));
            from = code + 1;
        }
    }
    let page = std::fs::read_to_string(PAGE).unwrap_or_default();
    let (head, rest) = page.split_once("|---|---|---|\n").expect("a table");
    let (_, tail) = rest.split_once("\n\n").expect("text after the table");
    let rendered = format!("{head}|---|---|---|\n{table}\n{tail}");
    if std::env::var_os("ONLYONCE_BLESS").is_some() {
        std::fs::write(PAGE, &rendered).unwrap();
    }
    let checked_in = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert!(
        checked_in == rendered,
        "docs/reference/statuses.md has drifted; run this test with ONLYONCE_BLESS=1"
    );
}

#[test]
fn an_upstream_declares_by_three_words_and_no_other() {
    assert_eq!(
        Declared::from_word("not-executed"),
        Some(Declared::NotExecuted)
    );
    assert_eq!(Declared::from_word("final"), Some(Declared::Final));
    assert_eq!(Declared::from_word("unknown"), Some(Declared::Unknown));
    for word in ["", "Final", "executed", "not_executed", "unknown "] {
        assert_eq!(Declared::from_word(word), None, "{word:?}");
    }
}

#[test]
fn keys_are_demanded_where_enforce_says_and_only_of_honoured_methods() {
    let demanded = |options: Options| {
        let policy = alone(&options);
        let all = [
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
            Method::GET,
        ];
        let demanded: Vec<_> = all
            .into_iter()
            .filter(|method| policy.demands_key(method))
            .collect();
        assert!(demanded.iter().all(|method| policy.honours(method)));
        demanded
    };
    let enforcing = |enforce, dialect| Options {
        enabled: Some(true),
        enforce: Some(enforce),
        dialect: Some(dialect),
        ..Options::default()
    };
    for dialect in [Dialect::Ietf, Dialect::Stripe, Dialect::Runway] {
        assert_eq!(
            demanded(enforcing(Enforce::Off, dialect)),
            [] as [Method; 0]
        );
        let every = [Method::POST, Method::PUT, Method::PATCH];
        assert_eq!(demanded(enforcing(Enforce::All, dialect)), every);
        let on = demanded(enforcing(Enforce::On, dialect));
        if dialect == Dialect::Runway {
            assert_eq!(on, every, "runway enforces every method listed");
        } else {
            assert_eq!(on, [Method::POST, Method::PATCH]);
        }
    }
    assert_eq!(
        demanded(profile(Profile::Payments)),
        [Method::POST, Method::PATCH]
    );
    let only_put = Options {
        methods: Some(vec![Method::PUT]),
        ..enforcing(Enforce::On, Dialect::Ietf)
    };
    assert_eq!(demanded(only_put.clone()), [] as [Method; 0]);
    let off = Options {
        enabled: Some(false),
        enforce: Some(Enforce::All),
        ..only_put
    };
    assert_eq!(
        demanded(off),
        [] as [Method; 0],
        "what is switched off demands nothing"
    );
}
