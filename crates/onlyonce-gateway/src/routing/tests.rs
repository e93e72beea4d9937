//! The spellings of a path and a method beside a weaker route that takes everything.

use http::HeaderValue;

use super::*;
use crate::config::{Overrides, parse};

const BACKENDS: &str = "backends: [{ url: \"http://127.0.0.1:1\" }]";

fn config(payments: &str, rest: &str) -> Config {
    let text = format!(
        "routes:\n\
         \x20 - {{ id: rest, path: /, {BACKENDS}, {rest} }}\n\
         \x20 - {{ id: payments, path: /api/payments, {BACKENDS}, {payments} }}\n"
    );
    match parse("test.yaml", &text, &|_| None, &Overrides::default()) {
        Ok(config) => config,
        Err(found) => panic!("{found}"),
    }
}

const ENFORCED: &str = "idempotency: { enabled: true, enforce: true }";
const HONOURED: &str = "idempotency: { enabled: true }";
const OFF: &str = "idempotency: { enabled: false }";

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

/// The ids of the routes of a request.
fn ids(config: &Config, method: &str, path: &str, headers: &HeaderMap) -> [String; 2] {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let found = find(config, &method, path, headers).expect("a route");
    [found.taken_by, found.ruled_by].map(|index| config.routes[index].id.clone())
}

/// Spellings of `/api/payments` that some server takes for it.
const SPELLINGS: [&str; 52] = [
    "/api/payments",
    "/api/payments/",
    "/API/payments",
    "/Api/Payments",
    "/api/PAYMENTS/",
    "/api/payments;v=1",
    "/api;x/payments",
    "/api;x=1/payments;y=2",
    "/api/payments;",
    "/x/..;/api/payments",
    "/x/..;a=b/api/payments",
    "/api/x/..;/payments",
    "/;/api/payments",
    "//api/payments",
    "/api//payments",
    "///api///payments",
    "/x//../../api/payments",
    "/x//..//api/payments",
    "/./api/./payments",
    "/x/../api/payments",
    "/api/%2e/payments",
    "/x/%2e%2e/api/payments",
    "/api%2fpayments",
    "/api%2Fpayments",
    "/api%252fpayments",
    "/api\\payments",
    "/api%5cpayments",
    "/api%5Cpayments",
    "/x%5c..%5capi/payments",
    "/api%255cpayments",
    "/api/%70ayments",
    "/api/%2570ayments",
    "/api/%252570ayments",
    "/%61%70%69/%70%61%79%6d%65%6e%74%73",
    "/api/payments.",
    "/api./payments...",
    "/api/payments%2e",
    "/api/payments%20",
    "/api/payments%00",
    "/api/payments%00.png",
    "/api/payments.json",
    "/api/payments.JSON",
    "/api/payments%2ejson",
    "/api/payments%2e.json",
    "/api/payments.json.",
    "/api/payments.json.xml",
    "/api/payments.json/1",
    "/api/payments%20.json%2exml;v=1",
    "/api/payments.json;v=1/1",
    "/API/Payments;v=1.xml/",
    "//host.test/api/payments",
    "/api/payments/x/../../other",
];

#[test]
fn every_spelling_reaches_the_strictest_route() {
    let none = HeaderMap::new();
    for (payments, rest) in [(ENFORCED, HONOURED), (HONOURED, OFF), (ENFORCED, OFF)] {
        let config = config(payments, rest);
        for spelling in SPELLINGS {
            let [_, ruled_by] = ids(&config, "POST", spelling, &none);
            assert_eq!(ruled_by, "payments", "{spelling}");
        }
        for other in [
            "/",
            "/api",
            "/api/payment",
            "/api/paymentsx",
            "/api/payments-old",
            "/apipayments",
            "/v1/api/payments",
            "/api/orders;payments",
            "/api/orders.json",
            "/api/payments.longer-than-a-format",
            "/api/x%2f..%2forders",
        ] {
            assert_eq!(
                ids(&config, "POST", other, &none),
                ["rest", "rest"],
                "{other}"
            );
        }
    }
}

