//! The admin API as a whole: its description, who may do what, what it shows of the configuration, and
//! how it treats connections.

use serde_json::{Value, json};

use crate::harness::{
    Connection, Gateway, Request, Script, Setup, Upstream, client, eventually, process::TOKEN,
    within,
};

const OPENAPI: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/reference/openapi.json"
);

/// Whether `value` has the members that the schema demands, and none that it does not know.
fn fits(document: &Value, schema: &Value, value: &Value, place: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap();
        let named = &document["components"]["schemas"][name];
        assert!(named.is_object(), "{name} is described");
        return fits(document, named, value, place);
    }
    if let Some(members) = value.as_object() {
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        for name in required {
            assert!(
                members.contains_key(name.as_str().unwrap()),
                "{name} in {place}"
            );
        }
        if let Some(properties) = schema["properties"].as_object() {
            let open = schema.get("additionalProperties").is_some();
            for (name, member) in members {
                match properties.get(name) {
                    Some(schema) => fits(document, schema, member, &format!("{place}/{name}")),
                    None => assert!(open, "{place}/{name} is described"),
                }
            }
        }
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        fits(
            document,
            &schema["items"],
            item,
            &format!("{place}/{index}"),
        );
    }
    if let Some(words) = schema["enum"].as_array() {
        assert!(words.contains(value), "{value} in {place}");
    }
}

/// Goal: the description is that of the API.
///
/// Method: every operation of the document that is checked in, with and without the token; the answers
/// of those that only look are held against their schemas.
/// Evidence: the gateway serves the same document; no described address is missing; 401 without the
/// token, except where the document says so; every answer has the members it should have and no others.
#[tokio::test]
async fn the_description_is_true() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    upstream.next(crate::harness::Script::hang_up());
    gateway.send(&Request::pay("lost")).await.expect(502);
    gateway.send(&Request::pay("done")).await.expect(201);
    let id = gateway.id("done").await;
    let served = gateway
        .admin(Request::get("/openapi.json"))
        .await
        .expect(200)
        .json();
    let document: Value = serde_json::from_slice(&std::fs::read(OPENAPI).unwrap()).unwrap();
    assert_eq!(served, document);
    let mut looked = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        let target = path.replace("{id}", &id);
        for (method, operation) in operations.as_object().unwrap() {
            let request = Request::new(&method.to_uppercase(), &target);
            let answer = client::send(gateway.admin_addr(), &request).await.unwrap();
            let is_open = operation["security"] == json!([]);
            assert_eq!(answer.status == 401, !is_open, "{method} {path}");
            let answer = gateway.admin(request).await;
            if path.contains("{message}") {
                // There are none here, and the address knows it.
                assert!(answer.expect(404).text().contains("no such message"));
                continue;
            }
            assert!(
                ![404, 405].contains(&answer.status),
                "{method} {path}: {answer}"
            );
            if method != "get" {
                continue;
            }
            let answer = answer.expect(200);
            let content = &operation["responses"]["200"]["content"];
            if let Some(schema) = content["application/json"].get("schema") {
                fits(&document, schema, &answer.json(), path);
                looked += 1;
            }
        }
    }
    assert!(looked >= 7, "{looked}");
    let problem = gateway
        .admin(Request::get("/idempotency/keys/none"))
        .await
        .expect(404)
        .json();
    let schema = json!({ "$ref": "#/components/schemas/Problem" });
    fits(&document, &schema, &problem, "a problem");
}

/// Goal: a parameter that is misspelt is no filter that lets everything through.
///
/// Method: each operation of the document with a parameter that none has, and with each of its own.
/// Evidence: 400 that names the first, before anything is done; never of the others.
#[tokio::test]
async fn unknown_parameters_are_refused_by_name() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    gateway.send(&Request::pay("done")).await.expect(201);
    let id = gateway.id("done").await;
    let document: Value = serde_json::from_slice(&std::fs::read(OPENAPI).unwrap()).unwrap();
    let mut known = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        let target = path.replace("{id}", &id).replace("{message}", "7");
        for (method, operation) in operations.as_object().unwrap() {
            if operation["security"] == json!([]) || path == "/metrics" {
                continue;
            }
            let asked = async |name: &str| {
                let target = format!("{target}?{name}=true");
                let request = Request::new(&method.to_uppercase(), &target);
                gateway.admin(request).await
            };
            let refused = asked("stat").await.refused(400, "bad_request");
            assert!(
                refused.text().contains("`stat`"),
                "{method} {path}: {refused}"
            );
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            for parameter in parameters.filter(|one| one["in"] == "query") {
                let name = parameter["name"].as_str().unwrap();
                let answer = asked(name).await;
                let is_unknown = answer.text().contains("no parameter");
                assert!(!is_unknown, "{method} {path} {name}: {answer}");
                known += 1;
            }
        }
    }
    assert!(known > 15, "{known}");
    for outside in ["/events?x=1", "/session?x=1"] {
        let request = Request::get(outside);
        gateway.admin(request).await.refused(400, "bad_request");
    }
    let scraped = gateway.admin(Request::get("/metrics?job=x")).await;
    assert_eq!(scraped.status, 200, "scrapers may send what they like");
    let of_client = gateway.admin(Request::get("/audit?client=acme")).await;
    let refused = of_client.refused(400, "bad_request");
    assert!(refused.text().contains("`client` needs `key`"), "{refused}");
}

