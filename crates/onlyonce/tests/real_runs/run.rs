//! One run: clients, crashes, an operator; then calm, and questions in the calm.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use onlyonce::{Policy, engine::Seen};
use onlyonce_core::{
    Record, RecordId, State,
    machine::{Grounds, Resolution},
};
use onlyonce_store::Store;
use onlyonce_testkit::faulty_store::FaultPlan;
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    edges::Edge,
    history::Process,
    node::{Node, Told},
    rest::Prober,
    rng::Rng,
    setup::{Ask, CALLERS, KEYS, NODES, Setup},
    tape::{Tape, What},
    witnessed::Witnessed,
};

/// Clients at once, and for how long they have wishes.
const CLIENTS: u64 = 10;
const BUSY: Duration = Duration::from_secs(6);
const BUSY_IN_A_SOAK: Duration = Duration::from_secs(180);
/// How often a client tries one wish.
const TRIES: usize = 3;
/// Requests in a burst.
const BURST: usize = 8;
/// Between two crashes.
const CRASH_EVERY: Duration = Duration::from_millis(700);
/// How long a node stays away.
const AWAY: Duration = Duration::from_millis(100);
/// Between two rounds of the operator.
const OPERATOR_EVERY: Duration = Duration::from_millis(100);
/// Lines of the trace before a violation that a failure shows.
const SHOWN: usize = 60;

struct World {
    tape: Arc<Tape>,
    setup: Setup,
    stores: Vec<Arc<dyn Store>>,
    nodes: Mutex<Vec<Option<Node>>>,
}

fn policy() -> Policy {
    let millis = Duration::from_millis;
    Policy::builder()
        // Far from the longest time to connect, so that a busy machine does not make a node begin
        // at the very end of its lease.
        .lease(millis(1_200))
        .timeout(millis(700))
        .max_execution(millis(1_500))
        .completion_grace(millis(300))
        .wait_timeout(millis(400))
        .ttl(millis(700))
        .tombstone_ttl(millis(400))
        .max_body_size(256)
        .build()
}

/// Two nodes lose replies; the third is in health.
fn faults(node: usize) -> FaultPlan {
    if node == NODES - 1 {
        return FaultPlan::default();
    }
    FaultPlan {
        before_per_mille: 20,
        after_per_mille: 50,
        lost_per_mille: 30,
        late_per_mille: 20,
        slow_per_mille: 100,
        delay: Duration::from_millis(40),
        peek_per_mille: 500,
    }
}

pub async fn run(name: &str, stores: Vec<Arc<dyn Store>>) {
    let began = Instant::now();
    let world = Arc::new(World {
        tape: Arc::new(Tape::new()),
        setup: Setup::of(policy(), stores[0].secret().clone()),
        stores,
        nodes: Mutex::new((0..NODES).map(|_| None).collect()),
    });
    for node in 0..NODES {
        world.start(node, 0).await;
    }
    let mut others = JoinSet::new();
    others.spawn(crash(world.clone()));
    others.spawn(operate(world.clone()));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(client(world.clone(), Rng::new(number)));
    }
    while let Some(done) = clients.join_next().await {
        done.expect("a client comes to its end");
    }
    others.abort_all();
    while let Some(ended) = others.join_next().await {
        assert!(ended.is_err_and(|end| end.is_cancelled()), "they go on");
    }
    world.calm().await;
    let asked = world.probe().await;
    world.end(name, asked, began).await;
}

impl World {
    async fn start(&self, node: usize, life: u32) {
        let store = Witnessed {
            store: self.stores[node].clone(),
            tape: self.tape.clone(),
            process: Process { node, life },
            outside: Handle::current(),
        };
        let seed = u64::from(life) * 7 + node as u64;
        let started = Node::start(store, self.setup.policy.clone(), faults(node), seed).await;
        self.nodes.lock()[node] = Some(started);
    }

    /// Asks a node, and says what it was told. `None`: hung up, or the node died or is not there.
    async fn ask(&self, node: usize, ask: Ask, patience: Option<Duration>) -> Option<Told> {
        let (number, mut task) = {
            let nodes = self.nodes.lock();
            nodes[node].as_ref()?.call(ask)
        };
        let told = match patience {
            None => (&mut task).await,
            Some(patience) => match tokio::time::timeout(patience, &mut task).await {
                Ok(told) => told,
                Err(_) => {
                    task.abort();
                    (&mut task).await
                }
            },
        };
        if told.is_err() {
            self.tape.saw(What::Gone { number });
        }
        told.ok().flatten()
    }

