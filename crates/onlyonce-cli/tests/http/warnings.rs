//! What is said at the start, and while it runs, where the defaults are weak.

use std::process::Command;

use onlyonce_testkit::servers::Redis;

use crate::{
    harness::{Gateway, Request, Setup, Upstream, process::binary},
    postgres_schema::text,
};

/// What `check` says about a small file.
fn check(extra: &[&str], env: (&str, &str)) -> String {
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = folder.path().join("small.yaml");
    let route = "routes: [{ id: a, path: /, backends: [{ url: \"http://127.0.0.1:1\" }] }]\n";
    std::fs::write(&file, route).expect("the file is written");
    let mut command = Command::new(binary());
    let command = command
        .arg("check")
        .arg(&file)
        .args(extra)
        .env(env.0, env.1);
    text(&command.output().expect("check runs").stderr)
}

/// Goal: whoever starts a gateway on a store that forgets is told so.
///
/// Method: a store in memory, a Redis server without an append-only file, one with, and SQLite.
/// Evidence: the log at the start.
#[tokio::test]
async fn a_store_that_forgets() {
    let upstream = Upstream::start();
    let memory = Setup::with("").store("memory:").start(&upstream).await;
    let logs = memory.logs();
    assert!(
        logs.contains("warning: level volatile: `memory:` forgets"),
        "{logs}"
    );
    let redis = Redis::start();
    redis.cli(&["config", "set", "appendonly", "no"]);
    let volatile = Setup::with("").store(&redis.url()).start(&upstream).await;
    let logs = volatile.logs();
    assert!(
        logs.contains("this Redis does not persist its writes"),
        "{logs}"
    );
    assert!(logs.contains("appendfsync always"), "{logs}");
    let sqlite = Setup::with("").start(&upstream).await;
    let logs = sqlite.logs();
    assert!(!logs.contains("warning: level"), "{logs}");
}

/// Goal: sessions that are not told apart are noticed, once, without a word of what is in them.
///
/// Method: requests with keys and cookies, of which one looks like a session and is not in the list.
/// Evidence: the log.
#[tokio::test]
async fn a_cookie_that_looks_like_a_session() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let with = |key: &str, cookies: &str| Request::pay(key).header("Cookie", cookies);
    for (key, cookies) in [
        ("1", "session=s3cret"),
        ("2", "theme=dark; csrftoken=s3cret"),
        ("3", "_ga=1"),
    ] {
        gateway.send(&with(key, cookies)).await.expect(201);
    }
    let marked = with("k", "shop_session=s3cret").header("Authorization", "Bearer s3cret");
    gateway.send(&marked).await.expect(201);
    let words = "looks like a session does not tell callers apart";
    assert!(!gateway.logs().contains(words), "{}", gateway.logs());
    for key in ["a", "b", "c"] {
        let request = with(key, "theme=dark; shop_session=s3cret");
        gateway.send(&request).await.expect(201);
    }
    gateway.says(words).await;
    let logs = gateway.logs();
    assert_eq!(logs.matches(words).count(), 1, "{logs}");
    assert!(
        logs.contains("shop_session") && !logs.contains("s3cret"),
        "{logs}"
    );
}

/// Goal: a collector that is named in vain is noticed, by `serve` and by `check`.
///
/// Method: its variable. With the feature `otlp` there is nothing to say.
/// Evidence: the log; what `check` says, with and without the environment.
#[tokio::test]
async fn a_collector_that_hears_nothing() {
    let upstream = Upstream::start();
    let variable = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
    let setup = Setup::with("").env(variable.0, variable.1);
    let gateway = setup.start(&upstream).await;
    let words =
        "warning: OTEL_EXPORTER_OTLP_ENDPOINT is set, and this program was built without `otlp`";
    let is_deaf = !cfg!(feature = "otlp");
    let logs = gateway.logs();
    assert_eq!(logs.contains(words), is_deaf, "{logs}");
    let said = check(&[], variable);
    assert_eq!(said.contains(words), is_deaf, "{said}");
    let said = check(&["--no-env"], variable);
    assert!(!said.contains(words), "{said}");
}
