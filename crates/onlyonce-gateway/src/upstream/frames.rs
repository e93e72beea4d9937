//! Follows the HTTP/2 frames in one direction of a connection, far enough to tell when a request or an answer
//! begins.
//!
//! The protocol library writes its own frames between ours. The dispatch guard concerns only the request, so
//! the bytes are followed from frame to frame (RFC 9113 4.1), and nothing else is parsed.

use std::io::IoSlice;

/// The length of the client's connection preface, in bytes.
const PREFACE: u32 = 24;
/// The length of a frame's head, in bytes: three of length, the type, flags, and the stream.
const HEAD: usize = 9;
/// The position of the type in the head.
const TYPE_AT: usize = 3;
/// The type of the frame that begins a request or an answer.
const HEADERS: u8 = 1;

/// The position of the next byte within the frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frames {
    /// Bytes until the next frame's head.
    left: u32,
    /// How many bytes of the head were seen.
    seen: usize,
    /// The frame's length as far as it was read.
    length: u32,
}

impl Frames {
    /// Our side of a new connection, which begins with the preface.
    pub(super) fn ours() -> Self {
        Self {
            left: PREFACE,
            ..Self::theirs()
        }
    }

    /// The peer's side, which begins with a frame.
    pub(super) fn theirs() -> Self {
        Self {
            left: 0,
            seen: 0,
            length: 0,
        }
    }

    /// Follows received `bytes`. Returns whether an answer, or an informational one (1xx), begins in them.
    pub(super) fn begin_an_answer(&mut self, bytes: &[u8]) -> bool {
        self.follow(bytes).is_some()
    }

    /// How many bytes of `slices` precede the frame that begins a request; `None` if no request begins there.
    pub(super) fn until_a_request(mut self, slices: &[IoSlice<'_>]) -> Option<usize> {
        let mut before = 0;
        for slice in slices {
            if let Some(at) = self.follow(slice) {
                // Bytes of its head that an earlier write sent reveal nothing yet.
                return Some((before + at).saturating_sub(TYPE_AT));
            }
            before += slice.len();
        }
        None
    }

    /// Follows the first `count` bytes of `slices`, which were sent.
    pub(super) fn advance(&mut self, slices: &[IoSlice<'_>], mut count: usize) {
        for slice in slices {
            let gone = count.min(slice.len());
            self.follow(&slice[..gone]);
            count -= gone;
        }
    }

    /// Advances over `bytes`. Returns the position of the type of the first frame that begins a message.
    fn follow(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut found = None;
        let mut at = 0;
        while at < bytes.len() {
            if self.left > 0 {
                let rest = u32::try_from(bytes.len() - at).unwrap_or(u32::MAX);
                let skipped = self.left.min(rest);
                self.left -= skipped;
                at += usize::try_from(skipped).unwrap_or(usize::MAX);
                continue;
            }
            match self.seen {
                0..TYPE_AT => self.length = self.length << 8 | u32::from(bytes[at]),
                TYPE_AT if bytes[at] == HEADERS => found = found.or(Some(at)),
                _ => {}
            }
            self.seen += 1;
            at += 1;
            if self.seen == HEAD {
                *self = Self {
                    left: self.length,
                    seen: 0,
                    length: 0,
                };
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, length: usize) -> Vec<u8> {
        let mut bytes = vec![0, (length >> 8) as u8, length as u8, kind, 0, 0, 0, 0, 1];
        // A payload that looks like HEADERS frames.
        bytes.extend(std::iter::repeat_n(HEADERS, length));
        bytes
    }

    fn preface() -> Vec<u8> {
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()
    }

    /// Goal: the same bytes begin the same requests, wherever they are cut.
    #[test]
    fn a_request_begins_with_its_own_frame() {
        let mut before = preface();
        for (kind, length) in [(4, 18), (8, 4), (6, 8), (0, 700), (4, 0)] {
            before.extend(frame(kind, length));
        }
        let request = frame(HEADERS, 300);
        for cut in 0..before.len() {
            let mut frames = Frames::ours();
            let (one, two) = before.split_at(cut);
            for part in [one, two] {
                let slices = [
                    IoSlice::new(&part[..part.len() / 2]),
                    IoSlice::new(&part[part.len() / 2..]),
                ];
                assert_eq!(frames.until_a_request(&slices), None, "cut at {cut}");
                frames.advance(&slices, part.len());
            }
            assert_eq!(frames.until_a_request(&[IoSlice::new(&request)]), Some(0));
            // After a frame of another type, in another slice.
            let ping = frame(6, 8);
            let slices = [IoSlice::new(&ping), IoSlice::new(&request)];
            assert_eq!(frames.until_a_request(&slices), Some(ping.len()));
            // After a write that took part of its head.
            frames.advance(&[IoSlice::new(&request)], 2);
            assert_eq!(
                frames.until_a_request(&[IoSlice::new(&request[2..])]),
                Some(0)
            );
            frames.advance(&[IoSlice::new(&request[2..])], 148);
            assert_eq!(
                frames.until_a_request(&[IoSlice::new(&request[150..])]),
                None
            );
            frames.advance(&[IoSlice::new(&request[150..])], request.len() - 150);
            assert_eq!(frames.until_a_request(&[IoSlice::new(&request)]), Some(0));
        }
    }
}
