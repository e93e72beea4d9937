//! The namespace of a key. Equal keys in different scopes are different keys.
//!
//! Deliberately absent: any way to make a scope from a header that a client can choose. The gateway derives
//! it from the credential, the library from the application's hook.

use std::{fmt, sync::Arc};

/// The namespace of a key: `global`, `client:ID`, `route:ID` or `route:ID/client:ID`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope(Arc<str>);

impl Scope {
    /// One namespace for all callers. Records in it carry a mark of their caller.
    pub fn global() -> Self {
        Self(Arc::from("global"))
    }

    /// The namespace of one authenticated client.
    pub fn client(id: &str) -> Self {
        Self(format!("client:{id}").into())
    }

    /// The namespace of one route, and within it of one client if there is one.
    pub fn route(route: &str, client: Option<&str>) -> Self {
        match client {
            Some(client) => Self(format!("route:{route}/client:{client}").into()),
            None => Self(format!("route:{route}").into()),
        }
    }

    /// A scope read from a store.
    pub fn from_stored(text: &str) -> Self {
        Self(text.into())
    }

    /// The scope's name, as the admin API shows it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The client of this scope, if it belongs to one client.
    pub fn client_id(&self) -> Option<&str> {
        let of_route = || self.0.split_once("/client:").map(|(_, id)| id);
        self.0.strip_prefix("client:").or_else(of_route)
    }

    /// The same route's namespace with `client` in place of its own client. `None` unless the scope belongs
    /// to one client on one route.
    pub fn of_other_client(&self, client: &str) -> Option<Self> {
        if self.0.starts_with("client:") {
            return None;
        }
        let (before, _) = self.0.split_once("/client:")?;
        Some(Self(format!("{before}/client:{client}").into()))
    }

    /// Whether this is the namespace of one route.
    pub fn is_of_route(&self) -> bool {
        self.0.starts_with("route:")
    }

    /// Whether callers share this scope, so that each record must note its caller.
    pub fn is_shared(&self) -> bool {
        !self.0.contains("client:")
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({})", self.0)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
