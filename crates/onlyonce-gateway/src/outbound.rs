//! The gateway's own requests to an authenticating service and to an issuer of keys, over HTTP/1.1 or
//! HTTP/2, with or without TLS.
//!
//! Deliberately absent: redirects, retries, proxies from the environment, and any address that the
//! configuration does not name.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri, response::Parts};
use http_body_util::{BodyExt, Collected, Limited};
use onlyonce::Body;
use tower::ServiceExt;

use crate::{
    config::Backend,
    upstream::{Upstream, UpstreamOptions, describe},
};

/// A host that the gateway sends its own requests to. Connections are reused.
pub(crate) struct Outbound(Upstream);

impl Outbound {
    /// Does not connect yet. `connect_timeout` bounds name resolution, connecting and the handshake; the
    /// caller bounds the time for the answer.
    pub(crate) fn new(host: &Backend, connect_timeout: Duration) -> Self {
        let mut options = UpstreamOptions::new(vec![host.clone()]);
        options.connect_timeout = connect_timeout;
        Self(Upstream::new(options))
    }

    /// Sends `request`, with any method, to `target`, a path with its query. Returns the answer's head, and
    /// its body if the body is complete and at most `limit` bytes long.
    ///
    /// # Errors
    /// If no answer came. Only the error's text says whether anything was sent, so use this for safe requests
    /// only.
    pub(crate) async fn send(
        &self,
        mut request: Request<Body>,
        target: &str,
        limit: usize,
    ) -> Result<(Parts, Option<Bytes>), NotAnswered> {
        *request.uri_mut() = Uri::try_from(target).map_err(|error| NotAnswered::new(&error))?;
        let answer = self.0.clone().oneshot(request).await;
        let (head, body) = answer
            .map_err(|error| NotAnswered::new(&error))?
            .into_parts();
        let body = Limited::new(body, limit).collect().await.ok();
        Ok((head, body.map(Collected::to_bytes)))
    }
}

/// Why there was no answer, in words that contain neither headers nor a body.
#[derive(Debug, thiserror::Error)]
#[error("it could not be asked: {0}")]
pub(crate) struct NotAnswered(String);

impl NotAnswered {
    fn new(error: &dyn std::error::Error) -> Self {
        Self(describe(error))
    }
}