/// One more thing that some server does not see in a path, at random.
fn respelled(path: &str, random: &mut impl FnMut(usize) -> usize) -> String {
    let is_slash = |byte: u8| matches!(byte, b'/' | b'\\');
    let slashes: Vec<usize> = (0..path.len())
        .filter(|at| is_slash(path.as_bytes()[*at]))
        .collect();
    let slash = slashes[random(slashes.len())];
    let put = |at: usize, text: &str| format!("{}{text}{}", &path[..at], &path[at..]);
    match random(9) {
        0 => {
            let at = random(path.len());
            let upper = path[at..=at].to_ascii_uppercase();
            format!("{}{upper}{}", &path[..at], &path[at + 1..])
        }
        // Anything but a percent sign: encoding goes three deep at most.
        1 => {
            let at = random(path.len());
            match path.as_bytes()[at] {
                b'%' | b'/' => path.to_owned(),
                byte => format!("{}%{byte:02x}{}", &path[..at], &path[at + 1..]),
            }
        }
        2 if slash > 0 => put(slash, ";v=1"),
        3 => put(slash, "/"),
        4 => put(slash, "/."),
        5 => put(slash, "/x/.."),
        6 if slash > 0 => format!("{}\\{}", &path[..slash], &path[slash + 1..]),
        7 => format!("{path}{}", [".", "%2e", "%20", ";v=1"][random(4)]),
        8 => format!("{path}{}", [".json", ".xml", "%2ejson"][random(3)]),
        _ => path.to_owned(),
    }
}

/// Any few of them together: what one server undoes, another has undone before.
#[test]
fn every_composition_reaches_the_strictest_route() {
    const SEEDS: u64 = 20_000;
    let none = HeaderMap::new();
    let config = config(ENFORCED, OFF);
    for seed in 0..SEEDS {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % below.max(1) as u64).unwrap()
        };
        let mut path = "/api/payments".to_owned();
        for _ in 0..=random(5) {
            path = respelled(&path, &mut random);
        }
        assert_eq!(
            ids(&config, "POST", &path, &none)[1],
            "payments",
            "{seed}: {path}"
        );
    }
}

#[test]
fn where_a_request_goes_is_as_before() {
    let config = config(ENFORCED, HONOURED);
    let none = HeaderMap::new();
    for (path, taken_by) in [
        ("/api/payments", "payments"),
        ("/api/%70ayments", "payments"),
        ("/x/../api/payments", "payments"),
        ("/API/payments", "rest"),
        ("/api/payments;v=1", "rest"),
        ("/api/payments.json", "rest"),
    ] {
        assert_eq!(ids(&config, "POST", path, &none)[0], taken_by, "{path}");
    }
}

#[test]
fn a_stricter_route_keeps_its_own_rules() {
    // The other way round: what is weaker by another reading changes nothing.
    let config = config(HONOURED, ENFORCED);
    let none = HeaderMap::new();
    assert_eq!(
        ids(&config, "POST", "/API/payments", &none),
        ["rest", "rest"]
    );
    assert_eq!(
        ids(&config, "POST", "/api/payments", &none),
        ["payments", "payments"]
    );
    // A reading leads to one route, the longest, and not to every shorter one.
    let text = format!(
        "routes:\n\
         \x20 - {{ id: rest, path: /, {BACKENDS}, {OFF} }}\n\
         \x20 - {{ id: api, path: /api, {BACKENDS}, {ENFORCED} }}\n\
         \x20 - {{ id: health, path: /api/health, {BACKENDS}, {OFF} }}\n"
    );
    let config = parse("test.yaml", &text, &|_| None, &Overrides::default()).unwrap();
    assert_eq!(ids(&config, "POST", "/API/HEALTH", &none), ["rest", "rest"]);
    assert_eq!(ids(&config, "POST", "/API/other", &none), ["rest", "api"]);
}

