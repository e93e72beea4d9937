//! Behind the layer: a handler completes the key that the layer has reserved.

use axum::{Router, body::Body, extract::State, routing::post};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use onlyonce::{Answer, IdempotencyLayer, Identity, Reservation, RunError, Transactions};
use onlyonce_store::transactional::TransactionError;
use tower::ServiceExt as _;

use crate::place::{Kind, Pg, Place, pay};

type Inside = <Pg as Kind>::Inside;

async fn handler(
    State(all): State<Transactions<Inside>>,
    reservation: Reservation,
    amount: String,
) -> Result<Answer, RunError> {
    let inside = all.clone();
    let work = all.execute(&reservation, |tx| {
        let (all, amount) = (inside.clone(), amount.clone());
        Box::pin(async move {
            let answer = pay::<Pg>(all, tx, amount.parse().unwrap_or(0)).await?;
            match amount.as_str() {
                "13" => Err(TransactionError::given_up("no such luck")),
                _ => Ok(answer),
            }
        })
    });
    work.await
}

async fn sent(app: &Router, key: &str, amount: &str) -> (StatusCode, bool, String) {
    let request = Request::post("/pay")
        .header("Idempotency-Key", key)
        .body(Body::from(amount.to_owned()))
        .unwrap();
    let response: Response<Body> = app.clone().oneshot(request).await.unwrap();
    let replayed = response.headers().contains_key("x-idempotent-replayed");
    assert!(!response.headers().contains_key("onlyonce-version"));
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, replayed, String::from_utf8(body.to_vec()).unwrap())
}

/// Goal: behind the layer a handler of ten lines commits payment, message and key at once.
///
/// Evidence: the first answer is the handler's, the second a replay; a rollback releases the key with
/// 503, and the retry executes; the tables have one row for each payment that was answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_completes_its_key() {
    let place = Place::<Pg>::new_with(|all| all.version(4, |_, _| None)).await;
    let engine = place.transactions.engine().clone();
    let identify = |_: &http::request::Parts| Some(Identity::client("ada"));
    let layer = IdempotencyLayer::builder(engine)
        .route("pay")
        .identify(identify)
        .build();
    let app = Router::new()
        .route("/pay", post(handler))
        .layer(layer)
        .with_state(place.transactions.clone());
    let (status, replayed, first) = sent(&app, "k", "5").await;
    assert_eq!((status, replayed), (StatusCode::CREATED, false));
    let again = sent(&app, "k", "5").await;
    assert_eq!(again, (StatusCode::CREATED, true, first));
    assert_eq!(place.row_count(), (1, 1));
    for _ in 0..2 {
        let (status, replayed, _) = sent(&app, "unlucky", "13").await;
        assert_eq!((status, replayed), (StatusCode::SERVICE_UNAVAILABLE, false));
        assert_eq!(place.state("unlucky").await, "failed_retryable");
    }
    assert_eq!(place.row_count(), (1, 1));
}
