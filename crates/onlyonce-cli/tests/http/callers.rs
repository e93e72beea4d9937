//! Callers in the `global` scope: the same key in another hand never gets the answer.

use crate::harness::{Gateway, REPLAYED, Request, Script, Setup, Upstream, within};

fn as_caller(header: &str, value: &str) -> Request {
    Request::pay("shared").header(header, value)
}

/// Goal: another caller with the same key and the same request gets neither answer nor execution.
///
/// Method: complete a key as one caller; come as another, as nobody, with another header.
/// Evidence: 422 without any byte of the answer; one execution; the owner still gets its replay.
#[tokio::test]
async fn another_caller_gets_422_never_the_answer() {
    let upstream = Upstream::start();
    upstream.always(
        Script::created()
            .body("the secret of alice")
            .header("Location", "/alice/1"),
    );
    let gateway = Gateway::start(&upstream, "").await;
    let owner = as_caller("Authorization", "Bearer alice");
    gateway.send(&owner).await.expect(201);
    let strangers = [
        as_caller("Authorization", "Bearer bob"),
        as_caller("X-Api-Key", "Bearer alice"),
        as_caller("X-Api-Key", "alice"),
        Request::pay("shared"),
        owner.clone().header("X-Api-Key", "more"),
    ];
    for stranger in strangers {
        let refused = gateway
            .send(&stranger)
            .await
            .refused(422, "idempotency_caller_differs");
        assert!(!refused.everything().contains("alice"), "{refused}");
        let text = refused.text();
        assert!(text.contains("credential of the first request"), "{text}");
        assert!(text.contains("Do not take a new key"), "{text}");
        assert_eq!(refused.header("stripe-should-retry"), Some("false"));
    }
    let replay = gateway.send(&owner).await.expect(201);
    assert_eq!(replay.text(), "the secret of alice");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: no spelling of a credential header makes two callers look like one.
///
/// Method: every header that tells callers apart by default, with each of its dashes as an underscore, in a
/// second caller's hand. Evidence: the upstream, which may read underscores as dashes, never sees that header
/// on a request with a key; without a key it is passed on as it came.
#[tokio::test]
async fn underscores_do_not_hide_a_caller() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "credential_headers: [X-Api-Key, X-User]").await;
    for name in ["X_Api_Key", "X-Api_Key", "x_api-key", "X_User"] {
        let keyed = Request::pay(name).header(name, "alice");
        gateway.send(&keyed).await.expect(201);
        assert_eq!(upstream.last().headers.one(name), None, "{name}");
        let plain = Request::new("POST", "/payments").header(name, "alice");
        gateway.send(&plain).await.expect(201);
        assert_eq!(upstream.last().headers.one(name), Some("alice"), "{name}");
    }
}

/// Goal: the binding holds in every state but a released one.
///
/// Method: a stranger while the owner's request is held, and after a hang-up; with another request
/// after its 500.
/// Evidence: 422 at once each time; the owner's own executions alone.
#[tokio::test]
async fn the_binding_holds_in_every_state() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let request = |key: &str, who: &str| Request::pay(key).header("Authorization", who);

    upstream.next(Script::created().held());
    let owner = gateway.send_later(&request("held", "alice"));
    upstream.begun(1).await;
    gateway
        .send(&request("held", "bob"))
        .await
        .refused(422, "idempotency_caller_differs");
    upstream.release();
    within("the owner's answer", owner)
        .await
        .unwrap()
        .expect(201);

    upstream.next(Script::reply(500));
    gateway.send(&request("failed", "alice")).await.expect(500);
    let other = request("failed", "bob").json("{}");
    let refused = gateway.send(&other).await;
    refused.refused(422, "idempotency_key_reused");
    assert_eq!(upstream.executions(), 2);

    upstream.next(Script::hang_up());
    gateway.send(&request("unknown", "alice")).await.expect(502);
    gateway
        .send(&request("unknown", "bob"))
        .await
        .refused(422, "idempotency_caller_differs");
    assert_eq!(upstream.executions(), 3);
}

