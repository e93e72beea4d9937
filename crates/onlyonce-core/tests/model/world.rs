//! The state of the modelled world, and what must hold in it.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use onlyonce_core::{
    AttemptId, Record, State, StoredResponse, Timestamp,
    record::{Change, Evidence, JournalEvent, StoredBody},
};

/// A record that can be hashed: everything about it that decides anything.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row(pub(crate) Arc<Record>);

impl Hash for Row {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let record = &*self.0;
        let times = &record.times;
        (
            record.revision,
            record.state,
            record.attempt_id,
            record.fence,
            record.generation,
        )
            .hash(hasher);
        (
            record.fingerprint,
            record.negatives,
            record.inconclusive,
            record.dead_letter,
        )
            .hash(hasher);
        record.response.as_deref().map(body).hash(hasher);
        match &record.evidence {
            None => 0_u8.hash(hasher),
            Some(Evidence::NotExecuted) => 1_u8.hash(hasher),
            Some(Evidence::Contradictory) => 2_u8.hash(hasher),
            Some(Evidence::Completed(response)) => body(response).hash(hasher),
        }
        (times.last_run_at, times.expires_at, times.lease_until).hash(hasher);
        (times.unknown_since, times.reconcile_after, times.delete_at).hash(hasher);
    }
}

fn body(response: &StoredResponse) -> &[u8] {
    match &response.body {
        StoredBody::Full { bytes, .. } => bytes,
        StoredBody::NotStored => b"",
        StoredBody::Packed { block, .. } => block,
    }
}

/// Which of the two requests; they differ in content.
pub(crate) type Content = u8;

/// A request in a node's hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Asked {
    pub(crate) content: Content,
    pub(crate) attempt: AttemptId,
    /// From before anything was written; the lease is counted from here.
    pub(crate) began: Timestamp,
}

/// What one node is doing. A crash makes it idle, and nothing else is remembered.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) enum Node {
    Idle,
    /// Found the key absent, or read a record that permits a write; and when.
    Asking(Asked, Option<(Row, Timestamp)>),
    /// Wrote a reservation and never heard back.
    Unsure(Asked),
    /// Gave up on that with a 503, and owes the store a release.
    Owing(AttemptId),
    /// Holds a reservation, and has sent nothing.
    Reserved(Asked, Row),
    /// Has sent its request, as this start.
    Running(usize, Row),
    /// Knows how the attempt ended and makes it durable.
    Settling(AttemptId, End, Row),
}

/// How an attempt ended, as its node saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum End {
    Answered,
    NothingDone,
    NotSent,
    NotSeen,
}

/// A request that went upstream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Start {
    pub(crate) life: u8,
    pub(crate) generation: u32,
    pub(crate) content: Content,
    pub(crate) attempt: AttemptId,
    pub(crate) at: Timestamp,
    /// Whether it does anything.
    pub(crate) takes: bool,
    /// Whether it is over. Until then nobody, the provider included, can tell.
    pub(crate) landed: bool,
}

/// What the last step was, where a property asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Note {
    Nothing,
    Replayed,
    Reused,
    Lapsed,
    LateResult,
    ReleaseWasWrong,
    GuardFailed,
    ZombieRefused,
    Recognised,
    ReconciledCompleted,
    ReconciledReleased,
    EvidenceKept,
    KeptUsed,
}

