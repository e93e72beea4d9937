//! Whose request it is, once it is authenticated: the scope of its key, and what tells callers apart
//! where they share one.

use http::{HeaderMap, HeaderName};
use onlyonce::Identity;
use onlyonce_core::{Scope, policy::KeyScope};

use crate::{auth::ClientId, config::Route};

/// How the callers of one route are told apart.
pub(super) struct Who {
    route: String,
    per_client: bool,
    per_route: bool,
    credential_headers: Vec<HeaderName>,
    /// The header of the key, where a request without it need not say who it is.
    needless_without: Option<HeaderName>,
}

impl Who {
    pub(super) fn new(route: &Route) -> Self {
        Self {
            route: route.id.clone(),
            per_client: route.policy.key_scope == Some(KeyScope::PerClient),
            per_route: route.policy.key_per_route,
            credential_headers: route.policy.credential_headers.clone(),
            needless_without: route
                .auth_optional
                .then(|| route.policy.header_name.clone()),
        }
    }

    /// Whose request it is; `None` where each client has keys of its own and this is nobody.
    pub(super) fn identity(
        &self,
        headers: &HeaderMap,
        client: Option<&ClientId>,
    ) -> Option<Identity> {
        if self.per_client {
            let Some(client) = client.map(ClientId::as_str) else {
                let header = self.needless_without.as_ref()?;
                // Refused for the missing key, if at all, and nobody's scope is touched.
                let nobody = || Identity::shared(Scope::global(), Vec::new());
                return (!headers.contains_key(header)).then(nobody);
            };
            return Some(match self.per_route {
                true => Identity::client_of_route(&self.route, client),
                false => Identity::client(client),
            });
        }
        let scope = match self.per_route {
            true => Scope::route(&self.route, None),
            false => Scope::global(),
        };
        let caller = match client {
            Some(client) => vec![b"client".to_vec(), client.as_str().as_bytes().to_vec()],
            None => self.credentials(headers),
        };
        Some(Identity::shared(scope, caller))
    }

    /// Without authentication, whoever sends the same credentials is the same caller.
    fn credentials(&self, headers: &HeaderMap) -> Vec<Vec<u8>> {
        let mut caller = Vec::new();
        for name in &self.credential_headers {
            for value in headers.get_all(name) {
                caller.push(name.as_str().as_bytes().to_vec());
                caller.push(value.as_bytes().to_vec());
            }
        }
        caller
    }
}
