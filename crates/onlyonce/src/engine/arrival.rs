//! A request that has arrived whole, in the form in which it is compared and reserved.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::{HeaderMap, Method};
use onlyonce_core::{
    AttemptId, CallerMark, Fingerprint, Key, Recipe, RecipeId, Record, RecordId, RequestView,
    Scope, ScopeHasher, machine::Request,
};

use super::Engine;
use crate::limits::Client;

/// The names of the usual methods, shared by all records.
static USUAL: LazyLock<[(Method, Arc<str>); 3]> = LazyLock::new(|| {
    [Method::POST, Method::PUT, Method::PATCH].map(|method| {
        let name = Arc::from(method.as_str());
        (method, name)
    })
});

fn name_of(method: &Method) -> Arc<str> {
    let usual = USUAL.iter().find(|(usual, _)| usual == method);
    usual.map_or_else(|| Arc::from(method.as_str()), |(_, name)| name.clone())
}

/// A request with a key.
#[derive(Clone)]
pub struct Arrival {
    id: RecordId,
    hasher: ScopeHasher,
    scope: Scope,
    key: Key,
    caller: Option<CallerMark>,
    route: Arc<str>,
    method: Arc<str>,
    target: Arc<str>,
    headers: HeaderMap,
    body: Bytes,
    client: Client,
    too_old: bool,
    /// Fingerprints already made: nearly always one.
    fingerprints: Vec<(RecipeId, Fingerprint)>,
}

impl std::fmt::Debug for Arrival {
    /// Neither key nor headers nor body.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrival")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Arrival {
    /// A request for `key` in `scope`. `headers` and `body` are looked at only to compare requests.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is a different thing that a request has"
    )]
    pub fn new(
        engine: &Engine,
        scope: Scope,
        key: Key,
        caller: Option<CallerMark>,
        route: Arc<str>,
        method: &Method,
        target: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Self {
        Self {
            client: Client::Marked(caller),
            too_old: false,
            id: engine.secret().record_id(scope.as_str(), &key),
            hasher: engine.derived(&scope).hasher,
            scope,
            key,
            caller,
            route,
            method: name_of(method),
            target: Arc::from(target),
            headers,
            body,
            fingerprints: Vec::with_capacity(1),
        }
    }

    /// The same request, from a client that has a name.
    #[must_use]
    pub fn from_client(self, client: Client) -> Self {
        Self { client, ..self }
    }

    /// The same request, which may be too old to bring a new key.
    #[must_use]
    pub fn made_too_long_ago(self, too_old: bool) -> Self {
        Self { too_old, ..self }
    }

    /// Whose share of what is limited it takes.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn is_too_old(&self) -> bool {
        self.too_old
    }

    /// Among whose keys it is.
    pub(super) fn whose(&self) -> (&Scope, Option<CallerMark>) {
        (&self.scope, self.caller)
    }

    /// The hash of scope and key.
    pub fn id(&self) -> RecordId {
        self.id
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The request's headers, which are not needed any more once it may be sent.
    pub(crate) fn take_headers(&mut self) -> HeaderMap {
        std::mem::take(&mut self.headers)
    }

    /// Whether `record`, found under this request's id, really is of its scope and key.
    pub(crate) fn is_about(&self, record: &Record) -> bool {
        record.scope == self.scope && record.key == self.key
    }

    /// The machine's view of this request under `recipe`.
    pub(crate) fn request(&mut self, attempt_id: AttemptId, recipe: &Recipe) -> Request {
        Request {
            id: self.id,
            scope: self.scope.clone(),
            key: self.key.clone(),
            fingerprint: self.fingerprint(recipe),
            recipe: recipe.id(),
            caller: self.caller,
            attempt_id,
            route: self.route.clone(),
            method: self.method.clone(),
            path: self.target.clone(),
        }
    }

    fn fingerprint(&mut self, recipe: &Recipe) -> Fingerprint {
        let known = self.fingerprints.iter().find(|(id, _)| *id == recipe.id());
        if let Some((_, fingerprint)) = known {
            return *fingerprint;
        }
        let view = RequestView {
            method: &self.method,
            target: &self.target,
            headers: &self.headers,
            body: &self.body,
        };
        let fingerprint = self.hasher.fingerprint(recipe, &view);
        self.fingerprints.push((recipe.id(), fingerprint));
        fingerprint
    }
}
