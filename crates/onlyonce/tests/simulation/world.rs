//! The conductor: it lets time pass in slices, lets things happen between them, and after every
//! slice looks whether all that must hold still holds.

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU64, Ordering},
};

use onlyonce::worker::{reap, sweep};
use onlyonce_core::Recipe;
use onlyonce_store::{clock::StoreClock, memory::MemoryStore};
use onlyonce_testkit::promise::Event;
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use crate::{
    edges::Hits,
    history::{History, Process},
    node::{Node, Shared},
    people,
    recorder::SWEEPING,
    rng::Rng,
    setup::{NODES, REAP_EVERY, SWEEP_EVERY, Setup},
    watch::Watch,
};

/// Things that happen in one seed.
pub const EVENTS: usize = 220;
/// Where the store's clock begins.
const STORE_EPOCH: i64 = 1_700_000_000_000;

/// What one seed came to.
pub struct Outcome {
    pub hash: u64,
    pub hits: Hits,
    pub violations: Vec<String>,
    pub trace: Vec<String>,
}

/// Runs one seed to its end, or to its first violation.
pub fn simulate(seed: u64) -> Outcome {
    let mut world = World::new(seed);
    let sound =
        (0..EVENTS).all(|_| world.event()) && world.calm() && world.at_rest() && world.probe();
    let mut history = world.shared.history.lock();
    assert_eq!(
        sound,
        history.violations.is_empty(),
        "a violation stops the world"
    );
    if sound {
        let broken = history.broken_promises();
        let broken = broken.iter().map(|broken| format!("promise: {broken}"));
        history.violations.extend(broken);
    }
    Outcome {
        hash: history.hash,
        hits: history.hits.clone(),
        violations: std::mem::take(&mut history.violations),
        trace: std::mem::take(&mut history.trace),
    }
}

