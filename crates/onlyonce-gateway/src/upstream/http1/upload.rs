//! The bytes of a request to be sent.
//!
//! Deliberately absent: request trailers. `Trailer` announces them, and that header ends at the gateway.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http::{
    Request,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
};
use http_body::Body as _;
use onlyonce::{Body, BoxError};
use tokio::io::AsyncWrite;

use super::head;

/// Pieces of a body up to this many bytes are copied behind the head, so that both are sent at once; larger
/// ones are sent from where they are.
const COPIED_BYTES: usize = 16 << 10;
/// The body is not read any further while this many bytes wait.
const WAITING_BYTES: usize = 64 << 10;

/// The unsent rest of one request. Empty between two requests.
#[derive(Default)]
pub(super) struct Upload {
    /// The head and small pieces of the body.
    out: Vec<u8>,
    written: usize,
    /// A large piece, sent after `out`.
    piece: Bytes,
    /// Whether the piece is a chunk that still needs its closing line break.
    closes_chunk: bool,
    /// The unread rest of the body.
    body: Option<Body>,
    framing: Framing,
}

#[derive(Clone, Copy, Default)]
enum Framing {
    Chunked,
    /// This many bytes remain.
    Length(u64),
    #[default]
    Nothing,
}

/// A request's body is not as long as its Content-Length.
#[derive(Debug, thiserror::Error)]
#[error("the body of the request is not as long as its Content-Length says")]
struct OtherLength;

impl Upload {
    /// Takes `request`, whose framing headers describe its body.
    pub(super) fn begin(&mut self, request: Request<Body>) {
        self.out.clear();
        self.written = 0;
        head::write(&request, &mut self.out);
        let length = request.headers().get(CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse().ok());
        self.framing = match length {
            _ if request.headers().contains_key(TRANSFER_ENCODING) => Framing::Chunked,
            Some(0) | None => Framing::Nothing,
            Some(length) => Framing::Length(length),
        };
        let is_empty = matches!(self.framing, Framing::Nothing);
        self.body = Some(request.into_body()).filter(|_| !is_empty);
    }

    /// Whether all of the request was sent.
    pub(super) fn is_done(&self) -> bool {
        self.body.is_none() && !self.has_bytes() && !self.closes_chunk
    }

    /// Whether there are bytes to write.
    pub(super) fn has_bytes(&self) -> bool {
        self.written < self.out.len() || !self.piece.is_empty()
    }

    /// Reads the body until enough bytes wait or the body ends; pending while the body has nothing.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        while self.piece.is_empty() && self.out.len() - self.written < WAITING_BYTES {
            if self.written == self.out.len() {
                self.out.clear();
                self.written = 0;
            }
            if std::mem::take(&mut self.closes_chunk) {
                self.out.extend_from_slice(b"\r\n");
            }
            let Some(body) = &mut self.body else { break };
            let data = match ready!(Pin::new(body).poll_frame(cx)).transpose()? {
                // Trailers end the body.
                Some(frame) => frame.into_data().ok(),
                None => None,
            };
            match data {
                Some(data) if data.is_empty() => {}
                Some(data) => self.add(data)?,
                None => self.end()?,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn add(&mut self, data: Bytes) -> Result<(), OtherLength> {
        match &mut self.framing {
            Framing::Chunked => {
                self.closes_chunk = true;
                let size = format!("{:x}\r\n", data.len());
                self.out.extend_from_slice(size.as_bytes());
            }
            Framing::Length(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or(OtherLength)?;
                if *left == 0 {
                    // The body is complete; do not poll it again.
                    self.body = None;
                    self.framing = Framing::Nothing;
                }
            }
            Framing::Nothing => return Err(OtherLength),
        }
        if data.len() <= COPIED_BYTES {
            self.out.extend_from_slice(&data);
        } else {
            self.piece = data;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), OtherLength> {
        self.body = None;
        match std::mem::take(&mut self.framing) {
            Framing::Chunked => self.out.extend_from_slice(b"0\r\n\r\n"),
            Framing::Length(_) => return Err(OtherLength),
            Framing::Nothing => {}
        }
        Ok(())
    }

    /// Writes once. Ready with the transport's result; on success at least one byte was sent.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        let to = Pin::new(to);
        let small = &self.out[self.written..];
        let written = if self.piece.is_empty() {
            to.poll_write(cx, small)
        } else {
            let both = [IoSlice::new(small), IoSlice::new(&self.piece)];
            to.poll_write_vectored(cx, &both[usize::from(small.is_empty())..])
        };
        let count = ready!(written)?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        let of_small = count.min(small.len());
        self.written += of_small;
        self.piece.advance(count - of_small);
        if self.piece.is_empty() {
            // Even an empty rest of it would keep the body in memory, and in its client's budget.
            self.piece = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}
