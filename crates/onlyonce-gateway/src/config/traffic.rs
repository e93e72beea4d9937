//! What concerns the traffic itself: TLS, who is believed about the way of a request, and limits on
//! connections.

use std::path::{Path, PathBuf};

use super::{
    auth::{Network, network},
    diagnostics::{Report, quoted},
    fields::{FORWARDED, TLS},
    section::Section,
};
use crate::tls::{Part, Served, Trust};

/// What the data listener shows its clients.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TlsConfig {
    /// The file with the chain of certificates.
    pub cert: PathBuf,
    /// The file with the key of the first of them.
    pub key: PathBuf,
    /// Both, ready for use.
    pub served: Served,
}

/// What upstreams are told about the way of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Forwarded {
    /// In which headers.
    pub headers: ForwardedHeaders,
    /// Whose word about it is kept; from anybody else it is replaced.
    pub trust: Vec<Network>,
}

/// The headers that say where a request came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ForwardedHeaders {
    /// `X-Forwarded-For`, `-Proto` and `-Host`.
    #[default]
    XForwarded,
    /// `Forwarded` (RFC 7239).
    Forwarded,
    /// All four.
    Both,
    /// None is added, and none is touched.
    None,
}

const HEADERS: [(&str, ForwardedHeaders); 4] = [
    ("x-forwarded", ForwardedHeaders::XForwarded),
    ("forwarded", ForwardedHeaders::Forwarded),
    ("both", ForwardedHeaders::Both),
    ("none", ForwardedHeaders::None),
];

impl ForwardedHeaders {
    /// As a file has it.
    pub(crate) fn name(self) -> &'static str {
        HEADERS
            .iter()
            .find(|(_, known)| *known == self)
            .map_or("", |(name, _)| name)
    }
}

/// `tls`, its files read.
pub(super) fn tls(top: &Section<'_>, report: &mut Report<'_>) -> Option<TlsConfig> {
    if !top.says("tls") {
        return None;
    }
    let section = top.section("tls", &TLS, report);
    let at = top.place("tls").unwrap_or(top.at);
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
        Ok(served) => Some(TlsConfig {
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

/// `ca_file` of an address with TLS: the authorities that are believed there. `Err` where it was said
/// wrongly, which the report knows.
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

/// `forwarded`.
pub(super) fn forwarded(top: &Section<'_>, report: &mut Report<'_>) -> Forwarded {
    let section = top.section("forwarded", &FORWARDED, report);
    Forwarded {
        headers: section
            .word("headers", &HEADERS, report)
            .unwrap_or_default(),
        trust: section.list("trust", report, network).unwrap_or_default(),
    }
}
