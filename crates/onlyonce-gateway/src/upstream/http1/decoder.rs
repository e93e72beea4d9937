//! Finds the end of an answer's body, and removes the framing from its bytes (RFC 9112 6 and 7).
//!
//! A body that stops before its framing ends is an error, never an end.

use bytes::{Bytes, BytesMut};
use http::{Method, Version, header::TRANSFER_ENCODING, response::Parts};
use http_body::Frame;
use onlyonce::body::{Declared, Framing};

use super::{Broken, head};
use crate::upstream::response::is_chunked;

/// The limits for all chunk extensions together, and for the trailers, in bytes.
const MAX_EXTENSIONS: usize = 16 << 10;
const MAX_TRAILERS: usize = 16 << 10;

/// Decodes one body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decoder {
    /// This many bytes remain.
    Length(u64),
    Chunked(Chunks),
    /// The body ends where the connection ends.
    Close,
}

/// The next item in the bytes received.
#[derive(Debug)]
pub(super) enum Decoded {
    Frame(Frame<Bytes>),
    /// More bytes are needed.
    More,
    End,
}

impl Decoder {
    /// The decoder for the body after `head`, which answers a request with `method`.
    pub(super) fn new(head: &Parts, method: &Method) -> Result<Self, Broken> {
        match Framing::of_answer(head, method).declared() {
            Declared::NoBody => Ok(Self::Length(0)),
            Declared::Exactly(length) => Ok(Self::Length(length)),
            Declared::Nonsense => Err(Broken::Framing("no length that can be read")),
            Declared::Nothing if !head.headers.contains_key(TRANSFER_ENCODING) => Ok(Self::Close),
            Declared::Nothing if head.version == Version::HTTP_10 => {
                Err(Broken::Framing("a transfer coding in HTTP/1.0"))
            }
            Declared::Nothing if is_chunked(&head.headers) => Ok(Self::Chunked(Chunks::default())),
            Declared::Nothing => Ok(Self::Close),
        }
    }

    /// Whether the body has ended.
    pub(super) fn is_done(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunks) => chunks.state == State::Done,
            Self::Close => false,
        }
    }

    /// Takes the next item off the front of `bytes`.
    pub(super) fn decode(&mut self, bytes: &mut BytesMut) -> Result<Decoded, Broken> {
        match self {
            _ if self.is_done() => Ok(Decoded::End),
            _ if bytes.is_empty() => Ok(Decoded::More),
            Self::Length(left) => {
                let taken = bytes
                    .len()
                    .min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= taken as u64;
                Ok(Decoded::Frame(Frame::data(bytes.split_to(taken).freeze())))
            }
            Self::Chunked(chunks) => chunks.decode(bytes),
            Self::Close => Ok(Decoded::Frame(Frame::data(bytes.split().freeze()))),
        }
    }

    /// Whether the body may end here, now that the connection was closed cleanly.
    pub(super) fn ends_here(&self) -> Result<(), Broken> {
        match self {
            Self::Close => Ok(()),
            _ if self.is_done() => Ok(()),
            _ => Err(Broken::Ended),
        }
    }
}

/// A chunked body.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Chunks {
    state: State,
    /// Bytes of extensions so far.
    extensions: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// In the size that begins a chunk, with its value so far.
    Size(Option<u64>),
    /// After the size, in white space or an extension.
    Extension {
        size: u64,
        begun: bool,
    },
    /// Before the LF that ends the size line.
    SizeLf(u64),
    /// This many bytes of the chunk remain.
    Data(u64),
    /// Before the CRLF after a chunk.
    DataCr,
    DataLf,
    /// After the last chunk.
    Trailers(head::Lines),
    Done,
}

impl Default for State {
    fn default() -> Self {
        Self::Size(None)
    }
}

impl Chunks {
    fn decode(&mut self, bytes: &mut BytesMut) -> Result<Decoded, Broken> {
        loop {
            match &mut self.state {
                State::Data(left) => {
                    if bytes.is_empty() {
                        return Ok(Decoded::More);
                    }
                    let taken = bytes
                        .len()
                        .min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= taken as u64;
                    if *left == 0 {
                        self.state = State::DataCr;
                    }
                    return Ok(Decoded::Frame(Frame::data(bytes.split_to(taken).freeze())));
                }
                State::Trailers(lines) => {
                    return trailers(lines, bytes).inspect(|decoded| {
                        if !matches!(decoded, Decoded::More) {
                            self.state = State::Done;
                        }
                    });
                }
                State::Done => return Ok(Decoded::End),
                _ => {}
            }
            let Some(&byte) = bytes.first() else {
                return Ok(Decoded::More);
            };
            let _ = bytes.split_to(1);
            self.step(byte)?;
        }
    }

    /// Consumes one byte of framing.
    fn step(&mut self, byte: u8) -> Result<(), Broken> {
        self.state = match (&self.state, byte) {
            (State::Size(size), b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = char::from(byte).to_digit(16).map_or(0, u64::from);
                let size = size.unwrap_or(0).checked_mul(16);
                let size = size.ok_or(Broken::Framing("a chunk without measure"))?;
                State::Size(Some(size | digit))
            }
            (State::Size(Some(size)), b'\r') | (State::Extension { size, .. }, b'\r') => {
                State::SizeLf(*size)
            }
            (State::Size(Some(size)), b' ' | b'\t') => State::Extension {
                size: *size,
                begun: false,
            },
            (&State::Extension { size, begun: false }, b' ' | b'\t') => {
                self.extend()?;
                State::Extension { size, begun: false }
            }
            (State::Size(Some(size)) | State::Extension { size, begun: false }, b';') => {
                State::Extension {
                    size: *size,
                    begun: true,
                }
            }
            (&State::Extension { size, begun: true }, byte) if byte != b'\n' => {
                self.extend()?;
                State::Extension { size, begun: true }
            }
            (State::SizeLf(0), b'\n') => State::Trailers(head::Lines::default()),
            (State::SizeLf(size), b'\n') => State::Data(*size),
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::Size(None),
            _ => return Err(Broken::Framing("a chunk that is none")),
        };
        Ok(())
    }

    fn extend(&mut self) -> Result<(), Broken> {
        self.extensions += 1;
        if self.extensions > MAX_EXTENSIONS {
            return Err(Broken::Framing("extensions of chunks without end"));
        }
        Ok(())
    }
}

/// Parses what follows the last chunk: an empty line, or trailers and an empty line.
fn trailers(lines: &mut head::Lines, bytes: &mut BytesMut) -> Result<Decoded, Broken> {
    match bytes[..] {
        [] | [b'\r'] => return Ok(Decoded::More),
        [b'\r', b'\n', ..] => {
            let _ = bytes.split_to(2);
            return Ok(Decoded::End);
        }
        _ => {}
    }
    match lines.end(bytes) {
        // Stricter than for a head: no known server writes trailers without CR.
        Some(length) if has_bare_line_break(&bytes[..length]) => {
            Err(Broken::Framing("trailers whose lines end without CR"))
        }
        Some(length) if length <= MAX_TRAILERS => {
            let trailers = head::parse_trailers(&bytes.split_to(length).freeze())?;
            Ok(Decoded::Frame(Frame::trailers(trailers)))
        }
        None if bytes.len() <= MAX_TRAILERS => Ok(Decoded::More),
        _ => Err(Broken::Framing("trailers without end")),
    }
}

fn has_bare_line_break(bytes: &[u8]) -> bool {
    let breaks = bytes.iter().filter(|byte| **byte == b'\n').count();
    breaks != bytes.windows(2).filter(|pair| pair == b"\r\n").count()
}