/// Goal: what tells callers apart is configurable.
///
/// Method: `credential_headers: [X-Caller]`; Authorization changes, then the caller.
/// Evidence: replay, then 422; one execution.
#[tokio::test]
async fn credential_headers_are_configurable() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "credential_headers: [X-Caller]").await;
    let caller = |name: &str| as_caller("X-Caller", name);
    gateway
        .send(&caller("a").header("Authorization", "old"))
        .await
        .expect(201);
    gateway
        .send(&caller("a").header("Authorization", "renewed"))
        .await
        .expect(201);
    gateway
        .send(&caller("b").header("Authorization", "old"))
        .await
        .refused(422, "idempotency_caller_differs");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a client whose token had run out finishes its request with a fresh one and the same key, as
/// google-auth's AuthorizedSession does; nobody else gets the answer.
///
/// Method: 401 for the old token, the retry with a fresh one while a waiter with the old one is there;
/// then the old token again, the fresh one again, and a third.
/// Evidence: the upstream saw both tokens, once each; the waiter and the others get 422, the fresh
/// token its replay.
#[tokio::test]
async fn a_renewed_token_finishes_its_request() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let token = |name: &str| as_caller("Authorization", &format!("Bearer {name}"));
    upstream.next(Script::reply(401).held());
    upstream.next(Script::created().held());
    let old = gateway.send_later(&token("old"));
    upstream.begun(1).await;
    upstream.release();
    within("the first answer", old).await.unwrap().expect(401);
    assert_eq!(gateway.state("shared").await, "failed_retryable");

    let fresh = gateway.send_later(&token("fresh"));
    upstream.begun(2).await;
    let late = gateway.send(&token("old")).await;
    late.refused(422, "idempotency_caller_differs");
    upstream.release();
    within("the fresh answer", fresh).await.unwrap().expect(201);
    let replay = gateway.send(&token("fresh")).await.expect(201);
    assert_eq!(replay.text(), r#"{"execution":2}"#);
    for other in ["old", "third"] {
        let refused = gateway.send(&token(other)).await;
        refused.refused(422, "idempotency_caller_differs");
    }
    let seen: Vec<String> = upstream
        .requests()
        .iter()
        .map(|seen| seen.headers.all("authorization").join(" "))
        .collect();
    assert_eq!(seen, ["Bearer old", "Bearer fresh"]);
    let counted = gateway
        .admin(Request::get("/idempotency"))
        .await
        .expect(200);
    assert_eq!(counted.json()["r"]["caller_differs"], 3);
}

/// Goal: whoever waited for a key that another caller has taken over since is compared with that caller.
///
/// Method: two requests of one caller, the first held in the upstream and answered with 401, the second
/// waiting; the upstream holds whatever comes next, and a fresh token comes first.
/// Evidence: one of the two executes; if it is the fresh token, the waiter gets 422 and not its answer.
#[tokio::test]
async fn who_waited_is_compared_again() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let token = |name: &str| as_caller("Authorization", &format!("Bearer {name}"));
    upstream.next(Script::reply(401).held());
    upstream.always(Script::created());
    let first = gateway.send_later(&token("old"));
    upstream.begun(1).await;
    let waiter = gateway.send_later(&token("old"));
    gateway.until_met_in_flight(1).await;
    upstream.release();
    within("the first answer", first).await.unwrap().expect(401);
    let fresh = gateway.send(&token("fresh")).await;
    let waited = within("the waiter's answer", waiter).await.unwrap();
    let (owner, other) = match fresh.status {
        201 => (fresh, waited),
        _ => (waited, fresh),
    };
    assert_eq!(owner.expect(201).text(), r#"{"execution":2}"#);
    other.refused(422, "idempotency_caller_differs");
    assert_eq!(upstream.executions(), 2);
}

