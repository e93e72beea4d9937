//! Group commit: one thread owns the writing connection and makes whatever has queued up durable in
//! one transaction. There is no artificial delay: a lone write commits at once, and while it does,
//! the next group gathers.

use std::{
    sync::{Arc, mpsc},
    thread,
};

use onlyonce_core::{
    RecordId, Timestamp,
    record::{Change, Draft, JournalEntry, Revision},
};
use parking_lot::{Mutex, RwLock};
use rusqlite::Connection;
use tokio::{
    runtime::Handle,
    sync::{broadcast, oneshot},
};

use super::{
    checkpoint,
    lister::Gone,
    lock::Places,
    stopped,
    write::{self, Entry, Memory, Tally},
};
use crate::{Inserted, StoreError, Swapped, clock::StoreClock, failpoint, sql::dialect::Statement};

/// Operations in one transaction.
const MAX_GROUP: usize = 256;
/// Operations that may wait. Beyond it the store says that it is unavailable, at once.
const MAX_QUEUE: usize = 8_192;

/// Something to be written.
pub(super) enum Operation {
    Insert(Box<Draft>),
    Swap(Revision, Box<Change>),
    Delete(RecordId, Revision),
    Append(Vec<JournalEntry>),
    /// Puts records into the lists of their scopes.
    List(Vec<Entry>),
    /// Takes records that are gone out of them.
    Unlist(Vec<Entry>),
    /// What no answer depends on.
    Run(Statement),
    /// Moves what is left of the write-ahead log, before the group is written.
    MoveLog,
}

#[cfg(feature = "failpoints")]
impl Operation {
    fn is_insert(&self) -> bool {
        matches!(self, Self::Insert(_))
    }

    fn is_swap(&self) -> bool {
        matches!(self, Self::Swap(..))
    }

    fn is_append(&self) -> bool {
        matches!(self, Self::Append(_))
    }
}

/// Whether one of the group is of this kind.
#[cfg(feature = "failpoints")]
fn holds(group: &[&Operation], kind: fn(&Operation) -> bool) -> bool {
    group.iter().copied().any(kind)
}

/// What came of it.
pub(super) enum Done {
    Inserted(Box<Inserted>),
    Swapped(Box<Swapped>),
    Deleted(bool),
    Written,
}

type Answer = Result<(Timestamp, Done), StoreError>;

struct Queued {
    operation: Operation,
    reply: Reply,
}

/// The way back to whoever waits for an operation.
struct Reply {
    /// The event loop that the caller waits on; `None` is a thread of its own.
    event_loop: Option<Handle>,
    sender: oneshot::Sender<Answer>,
}