    async fn held(&self, id: RecordId) -> Option<Record> {
        let reply = self.stores[0].lookup(id).await;
        let reply = reply.expect("the real store answers");
        self.tape.heard(reply.now);
        reply.value
    }

    /// All faults end, all nodes run, and everything comes to its end.
    async fn calm(&self) {
        for node in 0..NODES {
            let away = self.nodes.lock()[node].is_none();
            if away {
                self.start(node, u32::MAX).await;
            }
            self.nodes.lock()[node].as_ref().expect("it runs").heal();
        }
        let policy = &self.setup.policy;
        sleep(policy.max_execution + policy.lease / 2).await;
        for id in self.setup.ids() {
            let end = Instant::now() + 2 * policy.lease;
            while self
                .held(id)
                .await
                .is_some_and(|r| r.state == State::InProgress)
                && Instant::now() < end
            {
                sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// In the calm, on every node: what others ask changes nothing, and whoever asks again gets the
    /// durable answer. Returns how many questions there were.
    async fn probe(&self) -> usize {
        // Something to ask about.
        for key in 0..KEYS {
            let ask = Ask {
                caller: key % CALLERS,
                key,
                variant: 0,
                spelling: 0,
            };
            self.ask(0, ask, None).await;
        }
        let mut asked = 0;
        for prober in [Prober::Stranger, Prober::Owner] {
            for id in self.setup.ids() {
                for node in 0..NODES {
                    asked += usize::from(self.probe_as(prober, id, node).await);
                }
            }
        }
        asked
    }

    async fn probe_as(&self, prober: Prober, id: RecordId, node: usize) -> bool {
        let Some(record) = self.held(id).await.filter(|record| prober.asks(record)) else {
            return false;
        };
        let Ok(Some(owner)) = self.setup.owner(&record) else {
            return false;
        };
        let told = self.ask(node, prober.ask(owner), None).await;
        // What an old attempt or a worker wrote meanwhile is another record to ask about.
        let expected = Some(prober.expects(&record));
        if self.held(id).await.as_ref() == Some(&record) && told != expected {
            let what = format!("2, 10: {prober:?} of {id} was told {told:?}, not {expected:?}");
            self.tape.saw(What::Wrong(what));
        }
        true
    }

    async fn end(&self, name: &str, asked: usize, began: Instant) {
        for node in self.nodes.lock().iter_mut().flatten() {
            node.rest();
        }
        // Until what the loops had begun has been seen.
        sleep(Duration::from_millis(300)).await;
        let mut held = BTreeMap::new();
        for id in self.setup.ids() {
            held.insert(id, self.held(id).await);
        }
        let seen = self.tape.length();
        let setup = Setup::of(self.setup.policy.clone(), self.stores[0].secret().clone());
        let mut history = self.tape.judge(setup);
        history.is_over(|id| held.get(&id).cloned().flatten());
        let broken = history.broken_promises();
        for broken in broken {
            history.violated(format!("promise: {broken}"));
        }
        let started = history.trials.values().filter(|t| t.started_at.is_some());
        eprintln!(
            "{name}: {seen} events, {} calls, {} attempts of which {} executed, {} nodes died, \
             {asked} questions in the calm, {} violations, {:.1} s",
            history.calls.len(),
            history.trials.len(),
            started.count(),
            history.dead.len(),
            history.violations.len(),
            began.elapsed().as_secs_f64(),
        );
        // The first violation is the cause; what follows may be its consequence.
        let first = history
            .trace
            .iter()
            .position(|line| line.contains("VIOLATION"));
        let first = first.unwrap_or_default();
        assert!(
            history.violations.is_empty(),
            "{}\n{}",
            history.trace[first.saturating_sub(SHOWN)..=first].join("\n"),
            history.violations.join("\n")
        );
        for (edge, count) in history.hits.table().filter(|(_, count)| *count > 0) {
            println!("{name} {count:>6}  {edge}");
        }
        // A run in which nothing happened proves nothing.
        let count =
            |edges: &[Edge]| -> u64 { edges.iter().map(|edge| history.hits.count(*edge)).sum() };
        for edges in [
            [Edge::Reserved].as_slice(),
            &[Edge::Again],
            &[Edge::Completed2xx],
            &[Edge::Replayed, Edge::Waited],
            &[Edge::Renewed],
            &[
                Edge::MismatchC,
                Edge::MismatchI,
                Edge::MismatchU,
                Edge::OtherCaller,
            ],
        ] {
            assert!(count(edges) > 0, "{name}: no {edges:?}");
        }
        assert!(!history.dead.is_empty(), "{name}: no node died");
        assert!(asked > 0, "{name}: nothing to ask about in the calm");
    }
}

/// A client with one wish after the other. It retries what it may, on any node, hangs up, and
/// changes its mind.
async fn client(world: Arc<World>, mut rng: Rng) {
    let soak = onlyonce_testkit::soak::is_on();
    let end = Instant::now() + if soak { BUSY_IN_A_SOAK } else { BUSY };
    while Instant::now() < end {
        let key = rng.index(KEYS);
        let caller = if rng.percent(80) {
            key % CALLERS
        } else {
            rng.index(CALLERS)
        };
        let mut ask = Ask {
            caller,
            key,
            variant: usize::from(rng.percent(12)),
            spelling: rng.index(2),
        };
        if rng.percent(15) {
            burst(&world, ask, &mut rng).await;
        }
        for _ in 0..TRIES {
            let patience = rng
                .percent(10)
                .then(|| Duration::from_millis(rng.between(1, 150)));
            let told = world.ask(rng.index(NODES), ask, patience).await;
            let again = match &told {
                None => true,
                Some((_, Some(code))) => matches!(
                    code.as_str(),
                    "idempotency_key_in_progress"
                        | "idempotency_store_unavailable"
                        | "upstream_not_reached"
                ),
                Some((status, None)) => matches!(status, 429 | 500..),
            };
            if !again {
                break;
            }
            if rng.percent(10) {
                ask.variant = 1 - ask.variant;
            }
        }
        sleep(Duration::from_millis(rng.between(0, 60))).await;
    }
}

/// The same many times at once, on all nodes or on one.
async fn burst(world: &Arc<World>, ask: Ask, rng: &mut Rng) {
    let (first, spread) = (rng.index(NODES), rng.percent(50));
    let asks = (0..BURST).map(|number| {
        let node = if spread { first + number } else { first };
        world.ask(node % NODES, ask, None)
    });
    futures_util::future::join_all(asks).await;
}

/// One node after the other dies with everything that it has in hand, and comes back.
async fn crash(world: Arc<World>) {
    for life in 1.. {
        for node in 0..NODES {
            sleep(CRASH_EVERY).await;
            let died = world.nodes.lock()[node].take();
            if let Some(died) = died {
                world.tape.saw(What::Died(died.process));
                drop(died);
            }
            sleep(AWAY).await;
            world.start(node, life).await;
        }
    }
}

/// An operator who looks at the upstream before he settles what is unknown.
async fn operate(world: Arc<World>) {
    loop {
        sleep(OPERATOR_EVERY).await;
        for id in world.setup.ids() {
            let Some(record) = world.held(id).await else {
                continue;
            };
            if record.state != State::Unknown {
                continue;
            }
            let resolution = if world.tape.has_started(record.attempt_id) {
                let Some(word) = world.setup.word(&record, "operator") else {
                    continue;
                };
                world.tape.saw(What::Attested {
                    record: Box::new(record.clone()),
                    word: Arc::clone(&word),
                });
                Resolution::Completed(word)
            } else if record.last_error == Some(onlyonce_core::record::LastError::LeaseLapsed) {
                Resolution::FailedRetryable(Grounds::FORCED)
            } else {
                continue;
            };
            let engine = world.nodes.lock()[NODES - 1]
                .as_ref()
                .map(|node| node.engine.clone());
            if let Some(engine) = engine {
                // He is told why not; here nobody listens.
                let seen = Seen::Attempt(record.attempt_id);
                let _ = engine.resolve(id, seen, &resolution, "careful").await;
            }
        }
    }
}
