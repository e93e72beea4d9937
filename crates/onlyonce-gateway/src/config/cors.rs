//! `cors` of a route: which pages may read the gateway's own answers.

use http::{HeaderName, HeaderValue, Uri, header};
use onlyonce_core::Policy;
use serde_json::{Value, json};

use super::{
    CorsConfig,
    diagnostics::{Report, quoted},
    fields::{CORS, Field},
    scalar::Found,
    section::Section,
    setting::{Group, Scalar, Setting, View},
};

/// The origins of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origins {
    Any,
    These(Vec<HeaderValue>),
}

/// The headers that a page may read by default, beside those for the key and for replays: what the gateway
/// itself adds to an answer.
const EXPOSED: [HeaderName; 7] = [
    HeaderName::from_static("idempotency-status"),
    HeaderName::from_static("idempotency-key-expires"),
    HeaderName::from_static("idempotency-generation"),
    header::LOCATION,
    header::RETRY_AFTER,
    HeaderName::from_static("stripe-should-retry"),
    HeaderName::from_static("x-should-retry"),
];

impl CorsConfig {
    /// The headers that a page may read on a route with this policy.
    pub(crate) fn exposed(&self, policy: &Policy) -> Vec<HeaderName> {
        let default = || {
            let own = [policy.header_name.clone(), policy.replayed_header.clone()];
            own.into_iter().chain(EXPOSED).collect()
        };
        self.expose_headers.clone().unwrap_or_else(default)
    }
}

impl Origins {
    pub(crate) fn have(&self, origin: &HeaderValue) -> bool {
        match self {
            Self::Any => true,
            Self::These(known) => known.contains(origin),
        }
    }
}

impl Setting for CorsConfig {
    fn read(route: &Section<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let at = route.place(field.name)?;
        let section = route.section(field.name, &CORS, report);
        const EXAMPLE: &str = "for example `cors: { origins: [\"https://shop.example.com\"] }`";
        if !section.says("origins") {
            report.error(at, "`cors` without `origins`").hint(EXAMPLE);
        } else if section.is_empty_list("origins") {
            let at = section.place("origins").unwrap_or(at);
            report.error(at, "`origins` is empty").hint(EXAMPLE);
        }
        let config = <Self as Group>::read(&section, report);
        if let Some(config) = &config
            && config.origins == Origins::Any
            && config.credentials
        {
            let at = section.place("credentials").unwrap_or(at);
            report
                .error(
                    at,
                    "`credentials: true` with every origin: browsers refuse that",
                )
                .hint("list the origins of your pages");
        }
        config
    }
}

impl Setting for Origins {
    fn read(section: &Section<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let origins = Vec::<HeaderValue>::read(section, field, report)?;
        if !origins.iter().any(|origin| origin == "*") {
            return Some(Self::These(origins));
        }
        if origins.len() > 1 {
            let at = section.place(field.name).unwrap_or(section.at);
            report
                .error(at, "`origins` names every origin, and others")
                .hint("leave out `*`, or everything else");
        }
        Some(Self::Any)
    }
}

impl View for Origins {
    fn view(&self) -> Value {
        match self {
            Self::Any => json!(["*"]),
            Self::These(origins) => origins.view(),
        }
    }
}

/// An origin as browsers send it: origins are compared byte by byte, so another spelling would never match.
/// No other field is a bare header value.
impl Scalar for HeaderValue {
    fn of(found: Found<'_>, _: &Field, report: &mut Report<'_>) -> Option<Self> {
        if found.text == "*" {
            return Some(HeaderValue::from_static("*"));
        }
        let sent = sent_by_browsers(found.text);
        if sent.as_deref() != Some(found.text) {
            // The value of a variable is not repeated.
            let meant = sent.filter(|_| found.text == found.written);
            let hint = match meant {
                Some(sent) => format!("did you mean `{sent}`?"),
                None => "a scheme and a host, for example `https://shop.example.com`".to_owned(),
            };
            let message = format!("{} is no origin", quoted(found.written));
            report.error(found.at, message).hint(hint);
            return None;
        }
        HeaderValue::from_str(found.text).ok()
    }
}

/// The origin of the page at `text`: in lower case, without a path and without the scheme's default port.
fn sent_by_browsers(text: &str) -> Option<String> {
    let uri: Uri = text.parse().ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let authority = uri.authority().filter(|one| !one.as_str().contains('@'))?;
    let host = authority.host().to_ascii_lowercase();
    let own_port = match scheme.as_str() {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    };
    let port = authority.port_u16().filter(|port| Some(*port) != own_port);
    Some(match port {
        Some(port) => format!("{scheme}://{host}:{port}"),
        None => format!("{scheme}://{host}"),
    })
}
