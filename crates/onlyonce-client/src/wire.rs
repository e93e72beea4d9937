//! One request over a connection of its own.

use std::{fmt, io, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs, pki_types::ServerName},
};

use crate::call::Call;

/// The largest answer accepted, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Why a text is not the address of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadAddress {
    /// It is not a URL with `http://` or `https://` and a host.
    #[error("the address of a server is a URL such as https://api.example")]
    Form,
    /// It has a path, a query or credentials.
    #[error("the address of a server ends with its host and port")]
    Tail,
}

/// The server that requests go to.
#[derive(Clone)]
pub(crate) struct Server {
    host: String,
    port: u16,
    authority: HeaderValue,
    tls: Option<Arc<ClientConfig>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Server {
    pub(crate) fn parse(text: &str) -> Result<Self, BadAddress> {
        let uri: Uri = text.parse().map_err(|_| BadAddress::Form)?;
        let (tls, default_port) = match uri.scheme_str() {
            Some("https") => (Some(public()), 443),
            Some("http") => (None, 80),
            _ => return Err(BadAddress::Form),
        };
        let authority = uri.authority().ok_or(BadAddress::Form)?;
        if authority.as_str().contains('@')
            || !matches!(text.rsplit("://").next(), Some(rest)
            if rest.trim_end_matches('/') == authority.as_str())
        {
            return Err(BadAddress::Tail);
        }
        let host = authority.host().trim_matches(['[', ']']);
        Ok(Self {
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(default_port),
            authority: HeaderValue::from_str(authority.as_str()).map_err(|_| BadAddress::Form)?,
            tls,
        })
    }

    /// Uses `config` for TLS, if the server uses TLS.
    pub(crate) fn believing(&mut self, config: Arc<ClientConfig>) {
        if self.tls.is_some() {
            self.tls = Some(config);
        }
    }

    /// Sends a request and reads the whole answer. After an error it is not known whether the server acted.
    pub(crate) async fn send(
        &self,
        call: &Call,
        key: Option<(&http::HeaderName, &HeaderValue)>,
    ) -> Result<(StatusCode, HeaderMap, Bytes), Lost> {
        let socket = TcpStream::connect((self.host.as_str(), self.port)).await?;
        socket.set_nodelay(true)?;
        let Some(tls) = &self.tls else {
            return self.exchange(socket, call, key).await;
        };
        let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
        let secured = TlsConnector::from(tls.clone())
            .connect(name, socket)
            .await?;
        self.exchange(secured, call, key).await
    }

    async fn exchange<T>(
        &self,
        stream: T,
        call: &Call,
        key: Option<(&http::HeaderName, &HeaderValue)>,
    ) -> Result<(StatusCode, HeaderMap, Bytes), Lost>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let mut request = Request::new(Full::new(call.body.clone()));
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = call.target.parse().map_err(io::Error::other)?;
        *request.headers_mut() = call.headers.clone();
        let headers = request.headers_mut();
        headers.insert(header::HOST, self.authority.clone());
        if let Some((name, key)) = key {
            headers.insert(name, key.clone());
        }
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let answer = async {
            let (parts, body) = sender.send_request(request).await?.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
            let body = body.map_err(Lost::Body)?.to_bytes();
            Ok((parts.status, parts.headers, body))
        };
        let mut answer = std::pin::pin!(answer);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            biased;
            answer = &mut answer => answer,
            // The connection may end with the answer; what was read can still be taken.
            _ = &mut connection => answer.await,
        }
    }
}

/// Why an attempt has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// No connection, or the TLS handshake failed.
    #[error("no connection")]
    Connect(#[from] io::Error),
    /// The connection ended before the answer was complete.
    #[error("the connection was lost")]
    Http(#[from] hyper::Error),
    /// The answer was cut off, or is too long.
    #[error("the answer is not whole")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The attempt timed out.
    #[error("no answer in time")]
    Timeout,
}

fn public() -> Arc<ClientConfig> {
    let roots = RootCertStore {
        roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
    };
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider speaks the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for good in ["http://a", "https://a/", "http://a:1", "https://[::1]:8443"] {
            assert!(Server::parse(good).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("a", BadAddress::Form),
            ("ftp://a", BadAddress::Form),
            ("http://a/path", BadAddress::Tail),
            ("http://u:p@a", BadAddress::Tail),
            ("http://a/?q", BadAddress::Tail),
        ] {
            assert_eq!(Server::parse(bad).err(), Some(why), "{bad}");
        }
    }
}
