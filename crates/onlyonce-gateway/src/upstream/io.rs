//! The socket below an HTTP/2 connection. It knows whether any byte of the current request was sent, and
//! checks the dispatch guard before the first one.
//!
//! This decides between "the key may be used again" and "the outcome is unknown", so the stages are claimed
//! with compare-and-swap: once [`Wire::verdict`] has said that nothing was sent, nothing can be sent any
//! more, whatever hyper still has in its buffers.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    task::{Context, Poll, ready},
};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    frames::Frames,
    transport::{Peer, Transport},
};
use onlyonce::{DispatchGuard, GuardFailed};

/// No byte may be sent: the attempt has been declared unsent.
const SHUT: u8 = 0;
/// A request was handed to the connection and none of its bytes was sent.
const ARMED: u8 = 1;
/// The first write of the request is in progress.
const WRITING: u8 = 2;
/// At least one byte of the request was sent.
const OPEN: u8 = 3;
/// The guard refused the first write.
const REFUSED: u8 = 4;

/// The outcome of a request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// No byte was sent, and none will be.
    Unsent,
    /// No byte was sent, and none will be, because the guard refused.
    Refused,
    /// A byte was sent, or may be on its way.
    Sent,
}

/// The state shared between the socket and the sender of the request.
pub(super) struct Wire {
    stage: AtomicU8,
    /// Whether the peer has begun to answer the current request.
    answered: AtomicBool,
    guard: Mutex<Option<DispatchGuard>>,
}

impl Wire {
    /// HTTP/2 also writes between requests. While a request is armed, its HEADERS frame is guarded: bytes
    /// sent before that frame are not part of the request.
    pub(super) fn open() -> Arc<Self> {
        Arc::new(Self {
            stage: AtomicU8::new(OPEN),
            answered: AtomicBool::new(false),
            guard: Mutex::new(None),
        })
    }

    /// Arms the next request with `guard`. Must be called just before the request is handed to the
    /// connection; one request at a time.
    pub(super) fn arm(&self, guard: Option<DispatchGuard>) {
        *self.guard.lock() = guard;
        self.answered.store(false, Ordering::Release);
        self.stage.store(ARMED, Ordering::Release);
    }

    /// Whether the peer has begun to answer, even with a 1xx: its claim that it did not process the request
    /// then contradicts itself.
    pub(super) fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Acquire)
    }

    /// Decides, finally, whether the armed request counts as sent.
    pub(super) fn verdict(&self) -> Verdict {
        let was = self
            .stage
            .compare_exchange(ARMED, SHUT, Ordering::AcqRel, Ordering::Acquire);
        match was {
            Ok(_) | Err(SHUT) => Verdict::Unsent,
            Err(REFUSED) => Verdict::Refused,
            Err(_) => Verdict::Sent,
        }
    }

    /// Claims the first write, or says why it may not happen.
    ///
    /// The guard is checked again if an earlier try wrote no byte: what counts is the lease at the moment of
    /// the first byte.
    fn claim(&self) -> io::Result<()> {
        let refused = self
            .guard
            .lock()
            .as_ref()
            .is_some_and(|guard| guard.check().is_err());
        let next = if refused { REFUSED } else { WRITING };
        self.stage
            .compare_exchange(ARMED, next, Ordering::AcqRel, Ordering::Acquire)
            .map_err(|_| io::Error::from(io::ErrorKind::NotConnected))?;
        if refused {
            Err(io::Error::other(GuardFailed))
        } else {
            Ok(())
        }
    }

    /// Records how the claimed write ended. A write that would block wrote no byte, nor did one that failed
    /// on a plain socket; a TLS write may have failed on its second try.
    fn wrote(&self, result: &Poll<io::Result<usize>>, is_secured: bool) {
        let moved = match result {
            Poll::Ready(Ok(count)) => *count > 0,
            Poll::Ready(Err(_)) => is_secured,
            Poll::Pending => false,
        };
        if moved {
            self.stage.store(OPEN, Ordering::Release);
            *self.guard.lock() = None;
        } else {
            self.stage.store(ARMED, Ordering::Release);
        }
    }
}

/// The socket itself, owned by hyper's connection.
pub(super) struct WireIo {
    transport: Transport,
    wire: Arc<Wire>,
    /// The position in the frames sent.
    leaving: Frames,
    /// The position in the frames received.
    coming: Frames,
    /// Whether the peer was found connected since the current request was armed.
    probed: bool,
}

impl WireIo {
    pub(super) fn new(transport: Transport, wire: Arc<Wire>) -> Self {
        Self {
            transport,
            leaving: Frames::ours(),
            coming: Frames::theirs(),
            wire,
            probed: false,
        }
    }

    /// Asks the kernel whether the peer has closed the connection; `Pending` means that it has not.
    ///
    /// tokio reads only after its event loop has seen the socket become readable, which lags behind under
    /// load. Without this check the gateway would write to a connection whose end arrived long ago, and every
    /// such write has an unknown outcome.
    fn probe(&mut self) -> Poll<io::Result<()>> {
        match self.transport.peer(true)? {
            Peer::Gone => Poll::Ready(Ok(())),
            Peer::Silent => {
                self.probed = true;
                Poll::Pending
            }
        }
    }

    /// Writes `slices`; the first write of a request only if peer, guard and verdict allow it.
    fn poll_guarded(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        write: impl FnOnce(Pin<&mut Transport>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        // Loaded once: the next request may be armed at any moment.
        let stage = self.wire.stage.load(Ordering::Acquire);
        let armed = stage == ARMED;
        let result = match self.leaving.until_a_request(slices).filter(|_| armed) {
            // Frames of the connection itself, such as settings or acknowledgements. They are written
            // separately, so that the guard is checked when the request itself is sent.
            Some(before @ 1..) => {
                let first = slices.iter().find(|slice| !slice.is_empty());
                let first = first.map_or(&[][..], |slice| &slice[..slice.len().min(before)]);
                Pin::new(&mut self.transport).poll_write(cx, first)
            }
            None if armed || stage == OPEN => write(Pin::new(&mut self.transport), cx),
            _ => self.poll_first(cx, write),
        };
        if let Poll::Ready(Ok(count)) = &result {
            self.leaving.advance(slices, *count);
        }
        result
    }

    fn poll_first(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut Transport>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if !self.probed && self.probe()?.is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        self.wire.claim()?;
        let result = write(Pin::new(&mut self.transport), cx);
        self.wire.wrote(&result, self.transport.is_secured());
        self.probed = false;
        result
    }
}

impl AsyncRead for WireIo {
    /// hyper reads before it takes the next request off its queue. If the probe finds the peer gone, this
    /// reports the end of the stream, so that hyper hands the request back untouched and it can go over
    /// another connection.
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.transport).poll_read(cx, buffer);
        if read.is_pending() && !this.probed && this.wire.stage.load(Ordering::Acquire) == ARMED {
            return this.probe();
        }
        ready!(read)?;
        if this.coming.begin_an_answer(&buffer.filled()[before..]) {
            this.wire.answered.store(true, Ordering::Release);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WireIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let slices = [IoSlice::new(bytes)];
        self.get_mut()
            .poll_guarded(cx, &slices, |socket, cx| socket.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_guarded(cx, slices, |socket, cx| {
            socket.poll_write_vectored(cx, slices)
        })
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_shutdown(cx)
    }
}
