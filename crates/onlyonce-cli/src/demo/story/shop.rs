//! The shop of the story: a client of the payments API on both ways, and a reader of its ledgers.

use std::{net::SocketAddr, time::Duration};

use anyhow::anyhow;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, header};
use onlyonce_gateway::http_client::{Client, Endpoint, Outgoing, trusting};
use serde_json::{Value, json};

/// How long the shop waits for an answer that it does not intend to lose.
const PATIENCE: Duration = Duration::from_secs(40);
/// How long a ledger may take to return its count.
const LEDGER_PATIENCE: Duration = Duration::from_secs(2);

/// How long the gateway may take to show a record; a paused gateway does not answer, and the page goes on.
const RECORD_PATIENCE: Duration = Duration::from_millis(250);

/// The two ways to the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Through the gateway.
    With,
    /// Directly to the API, which keeps a separate ledger for it.
    Without,
}

/// What the shop saw of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Saw {
    /// A payment, and whether the answer was a replay.
    Paid { id: String, replayed: bool },
    /// Another answer: its status and its code.
    Other { status: u16, code: String },
    /// No answer.
    Nothing,
}

#[derive(Clone)]
pub(super) struct Shop {
    gateway: String,
    admin: String,
    api: String,
    authorization: HeaderValue,
    tls: std::sync::Arc<tokio_rustls::rustls::ClientConfig>,
}

/// A purchase to send.
#[derive(Clone, Copy)]
pub(super) struct Purchase<'a> {
    pub(super) key: &'a str,
    /// The fault requested from the API.
    pub(super) fault: &'a str,
    /// How long the shop waits; `None` for as long as necessary.
    pub(super) patience: Option<Duration>,
}

impl Shop {
    pub(super) fn new(
        gateway: SocketAddr,
        admin: SocketAddr,
        api: SocketAddr,
        token: &str,
    ) -> anyhow::Result<Self> {
        let mut authorization = HeaderValue::try_from(format!("Bearer {token}"))?;
        authorization.set_sensitive(true);
        Ok(Self {
            gateway: format!("http://{gateway}"),
            admin: format!("http://{admin}"),
            api: format!("http://{api}"),
            authorization,
            tls: trusting(None)?,
        })
    }

    /// The API's address for the ledger of this side.
    fn books(&self, side: Side) -> String {
        match side {
            Side::With => self.api.clone(),
            Side::Without => format!("{}/without", self.api),
        }
    }

    /// Sends a purchase by one of the ways.
    pub(super) async fn pay(&self, side: Side, purchase: Purchase<'_>) -> Saw {
        let url = match side {
            Side::With => format!("{}/payments", self.gateway),
            Side::Without => format!("{}/payments", self.books(side)),
        };
        let mut headers = vec![(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        )];
        if let Ok(fault) = HeaderValue::try_from(purchase.fault)
            && !purchase.fault.is_empty()
        {
            headers.push((HeaderName::from_static("demo-fault"), fault));
        }
        let body = json!({ "amount": 4_900, "currency": "eur", "customer": "ada" });
        let request = (Method::POST, url.as_str(), headers, Some(purchase.key));
        let patience = purchase.patience.unwrap_or(PATIENCE);
        let Ok(answer) = self.send(request, Some(body), patience).await else {
            return Saw::Nothing;
        };
        let (status, replayed, body) = answer;
        match (status, body["id"].as_str()) {
            (201, Some(id)) => Saw::Paid {
                id: id.to_owned(),
                replayed,
            },
            _ => Saw::Other {
                status,
                code: body["code"].as_str().unwrap_or_default().to_owned(),
            },
        }
    }

    /// How often the API charged: for one purchase, or in total.
    pub(super) async fn charges(&self, side: Side, key: Option<&str>) -> Option<u64> {
        let query = key.map_or_else(String::new, |key| format!("?key={key}"));
        let url = format!("{}/ledger/count{query}", self.books(side));
        let request = (Method::GET, url.as_str(), Vec::new(), None);
        let (_, _, count) = self.send(request, None, LEDGER_PATIENCE).await.ok()?;
        count.as_u64()
    }

