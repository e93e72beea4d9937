//! TLS on the data listener, and to backends.

use std::{fs, path::Path, sync::Arc};

use tempfile::TempDir;
use tokio::{io::AsyncWriteExt, time::Instant};

use crate::{
    harness::{
        Connection, Gateway, REPLAYED, Request, Script, Setup, Upstream, eventually, ms,
        provider::{Part, Provider},
        secure::{Secure, file, handshake, is_certificate},
    },
    reconcile,
    verify::front::Front,
};

const HTTP1: &[&str] = &["http/1.1"];
const HTTP2: &[&str] = &["h2", "http/1.1"];

/// A gateway that shows `server.pem`, from a folder in which it can be replaced.
async fn secured(upstream: &Upstream, top: &str) -> (Gateway, Arc<TempDir>) {
    let folder = Arc::new(TempDir::new().unwrap());
    install(folder.path(), "server");
    let path = folder.path().to_str().unwrap();
    let setup = Setup::with("").top(&format!(
        "tls: {{ cert: \"{path}/shown.pem\", key: \"{path}/shown.key\" }}\n{top}"
    ));
    (setup.start(upstream).await, folder)
}

fn install(folder: &Path, name: &str) {
    for ending in ["pem", "key"] {
        let beside = folder.join(format!("new.{ending}"));
        fs::copy(file(&format!("{name}.{ending}")), &beside).unwrap();
        fs::rename(beside, folder.join(format!("shown.{ending}"))).unwrap();
    }
}

async fn generation(gateway: &Gateway) -> u64 {
    gateway.admin_open("/readyz").await.json()["config"]["generation"]
        .as_u64()
        .unwrap()
}

async fn last_error(gateway: &Gateway) -> Option<String> {
    let shown = gateway.admin_open("/readyz").await.json();
    shown["config"]["last_error"].as_str().map(str::to_owned)
}

/// Goal: over TLS everything is as it is in plain text, in the HTTP that the handshake agrees on.
///
/// Method: one key first over HTTP/1.1, then over HTTP/2, then without ALPN.
/// Evidence: one execution; the same bytes.
#[tokio::test]
async fn both_versions() {
    let upstream = Upstream::start();
    let (gateway, _folder) = secured(&upstream, "").await;
    let request = Request::pay("one-key");
    let mut first = Secure::open(gateway.data(), HTTP1).await;
    assert!(!first.is_http2());
    let answer = first.send(&request).await.expect(201);
    let mut second = Secure::open(gateway.data(), HTTP2).await;
    assert!(second.is_http2());
    let replay = second.send(&request).await.expect(201);
    assert_eq!(replay.header(REPLAYED), Some("true"));
    assert_eq!(replay.body, answer.body);
    let mut plain = Secure::open(gateway.data(), &[]).await;
    assert!(!plain.is_http2());
    assert_eq!(plain.send(&request).await.expect(201).body, answer.body);
    assert_eq!(upstream.executions_of("one-key"), 1);
    assert_eq!(
        upstream.last().headers.one("x-forwarded-proto"),
        Some("https")
    );
}