/// Goal: a token that may only look can look at everything and change nothing.
///
/// Method: every way of looking and of changing with it.
/// Evidence: 200 and 403; the record afterwards.
#[tokio::test]
async fn a_token_that_may_only_look() {
    let upstream = Upstream::start();
    let setup = Setup::with("")
        .admin("readonly_token_env: LOOK")
        .env("LOOK", "just-looking");
    let gateway = setup.start(&upstream).await;
    gateway.send(&Request::pay("k")).await.expect(201);
    let before = gateway.full_record("k").await;
    let path = format!("/idempotency/keys/{}", gateway.id("k").await);
    let ask = async |request: Request| {
        let request = request.header("Authorization", "Bearer just-looking");
        client::send(gateway.admin_addr(), &request).await.unwrap()
    };
    for look in [
        "/idempotency",
        "/idempotency/keys",
        &path,
        "/audit",
        "/metrics",
        "/config",
    ] {
        ask(Request::get(look)).await.expect(200);
    }
    let resolution = json!({ "outcome": "failed_retryable", "reason": "no" }).to_string();
    for change in [
        Request::post(&format!("{path}/resolve")).json(&resolution),
        Request::post(&format!("{path}/extend")).json("{\"ttl\":\"48h\"}"),
        Request::new("DELETE", &format!("{path}?force=true")),
    ] {
        let refused = ask(change).await.expect(403);
        assert_eq!(refused.code(), "forbidden");
    }
    assert_eq!(gateway.full_record("k").await, before);
}

/// Goal: `/metrics` can be open to a scraper, and nothing else is.
///
/// Method: `public_metrics: true`, and no token. Evidence: 200; 401 beside it.
#[tokio::test]
async fn public_metrics() {
    let upstream = Upstream::start();
    let setup = Setup::with("").admin("public_metrics: true");
    let gateway = setup.start(&upstream).await;
    gateway.admin_open("/metrics").await.expect(200);
    for path in [
        "/idempotency",
        "/config",
        "/audit",
        "/openapi.json",
        "/metrics/x",
    ] {
        gateway.admin_open(path).await.expect(401);
    }
}

/// Goal: the configuration is shown whole, and its secrets are not.
///
/// Method: API keys, tokens from the environment, a query in an address.
/// Evidence: the options of the file and the defaults; none of the secrets.
#[tokio::test]
async fn the_configuration_without_its_secrets() {
    let upstream = Upstream::start();
    let hash = "d7a8fbb307d7809469ca9abcb0082e4f8d5651e46d3cdb762d02d0bf37c9e592";
    let auth = format!(
        "auth: {{ api_keys: [{{ client_id: acme, sha256: {hash} }}], external: \
         {{ url: \"http://127.0.0.1:1/who?secret=canary-query\", client_id_header: X-Id }}, \
         shared_client_ids: true }}"
    );
    let setup = Setup::with("ttl: 36h, fingerprint: { ignore: [/sent_at] }").top(&auth);
    let gateway = setup.start(&upstream).await;
    let shown = gateway.admin(Request::get("/config")).await.expect(200);
    for secret in [hash, "canary-query", TOKEN] {
        assert!(!shown.text().contains(secret), "{secret}");
    }
    let config = shown.json();
    assert_eq!(
        config["auth"]["api_keys"],
        json!([{ "client_id": "acme", "sha256": "***" }])
    );
    assert_eq!(
        config["auth"]["external"]["url"],
        "http://127.0.0.1:1/who?***"
    );
    assert_eq!(config["admin"]["token_env"], "ONLYONCE_ADMIN_TOKEN");
    assert_eq!(config["admin"]["audit_retention"], "8760h0m0s");
    let options = &config["routes"][0]["idempotency"];
    assert_eq!(
        (&options["ttl"], &options["lease"]),
        (&json!("36h0m0s"), &json!("1m0s"))
    );
    assert_eq!(options["fingerprint"]["ignore"], json!(["/sent_at"]));
    assert_eq!(options["key_scope"], "per_client");
}