/// Goal: two people with sessions of their own are two callers, and a session is the same caller
/// whatever else its browser sends.
///
/// Method: each of the usual cookies, among others that change, over both HTTPs; then a header on top, a
/// header alone, and another session. Explicit lists, and none.
/// Evidence: replays and 422s; one execution for each key.
#[tokio::test]
async fn sessions_are_told_apart() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let request = |key: &str, cookie: &str| Request::pay(key).header("Cookie", cookie);
    let usual = [
        "JSESSIONID",
        "PHPSESSID",
        "ASP.NET_SessionId",
        "connect.sid",
        "sessionid",
        "session",
        "laravel_session",
    ];
    let mut executed = 0;
    for name in usual {
        let mine = |rest: &str| request(name, &format!("_ga=1; {name}=alice{rest}"));
        gateway.send(&mine("")).await.expect(201);
        executed += 1;
        gateway.send(&mine("; theme=dark")).await.expect(201);
        let mut http2 = crate::harness::client::Http2::open(gateway.data()).await;
        let split = request(name, "theme=dark").header("Cookie", format!("{name}=alice"));
        http2.send(&split).await.expect(201);
        // A credential on top does not make another caller of it.
        let more = mine("").header("Authorization", "Bearer t");
        gateway.send(&more).await.expect(201);
        for stranger in [
            request(name, &format!("{name}=bob")),
            request(name, &format!("other={name}=alice")),
            Request::pay(name),
            Request::pay(name).header("Authorization", "Bearer t"),
        ] {
            let refused = gateway.send(&stranger).await;
            refused.refused(422, "idempotency_caller_differs");
        }
        let ask = |cookie: &str| {
            let cookie = format!("{name}={cookie}");
            Request::get(&format!("/.onlyonce/keys/{name}")).header("Cookie", cookie)
        };
        gateway.send(&ask("alice")).await.expect(200);
        gateway.send(&ask("bob")).await.expect(404);
        assert_eq!(upstream.executions(), executed, "{name}");
    }
    // Who sends a credential is told by it, whatever the cookie.
    let owner = |cookie: &str| request("both", cookie).header("X-Api-Key", "k");
    gateway.send(&owner("session=a")).await.expect(201);
    gateway.send(&owner("session=b")).await.expect(201);
    let refused = gateway.send(&request("both", "session=a")).await;
    refused.refused(422, "idempotency_caller_differs");

    let explicit = Gateway::start(&upstream, "credential_cookies: [sid]").await;
    explicit
        .send(&request("k", "sid=a; session=x"))
        .await
        .expect(201);
    explicit
        .send(&request("k", "session=y; sid=a"))
        .await
        .expect(201);
    let refused = explicit.send(&request("k", "sid=b")).await;
    refused.refused(422, "idempotency_caller_differs");
    let none = Gateway::start(&upstream, "credential_cookies: []").await;
    none.send(&request("k", "session=a")).await.expect(201);
    none.send(&request("k", "session=b")).await.expect(201);
    assert_eq!(upstream.executions(), executed + 3);
}

/// Goal: a record from before cookies told callers apart keeps matching its caller.
///
/// Method: made without `credential_cookies`; then they are switched on, and the same browser retries.
/// Evidence: its replay; a credential that the record did not have is still another caller.
#[tokio::test]
async fn an_older_record_keeps_its_caller() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "credential_cookies: []").await;
    let request = || Request::pay("k").header("Cookie", "session=alice");
    gateway.send(&request()).await.expect(201);
    gateway.sigterm();
    gateway.exited().await;
    gateway.reconfigure(&gateway.config().replace(", credential_cookies: []", ""));
    gateway.restart().await;
    let replay = gateway.send(&request()).await.expect(201);
    assert_eq!(replay.header(REPLAYED), Some("true"));
    let other = request().header("Authorization", "Bearer t");
    let refused = gateway.send(&other).await;
    refused.refused(422, "idempotency_caller_differs");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a credential that was checked reaches the upstream, whatever `Connection` says.
