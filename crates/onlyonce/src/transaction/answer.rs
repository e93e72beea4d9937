//! The answer of work in a transaction, and its stored form.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use onlyonce_core::{StoredResponse, record::StoredBody};

/// The application's version of a stored answer, kept with it. Never sent to a client.
pub(crate) const VERSION: HeaderName = HeaderName::from_static("onlyonce-version");

/// An answer: a status, headers and bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers, all of which are replayed.
    pub headers: HeaderMap,
    /// The bytes.
    pub body: Bytes,
    /// Whether the transaction is rolled back although the answer is stored.
    pub(super) undone: bool,
}

impl Answer {
    /// An answer without headers.
    pub fn new(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            headers: HeaderMap::new(),
            body: body.into(),
            undone: false,
        }
    }

    /// An answer in JSON.
    pub fn json(status: StatusCode, body: &serde_json::Value) -> Self {
        Self::new(status, body.to_string()).with(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        )
    }

    /// Adds a header.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.append(name, value);
        self
    }

    /// Rolls the writes back, but stores the answer: a refusal that every retry gets again.
    #[must_use]
    pub fn undone(self) -> Self {
        Self {
            undone: true,
            ..self
        }
    }

    pub(crate) fn stored(&self, version: u32) -> StoredResponse {
        let mut headers = self.headers.clone();
        headers.remove(VERSION);
        if version > 0 {
            headers.insert(VERSION, HeaderValue::from(version));
        }
        StoredResponse {
            status: self.status,
            headers,
            body: StoredBody::Full {
                bytes: self.body.clone(),
                trailers: None,
            },
        }
    }

    pub(super) fn from_stored(stored: &StoredResponse) -> (u32, Self) {
        let mut headers = stored.headers.clone();
        let version = headers.remove(VERSION);
        let version = version.and_then(|value| value.to_str().ok()?.parse().ok());
        let body = match &stored.body {
            StoredBody::Full { bytes, .. } => bytes.clone(),
            // The machine never replays an answer that was not stored, and a store unpacks what it packed.
            StoredBody::NotStored | StoredBody::Packed { .. } => {
                return (u32::MAX, Self::new(stored.status, ""));
            }
        };
        let answer = Self {
            status: stored.status,
            headers,
            body,
            undone: false,
        };
        (version.unwrap_or(0), answer)
    }

    /// Converts the answer to a response.
    pub fn into_response<B: From<Bytes>>(self) -> http::Response<B> {
        let mut response = http::Response::new(B::from(self.body));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}
