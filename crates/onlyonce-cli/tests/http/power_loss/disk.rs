//! What a disk may hold after a power loss, made from a log of writes, cuts and syncs.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// What reaches a disk whole or not at all, in bytes.
const SECTOR: usize = 512;

/// What the disk does when it is asked to keep something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promise {
    Kept,
    /// It says that it did.
    Broken,
}

/// Chance that can be had again.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

enum Deed {
    Write {
        offset: usize,
        bytes: Vec<u8>,
    },
    Cut(usize),
    Sync,
    /// The file is gone. Folders are taken to keep what is done to them.
    Removed,
}

struct Line {
    /// Where its line ends in the log.
    end: u64,
    name: String,
    deed: Deed,
}

/// Everything that was done to the files, in order.
pub(super) struct Log {
    lines: Vec<Line>,
    len: u64,
}

impl Log {
    pub(super) fn read(path: &Path) -> Self {
        let bytes = fs::read(path).expect("a log");
        let mut lines = Vec::new();
        let mut at = 0;
        let mut take = |count: usize| {
            let taken = bytes.get(at..at + count)?;
            at += count;
            Some((taken, at as u64))
        };
        let number = |bytes: &[u8]| {
            let mut all = [0; 8];
            all[..bytes.len()].copy_from_slice(bytes);
            usize::try_from(u64::from_le_bytes(all)).expect("a length")
        };
        // A line that the kill cut off was never acknowledged to anybody.
        while let Some((kind, _)) = take(1) {
            let line = (|| {
                let named = number(take(2)?.0);
                let name = String::from_utf8(take(named)?.0.to_vec()).expect("a name");
                let offset = number(take(8)?.0);
                let (length, mut end) = take(4).map(|(bytes, end)| (number(bytes), end))?;
                let deed = match kind[0] {
                    b'w' => {
                        let (bytes, last) = take(length)?;
                        end = last;
                        let bytes = bytes.to_vec();
                        Deed::Write { offset, bytes }
                    }
                    b't' => Deed::Cut(offset),
                    b's' => Deed::Sync,
                    b'u' => Deed::Removed,
                    other => panic!("no such kind: {other}"),
                };
                Some(Line { end, name, deed })
            })();
            let Some(line) = line else { break };
            lines.push(line);
        }
        let len = lines.last().map_or(0, |line| line.end);
        Self { lines, len }
    }

    /// How long it is, in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Writes the files as they may be when the power is lost after `at` bytes of the log.
    pub(super) fn files_at(&self, at: u64, promise: Promise, dice: &mut Dice, folder: &Path) {
        let mut files: BTreeMap<&str, Vec<&Deed>> = BTreeMap::new();
        for line in self.lines.iter().filter(|line| line.end <= at) {
            match line.deed {
                Deed::Removed => drop(files.remove(&*line.name)),
                _ => files.entry(&line.name).or_default().push(&line.deed),
            }
        }
        for (name, deeds) in files {
            let is_sync = |deed: &&Deed| matches!(deed, Deed::Sync);
            // The very first are kept in any case: a database that was never made proves nothing.
            let kept = match promise {
                Promise::Kept => deeds.iter().rposition(is_sync),
                Promise::Broken => deeds.iter().position(is_sync),
            };
            let mut bytes = Vec::new();
            for (number, deed) in deeds.iter().enumerate() {
                let certain = kept.is_some_and(|kept| number <= kept);
                apply(deed, &mut bytes, || certain || dice.below(2) == 0);
            }
            fs::write(PathBuf::from(folder).join(name), bytes).expect("a file");
        }
    }
}

/// Does to `bytes` what `happens` of a deed, sector by sector.
fn apply(deed: &Deed, bytes: &mut Vec<u8>, mut happens: impl FnMut() -> bool) {
    match deed {
        Deed::Sync | Deed::Removed => {}
        Deed::Cut(length) => {
            if happens() {
                bytes.resize(*length, 0);
            }
        }
        Deed::Write { offset, bytes: new } => {
            let mut at = 0;
            while at < new.len() {
                let next = ((offset + at) / SECTOR + 1) * SECTOR - offset;
                let next = next.min(new.len());
                if happens() {
                    if bytes.len() < offset + next {
                        bytes.resize(offset + next, 0);
                    }
                    bytes[offset + at..offset + next].copy_from_slice(&new[at..next]);
                }
                at = next;
            }
        }
    }
}
