//! Answers which say that a proxy behind us lost the request after sending it: a closed list.
//!
//! Such an answer looks like the upstream's own 503, and `on_5xx: retry` would execute again what the handler
//! may still be doing. A proxy's report of a failure *before* sending is no proof either: then the status
//! rules decide, as if the proxy had said nothing.

use http::{HeaderMap, HeaderName, StatusCode, header};

/// RFC 9209.
const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");

/// The registered errors of RFC 9209 that occur before the request is sent to the next hop. Any other
/// `error`, registered or not, may have occurred afterwards.
const BEFORE_SENDING: [&str; 14] = [
    "dns_timeout",
    "dns_error",
    "destination_not_found",
    "destination_unavailable",
    "destination_ip_prohibited",
    "destination_ip_unroutable",
    "connection_refused",
    "connection_timeout",
    "connection_limit_reached",
    "tls_certificate_error",
    "http_request_error",
    "http_request_denied",
    "proxy_internal_response",
    "proxy_configuration_error",
];

/// Headers that customarily carry Envoy's response flags (`%RESPONSE_FLAGS%`).
const ENVOY_FLAGS: [HeaderName; 2] = [
    HeaderName::from_static("x-envoy-response-flags"),
    HeaderName::from_static("x-envoy-response-flag"),
];

/// Envoy's flags for a request that may have been sent: connection termination, remote reset, local reset,
/// timeout, retries exhausted, stream idle timeout, protocol error, maximum duration reached, and client
/// disconnect.
const ENVOY_FLAGS_AFTER_SENDING: [&str; 10] = [
    "UC", "UR", "LR", "UT", "URX", "SI", "UPE", "UMSDR", "DT", "DC",
];

/// Headers that customarily carry Envoy's response code details (`%RESPONSE_CODE_DETAILS%`).
const ENVOY_DETAILS: [HeaderName; 2] = [
    HeaderName::from_static("x-envoy-response-code-details"),
    HeaderName::from_static("x-envoy-response-details"),
];

/// Prefixes of Envoy's response code details for a request that may have been sent.
const ENVOY_DETAILS_AFTER_SENDING: [&str; 9] = [
    "upstream_reset_before_response_started",
    "upstream_reset_after_response_started",
    "upstream_response_timeout",
    "upstream_per_try_timeout",
    "upstream_max_stream_duration_reached",
    "max_duration_timeout",
    "stream_idle_timeout",
    "request_overall_timeout",
    "response_payload_too_large",
];

/// The beginning of Envoy's own answer to a request that got none, whatever the reason.
const ENVOY_TEXT: &[u8] = b"upstream connect error or disconnect/reset before headers";

/// Envoy's reset reasons for a request that was not sent; spaces and underscores are equivalent.
const ENVOY_REASONS_BEFORE_SENDING: [&str; 7] = [
    "connection failure",
    "local connection failure",
    "remote connection failure",
    "connection timeout",
    "overflow",
    "remote refused stream reset",
    "overload manager",
];

/// The page that Heroku's router serves in place of an answer. The error code is only in the router's log.
const HEROKU_PAGE: &[u8] = b"herokucdn.com/error-pages/application-error.html";

/// Prefixes of the headers in which a Heroku router reports its error.
const HEROKU_HEADERS: [&str; 2] = ["x-heroku-", "heroku-"];

/// Heroku's errors for a request that was not sent: crashed, backlog too deep, no dynos, redirected to
/// itself, boot timeout, refused, connection limit, and maintenance mode.
const HEROKU_BEFORE_SENDING: [&str; 8] = ["H10", "H11", "H14", "H16", "H20", "H21", "H22", "H80"];

/// How far into a body a proxy's message is searched for, in bytes.
const LOOKED_AT: usize = 4 << 10;

/// How many bytes of the body decide whether an answer with this status is a proxy's own.
pub fn looked_at(status: StatusCode) -> u64 {
    match status.is_server_error() {
        true => LOOKED_AT as u64,
        false => 0,
    }
}

