//! The layout: the bucket of a record, and the names of its keys.
//!
//! The number of buckets is part of the layout and never changes: a record's bucket is the first byte of its
//! id. A cluster hashes only the part of a name in braces, so everything in one bucket is on one server, and
//! a script may access all of it at once.

use onlyonce_core::RecordId;

/// The number of buckets.
pub(super) const BUCKETS: u16 = 256;
/// The number of hash slots of a cluster.
const SLOTS: u16 = 16_384;

/// One bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bucket(pub(super) u8);

impl Bucket {
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(Self)
    }

    pub(super) fn of(id: RecordId) -> Self {
        Self(id.0[0])
    }
}

/// The keys that exist once per bucket.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// Ids by their number in lists.
    Numbers,
    /// Ids by the end of their lease.
    Leases,
    /// Ids by the time they became unknown.
    Unknown,
    /// Ids by the reconciler's next look.
    Due,
    /// Ids by the time they expire or may be deleted.
    Expiry,
    /// The number of records with each tag.
    Counts,
    /// All journal rows.
    Journal,
    /// The journal rows that outlive their record, by time.
    Kept,
    /// The mark of the store that owns the bucket.
    Mark,
    /// The names of scopes by id; a scope's bucket follows from its id, as a record's does.
    Scopes,
}

/// The keys that exist for each record in a bucket.
#[derive(Clone, Copy, Debug)]
pub(super) enum Of {
    /// The record without its answer's body.
    Record,
    /// The body of its answer.
    Answer,
    /// Its own journal rows.
    History,
}

/// The names of keys.
#[derive(Clone, Debug)]
pub(super) struct Names {
    prefix: String,
    slots: Vec<u16>,
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            slots: Bucket::all()
                .map(|bucket| slot(format!("b{:03}", bucket.0).as_bytes()))
                .collect(),
        }
    }

    fn start(&self, bucket: Bucket, letter: char) -> Vec<u8> {
        format!("{}:{{b{:03}}}:{letter}", self.prefix, bucket.0).into_bytes()
    }

    pub(super) fn part(&self, bucket: Bucket, part: Part) -> Vec<u8> {
        let letter = match part {
            Part::Numbers => 'n',
            Part::Leases => 'l',
            Part::Unknown => 'u',
            Part::Due => 'd',
            Part::Expiry => 'e',
            Part::Counts => 'c',
            Part::Journal => 'j',
            Part::Kept => 'k',
            Part::Mark => 's',
            Part::Scopes => 'g',
        };
        self.start(bucket, letter)
    }

    pub(super) fn of(&self, id: RecordId, of: Of) -> Vec<u8> {
        let letter = match of {
            Of::Record => 'r',
            Of::Answer => 'a',
            Of::History => 'h',
        };
        let mut name = self.start(Bucket::of(id), letter);
        name.push(b':');
        name.extend_from_slice(&id.0);
        name
    }

    /// The slot of everything in a bucket.
    pub(super) fn slot(&self, bucket: Bucket) -> u16 {
        self.slots[usize::from(bucket.0)]
    }

    /// The hash of values that exist once per store.
    pub(super) fn meta(&self) -> Vec<u8> {
        format!("{}:meta", self.prefix).into_bytes()
    }

    /// The hash of recipes.
    pub(super) fn recipes(&self) -> Vec<u8> {
        format!("{}:recipes", self.prefix).into_bytes()
    }

    /// The hash of blocks.
    pub(super) fn blocks(&self) -> Vec<u8> {
        format!("{}:blocks", self.prefix).into_bytes()
    }

    /// The channel of wake-ups. Channels are shared by all databases.
    pub(super) fn channel(&self, database: i64) -> String {
        format!("{}:wake:{database}", self.prefix)
    }
}

/// The slot of a name without braces, or of the part in braces: CRC16 (XMODEM) of its bytes.
pub(super) fn slot(hashed: &[u8]) -> u16 {
    let mut crc = 0_u16;
    for byte in hashed {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = match crc & 0x8000 {
                0 => crc << 1,
                _ => (crc << 1) ^ 0x1021,
            };
        }
    }
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        // The algorithm's check value, and a result of CLUSTER KEYSLOT.
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!(slot(b"foo"), 12_182);
    }

    #[test]
    fn names_of_one_bucket_share_their_braces() {
        let names = Names::new("oo");
        let id = RecordId([7; 16]);
        let bucket = Bucket::of(id);
        assert!(names.of(id, Of::Record).starts_with(b"oo:{b007}:r:"));
        assert_eq!(names.part(bucket, Part::Leases), b"oo:{b007}:l");
        assert_eq!(names.slot(bucket), slot(b"b007"));
        assert_eq!(Bucket::all().count(), usize::from(BUCKETS));
    }
}
