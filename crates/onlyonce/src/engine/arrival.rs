//! A request that has arrived complete, in the form in which it is compared and reserved.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::{HeaderMap, Method, header};
use onlyonce_core::{
    AttemptId, CallerMark, Fingerprint, Key, Recipe, RecipeId, Record, RecordId, RequestView,
    Scope, ScopeHasher, Spelling,
    machine::Request,
    record::{MarkedBy, Notes},
};
use tokio::sync::Semaphore;

use super::Engine;
use crate::limits::{Client, Holder};

/// Bodies up to this size, in bytes, are hashed on the event loop.
const MAX_HASHED_HERE_BYTES: usize = 64 << 10;

/// How many large bodies are hashed at a time, leaving one core free if there are several.
static LARGE_AT_A_TIME: LazyLock<Semaphore> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism();
    Semaphore::new(cores.map_or(1, |cores| cores.get().saturating_sub(1).max(1)))
});

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

/// How a caller is marked if several callers share a scope.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marks {
    /// The mark for a new record.
    pub mark: Option<CallerMark>,
    /// How `mark` was made.
    pub marked_by: MarkedBy,
    /// The mark made the other way, to compare with records marked that way.
    pub other: Option<CallerMark>,
}

/// A request with a key.
#[derive(Clone)]
pub struct Arrival {
    id: RecordId,
    hasher: ScopeHasher,
    scope: Scope,
    key: Key,
    spelling: Spelling,
    marks: Marks,
    route: Arc<str>,
    method: Arc<str>,
    /// Host and port of the target, if it names them.
    authority: Option<Arc<str>>,
    target: Arc<str>,
    headers: HeaderMap,
    body: Bytes,
    client: Client,
    holder: Option<Holder>,
    executes_as: Option<Holder>,
    too_old: bool,
    /// Fingerprints computed so far, nearly always one.
    fingerprints: Vec<(RecipeId, Fingerprint)>,
}

impl std::fmt::Debug for Arrival {
    /// Shows neither key nor headers nor body.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrival")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Arrival {
    /// A request for `key` in `scope`. `headers` and `body` serve only to compare requests.
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
            marks: Marks {
                mark: caller,
                ..Marks::default()
            },
            holder: None,
            executes_as: None,
            too_old: false,
            id: engine.secret().record_id(scope.as_str(), &key),
            hasher: engine.derived(&scope).hasher,
            scope,
            key,
            spelling: Spelling::Literal,
            route,
            method: name_of(method),
            authority: None,
            target: Arc::from(target),
            headers,
            body,
            fingerprints: Vec::with_capacity(1),
        }
    }

    /// Sets the marks of the caller.
    #[must_use]
    pub fn by(self, marks: Marks) -> Self {
        let client = Client::Marked(marks.mark);
        Self {
            client,
            marks,
            ..self
        }
    }

    /// Sets how the header spells the key.
    #[must_use]
    pub fn spelled(self, spelling: Spelling) -> Self {
        Self { spelling, ..self }
    }

    /// Sets the host that the target names: `:authority`, or the absolute form.
    #[must_use]
    pub fn addressed_to(self, authority: Option<&str>) -> Self {
        let authority = authority.map(Arc::from);
        Self { authority, ..self }
    }

    /// Sets the client, if it has a name.
    #[must_use]
    pub fn from_client(self, client: Client) -> Self {
        Self { client, ..self }
    }

    /// Sets whose share of detached executions the request takes once nobody waits for it.
    #[must_use]
    pub fn executed_for(self, executes_as: Option<Holder>) -> Self {
        Self {
            executes_as,
            ..self
        }
    }

    /// Sets whose share of the body budget the body and the answer take.
    #[must_use]
    pub fn held_for(self, holder: Option<Holder>) -> Self {
        Self { holder, ..self }
    }

    /// Sets whether the request is too old to bring a new key.
    #[must_use]
    pub fn made_too_long_ago(self, too_old: bool) -> Self {
        Self { too_old, ..self }
    }

    /// The client whose limits the request counts against.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Whose share of detached executions the request takes.
    pub(crate) fn executes_as(&self) -> Option<&Holder> {
        self.executes_as.as_ref()
    }

    /// Whose share of the body budget the body and the answer take.
    pub(crate) fn holder(&self) -> Option<&Holder> {
        self.holder.as_ref()
    }

    /// The length of its body.
    pub(super) fn body_bytes(&self) -> usize {
        self.body.len()
    }

    pub(super) fn is_too_old(&self) -> bool {
        self.too_old
    }

    /// The scope, and the caller in it, that own the key.
    pub(super) fn whose(&self) -> (&Scope, Option<CallerMark>) {
        (&self.scope, self.marks.mark)
    }

    /// The namespace of the key.
    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The hash of scope and key.
    pub fn id(&self) -> RecordId {
        self.id
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Takes the request's headers, which are not needed here once the request may be sent.
    pub(crate) fn take_headers(&mut self) -> HeaderMap {
        std::mem::take(&mut self.headers)
    }

    /// Whether `record`, found under this request's id, really has its scope and key.
    pub(crate) fn is_about(&self, record: &Record) -> bool {
        record.is_of(&self.scope, &self.key)
    }

    /// The machine's view of this request under `recipe`.
    pub(crate) fn request(&mut self, attempt_id: AttemptId, recipe: &Recipe) -> Request {
        Request {
            id: self.id,
            scope: self.scope.clone(),
            key: self.key.clone(),
            fingerprint: self.fingerprint(recipe),
            recipe: recipe.id(),
            caller: self.marks.mark,
            other_mark: self.marks.other,
            attempt_id,
            route: self.route.clone(),
            method: self.method.clone(),
            path: self.target.clone(),
            notes: Notes {
                spelling: Some(self.spelling.clone()),
                marked_by: self.marks.marked_by,
                ..Notes::default()
            },
        }
    }

    /// Computes the fingerprint under `recipe` in advance and off the event loop, if it would take long
    /// enough to delay other requests.
    pub(crate) async fn fingerprinted(mut self, recipe: &Recipe) -> Self {
        // The size of an encoded body is not known before it is decoded.
        let is_encoded = self.headers.contains_key(header::CONTENT_ENCODING);
        if !is_encoded && self.body.len() <= MAX_HASHED_HERE_BYTES {
            return self;
        }
        // This many at a time leave a core to everybody else.
        let _turn = LARGE_AT_A_TIME.acquire().await;
        let (mut hashed, recipe) = (self.clone(), recipe.clone());
        let made = tokio::task::spawn_blocking(move || (recipe.id(), hashed.fingerprint(&recipe)));
        // If the task failed, the fingerprint is computed when it is needed.
        self.fingerprints.extend(made.await);
        self
    }

    fn fingerprint(&mut self, recipe: &Recipe) -> Fingerprint {
        let known = self.fingerprints.iter().find(|(id, _)| *id == recipe.id());
        if let Some((_, fingerprint)) = known {
            return *fingerprint;
        }
        let view = RequestView {
            method: &self.method,
            authority: self.authority.as_deref(),
            target: &self.target,
            headers: &self.headers,
            body: &self.body,
        };
        let fingerprint = self.hasher.fingerprint(recipe, &view);
        self.fingerprints.push((recipe.id(), fingerprint));
        fingerprint
    }
}