pub struct World {
    pub rng: Rng,
    /// Chances of which there were none when the first seeds were kept: those see the same world.
    pub later: Rng,
    pub now: u64,
    pub shared: Shared,
    pub nodes: Vec<Option<Node>>,
    pub restart_at: Vec<u64>,
    pub lives: Vec<u32>,
    store_hand: Arc<AtomicI64>,
    pub store_ahead: i64,
    /// When the store's clock was last set back.
    pub set_back_at: u64,
    pub readable_at: u64,
    pub pending: Vec<(usize, AbortHandle)>,
    next_sweep: u64,
    next_reap: u64,
    watch: Watch,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut later = Rng::new(!seed);
        let setup = Setup::new(&mut rng, later.percent(50));
        let store_hand = Arc::new(AtomicI64::new(STORE_EPOCH));
        let clock = StoreClock::by_hand(store_hand.clone());
        let store = Arc::new(MemoryStore::with(setup.secret.clone(), clock));
        let history = Arc::new(Mutex::new(History::new(setup, Rng::new(rng.number()))));
        let jumped_at = Arc::new(AtomicU64::new(0));
        let shared = Shared {
            history,
            store,
            jumped_at,
        };
        let mut world = Self {
            rng,
            later,
            now: 1,
            shared,
            nodes: (0..NODES).map(|_| None).collect(),
            restart_at: vec![0; NODES],
            lives: vec![0; NODES],
            store_hand,
            store_ahead: 0,
            set_back_at: 0,
            readable_at: 0,
            pending: Vec::new(),
            next_sweep: 0,
            next_reap: 0,
            watch: Watch::default(),
        };
        world.set_clocks();
        (0..NODES).for_each(|node| world.start(node));
        world
    }

    fn start(&mut self, node: usize) {
        let process = Process {
            node,
            life: self.lives[node],
        };
        self.say(&format!("node {node} starts"));
        let (seed, recipe) = (self.rng.number(), self.recipe());
        self.nodes[node] = Some(Node::start(&self.shared, process, self.now, seed, recipe));
    }

    /// One of those that nodes compare requests by.
    pub fn recipe(&mut self) -> Recipe {
        let recipes = &self.shared.history.lock().setup.recipes;
        recipes[self.later.index(recipes.len())].clone()
    }

    pub fn say(&self, line: &str) {
        self.shared.history.lock().say(line);
    }

    pub fn set_clocks(&mut self) {
        let hand = STORE_EPOCH + i64::try_from(self.now).expect("it is short") + self.store_ahead;
        self.store_hand.store(hand, Ordering::SeqCst);
        let mut history = self.shared.history.lock();
        history.now = self.now;
        history.store_now.0 = hand;
        history.latest.0 = history.latest.0.max(hand);
        self.nodes
            .iter()
            .flatten()
            .for_each(|node| node.set_clocks(self.now));
    }

    /// Lets `millis` pass. Says whether all is well.
    pub fn pass(&mut self, millis: u64) -> bool {
        let until = self.now + millis;
        while self.now < until {
            let slice = self.rng.pick(&[5, 20, 60, 120]).min(until - self.now);
            self.now += slice;
            self.set_clocks();
            self.wake_and_heal();
            self.work();
            let first = self.rng.index(NODES);
            for index in (0..NODES).map(|index| (first + index) % NODES) {
                if let Some(node) = self.nodes[index].as_ref().filter(|node| !node.is_paused()) {
                    node.run_until(self.now);
                }
            }
            {
                let calls = &self.shared.history.lock().calls;
                self.pending.retain(|(number, _)| {
                    let call = &calls[*number];
                    !call.answered && !call.gone
                });
            }
            if !self
                .watch
                .is_sound(self.now, &self.shared.history, &self.nodes)
            {
                return false;
            }
        }
        true
    }

    /// Ends whatever has had its time.
    fn wake_and_heal(&mut self) {
        let now = self.now;
        let mut history = self.shared.history.lock();
        if let Some(id) = history.unreadable {
            history.unread_at.insert(id, now);
            if self.readable_at <= now {
                history.unreadable = None;
            }
        }
        drop(history);
        for index in 0..NODES {
            match &mut self.nodes[index] {
                None if self.restart_at[index] <= now => self.start(index),
                None => {}
                Some(node) => {
                    if node.paused_until.is_some_and(|until| until <= now) {
                        node.resume(now);
                        node.disturbed_at = now;
                    }
                    if node.faulted && node.plan_until <= now {
                        node.heal(self.rng.number());
                        // Calls that were under way still suffer from the old plan.
                        node.disturbed_at = now + 2_500;
                    }
                    if node.faulted || node.is_paused() {
                        node.disturbed_at = node.disturbed_at.max(now);
                    }
                }
            }
        }
    }

    /// The background loops, on every node at once.
    fn work(&mut self) {
        let sweeps = self.next_sweep <= self.now;
        let reaps = self.next_reap <= self.now;
        let reaper = self.rng.index(NODES);
        for node in self.nodes.iter().flatten().filter(|node| !node.is_paused()) {
            if sweeps {
                let engine = node.engine.clone();
                node.runtime.spawn(SWEEPING.scope((), async move {
                    // The next run tries again.
                    let _ = engine.note_time().await;
                    let _ = sweep::run_once(&engine).await;
                }));
            }
            if reaps && node.process.node == reaper {
                let engine = node.engine.clone();
                node.runtime.spawn(async move {
                    let _ = reap::run_once(&engine).await;
                });
            }
        }
        if sweeps {
            self.next_sweep = self.now + SWEEP_EVERY;
        }
        if reaps {
            self.next_reap = self.now + REAP_EVERY;
            self.on_some_node(people::look);
        }
    }

    fn at_rest(&mut self) -> bool {
        self.shared.history.lock().happened(Event::AtRest);
        true
    }

    /// All faults end and all nodes run: then nothing may be left hanging.
    fn calm(&mut self) -> bool {
        self.say("calm");
        self.readable_at = self.now;
        self.restart_at.fill(self.now);
        for node in self.nodes.iter_mut().flatten() {
            node.plan_until = self.now;
            node.paused_until = node.paused_until.map(|_| self.now);
        }
        let policy = self.shared.history.lock().setup.policy.clone();
        let longest = policy.max_execution + policy.lease + policy.wait_timeout + policy.timeout;
        self.pass(Setup::millis(longest) + 5_000) && self.watch.is_over(&self.shared)
    }
}
