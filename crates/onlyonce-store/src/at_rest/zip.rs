//! zstd, with or without a dictionary. Contexts are reused: creating one costs more than a short answer.

use parking_lot::Mutex;
use zstd::{
    bulk::{Compressor, Decompressor},
    zstd_safe::CParameter,
};

/// The compression level for long answers and for answers with a dictionary of their own.
pub(super) const THOROUGH: i32 = 3;
/// The compression level for other short answers: less than half the time, for a tenth more bytes.
pub(super) const QUICK: i32 = -1;
/// The most contexts kept for each dictionary.
const KEPT: usize = 16;
/// The start of every frame. It is left out, since nothing else is ever stored there.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The largest result of unpacking, in bytes.
pub(super) const MAX_UNPACKED: usize = 1 << 30;

/// A dictionary, or none, with its contexts.
pub(super) struct Zip {
    level: i32,
    dictionary: Vec<u8>,
    compressors: Mutex<Vec<Compressor<'static>>>,
    decompressors: Mutex<Vec<Decompressor<'static>>>,
}

impl Zip {
    /// An empty `dictionary` means none.
    pub(super) fn new(level: i32, dictionary: Vec<u8>) -> Self {
        Self {
            level,
            dictionary,
            compressors: Mutex::default(),
            decompressors: Mutex::default(),
        }
    }

    fn compressor(&self) -> std::io::Result<Compressor<'static>> {
        if let Some(kept) = self.compressors.lock().pop() {
            return Ok(kept);
        }
        let mut made = Compressor::with_dictionary(self.level, &self.dictionary)?;
        // The length and the dictionary are stored elsewhere.
        made.set_parameter(CParameter::ContentSizeFlag(false))?;
        made.set_parameter(CParameter::DictIdFlag(false))?;
        Ok(made)
    }

    /// `plain`, compressed; `None` on failure.
    pub(super) fn pack(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let mut compressor = self.compressor().ok()?;
        let packed = compressor.compress(plain).ok()?;
        let mut kept = self.compressors.lock();
        if kept.len() < KEPT {
            kept.push(compressor);
        }
        drop(kept);
        packed.strip_prefix(&MAGIC).map(<[u8]>::to_vec)
    }

    /// Unpacks what was `length` bytes before; `None` if it was not.
    pub(super) fn unpack(&self, packed: &[u8], length: usize) -> Option<Vec<u8>> {
        if length > MAX_UNPACKED {
            return None;
        }
        let kept = self.decompressors.lock().pop();
        let mut decompressor = match kept {
            Some(kept) => kept,
            None => Decompressor::with_dictionary(&self.dictionary).ok()?,
        };
        let mut frame = Vec::with_capacity(MAGIC.len() + packed.len());
        frame.extend_from_slice(&MAGIC);
        frame.extend_from_slice(packed);
        let plain = decompressor.decompress(&frame, length).ok()?;
        let mut kept = self.decompressors.lock();
        if kept.len() < KEPT {
            kept.push(decompressor);
        }
        (plain.len() == length).then_some(plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back() {
        let text = b"{\"status\":\"succeeded\"}".repeat(20);
        let dictionaries = [Vec::new(), b"\"status\":\"succeeded\"".repeat(3)];
        for (level, dictionary) in [THOROUGH, QUICK].into_iter().zip(dictionaries) {
            let zip = Zip::new(level, dictionary);
            for _ in 0..3 {
                let packed = zip.pack(&text).unwrap();
                assert!(packed.len() < text.len() / 4);
                assert_eq!(zip.unpack(&packed, text.len()).unwrap(), text);
                assert_eq!(zip.unpack(&packed, text.len() - 1), None, "it is longer");
                assert_eq!(zip.unpack(&packed, text.len() + 1), None, "it is shorter");
                assert_eq!(zip.unpack(&packed, MAX_UNPACKED + 1), None);
                assert_eq!(zip.unpack(&packed[..packed.len() - 1], text.len()), None);
            }
        }
    }
}