/// Whether an answer says that a proxy lost the request after it may have sent it. `body` is the whole body
/// or its beginning.
pub fn lost_by_proxy(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> bool {
    headers.iter().any(|(name, value)| {
        let Ok(value) = value.to_str() else {
            return false;
        };
        if *name == PROXY_STATUS {
            proxy_status_errors(value).any(|error| !BEFORE_SENDING.contains(&error))
        } else if ENVOY_FLAGS.contains(name) {
            let mut flags = value.split([',', ' ', ';']).map(str::trim);
            flags.any(|flag| ENVOY_FLAGS_AFTER_SENDING.contains(&flag))
        } else if ENVOY_DETAILS.contains(name) {
            envoy_details_say_so(value)
        } else if HEROKU_HEADERS
            .iter()
            .any(|prefix| name.as_str().starts_with(prefix))
        {
            // Alone, or as the router logs it: `code=H12 desc="Request timeout"`.
            let mut words = value.split([' ', ',', ';']).map(str::trim);
            words.any(|word| {
                let code = word.strip_prefix("code=").unwrap_or(word);
                is_heroku_code(code) && !HEROKU_BEFORE_SENDING.contains(&code)
            })
        } else {
            false
        }
    }) || (status.is_server_error() && body_says_so(headers, &body[..body.len().min(LOOKED_AT)]))
}

/// The values of `error` in a `Proxy-Status` field: a list of tokens or strings, each with parameters.
fn proxy_status_errors(value: &str) -> impl Iterator<Item = &str> {
    unquoted_split(value, ',').flat_map(|member| {
        unquoted_split(member, ';')
            .skip(1)
            .filter_map(|parameter| parameter.split_once('='))
            .filter(|(name, _)| name.trim().eq_ignore_ascii_case("error"))
            .map(|(_, value)| value.trim().trim_matches('"'))
    })
}

/// Splits `text` at each `separator` outside quotes.
fn unquoted_split(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |letter: char| {
        match letter {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => return letter == separator && !quoted,
        }
        false
    })
}

fn envoy_details_say_so(details: &str) -> bool {
    let details = details.trim();
    let known = |start: &&str| details.starts_with(*start);
    if !ENVOY_DETAILS_AFTER_SENDING.iter().any(known) {
        return false;
    }
    // The reason in braces may say that nothing was sent. The transport's own message may follow a comma.
    let reason = details
        .split_once('{')
        .map(|(_, reason)| reason.split([',', '|', '}']).next().unwrap_or_default());
    !reason.is_some_and(is_before_sending)
}

fn is_before_sending(reason: &str) -> bool {
    let reason = reason.trim().replace('_', " ");
    ENVOY_REASONS_BEFORE_SENDING.contains(&reason.as_str())
}

fn is_heroku_code(code: &str) -> bool {
    matches!(code.as_bytes(), [b'H', tens, ones] if tens.is_ascii_digit() && ones.is_ascii_digit())
}

