//! TLS, trusted information about a request's origin, and limits on connections.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{
    diagnostics::{Report, quoted},
    fields::{Field, TLS},
    section::Section,
    setting::{Setting, View},
};
use crate::tls::{Part, Served, Trust};

/// The data listener's certificate.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TlsConfig {
    /// The file with the certificate chain.
    pub cert: PathBuf,
    /// The file with the key of the chain's first certificate.
    pub key: PathBuf,
    /// Both, ready for use.
    pub served: Served,
}

/// The headers that tell where a request came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ForwardedHeaders {
    /// `X-Forwarded-For`, `-Proto` and `-Host`.
    #[default]
    XForwarded,
    /// `Forwarded` (RFC 7239).
    Forwarded,
    /// All four.
    Both,
    /// None is added or changed.
    None,
}

/// Also reads the files.
impl Setting for TlsConfig {
    fn read(top: &Section<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        if !top.says(field.name) {
            return None;
        }
        let section = top.section(field.name, &TLS, report);
        let at = top.place(field.name).unwrap_or(top.at);
        for field in ["cert", "key"] {
            if !section.says(field) {
                report
                    .error(at, format!("`tls` without `{field}`"))
                    .hint("for example `tls: { cert: server.pem, key: server.key }`");
            }
        }
        let cert = section.scalar("cert", report);
        let key = section.scalar("key", report);
        let (cert, key) = (cert?, key?);
        let (cert_file, key_file) = (PathBuf::from(cert.text), PathBuf::from(key.text));
        match Served::read(&cert_file, &key_file) {
            Ok(served) => Some(Self {
                cert: cert_file,
                key: key_file,
                served,
            }),
            Err((part, error)) => {
                let found = match part {
                    Part::Certificate => cert,
                    Part::Key => key,
                };
                report.error(found.at, format!("{} {error}", quoted(found.written)));
                None
            }
        }
    }
}

impl View for TlsConfig {
    fn view(&self) -> Value {
        json!({ "cert": self.cert, "key": self.key })
    }
}

/// The authorities in `ca_file`, for an address with TLS. `Err` if the value is invalid, which is reported.
pub(super) fn trust(
    section: &Section<'_>,
    has_tls: bool,
    report: &mut Report<'_>,
) -> Result<Option<Trust>, ()> {
    if !section.says("ca_file") {
        return Ok(has_tls.then(Trust::public));
    }
    let found = section.scalar("ca_file", report).ok_or(())?;
    if !has_tls {
        report
            .error(found.at, "`ca_file` has no meaning without `https://`")
            .hint("a connection that is not secured has no certificate to check");
        return Err(());
    }
    match Trust::file(Path::new(found.text)) {
        Ok(trust) => Ok(Some(trust)),
        Err(error) => {
            report.error(found.at, format!("{} {error}", quoted(found.written)));
            Err(())
        }
    }
}