/// Goal: a new certificate is shown to new connections, and nobody else notices.
///
/// Method: two connections stay open, one in each HTTP, while the files are replaced, noticed by
/// themselves the first time and by SIGHUP the second time; then by rubbish, and by a key without its
/// certificate.
/// Evidence: the old connections go on answering; new ones are shown the new certificate within 2 s;
/// what is refused changes nothing.
#[tokio::test]
async fn another_certificate() {
    let upstream = Upstream::start();
    let (gateway, folder) = secured(&upstream, "").await;
    let mut open = [
        Secure::open(gateway.data(), HTTP1).await,
        Secure::open(gateway.data(), HTTP2).await,
    ];
    assert!(is_certificate(&open[0].certificate, "server.pem"));
    for (round, (name, by_signal)) in [("other", false), ("server", true)].into_iter().enumerate() {
        install(folder.path(), name);
        let began = Instant::now();
        if by_signal {
            gateway.sighup();
        }
        eventually("the new certificate", async || {
            let new = Secure::open(gateway.data(), HTTP1).await;
            is_certificate(&new.certificate, &format!("{name}.pem")).then_some(())
        })
        .await;
        println!("{name}.pem is shown after {:?}", began.elapsed());
        for (number, old) in open.iter_mut().enumerate() {
            let key = format!("kept-{round}-{number}");
            old.send(&Request::pay(&key)).await.expect(201);
        }
    }
    let before = generation(&gateway).await;
    fs::write(folder.path().join("shown.pem"), "rubbish").unwrap();
    eventually("a refusal", async || last_error(&gateway).await).await;
    gateway.sighup();
    fs::copy(file("other.pem"), folder.path().join("shown.pem")).unwrap();
    eventually("the other refusal", async || {
        let log = gateway.logs();
        log.contains("does not belong to the certificate")
            .then_some(())
    })
    .await;
    gateway.says("holds no certificate in PEM form").await;
    assert_eq!(generation(&gateway).await, before, "nothing took effect");
    let mut new = Secure::open(gateway.data(), HTTP2).await;
    assert!(is_certificate(&new.certificate, "server.pem"));
    new.send(&Request::pay("after")).await.expect(201);
    for old in &mut open {
        old.send(&Request::pay("after")).await.expect(201);
    }
    assert_eq!(upstream.executions_of("after"), 1);
}

/// Goal: a handshake is waited for as long as a head is, and no longer.
///
/// Method: silence, half a handshake, plain HTTP, and HTTP/2 that never begins; 100 silent ones at once.
/// Evidence: closed in time; meanwhile others are served.
#[tokio::test]
async fn slow_handshakes() {
    let upstream = Upstream::start();
    let (gateway, _folder) = secured(&upstream, "header_timeout: 700ms").await;
    let mut silent = Vec::new();
    for number in 0..100 {
        let mut connection = Connection::open(gateway.data()).await.unwrap();
        if number % 2 == 1 {
            connection.write(b"\x16\x03\x01\x02\x00\x01").await.unwrap();
        }
        silent.push(connection);
    }
    let mut stalled = handshake(gateway.data(), &["h2"]).await.unwrap();
    stalled.write_all(b"PRI * HT").await.unwrap();
    let began = Instant::now();
    let mut good = Secure::open(gateway.data(), HTTP2).await;
    good.send(&Request::pay("between")).await.expect(201);
    for mut connection in silent {
        connection.until_closed().await;
    }
    let mut end = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut stalled, &mut end);
    let _ = tokio::time::timeout(ms(8_000), read).await.expect("closed");
    println!("all closed after {:?}", began.elapsed());
    let mut plain = Connection::open(gateway.data()).await.unwrap();
    plain.write(&Request::pay("plain").bytes()).await.unwrap();
    let came = plain.until_closed().await;
    assert!(!came.starts_with(b"HTTP/"), "an answer in plain text");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a client over TLS that takes nothing of its answer is cut off, as one in plain text is.
#[tokio::test]
async fn a_reader_that_sleeps() {
    let upstream = Upstream::start();
    let (gateway, _folder) = secured(&upstream, "send_timeout: 700ms").await;
    upstream.always(Script::created().body(vec![b'x'; 32 << 20]));
    let mut stream = handshake(gateway.data(), HTTP1).await.unwrap();
    stream
        .write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    upstream.begun(1).await;
    tokio::time::sleep(ms(2_500)).await;
    let mut came = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut came);
    let ended = tokio::time::timeout(ms(8_000), read)
        .await
        .expect("cut off");
    assert!(
        ended.is_err() || came.len() < 32 << 20,
        "all of it was kept"
    );
}

