//! What can happen next, and what it does. Decisions come from the machine alone.

use onlyonce_core::{
    AttemptId, Policy, State, Timestamp,
    machine::{About, Negative, Reap, Source, Sweep, Write, apply},
    record::Evidence,
};

use super::{
    Bounds,
    engine::{self, UPSTREAM_MAX},
    world::{Asked, Content, End, Node, Note, Start, World},
};

/// What becomes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Heard,
    /// It happened, and nobody heard.
    LostAfter,
    /// It did not happen, and nobody heard.
    LostBefore,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Tick,
    /// A request arrives and is inserted, unless the key is there already.
    Arrive(usize, Content, Reply),
    /// The node takes its next step towards the store.
    Write(usize, Reply),
    AskAgain(usize),
    GiveUp(usize),
    /// The node sends, and the upstream does it or not.
    Dispatch(usize, bool),
    Heartbeat(usize),
    SeeAnswer(usize),
    LoseAnswer(usize),
    Crash(usize),
    /// The upstream is done with this start.
    Land(usize),
    Sweep,
    Reap,
    Look,
    Decide,
    Webhook(usize),
    UseKept,
}

pub(crate) fn actions(bounds: &Bounds, world: &World, all: &mut Vec<Action>) {
    let overdue = |start: &Start| !start.landed && start.at.plus(UPSTREAM_MAX) <= world.now;
    if world.now.0 < bounds.clock && !world.starts.iter().any(overdue) {
        all.push(Action::Tick);
    }
    for index in 0..world.nodes.len() {
        node_actions(bounds, world, index, all);
    }
    for (index, start) in world.starts.iter().enumerate() {
        if !start.landed {
            all.push(Action::Land(index));
        } else if bounds.reconciler && (start.takes || world.looks < bounds.looks) {
            // A denial is a look.
            all.push(Action::Webhook(index));
        }
    }
    all.push(Action::Sweep);
    if bounds.ttl.is_some() {
        all.push(Action::Reap);
    }
    if bounds.reconciler {
        all.extend([Action::Decide, Action::UseKept]);
        // Each look counts a revision, so without a bound the world would have no end.
        if world.looks < bounds.looks && world.look.is_none() {
            all.push(Action::Look);
        }
    }
}

fn node_actions(bounds: &Bounds, world: &World, index: usize, all: &mut Vec<Action>) {
    let node = &world.nodes[index];
    // A node that has written nothing yet loses nothing.
    let idle = matches!(node, Node::Idle | Node::Asking(..));
    if !idle && world.crashes < bounds.crashes {
        all.push(Action::Crash(index));
    }
    let may_lose = world.lost_replies < bounds.lost_replies;
    let replies = [Reply::Heard, Reply::LostAfter, Reply::LostBefore]
        .into_iter()
        .filter(|reply| *reply == Reply::Heard || may_lose);
    match node {
        Node::Idle => {
            // Idle nodes are alike, so the first of them takes the request.
            if world.nodes[..index].contains(&Node::Idle) {
                return;
            }
            for content in [0_u8, 1] {
                let sent = usize::from(content);
                if world.requests[sent] < bounds.requests[sent] {
                    let arrive = |reply| Action::Arrive(index, content, reply);
                    all.extend(replies.clone().map(arrive));
                }
            }
        }
        Node::Asking(..) | Node::Settling(..) => {
            all.extend(replies.map(|reply| Action::Write(index, reply)));
        }
        Node::Unsure(_) => all.extend([Action::AskAgain(index), Action::GiveUp(index)]),
        Node::Owing(_) => all.push(Action::Write(index, Reply::Heard)),
        Node::Reserved(..) => {
            all.extend([
                Action::Dispatch(index, true),
                Action::Dispatch(index, false),
            ]);
        }
        Node::Running(start, _) => {
            all.extend([Action::LoseAnswer(index), Action::Heartbeat(index)]);
            if world.starts[*start].landed {
                all.push(Action::SeeAnswer(index));
            }
        }
    }
}

