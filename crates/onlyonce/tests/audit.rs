//! `onlyonce::audit::probe` on an axum router: who guards which route, without running what is guarded.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    extract::Request,
    http::{Method, StatusCode},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::post,
};
use onlyonce::{
    IdempotencyLayer, Identity, Policy,
    audit::{Covered, Guard, probe},
    policy::Enforce,
};
use onlyonce_store::memory::MemoryStore;

fn layer(route: &str, enforce: Enforce) -> IdempotencyLayer {
    let policy = Policy::builder().enforce(enforce).build();
    let identify = |_: &axum::http::request::Parts| Some(Identity::client("a"));
    IdempotencyLayer::builder(MemoryStore::new())
        .route(route)
        .policy(policy)
        .identify(identify)
        .build()
}

async fn authenticate(request: Request, next: Next) -> Response {
    match request.headers().contains_key("authorization") {
        true => next.run(request).await,
        false => StatusCode::UNAUTHORIZED.into_response(),
    }
}

#[tokio::test]
async fn every_route_says_who_guards_it_and_guarded_handlers_do_not_run() {
    let ran = Arc::new(AtomicUsize::new(0));
    let count = ran.clone();
    let handler = move || {
        let count = count.clone();
        async move { count.fetch_add(1, Ordering::SeqCst).to_string() }
    };
    let takes_a_body = ran.clone();
    let mail = move |_: String| async move {
        takes_a_body.fetch_add(1, Ordering::SeqCst);
    };
    let app: Router = Router::new()
        .route("/payments", post(handler.clone()).delete(handler.clone()))
        .route_layer(layer("payments", Enforce::On))
        .merge(
            Router::new()
                .route("/notes", post(handler.clone()))
                .route_layer(layer("notes", Enforce::Off)),
        )
        .route("/mails", post(mail))
        .layer(middleware::from_fn(authenticate));
    let routes = [
        (Method::POST, "/payments"),
        (Method::DELETE, "/payments"),
        (Method::POST, "/notes"),
        (Method::POST, "/mails"),
        (Method::POST, "/gone"),
    ];
    let found = probe(app.clone(), routes.clone(), |request| {
        let credential = "Bearer a".parse().unwrap();
        request.headers_mut().insert("authorization", credential);
    })
    .await
    .unwrap();
    let guards: Vec<Guard> = found.iter().map(|one| one.guard).collect();
    assert_eq!(
        guards,
        [
            Guard::Enforced,
            Guard::Ignored,
            Guard::Honoured,
            Guard::Absent(StatusCode::BAD_REQUEST),
            Guard::Absent(StatusCode::NOT_FOUND),
        ]
    );
    let holes: Vec<&str> = found
        .iter()
        .filter(|one| one.is_hole())
        .map(|one| one.path.as_str())
        .collect();
    assert_eq!(holes, ["/notes", "/mails", "/gone"]);
    assert_eq!(found[0].route.as_deref(), Some("payments"));
    assert_eq!(ran.load(Ordering::SeqCst), 0, "no handler ran");

    // Without a credential nothing is learnt, and that is said.
    let found: Vec<Covered> = probe(app, routes, |_| {}).await.unwrap();
    let refused = Guard::Absent(StatusCode::UNAUTHORIZED);
    assert!(found.iter().all(|one| one.guard == refused));
}
