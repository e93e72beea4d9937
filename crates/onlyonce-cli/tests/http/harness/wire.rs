//! HTTP/1.1 as bytes: heads, bodies and trailers read off a socket exactly as they came.
//!
//! Shared by the upstream and the client, so that neither hides what the gateway did to a message.

use std::io;

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Header lines in their order, names as they were spelled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers(pub(crate) Vec<(String, String)>);

impl Headers {
    /// The first value of `name`.
    pub(crate) fn one(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    /// Every value of `name`, in order.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.0
            .iter()
            .filter(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
            .collect()
    }

    fn says(&self, name: &str, word: &str) -> bool {
        self.all(name)
            .iter()
            .flat_map(|value| value.split(','))
            .any(|part| part.trim().eq_ignore_ascii_case(word))
    }

    /// How the body that follows these headers is delimited.
    pub(crate) fn framing(&self, otherwise: Framing) -> Framing {
        if self.says("transfer-encoding", "chunked") {
            return Framing::Chunked;
        }
        match self.one("content-length") {
            Some(length) => Framing::Length(length.parse().expect("a numeric Content-Length")),
            None => otherwise,
        }
    }

    /// Whether the peer will close the connection after this message.
    pub(crate) fn closes(&self) -> bool {
        self.says("connection", "close")
    }
}

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    None,
    Length(usize),
    Chunked,
    UntilClose,
}

/// A start line and the headers below it.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) start: String,
    pub(crate) headers: Headers,
}

/// A body and what came after it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Body {
    pub(crate) bytes: Vec<u8>,
    pub(crate) trailers: Headers,
}

/// A socket with what was read and not yet used.
pub(crate) struct Wire {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Self {
        // Small writes must leave at once: tests hang up between them.
        stream
            .set_nodelay(true)
            .expect("TCP_NODELAY on a fresh socket");
        Self {
            stream,
            buffer: BytesMut::new(),
        }
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Says that nothing more will be written, and still reads.
    pub(crate) async fn finish_writing(&mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }

    /// Makes the coming drop a reset instead of an orderly close.
    pub(crate) fn reset_on_drop(&self) {
        self.stream
            .set_zero_linger()
            .expect("SO_LINGER on an open socket");
    }

    /// One more read into the buffer; `false` at the end of the stream.
    async fn fill(&mut self) -> io::Result<bool> {
        Ok(self.stream.read_buf(&mut self.buffer).await? > 0)
    }

    async fn need(&mut self, count: usize) -> io::Result<()> {
        while self.buffer.len() < count {
            if !self.fill().await? {
                return Err(broken("the peer closed in the middle of a body"));
            }
        }
        Ok(())
    }

    async fn line(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                let line = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
                self.buffer.advance(end + 2);
                return Ok(Some(line));
            }
            if !self.fill().await? {
                if self.buffer.is_empty() {
                    return Ok(None);
                }
                return Err(broken("the peer closed in the middle of a line"));
            }
        }
    }

    /// Reads until about `count` bytes more are in the buffer, and says how many it were.
    pub(crate) async fn take(&mut self, count: usize) -> io::Result<usize> {
        let before = self.buffer.len();
        while self.buffer.len() < before + count {
            if !self.fill().await? {
                break;
            }
        }
        Ok(self.buffer.len() - before)
    }

    /// Returns once there is something to read that was not used yet, or the peer has closed.
    pub(crate) async fn more(&mut self) -> io::Result<()> {
        while self.buffer.is_empty() && self.fill().await? {}
        Ok(())
    }

    /// Everything that comes before the peer closes or resets.
    pub(crate) async fn until_closed(&mut self) -> Vec<u8> {
        while self.fill().await.unwrap_or(false) {}
        self.buffer.split().to_vec()
    }

    /// Reads on until `text` has come by, without using anything up.
    pub(crate) async fn until(&mut self, text: &str) -> io::Result<()> {
        while !self
            .buffer
            .windows(text.len())
            .any(|part| part == text.as_bytes())
        {
            if !self.fill().await? {
                return Err(broken("the peer closed before the awaited text came"));
            }
        }
        Ok(())
    }

    /// The next head; `None` if the peer closed before its first byte.
    pub(crate) async fn head(&mut self) -> io::Result<Option<Head>> {
        let Some(start) = self.line().await? else {
            return Ok(None);
        };
        let headers = self.header_lines().await?;
        Ok(Some(Head { start, headers }))
    }

    async fn header_lines(&mut self) -> io::Result<Headers> {
        let mut headers = Headers::default();
        loop {
            let Some(line) = self.line().await? else {
                return Err(broken("the peer closed inside the headers"));
            };
            if line.is_empty() {
                return Ok(headers);
            }
            let Some((name, value)) = line.split_once(':') else {
                return Err(broken("a header line without a colon"));
            };
            headers.0.push((name.to_owned(), value.trim().to_owned()));
        }
    }

    pub(crate) async fn body(&mut self, framing: Framing) -> io::Result<Body> {
        let mut body = Body::default();
        match framing {
            Framing::None => {}
            Framing::Length(length) => {
                self.need(length).await?;
                body.bytes = self.buffer.split_to(length).to_vec();
            }
            Framing::UntilClose => {
                while self.fill().await? {}
                body.bytes = self.buffer.split().to_vec();
            }
            Framing::Chunked => loop {
                let Some(line) = self.line().await? else {
                    return Err(broken("the peer closed between two chunks"));
                };
                let digits = line.split(';').next().unwrap_or_default().trim();
                let size = usize::from_str_radix(digits, 16)
                    .map_err(|_| broken("a chunk size that is no number"))?;
                if size == 0 {
                    body.trailers = self.header_lines().await?;
                    break;
                }
                self.need(size + 2).await?;
                body.bytes.extend_from_slice(&self.buffer[..size]);
                self.buffer.advance(size + 2);
            },
        }
        Ok(body)
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, what)
}
