//! The one sampling task.

use onlyonce_core::Timestamp;
use onlyonce_store::clock::StoreClock;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, MissedTickBehavior};

use super::{
    ANSWER_HOLDS, CENSUS_HOLDS, SAMPLE_EVERY, measured,
    series::{Decided, Row},
};
use crate::{
    admin::{Admin, shadow},
    clock::rfc3339,
    edge::Lane,
};

/// Samples for as long as the process lives.
pub(in crate::admin) async fn run(admin: Admin) {
    let inner = &admin.0;
    let overview = &inner.overview;
    let mut ticks = tokio::time::interval(SAMPLE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before: Option<(Instant, Decided)> = None;
    loop {
        ticks.tick().await;
        let decided = decided(&admin);
        let at = Instant::now();
        if let Some((then, earlier)) = before.replace((at, decided)) {
            let span_ms = at.duration_since(then).as_millis();
            let mut row = Row {
                at_ms: now_at().0,
                span_ms: u64::try_from(span_ms).unwrap_or(u64::MAX),
                decided: decided.since(earlier),
                latency: [None; 3],
            };
            if overview.is_watched() {
                let text = inner.metrics.render();
                let latency = overview.measured.lock().take(&text, at);
                row.latency = latency.unwrap_or_default();
                let mut value = now(&admin, &text).await;
                value["latency"] = latency.map(measured::shown).into();
                value["row"] = row.shown();
                overview.tell(value);
            }
            overview.keep(row);
        }
    }
}

fn decided(admin: &Admin) -> Decided {
    let edge = admin.0.current.edge();
    edge.lanes.iter().fold(Decided::default(), |sum, lane| {
        sum.and(Decided::of(lane.layer.stats()))
    })
}

/// A full sample; `text` is the Prometheus exposition.
pub(super) async fn now(admin: &Admin, text: &str) -> Value {
    let inner = &admin.0;
    let (keys, messages) = by_state(admin).await;
    let workers: Vec<Value> = inner
        .engine
        .runs()
        .into_iter()
        .map(|(name, run)| {
            json!({
                "name": name,
                "last_run_at": rfc3339(run.at),
                "took_ms": u64::try_from(run.took.as_millis()).unwrap_or(u64::MAX),
                "changed": run.changed,
                "ok": run.changed.is_some(),
            })
        })
        .collect();
    let edge = inner.current.edge();
    let routes: Vec<Value> = edge.lanes.iter().map(route).collect();
    let mut value = admin.readiness(ANSWER_HOLDS).await.1;
    // The routes themselves replace their counts.
    value["routes"] = routes.into();
    value["at"] = rfc3339(now_at()).into();
    value["totals"] = decided(admin).shown();
    value["keys"] = keys;
    value["outbox"] = messages;
    value["shadow"] = shadow::total(&edge.lanes, now_at());
    value["oldest_unknown_seconds"] = oldest_unknown(admin, &value["keys"]).await;
    value["held_bytes"] = inner.engine.body_budget().held().into();
    value["detached"] = inner.engine.detached().into();
    value["waiting"] = inner.engine.waiting().into();
    value["executing"] = inner.engine.executing().into();
    value["workers"] = workers.into();
    value["clients"] = measured::clients(text).into();
    value["latency"] = Value::Null;
    value["version"] = env!("CARGO_PKG_VERSION").into();
    value
}

/// Keys and messages by state; null if the store does not answer.
async fn by_state(admin: &Admin) -> (Value, Value) {
    let mut held = admin.0.overview.counts.lock().await;
    if let Some((at, counts)) = &*held
        && at.elapsed() < ANSWER_HOLDS
    {
        return counts.clone();
    }
    let engine = &admin.0.engine;
    let keys = engine.store().counts().await.ok();
    let keys = keys.map(|counts| -> Map<String, Value> {
        let pairs = counts.into_iter();
        pairs
            .map(|(state, count)| (state.as_str().to_owned(), count.into()))
            .collect()
    });
    let messages = match engine.outbox() {
        Some(outbox) => outbox.depth().await.ok(),
        None => None,
    };
    let messages = messages.map(|depth| -> Map<String, Value> {
        let pairs = depth.into_iter();
        pairs
            .map(|(state, count)| (state.as_str().to_owned(), count.into()))
            .collect()
    });
    let shown = (Value::from(keys), Value::from(messages));
    *held = Some((Instant::now(), shown.clone()));
    shown
}

/// The age of the oldest unknown key; null if there is none or the store does not answer. Reads every unknown
/// key, so the result is cached for longer than the rest.
async fn oldest_unknown(admin: &Admin, keys: &Value) -> Value {
    if keys["unknown"].as_u64().unwrap_or(0) == 0 {
        return Value::Null;
    }
    let mut held = admin.0.overview.oldest_unknown.lock().await;
    if let Some((at, oldest)) = *held
        && at.elapsed() < CENSUS_HOLDS
    {
        return (oldest + at.elapsed().as_secs()).into();
    }
    match admin.0.engine.census().await {
        Ok(census) => {
            *held = Some((Instant::now(), census.oldest.as_secs()));
            census.oldest.as_secs().into()
        }
        Err(_) => Value::Null,
    }
}

fn now_at() -> Timestamp {
    StoreClock::system().now()
}

fn route(lane: &Lane) -> Value {
    let policy = lane.layer.policy();
    json!({
        "id": lane.route.id,
        "path": lane.route.path,
        "protected": policy.enabled && lane.layer.observations().is_none(),
        "shadow": lane.layer.observations().is_some(),
        "decided": Decided::of(lane.layer.stats()).shown(),
        "became_unknown": lane.layer.stats().total(onlyonce::stats::Event::BecameUnknown),
        "store_errors": lane.layer.stats().total(onlyonce::stats::Event::StoreError),
    })
}
