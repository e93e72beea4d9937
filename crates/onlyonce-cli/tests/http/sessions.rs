//! Sessions of the dashboard at the level of HTTP: who gets one, what it may do, and what it is not
//! taken for. The pages themselves are in `browser.rs`.

use onlyonce_testkit::servers::Redis;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::harness::{
    Connection, Gateway, Request, Response, Script, Setup, Upstream, client,
    process::{TOKEN, binary},
};

/// Where the page comes from, by the host that the tests' client names.
const OWN: &str = "http://api.test";

/// A request as the dashboard's own page sends it.
fn from_page(request: Request) -> Request {
    request
        .header("X-OnlyOnce-Page", "1")
        .header("Origin", OWN)
        .header("Sec-Fetch-Site", "same-origin")
}

async fn send(gateway: &Gateway, request: &Request) -> Response {
    client::send(gateway.admin_addr(), request)
        .await
        .expect("an answer")
}

/// Signs in; the cookie as a browser sends it back.
async fn sign_in(gateway: &Gateway, token: &str) -> String {
    let body = json!({ "token": token }).to_string();
    let request = from_page(Request::post("/session").json(&body));
    let answer = send(gateway, &request).await.expect(200);
    let line = answer.header("set-cookie").expect("a cookie").to_owned();
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
        assert!(line.contains(part), "{part} in {line}");
    }
    assert!(!line.contains(token), "the token is not in the cookie");
    line.split(';').next().unwrap().to_owned()
}

async fn start(upstream: &Upstream) -> Gateway {
    Setup::with("")
        .admin("readonly_token_env: LOOK")
        .env("LOOK", "just-looking")
        .start(upstream)
        .await
}

/// Goal: a session may do what its token may, and only from the dashboard's own pages.
///
/// Method: changes by cookie from the page, from a form, from another origin, with the read-only role,
/// and after signing out.
/// Evidence: the statuses, and the key's state after each.
#[tokio::test]
async fn changes_come_from_our_own_page() {
    let upstream = Upstream::start();
    let gateway = start(&upstream).await;
    upstream.next(Script::hang_up());
    gateway.send(&Request::pay("lost")).await.expect(502);
    let path = format!("/idempotency/keys/{}/resolve", gateway.id("lost").await);
    let body = json!({ "outcome": "failed_retryable", "reason": "looked it up", "force": true })
        .to_string();
    let resolve = || Request::post(&path).json(&body);
    let cookie = sign_in(&gateway, TOKEN).await;
    let looks = Request::get("/idempotency").header("Cookie", &cookie);
    send(&gateway, &looks).await.expect(200);

    let forgeries = [
        resolve(),
        resolve().header("Origin", OWN),
        resolve().header("X-OnlyOnce-Page", "1"),
        resolve()
            .header("X-OnlyOnce-Page", "1")
            .header("Origin", "http://127.0.0.1:1"),
        resolve()
            .header("X-OnlyOnce-Page", "1")
            .header("Origin", OWN)
            .header("Sec-Fetch-Site", "same-site"),
    ];
    for (number, forged) in forgeries.into_iter().enumerate() {
        let answer = send(&gateway, &forged.header("Cookie", &cookie)).await;
        assert_eq!(answer.status, 403, "forgery {number}: {answer}");
    }
    let looking = sign_in(&gateway, "just-looking").await;
    let refused = from_page(resolve()).header("Cookie", &looking);
    send(&gateway, &refused).await.expect(403);
    assert_eq!(gateway.state("lost").await, "unknown");

    let granted = from_page(resolve()).header("Cookie", &cookie);
    send(&gateway, &granted).await.expect(200);
    assert_eq!(gateway.state("lost").await, "failed_retryable");

    let out = from_page(Request::new("DELETE", "/session")).header("Cookie", &cookie);
    send(&gateway, &out).await.expect(204);
    send(&gateway, &looks).await.expect(401);
}

/// Goal: nobody gets a session without a token, and a wrong `Authorization` is not made good by a
/// cookie.
///
/// Method: signing in with wrong tokens and from elsewhere; a cookie beside a wrong token.
/// Evidence: 401 and 403, and no cookie.
#[tokio::test]
async fn sessions_need_a_token() {
    let upstream = Upstream::start();
    let gateway = start(&upstream).await;
    for body in ["{\"token\":\"wrong\"}", "{\"token\":\"\"}", "{}", "no"] {
        let request = from_page(Request::post("/session").json(body));
        let answer = send(&gateway, &request).await.expect(401);
        assert!(answer.header("set-cookie").is_none(), "{body}");
    }
    let body = json!({ "token": TOKEN }).to_string();
    let elsewhere = Request::post("/session")
        .json(&body)
        .header("Origin", "http://evil.example");
    send(&gateway, &elsewhere).await.expect(403);
    let cookie = sign_in(&gateway, TOKEN).await;
    let mixed = Request::get("/idempotency")
        .header("Cookie", &cookie)
        .header("Authorization", "Bearer wrong");
    send(&gateway, &mixed).await.expect(401);
    let made_up = cookie.split_once('=').unwrap().0.to_owned() + "=made-up";
    let made_up = Request::get("/idempotency").header("Cookie", made_up);
    send(&gateway, &made_up).await.expect(401);
}