/// Invariants that a write can break; once broken, always broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Broken {
    pub(crate) guessed: bool,
    pub(crate) answer_changed: bool,
    pub(crate) stolen: bool,
    pub(crate) miscounted: bool,
    pub(crate) expired_live: bool,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) row: Option<Row>,
    /// Counts how often the key came into being: first, and after its tombstone was over.
    pub(crate) life: u8,
    pub(crate) nodes: [Node; 2],
    pub(crate) starts: Vec<Start>,
    pub(crate) requests: [u8; 2],
    pub(crate) crashes: u8,
    pub(crate) lost_replies: u8,
    pub(crate) looks: u8,
    /// What the reconciler read and what the provider then said.
    pub(crate) look: Option<(Row, bool)>,
    /// The last answer that a client saw, and of which life and generation.
    pub(crate) shown: Option<(u8, u32, Vec<u8>)>,
    pub(crate) last: Note,
    pub(crate) broken: Broken,
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            now: Timestamp(0),
            row: None,
            life: 0,
            nodes: [Node::Idle, Node::Idle],
            starts: Vec::new(),
            requests: [0, 0],
            crashes: 0,
            lost_replies: 0,
            looks: 0,
            look: None,
            shown: None,
            last: Note::Nothing,
            broken: Broken::default(),
        }
    }

    pub(crate) fn state(&self) -> Option<State> {
        self.row.as_ref().map(|row| row.0.state)
    }

    /// Nodes have no names, so two worlds that differ in their order are one.
    pub(crate) fn sort_nodes(&mut self) {
        self.nodes.sort_by_cached_key(|node| {
            let mut hasher = DefaultHasher::new();
            node.hash(&mut hasher);
            hasher.finish()
        });
    }

    /// The store's swap: by revision and by nothing else. Says whether it was done.
    pub(crate) fn swap(&mut self, read: &Row, change: Change) -> bool {
        let Some(current) = self
            .row
            .clone()
            .filter(|row| row.0.revision == read.0.revision)
        else {
            return false;
        };
        let anew = change.journal.is_empty() && change.draft.record.fence > current.0.fence;
        self.last = match change.journal.first().map(|entry| entry.event) {
            Some(JournalEvent::LeaseLapsed) => Note::Lapsed,
            Some(JournalEvent::LateResult) => Note::LateResult,
            Some(JournalEvent::ReleaseWasWrong) => Note::ReleaseWasWrong,
            Some(JournalEvent::EvidenceKept) => Note::EvidenceKept,
            _ => Note::Nothing,
        };
        // A stale draft must be seen as the theft it is: it was made from another row.
        self.broken.stolen |= current.0.attempt_id != read.0.attempt_id;
        let next = change.draft.stamp(self.now);
        self.judge(&current.0, &next);
        self.life += u8::from(anew);
        self.row = Some(Row(Arc::new(next)));
        true
    }

    fn judge(&mut self, before: &Record, after: &Record) {
        let broken = &mut self.broken;
        broken.guessed |= before.state == State::Unknown && after.state == State::InProgress;
        broken.answer_changed |= before.state == State::Completed
            && after.state == State::Completed
            && before.response != after.response;
        broken.miscounted |=
            after.fence < before.fence || after.revision.0 != before.revision.0 + 1;
        let live = matches!(before.state, State::InProgress | State::Unknown);
        broken.expired_live |= live && after.state == State::Expired;
    }

    /// A client sees an answer of the record as it is.
    pub(crate) fn show(&mut self, generation: u32, response: &StoredResponse) {
        let seen = (self.life, generation, body(response).to_vec());
        if let Some(earlier) = &self.shown
            && (earlier.0, earlier.1) == (seen.0, seen.1)
        {
            self.broken.answer_changed |= *earlier != seen;
        }
        self.shown = Some(seen);
    }

    fn earlier_and_later(&self) -> impl Iterator<Item = (&Start, &Start)> {
        self.starts.iter().enumerate().flat_map(|(index, later)| {
            self.starts[..index]
                .iter()
                .map(move |earlier| (earlier, later))
        })
    }

    pub(crate) fn took_effect_once(&self) -> bool {
        self.earlier_and_later().all(|(earlier, later)| {
            (earlier.life, earlier.generation) != (later.life, later.generation)
                || !(earlier.takes && later.takes)
        })
    }

    pub(crate) fn every_restart_is_proven(&self) -> bool {
        self.earlier_and_later().all(|(earlier, later)| {
            (earlier.life, earlier.generation) != (later.life, later.generation)
                || (earlier.landed && !earlier.takes)
        })
    }

    pub(crate) fn one_content_per_life(&self) -> bool {
        self.earlier_and_later()
            .all(|(earlier, later)| earlier.life != later.life || earlier.content == later.content)
    }

    pub(crate) fn executed_again(&self) -> bool {
        self.earlier_and_later().any(|(earlier, later)| {
            (earlier.life, earlier.generation) == (later.life, later.generation)
        })
    }
}
