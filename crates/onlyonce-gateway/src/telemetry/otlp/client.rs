//! The exporters' HTTP client: one connection per export, since exports are rare and not urgent.
//!
//! Exporters run in their own threads without a runtime, so the requests run in the gateway's runtime.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use async_trait::async_trait;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    runtime::Handle,
};
use tokio_rustls::{TlsConnector, rustls};

use crate::http_client::trusting;

/// The longest that one export may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 1 << 20;

/// A client in this process's runtime.
#[derive(Clone, Debug)]
pub(super) struct Client {
    runtime: Handle,
    tls: Arc<rustls::ClientConfig>,
}

impl Client {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            runtime: Handle::try_current()?,
            tls: trusting(None)?,
        })
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let tls = self.tls.clone();
        let answer = self.runtime.spawn(async move {
            // The timer must be created inside the runtime, too.
            tokio::time::timeout(TIMEOUT, send(tls, request)).await
        });
        Ok(answer.await???)
    }
}

async fn send(
    tls: Arc<rustls::ClientConfig>,
    mut request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError> {
    let uri = request.uri().clone();
    let host = uri.host().context("the collector's address has no host")?;
    let is_secure = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
    let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await?;
    let authority = uri.authority().context("the collector has no name")?;
    let named = http::HeaderValue::try_from(authority.as_str())?;
    request.headers_mut().insert(http::header::HOST, named);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse()?;
    if is_secure {
        let name = rustls::pki_types::ServerName::try_from(host.to_owned())?;
        let stream = TlsConnector::from(tls).connect(name, stream).await?;
        exchange(stream, request).await
    } else {
        exchange(stream, request).await
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // The task ends with the answer; any failure shows there.
    tokio::spawn(connection);
    let (parts, body) = sender
        .send_request(request.map(Full::new))
        .await?
        .into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
    Ok(Response::from_parts(parts, body))
}
