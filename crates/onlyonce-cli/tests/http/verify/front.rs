//! TLS in front of a plain listener: bytes in, bytes out.

use std::{net::SocketAddr, path::Path, sync::Arc};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

/// The running front; it stops when dropped.
pub(crate) struct Front {
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Drop for Front {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Front {
    pub(crate) async fn start(behind: SocketAddr) -> Self {
        let acceptor = TlsAcceptor::from(Arc::new(config()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(pass(acceptor.clone(), stream, behind));
            }
        });
        Self { address, serving }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.address.port())
    }
}

/// A client that does not like the certificate, or hangs up, ends this early.
async fn pass(acceptor: TlsAcceptor, stream: TcpStream, behind: SocketAddr) {
    if let Ok(mut secured) = acceptor.accept(stream).await
        && let Ok(mut plain) = TcpStream::connect(behind).await
    {
        let _ = copy_bidirectional(&mut secured, &mut plain).await;
    }
}

fn config() -> ServerConfig {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http/verify/tls");
    let certificates = CertificateDer::pem_file_iter(folder.join("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.join("server.key")).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates.map(Result::unwrap).collect(), key)
        .unwrap()
}
