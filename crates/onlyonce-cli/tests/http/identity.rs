//! Who is asking: no credential, no request; and what one client does is nothing to another.

use crate::harness::{
    Connection, Gateway, Request, Script, Setup, Upstream, admin::percent_encoded, clients::key_of,
    soak, within,
};

fn pay(client: &str, key: &str) -> Request {
    Request::pay(key).of_client(client)
}

fn ask(key: &str) -> Request {
    Request::get(&format!("/.onlyonce/keys/{}", percent_encoded(key)))
}

async fn rows(gateway: &Gateway) -> usize {
    let listed = gateway
        .admin(Request::get("/idempotency/keys?limit=500"))
        .await;
    listed.expect(200).json()["keys"]
        .as_array()
        .expect("a list")
        .len()
}

/// Goal: without a valid credential nothing happens at all.
///
/// Method: no credential, wrong ones, forged ones, keyed and not, over the data paths and the question
/// for a key.
/// Evidence: 401 with `WWW-Authenticate` and the code; the upstream saw nothing; the store holds
/// nothing.
#[tokio::test]
async fn no_credential_no_request_and_no_row() {
    let upstream = Upstream::start();
    let gateway = Setup::with("").clients(&["acme"]).start(&upstream).await;
    let refused = [
        Request::pay("k"),
        Request::post("/payments").json("{}"),
        Request::get("/payments"),
        Request::pay("k").header("X-Api-Key", "wrong"),
        Request::pay("k").header("Authorization", "Bearer wrong"),
        Request::pay("k").header("Authorization", "Bearer a.b.c"),
        Request::pay("k").header("Authorization", key_of("acme")),
        Request::pay("k").header("X-Client-Id", "acme"),
        Request::pay("k").header("X-Forwarded-User", "acme"),
        Request::pay("not a key"),
        pay("acme", "k").header("X-Api-Key", key_of("acme")),
        ask("k"),
        ask("k").header("X-Api-Key", "wrong"),
    ];
    for request in refused {
        let answer = gateway.send(&request).await.refused(401, "unauthenticated");
        assert_eq!(
            answer.header("www-authenticate"),
            Some("Bearer"),
            "{answer}"
        );
    }
    assert_eq!(upstream.executions(), 0);
    assert_eq!(rows(&gateway).await, 0);
    // The refused were no attempt at the key: the client's own is the first.
    gateway.send(&pay("acme", "k")).await.expect(201);
    assert_eq!(rows(&gateway).await, 1);
    let counted = gateway.admin(Request::get("/idempotency")).await.json();
    assert_eq!(counted["r"]["unauthenticated"], 11);
    assert_eq!(counted["r"]["key_scope"], "per_client");
    let record = gateway.record("k").await.unwrap();
    assert_eq!(record["scope"], "client:acme");
}

/// Goal: the check comes before the body is read and before the key is looked at.
///
/// Method: a head without a credential that announces a large body, of which nothing is sent.
/// Evidence: 401 at once.
#[tokio::test]
async fn authentication_comes_before_the_body() {
    let upstream = Upstream::start();
    let gateway = Setup::with("enforce: true")
        .clients(&["acme"])
        .start(&upstream)
        .await;
    let mut connection = Connection::open(gateway.data()).await.unwrap();
    let head = Request::post("/payments")
        .key("bad key")
        .header("Content-Length", "100000000");
    connection.write(&head.head_bytes()).await.unwrap();
    connection
        .response()
        .await
        .unwrap()
        .refused(401, "unauthenticated");
    // With a credential the next checks follow in their order.
    let missing = Request::post("/payments").json("{}").of_client("acme");
    gateway
        .send(&missing)
        .await
        .refused(400, "idempotency_key_missing");
    gateway
        .send(&Request::pay("bad key").of_client("acme"))
        .await
        .refused(400, "idempotency_key_invalid");
    gateway
        .send(&Request::new("DELETE", "/payments"))
        .await
        .refused(401, "unauthenticated");
    assert_eq!(upstream.executions(), 0);
}

