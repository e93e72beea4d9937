//! Room for the bodies of requests with a key: it is taken as bytes arrive, and held for as long as
//! they are.
//!
//! Whoever declares a large body and sends none of it takes no room from anybody. The beginning of a body
//! is not counted, as its head is not, so that small bodies never wait. What goes on is given room in two
//! steps, each taken whole and from a part of its own, so that no two bodies ever wait for each other.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Engine;

/// The unit in which room is counted, in bytes.
const UNIT: usize = 1 << 10;
/// Bytes of each body that are not counted.
const BEGINNING: usize = 4 << 10;
/// Bytes of a body for which room is taken once it goes beyond its beginning.
const MIDDLE: usize = 64 << 10;
/// The part of all room that is for these: one in so many.
const MIDDLE_PART: usize = 4;

/// The room of a process.
pub(super) struct Gathering {
    middle: Pool,
    rest: Pool,
}

struct Pool {
    room: Arc<Semaphore>,
    units: usize,
}

impl Pool {
    fn new(bytes: usize) -> Self {
        let units = (bytes / UNIT).clamp(1, Semaphore::MAX_PERMITS);
        Self {
            room: Arc::new(Semaphore::new(units)),
            units,
        }
    }

    /// Room for `bytes`, or all that there is.
    async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = bytes.div_ceil(UNIT).clamp(1, self.units);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        // It is never closed.
        self.room.clone().acquire_many_owned(units).await.ok()
    }
}

impl Gathering {
    pub(super) fn new(bytes: usize) -> Self {
        let middle = bytes / MIDDLE_PART;
        Self {
            middle: Pool::new(middle),
            rest: Pool::new(bytes - middle),
        }
    }
}

/// The room of one body, which may become as large as `most`.
pub(crate) struct Room<'e> {
    all: &'e Gathering,
    most: usize,
    held: Held,
}

/// What has been taken of it. It goes back when this is dropped.
#[derive(Default)]
struct Held {
    middle: Option<OwnedSemaphorePermit>,
    rest: Option<OwnedSemaphorePermit>,
}

impl Engine {
    /// Room for a request body of up to `most` bytes. None is taken yet.
    pub(crate) fn room_to_gather(&self, most: u64) -> Room<'_> {
        Room {
            all: &self.0.gathering,
            most: usize::try_from(most).unwrap_or(usize::MAX),
            held: Held::default(),
        }
    }
}

impl Room<'_> {
    /// Takes room for all of the `bytes` that have arrived, once there is some.
    pub(crate) async fn grow(&mut self, bytes: usize) {
        if bytes > BEGINNING && self.held.middle.is_none() {
            let most = self.most.max(bytes).min(MIDDLE);
            self.held.middle = self.all.middle.take(most).await;
        }
        if bytes > MIDDLE && self.held.rest.is_none() {
            let most = self.most.max(bytes) - MIDDLE;
            self.held.rest = self.all.rest.take(most).await;
        }
    }

    /// The same bytes. The room that they need is theirs until the last of them is dropped; what they
    /// do not need goes back.
    pub(crate) fn keep(mut self, bytes: Bytes) -> Bytes {
        if self.held.middle.is_none() {
            return bytes;
        }
        trim(&mut self.held.middle, bytes.len().min(MIDDLE));
        trim(&mut self.held.rest, bytes.len().saturating_sub(MIDDLE));
        Bytes::from_owner(Kept {
            bytes,
            _held: self.held,
        })
    }
}

fn trim(held: &mut Option<OwnedSemaphorePermit>, bytes: usize) {
    if let Some(held) = held {
        let surplus = held.num_permits().saturating_sub(bytes.div_ceil(UNIT));
        drop(held.split(surplus));
    }
}

struct Kept {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
