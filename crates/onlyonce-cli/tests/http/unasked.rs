//! Answers that nobody asked for: a second one to the same request, and one in another protocol.

use crate::harness::{
    Connection, Request, Script, Setup, Upstream, client::Http2, script::Step, within,
};

fn answer(body: &str) -> Step {
    let length = body.len();
    let head = format!("HTTP/1.1 201 Created\r\nContent-Length: {length}\r\n\r\n{body}");
    Step::Write(head.into_bytes())
}

/// Goal: with a connection of its own, no key gets another key's second answer.
///
/// Method: an upstream that answers each request a second time as soon as the next one arrives on the same
/// connection; 20 keys, each as soon as the one before was answered.
/// Evidence: each key is answered, and replayed, with its own answer; each came over a connection of its
/// own, and requests without a key share one.
#[tokio::test]
async fn a_second_answer() {
    const OWN: &str = "upstream_reuse: false";
    for setup in [Setup::with("").route(OWN), Setup::with("").top(OWN)] {
        let upstream = Upstream::start();
        let gateway = setup.start(&upstream).await;
        let mut client = Connection::open(gateway.data()).await.unwrap();
        for number in 0..20 {
            let own = format!("own-{number}");
            let steps = vec![answer(&own), Step::MoreComes, answer("stray")];
            upstream.next(Script::steps(steps));
            let request = Request::pay(&own);
            for _ in 0..2 {
                let got = client.send(&request).await.unwrap().expect(201);
                assert_eq!(got.text(), own);
            }
            assert_eq!(upstream.executions_of(&own), 1);
        }
        assert_eq!(upstream.connections(), 20);
        for _ in 0..3 {
            let plain = Request::post("/plain").json("{}");
            client.send(&plain).await.unwrap().expect(201);
        }
        assert_eq!(upstream.connections(), 21);
    }
}

/// Goal: a connection on which something waits is not used again.
///
/// Method: the second answer comes before the next request is sent.
/// Evidence: the next request, over another connection, gets its own answer.
#[tokio::test]
async fn a_second_answer_that_has_come() {
    let upstream = Upstream::start();
    let gateway = Setup::with("").start(&upstream).await;
    for number in 0..20 {
        let own = format!("own-{number}");
        upstream.next(Script::steps(vec![answer(&own), answer("stray")]));
        let got = gateway.send(&Request::pay(&own)).await.expect(201);
        assert_eq!(got.text(), own);
        upstream.ended(number + 1).await;
    }
    assert_eq!(upstream.connections(), 20);
}

/// Goal: 101 is an answer only to those who asked for another protocol.
///
/// Method: an upstream that switches protocols at a request with a key and at one without, which came over
/// HTTP/1.1 and over HTTP/2.
/// Evidence: 502; the key is unknown and is not executed again.
#[tokio::test]
async fn another_protocol() {
    let upstream = Upstream::start();
    let gateway = Setup::with("").start(&upstream).await;
    let switch = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    upstream.always(Script::steps(vec![Step::Write(switch.to_vec())]));
    let mut http2 = Http2::open(gateway.data()).await;
    for is_http2 in [false, true] {
        let request = Request::pay(&format!("switched-{is_http2}"));
        let plain = Request::post("/plain").json("{}");
        let mut send = async |request: &Request| match is_http2 {
            true => within("an answer", http2.send(request)).await,
            false => gateway.send(request).await,
        };
        let answer = send(&request).await;
        answer.refused(502, "idempotency_outcome_unknown");
        let answer = send(&request).await;
        answer.refused(409, "idempotency_outcome_unknown");
        send(&plain).await.expect(502);
        let key = format!("switched-{is_http2}");
        assert_eq!(upstream.executions_of(&key), 1);
        assert_eq!(gateway.state(&key).await, "unknown");
    }
}
