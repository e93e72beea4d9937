//! Adds problem bodies to refusals by the protocol library.
//!
//! Over HTTP/1 a head that cannot be parsed, or is too large, never becomes a request: hyper answers it with
//! a bare status, and has no hook to say more. So this wrapper recognises that answer as it is written, and
//! writes a problem in its place. Its missing Date distinguishes it from every answer of ours: hyper is
//! configured to add none, and ours have one.

use std::{
    cell::RefCell,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Request, header};
use http_body_util::BodyExt;
use onlyonce::{Problem, stats::Event};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use super::{
    Current, Edge,
    linger::{LINGER_BYTES, LINGER_IDLE, LINGER_TIME},
};
use crate::clock;

/// How much of what was read since the last answer is kept to find out what was wrong, in bytes.
const REMEMBERED: usize = 16 << 10;
/// How hyper's own answers begin, and what else they contain.
const BEGINS: &[u8] = b"HTTP/1.1 4";
const IS_EMPTY: &[u8] = b"content-length: 0\r\n";
const ENDS: &[u8] = b"\r\n\r\n";
/// Their longest length, in bytes.
const LONGEST: usize = 256;
/// The buffer for discarded bytes after a refusal, in bytes.
const SCRATCH_BYTES: usize = 4 << 10;

/// An HTTP/1 connection whose bare refusals become problems.
pub(super) struct Explained<T> {
    io: T,
    current: Arc<Current>,
    /// The beginning of what was read since the last write.
    read: Vec<u8>,
    /// The unwritten rest of a replacement answer.
    instead: Bytes,
    /// Set after a refusal: the rest that the client sends is read and discarded. Otherwise closing would
    /// reset the connection, and the client might never see the refusal.
    lingers: Option<Lingers>,
}

/// How long, and how much, is read after a refusal.
struct Lingers {
    left: usize,
    end: Instant,
    /// When to stop unless another byte arrives.
    until: Pin<Box<Sleep>>,
}

impl<T> Explained<T> {
    pub(super) fn new(io: T, current: Arc<Current>) -> Self {
        Self {
            io,
            current,
            read: Vec::new(),
            instead: Bytes::new(),
            lingers: None,
        }
    }

    /// The problem behind a refusal that is about to be written.
    fn problem(&self, refusal: &[u8]) -> Option<Problem> {
        let is_bare = refusal.len() <= LONGEST
            && refusal.starts_with(BEGINS)
            && refusal.ends_with(ENDS)
            && contains(refusal, IS_EMPTY)
            && !contains(refusal, b"\r\ndate:");
        if !is_bare {
            return None;
        }
        let limit = self.current.config().max_header_size as u64;
        Some(match refusal.get(9..12)? {
            b"431" | b"414" => Problem::HeadersTooLarge(limit),
            _ if self.has_bad_key() => {
                Problem::KeyInvalid("it has a character that no key may have".to_owned())
            }
            _ => Problem::RequestMalformed("its head is not valid HTTP"),
        })
    }

    /// Whether the head cannot be parsed because of a key header's value.
    fn has_bad_key(&self) -> bool {
        let is_bad = |byte: &u8| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f;
        self.has_key(|value| value.iter().any(is_bad))
    }

    /// Whether there is a key header with `such` a value.
    fn has_key(&self, such: impl Fn(&[u8]) -> bool) -> bool {
        let edge = self.current.edge();
        let is_key = |name: &[u8]| {
            let mut lanes = edge.lanes.iter();
            lanes.any(|lane| {
                let known = &lane.layer.policy().header_name;
                name.eq_ignore_ascii_case(known.as_str().as_bytes())
            })
        };
        self.read.split(|byte| *byte == b'\n').any(|line| {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let colon = line.iter().position(|byte| *byte == b':');
            colon.is_some_and(|at| is_key(&line[..at]) && such(&line[at..]))
        })
    }

    /// Counts a refused key with a forbidden character, for the route of its request line.
    fn count(&self, edge: &Edge) -> Option<()> {
        let line = self
            .read
            .trim_ascii_start()
            .split(|byte| *byte == b'\r')
            .next()?;
        let mut words = line.split(|byte| *byte == b' ');
        let head = Request::builder().method(words.next()?).uri(words.next()?);
        let request = head.body(()).ok()?;
        let (_, rules) = edge.lanes_of(&request)?;
        if rules.layer.policy().honours(request.method()) {
            rules.layer.stats().count(Event::Request);
            rules.layer.stats().count(Event::InvalidKey);
        }
        Some(())
    }

