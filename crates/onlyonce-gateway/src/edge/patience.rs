//! How long a client may keep the gateway waiting, once its request has begun.
//!
//! Deliberately absent: the head of a request. hyper keeps that time, and the idle time between two
//! requests, by itself.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http_body::{Body, Frame, SizeHint};
use onlyonce::BoxError;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use super::Activity;

/// A time that begins when something is first waited for.
struct Patience {
    time: Duration,
    running: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    fn new(time: Duration) -> Self {
        Self {
            time,
            running: None,
        }
    }

    /// Ready when it has come to its end.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let time = self.time;
        let running = self.running.get_or_insert_with(|| Box::pin(sleep(time)));
        running.as_mut().poll(cx)
    }
}

pin_project_lite::pin_project! {
    /// A body that is read to its end before anything happens, and is an error unless it ends in time.
    pub(crate) struct Timely<B> {
        #[pin]
        body: B,
        patience: Patience,
        silence: Silence,
    }
}

impl<B> Timely<B> {
    /// While it is waited for, its connection does not work.
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

/// Whether the client is waited for.
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

/// A connection that fails once its peer has taken nothing for too long.
pub(crate) struct Unstalled<T> {
    io: T,
    patience: Patience,
}

impl<T> Unstalled<T> {
    pub(crate) fn new(io: T, send_timeout: Duration) -> Self {
        let patience = Patience::new(send_timeout);
        Self { io, patience }
    }

    fn judge<O>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<O>>,
    ) -> Poll<io::Result<O>> {
        if written.is_ready() {
            self.patience.running = None;
            return written;
        }
        ready!(self.patience.poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Unstalled<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Unstalled<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.judge(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.judge(cx, written)
    }
}
