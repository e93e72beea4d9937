//! The streams of an HTTP/2 connection: how much a peer may leave unread, and for how long.
//!
//! A peer decides how much of each answer it takes. A peer that opens no window but answers pings would keep
//! its answers in the gateway's memory for ever, and no lower layer would notice, since there is nothing to
//! write. So each stream has a timer of its own, which starts when a part of its answer is ready and stops
//! when the part is taken; and parts are small.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, Sleep, sleep_until},
};

/// The largest part of an answer that is handed over at once, in bytes.
const PART_BYTES: usize = 32 << 10;

tokio::task_local! {
    /// The stream that the current task serves.
    static STREAM: Arc<Stream>;
}

/// Whether a stream waits for its peer, and since when.
#[derive(Default)]
struct Stream {
    waits_since: Mutex<Option<Instant>>,
}

/// Runs the streams of one connection, each for as long as its peer keeps reading.
#[derive(Clone)]
pub(super) struct Streams {
    send_timeout: Duration,
    /// The runtime of the streams.
    runtime: Handle,
    running: Arc<Running>,
}

/// Counts the streams, and notifies when the count changes.
#[derive(Default)]
struct Running {
    count: AtomicUsize,
    ever: AtomicUsize,
    changed: Notify,
}

impl Streams {
    pub(super) fn new(send_timeout: Duration, runtime: Handle) -> Self {
        Self {
            send_timeout,
            runtime,
            running: Arc::default(),
        }
    }

    /// Whether the connection has had a stream.
    pub(super) fn are_used(&self) -> bool {
        self.running.ever.load(Ordering::Acquire) > 0
    }

    /// Resolves if the connection has had no stream within `patience` of its start.
    pub(super) async fn none_yet(&self, patience: Duration) {
        tokio::time::sleep(patience).await;
        if self.are_used() {
            std::future::pending().await
        }
    }

    /// Resolves when there has been no stream for `patience`, after at least one.
    pub(super) async fn none_left(&self, patience: Duration) {
        loop {
            let seen = self.running.ever.load(Ordering::Acquire);
            let changed = self.running.changed.notified();
            let quiet = tokio::time::timeout(patience, changed).await.is_err();
            let none = self.running.count.load(Ordering::Acquire) == 0;
            if quiet && none && seen > 0 {
                return;
            }
        }
    }
}

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let (watched, send_timeout) = (Arc::<Stream>::default(), self.send_timeout);
        let counted = Counted::new(self.running.clone());
        let stream = STREAM.scope(watched.clone(), async move {
            let _counted = counted;
            Patient {
                stream,
                watched,
                send_timeout,
                timer: None,
            }
            .await;
        });
        self.runtime.spawn(stream);
    }
}

struct Counted(Arc<Running>);

impl Counted {
    fn new(running: Arc<Running>) -> Self {
        running.ever.fetch_add(1, Ordering::AcqRel);
        running.count.fetch_add(1, Ordering::AcqRel);
        running.changed.notify_one();
        Self(running)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_one();
    }
}

pin_project_lite::pin_project! {
    /// A stream that ends, and so is reset, once its peer has taken nothing for too long.
    struct Patient<F> {
        #[pin]
        stream: F,
        watched: Arc<Stream>,
        send_timeout: Duration,
        timer: Option<Pin<Box<Sleep>>>,
    }
}

impl<F: Future<Output = ()>> Future for Patient<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if this.stream.poll(cx).is_ready() {
            return Poll::Ready(());
        }
        loop {
            let Some(since) = *this.watched.waits_since.lock() else {
                // The answer is not ready, or is being read: other timers cover that.
                *this.timer = None;
                return Poll::Pending;
            };
            let end = since + *this.send_timeout;
            let timer = this.timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
            if timer.deadline() != end {
                timer.as_mut().reset(end);
            }
            ready!(timer.as_mut().poll(cx));
            if Instant::now() >= end {
                return Poll::Ready(());
            }
        }
    }
}

pin_project_lite::pin_project! {
    /// An answer in small parts that records when each is handed over.
    pub(super) struct InParts<B> {
        #[pin]
        body: B,
        rest: Bytes,
        stream: Option<Arc<Stream>>,
    }
}

impl<B> InParts<B> {
    /// Wraps the answer of the stream that the current task serves, if any.
    pub(super) fn new(body: B) -> Self {
        let stream = STREAM.try_with(Clone::clone).ok();
        if let Some(stream) = &stream {
            *stream.waits_since.lock() = Some(Instant::now());
        }
        Self {
            body,
            rest: Bytes::new(),
            stream,
        }
    }
}

impl<B: Body<Data = Bytes>> Body for InParts<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let Some(stream) = this.stream else {
            return this.body.poll_frame(cx);
        };
        *stream.waits_since.lock() = None;
        if this.rest.is_empty() {
            match ready!(this.body.poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => *this.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return Poll::Ready(other),
            }
        }
        let part = this.rest.split_to(this.rest.len().min(PART_BYTES));
        *stream.waits_since.lock() = Some(Instant::now());
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.len() as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}
