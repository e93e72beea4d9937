//! Reads for a while what a client still sends of a request that has already been answered.
//!
//! Closing a connection while its client writes resets it, and many clients then report the reset and never
//! read the answer that says what was wrong. HTTP/2 can end one direction of a stream, but some HTTP/2
//! clients behave the same.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use onlyonce::{
    BoxError,
    body::{Framing, Whole},
};
use tokio::{
    runtime::Handle,
    sync::Semaphore,
    time::{error::Elapsed, timeout},
};

/// The most bytes that are read.
pub(super) const LINGER_BYTES: usize = 8 << 20;
/// The longest time for reading: as long as a body may take by default.
pub(super) const LINGER_TIME: Duration = Duration::from_secs(30);
/// The longest time without a byte.
pub(super) const LINGER_IDLE: Duration = Duration::from_secs(2);
/// How many such bodies are read at a time: hundreds would crowd out requests that clients wait for.
const TURNS: usize = 8;
/// How long a body that sends nothing keeps its turn.
const TURN_TIME: Duration = Duration::from_millis(5);

static TURN: Semaphore = Semaphore::const_new(TURNS);

/// The body of a request. It fails unless it arrives complete, and is read on if dropped before its end.
pub(crate) struct Lingering {
    body: Option<Whole<Incoming>>,
    /// Whether the body ended complete.
    is_whole: bool,
    /// Whether the client is sending. Reading on must not send `100 Continue` to a client that waits for it.
    is_coming: bool,
}

impl Lingering {
    /// Wraps the body of `request`.
    pub(crate) fn request(request: Request<Incoming>) -> Request<Self> {
        let (head, body) = request.into_parts();
        let lingering = Self {
            body: Some(Whole::new(Framing::of_request(&head), body)),
            is_whole: false,
            is_coming: !head.headers.contains_key(header::EXPECT),
        };
        Request::from_parts(head, lingering)
    }
}

impl Body for Lingering {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.is_coming = true;
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
            self.is_whole = frame.is_none();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Some(body) => body.is_end_stream(),
            None => self.is_whole,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(body) => body.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        if self.is_coming
            && let Some(body) = self.body.take().filter(|body| !body.is_end_stream())
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(timeout(LINGER_TIME, read_on(body)));
        }
    }
}

async fn read_on(mut body: Whole<Incoming>) {
    let mut left = LINGER_BYTES;
    loop {
        let frame = match in_turn(&mut body).await {
            Ok(frame) => Ok(frame),
            Err(_) => timeout(LINGER_IDLE, body.frame()).await,
        };
        let Ok(Some(Ok(frame))) = frame else {
            return;
        };
        let read = frame.data_ref().map_or(0, Bytes::len);
        let Some(rest) = left.checked_sub(read) else {
            return;
        };
        left = rest;
    }
}

type Read = Option<Result<Frame<Bytes>, BoxError>>;

/// The next frame, once it is this body's turn.
async fn in_turn(body: &mut Whole<Incoming>) -> Result<Read, Elapsed> {
    let _turn = TURN.acquire().await;
    timeout(TURN_TIME, body.frame()).await
}
