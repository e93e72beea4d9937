//! What a backend is told about the way of a request, and by which name it knows it.

use crate::harness::{Request, Setup, Upstream, eventually};

/// Goal: a backend learns where a request came from, and a stranger cannot lie about it.
///
/// Method: forged headers from an address that is not trusted, then from one that is; each form.
/// Evidence: the headers at the backend.
#[tokio::test]
async fn forwarded() {
    let forged = Request::pay("forged")
        .header("X-Forwarded-For", "203.0.113.9")
        .header("X-Forwarded-Proto", "gopher")
        .header("X-Forwarded-Host", "evil.test")
        .header("X-Forwarded-Port", "1")
        .header("Forwarded", "for=203.0.113.9");
    let upstream = Upstream::start();
    let gateway = Setup::with("").start(&upstream).await;
    gateway.send(&forged).await.expect(201);
    let seen = upstream.last().headers;
    assert_eq!(seen.all("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(seen.all("x-forwarded-proto"), ["http"]);
    assert_eq!(seen.all("x-forwarded-host"), ["api.test"]);
    assert_eq!(seen.all("x-forwarded-port"), Vec::<&str>::new());
    assert_eq!(seen.all("forwarded"), Vec::<&str>::new());

    let trusting = Setup::with("").top("forwarded: { headers: both, trust: [127.0.0.0/8] }");
    let gateway = trusting.start(&upstream).await;
    gateway.send(&forged).await.expect(201);
    let seen = upstream.last().headers;
    assert_eq!(seen.all("x-forwarded-for"), ["203.0.113.9, 127.0.0.1"]);
    assert_eq!(seen.all("x-forwarded-proto"), ["gopher"]);
    assert_eq!(seen.all("x-forwarded-host"), ["evil.test"]);
    let both = "for=203.0.113.9, for=127.0.0.1;proto=http;host=\"api.test\"";
    assert_eq!(seen.all("forwarded"), [both]);

    let silent = Setup::with("").top("forwarded: { headers: none }");
    let gateway = silent.start(&upstream).await;
    gateway.send(&forged).await.expect(201);
    let seen = upstream.last().headers;
    assert_eq!(seen.all("x-forwarded-for"), ["203.0.113.9"]);
    assert_eq!(seen.all("forwarded"), ["for=203.0.113.9"]);
}

/// Goal: every request has a name of its own, the client's where it is usable, and it is in the log; but
/// never over the header of the key, and never a key in the log.
///
/// Evidence: the header at the backend; the log.
#[tokio::test]
async fn request_ids() {
    let upstream = Upstream::start();
    let gateway = Setup::with("").trace().start(&upstream).await;
    let name = || upstream.last().headers.all("x-request-id").join("|");
    gateway.send(&Request::pay("named")).await.expect(201);
    let first = name();
    assert_eq!(first.len(), 32, "{first}");
    gateway.send(&Request::new("GET", "/x")).await.expect(201);
    assert_ne!(name(), first);
    let request = Request::pay("named-2").header("X-Request-Id", "from-the-client-1");
    gateway.send(&request).await.expect(201);
    assert_eq!(name(), "from-the-client-1");
    let request = Request::pay("named-3").header("X-Request-Id", "not usable");
    gateway.send(&request).await.expect(201);
    assert_eq!(name().len(), 32);
    eventually("the names in the log", async || {
        let log = gateway.logs();
        (log.contains(&first) && log.contains("from-the-client-1")).then_some(())
    })
    .await;
    let secret = "the-key-that-is-an-id-too";
    let request = Request::pay(secret).header("X-Request-Id", secret);
    gateway.send(&request).await.expect(201);
    assert_eq!(name(), secret);
    assert!(!gateway.logs().contains(secret));

    let by_id = Setup::with("header_name: X-Request-Id")
        .start(&upstream)
        .await;
    let request = Request::post("/pay").header("X-Request-Id", "\"the key itself\"");
    let before = upstream.executions();
    for _ in 0..2 {
        by_id.send(&request).await.expect(201);
    }
    assert_eq!(upstream.executions(), before + 1);
    assert_eq!(name(), "\"the key itself\"");
    by_id.send(&Request::post("/pay")).await.expect(201);
    assert_eq!(name(), "", "no key is made");

    let off = Setup::with("")
        .top("request_id: false")
        .start(&upstream)
        .await;
    off.send(&Request::pay("unnamed")).await.expect(201);
    assert_eq!(name(), "");
}
