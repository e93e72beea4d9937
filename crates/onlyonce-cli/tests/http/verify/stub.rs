//! An API with idempotency keys of its own, right in every respect but the one it is told to break.
//!
//! Two listeners stand for two nodes. Executions are counted the moment they happen.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    response::{IntoResponse, Response},
    routing::{any, get},
};
use http::{HeaderMap, HeaderName, Method, StatusCode, Uri};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

/// What is wrong with the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Defect {
    None,
    /// Keys are not looked at: an API without any of this.
    Replay,
    /// The same, and every answer is the same too.
    SameAnswers,
    Bytes,
    Marker,
    Expiry,
    Concurrent,
    InFlight,
    HangUp,
    PartOfABody,
    Mismatch,
    MismatchKeeps,
    MismatchInFlight,
    ReorderedJson,
    Query,
    Path,
    MissingKey,
    QuotedKey,
    BadKeys,
    LongKeys,
    OtherCaller,
    OtherHost,
    MethodCase,
    Upgrade,
    ClientError,
    ServerError,
    Binary,
    Empty,
    Large,
    Chunked,
    TwoNodes,
}

impl Defect {
    /// Each with the check that must find it.
    pub(super) const ALL: [(Self, &'static str); 29] = [
        (Self::Replay, "replay"),
        (Self::Bytes, "bytes"),
        (Self::Marker, "marker"),
        (Self::Expiry, "expiry"),
        (Self::Concurrent, "concurrent"),
        (Self::InFlight, "in-flight"),
        (Self::HangUp, "hang-up"),
        (Self::PartOfABody, "part-of-a-body"),
        (Self::Mismatch, "mismatch"),
        (Self::MismatchKeeps, "mismatch-keeps"),
        (Self::MismatchInFlight, "mismatch-in-flight"),
        (Self::ReorderedJson, "reordered-json"),
        (Self::Query, "query"),
        (Self::Path, "path"),
        (Self::MissingKey, "missing-key"),
        (Self::QuotedKey, "quoted-key"),
        (Self::BadKeys, "bad-keys"),
        (Self::LongKeys, "bad-keys"),
        (Self::OtherCaller, "other-caller"),
        (Self::OtherHost, "other-host"),
        (Self::MethodCase, "method-case"),
        (Self::Upgrade, "upgrade"),
        (Self::ClientError, "4xx"),
        (Self::ServerError, "5xx"),
        (Self::Binary, "binary"),
        (Self::Empty, "empty"),
        (Self::Large, "large"),
        (Self::Chunked, "chunked"),
        (Self::TwoNodes, "two-nodes"),
    ];
}

/// A finished answer.
#[derive(Clone)]
struct Stored {
    status: StatusCode,
    location: Option<String>,
    body: Bytes,
}

/// What is remembered of a key.
#[derive(Clone)]
struct Record {
    fingerprint: String,
    done: watch::Receiver<Option<Stored>>,
}

#[derive(Default)]
struct Book {
    /// By node, where the nodes do not share, then by caller and key.
    records: HashMap<(u8, String, String), Record>,
    executed: u64,
}

#[derive(Clone)]
struct Node {
    defect: Defect,
    number: u8,
    book: Arc<Mutex<Book>>,
}

/// The running API; it stops when dropped.
pub(super) struct Stub {
    nodes: [SocketAddr; 2],
    serving: Vec<JoinHandle<()>>,
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.serving.iter().for_each(JoinHandle::abort);
    }
}

impl Stub {
    pub(super) async fn start(defect: Defect) -> Self {
        let book = Arc::new(Mutex::new(Book::default()));
        let mut nodes = Vec::new();
        let mut serving = Vec::new();
        for number in 0..2 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            nodes.push(listener.local_addr().unwrap());
            let node = Node {
                defect,
                number,
                book: book.clone(),
            };
            let app = Router::new()
                .route("/pay", any(pay))
                .route("/other", any(pay))
                .route("/count", get(count))
                .route("/still", get(async || "7"))
                .with_state(node);
            let served = async move { axum::serve(listener, app).await.unwrap() };
            serving.push(tokio::spawn(served));
        }
        Self {
            nodes: [nodes[0], nodes[1]],
            serving,
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.nodes[0]
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.nodes[0])
    }

    pub(super) fn second_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.nodes[1])
    }
}

async fn count(State(node): State<Node>) -> String {
    json!({ "executed": node.book().executed }).to_string()
}

