//! What is allowed and said all the same.

use super::*;

fn warnings(text: &str) -> Vec<String> {
    good(text).warnings.iter().map(brief).collect()
}

#[test]
fn nothing_to_say_about_a_careful_file_but_the_shared_scope() {
    assert_eq!(
        warnings(&format!(
            "idempotency: {{ enabled: true, enforce: true }}\n{ROUTE}"
        )),
        ["2:16: without `auth` all clients share one namespace of keys"]
    );
}

#[test]
fn each_warning_has_its_place() {
    for (text, expected) in [
        (
            ROUTE.to_owned(),
            "1:1: no route is protected: every request passes through unrecorded",
        ),
        (
            format!("idempotency: {{ enabled: true, key_scope: global }}\n{ROUTE}"),
            "1:42: without `auth` all clients share one namespace of keys",
        ),
        (
            format!("idempotency: {{ enabled: true, enforce: false }}\n{ROUTE}"),
            "1:40: route `a` lets POST requests without a key pass unprotected",
        ),
        (
            format!("idempotency: {{ enabled: true, enforce: true, ttl: 59m }}\n{ROUTE}"),
            "1:51: route `a` forgets answers after 59m",
        ),
        (
            format!("idempotency: {{ enabled: true, shadow: true }}\n{ROUTE}"),
            "1:39: route `a` is in shadow mode: keys are observed and nothing is protected",
        ),
        (
            format!("idempotency: {{ enabled: true, profile: cache }}\n{ROUTE}"),
            "1:40: route `a` lets requests through unprotected while the store is down",
        ),
        (
            "idempotency: { enabled: true }\n\
             routes: [{ id: a, path: /, methods: [GET], backends: [{ url: http://up }] }]\n"
                .to_owned(),
            "2:16: route `a` takes none of the methods on which keys are honoured",
        ),
    ] {
        let found = warnings(&text);
        assert!(
            found.iter().any(|one| one == expected),
            "{text}\n{found:#?}"
        );
    }
}

#[test]
fn options_that_nobody_switched_on() {
    let text = "routes:\n\
                - { id: a, path: /a, backends: [{ url: http://u }], idempotency: { enforce: true } }\n\
                - { id: b, path: /b, backends: [{ url: http://u }], idempotency: { enabled: false } }\n\
                - { id: c, path: /c, backends: [{ url: http://u }] }\n";
    assert_eq!(
        warnings(text),
        [
            "1:1: no route is protected: every request passes through unrecorded",
            "2:53: route `a` has options for keys but ignores keys",
        ]
    );
}

#[test]
fn a_route_that_takes_no_post_needs_no_enforcement() {
    let found = warnings(
        "idempotency: { enabled: true }\n\
         routes: [{ id: a, path: /, methods: [PUT], backends: [{ url: http://up }] }]\n",
    );
    assert!(!found.iter().any(|one| one.contains("POST")), "{found:?}");
}