fn body_says_so(headers: &HeaderMap, body: &[u8]) -> bool {
    if let Some(rest) = body.strip_prefix(ENVOY_TEXT) {
        let rest = String::from_utf8_lossy(rest);
        // An earlier try of Envoy's own may have been sent, whatever happened to the last one.
        let retried = rest.contains("retried and the latest");
        let reason = rest
            .split_once("reset reason: ")
            .map(|(_, reason)| reason.split([',', '\n']).next().unwrap_or_default());
        return retried || !reason.is_some_and(is_before_sending);
    }
    let html = headers.get(header::CONTENT_TYPE).is_some_and(|kind| {
        let kind = kind.as_bytes();
        kind.len() >= 9 && kind[..9].eq_ignore_ascii_case(b"text/html")
    });
    html && body
        .windows(HEROKU_PAGE.len())
        .any(|window| window == HEROKU_PAGE)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    /// The registry of RFC 9209, and whether each may mean that the request was sent.
    const REGISTERED: [(&str, bool); 32] = [
        ("dns_timeout", false),
        ("dns_error", false),
        ("destination_not_found", false),
        ("destination_unavailable", false),
        ("destination_ip_prohibited", false),
        ("destination_ip_unroutable", false),
        ("connection_refused", false),
        ("connection_terminated", true),
        ("connection_timeout", false),
        ("connection_read_timeout", true),
        ("connection_write_timeout", true),
        ("connection_limit_reached", false),
        // Both may come in the middle of an exchange.
        ("tls_protocol_error", true),
        ("tls_certificate_error", false),
        ("tls_alert_received", true),
        ("http_request_error", false),
        ("http_request_denied", false),
        ("http_response_incomplete", true),
        ("http_response_header_section_size", true),
        ("http_response_header_size", true),
        ("http_response_body_size", true),
        ("http_response_trailer_section_size", true),
        ("http_response_trailer_size", true),
        ("http_response_transfer_coding", true),
        ("http_response_content_coding", true),
        ("http_response_timeout", true),
        ("http_upgrade_failed", true),
        ("http_protocol_error", true),
        ("proxy_internal_response", false),
        ("proxy_internal_error", true),
        ("proxy_configuration_error", false),
        ("proxy_loop_detected", true),
    ];

    fn says(name: &'static str, value: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        lost_by_proxy(StatusCode::SERVICE_UNAVAILABLE, &headers, b"")
    }

    fn shows(kind: &'static str, body: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        lost_by_proxy(StatusCode::SERVICE_UNAVAILABLE, &headers, body.as_bytes())
    }

    #[test]
    fn every_registered_error_is_decided() {
        for (error, sent) in REGISTERED {
            assert_eq!(BEFORE_SENDING.contains(&error), !sent, "{error}");
            for value in [
                format!("cdn; error={error}"),
                format!("cdn;error={error};details=\"a, b; c\""),
                format!("\"a, b\"; details=\"error=x\"; ERROR={error}"),
                format!("outer; received-status=503, inner; error={error}"),
                format!("\"a \\\" ; b\" ;error=\"{error}\""),
            ] {
                assert_eq!(says("proxy-status", &value), sent, "{value}");
            }
        }
        assert!(says("proxy-status", "cdn; error=something_new"));
        assert!(!says("proxy-status", "cdn; received-status=503"));
        assert!(!says(
            "proxy-status",
            "cdn; details=\"; error=connection_terminated\""
        ));
    }

    #[test]
    fn every_flag_of_envoy_is_decided() {
        let after = ENVOY_FLAGS_AFTER_SENDING;
        let before = [
            "-", "LH", "UH", "UF", "UO", "NR", "DI", "FI", "RL", "UAEX", "RLSE", "IH", "DPE", "OM",
            "DF", "NFCF", "RFCF", "NC", "DO", "UDO",
        ];
        for (flags, sent) in [(&after[..], true), (&before[..], false)] {
            for flag in flags {
                assert_eq!(says("x-envoy-response-flags", flag), sent, "{flag}");
                let several = format!("UF,{flag}");
                assert_eq!(says("x-envoy-response-flags", &several), sent, "{several}");
            }
        }
    }

    #[test]
    fn what_envoy_says_of_itself_is_read() {
        let name = "x-envoy-response-code-details";
        for details in ENVOY_DETAILS_AFTER_SENDING {
            assert!(says(name, details), "{details}");
        }
        let started = "upstream_reset_before_response_started";
        for reason in [
            "connection_termination",
            "remote_reset",
            "local_reset",
            "protocol_error",
        ] {
            assert!(says(name, &format!("{started}{{{reason}}}")), "{reason}");
        }
        for reason in ENVOY_REASONS_BEFORE_SENDING {
            let reason = reason.replace(' ', "_");
            assert!(!says(name, &format!("{started}{{{reason}}}")), "{reason}");
        }
        for details in ["via_upstream", "no_healthy_upstream", "route_not_found"] {
            assert!(!says(name, details), "{details}");
        }
    }

    #[test]
    fn the_texts_that_proxies_answer_with_are_known() {
        let text = "upstream connect error or disconnect/reset before headers. ";
        for reason in ["connection termination", "remote reset", "protocol error"] {
            let body = format!("{text}reset reason: {reason}");
            assert!(shows("text/plain", &body), "{body}");
        }
        for reason in ENVOY_REASONS_BEFORE_SENDING {
            let body = format!("{text}reset reason: {reason}, transport failure reason: x");
            assert!(!shows("text/plain", &body), "{body}");
            let body = format!("{text}retried and the latest reset reason: {reason}");
            assert!(shows("text/plain", &body), "{body}");
        }
        assert!(shows("text/plain", text), "no reason is no excuse");
        assert!(!shows("text/plain", "no healthy upstream"));
        let page = "<iframe src=\"//www.herokucdn.com/error-pages/application-error.html\">";
        assert!(shows("text/html; charset=utf-8", page));
        assert!(
            !shows("application/json", page),
            "an API may speak of the page"
        );
        let headers = HeaderMap::new();
        assert!(!lost_by_proxy(StatusCode::OK, &headers, text.as_bytes()));
    }

    #[test]
    fn the_page_names_all_of_it() {
        let page = include_str!("../../../../docs/reference/statuses.md");
        let lists: [&[&str]; 4] = [
            &BEFORE_SENDING,
            &ENVOY_FLAGS_AFTER_SENDING,
            &ENVOY_DETAILS_AFTER_SENDING,
            &HEROKU_BEFORE_SENDING,
        ];
        for word in lists.into_iter().flatten() {
            assert!(page.contains(word), "{word}");
        }
    }

    #[test]
    fn codes_of_herokus_router_are_read() {
        for (code, sent) in [("H12", true), ("H13", true), ("H18", true), ("H10", false)] {
            assert_eq!(says("x-heroku-error-code", code), sent, "{code}");
        }
        assert!(!says("x-heroku-dynos-in-use", "3"));
    }
}