#[test]
fn every_method_and_override_is_a_reading() {
    let text = format!(
        "routes:\n\
         \x20 - {{ id: rest, path: /, {BACKENDS}, {OFF} }}\n\
         \x20 - {{ id: payments, path: /api/payments, methods: [POST], {BACKENDS}, {ENFORCED} }}\n"
    );
    let config = parse("test.yaml", &text, &|_| None, &Overrides::default()).unwrap();
    let none = HeaderMap::new();
    for method in ["POST", "post", "Post"] {
        for path in ["/api/payments", "/API/payments"] {
            assert_eq!(ids(&config, method, path, &none)[1], "payments", "{method}");
        }
    }
    assert_eq!(ids(&config, "post", "/api/payments", &none)[0], "payments");
    assert_eq!(
        ids(&config, "GET", "/api/payments", &none),
        ["rest", "rest"]
    );
    for name in [
        "x-http-method-override",
        "x-http-method",
        "x-method-override",
    ] {
        for value in ["POST", "post", "PUT, post"] {
            let named = headers(&[(name, value)]);
            for path in ["/api/payments", "/api/payments;v=1"] {
                assert_eq!(
                    ids(&config, "GET", path, &named),
                    ["rest", "payments"],
                    "{name}: {value}"
                );
            }
        }
    }
    for name in ["x-original-url", "x-rewrite-url"] {
        for value in [
            "/api/payments",
            "/api/payments?x=1",
            "api/payments",
            "http://api.test/api/payments?x",
            "/API/%70ayments",
        ] {
            let named = headers(&[(name, value)]);
            assert_eq!(
                ids(&config, "POST", "/x", &named),
                ["rest", "payments"],
                "{name}: {value}"
            );
        }
        let elsewhere = headers(&[(name, "http://api.test"), (name, "/y?/api/payments")]);
        assert_eq!(ids(&config, "POST", "/x", &elsewhere), ["rest", "rest"]);
    }
}

#[test]
fn exact_opts_out_wherever_it_stands() {
    let none = HeaderMap::new();
    let said = "enabled: true, path_readings: exact";
    let in_rest = format!("idempotency: {{ {said} }}");
    let in_payments = format!("idempotency: {{ {said}, enforce: true }}");
    for (payments, rest) in [
        (ENFORCED, in_rest.as_str()),
        (in_payments.as_str(), HONOURED),
        (
            ENFORCED,
            "path_readings: exact, idempotency: { enabled: true }",
        ),
    ] {
        let config = config(payments, rest);
        assert_eq!(
            ids(&config, "POST", "/API/payments", &none),
            ["rest", "rest"]
        );
        assert_eq!(ids(&config, "POST", "/api/payments", &none)[1], "payments");
    }
    let everywhere = format!(
        "path_readings: exact\nroutes:\n\
         \x20 - {{ id: rest, path: /, {BACKENDS}, {HONOURED} }}\n\
         \x20 - {{ id: payments, path: /api/payments, {BACKENDS}, {ENFORCED} }}\n"
    );
    let config = parse("test.yaml", &everywhere, &|_| None, &Overrides::default()).unwrap();
    assert_eq!(
        ids(&config, "POST", "/API/payments", &none),
        ["rest", "rest"]
    );
    // Methods are still read in every way.
    let named = headers(&[("x-http-method-override", "post")]);
    assert_eq!(ids(&config, "GET", "/api/payments", &named)[1], "payments");
}

#[test]
fn a_route_that_is_only_observed_protects_less() {
    let observed = "shadow: true, idempotency: { enabled: true, enforce: true }";
    let config = config(observed, HONOURED);
    let none = HeaderMap::new();
    assert_eq!(
        ids(&config, "POST", "/API/payments", &none),
        ["rest", "rest"]
    );
}

#[test]
fn one_resource_has_one_path() {
    for path in [
        "/api/payments",
        "/api/%70ayments",
        "/api/x/../payments",
        "//api/./payments",
    ] {
        assert_eq!(plain_path(path), "/api/payments");
    }
    assert_eq!(plain_path("/"), "/");
    assert_eq!(plain_path("/a/"), "/a/");
    assert_eq!(plain_path("/../.."), "/");
}

#[test]
fn a_long_path_is_read_in_bounded_ways() {
    let path = "/%252e%252e;a\\..//.".repeat(3_000);
    let mut count = 0;
    readings::each(path.as_bytes(), |_| {
        count += 1;
        true
    });
    assert!((100..=1_200).contains(&count), "{count}");
}
