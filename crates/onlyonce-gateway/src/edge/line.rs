//! The socket of a client, below TLS and HTTP. It sees every byte that the client takes, and notices when the
//! client has closed its side.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::FutureExt;
use http::Version;
use onlyonce::Presence;
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
};

use super::patience::Patience;

/// State shared between a connection's socket and its requests.
#[derive(Default)]
pub(crate) struct Line {
    /// Notified when the client closes its side.
    pub(crate) presence: Presence,
    is_aborted: AtomicBool,
}

impl Line {
    /// Called when an answer broke off. An HTTP/1.0 client would take the end of the connection for the end
    /// of the answer, so its connection is reset instead.
    pub(crate) fn broke_off(&self, version: Version) {
        if version <= Version::HTTP_10 {
            self.is_aborted.store(true, Ordering::Release);
        }
    }
}

/// A client's socket. Writes fail once the client has taken nothing for too long.
pub(crate) struct ClientSocket {
    socket: TcpStream,
    line: Arc<Line>,
    patience: Patience,
    has_left: bool,
}

impl ClientSocket {
    pub(crate) fn new(socket: TcpStream, send_timeout: Duration, line: Arc<Line>) -> Self {
        Self {
            socket,
            line,
            patience: Patience::new(send_timeout),
            has_left: false,
        }
    }

    fn judge<O>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<O>>,
    ) -> Poll<io::Result<O>> {
        if written.is_ready() {
            self.patience.end();
            return written;
        }
        ready!(self.patience.poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Checks whether the client has closed its side. hyper does not read while a request is being answered,
    /// since the client may have sent everything; the end would be seen only after the answer.
    fn watch(&mut self, cx: &mut Context<'_>) {
        if self.has_left || self.socket.poll_read_ready(cx).is_pending() {
            return;
        }
        let ready = self.socket.ready(Interest::READABLE).now_or_never();
        if ready.is_some_and(|ready| ready.is_ok_and(|ready| ready.is_read_closed())) {
            self.has_left = true;
            self.line.presence.left();
        }
    }
}

impl Drop for ClientSocket {
    fn drop(&mut self) {
        if self.line.is_aborted.load(Ordering::Acquire) {
            // Best effort: the client sees a reset instead of an end.
            let _ = self.socket.set_zero_linger();
        }
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buffer)
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.judge(cx, written)
    }

    /// hyper flushes whenever it is woken, so the client is watched here.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.watch(cx);
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, slices);
        self.judge(cx, written)
    }
}