/// Goal: two clients, one key, one body: in every state of the one's key the other is a first.
///
/// Method: acme's key in progress, completed, released, unknown and not stored; globex sends the same
/// request each time, and asks for the key.
/// Evidence: globex's own executions and answers; acme's are untouched.
#[tokio::test]
async fn two_clients_with_one_key_share_nothing() {
    let upstream = Upstream::start();
    let options = "max_body_size: 1KiB, on_in_flight: reject";
    let gateway = Setup::with(options)
        .clients(&["acme", "globex"])
        .start(&upstream)
        .await;
    let scripts = [
        ("in_progress", Script::created().held()),
        ("completed", Script::created().body("for acme only")),
        ("failed_retryable", Script::reply(500)),
        ("unknown", Script::hang_up()),
        ("completed", Script::created().body("x".repeat(2_000))),
    ];
    for (number, (state, script)) in scripts.into_iter().enumerate() {
        let key = format!("key-{number}");
        let before = upstream.executions();
        upstream.next(script);
        let first = gateway.send_later(&pay("acme", &key));
        upstream.begun(before + 1).await;
        let held = number == 0;
        let first = if held {
            Some(first)
        } else {
            within("acme's answer", first).await.unwrap();
            None
        };
        let found = gateway.send(&ask(&key).of_client("acme")).await.expect(200);
        assert_eq!(found.json()["state"], state, "{key}");
        let never = gateway.send(&ask("never").of_client("globex")).await;
        let other = gateway.send(&ask(&key).of_client("globex")).await;
        assert_eq!((other.status, &other.body), (404, &never.body), "{key}");

        upstream.next(Script::created().body("for globex"));
        let own = gateway.send(&pay("globex", &key)).await.expect(201);
        assert_eq!(own.text(), "for globex", "{key}");
        assert_eq!(own.header("x-idempotent-replayed"), None, "{key}");
        assert_eq!(upstream.executions(), before + 2, "{key}");
        let again = gateway.send(&pay("globex", &key)).await.expect(201);
        assert_eq!(again.text(), "for globex", "{key}");
        assert_eq!(again.header("x-idempotent-replayed"), Some("true"));
        assert_eq!(upstream.executions(), before + 2, "{key}");
        if let Some(first) = first {
            upstream.release();
            within("acme's answer", first).await.unwrap().expect(201);
        }
        let found = gateway.send(&ask(&key).of_client("acme")).await.expect(200);
        let kept = if held { "completed" } else { state };
        assert_eq!(found.json()["state"], kept, "{key}");
    }
    let listed = gateway
        .admin(Request::get("/idempotency/keys?client=globex&limit=100"))
        .await
        .json();
    assert_eq!(listed["keys"].as_array().unwrap().len(), 5);
}

