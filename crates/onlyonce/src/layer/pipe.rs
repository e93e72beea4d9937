//! How an answer that is too long to be remembered reaches its client: piece by piece, as it is read.

use std::pin::Pin;

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::sync::mpsc;

use crate::{
    body::{Body, BoxError},
    limits::Attendance,
};

/// Pieces of a long answer that wait for a slow client.
const STREAM_BACKLOG: usize = 8;

/// Frames of a long answer; `None` is its end. A pipe that closes without one was cut off.
pub(super) type Pipe = mpsc::Sender<Option<Result<Frame<Bytes>, BoxError>>>;

/// A body, and the way to fill it.
pub(super) fn pipe() -> (Body, Pipe) {
    let (sender, receiver) = mpsc::channel(STREAM_BACKLOG);
    (
        Body::stream(Piped {
            frames: receiver,
            failed: None,
            ended: false,
        }),
        sender,
    )
}

/// A body that breaks off before its first byte.
pub(super) fn cut_off() -> Body {
    pipe().0
}

/// Moves a long answer to the client. A client that goes away, which leaves no pipe, does not stop it being
/// read: the upstream may not be finished.
///
/// # Errors
/// How the answer broke off. The client has not been told yet.
pub(super) async fn pump(
    pipe: &mut Option<Pipe>,
    read: Bytes,
    mut rest: Body,
    attended: &Attendance,
) -> Result<(), BoxError> {
    let send = async |pipe: &mut Option<Pipe>, frame: Result<Frame<Bytes>, BoxError>| {
        if let Some(open) = pipe
            && open.send(Some(frame)).await.is_err()
        {
            *pipe = None;
            attended.detach();
        }
    };
    if !read.is_empty() {
        send(pipe, Ok(Frame::data(read))).await;
    }
    while let Some(frame) = rest.frame().await {
        send(pipe, Ok(frame?)).await;
    }
    if let Some(pipe) = pipe {
        // A client that has gone needs no end.
        let _ = pipe.send(None).await;
    }
    Ok(())
}

/// The other end of a pipe.
struct Piped {
    frames: mpsc::Receiver<Option<Result<Frame<Bytes>, BoxError>>>,
    /// How it failed, once what came before has been sent.
    failed: Option<BoxError>,
    ended: bool,
}

impl http_body::Body for Piped {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        use std::task::Poll;
        if let Some(error) = self.failed.take() {
            self.ended = true;
            return Poll::Ready(Some(Err(error)));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        match self.frames.poll_recv(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Some(Err(error)))) => {
                // An error at once would take back the frames before it, which are not sent before
                // there is a pause.
                self.failed = Some(error);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Some(Some(frame))) => Poll::Ready(Some(frame)),
            Poll::Ready(Some(None)) => {
                self.ended = true;
                Poll::Ready(None)
            }
            // The client must not take a part for the whole.
            Poll::Ready(None) => {
                self.failed = Some("the answer was cut off".into());
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}