/// `None` where nothing would happen.
pub(crate) fn step(policy: &Policy, before: &World, action: Action) -> Option<World> {
    let mut world = before.clone();
    world.last = Note::Nothing;
    match action {
        Action::Tick => world.now = Timestamp(world.now.0 + 1),
        Action::Arrive(index, content, reply) => {
            world.requests[usize::from(content)] += 1;
            let number: u8 = world.requests.iter().sum();
            // As far apart as random ids are.
            let attempt = AttemptId(u128::from(number) << 20);
            let asked = Asked {
                content,
                attempt,
                began: world.now,
            };
            world.nodes[index] = Node::Asking(asked, None);
            engine::write(&mut world, index, reply, policy)?;
        }
        Action::Write(index, reply) => engine::write(&mut world, index, reply, policy)?,
        Action::AskAgain(index) => {
            let Node::Unsure(asked) = world.nodes[index] else {
                return None;
            };
            engine::read(&mut world, index, asked, policy);
        }
        Action::GiveUp(index) => {
            let Node::Unsure(asked) = world.nodes[index] else {
                return None;
            };
            world.nodes[index] = Node::Owing(asked.attempt);
        }
        Action::Dispatch(index, takes) => engine::dispatch(&mut world, index, takes)?,
        Action::Heartbeat(index) => engine::heartbeat(&mut world, index, policy)?,
        Action::SeeAnswer(index) => {
            let Node::Running(start, _) = world.nodes[index] else {
                return None;
            };
            let end = if world.starts[start].takes {
                End::Answered
            } else {
                End::NothingDone
            };
            engine::finish(&mut world, index, end);
        }
        Action::LoseAnswer(index) => engine::finish(&mut world, index, End::NotSeen),
        Action::Crash(index) => {
            world.crashes += 1;
            world.nodes[index] = Node::Idle;
        }
        Action::Land(index) => world.starts[index].landed = true,
        Action::Sweep | Action::Reap => time_passes(&mut world, &action, policy)?,
        Action::Look | Action::Decide | Action::Webhook(_) | Action::UseKept => {
            provider_speaks(&mut world, &action, policy)?;
        }
    }
    world.sort_nodes();
    (world != *before).then_some(world)
}

/// The loops read and swap in one step; what comes of acting on an old reading is tried by nodes.
fn time_passes(world: &mut World, action: &Action, policy: &Policy) -> Option<()> {
    let row = world.row.clone()?;
    if *action == Action::Sweep {
        let sweep = Sweep { knows_route: true };
        let change = apply(Some(&row.0), &sweep, world.now, policy).swapped()?;
        world.swap(&row, change);
        return Some(());
    }
    match apply(Some(&row.0), &Reap, world.now, policy).write {
        Write::Stay | Write::Insert(_) => return None,
        Write::Swap(change) => {
            world.swap(&row, change);
        }
        Write::Delete => world.row = None,
    }
    Some(())
}

fn provider_speaks(world: &mut World, action: &Action, policy: &Policy) -> Option<()> {
    match *action {
        Action::Look => {
            let row = world
                .row
                .clone()
                .filter(|row| row.0.state == State::Unknown)?;
            let found = world.starts.iter().any(|start| start.landed && start.takes);
            world.looks += 1;
            world.look = Some((row, found));
        }
        Action::Decide => {
            let (row, found) = world.look.take()?;
            engine::learn(world, &row, found, Source::Query(Negative::Proven), policy);
        }
        Action::Webhook(index) => {
            let row = world.row.clone()?;
            let Start { attempt, takes, .. } = world.starts[index];
            world.looks += u8::from(!takes);
            engine::learn(
                world,
                &row,
                takes,
                Source::Webhook(About::Attempt(attempt)),
                policy,
            )?;
        }
        Action::UseKept => {
            let row = world.row.clone()?;
            // A denial that was kept counts for nothing.
            let Evidence::Completed(_) = row.0.evidence.as_ref()? else {
                return None;
            };
            engine::learn(world, &row, true, Source::Kept, policy)?;
            world.last = Note::KeptUsed;
        }
        _ => return None,
    }
    Some(())
}
