//! Streams an answer that is too long to store to its client, as it is read.

use std::pin::Pin;

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::sync::mpsc;

use crate::{
    body::{Body, BoxError},
    limits::Attendance,
};

/// Frames of a long answer that may wait for a slow client.
const STREAM_BACKLOG: usize = 8;

/// Frames of a long answer; `None` marks its end. A pipe that closes without `None` was cut off.
pub(super) type Pipe = mpsc::Sender<Option<Result<Frame<Bytes>, BoxError>>>;

/// A body, and the sender that fills it.
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

/// A body that is cut off before its first byte.
pub(super) fn cut_off() -> Body {
    pipe().0
}

/// Forwards a long answer to the client. If the client leaves, its pipe is dropped and reading continues: the
/// upstream may not have finished.
///
/// # Errors
/// How the answer was cut off. The client has not been told yet.
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
        // A client that has left needs no end.
        let _ = pipe.send(None).await;
    }
    Ok(())
}

/// The receiving end of a pipe.
struct Piped {
    frames: mpsc::Receiver<Option<Result<Frame<Bytes>, BoxError>>>,
    /// The error to report once earlier frames have been sent.
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
                // An immediate error would discard the frames before it, which are sent only once there is a
                // pause.
                self.failed = Some(error);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Some(Some(frame))) => Poll::Ready(Some(frame)),
            Poll::Ready(Some(None)) => {
                self.ended = true;
                Poll::Ready(None)
            }
            // The client must not mistake a part for the whole.
            Poll::Ready(None) => {
                self.failed = Some("the answer was cut off".into());
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}
