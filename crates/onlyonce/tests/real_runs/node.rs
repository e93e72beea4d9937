//! One node: the shipping engine, layer and workers on a runtime of its own, so that it can die with
//! all its tasks at once.

use std::{pin::Pin, sync::Arc, task::Poll, time::Duration};

use http::{Request, Response};
use http_body_util::BodyExt;
use onlyonce::{
    Body, BoxError, DispatchGuard, Engine, EngineOptions, IdempotencyLayer, IdempotencyService,
    NotSent, Pace, Policy, Workers,
};
use onlyonce_store::Store;
use onlyonce_testkit::faulty_store::{FaultPlan, FaultyStore};
use parking_lot::Mutex;
use tokio::{runtime::Runtime, task::JoinHandle};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    calls::Answer,
    history::Process,
    rng::Rng,
    script::{End, Script, pause, token},
    setup::{self, Ask, CallId, ROUTE, STORE_TIMEOUT, Setup, variant_in},
    tape::{Tape, What},
    witnessed::Witnessed,
};

/// The upstream's times are those of the simulation, divided by this.
const HASTE: u64 = 8;
/// How often a node tries to start.
const STARTS: usize = 20;

/// Status and problem code of an answer.
pub type Told = (u16, Option<String>);

/// A node that is alive.
pub struct Node {
    pub process: Process,
    pub engine: Engine,
    service: IdempotencyService<Upstream>,
    tape: Arc<Tape>,
    faulty: Arc<FaultyStore>,
    workers: Option<Workers>,
    body: Mortal,
}

/// A runtime whose tasks all end when it is dropped, and nobody waits for that.
struct Mortal(Option<Runtime>);

impl Mortal {
    fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let runtime = self.0.as_ref().expect("taken only when it is dropped");
        runtime.spawn(future)
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Node {
    pub async fn start(store: Witnessed, policy: Policy, plan: FaultPlan, seed: u64) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime for a node");
        let body = Mortal(Some(runtime));
        let (process, tape) = (store.process, store.tape.clone());
        let faulty = Arc::new(FaultyStore::new(
            Arc::new(store),
            FaultPlan::default(),
            seed,
        ));
        let shared: Arc<dyn Store> = faulty.clone();
        let started = body.spawn(async move {
            let options = EngineOptions {
                store_timeout: Duration::from_millis(STORE_TIMEOUT),
                ..EngineOptions::default()
            };
            let engine = Engine::start(shared, options);
            let layer = layer(&engine, &policy).await;
            let pace = Pace {
                sweep_every: Duration::from_millis(200),
                reap_every: Duration::from_millis(300),
                ..Pace::default()
            };
            let workers = Workers::start(&engine, pace);
            (engine, layer, workers)
        });
        let (engine, layer, workers) = started.await.expect("a node that starts");
        faulty.set_plan(plan);
        let upstream = Upstream {
            tape: tape.clone(),
            process,
            rng: Arc::new(Mutex::new(Rng::new(seed))),
        };
        Self {
            process,
            engine,
            service: layer.layer(upstream),
            tape,
            faulty,
            workers: Some(workers),
            body,
        }
    }

    /// From now on its store fails no more.
    pub fn heal(&self) {
        self.faulty.set_plan(FaultPlan::default());
    }

    /// Ends its loops.
    pub fn rest(&mut self) {
        self.workers = None;
    }

    /// A client asks. The task ends with status and code of the answer; or with the node.
    pub fn call(&self, ask: Ask) -> (usize, JoinHandle<Option<Told>>) {
        let number = self.tape.called(ask, self.process);
        let (mut service, tape) = (self.service.clone(), self.tape.clone());
        let request = Setup::request(ask, number, None);
        let task = self.body.spawn(async move {
            match service.call(request).await {
                Ok(response) => {
                    let answer = Answer::read(response).await;
                    let told = (answer.status.as_u16(), answer.code.clone());
                    tape.saw(What::Answered { number, answer });
                    Some(told)
                }
                Err(error) => {
                    let what = format!("8: the layer failed with {error}");
                    tape.saw(What::Wrong(what));
                    None
                }
            }
        });
        (number, task)
    }
}

/// A real store may be slow for once, and then the engine does not wait for it.
async fn layer(engine: &Engine, policy: &Policy) -> IdempotencyLayer {
    for _ in 0..STARTS {
        let layer = IdempotencyLayer::builder(engine.clone())
            .route(ROUTE)
            .policy(policy.clone())
            .identify(setup::identify)
            .build();
        if layer.prepare().await.is_ok() {
            return layer;
        }
    }
    panic!("a healthy store keeps the recipe, in {STARTS} tries");
}

/// The upstream as one process reaches it.
#[derive(Clone)]
struct Upstream {
    tape: Arc<Tape>,
    process: Process,
    rng: Arc<Mutex<Rng>>,
}

impl Service<Request<Body>> for Upstream {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(serve(self.clone(), request))
    }
}

async fn serve(upstream: Upstream, request: Request<Body>) -> Result<Response<Body>, BoxError> {
    let tape = &upstream.tape;
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let Some((id, attempt)) = token(&parts.headers) else {
        let what = format!("14: {:?} let a request through", upstream.process);
        tape.saw(What::Wrong(what));
        return Err("no token".into());
    };
    let script = Script::draw(&mut upstream.rng.lock());
    let call = parts.extensions.get::<CallId>().map(|call| call.0);
    let variant = variant_in(&body);
    tape.saw(What::Asked {
        attempt,
        call,
        variant,
    });
    pause(script.connect / HASTE).await;
    if script.end == End::Refused {
        return Err(NotSent::new("connection refused").into());
    }
    if let Some(guard) = parts.extensions.get::<DispatchGuard>() {
        guard.check().map_err(NotSent::new)?;
    }
    tape.saw(What::Started { attempt, id });
    pause(script.work / HASTE).await;
    let mark = crate::script::mark(attempt, call.and_then(|call| tape.ask_of(call)));
    let (response, given) = script.respond(attempt, &mark)?;
    if let Some(body) = given {
        tape.saw(What::Given {
            attempt,
            status: script.status()?,
            declared: script.declared,
            body,
        });
    }
    Ok(response)
}
