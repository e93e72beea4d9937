//! What a node does with the machine's word: the engine, in small. It reads, asks the machine,
//! swaps by revision, and on a conflict asks again with what is there.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use onlyonce_core::{
    AttemptId, Fingerprint, Key, Policy, RecipeId, RecordId, Scope, State, StoredResponse,
    machine::{
        self, Admission, Found, Heartbeat, Look, Refusal, Request, Settled, Settlement, Source,
        Step, apply, first,
    },
    policy::ReconcilePolicy,
    record::{Evidence, LastError},
};

use super::{
    Bounds,
    act::Reply,
    world::{Asked, Content, End, Node, Note, Row, Start, World},
};

const LEASE: Duration = Duration::from_millis(1);
pub(crate) const UPSTREAM_MAX: Duration = Duration::from_millis(1);
const FOREVER: Duration = Duration::from_secs(3_600);

pub(crate) fn policy(bounds: &Bounds) -> Policy {
    let policy = Policy::builder()
        .lease(LEASE)
        .timeout(Duration::ZERO)
        .max_execution(2 * LEASE)
        .ttl(bounds.ttl.unwrap_or(FOREVER))
        .tombstone_ttl(bounds.ttl.unwrap_or(FOREVER));
    if !bounds.reconciler {
        return policy.build();
    }
    let reconcile = ReconcilePolicy {
        after: Duration::ZERO,
        attempts: 2,
        upstream_max_execution: Some(UPSTREAM_MAX),
        // How far apart two looks are is for the machine's own tests: here the clock stands still
        // between most of them.
        negative_gap: Duration::ZERO,
        asks: true,
    };
    policy.reconcile(reconcile).build()
}

fn request(content: Content, attempt_id: AttemptId) -> Request {
    Request {
        id: RecordId([0; 16]),
        scope: Scope::global(),
        key: Key::from_stored("k"),
        fingerprint: Fingerprint([content; 32]),
        recipe: RecipeId([0; 8]),
        caller: None,
        attempt_id,
        other_mark: None,
        route: "r".into(),
        method: "POST".into(),
        path: "/".into(),
        notes: onlyonce_core::record::Notes::default(),
    }
}

fn answer(whose: &str) -> Arc<StoredResponse> {
    Arc::new(StoredResponse::plain(StatusCode::CREATED, whose.to_owned()))
}

/// Takes the node's next step towards the store.
pub(crate) fn write(world: &mut World, index: usize, reply: Reply, policy: &Policy) -> Option<()> {
    world.lost_replies += u8::from(reply != Reply::Heard);
    match world.nodes[index].clone() {
        Node::Asking(asked, None) => insert(world, index, reply, asked, policy),
        Node::Asking(asked, Some((row, read_at))) => {
            let request = request(asked.content, asked.attempt);
            let change = apply(Some(&row.0), &request, read_at, policy).swapped()?;
            if reply != Reply::LostBefore {
                world.swap(&row, change);
            }
            match reply {
                Reply::Heard => read(world, index, asked, policy),
                Reply::LostAfter | Reply::LostBefore => world.nodes[index] = Node::Unsure(asked),
            }
        }
        Node::Owing(attempt) => {
            world.nodes[index] = Node::Idle;
            let row = world.row.clone().filter(|row| row.0.attempt_id == attempt);
            if let Some(row) = row
                && let Some(change) = settle(world, &row, attempt, End::NotSent, policy).swapped()
            {
                world.swap(&row, change);
            }
        }
        Node::Settling(attempt, end, row) => {
            let done = match settle(world, &row, attempt, end, policy).swapped() {
                Some(change) => reply != Reply::LostBefore && world.swap(&row, change),
                None => false,
            };
            // Without a reply the engine tries again with what it remembers.
            if reply == Reply::Heard {
                after_settle(world, index, attempt, end, done, policy);
            }
        }
        Node::Idle | Node::Unsure(_) | Node::Reserved(..) | Node::Running(..) => return None,
    }
    Some(())
}

fn insert(world: &mut World, index: usize, reply: Reply, asked: Asked, policy: &Policy) {
    if world.row.is_none() && reply != Reply::LostBefore {
        let draft = first(&request(asked.content, asked.attempt), policy);
        world.row = Some(Row(Arc::new(draft.stamp(world.now))));
        world.life += 1;
    }
    match reply {
        Reply::Heard => read(world, index, asked, policy),
        Reply::LostAfter | Reply::LostBefore => world.nodes[index] = Node::Unsure(asked),
    }
}

