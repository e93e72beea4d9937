//! What the listener makes of heads that HTTP forbids or that are too large, and of clients that close their
//! side once they have said everything.

use crate::harness::{Connection, Gateway, Request, Response, Script, Setup, Upstream};

/// The answer to these bytes, after which the gateway has closed.
async fn answer_to(gateway: &Gateway, bytes: &[u8]) -> Response {
    let mut connection = Connection::open(gateway.data()).await.unwrap();
    connection.write(bytes).await.unwrap();
    let answer = connection.response().await.unwrap();
    let rest = connection.until_closed().await;
    assert!(rest.is_empty(), "{answer}");
    answer
}

fn pay(lines: &str) -> Vec<u8> {
    let body = r#"{"amount":1000}"#;
    let length = body.len();
    format!("POST /pay HTTP/1.1\r\n{lines}Content-Length: {length}\r\n\r\n{body}").into_bytes()
}

/// Goal: a refusal says what was wrong and that nothing was executed, whoever found it.
///
/// Method: heads that cannot be parsed; a control character in the key, first and last in the head; heads
/// that are too large, with too many lines, and with a target that is too long.
/// Evidence: a problem with its code on each; no execution, no record; a good request on a connection of
/// its own is served.
#[tokio::test]
async fn refusals_have_a_problem() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let malformed = [
        pay("Host: a\r\nIdempotency-Key: k\r\nX-Other: a\x01b\r\n"),
        pay("Host: a\r\nIdempotency-Key: k\r\nNo colon\r\n"),
        pay("Host: a\r\nIdempotency-Key: k\r\nX Y: z\r\n"),
        b"POST /a b c HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"POST / HTTP/9.9\r\nHost: a\r\n\r\n".to_vec(),
        pay("Idempotency-Key: k\r\n"),
        pay("Host:\r\nIdempotency-Key: k\r\n"),
        pay("Host: a b\r\nIdempotency-Key: k\r\n"),
        pay("Host: a/b\r\nIdempotency-Key: k\r\n"),
        pay("Host: a:b\r\nIdempotency-Key: k\r\n"),
        pay("Host: u@a\r\nIdempotency-Key: k\r\n"),
        pay("Host: a\r\nHost: a\r\nIdempotency-Key: k\r\n"),
        pay("Host: a\r\nHost: b\r\n"),
    ];
    for bytes in &malformed {
        let answer = answer_to(&gateway, bytes).await;
        let sent = String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(
            answer.header("content-type"),
            Some("application/problem+json"),
            "{sent}\n{answer}"
        );
        assert!(answer.header("date").is_some(), "{answer}");
        answer.refused(400, "request_malformed");
    }
    let mut refused = 0;
    for byte in (0..0x20).chain([0x7f]) {
        if matches!(byte, b'\t' | b'\n' | b'\r') {
            continue;
        }
        for lines in [
            "Host: a\r\nidempotency-key: qzq\x01cd\r\n",
            "Idempotency-Key: qzq\x01cd\r\nHost: a\r\n",
        ] {
            let mut bytes = pay(lines);
            let at = bytes.iter().position(|byte| *byte == 1).unwrap();
            bytes[at] = byte;
            let answer = answer_to(&gateway, &bytes).await;
            assert!(!answer.text().contains("qzq"), "{answer}");
            answer.refused(400, "idempotency_key_invalid");
            refused += 1;
        }
    }
    let counted = gateway.admin(Request::get("/idempotency")).await.json();
    assert_eq!(counted["r"]["invalid_key"], refused, "{counted}");
    assert_eq!(counted["r"]["total_requests"], refused, "{counted}");
    let filler = format!("Host: a\r\nX-Filler: {}\r\n", "v".repeat(200_000));
    let lines = format!("Host: a\r\n{}", "X-Line: v\r\n".repeat(200));
    for bytes in [pay(&filler), pay(&lines)] {
        let answer = answer_to(&gateway, &bytes).await;
        answer.refused(431, "request_headers_too_large");
    }
    assert_eq!(upstream.executions(), 0);
    assert_eq!(gateway.state("k").await, "absent");
    gateway.send(&Request::pay("good")).await.expect(201);
}

