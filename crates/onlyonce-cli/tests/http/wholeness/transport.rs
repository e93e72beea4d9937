//! Connections that can be ended in every way that TCP and TLS have, good or bad.

use std::{io, net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{
    TlsAcceptor, client, rustls,
    rustls::{
        ServerConfig,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
    server,
};

use crate::harness::{
    frames::{ACK, FRAME_HEAD, PING, SETTINGS, frame, read_head},
    secure::{file, handshake},
    within,
};

/// What the other side is spoken to in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Plain,
    Tls,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It stays open.
    Open,
    /// In good order: `close_notify` where there is TLS, then FIN.
    Fin,
    /// FIN without `close_notify`.
    BareFin,
    /// A reset.
    Reset,
}

impl Ending {
    /// The ways to end a connection.
    pub(super) fn all(over: Over) -> &'static [Self] {
        match over {
            Over::Plain => &[Self::Fin, Self::Reset],
            Over::Tls => &[Self::Fin, Self::BareFin, Self::Reset],
        }
    }
}

pub(super) enum Stream {
    Plain(TcpStream),
    Client(Box<client::TlsStream<TcpStream>>),
    Server(Box<server::TlsStream<TcpStream>>),
}

trait Bytes: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Bytes for T {}

impl Stream {
    /// A connection to `addr`.
    pub(super) async fn open(addr: SocketAddr, over: Over, is_http2: bool) -> Self {
        match over {
            Over::Plain => {
                let stream = within("a connection", TcpStream::connect(addr)).await;
                let stream = stream.unwrap();
                stream.set_nodelay(true).unwrap();
                Self::Plain(stream)
            }
            Over::Tls => {
                let protocol = if is_http2 { "h2" } else { "http/1.1" };
                let stream = handshake(addr, &[protocol]).await.unwrap();
                stream.get_ref().0.set_nodelay(true).unwrap();
                Self::Client(Box::new(stream))
            }
        }
    }

    /// The other side of one.
    pub(super) async fn accept(stream: TcpStream, tls: Option<&TlsAcceptor>) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(match tls {
            None => Self::Plain(stream),
            Some(tls) => Self::Server(Box::new(tls.accept(stream).await?)),
        })
    }

    fn bytes(&mut self) -> &mut dyn Bytes {
        match self {
            Self::Plain(stream) => stream,
            Self::Client(stream) => &mut **stream,
            Self::Server(stream) => &mut **stream,
        }
    }

    /// A peer that has had enough closes its side; that is for the test to notice elsewhere.
    pub(super) async fn write(&mut self, bytes: &[u8]) {
        let _ = within("a write", self.bytes().write_all(bytes)).await;
        let _ = within("a write", self.bytes().flush()).await;
    }

    pub(super) async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.bytes().read(buffer).await
    }

    /// Reads until the peer has closed, in good order or not.
    pub(super) async fn until_closed(&mut self) -> Vec<u8> {
        let (mut heard, mut buffer) = (Vec::new(), [0; 4_096]);
        while let Ok(count @ 1..) = within("the peer to close", self.read(&mut buffer)).await {
            heard.extend(&buffer[..count]);
        }
        heard
    }

    /// The next HTTP/2 frame that is not an acknowledgement: kind, flags, stream and payload.
    pub(super) async fn frame(&mut self) -> io::Result<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; FRAME_HEAD];
        self.bytes().read_exact(&mut head).await?;
        let (kind, flags, stream, length) = read_head(&head);
        let mut payload = vec![0; length];
        self.bytes().read_exact(&mut payload).await?;
        Ok((kind, flags, stream, payload))
    }

    /// Returns once everything said so far has been read at the other side, as far as HTTP/2 tells.
    pub(super) async fn heard(&mut self) -> io::Result<()> {
        self.write(&frame(PING, 0, 0, b"heard it")).await;
        within("a ping's answer", async {
            loop {
                match self.frame().await? {
                    (PING, ACK, ..) => return Ok(()),
                    (SETTINGS, 0, ..) => self.write(&frame(SETTINGS, ACK, 0, &[])).await,
                    _ => {}
                }
            }
        })
        .await
    }

    /// Ends it, and waits for the peer to have seen that where there is a sign of it.
    pub(super) async fn end(mut self, ending: Ending) {
        match ending {
            Ending::Open => {}
            Ending::Fin => {
                let _ = within("a farewell", self.bytes().shutdown()).await;
                self.until_closed().await;
            }
            Ending::BareFin => {
                let mut socket = match self {
                    Self::Plain(socket) => socket,
                    Self::Client(stream) => stream.into_inner().0,
                    Self::Server(stream) => stream.into_inner().0,
                };
                let _ = socket.shutdown().await;
                let mut rest = Vec::new();
                let _ = within("the peer to close", socket.read_to_end(&mut rest)).await;
            }
            Ending::Reset => {
                let socket = match &self {
                    Self::Plain(socket) => socket,
                    Self::Client(stream) => stream.get_ref().0,
                    Self::Server(stream) => stream.get_ref().0,
                };
                socket.set_zero_linger().unwrap();
            }
        }
    }
}

/// Shows the certificate of these tests and agrees on this protocol.
pub(super) fn acceptor(protocol: &str) -> TlsAcceptor {
    let certificates = CertificateDer::pem_file_iter(file("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(file("server.key")).unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates.map(Result::unwrap).collect(), key)
        .unwrap();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    TlsAcceptor::from(Arc::new(config))
}
