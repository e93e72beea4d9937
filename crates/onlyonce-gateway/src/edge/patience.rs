//! How long a client may keep the gateway waiting, once its request has begun.
//!
//! Deliberately absent: the head of a request. hyper times the head, and the idle time between two requests,
//! itself.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http_body::{Body, Frame, SizeHint};
use onlyonce::BoxError;
use tokio::time::{Sleep, sleep};

use super::Activity;

/// A timer that starts when the caller first waits.
pub(super) struct Patience {
    time: Duration,
    running: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    pub(super) fn new(time: Duration) -> Self {
        Self {
            time,
            running: None,
        }
    }

    /// Stops the timer.
    pub(super) fn end(&mut self) {
        self.running = None;
    }

    /// Ready when the time is up.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let time = self.time;
        let running = self.running.get_or_insert_with(|| Box::pin(sleep(time)));
        running.as_mut().poll(cx)
    }
}

pin_project_lite::pin_project! {
    /// A body that is read to its end before anything happens, and that fails unless it ends in time.
    pub(crate) struct Timely<B> {
        #[pin]
        body: B,
        patience: Patience,
        silence: Silence,
    }
}

impl<B> Timely<B> {
    /// While the body is waited for, its connection does not count as working.
    pub(crate) fn new(body: B, body_timeout: Duration, activity: Option<Arc<Activity>>) -> Self {
        Self {
            body,
            patience: Patience::new(body_timeout),
            silence: Silence {
                activity,
                is_silent: false,
            },
        }
    }
}

/// Whether the client is being waited for.
struct Silence {
    activity: Option<Arc<Activity>>,
    is_silent: bool,
}

impl Silence {
    fn set(&mut self, is_silent: bool) {
        if let Some(activity) = &self.activity
            && is_silent != self.is_silent
        {
            self.is_silent = is_silent;
            match is_silent {
                true => activity.pause(),
                false => activity.resume(),
            }
        }
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        self.set(false);
    }
}

impl<B> Body for Timely<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let this = self.project();
        if let Poll::Ready(frame) = this.body.poll_frame(cx) {
            this.silence.set(false);
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        this.silence.set(true);
        ready!(this.patience.poll(cx));
        Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