/// Goal: the pages come with a policy that keeps them to their own files.
///
/// Method: the files without a token.
/// Evidence: their kinds and headers; a second request with the tag gets 304; data stays behind the token.
#[tokio::test]
async fn the_files_are_open_and_guarded() {
    let upstream = Upstream::start();
    let gateway = start(&upstream).await;
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/assets/app.js", "text/javascript; charset=utf-8"),
        ("/assets/style.css", "text/css; charset=utf-8"),
        (
            "/assets/vendor/LICENSE-uplot.txt",
            "text/plain; charset=utf-8",
        ),
    ] {
        let file = gateway.admin_open(path).await.expect(200);
        assert_eq!(file.header("content-type"), Some(kind), "{path}");
        let policy = file.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        let tag = file.header("etag").unwrap();
        let again = Request::get(path).header("If-None-Match", tag);
        send(&gateway, &again).await.expect(304);
    }
    gateway.admin_open("/assets/none.js").await.expect(404);
    gateway.admin_open("/assets/../admin.rs").await.expect(404);
    for path in ["/overview", "/events", "/session"] {
        gateway.admin_open(path).await.expect(401);
    }
}

/// Goal: a page that watches can tell a gateway that does not answer from a store that does not.
///
/// Method: a stream of events; then the store is frozen, and thawed.
/// Evidence: signs of life while samples are late, and samples again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signs_of_life_while_the_store_is_late() {
    let server = Redis::start();
    let upstream = Upstream::start();
    let setup = Setup::with("").store(&server.url());
    let gateway = setup.store_options("timeout: 5s").start(&upstream).await;
    let mut watching = Connection::open(gateway.admin_addr()).await.unwrap();
    let request = Request::get("/events").header("Authorization", format!("Bearer {TOKEN}"));
    watching.write(&request.bytes()).await.unwrap();
    for (freezes, event) in [
        (None, "sample"),
        (Some(true), "alive"),
        (Some(false), "sample"),
    ] {
        match freezes {
            Some(true) => server.freeze(),
            Some(false) => server.thaw(),
            None => {}
        }
        let heard = watching.until(&format!("event: {event}\n")).await;
        heard.expect("a stream that goes on");
    }
}

/// Goal: a stored answer is shown to operators alone, and never without a trace.
///
/// Method: ask for it with both tokens.
/// Evidence: the bytes; the audit.
#[tokio::test]
async fn showing_an_answer_is_audited() {
    let upstream = Upstream::start();
    let gateway = start(&upstream).await;
    upstream.next(
        Script::created()
            .header("ETag", "\"7\"")
            .body("<b>paid</b>"),
    );
    gateway.send(&Request::pay("k")).await.expect(201);
    let path = format!("/idempotency/keys/{}/response", gateway.id("k").await);
    let looking = Request::post(&path).header("Authorization", "Bearer just-looking");
    send(&gateway, &looking).await.expect(403);
    let audit = async || {
        gateway
            .admin(Request::get("/audit"))
            .await
            .expect(200)
            .json()
    };
    assert_eq!(audit().await["audit"], json!([]));
    let reason = json!({ "reason": "ticket 4711" });
    let shown = gateway.admin_post(&path, &reason).await.expect(200).json();
    assert_eq!(shown["body"], "<b>paid</b>");
    assert_eq!(shown["headers"]["etag"], json!(["\"7\""]));
    let line = &audit().await["audit"][0];
    assert_eq!(line["event"], "response_shown");
    assert_eq!(line["actor"], "operator");
    assert_eq!(line["detail"], "ticket 4711");
    assert_eq!(gateway.state("k").await, "completed");
}

/// Goal: `onlyonce top` tells what the gateway has decided.
///
/// Method: one new key, two replays; `top --json` and `top --once`.
/// Evidence: its output, and 1 as its exit code without a token.
#[tokio::test]
async fn top_tells_the_figures() {
    let upstream = Upstream::start();
    let gateway = start(&upstream).await;
    for _ in 0..3 {
        gateway.send(&Request::pay("k")).await.expect(201);
    }
    let top = async |arguments: &[&str], token: &str| {
        Command::new(binary())
            .arg("top")
            .args(["--admin", &format!("http://{}", gateway.admin_addr())])
            .args(arguments)
            .env("ONLYONCE_ADMIN_TOKEN", token)
            .output()
            .await
            .expect("the binary can be started")
    };
    let json = top(&["--json"], TOKEN).await;
    let told: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(told["totals"]["new"], 1);
    assert_eq!(told["totals"]["replayed"], 2);
    assert_eq!(told["keys"]["completed"], 1);
    let once = top(&["--once"], "just-looking").await;
    let text = String::from_utf8(once.stdout).unwrap();
    for word in [
        "ready",
        "store sqlite",
        "protected 1/1",
        "ROUTE",
        "completed",
        "sweep",
    ] {
        assert!(text.contains(word), "{word}\n{text}");
    }
    let refused = top(&["--once"], "").await;
    assert_eq!(refused.status.code(), Some(1));
}
