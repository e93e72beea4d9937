//! A client over TLS: which certificate it was shown, which HTTP was agreed on, and requests over one
//! connection.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};

use super::{Request, Response, client::headers, within};

/// A file of the certificates that are kept for tests.
pub(crate) fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/http/verify/tls")
        .join(name)
}

/// A handshake that believes both authorities of these tests and offers these protocols.
pub(crate) async fn handshake(
    addr: SocketAddr,
    protocols: &[&str],
) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    for name in ["ca.pem", "other-ca.pem"] {
        let certificate = CertificateDer::from_pem_file(file(name)).unwrap();
        roots.add(certificate).unwrap();
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols
        .iter()
        .map(|one| one.as_bytes().to_vec())
        .collect();
    let socket = within("a connection", TcpStream::connect(addr)).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    within("a handshake", connector.connect(name, socket)).await
}

/// Whether `shown` is the certificate in this file.
pub(crate) fn is_certificate(shown: &[u8], name: &str) -> bool {
    CertificateDer::from_pem_file(file(name)).unwrap().as_ref() == shown
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// One connection; requests go over it one after the other.
pub(crate) struct Secure {
    sender: Sender,
    /// The certificate that was shown.
    pub(crate) certificate: Vec<u8>,
}

impl Secure {
    pub(crate) async fn open(addr: SocketAddr, protocols: &[&str]) -> Self {
        let stream = handshake(addr, protocols).await.expect("a handshake");
        let (_, session) = stream.get_ref();
        let certificate = session.peer_certificates().unwrap()[0].to_vec();
        let sender = if session.alpn_protocol() == Some(b"h2") {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .expect("HTTP/2");
            tokio::spawn(connection);
            Sender::Http2(sender)
        } else {
            let (sender, connection) = http1::handshake(TokioIo::new(stream))
                .await
                .expect("HTTP/1.1");
            tokio::spawn(connection);
            Sender::Http1(sender)
        };
        Self {
            sender,
            certificate,
        }
    }

    pub(crate) fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Http2(_))
    }

    pub(crate) async fn send(&mut self, request: &Request) -> Response {
        self.try_send(request).await.expect("an answer")
    }

    pub(crate) async fn try_send(&mut self, request: &Request) -> hyper::Result<Response> {
        let wanted = request.to_http(self.is_http2());
        let answer = match &mut self.sender {
            Sender::Http1(sender) => within("an answer", sender.send_request(wanted)).await?,
            Sender::Http2(sender) => within("an answer", sender.send_request(wanted)).await?,
        };
        let (parts, body) = answer.into_parts();
        let body = within("a body", body.collect()).await?;
        Ok(Response {
            status: parts.status.as_u16(),
            headers: headers(&parts.headers),
            trailers: body.trailers().map(headers).unwrap_or_default(),
            body: body.to_bytes().to_vec(),
            interim: Vec::new(),
        })
    }
}
