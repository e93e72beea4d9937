//! The framing of everything that is hashed: each part is preceded by its length, so that no two lists of
//! parts give the same message.

use crate::secret::length;

pub(super) fn write_length(of: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&length(of));
}

pub(super) fn write_framed(part: &[u8], out: &mut Vec<u8>) {
    write_length(part.len(), out);
    out.extend_from_slice(part);
}

/// Frames whatever `write` appends; its length is known only afterwards.
pub(super) fn write_framed_with<T>(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    let prefix = out.len();
    write_length(0, out);
    let start = out.len();
    let result = write(out);
    let written = length(out.len() - start);
    out[prefix..start].copy_from_slice(&written);
    result
}
