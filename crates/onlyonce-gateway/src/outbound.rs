//! Requests that the gateway itself makes: to an authenticating service, to an issuer of keys, to a
//! provider. One way for all of them, over HTTP/1.1 or HTTP/2, secured or not.
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

/// A host that the gateway asks. Connections are kept for the next question.
pub(crate) struct Outbound(Upstream);

impl Outbound {
    /// Connects to nothing yet. `connect_timeout` bounds name resolution, connecting and the handshake;
    /// how long an answer may take is for the caller to say.
    pub(crate) fn new(host: &Backend, connect_timeout: Duration) -> Self {
        let mut options = UpstreamOptions::new(vec![host.clone()]);
        options.connect_timeout = connect_timeout;
        Self(Upstream::new(options))
    }

    /// Sends `request`, with any method, to `target`, a path with its query; returns the answer, and its
    /// body if that came whole and is not longer than `limit` bytes.
    ///
    /// # Errors
    /// When no answer came. Whether anything was sent, the error's text alone knows: use this only for
    /// questions.
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

/// Why there was no answer, in words that hold neither a header nor a body.
#[derive(Debug, thiserror::Error)]
#[error("it could not be asked: {0}")]
pub(crate) struct NotAnswered(String);

impl NotAnswered {
    fn new(error: &dyn std::error::Error) -> Self {
        Self(describe(error))
    }
}
