//! One node: the shipping engine and layer on a runtime of its own, so that it can die with all its
//! tasks at once, or stand still while the time goes on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use onlyonce::{
    Engine, EngineOptions, IdempotencyLayer, IdempotencyService, clock::Clock, engine::AttemptIds,
};
use onlyonce_core::Recipe;
use onlyonce_store::{Store, memory::MemoryStore};
use onlyonce_testkit::faulty_store::{FaultPlan, FaultyStore};
use parking_lot::Mutex;
use tokio::{runtime::Runtime, time::Instant};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    calls::Answer,
    edges::Edge,
    history::{History, Process},
    recorder::Recorder,
    setup::{self, Ask, ROUTE, STORE_TIMEOUT, Setup},
    upstream::Upstream,
};

/// What all nodes share.
#[derive(Clone)]
pub struct Shared {
    pub history: Arc<Mutex<History>>,
    pub store: Arc<MemoryStore>,
    pub jumped_at: Arc<AtomicU64>,
}

/// A node that is alive.
pub struct Node {
    pub process: Process,
    pub engine: Engine,
    pub runtime: Runtime,
    faulty: Arc<FaultyStore>,
    service: IdempotencyService<Upstream>,
    /// What it compares new requests by.
    recipe: Recipe,
    shared: Shared,
    boot: Arc<AtomicU64>,
    wall: Arc<AtomicU64>,
    /// How far the wall clock is ahead, in milliseconds.
    pub ahead: i64,
    born: u64,
    epoch: Instant,
    pub paused_until: Option<u64>,
    pub plan_until: u64,
    pub faulted: bool,
    /// The last moment at which something was wrong with it.
    pub disturbed_at: u64,
    /// When it last began to run: at its start, or after it stood still.
    pub running_since: u64,
}

/// How long a clock that jumped must be steady: longer than any denial waits.
const STEADY_FOR: Duration = Duration::from_secs(20);
/// Where wall clocks begin, so that they can be set back.
const WALL: u64 = 10_000_000;

impl Node {
    pub fn start(shared: &Shared, process: Process, now: u64, seed: u64, recipe: Recipe) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without drivers can be built");
        let recorder = Recorder {
            store: shared.store.clone(),
            history: shared.history.clone(),
            process,
        };
        let faulty = Arc::new(FaultyStore::new(Arc::new(recorder), healthy(seed), seed));
        let (boot, wall) = (
            Arc::new(AtomicU64::new(now)),
            Arc::new(AtomicU64::new(WALL + now)),
        );
        let options = EngineOptions {
            store_timeout: Duration::from_millis(STORE_TIMEOUT),
            clock: Clock::by_hands(boot.clone(), wall.clone()),
            attempt_ids: AttemptIds::seeded(seed),
            steady_for: STEADY_FOR,
            ..EngineOptions::default()
        };
        let store: Arc<dyn Store> = faulty.clone();
        let (engine, layer, epoch) = runtime.block_on(async {
            let engine = Engine::start(store, options);
            let layer = layer(shared, &engine, &recipe);
            let prepared = layer.prepare().await;
            prepared.expect("a healthy store keeps the recipe");
            (engine, layer, Instant::now())
        });
        Self {
            process,
            engine,
            runtime,
            faulty,
            service: layer.layer(upstream(shared, process)),
            recipe,
            shared: shared.clone(),
            boot,
            wall,
            ahead: 0,
            born: now,
            epoch,
            paused_until: None,
            plan_until: 0,
            faulted: false,
            disturbed_at: now,
            running_since: now,
        }
    }

    /// From now on new requests are compared by `recipe`. What runs goes on as it began, and the new recipe
    /// is kept in the store when it is first used.
    pub fn reload(&mut self, recipe: Recipe) {
        let layer = layer(&self.shared, &self.engine, &recipe);
        self.service = layer.layer(upstream(&self.shared, self.process));
        self.recipe = recipe;
    }

    pub fn is_paused(&self) -> bool {
        self.paused_until.is_some()
    }

    /// Whether nothing has been wrong with it since `then`.
    pub fn is_clean_since(&self, then: u64) -> bool {
        self.disturbed_at < then
    }

    /// The hardware's clocks go on whether or not the process does.
    pub fn set_clocks(&self, now: u64) {
        self.boot.store(now, Ordering::SeqCst);
        let wall = (WALL + now).saturating_add_signed(self.ahead);
        self.wall.store(wall, Ordering::SeqCst);
    }

    /// Runs everything that is due until `now`.
    pub fn run_until(&self, now: u64) {
        let target = self.epoch + Duration::from_millis(now - self.born);
        self.runtime
            .block_on(async { tokio::time::sleep_until(target).await });
    }

    /// Wakes up at `now`: whatever came due in the meantime is due all at once.
    pub fn resume(&mut self, now: u64) {
        self.paused_until = None;
        self.running_since = now;
        let target = self.epoch + Duration::from_millis(now - self.born);
        self.runtime.block_on(async {
            let missed = target.saturating_duration_since(Instant::now());
            tokio::time::advance(missed).await;
        });
    }

    pub fn fail_by(&mut self, plan: FaultPlan, until: u64) {
        self.faulty.set_plan(plan);
        self.faulted = true;
        self.plan_until = until;
    }

    pub fn heal(&mut self, seed: u64) {
        self.faulty.set_plan(healthy(seed));
        self.faulted = false;
    }

    /// A client asks; the task only watches for the client.
    pub fn call(&self, number: usize, ask: Ask, prefers: Option<u64>) -> tokio::task::AbortHandle {
        let mut service = self.service.clone();
        let (shared, recipe) = (self.shared.clone(), self.recipe.id());
        let request = Setup::request(ask, number, prefers);
        let task = self.runtime.spawn(async move {
            let response = service.call(request).await;
            let answer = match response {
                Ok(response) => Answer::read(response).await,
                Err(error) => {
                    let what = format!("8: the layer failed with {error}");
                    return shared.history.lock().violated(what);
                }
            };
            shared.history.lock().heard(number, &answer);
            let id = shared.history.lock().setup.id(ask);
            let record = shared.store.peek(id).map(|reply| reply.value);
            let is_foreign = record
                .as_ref()
                .is_some_and(|record| record.recipe != recipe);
            if answer.replayed && is_foreign {
                let mut history = shared.history.lock();
                history.hits.hit(Edge::ReplayedUnderItsRecipe);
            }
            shared.history.lock().answered(number, &answer, &[record]);
        });
        task.abort_handle()
    }
}

fn layer(shared: &Shared, engine: &Engine, recipe: &Recipe) -> IdempotencyLayer {
    let mut policy = shared.history.lock().setup.policy.clone();
    policy.recipe = recipe.clone();
    IdempotencyLayer::builder(engine.clone())
        .route(ROUTE)
        .policy(policy)
        .identify(setup::identify)
        .build()
}

fn upstream(shared: &Shared, process: Process) -> Upstream {
    Upstream {
        history: shared.history.clone(),
        store: shared.store.clone(),
        process,
        jumped_at: shared.jumped_at.clone(),
    }
}

/// Without faults. Half of the nodes stand beside their store, the others behind a network.
fn healthy(seed: u64) -> FaultPlan {
    FaultPlan {
        peek_per_mille: if seed.is_multiple_of(2) { 0 } else { 700 },
        slow_per_mille: 300,
        delay: Duration::from_millis(3),
        ..FaultPlan::default()
    }
}
