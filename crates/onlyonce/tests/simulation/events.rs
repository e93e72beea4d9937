//! What can happen between two slices of time.

use std::{sync::atomic::Ordering, time::Duration};

use onlyonce_store::Store;
use onlyonce_testkit::faulty_store::FaultPlan;

use crate::{
    calls::Call,
    edges::Edge,
    node::{Node, Shared},
    people,
    setup::{Ask, CALLERS, KEYS, NODES, SWEEP_EVERY},
    world::World,
};

/// Within so many milliseconds a node that is well has heard of the store's clock: each sweep asks for it.
const HEARD_OF_WITHIN: u64 = 2 * SWEEP_EVERY + 500;

impl World {
    /// One thing happens, and then some time passes.
    pub fn event(&mut self) -> bool {
        if self.later.percent(3) {
            self.reload();
        }
        match self.rng.between(0, 1_000) {
            0..560 => self.ask(None),
            560..660 => self.burst(),
            660..720 => self.hang_up(),
            720..745 => self.crash(),
            745..780 => self.pause(),
            780..850 => self.fail_one(),
            850..862 => self.fail_all(),
            862..880 => self.jump_wall(),
            880..900 => self.jump_store(),
            900..940 => self.on_some_node(people::resolve),
            940..960 => self.on_some_node(people::tidy),
            960..985 => self.on_some_node(people::webhook),
            _ => self.make_unreadable(),
        }
        let gap = match self.rng.between(0, 100) {
            0..40 => 1,
            40..80 => self.rng.between(1, 150),
            80..96 => self.rng.between(150, 900),
            _ => self.rng.between(900, 6_000),
        };
        self.pass(gap)
    }

    pub fn on_some_node(&mut self, act: fn(&Shared, &Node)) {
        let index = self.rng.index(NODES);
        if let Some(node) = self.nodes[index].as_ref().filter(|node| !node.is_paused()) {
            act(&self.shared, node);
        }
    }

    /// Some client asks some node, mostly what its key was used for before.
    fn ask(&mut self, key: Option<usize>) {
        let key = key.unwrap_or_else(|| self.rng.index(KEYS));
        let caller = if self.rng.percent(80) {
            key % CALLERS
        } else {
            self.rng.index(CALLERS)
        };
        let variant = usize::from(self.rng.percent(12));
        let ask = Ask {
            caller,
            key,
            variant,
            spelling: self.rng.index(2),
        };
        let index = self.rng.index(NODES);
        self.send(index, ask);
    }

    pub fn send(&mut self, index: usize, ask: Ask) {
        let prefers = self.rng.percent(5).then(|| self.rng.between(0, 2));
        let Some(node) = &self.nodes[index] else {
            return;
        };
        let mut history = self.shared.history.lock();
        let number = history.calls.len();
        history.say(&format!("call {number} to {index}: {ask:?}"));
        let met = self
            .shared
            .store
            .peek(history.setup.id(ask))
            .map(|reply| reply.value);
        history.sent(number, ask);
        let epoch = history.epoch(history.setup.id(ask));
        history.calls.push(Call {
            ask,
            process: node.process,
            arrived: self.now,
            met,
            epoch,
            answered: false,
            told: None,
            gone: false,
            attempt: None,
        });
        drop(history);
        self.pending.push((number, node.call(number, ask, prefers)));
    }

    fn burst(&mut self) {
        let key = self.rng.index(KEYS);
        let many = self.rng.between(2, 6);
        (0..many).for_each(|_| self.ask(Some(key)));
    }

    fn hang_up(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let (number, task) = self.pending.swap_remove(self.rng.index(self.pending.len()));
        task.abort();
        let mut history = self.shared.history.lock();
        history.say(&format!("call {number} hangs up"));
        history.calls[number].gone = true;
        history.left(number);
        let attempt = history.calls[number].attempt;
        let runs = attempt
            .and_then(|attempt| history.trials.get(&attempt))
            .is_some_and(|trial| trial.settled.is_none());
        if runs {
            history.hits.hit(Edge::HungUp);
        }
    }

    fn crash(&mut self) {
        let index = self.rng.index(NODES);
        let Some(node) = self.nodes[index].take() else {
            return;
        };
        self.say(&format!("node {index} dies"));
        let mut history = self.shared.history.lock();
        history.dead.insert(node.process);
        for number in 0..history.calls.len() {
            let call = &mut history.calls[number];
            if call.process == node.process && !call.gone {
                call.gone = true;
                if !call.answered {
                    history.left(number);
                }
            }
        }
        drop(history);
        // All its tasks end here, at whatever await they are.
        drop(node);
        self.lives[index] += 1;
        self.restart_at[index] = self.now + self.rng.between(1, 3_000);
    }