/// Goal: the audit is read page by page, and what operators did is kept for `audit_retention`.
///
/// Method: three keys that were forgotten; pages of two; then keys that are gone for longer than that.
/// Evidence: every line once, newest first; the lines are there when their keys are gone, and go.
#[tokio::test]
async fn the_audit() {
    let upstream = Upstream::start();
    let setup = Setup::with("tombstone_ttl: 500ms, ttl: 1h").admin("audit_retention: 3s");
    let gateway = setup.start(&upstream).await;
    for key in ["a", "b", "c"] {
        gateway.send(&Request::pay(key)).await.expect(201);
        let path = format!(
            "/idempotency/keys/{}?force=true&reason={key}",
            gateway.id(key).await
        );
        gateway
            .admin(Request::new("DELETE", &path))
            .await
            .expect(200);
    }
    let page = async |query: &str| {
        let path = format!("/audit?limit=2{query}");
        gateway.admin(Request::get(&path)).await.expect(200).json()
    };
    let details = |page: &Value| {
        let lines = page["audit"].as_array().unwrap().iter();
        lines.map(|line| line["detail"].clone()).collect::<Vec<_>>()
    };
    let first = page("").await;
    assert_eq!(details(&first), ["c", "b"]);
    assert_eq!(first["audit"][0]["actor"], "operator");
    let second = page(&format!("&cursor={}", first["next"].as_str().unwrap())).await;
    assert_eq!(
        (details(&second), &second["next"]),
        (vec![json!("a")], &Value::Null)
    );
    for wrong in ["/audit?limit=0", "/audit?limit=501", "/audit?cursor=x"] {
        let refused = gateway.admin(Request::get(wrong)).await.expect(400);
        assert_eq!(refused.code(), "bad_request");
    }
    eventually("the tombstones to go", async || {
        (gateway.state("c").await == "absent").then_some(())
    })
    .await;
    assert_eq!(
        details(&page("").await),
        ["c", "b"],
        "kept beyond their keys"
    );
    eventually("the audit to be pruned", async || {
        details(&page("").await).is_empty().then_some(())
    })
    .await;
}

/// Goal: slow and idle clients do not keep operators out.
///
/// Method: more connections than the admin listener takes, none of which sends a whole head.
/// Evidence: each is closed after `header_timeout`, and a request that waited behind them is answered.
#[tokio::test]
async fn slow_clients_are_shown_the_door() {
    let upstream = Upstream::start();
    let gateway = Setup::with("")
        .top("header_timeout: 1s")
        .start(&upstream)
        .await;
    let mut slow = Vec::new();
    for _ in 0..300 {
        let mut connection = Connection::open(gateway.admin_addr()).await.unwrap();
        connection.write(b"GET /readyz HT").await.unwrap();
        slow.push(connection);
    }
    gateway.admin_open("/readyz").await.expect(200);
    let closed = slow.first_mut().unwrap().until_closed();
    assert!(!within("its end", closed).await.starts_with(b"HTTP/1.1 200"));
}

/// Goal: whoever begins a request to the admin listener and does not go on keeps nobody else out of it.
///
/// Method: as many connections as it takes, each with the head of a sign-in and one byte of its body; half of
/// them look like the dashboard's own. `body_timeout` is 1 s.
/// Evidence: `/healthz` is answered.
#[tokio::test]
async fn unfinished_bodies_do_not_hold_the_listener() {
    let upstream = Upstream::start();
    let gateway = Setup::with("")
        .top("body_timeout: 1s")
        .start(&upstream)
        .await;
    let host = gateway.admin_addr();
    let mut unfinished = Vec::new();
    for number in 0..256 {
        let page = match number % 2 {
            0 => format!("X-OnlyOnce-Page: 1\r\nOrigin: http://{host}\r\n"),
            _ => String::new(),
        };
        let mut connection = Connection::open(host).await.unwrap();
        let head =
            format!("POST /session HTTP/1.1\r\nHost: {host}\r\n{page}Content-Length: 10\r\n\r\n{{");
        connection.write(head.as_bytes()).await.unwrap();
        unfinished.push(connection);
    }
    let asked = Request::get("/healthz");
    let alive = within("a sign of life", client::send(host, &asked)).await;
    alive.unwrap().expect(200);
    drop(unfinished);
}

