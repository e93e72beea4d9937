//! Pages of other origins: they can read a refusal where the route says so, and nobody reads an answer that
//! was opened to another origin.

use crate::harness::{Gateway, Request, Response, Script, Setup, Upstream, upstream::ClosedPort};

const SHOP: &str = "https://shop.example.com";
const OTHER: &str = "https://other.example.com";
const CORS: &str = "cors: { origins: [\"https://shop.example.com\"] }";

/// The origin that may read `answer`.
fn reader(answer: &Response) -> Option<&str> {
    let named = answer.headers.all("access-control-allow-origin");
    assert!(named.len() <= 1, "{:?}", answer.headers);
    named.first().copied()
}

/// Whether `word` is in the list, where it is at most once.
fn says(answer: &Response, name: &str, word: &str) -> bool {
    let words = answer.headers.all(name).join(", ").to_lowercase();
    let count = words.split(", ").filter(|one| *one == word.to_lowercase());
    let count = count.count();
    assert!(count <= 1, "{name}: {words}");
    count == 1
}

fn from(origin: &str, request: Request) -> Request {
    request.header("Origin", origin)
}

/// Goal: an answer that the upstream opened to one origin is not open to another one.
///
/// Method: a page pays, and the upstream lets that page read; retries from the same page, from another one,
/// and from no page. Then the same with an answer that is open to all.
/// Evidence: the headers of the replays; the upstream's count.
#[tokio::test]
async fn a_stored_permission_is_for_its_own_origin() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let opened = Script::reply(201)
        .header("Access-Control-Allow-Origin", SHOP)
        .header("Access-Control-Allow-Credentials", "true")
        .header("Vary", "Origin");
    upstream.next(opened);
    let first = gateway.send(&from(SHOP, Request::pay("k"))).await;
    assert_eq!(reader(&first.expect(201)), Some(SHOP));

    let same = gateway
        .send(&from(SHOP, Request::pay("k")))
        .await
        .expect(201);
    assert_eq!(same.header("x-idempotent-replayed"), Some("true"));
    assert_eq!(reader(&same), Some(SHOP));
    assert_eq!(
        same.header("access-control-allow-credentials"),
        Some("true")
    );
    let other = gateway
        .send(&from(OTHER, Request::pay("k")))
        .await
        .expect(201);
    assert_eq!(other.header("x-idempotent-replayed"), Some("true"));
    assert_eq!(reader(&other), None);
    assert_eq!(other.header("access-control-allow-credentials"), None);
    assert!(says(&other, "vary", "Origin"), "{:?}", other.headers);
    let none = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(reader(&none), Some(SHOP), "as it came");

    upstream.next(Script::reply(201).header("Access-Control-Allow-Origin", "*"));
    gateway
        .send(&from(SHOP, Request::pay("all")))
        .await
        .expect(201);
    let other = gateway.send(&from(OTHER, Request::pay("all"))).await;
    assert_eq!(reader(&other.expect(201)), Some("*"));
    assert_eq!(upstream.executions(), 2);
}

/// Goal: a page that the route knows can read every refusal and what the gateway says with it; another page
/// can read none.
///
/// Method: a mismatch, a key that is missing, no credential, and an upstream that is gone, from a known
/// page, an unknown one and from none.
/// Evidence: the headers of the refusals, and that nothing was executed for them.
#[tokio::test]
async fn refusals_can_be_read_by_the_pages_of_the_route() {
    let upstream = Upstream::start();
    let auth = "auth: { trusted_header: { name: X-Client-Id, from: [\"127.0.0.0/8\"] } }";
    let setup = Setup::with("enforce: true").top(auth).route(CORS);
    let gateway = setup.start(&upstream).await;
    let pay = |key: &str| Request::pay(key).header("X-Client-Id", "acme");
    gateway.send(&from(SHOP, pay("k"))).await.expect(201);
    let refused = [
        (
            422,
            Request::post("/pay")
                .key("k")
                .json("{}")
                .header("X-Client-Id", "acme"),
        ),
        (
            400,
            Request::post("/pay")
                .json("{}")
                .header("X-Client-Id", "acme"),
        ),
        (401, Request::pay("k")),
    ];
    for (status, request) in refused {
        let shop = gateway
            .send(&from(SHOP, request.clone()))
            .await
            .expect(status);
        assert_eq!(reader(&shop), Some(SHOP), "{status}");
        for name in [
            "Idempotency-Status",
            "Retry-After",
            "Location",
            "X-Idempotent-Replayed",
        ] {
            assert!(says(&shop, "access-control-expose-headers", name), "{name}");
        }
        assert_eq!(shop.header("access-control-allow-credentials"), None);
        for request in [from(OTHER, request.clone()), request] {
            let other = gateway.send(&request).await.expect(status);
            assert_eq!(reader(&other), None, "{status}");
            assert!(says(&other, "vary", "Origin"), "{:?}", other.headers);
        }
    }
    assert_eq!(upstream.executions(), 1);
    let closed = ClosedPort::reserve();
    let gone = Setup::with("")
        .route(CORS)
        .start_before(&closed.url())
        .await;
    let gone = gone.send(&from(SHOP, Request::pay("k"))).await;
    assert_eq!(
        reader(&gone.refused(503, "upstream_not_reached")),
        Some(SHOP)
    );
}

