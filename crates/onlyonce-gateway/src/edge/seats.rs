//! Seats for connections: a limited number, where an idle connection gives its seat to a new one.
//!
//! A connection is working while the gateway does something for it. A connection that is not working has sent
//! nothing, is between two requests, or has not sent all of a body that is read before anything happens. When
//! every seat is taken, the connection that has been idle for the longest is closed for a new one.
//! Deliberately absent: evicting a connection that is working.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicIsize, AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use http::Version;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::line::Line;

/// The seats of one listener.
pub(crate) struct Seats {
    limit: usize,
    taken: Mutex<HashMap<u64, Arc<Activity>>>,
    /// A counter that orders when seats were taken and when connections stopped working.
    last: AtomicU64,
    /// Notified when a seat may have become free.
    changed: Notify,
}

/// The activity of a connection.
pub(crate) struct Activity {
    seats: Arc<Seats>,
    /// Requests being worked on.
    working: AtomicIsize,
    /// When it last stopped working, relative to the other connections.
    stopped: AtomicU64,
    /// Tells the connection to close.
    go: Notify,
}

impl Seats {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            taken: Mutex::default(),
            last: AtomicU64::new(0),
            changed: Notify::new(),
        })
    }

    /// Takes a seat: immediately, unless every connection is working.
    pub(crate) async fn take(self: &Arc<Self>) -> Seat {
        loop {
            if let Some(seat) = self.try_take() {
                return seat;
            }
            // A change in the meantime has left its notification.
            self.changed.notified().await;
        }
    }

    fn try_take(self: &Arc<Self>) -> Option<Seat> {
        let mut taken = self.taken.lock();
        if taken.len() >= self.limit && !close_one(&mut taken) {
            return None;
        }
        let id = self.next();
        let activity = Arc::new(Activity {
            seats: self.clone(),
            working: AtomicIsize::new(0),
            stopped: AtomicU64::new(id),
            go: Notify::new(),
        });
        taken.insert(id, activity.clone());
        Some(Seat { id, activity })
    }

    /// Closes the connection that has been idle for the longest, if there is one.
    pub(crate) fn close_one(&self) {
        close_one(&mut self.taken.lock());
    }

    fn next(&self) -> u64 {
        self.last.fetch_add(1, Ordering::AcqRel)
    }
}

/// Closes the connection that has been idle for the longest. Returns whether there was one.
fn close_one(taken: &mut HashMap<u64, Arc<Activity>>) -> bool {
    let silent = taken
        .iter()
        .filter(|(_, activity)| activity.working.load(Ordering::Acquire) <= 0)
        .min_by_key(|(_, activity)| activity.stopped.load(Ordering::Acquire))
        .map(|(id, _)| *id);
    let Some(activity) = silent.and_then(|id| taken.remove(&id)) else {
        return false;
    };
    activity.go.notify_one();
    true
}

/// The seat of one connection, freed when dropped.
pub(crate) struct Seat {
    id: u64,
    activity: Arc<Activity>,
}

impl Seat {
    /// The activity of the connection.
    pub(crate) fn activity(&self) -> Arc<Activity> {
        self.activity.clone()
    }

    /// Resolves when the seat is needed for another connection.
    pub(crate) async fn wanted(&self) {
        self.activity.go.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let seats = &self.activity.seats;
        seats.taken.lock().remove(&self.id);
        seats.changed.notify_one();
    }
}

impl Activity {
    /// Counts as working on a request until the value is dropped.
    pub(crate) fn work(self: &Arc<Self>) -> Working {
        self.resume();
        Working(self.clone())
    }

    /// Stops working while the gateway waits for the client.
    pub(super) fn pause(&self) {
        self.stopped.store(self.seats.next(), Ordering::Release);
        if self.working.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.seats.changed.notify_one();
        }
    }

    pub(super) fn resume(&self) {
        self.working.fetch_add(1, Ordering::AcqRel);
    }
}

/// A request being worked on.
pub(crate) struct Working(Arc<Activity>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.pause();
    }
}

pin_project_lite::pin_project! {
    /// An answer that counts as work until the client has it.
    pub(crate) struct Worked<B> {
        #[pin]
        body: B,
        working: Working,
        // The connection to reset if the answer breaks off.
        line: Option<(Arc<Line>, Version)>,
    }
}

impl<B> Worked<B> {
    pub(crate) fn new(body: B, working: Working) -> Self {
        Self {
            body,
            working,
            line: None,
        }
    }

    /// Sets the connection that the answer is sent over.
    pub(crate) fn over(self, line: Arc<Line>, version: Version) -> Self {
        let line = Some((line, version));
        Self { line, ..self }
    }
}

impl<B: Body> Body for Worked<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = this.body.poll_frame(cx);
        if let (Poll::Ready(Some(Err(_))), Some((line, version))) = (&frame, this.line) {
            line.broke_off(*version);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn the_one_that_is_silent_for_the_longest_makes_room() {
        let seats = Seats::new(3);
        let first = seats.take().await;
        let working = first.activity().work();
        let second = seats.take().await;
        let third = seats.take().await;
        // The second has been idle since before the third came, except for a moment of work.
        drop(second.activity().work());
        let _fourth = seats.take().await;
        assert!(third.wanted().now_or_never().is_some());
        assert!(second.wanted().now_or_never().is_none());
        assert!(first.wanted().now_or_never().is_none(), "it works");
        drop(third);
        assert_eq!(seats.taken.lock().len(), 3, "a seat is given up once");
        drop(working);
        drop(first);
        assert_eq!(seats.taken.lock().len(), 2);
    }

    #[tokio::test]
    async fn those_that_work_are_waited_for() {
        let seats = Seats::new(1);
        let first = seats.take().await;
        let working = first.activity().work();
        assert!(seats.take().now_or_never().is_none());
        let waiting = tokio::spawn({
            let seats = seats.clone();
            async move { drop(seats.take().await) }
        });
        tokio::task::yield_now().await;
        // A body that does not arrive counts as idle, and one that has arrived does not.
        first.activity().pause();
        first.activity().resume();
        drop(working);
        waiting.await.unwrap();
        assert!(first.wanted().now_or_never().is_some());
    }
}
