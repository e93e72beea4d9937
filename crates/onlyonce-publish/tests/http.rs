//! Messages over HTTP, to a real server on the loopback address. The evidence is what arrived there.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use onlyonce::outbox::{Delivery, Parcel, Publish as _};
use onlyonce_core::{MessageId, Timestamp, fingerprint::Pointer};
use onlyonce_publish::http::{BadUrl, Http, HttpOptions, Pooled, Secrets};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

/// Stands in answers and must not stand in reasons.
const CANARY: &str = "canary-in-the-body";
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// What arrived.
struct Arrived {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

/// A receiver that answers with the status that its path names.
struct Receiver {
    port: u16,
    arrived: Arc<Mutex<Vec<Arrived>>>,
}

impl Receiver {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let arrived: Arc<Mutex<Vec<Arrived>>> = Arc::default();
        let seen = Arc::clone(&arrived);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let seen = Arc::clone(&seen);
                let answer = service_fn(move |request| answer(Arc::clone(&seen), request));
                let connection =
                    http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
                tokio::spawn(connection);
            }
        });
        Self { port, arrived }
    }

    fn url(&self, path: &str) -> http::Uri {
        let text = format!("http://127.0.0.1:{}{path}", self.port);
        text.parse().unwrap()
    }

    fn count(&self) -> usize {
        self.arrived.lock().unwrap().len()
    }
}