    /// The gateway's record of a purchase; `None` while the gateway does not answer.
    pub(super) async fn record(&self, key: &str) -> Option<Value> {
        let url = format!("{}/idempotency/keys?key={key}", self.admin);
        let headers = vec![(header::AUTHORIZATION, self.authorization.clone())];
        let request = (Method::GET, url.as_str(), headers, None);
        let (_, _, mut listed) = self.send(request, None, RECORD_PATIENCE).await.ok()?;
        listed.pointer_mut("/keys/0").map(Value::take)
    }

    /// Acts as the operator: looks the purchase up in the ledger and resolves its key.
    pub(super) async fn look_up(&self, key: &str) -> anyhow::Result<&'static str> {
        let books = self.books(Side::With);
        let ledger = self.get(&format!("{books}/ledger")).await?;
        let entries = ledger["entries"].as_array().cloned().unwrap_or_default();
        let entry = entries.iter().find(|entry| entry["idempotency_key"] == key);
        let (resolution, found) = match entry.and_then(|entry| entry["id"].as_str()) {
            Some(id) => {
                let payment = self.get(&format!("{books}/payments/{id}")).await?;
                let response = json!({
                    "status": 201,
                    "headers": { "Content-Type": "application/json" },
                    "body": payment.to_string(),
                });
                let reason = "found in the ledger";
                let completed =
                    json!({ "outcome": "completed", "response": response, "reason": reason });
                (completed, "The ledger has it: resolved as completed")
            }
            None => {
                let reason = "not in the ledger";
                let released = json!({ "outcome": "failed_retryable", "reason": reason });
                (released, "The ledger does not have it: a retry may run")
            }
        };
        let listed = self
            .get(&format!("{}/idempotency/keys?key={key}", self.admin))
            .await?;
        let id = listed["keys"][0]["id"].as_str().unwrap_or_default();
        let url = format!("{}/idempotency/keys/{id}/resolve", self.admin);
        let headers = vec![(header::AUTHORIZATION, self.authorization.clone())];
        let request = (Method::POST, url.as_str(), headers, None);
        let (status, _, answer) = self.send(request, Some(resolution), PATIENCE).await?;
        match status {
            200 => Ok(found),
            _ => Err(anyhow!(
                "{}",
                answer["detail"].as_str().unwrap_or("it was refused")
            )),
        }
    }

    async fn get(&self, url: &str) -> anyhow::Result<Value> {
        let headers = vec![(header::AUTHORIZATION, self.authorization.clone())];
        let request = (Method::GET, url, headers, None);
        Ok(self.send(request, None, PATIENCE).await?.2)
    }

    /// Sends one request. Returns the status, whether it is a replay, and the body.
    async fn send(
        &self,
        (method, url, headers, key): (Method, &str, Vec<(HeaderName, HeaderValue)>, Option<&str>),
        body: Option<Value>,
        patience: Duration,
    ) -> anyhow::Result<(u16, bool, Value)> {
        let key = key.map(HeaderValue::try_from).transpose()?;
        let outgoing = Outgoing {
            method,
            endpoint: Endpoint::parse(url).map_err(|error| anyhow!("{error}"))?,
            headers,
            key_header: HeaderName::from_static("idempotency-key"),
            keys: key.into_iter().collect(),
            body: body.map_or_else(Bytes::new, |body| body.to_string().into()),
        };
        let client = Client::new(patience, self.tls.clone());
        let answer = client.send(&outgoing).await;
        let answer = answer.map_err(|error| anyhow!("{error}"))?;
        let replayed = answer.headers.contains_key("x-idempotent-replayed");
        let body = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
        Ok((answer.status.as_u16(), replayed, body))
    }
}
