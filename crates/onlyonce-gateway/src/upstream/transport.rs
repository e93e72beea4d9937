//! The bytes below HTTP: a socket, or a secured one.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, recv, sockopt},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

/// A connection to a backend.
pub(super) enum Transport {
    Plain(TcpStream),
    Secured(Box<TlsStream<TcpStream>>),
}

/// What the kernel knows of the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// It is there, and has said nothing that was not asked for.
    Silent,
    /// It has hung up, or has spoken out of turn.
    Gone,
}

impl Transport {
    pub(super) fn is_secured(&self) -> bool {
        matches!(self, Self::Secured(_))
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Secured(stream) => stream.get_ref().0,
        }
    }

    /// Asks the kernel, without waiting. `may_speak` is a peer whose protocol lets it say something
    /// between requests.
    ///
    /// Bytes that wait there may mean nothing or be a farewell, and only their reader can tell which; but
    /// a peer that says farewell also closes its side, and that the kernel knows.
    pub(super) fn peer(&self, may_speak: bool) -> io::Result<Peer> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(self.socket(), &mut [0_u8; 1], flags) {
            Ok((_, 1..)) if may_speak && !self.has_closed()? => Ok(Peer::Silent),
            Ok(_) => Ok(Peer::Gone),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Peer::Silent),
            Err(error) => Err(error.into()),
        }
    }

    /// Acknowledges what has come without waiting for something to send it with, so that a peer which has
    /// more to say says it now. Best effort.
    pub(super) fn acknowledge(&self) {
        let _ = sockopt::set_tcp_quickack(self.socket(), true);
    }

    /// Whether the peer has closed its side, whatever is still to be read.
    fn has_closed(&self) -> io::Result<bool> {
        let socket = self.socket();
        let mut asked = [PollFd::new(socket, PollFlags::RDHUP)];
        poll(&mut asked, Some(&Timespec::default()))?;
        let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        Ok(asked[0].revents().intersects(ended))
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buffer),
            Self::Secured(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Secured(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, slices),
            Self::Secured(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(socket) => socket.is_write_vectored(),
            Self::Secured(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Secured(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Secured(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
