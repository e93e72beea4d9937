//! Group commit: one thread owns the writing connection and commits everything that is queued in one
//! transaction. There is no artificial delay: a single write commits immediately, and the next group gathers
//! meanwhile.

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
/// Operations that may wait. Beyond this, the store immediately reports that it is unavailable.
const MAX_QUEUE: usize = 8_192;

/// A write.
pub(super) enum Operation {
    Insert(Box<Draft>),
    Swap(Revision, Box<Change>),
    Delete(RecordId, Revision),
    Append(Vec<JournalEntry>),
    /// Adds records to the lists of their scopes.
    List(Vec<Entry>),
    /// Removes deleted records from these lists.
    Unlist(Vec<Entry>),
    /// A statement without a result.
    Run(Statement),
    /// Moves the rest of the write-ahead log into the file before the group is written.
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

/// Whether the group contains an operation of this kind.
#[cfg(feature = "failpoints")]
fn holds(group: &[&Operation], kind: fn(&Operation) -> bool) -> bool {
    group.iter().copied().any(kind)
}

/// The outcome of an operation.
pub(super) enum Done {
    Inserted(Box<Inserted>),
    Swapped(Box<Swapped>),
    Deleted(bool),
    Written,
}

type Answer = Result<(Timestamp, Done), StoreError>;

/// An answer, and where it goes.
type Delivery = (oneshot::Sender<Answer>, Answer);

struct Queued {
    operation: Operation,
    reply: Reply,
}

/// The channel back to the caller of an operation.
struct Reply {
    /// The event loop of the caller; `None` for a blocking thread.
    event_loop: Option<Handle>,
    sender: oneshot::Sender<Answer>,
}

/// The queue of the writing thread, which ends when the sender is dropped.
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

    /// Closes the queue, and waits until queued writes are durable and the file is complete.
    pub(super) fn end(&self) {
        *self.queue.write() = None;
        if let Some(thread) = self.thread.lock().take() {
            // Callers that wait for a thread that panicked get an ambiguous error.
            let _ = thread.join();
        }
    }

    /// Queues `operation` and waits until it is durable.
    pub(super) async fn submit(
        &self,
        operation: Operation,
    ) -> Result<(Timestamp, Done), StoreError> {
        // A writer that died may have committed before it could answer.
        self.queued(operation, Handle::try_current().ok())?
            .await
            .unwrap_or_else(|_| Err(StoreError::Ambiguous("the writer has ended".into())))
    }

    /// The same, from a blocking thread.
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

    /// Commits the group. If one operation cannot be written, commits each alone: one bad operation costs
    /// speed, not the others' answers.
    fn commit(&mut self, mut group: Vec<Queued>) {
        // A caller that stopped waiting was told that the write may not have happened, so it is skipped.
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
            // Dropping the transaction rolls it back, so an error leaves no partial write.
            let done = write::apply(&transaction, operation, now, &mut self.memory, &mut steps);
            outcomes.push(done.map_err(Failed::Apply)?);
        }
        failpoint!(holds(group, Operation::is_insert).then_some("sqlite.insert.applied"));
        failpoint!(holds(group, Operation::is_swap).then_some("sqlite.swap.applied"));
        failpoint!(holds(group, Operation::is_append).then_some("sqlite.append.applied"));
        // A failed commit may have reached the disk, where recovery would find it.
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
                // It is not an error if nobody listens.
                let _ = self.wakeups.send(record.id);
            }
        }
    }
}

/// Delivers the answers of a group.
///
/// Waking an event loop from another thread takes a system call for each woken task. So each event loop gets
/// all its answers at once, and a task there delivers them.
fn deliver(answers: impl Iterator<Item = (Reply, Answer)>) {
    // The caller may have left; the write stands.
    let send = |sender: oneshot::Sender<Answer>, answer| drop(sender.send(answer));
    let mut loops: Vec<(Handle, Vec<Delivery>)> = Vec::new();
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

/// The point at which a transaction failed.
enum Failed {
    /// At one operation: the others may succeed alone.
    Apply(StoreError),
    /// At its begin or commit: all operations fail alike.
    Whole(StoreError),
}

impl Failed {
    fn into_error(self) -> StoreError {
        match self {
            Self::Apply(error) | Self::Whole(error) => error,
        }
    }
}

/// Copies an error for each operation of the group.
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
