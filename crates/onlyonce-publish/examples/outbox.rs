//! A message that is committed with an order and delivered over HTTP afterwards, on SQLite.
//!
//! ```text
//! cargo run -p onlyonce-publish --example outbox
//! ```

use std::{path::Path, time::Duration};

use axum::{Router, http::StatusCode, routing::post};
use onlyonce::{
    Answer, Engine, Key, Policy, Scope, Transactions,
    outbox::{Deliveries, Message, Target},
    store::SqliteStore,
};
use onlyonce_publish::http::{Http, HttpOptions, Pooled};

/// The receiver.
async fn receipt(body: String) -> StatusCode {
    println!("a receipt for {body}");
    StatusCode::NO_CONTENT
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let receiver = tokio::net::TcpListener::bind("127.0.0.1:4000").await?;
    let service = Router::new().route("/receipts", post(receipt));
    tokio::spawn(async move { axum::serve(receiver, service).await });

    let store = SqliteStore::open(Path::new("outbox-example.db"))?;
    let inside = store.transactions()?;
    let engine = Engine::from(store);
    let transactions = Transactions::new(engine.clone(), inside);
    let orders = transactions.operation("orders", Policy::default()).await?;

    let url = "http://localhost:4000/receipts".parse()?;
    let http = Http::new(Pooled::plain(), HttpOptions::new(url))?;
    let deliveries = Deliveries::new(&engine)
        .ok_or("a SQL store")?
        .target(Target::new("receipts", http));
    let running = deliveries.start(Duration::from_millis(500));

    let key = Key::parse(b"order-17", &onlyonce::KeyRules::default())?;
    let ran = orders.run(Scope::global(), key, "17", |tx| {
        let app = transactions.clone();
        Box::pin(async move {
            let payload = r#"{"order":17}"#;
            let message = Message {
                kind: "order.paid".into(),
                aggregate: Some(("order".into(), "17".into())),
                ordering_key: Some("order 17".into()),
                ..Message::new("receipts", payload)
            };
            app.enqueue(tx, &message).await?;
            Ok(Answer::new(StatusCode::CREATED, "paid"))
        })
    });
    println!("{:?}", ran.await?);
    tokio::time::sleep(Duration::from_secs(2)).await;

    // Claims nothing more, and waits for what is under way.
    running.stop().await;
    Ok(())
}