/// The node sees what the store holds, and acts on it at once where nothing has to be written.
pub(crate) fn read(world: &mut World, index: usize, asked: Asked, policy: &Policy) {
    let Some(row) = world.row.clone() else {
        world.nodes[index] = Node::Asking(asked, None);
        return;
    };
    let request = request(asked.content, asked.attempt);
    world.nodes[index] = match apply(Some(&row.0), &request, world.now, policy).effect {
        Admission::Execute(_) | Admission::Lapse => Node::Asking(asked, Some((row, world.now))),
        Admission::Reserved => {
            // Its own write, or an earlier one of it whose reply was lost.
            if matches!(world.nodes[index], Node::Unsure(_)) {
                world.last = Note::Recognised;
            }
            Node::Reserved(asked, row)
        }
        Admission::TooLate => Node::Owing(asked.attempt),
        Admission::Replay(response) => {
            world.show(row.0.generation, &response);
            world.last = Note::Replayed;
            Node::Idle
        }
        Admission::Refuse(Refusal::Reused(_)) => {
            world.last = Note::Reused;
            Node::Idle
        }
        Admission::InFlight(_) | Admission::Refuse(_) => Node::Idle,
    };
}

/// The guard: the lease is counted from before the reservation was sent.
pub(crate) fn dispatch(world: &mut World, index: usize, takes: bool) -> Option<()> {
    let Node::Reserved(asked, row) = world.nodes[index].clone() else {
        return None;
    };
    if asked.began.plus(LEASE) <= world.now {
        world.last = Note::GuardFailed;
        world.nodes[index] = Node::Settling(asked.attempt, End::NotSent, row);
        return Some(());
    }
    world.starts.push(Start {
        life: world.life,
        generation: row.0.generation,
        content: asked.content,
        attempt: asked.attempt,
        at: world.now,
        takes,
        landed: false,
    });
    world.nodes[index] = Node::Running(world.starts.len() - 1, row);
    Some(())
}

/// The engine begins with what it has, and reads again on a conflict.
pub(crate) fn heartbeat(world: &mut World, index: usize, policy: &Policy) -> Option<()> {
    let Node::Running(start, row) = world.nodes[index].clone() else {
        return None;
    };
    let current = world.row.clone()?;
    let read = if current.0.revision == row.0.revision {
        row
    } else {
        current
    };
    if read.0.times.lease_until == Some(world.now.plus(LEASE)) {
        return None; // A second one at the same moment would only count revisions.
    }
    let attempt = world.starts[start].attempt;
    let beat = apply(Some(&read.0), &Heartbeat(attempt), world.now, policy);
    let change = beat.swapped()?;
    world.swap(&read, change);
    world.nodes[index] = Node::Running(start, world.row.clone()?);
    Some(())
}

pub(crate) fn finish(world: &mut World, index: usize, end: End) {
    let Node::Running(start, row) = world.nodes[index].clone() else {
        return;
    };
    world.nodes[index] = Node::Settling(world.starts[start].attempt, end, row);
}

fn settle(
    world: &World,
    row: &Row,
    attempt: AttemptId,
    end: End,
    policy: &Policy,
) -> Step<Settled> {
    let settlement = &settlement(attempt, end);
    let end = machine::End {
        attempt,
        settlement,
    };
    apply(Some(&row.0), &end, world.now, policy)
}

fn settlement(attempt: AttemptId, end: End) -> Settlement {
    match end {
        End::Answered => Settlement::Complete(answer(&attempt.to_string())),
        End::NothingDone => Settlement::Release(LastError::DeclaredNotExecuted),
        End::NotSent => Settlement::Release(LastError::NotSent),
        End::NotSeen => Settlement::Unknown(LastError::ConnectionLost),
    }
}

/// The store's reply to a settle is what it holds: ours, or what was there instead.
fn after_settle(
    world: &mut World,
    index: usize,
    attempt: AttemptId,
    end: End,
    done: bool,
    policy: &Policy,
) {
    world.nodes[index] = Node::Idle;
    let Some(row) = world.row.clone() else { return };
    if !done {
        match settle(world, &row, attempt, end, policy).effect {
            Settled::Done | Settled::ReleaseWasWrong => {
                world.nodes[index] = Node::Settling(attempt, end, row);
                return;
            }
            Settled::Kept => {}
            Settled::NotOurs(_) | Settled::Gone => {
                world.last = Note::ZombieRefused;
                return;
            }
        }
    }
    if let Some(response) = &row.0.response {
        world.show(row.0.generation, response);
    }
}

/// A provider's word meets the record that was read. `None` if it changes nothing.
pub(crate) fn learn(
    world: &mut World,
    row: &Row,
    took_effect: bool,
    source: Source,
    policy: &Policy,
) -> Option<()> {
    let evidence = if took_effect {
        Evidence::Completed(answer("provider"))
    } else {
        Evidence::NotExecuted
    };
    let look = Look {
        found: Found::Evidence(&evidence, source),
        asked_about: Some((row.0.attempt_id, row.0.revision)),
    };
    let change = apply(Some(&row.0), &look, world.now, policy).swapped()?;
    if !world.swap(row, change) {
        return None;
    }
    match world.state() {
        Some(State::Completed) => world.last = Note::ReconciledCompleted,
        Some(State::FailedRetryable) => world.last = Note::ReconciledReleased,
        _ => {}
    }
    Some(())
}