/// Goal: `max_header_size` is a limit to the byte.
///
/// Method: heads around 8 KiB and around 64 KiB, all in one write, so that the reader has them whole.
/// Evidence: executed up to the limit, and 431 beyond it; also for the 100 kB that one read can bring.
#[tokio::test]
async fn the_limit_of_a_head_is_exact() {
    for limit in [8 << 10, 64 << 10] {
        the_limit_is(limit).await;
    }
}

async fn the_limit_is(limit: usize) {
    let upstream = Upstream::start();
    let gateway = Setup::with("")
        .top(&format!("max_header_size: {limit}"))
        .start(&upstream)
        .await;
    let whole = |key: &str, size: usize| {
        let head = |filler: &str| {
            format!(
                "POST /pay HTTP/1.1\r\nHost: a\r\nConnection: close\r\nIdempotency-Key: {key}\r\n\
                 X-Filler: {filler}\r\nContent-Length: 2\r\n\r\n"
            )
        };
        let filler = "v".repeat(size - head("").len());
        let bytes = head(&filler);
        assert_eq!(bytes.len(), size);
        format!("{bytes}{{}}").into_bytes()
    };
    for (size, fits) in [
        (limit - 1, true),
        (limit, true),
        (limit + 1, false),
        (limit + 100, false),
        (limit + limit / 2, false),
        (100_000, false),
    ] {
        let key = format!("head-{size}");
        let answer = answer_to(&gateway, &whole(&key, size)).await;
        match fits {
            true => drop(answer.expect(201)),
            false => drop(answer.refused(431, "request_headers_too_large")),
        }
        assert_eq!(upstream.executions_of(&key), usize::from(fits), "{size}");
    }
}

/// Goal: a head has at most a hundred lines, to the line.
///
/// Method: heads of 99 to 129 lines, the hundred and first of them last.
/// Evidence: executed up to the limit, and 431 beyond it.
#[tokio::test]
async fn the_limit_of_lines_is_exact() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for lines in [99, 100, 101, 102, 128, 129] {
        let key = format!("lines-{lines}");
        let filler: String = (4..lines).map(|n| format!("X-{n}: v\r\n")).collect();
        let bytes = format!(
            "POST /pay HTTP/1.1\r\nHost: a\r\nConnection: close\r\nIdempotency-Key: {key}\r\n{filler}\
             Content-Length: 2\r\n\r\n{{}}"
        );
        let answer = answer_to(&gateway, bytes.as_bytes()).await;
        let fits = lines <= 100;
        match fits {
            true => drop(answer.expect(201)),
            false => drop(answer.refused(431, "request_headers_too_large")),
        }
        assert_eq!(upstream.executions_of(&key), usize::from(fits), "{lines}");
    }
}

/// Goal: a client that has closed its side gets its answer all the same.
///
/// Method: a whole request, with a key and without, and then FIN, before the upstream has answered; also a
/// duplicate that waits.
/// Evidence: each gets its answer, and the connection is closed after it.
#[tokio::test]
async fn half_closed() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let mut waiting = Vec::new();
    upstream.always(Script::created().held());
    let keyed = Request::pay("half");
    let plain = Request::post("/plain").json("{}");
    for (number, request) in [&keyed, &plain, &keyed].into_iter().enumerate() {
        let mut connection = Connection::open(gateway.data()).await.unwrap();
        connection.write(&request.bytes()).await.unwrap();
        connection.finish_writing().await.unwrap();
        match number {
            2 => gateway.until_met_in_flight(1).await,
            number => upstream.begun(number + 1).await,
        }
        waiting.push(connection);
    }
    upstream.release();
    upstream.release();
    for mut connection in waiting {
        connection.response().await.unwrap().expect(201);
        assert!(connection.until_closed().await.is_empty());
    }
    assert_eq!(upstream.executions(), 2);
    assert_eq!(upstream.executions_of("half"), 1);
}
