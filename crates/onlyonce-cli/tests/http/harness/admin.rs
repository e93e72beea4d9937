//! The admin API as the tests use it: a record, a state, a counter.

use serde_json::Value;

use super::{
    client::{self, Request, Response},
    eventually,
    gateway::Gateway,
    process::TOKEN,
};

impl Gateway {
    /// One request to the admin listener with the token.
    pub(crate) async fn admin(&self, request: Request) -> Response {
        let request = request.header("Authorization", format!("Bearer {TOKEN}"));
        client::send(self.admin_addr(), &request)
            .await
            .expect("an answer from the admin API")
    }

    /// The same with a JSON body.
    pub(crate) async fn admin_post(&self, path: &str, body: &Value) -> Response {
        self.admin(Request::post(path).json(&body.to_string()))
            .await
    }

    /// One request to the admin listener without any token.
    pub(crate) async fn admin_open(&self, path: &str) -> Response {
        client::send(self.admin_addr(), &Request::get(path))
            .await
            .expect("an answer")
    }

    /// The record of a key as the list shows it.
    pub(crate) async fn record(&self, key: &str) -> Option<Value> {
        // Keys are asked for as a header would have them.
        let asked = onlyonce_core::Key::from_stored(key);
        let asked = percent_encoded(&asked.header_value());
        let path = format!("/idempotency/keys?key={asked}");
        let listed = self.admin(Request::get(&path)).await.expect(200).json();
        let keys = listed["keys"].as_array().expect("a list of keys").clone();
        assert!(keys.len() <= 1, "one record for {key}: {listed}");
        keys.into_iter().next()
    }

    /// The record with its history.
    pub(crate) async fn full_record(&self, key: &str) -> Value {
        let id = self.id(key).await;
        self.admin(Request::get(&format!("/idempotency/keys/{id}")))
            .await
            .expect(200)
            .json()
    }

    /// The admin API's id of a key that is there.
    pub(crate) async fn id(&self, key: &str) -> String {
        let record = self.record(key).await.expect("a record of this key");
        record["id"]
            .as_str()
            .expect("an id that is text")
            .to_owned()
    }

    /// The state of a key, or `absent`.
    pub(crate) async fn state(&self, key: &str) -> String {
        match self.record(key).await {
            Some(record) => record["state"].as_str().expect("a state").to_owned(),
            None => "absent".to_owned(),
        }
    }

    /// Returns once the key is in this state; no request is made meanwhile but to the admin API.
    pub(crate) async fn until_state(&self, key: &str, state: &str) {
        let what = format!("{key} to be {state}");
        eventually(&what, async || {
            (self.state(key).await == state).then_some(())
        })
        .await;
    }

    /// How many records are in a state.
    pub(crate) async fn count_in_state(&self, state: &str) -> usize {
        let path = format!("/idempotency/keys?state={state}&limit=100");
        let listed = self.admin(Request::get(&path)).await.expect(200).json();
        listed["keys"].as_array().expect("a list of keys").len()
    }

    /// The sum of a counter over its labels; `None` if no sample of it is exposed.
    pub(crate) async fn metric(&self, name: &str) -> Option<f64> {
        let text = self
            .admin(Request::get("/metrics"))
            .await
            .expect(200)
            .text();
        let samples: Vec<f64> = text
            .lines()
            .filter_map(|line| line.strip_prefix(name))
            .filter(|rest| rest.starts_with(['{', ' ']))
            .filter_map(|rest| rest.rsplit(' ').next()?.parse().ok())
            .collect();
        (!samples.is_empty()).then(|| samples.iter().sum())
    }

    /// Returns once `count` requests have met their key in flight.
    pub(crate) async fn until_met_in_flight(&self, count: usize) {
        let name = "api_idempotency_reserve_in_progress_total";
        eventually("duplicates to meet their key in flight", async || {
            (self.metric(name).await.unwrap_or(0.0) >= count as f64).then_some(())
        })
        .await;
    }
}

/// One path segment or query value, everything but letters and digits encoded.
pub(crate) fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}
