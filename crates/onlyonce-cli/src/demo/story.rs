//! The demo as a story: a page whose buttons send the same purchase twice, once through the gateway and once
//! directly to the API, while two ledgers count.
//!
//! The supervisor serves the page, because only it can kill or pause the gateway and survive. The charges on
//! the page are the API's own record, queried each time.

mod acts;
mod shop;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use onlyonce_gateway::{admin, clock::rfc3339};
use onlyonce_store::clock::StoreClock;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use acts::Act;
use shop::{Shop, Side};

/// Lines kept for each side.
const MAX_LINES: usize = 200;

/// The state of the page's server.
#[derive(Clone)]
pub(super) struct Story(Arc<Inner>);

struct Inner {
    shop: Shop,
    gateway_pid: watch::Receiver<Option<u32>>,
    admin: SocketAddr,
    /// Makes the keys of this run unique.
    tag: String,
    busy: AtomicBool,
    paused: AtomicBool,
    told: Mutex<Told>,
}

/// What the page shows so far.
#[derive(Default)]
struct Told {
    orders: u64,
    act: Option<Act>,
    /// The purchase that the last button concerned.
    key: Option<String>,
    /// A purchase with an unknown outcome: the gateway is polled until it has determined the outcome.
    unknown: Option<String>,
    /// The button suggested to the visitor.
    hint: Option<Hint>,
    with: Vec<Line>,
    without: Vec<Line>,
}

/// The button suggested to the visitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Hint {
    /// The answer was lost.
    RetryAfterLoss,
    /// The gateway has determined the outcome of the purchase by itself.
    RetryAfterReconciliation,
}

/// One line of a side's account.
#[derive(Clone, Debug, Serialize)]
struct Line {
    kind: Kind,
    text: String,
}

/// The kind of a line, for its colour and its symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// A new purchase begins.
    Order,
    Sent,
    Answered,
    Replayed,
    Refused,
    Lost,
    /// Something happened to the gateway.
    Event,
    /// The gateway has determined the outcome by itself.
    Settled,
}

/// The addresses that the story uses.
pub(super) struct Stage {
    pub(super) gateway: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) api: SocketAddr,
    pub(super) token: String,
    pub(super) tag: String,
    pub(super) gateway_pid: watch::Receiver<Option<u32>>,
}

impl Story {
    pub(super) fn new(stage: Stage) -> anyhow::Result<Self> {
        Ok(Self(Arc::new(Inner {
            shop: Shop::new(stage.gateway, stage.admin, stage.api, &stage.token)?,
            gateway_pid: stage.gateway_pid,
            admin: stage.admin,
            tag: stage.tag,
            busy: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            told: Mutex::default(),
        })))
    }

    /// Serves the page until the future is dropped.
    pub(super) async fn serve(self, listener: tokio::net::TcpListener) -> std::io::Result<()> {
        let app = Router::new()
            .route(
                "/",
                get(async |headers: HeaderMap| admin::file("story.html", &headers)),
            )
            .route("/assets/{*path}", get(admin::asset))
            .route("/state", get(state))
            .route("/act/{name}", post(act))
            .layer(middleware::from_fn(admin::guarded))
            .with_state(self);
        axum::serve(listener, app).await
    }

    fn say(&self, side: Side, kind: Kind, text: impl Into<String>) {
        let mut told = self.0.told.lock();
        let lines = match side {
            Side::With => &mut told.with,
            Side::Without => &mut told.without,
        };
        if lines.len() == MAX_LINES {
            lines.remove(0);
        }
        let text = text.into();
        lines.push(Line { kind, text });
    }

    /// Starts a new purchase, which the next buttons concern, and returns its key. One side has no gateway,
    /// so each side gets its own text.
    fn new_order(&self, with: &str, without: &str) -> String {
        let mut told = self.0.told.lock();
        told.orders += 1;
        let number = told.orders;
        let key = format!("order-{number}-{}", self.0.tag);
        told.key = Some(key.clone());
        told.unknown = None;
        drop(told);
        self.say(Side::With, Kind::Order, format!("Order {number}: {with}"));
        let text = format!("Order {number}: {without}");
        self.say(Side::Without, Kind::Order, text);
        key
    }
}

/// `POST /act/{name}`: one button. `/state` shows what follows.
async fn act(State(story): State<Story>, Path(name): Path<String>, headers: HeaderMap) -> Response {
    if !admin::is_from_own_page(&headers) {
        return admin::forged().into_response();
    }
    let Some(act) = Act::from_word(&name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    if story.0.busy.swap(true, Ordering::SeqCst) {
        return StatusCode::CONFLICT.into_response();
    }
    let mut told = story.0.told.lock();
    told.act = Some(act);
    told.hint = None;
    drop(told);
    tokio::spawn(async move {
        act.play(&story).await;
        story.0.busy.store(false, Ordering::SeqCst);
    });
    StatusCode::ACCEPTED.into_response()
}

/// `GET /state`: both accounts, and what the API's ledgers count.
async fn state(State(story): State<Story>) -> Json<Value> {
    let inner = &story.0;
    let (act, key, orders, hint, with, without) = {
        let told = inner.told.lock();
        let lines = (told.with.clone(), told.without.clone());
        let key = told.key.clone();
        (told.act, key, told.orders, told.hint, lines.0, lines.1)
    };
    let count = async |side: Side, lines: Vec<Line>| {
        let this = match &key {
            Some(key) => inner.shop.charges(side, Some(key)).await,
            None => Some(0),
        };
        let total = inner.shop.charges(side, None).await;
        json!({ "charges": this, "total": total, "lines": lines })
    };
    let record = async {
        match &key {
            Some(key) => inner.shop.record(key).await,
            None => None,
        }
    };
    let (with, without, record) = tokio::join!(
        count(Side::With, with),
        count(Side::Without, without),
        record
    );
    let record = record.map(|record| {
        json!({
            "state": record["state"],
            "lease_until": record["lease_until"],
            "reconcile_after": record["reconcile_after"],
        })
    });
    let pid = *inner.gateway_pid.borrow();
    let gateway = match (pid, inner.paused.load(Ordering::SeqCst)) {
        (Some(_), true) => "paused",
        (Some(_), false) => "running",
        (None, _) => "down",
    };
    Json(json!({
        "busy": inner.busy.load(Ordering::SeqCst),
        "act": act.map(Act::as_str),
        "orders": orders,
        "key": key,
        "record": record,
        "hint": hint,
        "now": rfc3339(StoreClock::system().now()),
        "with": with,
        "without": without,
        "gateway": { "state": gateway, "pid": pid },
        "dashboard": format!("http://{}/", inner.admin),
    }))
}