/// Goal: no header that a client can choose decides whose key it is.
///
/// Method: acme sends its request with every header that somewhere means a client, a tenant or an
/// owner.
/// Evidence: each is a replay of acme's own, or refused as another request; one execution; one row, in
/// acme's scope.
#[tokio::test]
async fn forged_headers_change_nothing() {
    let upstream = Upstream::start();
    let gateway = Setup::with("")
        .clients(&["acme", "globex"])
        .start(&upstream)
        .await;
    gateway.send(&pay("acme", "k")).await.expect(201);
    for name in [
        "X-Client-Id",
        "X-Consumer-Id",
        "X-Forwarded-User",
        "X-Forwarded-For",
        "X-Real-Ip",
        "Forwarded",
        "Stripe-Account",
        "Idempotency-Scope",
        "Idempotency-Attempt",
        "Cookie",
        "From",
    ] {
        for value in ["globex", "client:globex", "client_id=globex"] {
            let forged = pay("acme", "k").header(name, value);
            let replay = gateway.send(&forged).await.expect(201);
            let marker = replay.header("x-idempotent-replayed");
            assert_eq!(marker, Some("true"), "{name}: {value}");
        }
    }
    // What names a tenant belongs to the request, and never to the scope.
    let other = pay("acme", "k").header("X-Tenant", "globex");
    let refused = gateway.send(&other).await;
    refused.refused(422, "idempotency_key_reused");
    assert_eq!(upstream.executions(), 1);
    assert_eq!(rows(&gateway).await, 1);
    // A credential of another kind beside the right one does not help either.
    let both = pay("acme", "k").header("Authorization", format!("Bearer {}", key_of("globex")));
    gateway.send(&both).await.refused(401, "unauthenticated");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: every replay is authenticated anew.
///
/// Method: complete a key; come back without a credential, with a wrong one, with the second header.
/// Evidence: 401, 401, and the replay.
#[tokio::test]
async fn replays_are_authenticated_anew() {
    let upstream = Upstream::start();
    let gateway = Setup::with("").clients(&["acme"]).start(&upstream).await;
    gateway.send(&pay("acme", "k")).await.expect(201);
    gateway.send(&Request::pay("k")).await.expect(401);
    let wrong = Request::pay("k").header("X-Api-Key", "sk_test_acmE");
    gateway.send(&wrong).await.expect(401);
    let bearer = format!("Bearer {}", key_of("acme"));
    let replay = gateway
        .send(&Request::pay("k").header("Authorization", bearer))
        .await
        .expect(201);
    assert_eq!(replay.header("x-idempotent-replayed"), Some("true"));
    assert_eq!(upstream.executions(), 1);
    assert_eq!(
        upstream.last().headers.all("x-api-key"),
        [key_of("acme")],
        "credentials are forwarded unchanged"
    );
}

/// Goal: `auth: optional` opens a route for requests without a key, and for those alone.
///
/// Method: with and without key, credential and `enforce`.
/// Evidence: statuses, and what reached the upstream.
#[tokio::test]
async fn an_optional_route_needs_no_credential_without_a_key() {
    let upstream = Upstream::start();
    let gateway = Setup::with("enforce: true")
        .clients(&["acme"])
        .route("auth: optional")
        .start(&upstream)
        .await;
    gateway.send(&Request::get("/payments")).await.expect(201);
    let put = Request::new("PUT", "/payments").json("{}");
    gateway.send(&put).await.expect(201);
    assert_eq!(upstream.executions(), 2);
    gateway
        .send(&Request::post("/payments").json("{}"))
        .await
        .refused(400, "idempotency_key_missing");
    gateway
        .send(&Request::pay("k"))
        .await
        .refused(401, "unauthenticated");
    gateway
        .send(&put.clone().key("k"))
        .await
        .refused(401, "unauthenticated");
    gateway.send(&ask("k")).await.expect(401);
    assert_eq!(upstream.executions(), 2);
    gateway.send(&pay("acme", "k")).await.expect(201);
    assert_eq!(rows(&gateway).await, 1);
}

/// Goal: in the scope `global` the authenticated client is the caller, whatever its headers.
///
/// Method: `key_scope: global`; one client with two spellings of its credential, then another client.
/// Evidence: a replay, then 422; one execution.
#[tokio::test]
async fn a_shared_scope_tells_clients_apart() {
    let upstream = Upstream::start();
    let gateway = Setup::with("key_scope: global")
        .clients(&["acme", "globex"])
        .start(&upstream)
        .await;
    gateway.send(&pay("acme", "k")).await.expect(201);
    let bearer = format!("Bearer {}", key_of("acme"));
    gateway
        .send(&Request::pay("k").header("Authorization", bearer))
        .await
        .expect(201);
    gateway
        .send(&pay("globex", "k"))
        .await
        .refused(422, "idempotency_caller_differs");
    gateway
        .send(&ask("k").of_client("globex"))
        .await
        .expect(404);
    gateway.send(&ask("k").of_client("acme")).await.expect(200);
    assert_eq!(upstream.executions(), 1);
    assert_eq!(gateway.record("k").await.unwrap()["scope"], "global");
}

/// Goal: scopes by route and client.
///
/// Method: `key_per_route` with authentication.
/// Evidence: the scope of the record, and the question with and without its route.
#[tokio::test]
async fn a_scope_for_each_route_and_client() {
    let upstream = Upstream::start();
    let gateway = Setup::with("key_per_route: true")
        .clients(&["acme"])
        .start(&upstream)
        .await;
    gateway.send(&pay("acme", "k")).await.expect(201);
    let record = gateway.record("k").await.unwrap();
    assert_eq!(record["scope"], "route:r/client:acme");
    gateway.send(&ask("k").of_client("acme")).await.expect(404);
    let with_route = Request::get("/.onlyonce/keys/k?route=r").of_client("acme");
    gateway.send(&with_route).await.expect(200);
}

/// Goal: how long an answer takes does not tell a client which keys others have used.
///
/// Method: globex sends, in turn, keys that acme has completed and keys that nobody has used, over one
/// connection; the times are compared as a whole. The difference is printed and not judged: a machine
/// that does other things would make it a test of luck.
/// Evidence: Cliff's delta near zero in the output; every one of globex's requests is an execution of
/// its own.
#[tokio::test]
async fn the_time_of_an_answer_tells_nothing() {
    let samples = if soak() { 10_000 } else { 150 };
    let upstream = Upstream::start();
    upstream.always(Script::created().body("{}"));
    let gateway = Setup::with("")
        .store("memory:")
        .clients(&["acme", "globex"])
        .start(&upstream)
        .await;
    let mut connection = Connection::open(gateway.data()).await.unwrap();
    for number in 0..samples {
        let request = pay("acme", &format!("used-{number}"));
        connection.send(&request).await.unwrap().expect(201);
    }
    let (mut used, mut unused) = (Vec::new(), Vec::new());
    for number in 0..samples {
        // Which of the two comes first alternates, so that a slow drift falls on both.
        let order = [("used", number % 2), ("free", (number + 1) % 2)];
        for turn in 0..2 {
            for (kind, _) in order.iter().filter(|(_, at)| *at == turn) {
                let request = pay("globex", &format!("{kind}-{number}"));
                let began = tokio::time::Instant::now();
                let answer = connection.send(&request).await.unwrap().expect(201);
                let took = began.elapsed();
                assert_eq!(answer.header("x-idempotent-replayed"), None);
                match *kind {
                    "used" => used.push(took),
                    _ => unused.push(took),
                }
            }
        }
    }
    assert_eq!(upstream.executions(), 3 * samples);
    used.sort();
    unused.sort();
    let middle = |times: &[std::time::Duration]| times[times.len() / 2];
    let below = |one: &std::time::Duration| unused.partition_point(|other| other < one) as f64;
    let above =
        |one: &std::time::Duration| (unused.len() - unused.partition_point(|o| o <= one)) as f64;
    let delta: f64 = used.iter().map(|one| below(one) - above(one)).sum::<f64>()
        / (used.len() * unused.len()) as f64;
    println!(
        "{samples} samples each: keys of another client {:?}, keys of nobody {:?} (medians); \
         Cliff's delta {delta:.4}",
        middle(&used),
        middle(&unused),
    );
}
