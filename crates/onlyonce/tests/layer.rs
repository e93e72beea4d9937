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
    NotSent, Outcome, Policy, layer::NotInTrailers, policy::Declared,
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

    /// With room for so many bytes of clients.
    fn with_room_for(held_bytes: usize) -> Self {
        let options = EngineOptions {
            held_bytes,
            ..EngineOptions::default()
        };
        Self {
            engine: Engine::start(Arc::new(MemoryStore::new()), options),
            calls: Arc::default(),
        }
    }

    fn layer(&self, policy: Policy) -> IdempotencyLayer {
        IdempotencyLayer::builder(self.engine.clone())
            .route("r")
            .policy(policy)
            .identify(identify)
            .build()
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

/// Goal: a credential that was checked reaches the handler, whatever `Connection` says.
///
/// Method: `Connection` names the credential and another header, with a key; a handler that says which of
/// them it got.
/// Evidence: the handler's own headers.
#[tokio::test]
async fn connection_takes_no_credential_away() {
    let world = World::new();
    let inner = service_fn(|request: Request<Body>| async move {
        let has = |name| request.headers().contains_key(name).to_string();
        let seen = [has("authorization"), has("x-one")].join(" ");
        Ok::<_, Infallible>(Response::new(Body::from(Bytes::from(seen))))
    });
    let service = world.layer(Policy::default()).layer(inner);
    let mut request = post("k");
    let headers = request.headers_mut();
    headers.insert("authorization", "Bearer t".parse().unwrap());
    headers.insert("x-one", "1".parse().unwrap());
    headers.insert("connection", "close, Authorization, X-One".parse().unwrap());
    let (_, seen) = text(service.oneshot(request).await.unwrap()).await;
    assert_eq!(seen, "true false");
}

/// Goal: what nobody but the layer may say is not said behind a body either, in either direction.
///
/// Method: a request whose trailers have every such name and one of its own, and an answer likewise; with a
/// key and without one, in shadow mode, and a replay.
/// Evidence: the trailers that the handler got, and those that the client got: only their own.
#[tokio::test]
async fn trailers_forge_nothing() {
    const FORGED: [&str; 15] = [
        "idempotency-attempt",
        "idempotency_attempt",
        "idempotency-outcome",
        "idempotency_outcome",
        "idempotency-key",
        "idempotency_key",
        "idempotency_status",
        "x-idempotent-replayed",
        "x_idempotent_replayed",
        "x-http-method-override",
        "x_original_url",
        "x-client-id",
        "x_client_id",
        "transfer-encoding",
        "connection",
    ];
    const CLAIMED: [&str; 8] = [
        "idempotency-attempt",
        "idempotency-outcome",
        "idempotency-status",
        "idempotency-generation",
        "idempotency-key-expires",
        "idempotency-key",
        "x-idempotent-replayed",
        "transfer-encoding",
    ];
    fn body(names: &[&'static str], own: Option<&'static str>) -> Body {
        let names = names.iter().copied().chain(own);
        let trailers = names.map(|name| (name.parse().unwrap(), "1".parse().unwrap()));
        Body::full(Bytes::from_static(b"{}"), Some(trailers.collect()))
    }
    fn names(trailers: Option<&http::HeaderMap>) -> Vec<&str> {
        let names = trailers.into_iter().flat_map(http::HeaderMap::keys);
        names.map(http::HeaderName::as_str).collect()
    }
    for own in [Some("x-sum"), None] {
        for (is_keyed, shadow) in [(true, false), (false, false), (true, true), (false, true)] {
            let why = format!("own {own:?}, keyed {is_keyed}, shadow {shadow}");
            let world = World::new();
            let inner = service_fn(move |request: Request<Body>| async move {
                let whole = request.into_body().collect().await.unwrap();
                let seen = names(whole.trailers()).join(" ");
                let mut answer = Response::new(body(&CLAIMED, own));
                answer.headers_mut().insert("x-seen", seen.parse().unwrap());
                let idle = "Fri, 01 Jan 2038 00:00:00 GMT".parse().unwrap();
                answer.headers_mut().insert("idempotency-key-expires", idle);
                *answer.status_mut() = StatusCode::UNAUTHORIZED;
                Ok::<_, Infallible>(answer)
            });
            let policy = Policy::builder().shadow(shadow).build();
            let service = world.layer(policy).layer(inner);
            for _ in 0..2 {
                let mut request = post("k");
                if !is_keyed {
                    request.headers_mut().remove("idempotency-key");
                }
                *request.body_mut() = body(&FORGED, own);
                let elsewhere = NotInTrailers(http::HeaderName::from_static("x-client-id"));
                request.extensions_mut().insert(elsewhere);
                let answer = service.clone().oneshot(request).await.unwrap();
                let seen = answer.headers()["x-seen"].to_str().unwrap().to_owned();
                // A body that is read whole is passed on without its trailers, but for shadow mode.
                let passes = !is_keyed || shadow;
                assert_eq!(seen, own.filter(|_| passes).unwrap_or_default(), "{why}");
                let expires = answer.headers().get("idempotency-key-expires");
                assert_eq!(expires, None, "a released key has no such time: {why}");
                let announced = answer.headers().get("trailer").cloned();
                let whole = answer.into_body().collect().await.unwrap();
                assert_eq!(names(whole.trailers()), Vec::from_iter(own), "{why}");
                let announced = announced.map(|names| names.to_str().unwrap().to_owned());
                assert!(announced.is_none() || announced.as_deref() == own, "{why}");
            }
        }
    }
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
    let service = world.layer(Policy::default()).layer(inner);
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
    let service = world.layer(Policy::default()).layer(inner);
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
    let service = world.layer(Policy::default()).layer(inner);
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
    let service = world.layer(Policy::default()).layer(inner);
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
    let policy = Policy::builder().lease(Duration::from_millis(50)).build();
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
    let service = world.layer(policy).layer(inner);
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
        .layer(world.layer(Policy::default()));
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
    let service = world.layer(Policy::default()).layer(inner);
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
    let layer = world.layer(Policy::default());
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
    let policy = Policy::builder().max_request_body(1 << 20).build();
    let service = world.layer(policy).layer(inner);
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
    let service = world
        .layer(Policy::default())
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

/// Goal: bodies that wait to be sent count as long as they are there, nobody waits for room, and others
/// than the one who took it find some.
///
/// Method: room for eight large bodies, of which one client may have two; an inner service that keeps large
/// bodies unread until it is told; four requests of that client, then a small one and one of another client.
/// Evidence: two of the four are called and two are refused at once; the others are called, and so is the
/// refused one once a body has gone. Then nothing is held.
#[tokio::test]
async fn bodies_under_way_keep_their_room() {
    let world = World::with_room_for(8 << 20);
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
    let service = world.layer(Policy::default()).layer(inner);
    let large = Bytes::from(vec![b'x'; 1 << 20]);
    let of = |client: &'static str, key: &str| {
        let mut request = post(key).map(|_| Body::from(large.clone()));
        request.extensions_mut().insert(ClientId(client));
        request
    };
    let mut held = Vec::new();
    for number in 0..2 {
        let request = of("ada", &format!("large-{number}"));
        held.push(tokio::spawn(service.clone().oneshot(request)));
        while world.calls() <= number {
            tokio::task::yield_now().await;
        }
    }
    for number in 2..4 {
        let request = of("ada", &format!("large-{number}"));
        let refused = service.clone().oneshot(request).await.unwrap();
        assert_eq!(refused.headers()["retry-after"], "1");
        let (status, body) = text(refused).await;
        assert_eq!(
            (status, code(&body).as_str()),
            (StatusCode::SERVICE_UNAVAILABLE, "overloaded")
        );
    }
    assert_eq!(world.engine.body_budget().held(), 2 << 20);
    let small = service.clone().oneshot(post("small")).await.unwrap();
    assert_eq!((small.status(), world.calls()), (StatusCode::OK, 3));
    held.push(tokio::spawn(
        service.clone().oneshot(of("eve", "another's")),
    ));
    while world.calls() < 4 {
        tokio::task::yield_now().await;
    }
    go.send(true).unwrap();
    for one in held {
        assert_eq!(one.await.unwrap().unwrap().status(), StatusCode::OK);
    }
    let again = service.clone().oneshot(of("ada", "large-2")).await.unwrap();
    assert_eq!((again.status(), world.calls()), (StatusCode::OK, 5));
    assert_eq!(world.engine.body_budget().held(), 0);
}

/// Goal: answers that nobody takes count, stored ones and first ones, and never keep a key from being
/// settled.
///
/// Method: room for eight large answers, of which one client may have two; ten executions whose answers the
/// client keeps and does not read, then replays of them.
/// Evidence: ten executions and ten completed keys; two answers can be read and eight break off before their
/// first byte; while the two are kept, replays are refused and executed nothing; afterwards they are given.
#[tokio::test]
async fn answers_that_nobody_takes_are_counted() {
    let world = World::with_room_for(8 << 20);
    let calls = world.calls.clone();
    let inner = service_fn(move |_: Request<Body>| {
        calls.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Infallible>(Response::new(Body::from(Bytes::from(vec![b'a'; 1 << 20])))) }
    });
    let service = world.layer(Policy::default()).layer(inner);
    let mut kept = Vec::new();
    for number in 0..10 {
        let answer = service.clone().oneshot(post(&format!("k{number}")));
        kept.push(answer.await.unwrap());
    }
    assert_eq!(world.calls(), 10);
    assert_eq!(world.states().await, vec![State::Completed; 10]);
    assert_eq!(world.engine.body_budget().held(), 2 << 20);
    let broken = kept.split_off(2);
    for answer in broken {
        assert_eq!(answer.status(), StatusCode::OK);
        assert!(answer.into_body().collect().await.is_err(), "not a part");
    }
    let refused = service.clone().oneshot(post("k5")).await.unwrap();
    let (status, body) = text(refused).await;
    assert_eq!(
        (status, code(&body).as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, "overloaded")
    );
    for answer in kept {
        assert_eq!(text(answer).await.1.len(), 1 << 20);
    }
    assert_eq!(world.engine.body_budget().held(), 0);
    let replayed = service.clone().oneshot(post("k5")).await.unwrap();
    assert_eq!(text(replayed).await.1.len(), 1 << 20);
    assert_eq!((world.calls(), world.engine.body_budget().held()), (10, 0));
}

/// Goal: a client that goes away on purpose has a bounded number of executions.
///
/// Method: `detached: 3`; an inner service that holds every call; clients that give up once they are called,
/// then new keys of the same client, of another one, and a retry.
/// Evidence: the calls of the inner service; 429 `overloaded` for the new keys of the same client alone; its
/// retry waits as usual; once the executions have ended new keys are executed again.
#[tokio::test]
async fn executions_without_a_client_are_bounded() {
    let world = World::new();
    let (go, gone) = tokio::sync::watch::channel(false);
    let calls = world.calls.clone();
    let inner = service_fn(move |_: Request<Body>| {
        calls.fetch_add(1, Ordering::SeqCst);
        let mut gone = gone.clone();
        async move {
            gone.wait_for(|go| *go).await.unwrap();
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }
    });
    let policy = Policy::builder().detached(3).build();
    let service = world.layer(policy).layer(inner);
    for number in 0..3 {
        let asked = tokio::spawn(service.clone().oneshot(post(&format!("gone-{number}"))));
        while world.calls() <= number {
            tokio::task::yield_now().await;
        }
        asked.abort();
        let _ = asked.await;
        assert_eq!(world.engine.detached(), number + 1);
    }
    let refused = service.clone().oneshot(post("new")).await.unwrap();
    assert_eq!(refused.headers()["retry-after"], "1");
    let (status, body) = text(refused).await;
    assert_eq!(
        (status, code(&body).as_str()),
        (StatusCode::TOO_MANY_REQUESTS, "overloaded")
    );
    assert_eq!(world.calls(), 3);
    let mut other = post("other");
    other.extensions_mut().insert(ClientId("eve"));
    let other = tokio::spawn(service.clone().oneshot(other));
    while world.calls() < 4 {
        tokio::task::yield_now().await;
    }
    let retry = tokio::spawn(service.clone().oneshot(post("gone-0")));
    while world.engine.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    go.send(true).unwrap();
    for one in [other, retry] {
        assert_eq!(one.await.unwrap().unwrap().status(), StatusCode::OK);
    }
    world.engine.idle().await;
    assert_eq!(world.engine.detached(), 0);
    let new = service.clone().oneshot(post("new")).await.unwrap();
    assert_eq!((new.status(), world.calls()), (StatusCode::OK, 5));
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
    let policy = Policy::builder().wait_timeout(Duration::MAX).build();
    let service = world.layer(policy).layer(slow);
    let first = tokio::spawn(service.clone().oneshot(post("k")));
    while world.calls() == 0 {
        tokio::task::yield_now().await;
    }
    let second = service.oneshot(post("k")).await.unwrap();
    assert_eq!(text(second).await, (StatusCode::OK, "paid".to_owned()));
    first.await.unwrap().unwrap();
    assert_eq!(world.calls(), 1);
}

/// Goal: records of the first releases are compared as they were made, and new ones by everything that counts
/// now; the host is taken from the request.
///
/// Method: a key under recipe 1; then the layer of today with the same key at another host and in another
/// compression of nothing, and a key of its own at two hosts; the host in the target and in `Host`.
/// Evidence: the handler's count, and the statuses.
#[tokio::test]
async fn old_records_are_compared_under_their_own_recipe() {
    use onlyonce_core::{Recipe, fingerprint::BodyMode};
    let world = World::new();
    let calls = world.calls.clone();
    let handler = service_fn(move |_: Request<Body>| {
        calls.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Infallible>(Response::new(Body::from(Bytes::from_static(b"paid")))) }
    });
    let at = |key: &str, uri: &str, host: Option<&str>| {
        let mut request = post(key);
        *request.uri_mut() = uri.parse().unwrap();
        if let Some(host) = host {
            request.headers_mut().insert("host", host.parse().unwrap());
        }
        request
    };
    let names = vec!["content-type".to_owned()];
    let mut old = Policy::builder().build();
    old.recipe = Recipe::version_1(BodyMode::Json, vec![], vec![], names);
    let before = world.layer(old).layer(handler.clone());
    let first = at("old", "/pay", Some("a.test"));
    before.oneshot(first).await.unwrap();
    let now = world.layer(Policy::default()).layer(handler);
    let send = async |request| now.clone().oneshot(request).await.unwrap().status();
    assert_eq!(send(at("old", "/pay", Some("b.test"))).await, 200);
    assert_eq!(world.calls(), 1);
    assert_eq!(send(at("new", "/pay", Some("a.test"))).await, 200);
    assert_eq!(send(at("new", "http://A.test:80/pay", None)).await, 200);
    assert_eq!(send(at("new", "/pay", Some("b.test"))).await, 422);
    assert_eq!(
        send(at("new", "http://b.test/pay", Some("a.test"))).await,
        422
    );
    assert_eq!(world.calls(), 2);
}

