//! The byte stream below HTTP: plain TCP or TLS.

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

/// The state of the peer, as far as the kernel knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// The peer is connected, and has sent nothing unsolicited.
    Silent,
    /// The peer has closed the connection, or has sent something unsolicited.
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

    /// Asks the kernel, without waiting. `may_speak` allows bytes from a peer whose protocol lets it write
    /// between requests.
    ///
    /// Such bytes may mean nothing or announce a shutdown, and only their reader can tell which. But a peer
    /// that shuts down also closes its side, which the kernel knows.
    pub(super) fn peer(&self, may_speak: bool) -> io::Result<Peer> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(self.socket(), &mut [0_u8; 1], flags) {
            Ok((_, 1..)) if may_speak && !self.has_closed()? => Ok(Peer::Silent),
            Ok(_) => Ok(Peer::Gone),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Peer::Silent),
            Err(error) => Err(error.into()),
        }
    }

    /// Acknowledges received bytes without waiting for data to send with the acknowledgement, so that a peer
    /// with more to send sends it now. Best effort.
    pub(super) fn acknowledge(&self) {
        let _ = sockopt::set_tcp_quickack(self.socket(), true);
    }

    /// Whether the peer has closed its side, even if there are bytes left to read.
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
