//! The edges of the state machine and how often each was taken. One that was never taken proves nothing.

use onlyonce_core::State;

macro_rules! edges {
    ($($edge:ident: $text:literal,)*) => {
        /// An edge, or a row of the table that leaves the record as it is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Edge { $($edge,)* }

        impl Edge {
            pub const ALL: &'static [(Self, &'static str)] = &[$((Self::$edge, $text),)*];
        }
    };
}

edges! {
    Reserved: "request: absent -> I",
    Waited: "same request, I: waits and gets the answer",
    InFlight409: "same request, I: 409",
    InFlight202: "same request, I: 202",
    LapsedByRequest: "same request, I lapsed -> U",
    Replayed: "same request, C: replay",
    ReplayedUnderItsRecipe: "same request, C of a node with another recipe: replay",
    NotStored409: "same request, C not stored: 409",
    Again: "same request, F -> I",
    LostRace: "same request, F: lost to another, as I",
    Unknown409: "same request, U: 409",
    Nudged: "same request, U: the reconciler is asked to hurry",
    AfterExpiryFromE: "same request, E -> I, generation + 1",
    AfterExpiryFromC: "same request, C past expiry -> I, generation + 1",
    AfterExpiryFromF: "same request, F past expiry -> I, generation + 1",
    AfterForget: "any request, E forgotten -> I, generation + 1",
    Anew: "any request, tombstone past its time -> I",
    Expired409: "same request, E or past expiry: 409 by policy",
    MismatchI: "other fingerprint, I: 422",
    MismatchC: "other fingerprint, C: 422",
    MismatchF: "other fingerprint, F: 422",
    MismatchU: "other fingerprint, U: 422",
    MismatchE: "other fingerprint, E: 422",
    OtherCaller: "other caller in global scope: 422",
    Unreadable: "unreadable row: 503",
    Completed2xx: "answer 2xx, I -> C",
    Completed3xx: "answer 3xx, I -> C",
    Completed4xx: "answer 4xx, I -> C",
    Completed5xx: "answer 5xx stored by policy or by the upstream's word, I -> C",
    ReleasedByStatus: "release status, I -> F",
    ReleasedBy5xx: "on_5xx: retry, I -> F",
    ReleasedByWord: "declared not executed, I -> F",
    UnknownBy5xx: "502 or on_5xx: unknown, I -> U",
    UnknownByTimeout: "max_execution, I -> U",
    UnknownByReset: "connection lost, I -> U",
    UnknownByTruncation: "truncated, I -> U",
    UnknownByPanic: "panic, I -> U",
    UnknownByConflict: "409, 423, 425 on attempt > 1, I -> U",
    UnknownByWord: "declared unknown, I -> U",
    ReleaseContradicted: "release that the provider contradicts, I -> U",
    NotSentFromI: "nothing was sent, I -> F",
    NotSentFromU: "nothing was sent, U -> F",
    GuardFromI: "guard failed, I -> F",
    GuardFromU: "guard failed, U -> F",
    HungUp: "client hangs up: I unchanged",
    Died: "process dies: I until the lease lapses, then U",
    Swept: "sweep, I lapsed -> U",
    LateToC: "late result, U -> C",
    LateToF: "late result, U -> F",
    ReleaseWasWrong: "late result, F -> C with an alarm",
    LateKeptC: "late result, C unchanged, the stored answer is told",
    LateOtherAttempt: "late result of another attempt: refused",
    LateExpired: "late result, E: refused",
    LateAbsent: "late result, absent: refused",
    Renewed: "heartbeat, I own attempt: renewed",
    HeartbeatLost: "heartbeat, otherwise: told that it lost the key",
    ExpiredC: "ttl, C -> E",
    ExpiredF: "ttl, F -> E",
    Deleted: "tombstone_ttl, E -> absent",
    ReconciledToC: "provider, U -> C",
    ReconciledToF: "provider, U -> F",
    ResolvedToC: "operator, U -> C",
    ResolvedToF: "operator, U -> F",
    Inconclusive: "reconcile, U: found nothing",
    DeadLettered: "reconcile, U with a dead letter",
    EvidenceKept: "webhook while I is live: kept",
    EvidenceUsed: "kept evidence settles U",
    ForgotC: "forget, C -> E",
    ForgotF: "forget, F -> E",
    ForgotE: "forget, E -> E",
    Extended: "operator moves the expiry",
    BrokeOff: "answer breaks off, C not stored: noted",
    ReserveWasOurs: "ambiguous reserve: asked again, ours",
    ReleasedUnasked: "ambiguous reserve: 503, released by attempt id later",
    ReapedBetween: "reaped between look and swap: inserted anew",
}

impl Edge {
    pub fn mismatch(state: State) -> Self {
        match state {
            State::InProgress => Self::MismatchI,
            State::Completed => Self::MismatchC,
            State::FailedRetryable => Self::MismatchF,
            State::Unknown => Self::MismatchU,
            State::Expired => Self::MismatchE,
        }
    }
}

/// How often each edge was taken.
#[derive(Clone)]
pub struct Hits(Vec<u64>);

impl Hits {
    pub fn new() -> Self {
        Self(vec![0; Edge::ALL.len()])
    }

    pub fn hit(&mut self, edge: Edge) {
        self.0[edge as usize] += 1;
    }

    pub fn count(&self, edge: Edge) -> u64 {
        self.0[edge as usize]
    }

    pub fn add(&mut self, other: &Self) {
        self.0
            .iter_mut()
            .zip(&other.0)
            .for_each(|(sum, more)| *sum += more);
    }

    pub fn table(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Edge::ALL
            .iter()
            .map(|(edge, text)| (*text, self.count(*edge)))
    }
}
