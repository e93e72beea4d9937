//! A cache entry: a record with its answer, the time it was last read from the database, and a code that only
//! gateways on this very store can make. A copy of the database also has the secret, but another identity or
//! another location; its answers do not count here.

use aws_lc_rs::hmac;
use bytes::Bytes;
use onlyonce_core::{Record, RecordId, Secret, Timestamp};

use crate::{
    Identity,
    codec::{Reader, put_block},
    row,
};

/// The version of an entry, which also distinguishes it from a mark that an answer was withdrawn.
const VERSION: u8 = 1;
/// The purpose of the code's key.
const PURPOSE: &[u8] = b"onlyonce cache entry 2";
/// The purpose of the name of a store's entries.
const NAMES: &[u8] = b"onlyonce cache names 1";
/// The length of that name in bytes: enough that two stores on one server do not collide.
const NAME_BYTES: usize = 8;
/// The length of the code, in bytes.
const CODE_BYTES: usize = 32;

/// Makes and checks entries.
pub(super) struct Sealer {
    key: hmac::Key,
    /// The prefix of the entries' names, so that stores that share a server do not overwrite each other's.
    name: String,
}

/// The content of an entry.
#[derive(Debug, PartialEq)]
pub(super) struct Entry {
    /// When the record was last read from the database, by the database's clock.
    pub(super) checked_at: Timestamp,
    /// The record.
    pub(super) record: Record,
}

impl Sealer {
    pub(super) fn new(secret: &Secret, identity: &Identity) -> Self {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let made_for = |purpose: &[u8]| {
            let mut said = Vec::new();
            put_block(purpose, &mut said);
            put_block(&identity.id(), &mut said);
            put_block(identity.place(), &mut said);
            hmac::sign(&secret, &said)
        };
        let name = made_for(NAMES);
        let name = name.as_ref()[..NAME_BYTES].iter();
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, made_for(PURPOSE).as_ref()),
            name: name.map(|byte| format!("{byte:02x}")).collect(),
        }
    }

    /// The prefix of the entries' names.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn seal(&self, record: &Record, checked_at: Timestamp) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&record.id.0);
        out.extend_from_slice(&checked_at.0.to_le_bytes());
        put_block(&row::stored(record), &mut out);
        match row::body(record) {
            Some(body) => {
                out.push(1);
                put_block(body, &mut out);
            }
            None => out.push(0),
        }
        let code = hmac::sign(&self.key, &out);
        out.extend_from_slice(code.as_ref());
        out
    }

    /// The content of `entry`; `None` if this store did not make it, or if it is not about `id`.
    pub(super) fn open(&self, id: RecordId, entry: &[u8]) -> Option<Entry> {
        let (said, code) = entry.split_at_checked(entry.len().checked_sub(CODE_BYTES)?)?;
        hmac::verify(&self.key, said, code).ok()?;
        let mut reader = Reader::new(said);
        if reader.byte().ok()? != VERSION || reader.array().ok()? != id.0 {
            return None;
        }
        let checked_at = Timestamp(i64::from_le_bytes(reader.array().ok()?));
        let stored = reader.block().ok()?;
        let body = match reader.byte().ok()? {
            0 => None,
            _ => Some(Bytes::copy_from_slice(reader.block().ok()?)),
        };
        reader.end().ok()?;
        let record = row::read_whole(id, stored, body).ok()?;
        Some(Entry { checked_at, record })
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use onlyonce_core::{
        AttemptId, Fingerprint, Key, Policy, Recipe, Scope, StoredResponse,
        machine::{self, End, Request, Settlement},
    };
    use onlyonce_testkit::fuzz::Fuzz;

    use super::*;

    fn completed() -> Record {
        let key = Key::from_stored("k");
        let request = Request {
            id: RecordId([7; 16]),
            scope: Scope::global(),
            key,
            fingerprint: Fingerprint([7; 32]),
            recipe: Recipe::default().id(),
            caller: None,
            attempt_id: AttemptId(1),
            route: "r".into(),
            method: "POST".into(),
            path: "/".into(),
            other_mark: None,
            notes: onlyonce_core::record::Notes::default(),
        };
        let record = machine::first(&request, &Policy::default()).stamp(Timestamp(1_000));
        let answer = StoredResponse::plain(StatusCode::CREATED, "paid");
        let settlement = Settlement::Complete(answer.into());
        let settled = machine::apply(
            Some(&record),
            &End {
                attempt: AttemptId(1),
                settlement: &settlement,
            },
            Timestamp::default(),
            &Policy::default(),
        );
        match settled.swapped() {
            Some(change) => change.draft.stamp(Timestamp(2_000)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_entry_comes_back_and_a_bent_one_does_not() {
        let secret = Secret::from_bytes([1; 32]);
        let identity = Identity::of_secret(&secret);
        let sealer = Sealer::new(&secret, &identity);
        let (record, checked_at) = (completed(), Timestamp(3_000));
        let entry = sealer.seal(&record, checked_at);
        let opened = sealer.open(record.id, &entry);
        assert_eq!(
            opened,
            Some(Entry {
                checked_at,
                record: record.clone()
            })
        );
        for at in 0..entry.len() {
            let mut bent = entry.clone();
            bent[at] ^= 1;
            assert_eq!(sealer.open(record.id, &bent), None, "byte {at}");
            assert_eq!(sealer.open(record.id, &entry[..at]), None, "cut at {at}");
        }
        assert_eq!(sealer.open(RecordId([8; 16]), &entry), None, "another key");
        let other = Sealer::new(&Secret::from_bytes([2; 32]), &identity);
        assert_eq!(other.open(record.id, &entry), None, "another store");
        let of_a_copy = Identity::found(&secret, Some(&[3; 16]));
        for of_a_copy in [of_a_copy, identity.at(b"elsewhere".to_vec())] {
            let copy = Sealer::new(&secret, &of_a_copy);
            assert_eq!(copy.open(record.id, &entry), None, "a copy of the store");
            assert_ne!(copy.name(), sealer.name());
        }
    }

    /// Goal: everything that this store did not write about this very key is refused as forged.
    #[test]
    fn forged_entries_are_refused() {
        let secret = Secret::from_bytes([1; 32]);
        let sealer = Sealer::new(&secret, &Identity::of_secret(&secret));
        let records = crate::fuzz::records();
        let sealed = records.iter().map(|record| {
            let entry = sealer.seal(record, Timestamp(3_000));
            (record.id, entry)
        });
        let sealed: Vec<_> = sealed.collect();
        let id = sealed[0].0;
        Fuzz::new("cache entry", 60_000)
            .seeds(sealed.iter().map(|(_, entry)| entry))
            .run(|entry| {
                let ours = |(of, ours): &(RecordId, Vec<u8>)| *of == id && ours == entry;
                let is_ours = sealed.iter().any(ours);
                assert_eq!(sealer.open(id, entry).is_some(), is_ours);
                (is_ours, entry.len() / 16)
            });
    }
}
