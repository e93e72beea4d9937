//! The authorities trusted for `https://`.

use std::{path::Path, sync::Arc};

use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::tls;

/// Trusts the public authorities, and those in `file`.
///
/// # Errors
/// If the file cannot be read or contains no certificate.
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
