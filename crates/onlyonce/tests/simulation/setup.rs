//! What is the same for every node of one seed: the policy, who the callers are, and what they ask.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header, request::Parts};
use onlyonce::{Body, Identity, Policy};
use onlyonce_core::{
    CallerMark, Fingerprint, Key, Recipe, Record, RecordId, RequestView, Scope, Secret,
    StoredResponse,
    fingerprint::{BodyMode, Pointer},
    policy::{AfterExpiry, On5xx, OnInFlight, ReconcilePolicy},
};

use crate::rng::Rng;

pub const NODES: usize = 3;
pub const CALLERS: usize = 3;
pub const KEYS: usize = 5;
pub const VARIANTS: usize = 2;
/// Keys from this one on are in the scope that all callers share.
const FIRST_SHARED: usize = 3;
/// How long the engine waits for one store call, and how often the loops run, in milliseconds.
pub const STORE_TIMEOUT: u64 = 400;
pub const SWEEP_EVERY: u64 = 500;
pub const REAP_EVERY: u64 = 2_000;
pub const ROUTE: &str = "pay";
const PATH: &str = "/pay";

/// One request as a client means it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    pub caller: usize,
    pub key: usize,
    /// What is asked for: another variant is another operation.
    pub variant: usize,
    /// How it is written down: this makes no difference.
    pub spelling: usize,
}

/// Which call a request belongs to; survives the layer.
#[derive(Clone, Copy, Debug)]
pub struct CallId(pub usize);

#[derive(Clone, Copy)]
struct Who(Ask);

/// Everything that is fixed for one seed.
pub struct Setup {
    pub policy: Policy,
    pub secret: Secret,
    /// Whether the store's clock jumps. Where it does, little expires.
    pub clocks_jump: bool,
    /// What nodes compare requests by: one recipe, or several at the same time.
    pub recipes: Vec<Recipe>,
    known: Vec<(RecordId, Ask, Fingerprint, Option<CallerMark>)>,
}

impl Setup {
    /// `is_mixed`: programs of two releases and of two configurations run at once.
    pub fn new(rng: &mut Rng, is_mixed: bool) -> Self {
        let mut bytes = [0; 32];
        bytes.fill_with(|| rng.number().to_be_bytes()[0]);
        let clocks_jump = rng.percent(50);
        let mut setup = Self::of(policy(rng), Secret::from_bytes(bytes));
        setup.clocks_jump = clocks_jump;
        if is_mixed {
            setup.compares_by(recipes());
        }
        setup
    }

    /// With a given policy, and the secret of a given store.
    pub fn of(policy: Policy, secret: Secret) -> Self {
        let recipe = policy.recipe.clone();
        let mut setup = Self {
            policy,
            secret,
            clocks_jump: false,
            recipes: Vec::new(),
            known: Vec::new(),
        };
        setup.compares_by(vec![recipe]);
        setup
    }

    fn compares_by(&mut self, recipes: Vec<Recipe>) {
        self.known.clear();
        for key in 0..KEYS {
            for (caller, variant) in (0..CALLERS).flat_map(|c| (0..VARIANTS).map(move |v| (c, v))) {
                let ask = Ask {
                    caller,
                    key,
                    variant,
                    spelling: 0,
                };
                let (id, mark) = (self.id(ask), identity(ask).mark(&self.secret));
                for recipe in &recipes {
                    let fingerprint = self.fingerprint(ask, recipe);
                    self.known.push((id, ask, fingerprint, mark));
                }
            }
        }
        self.recipes = recipes;
    }

    /// Every record that can come to be.
    pub fn ids(&self) -> Vec<RecordId> {
        let mut ids: Vec<RecordId> = self.known.iter().map(|(id, ..)| *id).collect();
        ids.sort();
        ids.dedup();
        ids
    }

    pub fn id(&self, ask: Ask) -> RecordId {
        self.secret.record_id(scope(ask).as_str(), &self.key(ask))
    }

    fn key(&self, ask: Ask) -> Key {
        Key::parse(key_text(ask).as_bytes(), &self.policy.key_rules).expect("the key is valid")
    }

    fn fingerprint(&self, ask: Ask, recipe: &Recipe) -> Fingerprint {
        let mut headers = HeaderMap::new();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        let body = body(ask);
        let view = RequestView {
            method: "POST",
            authority: None,
            target: PATH,
            headers: &headers,
            body: body.as_bytes(),
        };
        self.secret
            .scope_hasher(scope(ask).as_str())
            .fingerprint(recipe, &view)
    }

    /// The request that `record` remembers, where it remembers one. `Err` if it remembers one that
    /// nobody made: then some node made another fingerprint of the same bytes.
    pub fn owner(&self, record: &Record) -> Result<Option<Ask>, String> {
        let Some(fingerprint) = record.fingerprint else {
            return Ok(None);
        };
        self.known
            .iter()
            .find(|(id, _, known, mark)| {
                *id == record.id && *known == fingerprint && *mark == record.caller
            })
            .map(|(_, ask, ..)| Some(*ask))
            .ok_or_else(|| format!("15: {} holds a fingerprint of no request", record.id))
    }

