//! Clients with API keys of their own, for the tests of identity and limits.

use aws_lc_rs::digest::{SHA256, digest};

use super::{Request, Setup};

/// The API key of a client in this suite.
pub(crate) fn key_of(client: &str) -> String {
    format!("sk_test_{client}")
}

impl Setup {
    /// Lets these clients in, each by its key.
    pub(crate) fn clients(self, clients: &[&str]) -> Self {
        let entry = |client: &&str| {
            let hash = digest(&SHA256, key_of(client).as_bytes());
            let hex: String = hash.as_ref().iter().map(|b| format!("{b:02x}")).collect();
            format!("{{ client_id: {client}, sha256: {hex} }}")
        };
        let entries: Vec<String> = clients.iter().map(entry).collect();
        self.top(&format!("auth: {{ api_keys: [{}] }}", entries.join(", ")))
    }
}

impl Request {
    /// With the API key of `client`.
    pub(crate) fn of_client(self, client: &str) -> Self {
        self.header("X-Api-Key", key_of(client))
    }
}
