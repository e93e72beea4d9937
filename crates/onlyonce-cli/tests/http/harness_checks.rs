//! The harness against itself: client and upstream without a gateway between them.

use crate::harness::{
    Connection, Request, Script, Upstream,
    client::{self, Http2},
    imf_fixdate, ms,
    script::Step,
    upstream::ClosedPort,
};

/// Goal: the upstream counts what arrived whole, per key and in all, and keeps it as it came.
///
/// Method: two keyed requests, one chunked, over one connection.
/// Evidence: the counts, the headers and the body it recorded.
#[tokio::test]
async fn the_upstream_counts_and_records() {
    let upstream = Upstream::start();
    let mut connection = Connection::open(upstream.addr()).await.unwrap();
    let first = connection.send(&Request::pay("k-1")).await.unwrap();
    let second = connection
        .send(&Request::pay("k-1").chunked())
        .await
        .unwrap();

    assert_eq!(first.expect(201).text(), r#"{"execution":1}"#);
    assert_eq!(second.expect(201).text(), r#"{"execution":2}"#);
    assert_eq!(
        (upstream.executions(), upstream.executions_of("k-1")),
        (2, 2)
    );
    assert_eq!(
        (upstream.executions_of("k-2"), upstream.connections()),
        (0, 1)
    );
    let seen = upstream.requests();
    assert_eq!(seen[0].body, seen[1].body);
    assert_eq!(
        (seen[1].method.as_str(), seen[1].target.as_str()),
        ("POST", "/payments")
    );
    assert_eq!(seen[1].headers.one("transfer-encoding"), Some("chunked"));
}

/// Goal: a held answer waits for its release, and a hang-up mid-body counts nothing.
///
/// Method: hold one request; meanwhile send half of another and leave.
/// Evidence: the first is unanswered until the release; one execution.
#[tokio::test]
async fn the_upstream_holds_and_ignores_halves() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let addr = upstream.addr();
    let held = tokio::spawn(async move { client::send(addr, &Request::pay("k")).await.unwrap() });
    upstream.begun(1).await;

    let mut half = Connection::open(addr).await.unwrap();
    half.write(&Request::pay("half").head_bytes())
        .await
        .unwrap();
    half.leave();
    assert!(!held.is_finished());
    upstream.release();
    held.await.unwrap().expect(201);
    upstream.ended(1).await;
    assert_eq!(
        (upstream.executions(), upstream.executions_of("half")),
        (1, 0)
    );
}

/// Goal: the upstream can do bad things, and the client notices each.
///
/// Method: hang-up, reset, truncation, then chunks with a trailer, an interim answer, a 204.
/// Evidence: errors for the first three, exact bytes for the others.
#[tokio::test]
async fn bad_things_are_seen_as_they_are() {
    let upstream = Upstream::start();
    let send = || client::send(upstream.addr(), &FIXED);
    for script in [
        Script::hang_up(),
        Script::reset(),
        Script::truncated(10, b"123"),
    ] {
        upstream.next(script);
        assert!(send().await.is_err());
    }
    upstream.next(Script::created().chunks(["ab", "c"]).trailer("X-Sum", "3"));
    let chunked = send().await.unwrap().expect(201);
    assert_eq!(
        (chunked.text().as_str(), chunked.trailers.one("x-sum")),
        ("abc", Some("3"))
    );
    upstream.next(Script::reply(204).no_body().interim(103).then_close());
    let empty = send().await.unwrap().expect(204);
    assert_eq!((empty.interim, empty.body.len()), (vec![103], 0));
    upstream.next(Script::steps(vec![
        Step::Write(b"HTTP/1.1 200 OK\r\n\r\nuntil ".to_vec()),
        Step::Pause(ms(1)),
        Step::Write(b"the end".to_vec()),
        Step::Close,
    ]));
    assert_eq!(send().await.unwrap().text(), "until the end");
}

static FIXED: std::sync::LazyLock<Request> = std::sync::LazyLock::new(|| Request::pay("fixed"));

/// Goal: idle connections are closed, expectations met, refusals refused.
///
/// Method: an idle limit of 20 ms; `Expect: 100-continue`; a reserved port before it is opened.
/// Evidence: the connection ends by itself; the interim 100; the refusal, then an answer.
#[tokio::test]
async fn idle_expect_and_refusal() {
    let port = ClosedPort::reserve();
    assert!(client::send(port.addr, &FIXED).await.is_err());
    let upstream = port.open();
    upstream.close_idle_after(ms(20));
    let mut connection = Connection::open(upstream.addr()).await.unwrap();
    let expecting = Request::pay("k").header("Expect", "100-continue");
    let answer = connection.send(&expecting).await.unwrap().expect(201);
    assert_eq!(answer.interim, [100]);
    assert!(
        connection.response().await.is_err(),
        "closed after the idle time"
    );
}

/// Goal: the HTTP/2 client carries method, headers and body.
///
/// Method: a hyper server that tells what it got.
/// Evidence: its answer.
#[tokio::test]
async fn http2_with_prior_knowledge() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = hyper::service::service_fn(async |request: http::Request<_>| {
            let told = format!("{} {}", request.method(), request.uri().path());
            let _: &hyper::body::Incoming = request.body();
            Ok::<_, std::convert::Infallible>(http::Response::new(told))
        });
        let io = hyper_util::rt::TokioIo::new(stream);
        let executor = hyper_util::rt::TokioExecutor::new();
        hyper::server::conn::http2::Builder::new(executor)
            .serve_connection(io, service)
            .await
    });
    let answer = Http2::open(addr).await.send(&FIXED).await;
    assert_eq!(answer.expect(200).text(), "POST /payments");
}

/// Goal: dates are read as the RFC writes them.
///
/// Method: the example of RFC 9110 and some that are wrong.
/// Evidence: its number of seconds; `None`.
#[test]
fn imf_fixdates() {
    assert_eq!(
        imf_fixdate("Sun, 06 Nov 1994 08:49:37 GMT"),
        Some(784_111_777)
    );
    assert_eq!(imf_fixdate("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
    assert_eq!(imf_fixdate("Mon, 06 Nov 1994 08:49:37 GMT"), None);
    assert_eq!(imf_fixdate("Sunday, 06-Nov-94 08:49:37 GMT"), None);
}
