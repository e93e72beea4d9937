//! Whom to believe behind `https://`.

use std::{path::Path, sync::Arc};

use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::tls;

/// The public authorities, and those in `file`.
///
/// # Errors
/// When the file cannot be read or holds no certificate.
pub fn trusting(file: Option<&Path>) -> anyhow::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore {
        roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
    };
    if let Some(file) = file {
        let pem = tls::contents(file)?;
        tls::add(&mut roots, &pem)?;
    }
    Ok(tls::client(roots, &[tls::HTTP1]))
}
