//! The attempts of one operation, from the first to the answer.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_rustls::rustls::ClientConfig;

use crate::{
    call::Call,
    hint::{self, Next},
    journal::{Entry, Journal, JournalError, fresh_key, random_bytes},
    wire::{BadAddress, Lost, Server},
};

/// The path at which the gateway is asked about a key.
const KEYS: &str = "/.onlyonce/keys/";
/// How long the gateway may hold such a request until it knows more.
const HELD: Duration = Duration::from_secs(10);
/// Stands for an unlimited time.
const AS_GOOD_AS_NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);
/// The headers of a call that identify the caller, and so are also sent with such a request.
const CREDENTIALS: [&str; 2] = ["authorization", "x-api-key"];

/// Timeouts and pauses.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The timeout of one attempt, from connecting to the last byte of its answer.
    pub attempt: Duration,
    /// The timeout of all attempts together. After it, [`Client::send`] reports what is known, and the
    /// journal keeps the key.
    pub whole: Duration,
    /// The pause after the first failure. It doubles with each further one, and half of it is random.
    pub pause: Duration,
    /// The longest pause, unless the server asks for a longer one.
    pub longest_pause: Duration,
}

impl Default for Patience {
    /// A minute for an attempt, five for all; pauses from 200 ms to 20 s.
    fn default() -> Self {
        Self {
            attempt: Duration::from_secs(60),
            whole: Duration::from_secs(300),
            pause: Duration::from_millis(200),
            longest_pause: Duration::from_secs(20),
        }
    }
}

/// The outcome of an operation.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The server's status.
    pub status: StatusCode,
    /// The server's headers.
    pub headers: HeaderMap,
    /// The server's body.
    pub body: Bytes,
    /// The key with which it was sent.
    pub key: String,
    /// How often this call sent it.
    pub attempts: u32,
}

/// Why there is no answer. If the journal has the key, it keeps it, and calling again continues with it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key could not be persisted, so nothing was sent.
    #[error("nothing was sent: the key could not be written down")]
    Journal(#[from] JournalError),
    /// The journal holds another request under this name; nothing was sent.
    #[error("nothing was sent: this operation was begun with another request")]
    OtherRequest,
    /// The key or the path cannot be sent.
    #[error("nothing was sent: the key or the path cannot be sent")]
    Unsendable,
    /// The server does not know the outcome. A new key may execute the operation twice.
    #[error("the outcome is unknown; ask the operator of the server about key {key}")]
    Unknown {
        /// The key to ask about.
        key: String,
    },
    /// No attempt got a final answer. The operation may have taken effect.
    #[error("no answer after {attempts} attempts with key {key}")]
    GaveUp {
        /// The key to continue with.
        key: String,
        /// How often the request was sent.
        attempts: u32,
        /// The last status seen, if any.
        last: Option<StatusCode>,
    },
}

/// Sends operations to one server.
#[derive(Clone, Debug)]
pub struct Client {
    server: Server,
    key_header: HeaderName,
    patience: Patience,
}

impl Client {
    /// A client of `server`, for example `https://api.example`, that trusts the public certificate
    /// authorities.
    ///
    /// # Errors
    /// If `server` is not a valid address.
    pub fn new(server: &str) -> Result<Self, BadAddress> {
        Ok(Self {
            server: Server::parse(server)?,
            key_header: HeaderName::from_static("idempotency-key"),
            patience: Patience::default(),
        })
    }

    /// Sets the timeouts and pauses.
    pub fn patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// Sets the header for the key.
    pub fn key_header(mut self, name: HeaderName) -> Self {
        self.key_header = name;
        self
    }

    /// Sets the TLS configuration: other certificate authorities, or a client certificate.
    pub fn tls(mut self, config: Arc<ClientConfig>) -> Self {
        self.server.believing(config);
        self
    }

    /// Sends `call` under the caller's own name for it, until an answer is final.
    ///
    /// The key is in `journal` before the first byte is sent. If a key is there already, from a call that did
    /// not finish or a process that died, it is used. Dropping the future loses nothing but time.
    ///
    /// The answer may have any status, including a refusal: it is the server's final answer. Save it before
    /// you [`forget`](Journal::forget) the operation.
    ///
    /// # Errors
    /// If there was no final answer within [`Patience::whole`], or nothing could be sent.
    pub async fn send(
        &self,
        journal: &dyn Journal,
        operation: &str,
        call: &Call,
    ) -> Result<Answer, Error> {
        let fresh = Entry {
            key: fresh_key(),
            request: call.digest(),
        };
        let entry = journal.entry(operation, &fresh)?;
        if entry.request != fresh.request {
            return Err(Error::OtherRequest);
        }
        let key = HeaderValue::from_str(&entry.key).map_err(|_| Error::Unsendable)?;
        let is_target = call.target.starts_with('/') && call.target.parse::<http::Uri>().is_ok();
        if !is_target {
            return Err(Error::Unsendable);
        }
        let mut course = Course {
            client: self,
            key: entry.key,
            end: from_now(self.patience.whole),
            attempts: 0,
            pauses: 0,
            last: None,
        };
        loop {
            course.attempts += 1;
            let sent = course.in_time(self.server.send(call, Some((&self.key_header, &key))));
            let mut place = None;
            let (wait, asks) = match sent.await {
                Ok((status, headers, body)) => {
                    course.last = Some(status);
                    match hint::after(status, &headers, &body) {
                        Next::Done => return Ok(course.answer(status, headers, body)),
                        Next::Again(wait) => (wait, false),
                        Next::Ask => {
                            place = place_to_ask(&headers);
                            (Duration::ZERO, true)
                        }
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "an attempt has no answer");
                    (Duration::ZERO, false)
                }
            };
            if asks {
                course.until_known(call, place).await?;
            } else if !course.pause(wait).await {
                return Err(course.gave_up());
            }
        }
    }
}