async fn answer(
    seen: Arc<Mutex<Vec<Arrived>>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let path = head.uri.to_string();
    let words: Vec<&str> = head.uri.path().trim_matches('/').split('/').collect();
    let text = match words.get(1) {
        Some(&"number") => r#"{"data":{"id":42}}"#.to_owned(),
        Some(&"long") => "x".repeat(2_000),
        Some(&"words") => CANARY.to_owned(),
        _ => format!(r#"{{"id":"ch_1","said":"{CANARY}"}}"#),
    };
    let answer = Response::builder()
        .status(words[0])
        .header(header::CONTENT_TYPE, "application/json; charset=utf-8")
        .header(header::LOCATION, "/200")
        .header(header::SET_COOKIE, "a=b")
        .body(Full::from(text));
    seen.lock().unwrap().push(Arrived {
        method: head.method,
        path,
        headers: head.headers,
        body,
    });
    Ok(answer.unwrap())
}

fn parcel(headers: &[(&str, &str)]) -> Parcel {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Parcel {
        id: MessageId([7; 16]),
        target: "shop".into(),
        kind: "order.paid".to_owned(),
        aggregate: None,
        ordering_key: None,
        key: "order-17.paid".to_owned(),
        headers: headers.iter().map(own).collect::<BTreeMap<_, _>>(),
        payload: Bytes::from_static(b"{\"amount\":1000}"),
        attempt: 1,
        created_at: Timestamp(0),
    }
}

fn plain(url: http::Uri) -> Http<Pooled<hyper_util::client::legacy::connect::HttpConnector>> {
    Http::new(Pooled::plain(), HttpOptions::new(url)).unwrap()
}

/// Goal: a receiver can know a message again, and who sent it.
///
/// Method: send one message twice, with headers of its own that it may and that it may not choose.
/// Evidence: the requests as they arrived; the signature is checked as the standard describes it.
#[tokio::test]
async fn what_arrives() {
    let receiver = Receiver::start().await;
    let mut options = HttpOptions::new(receiver.url("/200?a=b"));
    options.secret = Some(Secrets::parse(&format!("whsec_AAAA {SECRET}")).unwrap());
    let fixed = HeaderValue::from_static("Bearer fixed");
    options.headers.insert(header::AUTHORIZATION, fixed);
    let http = Http::new(Pooled::plain(), options).unwrap();
    let mut parcel = parcel(&[
        ("X-Tenant", "t1"),
        ("authorization", "Bearer forged"),
        ("Host", "elsewhere.example"),
        ("Content-Length", "3"),
        ("Connection", "x-hop"),
        ("X-Hop", "1"),
        ("Transfer-Encoding", "chunked"),
        ("Idempotency-Key", "forged"),
        ("webhook-id", "forged"),
        ("webhook-signature", "forged"),
    ]);
    for attempt in 1..=2 {
        parcel.attempt = attempt;
        let delivery = http.publish(&parcel).await;
        assert!(
            matches!(delivery, Delivery::Delivered { .. }),
            "{delivery:?}"
        );
    }
    let arrived = receiver.arrived.lock().unwrap();
    assert_eq!(arrived.len(), 2);
    for one in arrived.iter() {
        assert_eq!(one.method, Method::POST);
        assert_eq!(one.path, "/200?a=b");
        assert_eq!(one.body, parcel.payload);
        let header = |name: &str| {
            let values: Vec<_> = one.headers.get_all(name).iter().collect();
            assert!(values.len() <= 1, "{name}: {values:?}");
            values.first().map(|value| value.to_str().unwrap())
        };
        assert_eq!(
            header("host"),
            Some(&*format!("127.0.0.1:{}", receiver.port))
        );
        assert_eq!(header("content-length"), Some("15"));
        assert_eq!(header("x-tenant"), Some("t1"));
        assert_eq!(header("authorization"), Some("Bearer fixed"));
        assert_eq!(header("content-type"), Some("application/json"));
        assert_eq!(header("idempotency-key"), Some("order-17.paid"));
        for absent in ["connection", "x-hop", "transfer-encoding"] {
            assert_eq!(header(absent), None, "{absent}");
        }
        let id = header("webhook-id").unwrap();
        assert_eq!(id, MessageId([7; 16]).to_string());
        let seconds = header("webhook-timestamp").unwrap();
        let signed = format!("{id}.{seconds}.{{\"amount\":1000}}");
        let signature = header("webhook-signature").unwrap();
        let good = signature.split(' ').filter(|one| {
            let tag = STANDARD.decode(one.strip_prefix("v1,").unwrap()).unwrap();
            let bytes = STANDARD.decode(&SECRET["whsec_".len()..]).unwrap();
            let key = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
            hmac::verify(&key, signed.as_bytes(), &tag).is_ok()
        });
        assert_eq!(good.count(), 1);
        assert_eq!(signature.split(' ').count(), 2);
    }
}

/// Goal: every status means what it should, and no answer makes for a second request.
///
/// Evidence: the receiver counts one request for each; no word of a body is in a reason.
#[tokio::test]
async fn what_a_status_means() {
    let receiver = Receiver::start().await;
    let mut sent = 0;
    for status in [200, 201, 202, 204, 299] {
        let delivery = plain(receiver.url(&format!("/{status}")))
            .publish(&parcel(&[]))
            .await;
        assert!(
            matches!(delivery, Delivery::Delivered { .. }),
            "{status}: {delivery:?}"
        );
        sent += 1;
        assert_eq!(receiver.count(), sent);
    }
    for status in [301, 302, 303, 307, 308, 400, 401, 404, 410, 413, 422, 499] {
        let delivery = plain(receiver.url(&format!("/{status}")))
            .publish(&parcel(&[]))
            .await;
        let Delivery::Refused {
            reason,
            answer: Some(answer),
        } = delivery
        else {
            panic!("{status}: {delivery:?}");
        };
        assert!(
            reason.contains(&status.to_string()) && !reason.contains(CANARY),
            "{reason}"
        );
        assert_eq!(answer.status.as_u16(), status);
        sent += 1;
        assert_eq!(receiver.count(), sent, "{status}");
    }
    for status in [408, 409, 425, 429, 500, 502, 503, 504, 599, 600, 999] {
        let delivery = plain(receiver.url(&format!("/{status}")))
            .publish(&parcel(&[]))
            .await;
        let Delivery::Unclear(reason) = delivery else {
            panic!("{status}: {delivery:?}");
        };
        assert!(
            reason.contains(&status.to_string()) && !reason.contains(CANARY),
            "{reason}"
        );
        sent += 1;
        assert_eq!(receiver.count(), sent, "{status}");
    }
}

/// Goal: what the receiver answered is kept, within its bound.
#[tokio::test]
async fn what_is_kept_of_an_answer() {
    let receiver = Receiver::start().await;
    let send = async |path: &str, pointer: Option<&str>| {
        let mut options = HttpOptions::new(receiver.url(path));
        options.provider_id = pointer.map(|pointer| Pointer::parse(pointer).unwrap());
        options.max_answer = 1_000;
        let http = Http::new(Pooled::plain(), options).unwrap();
        match http.publish(&parcel(&[])).await {
            Delivery::Delivered {
                provider_id,
                answer,
            } => (provider_id, answer),
            other => panic!("{other:?}"),
        }
    };
    let (provider_id, answer) = send("/201", Some("/id")).await;
    assert_eq!(provider_id.as_deref(), Some("ch_1"));
    let answer = answer.unwrap();
    assert_eq!(answer.status, StatusCode::CREATED);
    assert!(answer.body.ends_with(format!("\"{CANARY}\"}}").as_bytes()));
    let kept: Vec<&str> = answer
        .headers
        .keys()
        .map(http::HeaderName::as_str)
        .collect();
    assert_eq!(kept, ["content-type"]);
    let number = send("/200/number", Some("/data/id")).await;
    assert_eq!(number.0.as_deref(), Some("42"));
    for (path, pointer) in [
        ("/200/number", "/id"),
        ("/200/number", "/data"),
        ("/200/words", "/id"),
    ] {
        let (provider_id, answer) = send(path, Some(pointer)).await;
        assert_eq!(provider_id, None, "{path} {pointer}");
        assert!(answer.is_some());
    }
    assert_eq!(send("/200", None).await.0, None);
    // Too long to keep, and delivered all the same.
    assert_eq!(send("/200/long", Some("/id")).await, (None, None));
}

/// Goal: "nothing was sent" is said on proof alone.
#[tokio::test]
async fn what_is_known_without_an_answer() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    let url: http::Uri = format!("http://{address}/hook").parse().unwrap();
    // The first reads a request and hangs up; the second breaks off in the middle of its answer.
    let server = tokio::spawn(async move {
        for said in [
            &b""[..],
            b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"id\":",
        ] {
            let (mut stream, _) = free.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"{\"amount\":1000}") {
                assert!(stream.read_buf(&mut request).await.unwrap() > 0);
            }
            stream.write_all(said).await.unwrap();
        }
    });
    let http = plain(url);
    for _ in 0..2 {
        let delivery = http.publish(&parcel(&[])).await;
        assert!(matches!(delivery, Delivery::Unclear(_)), "{delivery:?}");
    }
    server.await.unwrap();
    let delivery = http.publish(&parcel(&[])).await;
    assert!(matches!(delivery, Delivery::NotSent(_)), "{delivery:?}");
}