/// Goal: a replay can be read by a page that the route knows, whoever asked first; and an upstream's own
/// answer is not opened by us.
///
/// Method: a server asks first and the upstream permits nobody; then two pages.
/// Evidence: the headers.
#[tokio::test]
async fn replays_are_ours_and_first_answers_are_the_upstreams() {
    let upstream = Upstream::start();
    let gateway = Setup::with("").route(CORS).start(&upstream).await;
    let first = gateway
        .send(&from(SHOP, Request::pay("k")))
        .await
        .expect(201);
    assert_eq!(reader(&first), None, "the upstream opened it to nobody");
    assert_eq!(first.header("access-control-expose-headers"), None);
    let shop = gateway
        .send(&from(SHOP, Request::pay("k")))
        .await
        .expect(201);
    assert_eq!(reader(&shop), Some(SHOP));
    let other = gateway
        .send(&from(OTHER, Request::pay("k")))
        .await
        .expect(201);
    assert_eq!(reader(&other), None);
    assert_eq!(upstream.executions(), 1);

    upstream.next(Script::reply(201).header("Access-Control-Allow-Origin", SHOP));
    let opened = gateway
        .send(&from(SHOP, Request::pay("open")))
        .await
        .expect(201);
    assert_eq!(reader(&opened), Some(SHOP));
    assert!(says(
        &opened,
        "access-control-expose-headers",
        "Idempotency-Status"
    ));
    // Closed to another page by the replay, and by the route: said once.
    let other = gateway
        .send(&from(OTHER, Request::pay("open")))
        .await
        .expect(201);
    assert_eq!(reader(&other), None);
    assert!(says(&other, "vary", "Origin"), "{:?}", other.headers);
}

/// A browser's question before it sends a request with these headers.
fn preflight(origin: &str, path: &str, method: &str) -> Request {
    from(origin, Request::new("OPTIONS", path))
        .header("Access-Control-Request-Method", method)
        .header(
            "Access-Control-Request-Headers",
            "authorization,idempotency-key",
        )
}

/// Goal: a preflight is the upstream's to answer, and where it cannot be asked a known page is let through to
/// the refusal that it can read.
///
/// Method: preflights before an upstream that answers them, one that is gone, and behind `auth`.
/// Evidence: what the upstream saw, and the headers of the answers.
#[tokio::test]
async fn preflights_pass_unless_we_would_refuse_them() {
    let upstream = Upstream::start();
    upstream.always(
        Script::reply(204)
            .no_body()
            .header("Access-Control-Allow-Origin", "*"),
    );
    let gateway = Setup::with("").route(CORS).start(&upstream).await;
    for origin in [SHOP, OTHER] {
        let passed = gateway
            .send(&preflight(origin, "/pay", "POST"))
            .await
            .expect(204);
        assert_eq!(reader(&passed), Some("*"), "the upstream's own word");
        assert_eq!(passed.header("access-control-allow-methods"), None);
    }
    assert_eq!(upstream.executions(), 2);
    let allowed = |answer: Response| {
        let answer = answer.expect(204);
        assert_eq!(reader(&answer), Some(SHOP));
        assert_eq!(answer.header("access-control-allow-methods"), Some("POST"));
        let names = answer.header("access-control-allow-headers");
        assert_eq!(names, Some("authorization,idempotency-key"));
        assert!(answer.body.is_empty());
    };
    let closed = ClosedPort::reserve();
    let gone = Setup::with("")
        .route(CORS)
        .start_before(&closed.url())
        .await;
    allowed(gone.send(&preflight(SHOP, "/pay", "POST")).await);
    let other = gone
        .send(&preflight(OTHER, "/pay", "POST"))
        .await
        .expect(503);
    assert_eq!(reader(&other), None);

    let auth = "auth: { trusted_header: { name: X-Client-Id, from: [\"127.0.0.0/8\"] } }";
    let behind = Setup::with("").top(auth).route(CORS).start(&upstream).await;
    allowed(behind.send(&preflight(SHOP, "/pay", "POST")).await);
    let other = behind
        .send(&preflight(OTHER, "/pay", "POST"))
        .await
        .expect(401);
    assert_eq!(reader(&other), None);
    let bare = from(SHOP, Request::new("OPTIONS", "/pay"));
    let bare = behind.send(&bare).await.expect(401);
    assert_eq!(reader(&bare), Some(SHOP), "no preflight, so refused");
    assert_eq!(
        upstream.executions(),
        2,
        "nothing got past without a credential"
    );
}

/// Goal: a page of a route can ask what became of a key, and another page cannot read the answer.
///
/// Method: the question and its preflight from both.
/// Evidence: the headers.
#[tokio::test]
async fn pages_can_ask_about_a_key() {
    let upstream = Upstream::start();
    let cors = "cors: { origins: [\"https://shop.example.com\"], credentials: true }";
    let gateway = Setup::with("").route(cors).start(&upstream).await;
    gateway.send(&Request::pay("k")).await.expect(201);
    let path = "/.onlyonce/keys/k";
    let shop = gateway
        .send(&from(SHOP, Request::get(path)))
        .await
        .expect(200);
    assert_eq!(reader(&shop), Some(SHOP));
    assert_eq!(
        shop.header("access-control-allow-credentials"),
        Some("true")
    );
    let asked = gateway
        .send(&preflight(SHOP, path, "GET"))
        .await
        .expect(204);
    assert_eq!(asked.header("access-control-allow-methods"), Some("GET"));
    assert_eq!(
        asked.header("access-control-allow-credentials"),
        Some("true")
    );
    let asked = preflight(OTHER, path, "GET");
    for request in [from(OTHER, Request::get(path)), asked] {
        let other = gateway.send(&request).await;
        assert_eq!(reader(&other), None);
    }
    let unknown = gateway
        .send(&from(SHOP, Request::get("/.onlyonce/keys/x")))
        .await;
    assert_eq!(reader(&unknown.expect(404)), Some(SHOP));
}