    fn reload(&mut self) {
        let (index, recipe) = (self.later.index(NODES), self.recipe());
        let is_mixed = self.shared.history.lock().setup.recipes.len() > 1;
        let Some(node) = self.nodes[index].as_mut().filter(|_| is_mixed) else {
            return;
        };
        node.reload(recipe);
        self.say(&format!("node {index} reads its configuration again"));
    }

    fn pause(&mut self) {
        let index = self.rng.index(NODES);
        // Now and then for longer than a settled key and its tombstone live.
        let millis = match self.rng.percent(35) {
            true => self.rng.between(6_500, 20_000),
            false => self.rng.between(200, 6_500),
        };
        let Some(node) = &mut self.nodes[index] else {
            return;
        };
        node.paused_until = Some(self.now + millis);
        node.disturbed_at = node.disturbed_at.max(self.now);
        self.say(&format!("node {index} stands still for {millis}"));
    }

    fn fail_one(&mut self) {
        let (index, millis) = (self.rng.index(NODES), self.rng.between(50, 3_000));
        let plan = self.plan();
        self.fail(index, plan, millis);
    }

    fn fail_all(&mut self) {
        let millis = self.rng.between(50, 2_500);
        let down = FaultPlan {
            before_per_mille: 1_000,
            ..FaultPlan::default()
        };
        (0..NODES).for_each(|index| self.fail(index, down, millis));
    }

    fn fail(&mut self, index: usize, plan: FaultPlan, millis: u64) {
        let Some(node) = &mut self.nodes[index] else {
            return;
        };
        node.fail_by(plan, self.now + millis);
        node.disturbed_at = node.disturbed_at.max(self.now);
        self.say(&format!("store of {index} fails for {millis}: {plan:?}"));
    }

    fn plan(&mut self) -> FaultPlan {
        let often = self.rng.pick(&[60, 250, 700]);
        let mut plan = FaultPlan {
            slow_per_mille: self.rng.pick(&[0, 200, 600]),
            delay: Duration::from_millis(self.rng.pick(&[10, 100, 350, 900, 1_800])),
            peek_per_mille: self.rng.pick(&[0, 500]),
            ..FaultPlan::default()
        };
        match self.rng.index(5) {
            0 => plan.before_per_mille = often,
            1 => plan.after_per_mille = often,
            2 => plan.lost_per_mille = often,
            3 => plan.late_per_mille = often,
            _ => {
                (
                    plan.before_per_mille,
                    plan.after_per_mille,
                    plan.late_per_mille,
                ) = (80, 80, 80)
            }
        }
        plan
    }

    fn jump_wall(&mut self) {
        let (index, ahead) = (
            self.rng.index(NODES),
            self.rng
                .pick(&[-1_200_000, -9_000, -500, 700, 20_000, 1_200_000]),
        );
        let Some(node) = &mut self.nodes[index] else {
            return;
        };
        node.ahead += ahead;
        node.disturbed_at = node.disturbed_at.max(self.now);
        self.say(&format!("wall clock of {index} jumps by {ahead}"));
        self.set_clocks();
    }

    fn jump_store(&mut self) {
        let ahead = self.rng.pick(&[
            -1_200_000, -30_000, -4_000, 900, 2_500, 9_000, 25_000, 1_200_000, 90_000_000,
        ]);
        if !self.shared.history.lock().setup.clocks_jump {
            return;
        }
        if ahead < 0 {
            self.set_back_at = self.now;
        } else if self.some_node_missed_the_set_back() {
            return;
        }
        self.store_ahead += ahead;
        self.shared.history.lock().jumped_at = self.now;
        self.say(&format!("store clock jumps by {ahead}"));
        self.shared.jumped_at.store(self.now, Ordering::SeqCst);
        for node in self.nodes.iter_mut().flatten() {
            node.disturbed_at = node.disturbed_at.max(self.now);
        }
        self.set_clocks();
    }

    /// Whether some node may not have heard of the store's clock since it was set back. If the clock were set
    /// right again now, that node would see no jump at all, and what was written in between would be older to
    /// it than it is. No rule of one node can find that out; docs/proof.md says so.
    fn some_node_missed_the_set_back(&self) -> bool {
        let since = self.set_back_at;
        let is_recent = self.now < since + HEARD_OF_WITHIN;
        let mut alive = self.nodes.iter().flatten();
        since > 0 && (is_recent || alive.any(|node| node.is_paused() || node.disturbed_at > since))
    }

    fn make_unreadable(&mut self) {
        let mut history = self.shared.history.lock();
        let ids = history.setup.ids();
        let id = ids[self.rng.index(ids.len())];
        history.unreadable = Some(id);
        history.say(&format!("{id} cannot be read"));
        self.readable_at = self.now + self.rng.between(50, 1_500);
    }
}
