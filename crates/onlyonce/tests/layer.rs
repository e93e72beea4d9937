//! The layer around plain services: what a user of the library meets.
//!
//! The evidence is the inner service's own count of executions.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, request::Parts};
use http_body_util::BodyExt;
use onlyonce::{
    Body, BoxError, DispatchGuard, Engine, EngineOptions, GuardFailed, IdempotencyLayer, Identity,
    NotSent, Outcome, Policy, policy::Declared,
};
use onlyonce_core::State;
use onlyonce_store::{Filter, memory::MemoryStore};
use tower::{Layer, ServiceExt, service_fn};

#[derive(Clone)]
struct ClientId(&'static str);

fn identify(request: &Parts) -> Option<Identity> {
    request
        .extensions
        .get::<ClientId>()
        .map(|client| Identity::client(client.0))
}

struct World {
    engine: Engine,
    calls: Arc<AtomicUsize>,
}

impl World {
    fn new() -> Self {
        let engine = Engine::start(Arc::new(MemoryStore::new()), EngineOptions::default());
        Self {
            engine,
            calls: Arc::default(),
        }
    }

    /// With room for so many bytes of request bodies.
    fn with_room_for(max_gathered_bytes: usize) -> Self {
        let options = EngineOptions {
            max_gathered_bytes,
            ..EngineOptions::default()
        };
        Self {
            engine: Engine::start(Arc::new(MemoryStore::new()), options),
            calls: Arc::default(),
        }
    }

    async fn layer(&self, policy: Policy) -> IdempotencyLayer {
        IdempotencyLayer::new(self.engine.clone(), "r", policy, identify)
            .await
            .expect("memory does not fail")
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    async fn states(&self) -> Vec<State> {
        let page = self
            .engine
            .store()
            .list(&Filter::default(), None, 100)
            .await
            .unwrap();
        page.items
            .into_iter()
            .map(|item| item.record.state)
            .collect()
    }
}

fn post(key: &str) -> Request<Body> {
    let mut request = Request::post("/pay")
        .header("idempotency-key", key)
        .body(Body::from(Bytes::from_static(b"{}")))
        .unwrap();
    request.extensions_mut().insert(ClientId("ada"));
    request
}

async fn text(response: Response<Body>) -> (StatusCode, String) {
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

fn code(body: &str) -> String {
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    body["code"].as_str().unwrap().to_owned()
}

/// Goal: a panic in a handler is unknown, not forgotten and not executed again.
///
/// Method: a handler that counts and then panics; send twice.
/// Evidence: the handler's count.
#[tokio::test]
async fn a_panic_is_unknown() {
    let world = World::new();
    let calls = world.calls.clone();
    let inner = service_fn(move |request: Request<Body>| {
        calls.fetch_add(1, Ordering::SeqCst);
        async move {
            assert!(
                !request.headers().contains_key("idempotency-key"),
                "a bug in the handler"
            );
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }
    });
    let service = world.layer(Policy::default()).await.layer(inner);
    let (status, body) = text(service.clone().oneshot(post("k")).await.unwrap()).await;
    assert_eq!(
        (status.as_u16(), code(&body).as_str()),
        (502, "idempotency_outcome_unknown")
    );
    let (status, body) = text(service.oneshot(post("k")).await.unwrap()).await;
    assert_eq!(
        (status.as_u16(), code(&body).as_str()),
        (409, "idempotency_outcome_unknown")
    );
    assert_eq!(world.calls(), 1);
}

/// Goal: an inner service that proves that nothing was sent leaves the key retryable; one that only
/// fails does not.
///
/// Method: fail with `NotSent`, then with another error, then answer.
/// Evidence: states in the store, and the count.
#[tokio::test]
async fn only_a_proof_releases() {
    let world = World::new();
    let calls = world.calls.clone();
    let inner = service_fn(move |_: Request<Body>| {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        async move {
            match call {
                0 => Err::<Response<Body>, BoxError>(NotSent::new("no route to host").into()),
                1 => Err("the line went dead".into()),
                _ => Ok(Response::new(Body::empty())),
            }
        }
    });
    let service = world.layer(Policy::default()).await.layer(inner);
    let (status, body) = text(service.clone().oneshot(post("k")).await.unwrap()).await;
    assert_eq!(
        (status.as_u16(), code(&body).as_str()),
        (503, "upstream_not_reached")
    );
    assert_eq!(world.states().await, [State::FailedRetryable]);
    let (status, body) = text(service.clone().oneshot(post("k")).await.unwrap()).await;
    assert_eq!(
        (status.as_u16(), code(&body).as_str()),
        (502, "idempotency_outcome_unknown")
    );
    let (status, _) = text(service.oneshot(post("k")).await.unwrap()).await;
    assert_eq!(status.as_u16(), 409);
    assert_eq!(world.states().await, [State::Unknown]);
    assert_eq!(world.calls(), 2);
}

/// Goal: a handler can say what happened, whatever its status.
///
/// Method: 500 declared final, 200 declared not executed.
/// Evidence: states in the store; the retry of the first is a replay.
#[tokio::test]
async fn a_handler_has_the_last_word() {
    let world = World::new();
    let calls = world.calls.clone();
    let inner = service_fn(move |request: Request<Body>| {
        calls.fetch_add(1, Ordering::SeqCst);
        async move {
            let is_final = request.headers()["idempotency-key"] == "final";
            let (status, declared) = match is_final {
                true => (StatusCode::INTERNAL_SERVER_ERROR, Declared::Final),
                false => (StatusCode::OK, Declared::NotExecuted),
            };
            let mut response = Response::new(Body::from(Bytes::from_static(b"said")));
            *response.status_mut() = status;
            response.extensions_mut().insert(Outcome(declared));
            Ok::<_, Infallible>(response)
        }
    });
    let service = world.layer(Policy::default()).await.layer(inner);
    for _ in 0..2 {
        let response = service.clone().oneshot(post("final")).await.unwrap();
        assert_eq!(
            text(response).await,
            (StatusCode::INTERNAL_SERVER_ERROR, "said".to_owned())
        );
    }
    assert_eq!(world.calls(), 1);
    for _ in 0..2 {
        let response = service.clone().oneshot(post("again")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!response.headers().contains_key("idempotency-key-expires"));
    }
    assert_eq!(world.calls(), 3);
}

/// Goal: no identity, no execution.
///
/// Method: a request whose extensions hold no client.
/// Evidence: the count, and an empty store.
#[tokio::test]
async fn without_an_identity_nothing_happens() {
    let world = World::new();
    let calls = world.calls.clone();
    let inner = service_fn(move |_: Request<Body>| {
        calls.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Infallible>(Response::new(Body::empty())) }
    });
    let service = world.layer(Policy::default()).await.layer(inner);
    let mut request = post("k");
    request.extensions_mut().clear();
    let (status, body) = text(service.oneshot(request).await.unwrap()).await;
    assert_eq!(
        (status.as_u16(), code(&body).as_str()),
        (401, "unauthenticated")
    );
    assert_eq!((world.calls(), world.states().await), (0, vec![]));
}

/// Goal: nothing is sent once the lease has run out.
///
/// Method: a service that asks the guard after the lease, as a proxy does before its first write.
/// Evidence: the guard's word, and that the key is retryable.
#[tokio::test]
async fn the_guard_closes_with_the_lease() {
    let world = World::new();
    let policy = Policy {
        lease: Duration::from_millis(50),
        ..Policy::default()
    };
    let inner = service_fn(|request: Request<Body>| async move {
        let guard = request
            .extensions()
            .get::<DispatchGuard>()
            .expect("a guard comes along");
        assert_eq!(guard.check(), Ok(()));
        // Real time on purpose: the guard reads the machine's clocks.
        tokio::time::sleep(Duration::from_millis(80)).await;
        match guard.check() {
            Err(GuardFailed) => Err::<Response<Body>, BoxError>(NotSent::new(GuardFailed).into()),
            Ok(()) => Ok(Response::new(Body::empty())),
        }
    });
    let service = world.layer(policy).await.layer(inner);
    let (status, body) = text(service.oneshot(post("k")).await.unwrap()).await;
    assert_eq!(
        (status.as_u16(), code(&body).as_str()),
        (503, "upstream_not_reached")
    );
    assert_eq!(world.states().await, [State::FailedRetryable]);
}

/// Goal: the layer fits axum, around a router as well as around one route.
///
/// Method: a router with a counting handler; ten duplicates at once.
/// Evidence: the handler's count, and equal bodies.
#[tokio::test]
async fn it_fits_axum() {
    let world = World::new();
    let calls = world.calls.clone();
    let handler = move || {
        let calls = calls.clone();
        async move {
            let call = calls.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            format!("call {call}")
        }
    };
    let app = axum::Router::new()
        .route("/pay", axum::routing::post(handler))
        .layer(world.layer(Policy::default()).await);
    let requests: Vec<_> = (0..10)
        .map(|_| {
            let app = app.clone();
            tokio::spawn(async move {
                let request = post("k").map(axum::body::Body::new);
                let response = app.oneshot(request).await.unwrap();
                response.into_body().collect().await.unwrap().to_bytes()
            })
        })
        .collect();
    for request in requests {
        assert_eq!(request.await.unwrap(), "call 0");
    }
    assert_eq!(world.calls(), 1);
}

/// Goal: dropping the client's future changes nothing.
///
/// Method: drop it while the handler is held; let the handler go; ask again.
/// Evidence: the count, and the stored answer.
#[tokio::test]
async fn a_dropped_future_releases_nothing() {
    let world = World::new();
    let calls = world.calls.clone();
    let (let_go, held) = tokio::sync::watch::channel(false);
    let (entered, mut inside) = tokio::sync::mpsc::channel(1);
    let inner = service_fn(move |_: Request<Body>| {
        let (calls, mut held, entered) = (calls.clone(), held.clone(), entered.clone());
        async move {
            calls.fetch_add(1, Ordering::SeqCst);
            entered.send(()).await.unwrap();
            held.wait_for(|go| *go).await.unwrap();
            Ok::<_, Infallible>(Response::new(Body::from(Bytes::from_static(b"done"))))
        }
    });
    let service = world.layer(Policy::default()).await.layer(inner);
    let client = tokio::spawn(service.clone().oneshot(post("k")));
    inside.recv().await.unwrap();
    client.abort();
    assert!(client.await.is_err());
    let_go.send(true).unwrap();
    let (status, body) = text(service.oneshot(post("k")).await.unwrap()).await;
    assert_eq!((status.as_u16(), body.as_str()), (200, "done"));
    assert_eq!(world.calls(), 1);
}

/// Where a test keeps what was logged.
#[derive(Clone, Default)]
struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Goal: a handler that panics over a request does not make the layer tell what was in it.
///
/// Method: canaries in key, body, credential and cookie; a handler that panics, one that fails, one that
/// answers; logs at trace; twice each, and a mismatch.
/// Evidence: no canary in the log, in a refusal, in the journal or in the forms that types have for
/// debugging.
#[tokio::test]
async fn a_panic_tells_no_secrets() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let world = World::new();
    let layer = world.layer(Policy::default()).await;
    let inner = service_fn(|request: Request<Body>| async move {
        assert!(request.uri().path() != "/panic", "a bug in the handler");
        if request.uri().path() == "/fail" {
            return Err::<Response<Body>, BoxError>("the handler failed".into());
        }
        Ok(Response::new(Body::from(Bytes::from_static(
            b"CANARYANSWER",
        ))))
    });
    let service = layer.layer(inner);
    for path in ["/panic", "/fail", "/good"] {
        for body in ["CANARYBODY", "CANARYBODY", "CANARYOTHER"] {
            let mut request = Request::post(path)
                .header(
                    "idempotency-key",
                    format!("CANARYKEY{}", path.replace('/', "-")),
                )
                .header("authorization", "Bearer CANARYTOKEN")
                .header("cookie", "CANARYCOOKIE")
                .body(Body::from(Bytes::from_static(body.as_bytes())))
                .unwrap();
            request.extensions_mut().insert(ClientId("ada"));
            let answer = service.clone().oneshot(request).await.unwrap();
            let (status, text) = text(answer).await;
            let is_good = path == "/good" && status == StatusCode::OK;
            assert!(
                is_good || !text.contains("CANARY"),
                "{path} {status}: {text}"
            );
        }
    }
    let journal = world.engine.store().audit(None, 100).await.unwrap();
    assert!(!format!("{journal:?}").contains("CANARY"), "{journal:?}");
    let identity = Identity::shared(onlyonce_core::Scope::global(), vec![b"CANARY".to_vec()]);
    assert!(!format!("{identity:?}").contains("CANARY"));
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for line in log.lines() {
        assert!(!line.contains("CANARY"), "logged: {line}");
    }
}

/// Goal: requests that wait for another's answer hold no more memory than their bodies take, so that they
/// keep nobody else out.
///
/// Method: room for three bodies of the largest size; one execution that is held, four duplicates of it
/// whose length is not known beforehand, and then a request with another key.
/// Evidence: the last one is answered while the others wait.
#[tokio::test]
async fn waiters_keep_room_for_what_they_are() {
    let world = World::with_room_for(3 << 20);
    let (go, gone) = tokio::sync::watch::channel(false);
    let calls = world.calls.clone();
    let inner = service_fn(move |_: Request<Body>| {
        let (first, mut gone) = (calls.fetch_add(1, Ordering::SeqCst) == 0, gone.clone());
        async move {
            if first {
                gone.wait_for(|go| *go).await.unwrap();
            }
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }
    });
    let policy = Policy {
        max_request_body: 1 << 20,
        ..Policy::default()
    };
    let service = world.layer(policy).await.layer(inner);
    let of_any_length = |key: &str| {
        let frame = http_body::Frame::data(Bytes::from_static(b"{}"));
        let frames = futures_util::stream::iter([Ok::<_, BoxError>(frame)]);
        post(key).map(|_| Body::stream(http_body_util::StreamBody::new(frames)))
    };
    let waiting: Vec<_> = (0..5)
        .map(|_| tokio::spawn(service.clone().oneshot(of_any_length("held"))))
        .collect();
    while world.calls() == 0 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let other = service.clone().oneshot(of_any_length("other"));
    let other = tokio::time::timeout(Duration::from_secs(10), other).await;
    assert!(other.is_ok(), "it waits for room that nobody uses");
    go.send(true).unwrap();
    for one in waiting {
        let answer = one.await.unwrap().unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
    }
    assert_eq!(world.calls(), 2);
}

/// Goal: whoever sends no body keeps nobody out.
///
/// Method: room for three bodies of the largest size; twenty requests whose bodies have begun and do not go
/// on, of declared and of unknown length; then one more.
/// Evidence: it is answered while the others wait.
#[tokio::test]
async fn bodies_that_do_not_come_take_no_room() {
    let world = World::with_room_for(3 << 20);
    let service =
        world
            .layer(Policy::default())
            .await
            .layer(service_fn(|_: Request<Body>| async {
                Ok::<_, Infallible>(Response::new(Body::empty()))
            }));
    let waiting: Vec<_> = (0..20)
        .map(|number| {
            let frame = http_body::Frame::data(Bytes::from_static(b"{"));
            let begun = futures_util::stream::iter([Ok::<_, BoxError>(frame)]);
            let never = futures_util::StreamExt::chain(begun, futures_util::stream::pending());
            let body = Body::stream(http_body_util::StreamBody::new(never));
            let request = post(&format!("slow-{number}")).map(|_| body);
            tokio::spawn(service.clone().oneshot(request))
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let frame = http_body::Frame::data(Bytes::from_static(b"{}"));
    let whole = futures_util::stream::iter([Ok::<_, BoxError>(frame)]);
    let other = post("other").map(|_| Body::stream(http_body_util::StreamBody::new(whole)));
    let other = service.clone().oneshot(other);
    let other = tokio::time::timeout(Duration::from_secs(10), other).await;
    assert_eq!(
        other.expect("an answer").unwrap().status(),
        StatusCode::OK,
        "it waits behind bodies that do not come"
    );
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Goal: bodies that wait to be sent count as long as they are there.
///
/// Method: room for three large bodies and the small ones beside them; an inner service that keeps the
/// bodies of four requests unread until it is told; a fifth that is small.
/// Evidence: three of the four are called, and the small one; the fourth once a body has gone.
#[tokio::test]
async fn bodies_under_way_keep_their_room() {
    let world = World::with_room_for(4 << 20);
    let (go, gone) = tokio::sync::watch::channel(false);
    let calls = world.calls.clone();
    let inner = service_fn(move |request: Request<Body>| {
        calls.fetch_add(1, Ordering::SeqCst);
        let mut gone = gone.clone();
        async move {
            if http_body::Body::size_hint(request.body()).lower() > 1_000 {
                gone.wait_for(|go| *go).await.unwrap();
            }
            drop(request);
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }
    });
    let service = world.layer(Policy::default()).await.layer(inner);
    let large = Bytes::from(vec![b'x'; 1 << 20]);
    let asked: Vec<_> = (0..4)
        .map(|number| {
            let request = post(&format!("large-{number}")).map(|_| Body::from(large.clone()));
            tokio::spawn(service.clone().oneshot(request))
        })
        .collect();
    while world.calls() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(world.calls(), 3, "there is room for three");
    let small = service.clone().oneshot(post("small")).await.unwrap();
    assert_eq!((small.status(), world.calls()), (StatusCode::OK, 4));
    go.send(true).unwrap();
    for one in asked {
        assert_eq!(one.await.unwrap().unwrap().status(), StatusCode::OK);
    }
    assert_eq!(world.calls(), 5);
}

/// Goal: a wait without end is one.
///
/// Method: `wait_timeout` of the longest duration there is, and a duplicate of something slow.
/// Evidence: the duplicate gets the answer.
#[tokio::test]
async fn a_duplicate_may_wait_for_ever() {
    let world = World::new();
    let calls = world.calls.clone();
    let slow = service_fn(move |_: Request<Body>| {
        calls.fetch_add(1, Ordering::SeqCst);
        async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            Ok::<_, Infallible>(Response::new(Body::from(Bytes::from_static(b"paid"))))
        }
    });
    let policy = Policy {
        wait_timeout: Duration::MAX,
        ..Policy::default()
    };
    let service = world.layer(policy).await.layer(slow);
    let first = tokio::spawn(service.clone().oneshot(post("k")));
    while world.calls() == 0 {
        tokio::task::yield_now().await;
    }
    let second = service.oneshot(post("k")).await.unwrap();
    assert_eq!(text(second).await, (StatusCode::OK, "paid".to_owned()));
    first.await.unwrap().unwrap();
    assert_eq!(world.calls(), 1);
}
