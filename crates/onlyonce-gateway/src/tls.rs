//! TLS on both sides: the data listener's certificates, and the authorities trusted on outgoing connections.
//!
//! All files are read here, so that an unusable file is noticed before anything depends on it.
//!
//! Deliberately absent: an option to skip certificate checks, and early data, which anybody on the path can
//! replay.

use std::{
    fmt,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

use aws_lc_rs::digest::{self, SHA256};
use tokio_rustls::rustls::{
    self, ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, aws_lc_rs as provider},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

/// The largest file of certificates or keys, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The ALPN names of HTTP/2 and HTTP/1.1.
pub(crate) const HTTP2: &[u8] = b"h2";
pub(crate) const HTTP1: &[u8] = b"http/1.1";

/// Why a file cannot be used. No variant quotes the file's content.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadFile {
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("is larger than 1 MiB")]
    TooLarge,
    #[error("holds no certificate in PEM form")]
    NoCertificate,
    #[error("holds a certificate that cannot be used")]
    BadCertificate(#[source] rustls::Error),
    #[error("holds no private key in PEM form")]
    NoKey,
    #[error("holds a key of a kind that cannot be used")]
    BadKey,
    #[error("holds a key that does not belong to the certificate")]
    OtherKey,
}

/// Which of a listener's two files an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Certificate,
    Key,
}

/// A certificate and its key, ready to serve. Two are equal if their files' contents are.
#[derive(Clone)]
pub(crate) struct Served {
    config: Arc<ServerConfig>,
    digest: [u8; 32],
}

impl Served {
    /// Reads a certificate chain and the key of its first certificate.
    ///
    /// # Errors
    /// The file that cannot be used, and why.
    pub(crate) fn read(cert: &Path, key: &Path) -> Result<Self, (Part, BadFile)> {
        let cert = contents(cert).map_err(|error| (Part::Certificate, error))?;
        let key = contents(key).map_err(|error| (Part::Key, error))?;
        let chain = certificates(&cert).map_err(|error| (Part::Certificate, error))?;
        let secret =
            PrivateKeyDer::from_pem_slice(&key).map_err(|_| (Part::Key, BadFile::NoKey))?;
        let config = ServerConfig::builder_with_provider(provider_of_ours())
            .with_safe_default_protocol_versions()
            .expect("the provider speaks the default versions")
            .with_no_client_auth()
            .with_single_cert(chain, secret);
        let mut config = config.map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => (Part::Key, BadFile::OtherKey),
            rustls::Error::General(_) => (Part::Key, BadFile::BadKey),
            error => (Part::Certificate, BadFile::BadCertificate(error)),
        })?;
        config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
        Ok(Self {
            config: Arc::new(config),
            digest: sha256(&[&cert, &key]),
        })
    }

    /// The configuration for a handshake.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }
}

impl PartialEq for Served {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Served")
    }
}

/// The authorities trusted on outgoing connections.
#[derive(Clone)]
pub(crate) struct Trust {
    /// `None` for the public authorities.
    file: Option<PathBuf>,
    digest: [u8; 32],
    any: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

impl Trust {
    /// The public authorities, as Mozilla lists them.
    pub(crate) fn public() -> Self {
        static PUBLIC: LazyLock<Trust> = LazyLock::new(|| {
            let roots = webpki_roots::TLS_SERVER_ROOTS.to_vec();
            Trust::of(None, [0; 32], RootCertStore { roots })
        });
        PUBLIC.clone()
    }

    /// The authorities in a file, and no others.
    ///
    /// # Errors
    /// If the file cannot be read, is empty, or contains something that is not an authority.
    pub(crate) fn file(path: &Path) -> Result<Self, BadFile> {
        let pem = contents(path)?;
        let mut roots = RootCertStore::empty();
        add(&mut roots, &pem)?;
        Ok(Self::of(Some(path.to_owned()), sha256(&[&pem]), roots))
    }

    fn of(file: Option<PathBuf>, digest: [u8; 32], roots: RootCertStore) -> Self {
        let roots = Arc::new(roots);
        Self {
            file,
            digest,
            any: client(roots.clone(), &[HTTP2, HTTP1]),
            http1: client(roots.clone(), &[HTTP1]),
            http2: client(roots, &[HTTP2]),
        }
    }

    /// The file, if the authorities came from one.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// For a connection with either protocol (`None`), with HTTP/2 only (`true`) or with HTTP/1.1 only.
    pub(crate) fn config(&self, http2: Option<bool>) -> Arc<ClientConfig> {
        match http2 {
            None => self.any.clone(),
            Some(true) => self.http2.clone(),
            Some(false) => self.http1.clone(),
        }
    }
}

impl PartialEq for Trust {
    fn eq(&self, other: &Self) -> bool {
        (&self.file, self.digest) == (&other.file, other.digest)
    }
}

impl Eq for Trust {}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trust({:?})", self.file)
    }
}

/// A client configuration that trusts `roots` and offers these protocols.
pub(crate) fn client(
    roots: impl Into<Arc<RootCertStore>>,
    protocols: &[&[u8]],
) -> Arc<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(provider_of_ours())
        .with_safe_default_protocol_versions()
        .expect("the provider speaks the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|one| one.to_vec()).collect();
    Arc::new(config)
}

/// Adds the authorities in a PEM text.
pub(crate) fn add(roots: &mut RootCertStore, pem: &[u8]) -> Result<(), BadFile> {
    for certificate in certificates(pem)? {
        roots.add(certificate).map_err(BadFile::BadCertificate)?;
    }
    Ok(())
}

/// Reads a file of at most `MAX_FILE_BYTES`.
pub(crate) fn contents(path: &Path) -> Result<Vec<u8>, BadFile> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path)?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(BadFile::TooLarge);
    }
    Ok(bytes)
}

/// A hash of the contents of these files; a missing file counts as empty.
pub(crate) fn fingerprint_of(files: &[PathBuf]) -> [u8; 32] {
    let read: Vec<Vec<u8>> = files
        .iter()
        .map(|file| contents(file).unwrap_or_default())
        .collect();
    let parts: Vec<&[u8]> = read.iter().map(Vec::as_slice).collect();
    sha256(&parts)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, BadFile> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read.map_err(|_| BadFile::NoCertificate)?;
    if read.is_empty() {
        return Err(BadFile::NoCertificate);
    }
    Ok(read)
}

/// Explicit, because a program has one default provider, and an embedding program may choose another.
fn provider_of_ours() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(provider::default_provider()));
    PROVIDER.clone()
}

fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    digest
}