async fn pay(
    State(node): State<Node>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    if method != Method::POST && node.defect != Defect::MethodCase {
        return refuse(405, "not POST");
    }
    let asks = headers.contains_key("upgrade") && node.defect == Defect::Upgrade;
    if method != Method::POST || asks {
        return node.respond(node.execute(&headers).await, false);
    }
    let (mut read, mut body) = (Vec::new(), body);
    while let Some(frame) = body.frame().await {
        match frame.map(|frame| frame.into_data()) {
            Ok(data) => read.extend(data.unwrap_or_default()),
            // Whatever has come will do, where that is the defect.
            Err(_) if node.defect == Defect::PartOfABody => break,
            Err(_) => return refuse(400, "the body broke off"),
        }
    }
    let body = Bytes::from(read);
    // Hung-up clients do not stop it, except where that is the defect.
    let work = node.clone().answer(uri, headers, body);
    match node.defect {
        Defect::HangUp => work.await,
        _ => tokio::spawn(work).await.unwrap(),
    }
}

fn refuse(status: u16, why: &str) -> Response {
    let status = StatusCode::from_u16(status).unwrap();
    (status, json!({ "error": why }).to_string()).into_response()
}

/// The key, or why there is none.
fn key(defect: Defect, headers: &HeaderMap) -> Result<String, &'static str> {
    let mut lines = headers.get_all("idempotency-key").iter();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return Err("not one key");
    };
    let text = line.to_str().map_err(|_| "not ASCII")?;
    if defect == Defect::LongKeys && text.len() > 255 {
        return Ok(text.chars().take(200).collect());
    }
    let text = match text.strip_prefix('"') {
        Some(rest) if defect != Defect::QuotedKey => rest.strip_suffix('"').ok_or("no end")?,
        _ => text,
    };
    match text.len() {
        1..=255 => Ok(text.to_owned()),
        _ => Err("too short or too long"),
    }
}

