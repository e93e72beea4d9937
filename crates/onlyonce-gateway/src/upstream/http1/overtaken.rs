//! An answer that arrives before its request was fully sent.
//!
//! A backend that goes on reading still needs the rest of the request, and the reader of the answer may be
//! slow, or may want to send all of its request first. So a separate task sends and reads concurrently, and
//! hands the answer over piece by piece. Such a connection is closed afterwards.

use std::{
    future::poll_fn,
    pin::pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split},
    sync::mpsc,
    time::timeout,
};

use super::{Broken, Connection, Decoded, Decoder, LARGEST_READ, upload::Upload};

/// How long sending the rest of the request may take once the answer has ended.
const REST_WITHIN: Duration = Duration::from_secs(60);

type Piece = Result<Frame<Bytes>, Broken>;

/// The receiving end of the answer.
pub(super) struct Overtaken(mpsc::Receiver<Piece>);

impl Overtaken {
    /// Starts the task.
    pub(super) fn start(connection: Connection, decoder: Decoder) -> Self {
        let (pieces, answer) = mpsc::channel(1);
        tokio::spawn(run(connection, decoder, pieces));
        Self(answer)
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Piece>> {
        self.0.poll_recv(cx)
    }
}

/// Ends when both directions have ended, or when nobody wants the answer any more.
async fn run(connection: Connection, decoder: Decoder, pieces: mpsc::Sender<Piece>) {
    let (from, to) = split(connection.transport);
    let mut rest = pin!(send(connection.upload, to));
    let mut answer = pin!(receive(decoder, connection.coming, from, pieces.clone()));
    tokio::select! {
        biased;
        ended = &mut answer => {
            drop(pieces);
            if ended {
                let _ = timeout(REST_WITHIN, rest).await;
            }
        }
        sent = &mut rest => match sent {
            Ok(()) => tokio::select! {
                biased;
                _ = answer => {}
                () = pieces.closed() => {}
            },
            Err(error) => {
                let _ = pieces.send(Err(error)).await;
            }
        },
        // Before the answer has ended: nobody is owed anything any more.
        () = pieces.closed() => {}
    }
}

/// Sends the rest of the request. If the backend takes no more of it, its answer has to explain why.
async fn send(mut upload: Upload, mut to: impl AsyncWrite + Unpin) -> Result<(), Broken> {
    while !upload.is_done() {
        let filled = poll_fn(|cx| match upload.poll_fill(cx) {
            Poll::Pending if upload.has_bytes() => Poll::Ready(Ok(())),
            filled => filled,
        });
        filled.await.map_err(Broken::Request)?;
        if upload.has_bytes() && poll_fn(|cx| upload.poll_write(cx, &mut to)).await.is_err() {
            return Ok(());
        }
        let _ = to.flush().await;
    }
    // A TLS stream may have accepted all bytes and still hold the last of them.
    let _ = to.flush().await;
    Ok(())
}

/// Hands the answer over. Returns whether it was complete.
async fn receive(
    mut decoder: Decoder,
    mut coming: BytesMut,
    mut from: impl AsyncRead + Unpin,
    pieces: mpsc::Sender<Piece>,
) -> bool {
    loop {
        let piece = match decoder.decode(&mut coming) {
            Ok(Decoded::Frame(frame)) => Ok(frame),
            Ok(Decoded::End) => return true,
            Ok(Decoded::More) => {
                coming.reserve(LARGEST_READ);
                match from.read_buf(&mut coming).await.map_err(Broken::Io) {
                    Ok(0) => match decoder.ends_here() {
                        Ok(()) => return true,
                        Err(error) => Err(error),
                    },
                    Ok(_) => continue,
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        let failed = piece.is_err();
        if pieces.send(piece).await.is_err() || failed {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use onlyonce::Body;
    use tokio::io::{BufWriter, duplex};

    use super::*;

    /// Goal: bytes that a TLS stream has accepted are flushed, even if there is nothing more to write.
    #[tokio::test]
    async fn what_was_taken_is_flushed() {
        let request = Request::builder().uri("/").header("host", "h");
        let mut upload = Upload::default();
        upload.begin(request.body(Body::empty()).expect("a request"));
        let (ours, mut theirs) = duplex(1 << 10);
        let mut writer = BufWriter::new(ours);
        while !upload.is_done() {
            poll_fn(|cx| upload.poll_write(cx, &mut writer))
                .await
                .expect("room");
        }
        send(upload, writer).await.expect("an open stream");
        let mut seen = String::new();
        theirs.read_to_string(&mut seen).await.expect("text");
        assert_eq!(seen, "GET / HTTP/1.1\r\nhost: h\r\n\r\n");
    }
}