/// Goal: what operators did can be told from what went wrong, and every line from which key it is.
///
/// Method: a key that becomes unknown and is resolved, and one that is forgotten; then the filters.
/// Evidence: the lines of each filter, page by page; keys only for who asks for them.
#[tokio::test]
async fn the_audit_by_actor_event_and_key() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    upstream.next(Script::hang_up());
    gateway.send(&Request::pay("lost")).await.expect(502);
    let resolve = format!("/idempotency/keys/{}/resolve", gateway.id("lost").await);
    let resolution = json!({
        "outcome": "completed", "response": { "status": 201 }, "reason": "seen at the provider",
    });
    gateway.admin_post(&resolve, &resolution).await.expect(200);
    gateway.send(&Request::pay("done")).await.expect(201);
    let forget = format!("/idempotency/keys/{}?force=true", gateway.id("done").await);
    let forget = Request::new("DELETE", &forget);
    gateway.admin(forget).await.expect(200);
    let page = async |query: &str| {
        let path = format!("/audit?{query}");
        gateway.admin(Request::get(&path)).await.expect(200).json()
    };
    let lines = |page: &Value| {
        let lines = page["audit"].as_array().unwrap().iter();
        let one = |line: &Value| {
            let word = |name: &str| line[name].as_str().unwrap_or("-").to_owned();
            format!("{} {}", word("key"), word("event"))
        };
        lines.map(one).collect::<Vec<_>>()
    };
    let operators = ["done forgotten", "lost resolved"];
    assert_eq!(lines(&page("actor=operator&keys=true").await), operators);
    let others = "actor=executor,sweeper,reconciler&keys=true";
    let others = lines(&page(others).await);
    assert!(
        others.contains(&"lost became_unknown".to_owned())
            && !others.contains(&operators[1].to_owned()),
        "{others:?}"
    );
    assert_eq!(
        lines(&page("event=resolved,erased&keys=true").await),
        ["lost resolved"]
    );
    assert_eq!(
        lines(&page("key=lost&actor=operator").await),
        ["- resolved"],
        "keys are shown to who asks for them"
    );
    let first = page("actor=operator&limit=1&keys=true").await;
    assert_eq!(lines(&first), ["done forgotten"]);
    let cursor = first["next"].as_str().unwrap();
    let second = page(&format!("actor=operator&limit=1&keys=true&cursor={cursor}")).await;
    assert_eq!(
        (lines(&second), &second["next"]),
        (vec!["lost resolved".to_owned()], &Value::Null)
    );
    for wrong in ["/audit?actor=nobody", "/audit?event=x"] {
        let refused = gateway.admin(Request::get(wrong)).await.expect(400);
        assert_eq!(refused.code(), "bad_request");
    }
}

/// Goal: an operator sees how often a key's answer was asked for again, and when last.
///
/// Method: a first request, two duplicates, and a retry of an unknown key; then a restart.
/// Evidence: the counts of both keys; none after the restart, which says from when on it counts.
#[tokio::test]
async fn retries_of_a_key_are_counted() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "").await;
    for _ in 0..3 {
        gateway.send(&Request::pay("k")).await.expect(201);
    }
    upstream.next(Script::hang_up());
    gateway.send(&Request::pay("lost")).await.expect(502);
    gateway.send(&Request::pay("lost")).await.expect(409);
    let retries = async |gateway: &Gateway, key: &str| {
        let path = format!("/idempotency/keys/{}/retries", gateway.id(key).await);
        gateway.admin(Request::get(&path)).await.expect(200).json()
    };
    let seen = retries(&gateway, "k").await;
    assert_eq!(
        (&seen["answered"], &seen["refused"]),
        (&2.into(), &0.into())
    );
    assert!(seen["last_at"].as_str() >= seen["since"].as_str(), "{seen}");
    let seen = retries(&gateway, "lost").await;
    assert_eq!(
        (&seen["answered"], &seen["refused"]),
        (&0.into(), &1.into())
    );
    gateway.kill9().await;
    gateway.restart().await;
    let seen = retries(&gateway, "k").await;
    assert_eq!(
        (&seen["answered"], &seen["last_at"]),
        (&0.into(), &Value::Null)
    );
    assert_eq!(upstream.executions_of("k"), 1);
}