impl Node {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap()
    }

    async fn answer(self, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
        let defect = self.defect;
        let ignored = matches!(defect, Defect::Replay | Defect::SameAnswers);
        let empty = headers
            .get("idempotency-key")
            .is_some_and(|key| key.is_empty());
        let unkeyed = defect == Defect::MissingKey && !headers.contains_key("idempotency-key");
        if ignored || unkeyed || (empty && defect == Defect::BadKeys) {
            return self.respond(self.execute(&headers).await, false);
        }
        let key = match key(defect, &headers) {
            Ok(key) => key,
            Err(why) => return refuse(400, why),
        };
        let caller = headers
            .get("authorization")
            .filter(|_| defect != Defect::OtherCaller);
        let caller = caller
            .map_or("", |value| value.to_str().unwrap())
            .to_owned();
        let number = if defect == Defect::TwoNodes {
            self.number
        } else {
            0
        };
        let place = (number, caller, key);
        let host = headers.get("host").map(|host| host.to_str().unwrap());
        let host = host.filter(|_| defect != Defect::OtherHost);
        // The nodes have other ports, which are no other hosts.
        let host = host
            .and_then(|host| host.split(':').next())
            .unwrap_or_default();
        let fingerprint = host.to_owned() + &self.fingerprint(&uri, &body);

        let known = self.book().records.get(&place).cloned();
        if defect == Defect::Concurrent && known.is_none() {
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        let (finish, done) = watch::channel(None);
        let known = known.or_else(|| {
            let record = Record {
                fingerprint: fingerprint.clone(),
                done,
            };
            let mut book = self.book();
            match book.records.get(&place) {
                Some(known) if defect != Defect::Concurrent => Some(known.clone()),
                _ => {
                    book.records.insert(place.clone(), record);
                    None
                }
            }
        });
        match known {
            Some(known) => self.again(&place, known, &fingerprint).await,
            None => self.first(place, finish, &headers).await,
        }
    }

    /// Frees the key when it is dropped in the middle, where that is the defect.
    async fn first(
        &self,
        place: (u8, String, String),
        finish: watch::Sender<Option<Stored>>,
        headers: &HeaderMap,
    ) -> Response {
        let free = Free(
            self,
            (self.defect == Defect::HangUp).then_some(place.clone()),
        );
        let stored = self.execute(headers).await;
        std::mem::forget(free);
        let released = stored.status.is_server_error()
            || (self.defect == Defect::ClientError && stored.status.is_client_error());
        if released {
            self.book().records.remove(&place);
        }
        finish.send_replace(Some(stored.clone()));
        self.respond(stored, false)
    }

    async fn again(
        &self,
        place: &(u8, String, String),
        known: Record,
        fingerprint: &str,
    ) -> Response {
        let mut known = known;
        let running = known.done.borrow().is_none();
        let blind = self.defect == Defect::MismatchInFlight && running;
        if known.fingerprint != fingerprint && !blind {
            if self.defect == Defect::MismatchKeeps {
                self.book().records.remove(place);
            }
            return refuse(422, "another request");
        }
        if running && !blind {
            let mut refused = refuse(409, "still running");
            if self.defect != Defect::InFlight {
                refused.headers_mut().insert("retry-after", 1.into());
            }
            return refused;
        }
        let stored = known.done.wait_for(Option::is_some).await.unwrap().clone();
        self.respond(stored.unwrap(), true)
    }

    fn fingerprint(&self, uri: &Uri, body: &[u8]) -> String {
        let is = |defect| self.defect == defect;
        let path = if is(Defect::Path) { "" } else { uri.path() };
        let query = uri.query().filter(|_| !is(Defect::Query)).unwrap_or("");
        let body = match serde_json::from_slice::<Value>(body) {
            _ if is(Defect::Mismatch) => String::new(),
            Ok(value) if !is(Defect::ReorderedJson) => sorted(value).to_string(),
            _ => String::from_utf8_lossy(body).into_owned(),
        };
        format!("{path}?{query} {body}")
    }

    async fn execute(&self, headers: &HeaderMap) -> Stored {
        let fault = headers
            .get("x-fault")
            .map_or("", |fault| fault.to_str().unwrap());
        let plain = |status, text: &str| Stored {
            status,
            location: None,
            body: Bytes::copy_from_slice(text.as_bytes()),
        };
        if fault == "4xx" {
            return plain(StatusCode::PAYMENT_REQUIRED, "declined");
        }
        if fault == "5xx" && self.defect != Defect::ServerError {
            return plain(StatusCode::INTERNAL_SERVER_ERROR, "failed");
        }
        let number = {
            let mut book = self.book();
            book.executed += 1;
            book.executed
        };
        if fault == "5xx" {
            return plain(StatusCode::INTERNAL_SERVER_ERROR, "failed after all");
        }
        if fault == "slow" {
            // Long enough that a busy machine still overlaps two requests.
            tokio::time::sleep(Duration::from_millis(800)).await;
        }
        let body = match fault {
            "binary" => (0..=u8::MAX).collect(),
            "empty" => Vec::new(),
            "large" => vec![b'x'; 100_000],
            _ if self.defect == Defect::SameAnswers => b"ok".to_vec(),
            _ => json!({ "id": number }).to_string().into_bytes(),
        };
        let same = self.defect == Defect::SameAnswers;
        Stored {
            status: StatusCode::CREATED,
            location: (!same).then(|| format!("/pay/{number}")),
            body: body.into(),
        }
    }

    fn respond(&self, stored: Stored, replayed: bool) -> Response {
        let Stored {
            status,
            body,
            location,
        } = stored;
        let text = || String::from_utf8_lossy(&body).into_owned();
        let body = match self.defect {
            Defect::Bytes if replayed => format!("{} ", text()).into(),
            Defect::Binary if replayed => text().into(),
            Defect::Empty if replayed && body.is_empty() => Bytes::from_static(b"null"),
            Defect::Large if replayed => body.slice(..body.len().min(65_536)),
            Defect::Chunked if replayed => body.slice(..body.len() / 2),
            _ => body,
        };
        let chunk = futures_util::stream::iter([Ok::<_, std::convert::Infallible>(body)]);
        let mut response = (status, Body::from_stream(chunk)).into_response();
        let mut set = |name: &'static str, value: &str| {
            let name = HeaderName::from_static(name);
            response.headers_mut().insert(name, value.parse().unwrap());
        };
        if let Some(location) = location {
            set("location", &location);
        }
        let date = match self.defect {
            Defect::Expiry => "Fri, 31 Dec 1999 23:59:59 GMT",
            _ => "Thu, 31 Dec 2099 23:59:59 GMT",
        };
        set("idempotency-key-expires", date);
        if replayed || self.defect == Defect::Marker {
            set("x-idempotent-replayed", "true");
        }
        response
    }
}

/// A guard that frees a key: what a middleware does that ties an execution to its client.
struct Free<'a>(&'a Node, Option<(u8, String, String)>);

impl Drop for Free<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.1.take() {
            self.0.book().records.remove(&place);
        }
    }
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.into_iter().collect();
            members.sort_by(|left, right| left.0.cmp(&right.0));
            let members = members.into_iter();
            Value::Object(members.map(|(name, item)| (name, sorted(item))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}