/// Where the server says to ask about the key; only its own path is trusted.
fn place_to_ask(headers: &HeaderMap) -> Option<String> {
    let place = headers.get(header::LOCATION)?.to_str().ok()?;
    place.starts_with(KEYS).then(|| place.to_owned())
}

/// The moment after `duration`, capped at a time that stands for never.
fn from_now(duration: Duration) -> Instant {
    let now = Instant::now();
    let far = now + AS_GOOD_AS_NEVER;
    now.checked_add(duration).map_or(far, |end| end.min(far))
}

/// The state of one operation.
struct Course<'c> {
    client: &'c Client,
    key: String,
    end: Instant,
    attempts: u32,
    pauses: u32,
    last: Option<StatusCode>,
}

impl Course<'_> {
    async fn in_time<T>(&self, attempt: impl Future<Output = Result<T, Lost>>) -> Result<T, Lost> {
        let end = self.end.min(from_now(self.client.patience.attempt));
        timeout_at(end, attempt).await.unwrap_or(Err(Lost::Timeout))
    }

    /// Waits before the next attempt; `false` if no time is left for one.
    async fn pause(&mut self, at_least: Duration) -> bool {
        let patience = &self.client.patience;
        let doubled = patience.pause.saturating_mul(1 << self.pauses.min(16));
        let pause = doubled.min(patience.longest_pause);
        self.pauses += 1;
        let [chance, ..] = random_bytes();
        let pause = pause / 2 + pause / 2 * u32::from(chance) / 255;
        let pause = pause.max(at_least);
        if from_now(pause) >= self.end {
            return false;
        }
        sleep(pause).await;
        true
    }

    /// Asks about the key until its outcome is known. The next attempt then gets the answer, or executes what
    /// is proven not to have been executed.
    async fn until_known(&mut self, call: &Call, place: Option<String>) -> Result<(), Error> {
        let place = place.unwrap_or_else(|| {
            let plain = percent_encoding::NON_ALPHANUMERIC;
            let key = percent_encoding::utf8_percent_encode(&self.key, plain);
            format!("{KEYS}{key}")
        });
        let and = if place.contains('?') { '&' } else { '?' };
        let target = format!("{place}{and}wait={}s", HELD.as_secs());
        let mut question = Call::new(Method::GET, target);
        for name in CREDENTIALS {
            for value in call.headers.get_all(name) {
                question = question.header(HeaderName::from_static(name), value.clone());
            }
        }
        loop {
            let asked = self.in_time(self.client.server.send(&question, None)).await;
            let known = match asked {
                Ok((StatusCode::OK, _, body)) => {
                    serde_json::from_slice::<Value>(&body).is_ok_and(|body| {
                        matches!(
                            body["state"].as_str(),
                            Some("completed" | "failed_retryable")
                        )
                    })
                }
                _ => false,
            };
            if known {
                return Ok(());
            }
            if !self.pause(Duration::ZERO).await {
                let key = self.key.clone();
                return Err(Error::Unknown { key });
            }
        }
    }

    fn answer(self, status: StatusCode, headers: HeaderMap, body: Bytes) -> Answer {
        Answer {
            status,
            headers,
            body,
            key: self.key,
            attempts: self.attempts,
        }
    }

    fn gave_up(self) -> Error {
        Error::GaveUp {
            key: self.key,
            attempts: self.attempts,
            last: self.last,
        }
    }
}

impl Answer {
    /// Whether the server says that this is the answer to an earlier attempt.
    pub fn is_replay(&self) -> bool {
        ["x-idempotent-replayed", "idempotent-replayed"]
            .iter()
            .any(|name| self.headers.get(*name).is_some_and(|value| value == "true"))
    }

    /// The body's content type, if the server states it.
    pub fn content_type(&self) -> Option<&str> {
        self.headers.get(header::CONTENT_TYPE)?.to_str().ok()
    }
}
