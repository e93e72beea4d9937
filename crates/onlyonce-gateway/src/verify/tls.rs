//! Whom to believe behind `https://`.
//!
//! Deliberately absent: a way not to check certificates.

use std::{path::Path, sync::Arc};

use anyhow::{Context, bail};
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, pem::PemObject},
};

/// The public authorities, and those in `file`.
///
/// # Errors
/// When the file cannot be read or holds no certificate.
pub(crate) fn trusting(file: Option<&Path>) -> anyhow::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore {
        roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
    };
    if let Some(file) = file {
        let name = || format!("--ca {}", file.display());
        let mut found = 0;
        for certificate in CertificateDer::pem_file_iter(file).with_context(name)? {
            roots
                .add(certificate.with_context(name)?)
                .with_context(name)?;
            found += 1;
        }
        if found == 0 {
            bail!("{}: no certificate in it", name());
        }
    }
    // Named here: a program has one default provider, and this is only one part of it.
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
