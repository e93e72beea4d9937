//! Frames of HTTP/2, as far as they must be understood to say which requests are whole.

use std::collections::BTreeMap;

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut out = length[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// `name=value&name=value` as a header block without compression.
pub(super) fn block(headers: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for header in headers
        .split(|byte| *byte == b'&')
        .filter(|one| !one.is_empty())
    {
        let mut parts = header.splitn(2, |byte| *byte == b'=');
        out.push(0);
        for part in [parts.next(), parts.next()] {
            // Longer ones would need more than a byte for their length.
            let part = part.unwrap_or_default();
            let part = &part[..part.len().min(126)];
            out.extend(part.len().to_le_bytes().first());
            out.extend_from_slice(part);
        }
    }
    out
}

pub(super) struct Frame<'a> {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: &'a [u8],
}

/// The whole frames that `bytes` begin with, and what is left.
pub(super) fn frames(mut bytes: &[u8]) -> (Vec<Frame<'_>>, &[u8]) {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some((payload, rest)) = rest.split_at_checked(length) else {
            break;
        };
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        frames.push(Frame {
            kind: head[3],
            flags: head[4],
            stream,
            payload,
        });
        bytes = rest;
    }
    (frames, bytes)
}

/// The bodies of the streams that a client ended, each in the order of their ends.
pub(super) fn whole_bodies(frames: &[Frame<'_>]) -> Vec<Vec<u8>> {
    let mut open = BTreeMap::<u32, Vec<u8>>::new();
    let mut whole = Vec::new();
    // The stream whose header block is not whole, and whether it ends with it.
    let mut block = None;
    for frame in frames {
        let ends = frame.flags & END_STREAM != 0;
        let has_all = frame.flags & END_HEADERS != 0;
        match (block, frame.kind) {
            (None, HEADERS) => {
                open.entry(frame.stream).or_default();
                block = Some((frame.stream, ends));
            }
            (Some((stream, _)), CONTINUATION) if stream == frame.stream => {}
            // Nothing may come between.
            (Some(_), _) => return whole,
            (None, DATA) => {
                let Some(data) = without_padding(frame) else {
                    return whole;
                };
                let Some(body) = open.get_mut(&frame.stream) else {
                    continue;
                };
                body.extend_from_slice(data);
                if ends {
                    whole.extend(open.remove(&frame.stream));
                }
            }
            (None, RST_STREAM) => {
                open.remove(&frame.stream);
            }
            _ => {}
        }
        if let (Some((stream, ends)), true) = (
            block,
            has_all && matches!(frame.kind, HEADERS | CONTINUATION),
        ) {
            block = None;
            if ends {
                whole.extend(open.remove(&stream));
            }
        }
    }
    whole
}

fn without_padding<'a>(frame: &Frame<'a>) -> Option<&'a [u8]> {
    if frame.flags & PADDED == 0 {
        return Some(frame.payload);
    }
    let (padding, rest) = frame.payload.split_first()?;
    rest.get(..rest.len().checked_sub(usize::from(*padding))?)
}