/// Goal: a backend behind TLS is reached if its certificate is believed, and not a byte goes to one
/// whose certificate is not.
///
/// Method: the same backend, with its authority in `ca_file`, with another one, with the public ones.
/// Evidence: the backend's own count; 503 and a retryable key where the handshake failed.
#[tokio::test]
async fn backends_behind_tls() {
    let upstream = Upstream::start();
    let front = Front::start(upstream.addr()).await;
    let url = front.url("");
    let start = async |url: &str, trust: &str| {
        let folder = Arc::new(TempDir::new().unwrap());
        let backends = format!("backends: [{{ url: \"{url}\"{trust} }}]");
        let setup = Setup::with("").replacing_backends(&backends);
        setup.start_in(folder, "http://unused").await.unwrap()
    };
    let ca = |name: &str| format!(", ca_file: \"{}\"", file(name).display());
    let gateway = start(&url, &ca("ca.pem")).await;
    for _ in 0..2 {
        gateway.send(&Request::pay("believed")).await.expect(201);
    }
    assert_eq!(upstream.executions_of("believed"), 1);
    assert_eq!(gateway.state("believed").await, "completed");
    let by_address = url.replace("localhost", "127.0.0.1");
    let gateway = start(&by_address, &ca("ca.pem")).await;
    gateway.send(&Request::pay("by-address")).await.expect(201);
    for trust in [ca("other-ca.pem"), String::new()] {
        let gateway = start(&url, &trust).await;
        let answer = gateway.send(&Request::pay("unbelieved")).await;
        answer.refused(503, "upstream_not_reached");
        assert_eq!(gateway.state("unbelieved").await, "failed_retryable");
    }
    assert_eq!(upstream.executions_of("unbelieved"), 0);
}

/// Goal: what the gateway itself asks, it asks over TLS, and believes nobody else.
///
/// Method: an authenticating service behind TLS, with its authority and with another one.
/// Evidence: the service's own count; 201, and 503 without an execution.
#[tokio::test]
async fn questions_over_tls() {
    let (upstream, service) = (Upstream::start(), Upstream::start());
    service.always(Script::reply(200).header("X-Who", "acme"));
    let front = Front::start(service.addr()).await;
    let setup = |ca: &str| {
        let (url, ca) = (front.url("/auth"), file(ca));
        Setup::with("").top(&format!(
            "auth: {{ external: {{ url: \"{url}\", client_id_header: X-Who, ca_file: \"{}\" }} }}",
            ca.display()
        ))
    };
    let gateway = setup("ca.pem").start(&upstream).await;
    gateway.send(&Request::pay("asked")).await.expect(201);
    assert_eq!((service.executions(), upstream.executions()), (1, 1));
    let gateway = setup("other-ca.pem").start(&upstream).await;
    let answer = gateway.send(&Request::pay("asked-2")).await;
    assert_eq!(answer.status, 503, "{answer}");
    assert_eq!((service.executions(), upstream.executions()), (1, 1));
}

/// Goal: a provider behind TLS is asked what became of a key, if its certificate is believed.
///
/// Method: its answer is lost; the query goes through TLS, with its authority and with another one.
/// Evidence: the key is completed by what the provider said; otherwise it is not, and the provider was not
/// asked.
#[tokio::test]
async fn a_provider_behind_tls() {
    let provider = Provider::start(|_| Part::PayAndHangUp).await;
    let front = Front::start(provider.addr).await;
    let setup = |ca: &str, more: &str| {
        let (url, ca) = (front.url("/payments?key={key}"), file(ca));
        Setup::with("lease: 1s, timeout: 1s, max_execution: 2s")
            .workers(reconcile::WORKERS)
            .route(&format!(
                "idempotency: {{ reconcile: {{ query: {{ url: \"{url}\", ca_file: \"{}\" }}, {}, \
                 after: 100ms{more} }} }}",
                ca.display(),
                reconcile::OUTCOMES
            ))
    };
    let gateway = setup("ca.pem", "").start_before(&provider.url()).await;
    gateway.send(&Request::pay("told")).await;
    gateway.until_state("told", "completed").await;
    let asked = provider.asked().len();
    assert!(asked > 0);
    let gateway = setup("other-ca.pem", ", attempts: 2")
        .start_before(&provider.url())
        .await;
    gateway.send(&Request::pay("not-told")).await;
    let letter = gateway.until_dead_letter("not-told").await;
    assert!(
        letter.to_string().contains("no secure connection"),
        "{letter}"
    );
    assert_eq!(provider.asked().len(), asked);
}
