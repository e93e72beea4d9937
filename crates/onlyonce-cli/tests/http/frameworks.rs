//! Routing, differentially: whatever a real framework serves as the protected operation, the gateway has
//! protected. Flask, Express and axum, each behind a gateway with a weaker route over everything.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use axum::{
    Router,
    extract::Request as AxumRequest,
    middleware::{Next, from_fn},
    routing::{any, post},
};
use http::Method;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpListener,
    process::{Child, Command},
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
};

use crate::{
    harness::{Request, Setup, client, within},
    routing::SPELLINGS,
};

/// How many requests are under way at once.
const AT_ONCE: usize = 16;

/// Methods and override headers, each tried with each spelling.
const WAYS: [(&str, &[(&str, &str)]); 13] = [
    ("POST", &[]),
    ("post", &[]),
    ("Post", &[]),
    ("GET", &[("X-HTTP-Method-Override", "POST")]),
    ("GET", &[("X-HTTP-Method", "POST")]),
    ("GET", &[("X-Method-Override", "post")]),
    ("PUT", &[("X-HTTP-Method-Override", "post")]),
    ("DELETE", &[("X_HTTP_Method_Override", "POST")]),
    ("POST", &[("X-HTTP-Method-Override", "GET")]),
    ("POST", &[("Connection", "Upgrade"), ("Upgrade", "x")]),
    (
        "POST",
        &[
            ("X-HTTP-Method-Override", "DELETE"),
            ("X-HTTP-Method", "POST"),
        ],
    ),
    ("PATCH", &[("X-Http-Method-Override", "Post")]),
    ("GET", &[]),
];

/// Paths that are reached by a header instead.
const REWRITTEN: [(&str, &str); 4] = [
    ("X-Original-URL", "/api/payments"),
    ("X-Rewrite-URL", "/api/payments?x=1"),
    ("X-Original-URL", "/API/payments"),
    ("X_Original_Url", "/api/payments"),
];

/// An application that runs; ended when dropped.
struct App {
    name: &'static str,
    addr: SocketAddr,
    /// The fewest of the requests that it serves as the operation by itself: with fewer the test shows little.
    at_least: usize,
    _process: Option<Child>,
    serving: Option<JoinHandle<()>>,
}

impl Drop for App {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
    }
}

fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target")
}

/// Starts a program that prints its port.
async fn started(name: &'static str, at_least: usize, mut command: Command) -> App {
    command.stdout(Stdio::piped()).kill_on_drop(true);
    let mut process = command.spawn().unwrap_or_else(|error| {
        panic!("{name} cannot be started ({error}): run ./test, which installs it")
    });
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let line = within("the port of an application", lines.next_line()).await;
    let line = line
        .unwrap()
        .unwrap_or_else(|| panic!("{name} did not start: run ./test, which installs it"));
    let port: u16 = line.parse().unwrap();
    App {
        name,
        addr: SocketAddr::from(([127, 0, 0, 1], port)),
        at_least,
        _process: Some(process),
        serving: None,
    }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/http/frameworks")
        .join(name)
}

async fn flask() -> App {
    let mut command = Command::new(target().join("python/bin/python"));
    command.arg(script("flask_app.py"));
    started("Flask", 60, command).await
}

async fn express() -> App {
    let mut command = Command::new("node");
    command
        .arg(script("express_app.cjs"))
        .arg(target().join("node").canonicalize().unwrap());
    started("Express", 60, command).await
}

async fn axum_app() -> App {
    async fn overridden(mut request: AxumRequest, next: Next) -> axum::response::Response {
        for name in [
            "x-http-method-override",
            "x-http-method",
            "x-method-override",
        ] {
            let named = request
                .headers()
                .get(name)
                .map(|value| value.as_bytes().to_ascii_uppercase());
            if let Some(method) = named.and_then(|named| Method::from_bytes(&named).ok()) {
                *request.method_mut() = method;
            }
        }
        for name in ["x-original-url", "x-rewrite-url"] {
            let named = request
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok());
            if let Some(uri) = named.and_then(|named| named.parse().ok()) {
                *request.uri_mut() = uri;
            }
        }
        next.run(request).await
    }
    let routes = Router::new()
        .route("/api/payments", post(async || "payment"))
        .route("/api/payments/", post(async || "payment"))
        .fallback(any(async || "other"));
    // Around the router: a layer within it would see the route chosen already.
    let app = Router::new()
        .fallback_service(routes)
        .layer(from_fn(overridden));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    App {
        name: "axum",
        addr,
        at_least: 20,
        _process: None,
        serving: Some(serving),
    }
}

/// Every request of the list, with its name.
fn requests() -> Vec<(String, Request)> {
    let mut all = Vec::new();
    for (method, headers) in WAYS {
        for path in SPELLINGS {
            let mut request = Request::new(method, path);
            for (name, value) in headers {
                request = request.header(name, value);
            }
            all.push((format!("{method} {path} {headers:?}"), request));
        }
    }
    for (name, value) in REWRITTEN {
        for (method, headers) in WAYS {
            let mut request = Request::new(method, "/elsewhere").header(name, value);
            for (name, value) in headers {
                request = request.header(name, value);
            }
            all.push((
                format!("{method} /elsewhere {name}: {value} {headers:?}"),
                request,
            ));
        }
    }
    all
}

/// Which of the requests were served as the operation.
async fn served(addr: SocketAddr) -> Vec<String> {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = JoinSet::new();
    for (name, request) in requests() {
        let room = Arc::clone(&room);
        running.spawn(async move {
            let _place = room.acquire().await.unwrap();
            let answer = client::send(addr, &request).await;
            // A server that refuses to read the request serves nothing.
            let ran = answer.is_ok_and(|answer| answer.body == b"payment");
            ran.then_some(name)
        });
    }
    let mut served: Vec<String> = Vec::new();
    while let Some(one) = running.join_next().await {
        served.extend(one.unwrap());
    }
    served.sort_unstable();
    served
}

/// Goal: no request that a framework serves as the protected operation passes unprotected.
///
/// Method: 500 requests without a key, in every spelling, with every method and override header, once
/// directly and once through a gateway that demands a key for the operation alone.
/// Evidence: the application's own answers: served many times directly, and never through the gateway.
async fn never_unprotected(app: App) {
    let name = app.name;
    let direct = served(app.addr).await;
    println!(
        "{name} serves {} of {} as the operation",
        direct.len(),
        requests().len()
    );
    assert!(
        direct.len() >= app.at_least,
        "{name}: {}: {direct:#?}",
        direct.len()
    );
    let url = format!("http://{}", app.addr);
    let payments = format!(
        "timeout: 30s\n  - id: payments\n    path: /api/payments\n    backends: [{{ url: \"{url}\" }}]\n    \
         idempotency: {{ enforce: true }}"
    );
    let gateway = Setup::with("").route(&payments).start_before(&url).await;
    let through = served(gateway.data()).await;
    assert!(
        through.is_empty(),
        "{name} served without a key: {through:#?}"
    );
    // The operation itself is there, with a key.
    let paid = Request::post("/api/payments").key("k");
    assert_eq!(gateway.send(&paid).await.expect(200).body, b"payment");
}

#[tokio::test]
async fn flask_is_never_unprotected() {
    never_unprotected(flask().await).await;
}

#[tokio::test]
async fn express_is_never_unprotected() {
    never_unprotected(express().await).await;
}

#[tokio::test]
async fn axum_is_never_unprotected() {
    never_unprotected(axum_app().await).await;
}
