//! Several backends, slow ones, and ones that speak HTTP/2: another is tried only on proof that nothing
//! was sent, whatever that costs.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpListener, task::JoinHandle, time::Instant};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

use crate::harness::{
    Gateway, REPLAYED, Request, Script, Setup, Upstream, eventually, ms, script::Step,
    secure::file, upstream::ClosedPort,
};

async fn before(urls: &[String], options: &str) -> Gateway {
    let each: Vec<String> = urls
        .iter()
        .map(|url| format!("{{ url: \"{url}\" }}"))
        .collect();
    Setup::with(options)
        .replacing_backends(&format!("backends: [{}]", each.join(", ")))
        .start_before("http://unused")
        .await
}

/// Goal: a backend that refuses connections costs nothing but a retry on the other.
///
/// Method: one of two refuses, 20 keys; then both refuse, and one comes back.
/// Evidence: every answer is 201 and every key has one execution; with none left 503 and a retryable
/// key, which is then executed once.
#[tokio::test]
async fn one_that_refuses() {
    let closed = ClosedPort::reserve();
    let good = Upstream::start();
    let gateway = before(&[closed.url(), good.url()], "").await;
    for number in 0..20 {
        let key = format!("key-{number}");
        gateway.send(&Request::pay(&key)).await.expect(201);
        assert_eq!(good.executions_of(&key), 1);
    }
    assert_eq!(good.executions(), 20);
    let other = ClosedPort::reserve();
    let gateway = before(&[closed.url(), other.url()], "").await;
    let answer = gateway.send(&Request::pay("nobody")).await;
    answer.refused(503, "upstream_not_reached");
    assert_eq!(gateway.state("nobody").await, "failed_retryable");
    let back = closed.open();
    gateway.send(&Request::pay("nobody")).await.expect(201);
    assert_eq!(back.executions_of("nobody"), 1);
}

/// Goal: one that dies in the middle gives `unknown`, and never a second execution.
///
/// Method: both backends read each request and then break off, in four ways, a dozen keys; retries.
/// Evidence: the backends' own counts together.
#[tokio::test]
async fn one_that_dies_in_the_middle() {
    let (one, two) = (Upstream::start(), Upstream::start());
    let gateway = before(&[one.url(), two.url()], "").await;
    let head = b"HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nhalf".to_vec();
    let ways = [
        Script::truncated(100, b"{\"id\":"),
        Script::reset(),
        Script::hang_up(),
        Script::steps(vec![Step::Write(head), Step::Reset]),
    ];
    for (number, way) in ways.iter().cycle().take(12).enumerate() {
        one.always(way.clone());
        two.always(way.clone());
        let key = format!("dies-{number}");
        let answer = gateway.send(&Request::pay(&key)).await;
        answer.refused(502, "idempotency_outcome_unknown");
        let retry = gateway.send(&Request::pay(&key)).await;
        retry.refused(409, "idempotency_outcome_unknown");
        assert_eq!(
            one.executions_of(&key) + two.executions_of(&key),
            1,
            "{key}"
        );
        assert_eq!(gateway.state(&key).await, "unknown");
    }
    assert!(
        one.executions() > 0 && two.executions() > 0,
        "both took part"
    );
}

/// Goal: backends take turns by their weights.
#[tokio::test]
async fn turns() {
    let (one, two) = (Upstream::start(), Upstream::start());
    let backends = format!(
        "backends: [{{ url: \"{}\", weight: 3 }}, {{ url: \"{}\" }}]",
        one.url(),
        two.url()
    );
    let setup = Setup::with("").replacing_backends(&backends);
    let gateway = setup.start_before("http://unused").await;
    for number in 0..40 {
        let key = format!("turn-{number}");
        gateway.send(&Request::pay(&key)).await.expect(201);
    }
    assert_eq!((one.executions(), two.executions()), (30, 10));
}

