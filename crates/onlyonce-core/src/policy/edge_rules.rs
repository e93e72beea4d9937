//! The rules of a route that only an edge needs. The engine and the machine know nothing of them: in the
//! library a hook of the application takes their place.

use http::{HeaderName, header};

use super::{KeyScope, Options, PathReadings, options::usual_session_cookies};

/// How an edge with routing and authentication finds the rules of a route and tells callers apart.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EdgeRules {
    /// How paths are interpreted to find the rules that apply.
    pub path_readings: PathReadings,
    /// Which callers share a namespace of keys; `None` depends on whether authentication is configured.
    pub key_scope: Option<KeyScope>,
    /// Whether each route has a namespace of its own.
    pub key_per_route: bool,
    /// The headers that distinguish callers if there is no authentication.
    pub credential_headers: Vec<HeaderName>,
    /// The cookies that distinguish callers if none of these headers is sent.
    pub credential_cookies: Vec<String>,
}

impl EdgeRules {
    /// The rules of a route whose own options are `route` under the gateway's `global` ones.
    pub fn resolve(route: &Options, global: &Options) -> Self {
        let said = Options::stated(route, global);
        Self {
            path_readings: said.path_readings.unwrap_or(PathReadings::Common),
            key_scope: said.key_scope,
            key_per_route: said.key_per_route.unwrap_or(false),
            credential_headers: said.credential_headers.unwrap_or_else(|| {
                vec![header::AUTHORIZATION, HeaderName::from_static("x-api-key")]
            }),
            credential_cookies: said
                .credential_cookies
                .unwrap_or_else(usual_session_cookies),
        }
    }
}
