//! The identity of a request's client, from the application's own hook, and how callers who share a scope are
//! distinguished.

use std::sync::Arc;

use http::request::Parts;
use onlyonce_core::{CallerMark, Record, Scope, Secret, record::MarkedBy};

use crate::{
    engine::{Engine, Marks},
    limits::{Client, ConnectionId, Holder},
};

/// The identity of a request's client.
#[derive(Clone)]
pub struct Identity {
    /// The namespace of the client's keys.
    pub scope: Scope,
    /// The bytes that distinguish callers in a shared scope.
    caller: Option<Vec<Vec<u8>>>,
    /// The cookies that distinguish callers who send no such bytes.
    cookies: Vec<Vec<u8>>,
    /// The id of an authenticated client.
    client: Option<Arc<str>>,
}

impl std::fmt::Debug for Identity {
    /// Omits the bytes that distinguish callers, which may be a credential.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// An authenticated client with a namespace of its own.
    pub fn client(id: &str) -> Self {
        Self {
            scope: Scope::client(id),
            caller: None,
            cookies: Vec::new(),
            client: Some(id.into()),
        }
    }

    /// An authenticated client with a namespace of its own on each route.
    pub fn client_of_route(route: &str, id: &str) -> Self {
        Self {
            scope: Scope::route(route, Some(id)),
            caller: None,
            cookies: Vec::new(),
            client: Some(id.into()),
        }
    }

    /// A caller in a shared scope. The same key with other `caller` bytes is refused. The bytes are stored
    /// only as a keyed hash.
    pub fn shared(scope: Scope, caller: Vec<Vec<u8>>) -> Self {
        Self {
            scope,
            caller: Some(caller),
            cookies: Vec::new(),
            client: None,
        }
    }

    /// The same caller with these session cookies, which distinguish callers who send no credential. A record
    /// notes which of the two its caller's mark was made from, and a retry is compared by the same.
    #[must_use]
    pub fn with_cookies(self, cookies: Vec<Vec<u8>>) -> Self {
        Self { cookies, ..self }
    }

    /// The same caller, who is the authenticated client `id`: metrics and limits are the client's, although its
    /// keys are in a scope that it shares.
    #[must_use]
    pub fn of_client(self, id: &str) -> Self {
        let client = Some(id.into());
        Self { client, ..self }
    }

    /// The name of an authenticated client.
    pub(crate) fn name(&self) -> Option<&Arc<str>> {
        self.client.as_ref()
    }

    /// The id of an authenticated client, as limits know it.
    pub(crate) fn client_id(&self) -> Option<Client> {
        self.client.clone().map(Client::Named)
    }

    /// Whose quota of detached executions its requests count against: the client's, or that of the caller
    /// with `mark`, however many connections it has; otherwise the connection's.
    pub(crate) fn executes_as(
        &self,
        mark: Option<CallerMark>,
        connection: Option<ConnectionId>,
    ) -> Option<Holder> {
        let credentials = self.caller.as_ref().is_some_and(|parts| !parts.is_empty());
        let is_told_apart = credentials || !self.cookies.is_empty();
        match (&self.client, mark.filter(|_| is_told_apart)) {
            (Some(id), _) => Some(Holder::Client(id.clone())),
            (None, Some(mark)) => Some(Holder::Marked(mark)),
            (None, None) => connection.map(Holder::Connection),
        }
    }

    /// Whose limits its requests count against: the client's, or the caller's by its mark.
    pub fn limited_as(&self, secret: &Secret) -> Client {
        match &self.client {
            Some(id) => Client::Named(id.clone()),
            None => Client::Marked(self.mark(secret)),
        }
    }

    /// The caller's mark for a new record in a shared scope.
    pub fn mark(&self, secret: &Secret) -> Option<CallerMark> {
        match self.marked_by() {
            MarkedBy::Credentials => self.by_credentials(secret),
            MarkedBy::Cookies => self.by_cookies(secret),
        }
    }

    /// Whether this caller made `record`, by a mark made in the record's way.
    pub fn is_caller_of(&self, record: &Record, secret: &Secret) -> bool {
        let mark = match record.notes.marked_by {
            MarkedBy::Credentials => self.by_credentials(secret),
            MarkedBy::Cookies => self.by_cookies(secret),
        };
        record.scope == self.scope && record.caller == mark
    }

    /// The caller's marks. A caller whom nothing distinguishes gets the mark that `engine` has cached.
    pub(crate) fn marks(&self, engine: &Engine) -> Marks {
        let credentials = match &self.caller {
            Some(parts) if parts.is_empty() => Some(engine.derived(&self.scope).nobody),
            _ => self.by_credentials(engine.secret()),
        };
        let cookies = self.by_cookies(engine.secret());
        let marked_by = self.marked_by();
        let (mark, other) = match marked_by {
            MarkedBy::Credentials => (credentials, cookies),
            MarkedBy::Cookies => (cookies, credentials),
        };
        Marks {
            mark,
            marked_by,
            other,
        }
    }

    fn marked_by(&self) -> MarkedBy {
        let sends_credential = self.caller.as_ref().is_none_or(|parts| !parts.is_empty());
        match sends_credential || self.cookies.is_empty() {
            true => MarkedBy::Credentials,
            false => MarkedBy::Cookies,
        }
    }

    fn by_credentials(&self, secret: &Secret) -> Option<CallerMark> {
        self.caller.as_ref().map(|parts| self.hashed(secret, parts))
    }

    fn by_cookies(&self, secret: &Secret) -> Option<CallerMark> {
        let shared = self.caller.is_some() && !self.cookies.is_empty();
        shared.then(|| self.hashed(secret, &self.cookies))
    }

    fn hashed(&self, secret: &Secret, parts: &[Vec<u8>]) -> CallerMark {
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        secret.caller_mark(self.scope.as_str(), &parts)
    }
}

/// Identifies the client of a request. `None` refuses the request.
pub trait Identify: Send + Sync + 'static {
    /// The identity, from what an authenticating layer put into the request's extensions. Never from a header
    /// that a client can choose.
    fn identify(&self, request: &Parts) -> Option<Identity>;
}

impl<F> Identify for F
where
    F: Fn(&Parts) -> Option<Identity> + Send + Sync + 'static,
{
    fn identify(&self, request: &Parts) -> Option<Identity> {
        self(request)
    }
}
