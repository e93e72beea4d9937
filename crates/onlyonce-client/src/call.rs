//! The request to send.

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};

/// A request: method, path with query, headers and body. Every attempt sends the same request.
#[derive(Clone, Debug)]
pub struct Call {
    pub(crate) method: Method,
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Call {
    /// A request without headers and body. `target` is a path with its query, such as `/payments`.
    pub fn new(method: Method, target: impl Into<String>) -> Self {
        Self {
            method,
            target: target.into(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    /// A POST request.
    pub fn post(target: impl Into<String>) -> Self {
        Self::new(Method::POST, target)
    }

    /// Adds a header.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.append(name, value);
        self
    }

    /// Sets the body, with the content type JSON.
    pub fn json(mut self, body: impl Into<Bytes>) -> Self {
        let json = HeaderValue::from_static("application/json");
        self.headers.insert(header::CONTENT_TYPE, json);
        self.body(body)
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// A digest that distinguishes this request from others under the same name.
    pub(crate) fn digest(&self) -> String {
        let mut context = Context::new(&SHA256);
        let parts = [
            self.method.as_str().as_bytes(),
            self.target.as_bytes(),
            &self.body,
        ];
        for part in parts {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        hex(context.finish().as_ref())
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
