//! The destination of a request: its host, however it was sent, and its target without ignored parameters.

use http::{HeaderMap, header::HOST};

use super::{
    frame::{write_framed, write_framed_with},
    recipe::Recipe,
};

/// Ports that are the default of a scheme.
const DEFAULT_PORTS: [&[u8]; 2] = [b":80", b":443"];

/// The host as the client named it: that of `authority`, otherwise of `Host`, in lower case, without user,
/// trailing dot and default port.
pub(super) fn effective_host(authority: Option<&str>, headers: &HeaderMap) -> Vec<u8> {
    let host = match authority {
        Some(authority) => Some(authority.as_bytes()),
        None => headers.get(HOST).map(|host| host.as_bytes()),
    };
    normal_host(host.unwrap_or_default())
}

/// A host in normal form, for comparison.
pub(super) fn normal_host(host: &[u8]) -> Vec<u8> {
    let host = host.trim_ascii();
    let mut host = host.rsplit(|byte| *byte == b'@').next().unwrap_or(host);
    for port in DEFAULT_PORTS {
        host = host.strip_suffix(port).unwrap_or(host);
    }
    // The trailing dot may stand before a port that is kept.
    let (name, port) = match host.iter().rposition(|byte| *byte == b':') {
        Some(colon) if !host[colon..].contains(&b']') => host.split_at(colon),
        _ => (host, &[][..]),
    };
    let name = name.strip_suffix(b".").unwrap_or(name);
    let mut normal = name.to_ascii_lowercase();
    normal.extend_from_slice(port);
    normal
}

/// Appends path and query, without the parameters that the recipe ignores.
pub(super) fn write_target(recipe: &Recipe, target: &str, out: &mut Vec<u8>) {
    let ignored = recipe.ignore_query();
    let Some((path, query)) = target.split_once('?').filter(|_| !ignored.is_empty()) else {
        return write_framed(target.as_bytes(), out);
    };
    let counts = |pair: &&str| {
        let name = pair.split('=').next().unwrap_or_default();
        !ignored.iter().any(|one| is_name(name, one))
    };
    write_framed_with(out, |out| {
        out.extend_from_slice(path.as_bytes());
        for (index, pair) in query.split('&').filter(counts).enumerate() {
            out.push(if index == 0 { b'?' } else { b'&' });
            out.extend_from_slice(pair.as_bytes());
        }
    });
}

/// Whether a parameter's decoded name is `name`.
fn is_name(raw: &str, name: &str) -> bool {
    super::form::decode(raw.as_bytes()).eq(name.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_has_one_form() {
        for host in [
            "api.test",
            "API.test",
            "api.test.",
            "api.test:80",
            "Api.Test.:443",
            "user@api.test",
            " api.test ",
        ] {
            assert_eq!(normal_host(host.as_bytes()), b"api.test", "{host}");
        }
        for (host, normal) in [
            ("api.test:8080", "api.test:8080"),
            ("api.test.:8080", "api.test:8080"),
            ("[::1]", "[::1]"),
            ("[::1]:443", "[::1]"),
            ("[::1]:8443", "[::1]:8443"),
            ("", ""),
        ] {
            assert_eq!(normal_host(host.as_bytes()), normal.as_bytes(), "{host}");
        }
    }
}