    /// The complete answer for `problem`, which also closes the connection.
    fn answer(&self, problem: &Problem) -> Bytes {
        let edge = self.current.edge();
        if matches!(problem, Problem::KeyInvalid(_)) {
            self.count(&edge);
        }
        let mut response = match self.has_key(|_| true) {
            true => problem.response(&edge.policy),
            false => problem.unkeyed_response(&edge.policy),
        };
        date(response.headers_mut());
        let (parts, body) = response.into_parts();
        // The body is already in memory.
        let body = body.collect().now_or_never().and_then(Result::ok);
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        let mut bytes = format!("HTTP/1.1 {}\r\n", parts.status).into_bytes();
        for (name, value) in &parts.headers {
            bytes.extend_from_slice(name.as_str().as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value.as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
        let length = body.len();
        let last = format!("content-length: {length}\r\nconnection: close\r\n\r\n");
        bytes.extend_from_slice(last.as_bytes());
        bytes.extend_from_slice(&body);
        bytes.into()
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

thread_local! {
    /// The last `Date`, and its second.
    static LAST_DATE: RefCell<Option<(i64, HeaderValue)>> = const { RefCell::new(None) };
}

/// Sets the Date of an answer, unless it has one.
pub(super) fn date(headers: &mut HeaderMap) {
    if headers.contains_key(header::DATE) {
        return;
    }
    let second = clock::store_now().0.div_euclid(1_000);
    let value = LAST_DATE.with_borrow_mut(|last| {
        if let Some((_, value)) = last.as_ref().filter(|(known, _)| *known == second) {
            return Some(value.clone());
        }
        let value = HeaderValue::try_from(httpdate::fmt_http_date(clock::now())).ok()?;
        *last = Some((second, value.clone()));
        Some(value)
    });
    if let Some(value) = value {
        headers.insert(header::DATE, value);
    }
}

impl<T: AsyncWrite + Unpin> Explained<T> {
    /// Writes the replacement answer.
    fn poll_instead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.instead.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.instead))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.instead.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Replaces `bytes` if they are a refusal. Returns whether they were.
    fn takes(&mut self, bytes: &[u8]) -> bool {
        let answer = self.problem(bytes).map(|problem| self.answer(&problem));
        // In any case, it answers what was read.
        self.read.clear();
        if let Some(answer) = answer {
            self.instead = answer;
            self.lingers = Some(Lingers {
                left: LINGER_BYTES,
                end: Instant::now() + LINGER_TIME,
                until: Box::pin(sleep(LINGER_IDLE)),
            });
            return true;
        }
        false
    }
}

impl<T: AsyncRead + Unpin> Explained<T> {
    /// Reads after a refusal, and discards the bytes.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(lingers) = &mut self.lingers else {
            return Poll::Ready(());
        };
        let mut scratch = [0; SCRATCH_BYTES];
        while lingers.left > 0 && lingers.until.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::new(&mut scratch);
            let read = ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                break;
            }
            lingers.left = lingers.left.saturating_sub(buffer.filled().len());
            let until = lingers.end.min(Instant::now() + LINGER_IDLE);
            lingers.until.as_mut().reset(until);
        }
        self.lingers = None;
        Poll::Ready(())
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Explained<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        let new = buffer.filled().get(before..).unwrap_or_default();
        let room = REMEMBERED.saturating_sub(self.read.len());
        self.read.extend_from_slice(&new[..new.len().min(room)]);
        read
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Explained<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_instead(cx))?;
        if self.takes(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(cx))?;
        ready!(Pin::new(&mut self.io).poll_shutdown(cx))?;
        self.poll_linger(cx).map(Ok)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_instead(cx))?;
        // A refusal is written alone.
        let mut filled = slices.iter().filter(|slice| !slice.is_empty());
        match (filled.next(), filled.next()) {
            (Some(only), None) if self.takes(only) => Poll::Ready(Ok(only.len())),
            _ => {
                self.read.clear();
                Pin::new(&mut self.io).poll_write_vectored(cx, slices)
            }
        }
    }
}