/// Goal: an answer that does not begin in time ends the client's wait, and not the execution.
///
/// Method: `first_byte_timeout` of half a second before a backend that is held; then one that begins at
/// once and takes longer than that to end; then both without a key.
/// Evidence: 504 and `in_progress`, then the late answer is replayed; the slow body is 201; one
/// execution each.
#[tokio::test]
async fn the_first_byte() {
    let upstream = Upstream::start();
    let setup = Setup::with("").route("first_byte_timeout: 500ms");
    let gateway = setup.start(&upstream).await;
    upstream.next(Script::created().held());
    let began = Instant::now();
    let answer = gateway.send(&Request::pay("held")).await;
    answer.refused(504, "idempotency_key_in_progress");
    assert!(began.elapsed() < ms(8_000), "{:?}", began.elapsed());
    assert_eq!(gateway.state("held").await, "in_progress");
    upstream.release();
    eventually("the late answer", async || {
        (gateway.state("held").await == "completed").then_some(())
    })
    .await;
    let replay = gateway.send(&Request::pay("held")).await.expect(201);
    assert_eq!(replay.header(REPLAYED), Some("true"));
    let slow = Script::steps(vec![
        Step::Write(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n".to_vec()),
        Step::Pause(ms(1_200)),
        Step::Write(b"ok".to_vec()),
    ]);
    upstream.next(slow.clone());
    let answer = gateway.send(&Request::pay("slow")).await.expect(201);
    assert_eq!(answer.text(), "ok");
    assert_eq!(upstream.executions_of("held"), 1);
    assert_eq!(upstream.executions_of("slow"), 1);
    upstream.next(slow);
    let answer = gateway
        .send(&Request::new("GET", "/slow"))
        .await
        .expect(201);
    assert_eq!(answer.text(), "ok");
    upstream.next(Script::created().held());
    let answer = gateway.send(&Request::new("GET", "/held")).await;
    answer.refused(504, "upstream_timeout");
}

/// A backend that speaks HTTP/2 only, and counts.
struct Http2Backend {
    addr: SocketAddr,
    by_key: Arc<Mutex<HashMap<String, usize>>>,
    serving: JoinHandle<()>,
}

impl Drop for Http2Backend {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Http2Backend {
    async fn start(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let by_key: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
        let counts = by_key.clone();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, counts) = (tls.clone(), counts.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, counts).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, counts).await;
                            }
                        }
                    }
                });
            }
        });
        Self {
            addr,
            by_key,
            serving,
        }
    }

    fn executions_of(&self, key: &str) -> usize {
        self.by_key.lock().unwrap().get(key).copied().unwrap_or(0)
    }
}

async fn serve<T>(stream: T, counts: Arc<Mutex<HashMap<String, usize>>>)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: http::Request<Incoming>| {
        let counts = counts.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let key = parts.headers.get("idempotency-key");
            if let Some(key) = key.and_then(|key| key.to_str().ok()) {
                *counts.lock().unwrap().entry(key.to_owned()).or_default() += 1;
            }
            let seen = format!(
                "{:?} {} {} {}",
                parts.version,
                parts.uri,
                parts.headers.contains_key("host"),
                body.len()
            );
            let answer = http::Response::builder().status(201);
            Ok::<_, Infallible>(answer.body(Full::new(Bytes::from(seen))).unwrap())
        }
    });
    let _ = http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn acceptor() -> TlsAcceptor {
    let certificates = CertificateDer::pem_file_iter(file("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(file("server.key")).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates.map(Result::unwrap).collect(), key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// Goal: a backend is spoken to in HTTP/2, in plain text where that is said, and by ALPN over TLS.
///
/// Evidence: what the backend says it was sent; one execution for each key, of eight requests at once.
#[tokio::test]
async fn in_http2() {
    let plain = Http2Backend::start(None).await;
    let secured = Http2Backend::start(Some(acceptor())).await;
    let ca = file("ca.pem");
    for (backend, line) in [
        (
            &plain,
            format!("url: \"http://{}\", http2: true", plain.addr),
        ),
        (
            &secured,
            format!(
                "url: \"https://{}\", ca_file: \"{}\"",
                secured.addr,
                ca.display()
            ),
        ),
    ] {
        let setup = Setup::with("").replacing_backends(&format!("backends: [{{ {line} }}]"));
        let gateway = setup.start_before("http://unused").await;
        for number in 0..3 {
            let key = format!("h2-{number}");
            let running = gateway.send_many(8, &Request::pay(&key));
            for answer in running {
                let answer = answer.await.unwrap().expect(201);
                let scheme = line.split('"').nth(1).unwrap().split(':').next().unwrap();
                let seen = format!("HTTP/2.0 {scheme}://api.test/");
                assert!(answer.text().starts_with(&seen), "{}", answer.text());
                assert!(answer.text().contains(" false "), "{}", answer.text());
            }
            assert_eq!(backend.executions_of(&key), 1, "{line}");
        }
        let streamed = Request::post("/streamed")
            .body("text/plain", [b'x'; 700])
            .chunked();
        let answer = gateway.send(&streamed).await.expect(201);
        assert!(answer.text().ends_with(" 700"), "{}", answer.text());
    }
}