/// Goal: half an answer delivers nothing, even where only the end of its connection ends it.
///
/// Method: every prefix of a JSON document, without a length. Evidence: only the whole document is an answer.
#[tokio::test]
async fn only_a_whole_answer_delivers() {
    const JSON: &str = r#"{"id":"p_1","status":"paid"}"#;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let http = plain(format!("http://{address}/hook").parse().unwrap());
    for cut in 0..=JSON.len() {
        let receiver = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"{\"amount\":1000}") {
                assert!(stream.read_buf(&mut request).await.unwrap() > 0);
            }
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n";
            let said = format!("{head}{}", &JSON[..cut]);
            stream.write_all(said.as_bytes()).await.unwrap();
        };
        let parcel = parcel(&[]);
        let (delivery, ()) = tokio::join!(http.publish(&parcel), receiver);
        match cut == JSON.len() {
            true => assert!(
                matches!(delivery, Delivery::Delivered { .. }),
                "{delivery:?}"
            ),
            false => assert!(
                matches!(delivery, Delivery::Unclear(_)),
                "{cut}: {delivery:?}"
            ),
        }
    }
}

/// Goal: what no request can carry is refused before anything is sent.
#[tokio::test]
async fn what_cannot_be_sent() {
    let receiver = Receiver::start().await;
    let http = plain(receiver.url("/200"));
    for header in [("no name", "x"), ("x-lines", "a\r\nb: c")] {
        let delivery = http.publish(&parcel(&[header])).await;
        assert!(matches!(delivery, Delivery::Refused { .. }), "{delivery:?}");
    }
    let mut unsendable = parcel(&[]);
    unsendable.key = "a\nb".to_owned();
    let delivery = http.publish(&unsendable).await;
    assert!(matches!(delivery, Delivery::Refused { .. }), "{delivery:?}");
    assert_eq!(receiver.count(), 0);
    for (url, why) in [
        ("/hook", BadUrl::Form),
        ("ftp://a/hook", BadUrl::Form),
        ("http://u:p@a/hook", BadUrl::Credentials),
    ] {
        let options = HttpOptions::new(url.parse().unwrap());
        assert_eq!(
            Http::new(Pooled::plain(), options).err(),
            Some(why),
            "{url}"
        );
    }
}