    /// An answer to the request that `record` remembers, in the words of `who`.
    pub fn word(&self, record: &Record, who: &str) -> Option<Arc<StoredResponse>> {
        let ask = self.owner(record).ok().flatten()?;
        let mark = format!("{who}/{}/{}/{}", ask.caller, ask.key, ask.variant);
        let mut response = StoredResponse::plain(StatusCode::OK, mark.clone());
        response
            .headers
            .insert("x-mark", HeaderValue::try_from(mark).ok()?);
        Some(Arc::new(response))
    }

    /// Whether `ask` is the request that `owner` made.
    pub fn same(owner: Ask, ask: Ask) -> bool {
        Ask { spelling: 0, ..ask } == owner
    }

    pub fn request(ask: Ask, call: usize, prefers: Option<u64>) -> Request<Body> {
        let mut request = Request::new(Body::from(bytes::Bytes::from(body(ask))));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = PATH.parse().expect("the path is valid");
        let headers = request.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        let key = HeaderValue::try_from(key_text(ask)).expect("the key is a header value");
        headers.insert("idempotency-key", key);
        if let Some(seconds) = prefers {
            let wait = HeaderValue::try_from(format!("wait={seconds}")).expect("it is a number");
            headers.insert("prefer", wait);
        }
        request.extensions_mut().insert(Who(ask));
        request.extensions_mut().insert(CallId(call));
        request
    }

    pub fn millis(duration: Duration) -> u64 {
        u64::try_from(duration.as_millis()).expect("it is short")
    }
}

/// What the layer is told about whose request it is.
pub fn identify(parts: &Parts) -> Option<Identity> {
    parts.extensions.get::<Who>().map(|who| identity(who.0))
}

pub fn is_shared(ask: Ask) -> bool {
    ask.key >= FIRST_SHARED
}

/// What an upstream reads from the body: the variant, however it is spelled.
pub fn variant_in(body: &[u8]) -> Option<usize> {
    (0..VARIANTS + 1).find(|variant| {
        let amount = format!("10{variant}");
        body.windows(amount.len())
            .any(|window| window == amount.as_bytes())
    })
}

fn identity(ask: Ask) -> Identity {
    let caller = format!("caller-{}", ask.caller);
    if is_shared(ask) {
        Identity::shared(Scope::global(), vec![caller.into_bytes()])
    } else {
        Identity::client(&caller)
    }
}

fn scope(ask: Ask) -> Scope {
    identity(ask).scope
}

fn key_text(ask: Ask) -> String {
    format!("order-{}-7f3a", ask.key)
}

fn body(ask: Ask) -> String {
    match ask.spelling {
        0 => format!(r#"{{"amount":10{},"to":"x"}}"#, ask.variant),
        _ => format!(r#"{{ "to": "x", "amount": 10{} }}"#, ask.variant),
    }
}

/// Today's recipe, that of the first releases, and that of another configuration. The same request is the
/// same under each.
fn recipes() -> Vec<Recipe> {
    let headers = || vec!["content-type".to_owned()];
    let fields = ["/amount", "/to"].map(|text| Pointer::parse(text).expect("it is one"));
    vec![
        Recipe::default(),
        Recipe::version_1(BodyMode::Json, Vec::new(), Vec::new(), headers()),
        Recipe::new(BodyMode::Json, fields.to_vec(), Vec::new(), headers()),
    ]
}

/// How long the provider may take to know of what was begun; longer than a clock is believed ahead.
pub const UPSTREAM_MAX: Duration = Duration::from_secs(9);

fn policy(rng: &mut Rng) -> Policy {
    let millis = Duration::from_millis;
    let reconcile = ReconcilePolicy {
        after: millis(1_500),
        attempts: 3,
        upstream_max_execution: Some(UPSTREAM_MAX),
        negative_gap: millis(rng.pick(&[0, 400])),
        asks: true,
    };
    // In this order, which the seeds are kept for.
    let mut policy = Policy::builder()
        .on_in_flight(rng.pick(&[
            OnInFlight::Wait,
            OnInFlight::Wait,
            OnInFlight::Reject,
            OnInFlight::Accept,
        ]))
        .on_5xx(rng.pick(&[On5xx::Retry, On5xx::Retry, On5xx::Store, On5xx::Unknown]))
        .after_expiry(rng.pick(&[AfterExpiry::New, AfterExpiry::New, AfterExpiry::Reject]));
    if rng.percent(60) {
        policy = policy.reconcile(reconcile);
    }
    policy
        .lease(millis(rng.pick(&[1_200, 3_000])))
        .timeout(millis(rng.pick(&[2_000, 4_500])))
        .max_execution(millis(8_000))
        .completion_grace(millis(700))
        .wait_timeout(millis(1_500))
        .ttl(millis(rng.pick(&[3_000, 12_000])))
        .tombstone_ttl(millis(rng.pick(&[2_000, 8_000])))
        .max_body_size(256)
        .build()
}
