//! A payment provider with a ledger of its own: it executes whatever reaches it, never compares keys,
//! can be asked what became of one, and misbehaves as it is told.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, task::JoinHandle};

/// What the provider does with one payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Books it and says so.
    Pay,
    /// Declines it and says so.
    Decline,
    /// Books it, and the answer is lost.
    PayAndHangUp,
    /// Declines it, and the answer is lost.
    DeclineAndHangUp,
    /// Does nothing, and closes the connection.
    HangUp,
    /// Closes the connection at once, and books it after a while.
    HangUpAndPayLater(Duration),
    /// Books it at once, and answers after a while.
    PaySlowly(Duration),
    /// Does nothing, and answers 500.
    Fail,
    /// Books it, and answers 500.
    PayAndFail,
}

/// What the ledger says of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) paid: usize,
    pub(crate) declined: usize,
    /// Arrived, and not yet decided.
    pub(crate) pending: usize,
}

type Ledger = HashMap<String, Entry>;
type Parts = Box<dyn FnMut(&str) -> Part + Send>;

struct Shared {
    ledger: Mutex<Ledger>,
    parts: Mutex<Parts>,
    /// What every question is answered with instead.
    always: Mutex<Option<(u16, String)>>,
    asked: Mutex<Vec<(String, Option<String>)>>,
    received: AtomicUsize,
    /// Whether it reads a header value as a structured string, or takes it as it stands.
    unwraps: AtomicBool,
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }
}

/// The provider; it stops when dropped.
pub(crate) struct Provider {
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Provider {
    /// Plays for each payment the part that `parts` chooses by its key.
    pub(crate) async fn start(parts: impl FnMut(&str) -> Part + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            ledger: Mutex::default(),
            parts: Mutex::new(Box::new(parts)),
            always: Mutex::default(),
            asked: Mutex::default(),
            received: AtomicUsize::new(0),
            unwraps: AtomicBool::new(false),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self {
            addr,
            shared,
            accepting,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Answers every question with this from now on; `None` is the truth.
    pub(crate) fn always_says(&self, answer: Option<(u16, &str)>) {
        let answer = answer.map(|(status, body)| (status, body.to_owned()));
        *self.shared.always.lock().unwrap() = answer;
    }

    /// From now on it knows keys by what their header spells, not by its bytes.
    pub(crate) fn unwraps(&self, unwraps: bool) {
        self.shared.unwraps.store(unwraps, Ordering::SeqCst);
    }

    /// What the ledger says of `key`.
    pub(crate) fn entry(&self, key: &str) -> Entry {
        self.shared.ledger().get(key).copied().unwrap_or_default()
    }

    /// Puts an entry into the ledger without a payment.
    pub(crate) fn book(&self, key: &str, entry: Entry) {
        self.shared.ledger().insert(key.to_owned(), entry);
    }

    /// Payments that arrived.
    pub(crate) fn received(&self) -> usize {
        self.shared.received.load(Ordering::SeqCst)
    }

    /// Questions: their targets, and their `Authorization`.
    pub(crate) fn asked(&self) -> Vec<(String, Option<String>)> {
        self.shared.asked.lock().unwrap().clone()
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let shared = Arc::clone(&shared);
                // A task of its own: what has arrived is carried out even if its caller is gone.
                let answer = tokio::spawn(handle(shared, request));
                async move { answer.await.ok().flatten().ok_or("hung up") }
            });
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

fn answer(status: u16, body: String) -> Option<Response<Full<Bytes>>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    let json = "application/json".parse().unwrap();
    response.headers_mut().insert("content-type", json);
    Some(response)
}

/// `None` closes the connection without a byte.
async fn handle(shared: Arc<Shared>, request: Request<Incoming>) -> Option<Response<Full<Bytes>>> {
    if request.method() == Method::GET {
        return query(&shared, &request);
    }
    let header = |name: &str| Some(request.headers().get(name)?.to_str().ok()?.to_owned());
    let mut key = header("idempotency-key").unwrap_or_default();
    if shared.unwraps.load(Ordering::SeqCst) {
        key = unwrapped(&key);
    }
    let _: Result<_, Infallible> = Ok(request.into_body().collect().await.ok()?);
    shared.received.fetch_add(1, Ordering::SeqCst);
    let part = (shared.parts.lock().unwrap())(&key);
    let decide = |what: fn(&mut Entry)| {
        let mut ledger = shared.ledger();
        let entry = ledger.entry(key.clone()).or_default();
        entry.pending -= 1;
        what(entry);
    };
    shared.ledger().entry(key.clone()).or_default().pending += 1;
    let paid = |entry: &mut Entry| entry.paid += 1;
    let declined = |entry: &mut Entry| entry.declined += 1;
    let created = || {
        answer(
            201,
            serde_json::json!({ "key": key, "status": "succeeded" }).to_string(),
        )
    };
    match part {
        Part::Pay => {
            decide(paid);
            created()
        }
        Part::Decline => {
            decide(declined);
            answer(
                402,
                serde_json::json!({ "key": key, "status": "declined" }).to_string(),
            )
        }
        Part::PayAndHangUp => {
            decide(paid);
            None
        }
        Part::DeclineAndHangUp => {
            decide(declined);
            None
        }
        Part::HangUp => {
            decide(|_| {});
            None
        }
        Part::HangUpAndPayLater(time) => {
            let (shared, key) = (Arc::clone(&shared), key.clone());
            tokio::spawn(async move {
                tokio::time::sleep(time).await;
                let mut ledger = shared.ledger();
                let entry = ledger.entry(key).or_default();
                entry.pending -= 1;
                entry.paid += 1;
            });
            None
        }
        Part::PaySlowly(time) => {
            decide(paid);
            tokio::time::sleep(time).await;
            created()
        }
        Part::Fail => {
            decide(|_| {});
            answer(500, "{}".to_owned())
        }
        Part::PayAndFail => {
            decide(paid);
            answer(500, "{}".to_owned())
        }
    }
}

/// What a structured string spells; anything else stands for itself.
fn unwrapped(value: &str) -> String {
    let Some(rest) = value.strip_prefix('"') else {
        return value.to_owned();
    };
    let mut text = String::new();
    let mut characters = rest.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => break,
            '\\' => text.extend(characters.next()),
            other => text.push(other),
        }
    }
    text
}

/// `GET /payments?key=K`: what became of a key. What is pending cannot be seen yet.
fn query(shared: &Shared, request: &Request<Incoming>) -> Option<Response<Full<Bytes>>> {
    let target = request.uri().to_string();
    let credential = request.headers().get("authorization");
    let credential = credential.and_then(|value| Some(value.to_str().ok()?.to_owned()));
    shared
        .asked
        .lock()
        .unwrap()
        .push((target.clone(), credential));
    if let Some((status, body)) = shared.always.lock().unwrap().clone() {
        return answer(status, body);
    }
    let key = target.rsplit("key=").next().unwrap_or_default();
    let key = percent_encoding::percent_decode_str(key)
        .decode_utf8_lossy()
        .into_owned();
    let entry = shared.ledger().get(&key).copied().unwrap_or_default();
    match entry {
        Entry { paid: 1.., .. } => answer(
            200,
            serde_json::json!({ "key": key, "status": "succeeded" }).to_string(),
        ),
        Entry { declined: 1.., .. } => answer(
            200,
            serde_json::json!({ "key": key, "status": "declined" }).to_string(),
        ),
        _ => answer(404, r#"{"error":"no such payment"}"#.to_owned()),
    }
}
