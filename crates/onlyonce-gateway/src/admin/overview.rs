//! The gateway's activity, second by second: `GET /overview`, and `GET /events` for pages.
//!
//! One sampler reads the counters once a second, however many viewers there are. Viewers share the bytes of
//! each sample, and do not slow down the requests that are counted. Queries that cost the store something run
//! only while somebody watches.

mod measured;
mod sampler;
mod series;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Extension, State},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, broadcast},
    time::Instant,
};

use super::{
    Admin, Refused,
    session::{self, Mark, Role},
};
use measured::Measured;
use series::Row;

pub(super) use sampler::run;

/// The sampling interval.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Samples kept: a quarter of an hour.
const KEPT: usize = 900;
/// The most pages that watch at the same time.
const MAX_VIEWERS: usize = 64;
/// Samples that a slow page may fall behind before it misses some.
const BACKLOG: usize = 8;
/// How long counts from the store are cached.
const ANSWER_HOLDS: Duration = Duration::from_secs(2);
/// How long the age of the oldest unknown key is extrapolated before the store is asked again.
const CENSUS_HOLDS: Duration = Duration::from_secs(10);
/// After this silence a page gets a sign of life: a sample waits for the store, and a page takes a longer
/// silence for a gateway that does not answer.
const ALIVE_AFTER: Duration = Duration::from_secs(1);
/// How long after the last request the store is still queried for what only viewers need.
const WATCHED_FOR: Duration = Duration::from_secs(10);

/// The recent samples, and the channel to viewers.
pub(super) struct Overview {
    rows: Mutex<VecDeque<Row>>,
    latest: Mutex<Value>,
    told: broadcast::Sender<Bytes>,
    room: Arc<Semaphore>,
    asked: Mutex<Option<Instant>>,
    counts: tokio::sync::Mutex<Option<(Instant, (Value, Value))>>,
    measured: Mutex<Measured>,
    /// When the store was asked, and the age of the oldest unknown key then, in seconds.
    oldest_unknown: tokio::sync::Mutex<Option<(Instant, u64)>>,
}

impl Default for Overview {
    fn default() -> Self {
        Self {
            rows: Mutex::default(),
            latest: Mutex::new(Value::Null),
            told: broadcast::Sender::new(BACKLOG),
            room: Arc::new(Semaphore::new(MAX_VIEWERS)),
            asked: Mutex::default(),
            counts: tokio::sync::Mutex::default(),
            measured: Mutex::default(),
            oldest_unknown: tokio::sync::Mutex::default(),
        }
    }
}

impl Overview {
    /// Whether anybody watches.
    fn is_watched(&self) -> bool {
        let asked = *self.asked.lock();
        self.told.receiver_count() > 0 || asked.is_some_and(|at| at.elapsed() < WATCHED_FOR)
    }

    fn keep(&self, row: Row) {
        let mut rows = self.rows.lock();
        if rows.len() == KEPT {
            rows.pop_front();
        }
        rows.push_back(row);
    }

    fn tell(&self, value: Value) {
        if self.told.receiver_count() > 0 {
            // Having no receivers is not a failure.
            let _ = self.told.send(event("sample", &value));
        }
        *self.latest.lock() = value;
    }

    fn history(&self) -> Bytes {
        let rows: Vec<Value> = self.rows.lock().iter().map(Row::shown).collect();
        event(
            "history",
            &json!({ "columns": series::COLUMNS, "rows": rows }),
        )
    }
}

/// One server-sent event. Compact JSON contains no line breaks.
fn event(name: &str, value: &Value) -> Bytes {
    format!("event: {name}\ndata: {value}\n\n").into()
}

/// `GET /overview`.
pub(super) async fn show(State(admin): State<Admin>) -> Json<Value> {
    let overview = &admin.0.overview;
    let was_watched = overview.is_watched();
    *overview.asked.lock() = Some(Instant::now());
    if !was_watched || overview.latest.lock().is_null() {
        // What only viewers need has not been sampled recently.
        let text = admin.0.metrics.render();
        return Json(sampler::now(&admin, &text).await);
    }
    Json(overview.latest.lock().clone())
}

/// A watching page.
struct Viewer {
    admin: Admin,
    first: Option<Bytes>,
    samples: broadcast::Receiver<Bytes>,
    /// The viewer's session; `None` with a bearer token.
    mark: Option<Mark>,
    _place: OwnedSemaphorePermit,
}

impl Viewer {
    /// The next event, until the session or the gateway ends.
    async fn next(mut self) -> Option<(Result<Bytes, std::convert::Infallible>, Self)> {
        if let Some(first) = self.first.take() {
            return Some((Ok(first), self));
        }
        let mut stopping = self.admin.0.stopping.clone();
        loop {
            let sample = tokio::select! {
                sample = self.samples.recv() => Some(sample),
                () = tokio::time::sleep(ALIVE_AFTER) => None,
                _ = stopping.wait_for(|stopping| *stopping) => return None,
            };
            let sessions = &self.admin.0.sessions;
            if self.mark.is_some_and(|mark| sessions.role(&mark).is_none()) {
                return None;
            }
            match sample {
                Some(Ok(sample)) => return Some((Ok(sample), self)),
                None => return Some((Ok(event("alive", &json!({}))), self)),
                // The viewer was too slow for some samples; the next one will do.
                Some(Err(broadcast::error::RecvError::Lagged(_))) => {}
                Some(Err(broadcast::error::RecvError::Closed)) => return None,
            }
        }
    }
}

/// `GET /events`: the samples so far, then every new sample, with signs of life in between if one is late.
pub(super) async fn events(
    State(admin): State<Admin>,
    Extension(_): Extension<Role>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let overview = &admin.0.overview;
    let place = overview.room.clone().try_acquire_owned().map_err(|_| {
        let detail = format!("{MAX_VIEWERS} pages are watching already.");
        Refused::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
    })?;
    let by_token = headers.contains_key(header::AUTHORIZATION);
    let viewer = Viewer {
        samples: overview.told.subscribe(),
        first: Some(overview.history()),
        mark: session::marked(&headers).filter(|_| !by_token),
        admin: admin.clone(),
        _place: place,
    };
    let body = Body::from_stream(stream::unfold(viewer, Viewer::next));
    let mut response = body.into_response();
    let kind = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}