/// Goal: what the layer protects is protected in every spelling of its method, and whatever protocol it asks
/// for.
///
/// Method: a key on `post`, on a GET that a header overrides, and on a POST with `Upgrade`, twice each.
/// Evidence: the handler's count.
#[tokio::test]
async fn methods_and_upgrades_are_no_way_around() {
    let world = World::new();
    let calls = world.calls.clone();
    let handler = service_fn(move |_: Request<Body>| {
        calls.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Infallible>(Response::new(Body::from(Bytes::from_static(b"paid")))) }
    });
    let service = world.layer(Policy::default()).layer(handler);
    let spelled = [
        ("post", "x-none", ""),
        ("GET", "x-http-method-override", "POST"),
        ("POST", "upgrade", "x"),
    ];
    for (index, (method, name, value)) in spelled.into_iter().enumerate() {
        for _ in 0..2 {
            let mut request = post(method);
            *request.method_mut() = method.parse().unwrap();
            let headers = request.headers_mut();
            headers.insert(name, value.parse().unwrap());
            headers.insert("connection", "upgrade".parse().unwrap());
            let answer = service.clone().oneshot(request).await.unwrap();
            assert_eq!(answer.status(), 200, "{method} {name}");
        }
        assert_eq!(world.calls(), index + 1, "{method} {name}");
    }
}
