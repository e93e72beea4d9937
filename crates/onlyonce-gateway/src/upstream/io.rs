//! The socket below an HTTP/2 connection. It knows whether any byte of the current request has
//! left, and it asks the dispatch guard before the first one does.
//!
//! That knowledge decides between "the key may be used again" and "the outcome is unknown", so
//! the stages are claimed with compare-and-swap: once [`Wire::verdict`] has said that nothing was
//! sent, nothing can be sent any more, whatever hyper still holds in its buffers.

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

/// No byte may leave: the attempt has been declared unsent.
const SHUT: u8 = 0;
/// A request was handed to the connection and none of its bytes has left.
const ARMED: u8 = 1;
/// The first write of the request is in the kernel's hands.
const WRITING: u8 = 2;
/// At least one byte of the request has left.
const OPEN: u8 = 3;
/// The guard said no at the first write.
const REFUSED: u8 = 4;

/// What became of a request that got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// No byte has left, and none will.
    Unsent,
    /// No byte has left, and none will, because the lease had run out.
    Refused,
    /// A byte has left, or may be leaving now.
    Sent,
}

/// The half of the socket's knowledge that is shared with whoever sends the request.
pub(super) struct Wire {
    stage: AtomicU8,
    /// Whether the peer has begun to answer the current request.
    answered: AtomicBool,
    guard: Mutex<Option<DispatchGuard>>,
}

impl Wire {
    /// HTTP/2 has something to say between requests as well. While a request is armed, it is its head
    /// that is guarded: whatever leaves before that is not of the request.
    pub(super) fn open() -> Arc<Self> {
        Arc::new(Self {
            stage: AtomicU8::new(OPEN),
            answered: AtomicBool::new(false),
            guard: Mutex::new(None),
        })
    }

    /// Lets the next request out, past `guard`. To be called just before the request is handed to
    /// the connection; one request at a time.
    pub(super) fn arm(&self, guard: Option<DispatchGuard>) {
        *self.guard.lock() = guard;
        self.answered.store(false, Ordering::Release);
        self.stage.store(ARMED, Ordering::Release);
    }

    /// Whether the peer has begun to answer, if only with a 1xx: then its word that it has not
    /// looked at the request contradicts itself.
    pub(super) fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Acquire)
    }

    /// Decides, once and for all, whether the armed request counts as sent.
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
    /// The guard is asked again if an earlier try could not write a single byte: what counts is
    /// the lease at the moment when the first byte leaves.
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

    /// Records how the claimed write ended. A write that would block moved no byte, and neither did
    /// one that failed on a plain socket; a secured one may have failed on its second try.
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

/// The other half: the socket itself, owned by hyper's connection.
pub(super) struct WireIo {
    transport: Transport,
    wire: Arc<Wire>,
    /// Where the frames that leave stand.
    leaving: Frames,
    /// Where those that come stand.
    coming: Frames,
    /// Whether the peer was found present since the current request was armed.
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

    /// Asks the kernel whether the peer has hung up; `Pending` means that it is there.
    ///
    /// tokio reads only after its event loop has seen the socket become readable, which lags behind
    /// under load. Without this question a connection whose end has long arrived would be
    /// written to, and each such write is an outcome that nobody can know.
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
        // Looked at once: the next request may be armed at any moment.
        let stage = self.wire.stage.load(Ordering::Acquire);
        let armed = stage == ARMED;
        let result = match self.leaving.until_a_request(slices).filter(|_| armed) {
            // Words of the connection's own: a setting, an acknowledgement. They go by themselves, so
            // that the request is asked about when it leaves itself.
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
    /// hyper reads before it takes the next request off its queue. A peer that the probe finds
    /// gone is reported here as the end of the stream, so hyper hands the request back untouched
    /// and it can go over another connection.
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
