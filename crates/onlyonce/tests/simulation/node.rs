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
use onlyonce_store::{Store, memory::MemoryStore};
use onlyonce_testkit::faulty_store::{FaultPlan, FaultyStore};
use parking_lot::Mutex;
use tokio::{runtime::Runtime, time::Instant};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    calls::Answer,
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
    pub fn start(shared: &Shared, process: Process, now: u64, seed: u64) -> Self {
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
        let policy = shared.history.lock().setup.policy.clone();
        let store: Arc<dyn Store> = faulty.clone();
        let (engine, layer, epoch) = runtime.block_on(async {
            let engine = Engine::start(store, options);
            let layer = IdempotencyLayer::builder(engine.clone())
                .route(ROUTE)
                .policy(policy)
                .identify(setup::identify)
                .build();
            let prepared = layer.prepare().await;
            prepared.expect("a healthy store keeps the recipe");
            (engine, layer, Instant::now())
        });
        let upstream = Upstream {
            history: shared.history.clone(),
            store: shared.store.clone(),
            process,
            jumped_at: shared.jumped_at.clone(),
        };
        Self {
            process,
            engine,
            runtime,
            faulty,
            service: layer.layer(upstream),
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
        let shared = self.shared.clone();
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
            shared.history.lock().answered(number, &answer, &[record]);
        });
        task.abort_handle()
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