/// The way to the writing thread, which ends when the sender is dropped.
pub(super) struct Writer {
    queue: RwLock<Option<mpsc::SyncSender<Queued>>>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Writer {
    pub(super) fn start(
        connection: Connection,
        places: Places,
        clock: StoreClock,
        tally: Arc<Tally>,
        wakeups: broadcast::Sender<RecordId>,
        memory: Memory,
        gone: Arc<Gone>,
    ) -> std::io::Result<Self> {
        let (sender, queue) = mpsc::sync_channel(MAX_QUEUE);
        let mut group = Group {
            connection,
            places,
            clock,
            tally,
            wakeups,
            memory,
            gone,
        };
        let thread = thread::Builder::new()
            .name("onlyonce-sqlite-writer".into())
            .spawn(move || group.run(&queue))?;
        Ok(Self {
            queue: RwLock::new(Some(sender)),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Takes no more, and waits until what is queued is durable and the file is whole.
    pub(super) fn end(&self) {
        *self.queue.write() = None;
        if let Some(thread) = self.thread.lock().take() {
            // Whoever waits for a thread that panicked is told that it may not have happened.
            let _ = thread.join();
        }
    }

    /// Queues `operation` and waits until it is durable.
    pub(super) async fn submit(
        &self,
        operation: Operation,
    ) -> Result<(Timestamp, Done), StoreError> {
        // A writer that died may have committed before it could say so.
        self.queued(operation, Handle::try_current().ok())?
            .await
            .unwrap_or_else(|_| Err(StoreError::Ambiguous("the writer has ended".into())))
    }

    /// The same in a thread that may wait.
    pub(super) fn submit_waiting(&self, operation: Operation) -> Result<(), StoreError> {
        let done = self.queued(operation, None)?.blocking_recv();
        let done = done.map_err(|_| StoreError::Ambiguous("the writer has ended".into()))?;
        done.map(|_| ())
    }

    fn queued(
        &self,
        operation: Operation,
        event_loop: Option<Handle>,
    ) -> Result<oneshot::Receiver<Answer>, StoreError> {
        let (sender, answer) = oneshot::channel();
        let reply = Reply { event_loop, sender };
        let queued = Queued { operation, reply };
        let refused = match &*self.queue.read() {
            None => Some("the store is closed"),
            Some(queue) => match queue.try_send(queued) {
                Ok(()) => None,
                Err(mpsc::TrySendError::Full(_)) => Some("too many writes are waiting"),
                Err(mpsc::TrySendError::Disconnected(_)) => Some("the writer has ended"),
            },
        };
        if let Some(why) = refused {
            return Err(StoreError::Unavailable(why.into()));
        }
        Ok(answer)
    }
}

struct Group {
    connection: Connection,
    places: Places,
    clock: StoreClock,
    tally: Arc<Tally>,
    wakeups: broadcast::Sender<RecordId>,
    memory: Memory,
    gone: Arc<Gone>,
}

impl Group {
    fn run(&mut self, queue: &mpsc::Receiver<Queued>) {
        while let Ok(first) = queue.recv() {
            let mut group = vec![first];
            while group.len() < MAX_GROUP
                && let Ok(next) = queue.try_recv()
            {
                group.push(next);
            }
            self.commit(group);
        }
        stopped::end(&self.connection);
    }

    /// Commits the group, or, if one of it cannot be written, each of it alone: a bad neighbour
    /// costs speed, not an answer.
    fn commit(&mut self, mut group: Vec<Queued>) {
        // Whoever gave up waiting has been told that it may not have happened: then it does not.
        group.retain(|queued| !queued.reply.sender.is_closed());
        if group.is_empty() {
            return;
        }
        if group
            .iter()
            .any(|queued| matches!(queued.operation, Operation::MoveLog))
        {
            checkpoint::move_rest(&self.connection);
        }
        let operations: Vec<&Operation> = group.iter().map(|queued| &queued.operation).collect();
        let answers: Vec<Answer> = match self.transact(&operations) {
            Ok((now, outcomes)) => outcomes.into_iter().map(|done| Ok((now, done))).collect(),
            Err(Failed::Apply(_)) if group.len() > 1 => operations
                .iter()
                .map(|operation| {
                    let (now, outcomes) =
                        self.transact(&[operation]).map_err(Failed::into_error)?;
                    let done = outcomes.into_iter().next().ok_or_else(super::mismatched)?;
                    Ok((now, done))
                })
                .collect(),
            Err(failed) => {
                let error = failed.into_error();
                group.iter().map(|_| Err(duplicate(&error))).collect()
            }
        };
        self.wake_waiters(&answers);
        deliver(group.into_iter().map(|queued| queued.reply).zip(answers));
    }

    fn transact(&mut self, group: &[&Operation]) -> Result<(Timestamp, Vec<Done>), Failed> {
        let written = self.write(group);
        if written.is_err() {
            self.memory.forget_places();
        }
        written
    }

    fn write(&mut self, group: &[&Operation]) -> Result<(Timestamp, Vec<Done>), Failed> {
        let moved = |unfit| Failed::Whole(StoreError::Unavailable(Box::new(unfit)));
        self.places.check().map_err(moved)?;
        let now = self.clock.now();
        failpoint!(holds(group, Operation::is_insert).then_some("sqlite.insert.begin"));
        failpoint!(holds(group, Operation::is_swap).then_some("sqlite.swap.begin"));
        failpoint!(holds(group, Operation::is_append).then_some("sqlite.append.begin"));
        let transaction = self
            .connection
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
            .map_err(|error| Failed::Whole(StoreError::Unavailable(Box::new(error))))?;
        let mut steps = Vec::new();
        let mut outcomes = Vec::with_capacity(group.len());
        for operation in group {
            // Dropping the transaction rolls it back, so an error here leaves nothing behind.
            let done = write::apply(&transaction, operation, now, &mut self.memory, &mut steps);
            outcomes.push(done.map_err(Failed::Apply)?);
        }
        failpoint!(holds(group, Operation::is_insert).then_some("sqlite.insert.applied"));
        failpoint!(holds(group, Operation::is_swap).then_some("sqlite.swap.applied"));
        failpoint!(holds(group, Operation::is_append).then_some("sqlite.append.applied"));
        // A commit that fails may have reached the disk: recovery would then find it.
        transaction
            .commit()
            .map_err(|error| Failed::Whole(StoreError::Ambiguous(Box::new(error))))?;
        failpoint!(holds(group, Operation::is_insert).then_some("sqlite.insert.committed"));
        failpoint!(holds(group, Operation::is_swap).then_some("sqlite.swap.committed"));
        failpoint!(holds(group, Operation::is_append).then_some("sqlite.append.committed"));
        self.tally.take(&steps);
        self.gone.note(steps);
        Ok((now, outcomes))
    }

    fn wake_waiters(&self, answers: &[Answer]) {
        for answer in answers {
            if let Ok((_, Done::Swapped(swapped))) = answer
                && let Swapped::Done(record) = &**swapped
            {
                // No listener is no failure.
                let _ = self.wakeups.send(record.id);
            }
        }
    }
}

/// Hands out the answers of a group.
///
/// To wake an event loop from another thread is a system call for each task that is woken. So each event
/// loop gets all of its answers at once, and a task of its own hands them out there.
fn deliver(answers: impl Iterator<Item = (Reply, Answer)>) {
    // Whoever asked may have gone; what was written stands.
    let send = |sender: oneshot::Sender<Answer>, answer| drop(sender.send(answer));
    let mut loops: Vec<(Handle, Vec<(oneshot::Sender<Answer>, Answer)>)> = Vec::new();
    for (Reply { event_loop, sender }, answer) in answers {
        let Some(handle) = event_loop else {
            send(sender, answer);
            continue;
        };
        match loops
            .iter_mut()
            .find(|(known, _)| known.id() == handle.id())
        {
            Some((_, its)) => its.push((sender, answer)),
            None => loops.push((handle, vec![(sender, answer)])),
        }
    }
    for (handle, mut answers) in loops {
        if answers.len() > 1 {
            handle.spawn(async move {
                for (sender, answer) in answers {
                    send(sender, answer);
                }
            });
        } else if let Some((sender, answer)) = answers.pop() {
            send(sender, answer);
        }
    }
}

/// Where a transaction failed.
enum Failed {
    /// At one operation: the others may fare better alone.
    Apply(StoreError),
    /// At its beginning or its end: it is the same for all.
    Whole(StoreError),
}

impl Failed {
    fn into_error(self) -> StoreError {
        match self {
            Self::Apply(error) | Self::Whole(error) => error,
        }
    }
}

/// One failure told to many.
fn duplicate(error: &StoreError) -> StoreError {
    if let Some(unfit) = error.unfit() {
        return StoreError::Unavailable(Box::new(unfit.clone()));
    }
    let text =
        std::error::Error::source(error).map_or_else(|| error.to_string(), |s| s.to_string());
    match error {
        StoreError::Unavailable(_) => StoreError::Unavailable(text.into()),
        StoreError::Ambiguous(_) => StoreError::Ambiguous(text.into()),
        StoreError::Unreadable(_) => StoreError::Unreadable(text.into()),
        StoreError::Held => StoreError::Held,
        StoreError::Collision => StoreError::Collision,
    }
}
