//! HTTP/2 by clients that others wrote: `nghttp` and `h2load`, in plain text and over TLS.

use std::process::Stdio;

use tokio::process::Command;

use crate::harness::{Gateway, Script, Setup, Upstream, secure, soak};

const BODY: &str = r#"{"amount":1000}"#;

async fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(std::time::Duration::from_secs(60), output)
        .await
        .expect("an end")
        .unwrap_or_else(|error| panic!("{program} (package nghttp2-client): {error}"));
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success(),
        "{program} {arguments:?}\n{out}\n{errors}"
    );
    format!("{out}{errors}")
}

async fn both(upstream: &Upstream) -> [(Gateway, &'static str); 2] {
    let (cert, key) = (secure::file("server.pem"), secure::file("server.key"));
    let tls = format!(
        "tls: {{ cert: \"{}\", key: \"{}\" }}",
        cert.display(),
        key.display()
    );
    [
        (Setup::with("").start(upstream).await, "http"),
        (Setup::with("").top(&tls).start(upstream).await, "https"),
    ]
}

/// Goal: another implementation's frames are understood, and ours by it.
///
/// Method: `nghttp` sends a payment twice with padding, without and with a dependency tree, and takes an
/// answer of 1 MiB through a window of 16 KiB.
/// Evidence: the statuses that it prints; one execution for each key; the cookies that arrive.
#[tokio::test]
async fn nghttp() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let body = folder.path().join("body.json");
    std::fs::write(&body, BODY).unwrap();
    let body = body.to_str().unwrap();
    for (gateway, scheme) in both(&upstream).await {
        let url = format!("{scheme}://localhost:{}/payments", gateway.data().port());
        let key = format!("idempotency-key: probe-{scheme}");
        let json = "content-type: application/json";
        for extra in ["--no-dep", "--padding=64"] {
            let (one, two) = ("cookie: a=1", "cookie: b=2");
            let cookies = ["-H", one, "-H", two];
            let arguments = ["-nv", extra, "-d", body, "-H", json, "-H", &key];
            let arguments = [&arguments[..], &cookies, &[&url]].concat();
            let said = run("nghttp", &arguments).await;
            assert!(said.contains(":status: 201"), "{said}");
            assert!(!said.contains("GOAWAY frame <length=8") || !said.contains("PROTOCOL_ERROR"));
        }
        assert_eq!(upstream.executions_of(&format!("probe-{scheme}")), 1);
        // What HTTP/2 may send in pieces is one line to whoever is asked over HTTP/1.
        assert_eq!(upstream.last().headers.all("cookie"), ["a=1; b=2"]);
        upstream.next(Script::reply(200).body(vec![b'x'; 1 << 20]));
        let large = format!("{scheme}://localhost:{}/large", gateway.data().port());
        let said = run("nghttp", &["-ns", "-w", "14", "-W", "14", &large]).await;
        assert!(said.contains(" 200   1M /large"), "{said}");
    }
}

/// Goal: many streams at once on few connections all get an answer.
///
/// Method: `h2load` with 4 connections of 100 streams: new requests without a key, then replays of one
/// key, in plain text and over TLS.
/// Evidence: its own count of succeeded requests; one execution for the key.
#[tokio::test]
async fn h2load() {
    let count = if soak() { "50000" } else { "1000" };
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let body = folder.path().join("body.json");
    std::fs::write(&body, BODY).unwrap();
    let body = body.to_str().unwrap();
    for (gateway, scheme) in both(&upstream).await {
        let url = format!("{scheme}://localhost:{}/payments", gateway.data().port());
        let all = format!("{count} succeeded, 0 failed, 0 errored, 0 timeout");
        let load = ["-n", count, "-c", "4", "-m", "100"];
        let said = run("h2load", &[&load[..], &[&url]].concat()).await;
        assert!(said.contains(&all), "{said}");
        let key = format!("idempotency-key: load-{scheme}");
        let json = "content-type: application/json";
        let keyed = ["-d", body, "-H", json, "-H", &key, &url];
        let said = run("h2load", &[&load[..], &keyed].concat()).await;
        assert!(said.contains(&all), "{said}");
        assert_eq!(upstream.executions_of(&format!("load-{scheme}")), 1);
        let timing = said
            .lines()
            .find(|line| line.starts_with("time for request"));
        println!("{scheme}: {count} replays, {}", timing.unwrap_or_default());
    }
}

/// Goal: a refusal that comes before the body has been read is not lost over HTTP/2 either.
///
/// Method: `curl` with prior knowledge: a payment without the key that is demanded, forty times; and one
/// whose body is too large.
/// Evidence: the statuses that it prints.
#[tokio::test]
async fn curl_hears_refusals() {
    let upstream = Upstream::start();
    let gateway = Setup::with("enforce: true").start(&upstream).await;
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large");
    std::fs::write(&large, vec![b'x'; 3 << 20]).unwrap();
    let large = format!("@{}", large.display());
    let url = format!("http://{}/payments", gateway.data());
    let asked = [
        "-s",
        "--http2-prior-knowledge",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
    ];
    for _ in 0..40 {
        let said = run("curl", &[&asked[..], &["-d", "{}", &url]].concat()).await;
        assert_eq!(said, "400");
    }
    let keyed = ["-H", "Idempotency-Key: k", "--data-binary", &large, &url];
    let said = run("curl", &[&asked[..], &keyed].concat()).await;
    assert_eq!(said, "413");
    assert_eq!(upstream.executions(), 0);
}