///
/// Method: each credential header named in `Connection`, with a key and without, with `auth` and without;
/// an ordinary header beside it.
/// Evidence: what the upstream recorded: the credential is there, the other header is gone.
#[tokio::test]
async fn connection_takes_no_credential_away() {
    let upstream = Upstream::start();
    let plain = Gateway::start(&upstream, "credential_headers: [X-Tenant]").await;
    let strict = Setup::with("").clients(&["acme"]).start(&upstream).await;
    let mut key = 0;
    for gateway in [&plain, &strict] {
        for name in ["Authorization", "X-Api-Key", "Cookie", "X-Tenant"] {
            if name == "X-Tenant" && std::ptr::eq(gateway, &strict) {
                continue;
            }
            for keyed in [true, false] {
                key += 1;
                let mut request = Request::post("/payments").json("{}").of_client("acme");
                if keyed {
                    request = request.key(format!("k{key}"));
                }
                if name != "X-Api-Key" {
                    request = request.header(name, "a=b");
                }
                let request = request
                    .header("X-One", "1")
                    .header("Connection", format!("close, {name}, X-One"));
                gateway.send(&request).await.expect(201);
                let seen = upstream.last();
                assert_eq!(seen.headers.all(name).len(), 1, "{name} {keyed}");
                assert!(seen.headers.all("x-one").is_empty(), "{name} {keyed}");
            }
        }
    }
}

/// Goal: the same id from two sources is two clients, unless somebody says otherwise.
///
/// Method: `onlyonce check` on API keys beside a trusted header, without and with `shared_client_ids`.
/// Evidence: exit 1 with file, line, column and a hint; exit 0.
#[tokio::test]
async fn two_sources_of_ids_must_be_said_to_agree() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("two.yaml");
    for (shared, code) in [("", 1), ("shared_client_ids: true, ", 0)] {
        let hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        let text = format!(
            "store: {{ url: \"memory:\" }}\nauth: {{ {shared}api_keys: [{{ client_id: a, sha256: {hash} }}], \
             trusted_header: {{ name: X-Client-Id, from: [\"10.0.0.0/8\"] }} }}\n\
             idempotency: {{ enabled: true, enforce: true }}\nroutes:\n  - id: r\n    path: /\n    \
             backends: [{{ url: \"http://127.0.0.1:1\" }}]\n"
        );
        std::fs::write(&file, text).unwrap();
        let mut command = tokio::process::Command::new(crate::harness::process::binary());
        let checked = command.arg("check").arg(&file).output();
        let checked = within("the check", checked).await.unwrap();
        let said = String::from_utf8(checked.stderr).unwrap();
        assert_eq!(checked.status.code(), Some(code), "{said}");
        if code == 1 {
            assert!(said.contains("two.yaml:2:7: error:"), "{said}");
            assert!(said.contains("shared_client_ids: true"), "{said}");
        }
    }
}

/// Goal: asking about a key answers its own caller alone.
///
/// Method: `GET /.onlyonce/keys/{key}` as the owner and as strangers.
/// Evidence: 200, and 404 as for a key that never was.
#[tokio::test]
async fn asking_is_bound_to_the_caller() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    gateway
        .send(&as_caller("Authorization", "Bearer alice"))
        .await
        .expect(201);
    let ask = |key: &str| Request::get(&format!("/.onlyonce/keys/{key}"));
    let owner = ask("shared").header("Authorization", "Bearer alice");
    assert_eq!(
        gateway.send(&owner).await.expect(200).json()["state"],
        "completed"
    );
    let stranger = ask("shared").header("Authorization", "Bearer bob");
    let refused = gateway.send(&stranger).await.expect(404);
    let never = ask("never").header("Authorization", "Bearer bob");
    assert_eq!(refused.body, gateway.send(&never).await.expect(404).body);
    gateway.send(&ask("shared")).await.expect(404);
    assert_eq!(upstream.executions(), 1);
}

/// Goal: credentials reach the upstream unchanged.
///
/// Method: both credential headers.
/// Evidence: what the upstream recorded.
#[tokio::test]
async fn credentials_are_forwarded() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    gateway
        .send(&as_caller("Authorization", "Bearer a.b.c").header("X-Api-Key", "sk_1"))
        .await;
    let seen = upstream.last();
    assert_eq!(seen.headers.all("authorization"), ["Bearer a.b.c"]);
    assert_eq!(seen.headers.all("x-api-key"), ["sk_1"]);
}
