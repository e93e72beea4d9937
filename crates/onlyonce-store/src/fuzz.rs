//! Fuzzing of whatever reads what a store holds: what was written comes back, and anything else is an error
//! or the very record that it spells, never a panic and never a default.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use onlyonce_core::{
    Record, RecordId, Spelling, State,
    record::{Evidence, LastError, MarkedBy, Notes, StoredBody, StoredResponse},
};
use onlyonce_testkit::{fuzz::Fuzz, scenarios::world};

use crate::{
    codec::{self, CodecError},
    sql::row::{self, Columns, RowError, unreadable},
};

/// An answer with repeated lines, bytes that are not text, and trailers.
fn answer() -> StoredResponse {
    let mut headers = HeaderMap::new();
    headers.append("link", HeaderValue::from_static("<a>"));
    headers.append("link", HeaderValue::from_static("<b>"));
    headers.append("x-bytes", HeaderValue::from_bytes(b"\xff\xfe").unwrap());
    let quoted = http::HeaderName::from_lowercase(b"a\"b").unwrap();
    headers.append(quoted, HeaderValue::from_static(""));
    let trailers =
        HeaderMap::from_iter([("x-sum".parse().unwrap(), HeaderValue::from_static("1"))]);
    StoredResponse {
        status: StatusCode::CREATED,
        headers,
        body: StoredBody::Full {
            bytes: Bytes::from_static(b"\x00\x01"),
            trailers: Some(trailers),
        },
    }
}

fn packed() -> StoredResponse {
    StoredResponse {
        status: StatusCode::OK,
        headers: HeaderMap::new(),
        body: StoredBody::Packed {
            block: Bytes::from_static(b"block"),
            length: 70_000,
        },
    }
}

fn notes() -> Notes {
    Notes {
        spelling: Some(Spelling::Quoted(b"\"a b\";v=2".as_slice().into())),
        marked_by: MarkedBy::Cookies,
        never_reached: true,
        negative_at: Some(world::START),
        erased: false,
        attested: true,
    }
}

/// Every kind of record that the machine makes, and one that has everything.
pub(crate) fn records() -> Vec<Record> {
    let mut records: Vec<_> = world::records().into_iter().map(|(_, one)| one).collect();
    let mut full = world::completed();
    full.response = Some(Arc::new(answer()));
    full.evidence = Some(Evidence::Completed(Arc::new(packed())));
    full.notes = notes();
    full.last_error = Some(LastError::Timeout);
    records.push(full);
    records
}

/// Nothing that is cut short is taken for whole.
pub(crate) fn no_part_is_read<T>(whole: &[u8], read: impl Fn(&[u8]) -> Option<T>) {
    for cut in 0..whole.len() {
        assert!(read(&whole[..cut]).is_none(), "cut after {cut} bytes");
    }
}

fn word(error: CodecError) -> u8 {
    match error {
        CodecError::Damaged => 0,
        CodecError::Version(version) => version,
    }
}

#[test]
fn heads() {
    let mut bare = answer();
    bare.body = StoredBody::NotStored;
    let seeds = [answer(), bare, packed()];
    Fuzz::new("head", 80_000)
        .seeds(seeds.iter().map(codec::encode_head))
        .words(["\x01\0\0\0", "x-a", "\0\0"])
        .max_bytes(200)
        .run(|block| {
            let mut read = 0_u32;
            for body in [None, Some(Bytes::from_static(b"body"))] {
                let response = match codec::decode_head(block, body.clone()) {
                    Ok(response) => response,
                    Err(error) => {
                        read = read * 256 + u32::from(word(error));
                        continue;
                    }
                };
                assert_eq!(block[0], 1, "the only version");
                let again = codec::encode_head(&response);
                assert_eq!(again.len(), block.len(), "nothing is left out");
                assert_eq!(codec::body_of(&response), body.as_deref());
                assert_eq!(codec::has_body(block), body.is_some());
                let response = Some(response);
                assert_eq!(codec::decode_head(&again, body.clone()).ok(), response);
                no_part_is_read(block, |part| codec::decode_head(part, body.clone()).ok());
                read = read * 256 + 2;
            }
            (read, block.len() / 4)
        });
}

#[test]
fn evidence_and_notes() {
    let evidence = [
        Evidence::NotExecuted,
        Evidence::Contradictory,
        Evidence::Completed(Arc::new(answer())),
        Evidence::Completed(Arc::new(packed())),
    ];
    let notes = codec::encode_notes(&notes()).unwrap();
    Fuzz::new("evidence", 80_000)
        .seeds(evidence.iter().map(codec::encode_evidence))
        .seeds([notes])
        .max_bytes(200)
        .run(|block| {
            let evidence = codec::decode_evidence(block);
            if let Ok(evidence) = &evidence {
                assert_eq!(block[0], 1, "the only version");
                let again = codec::encode_evidence(evidence);
                assert_eq!(again.len(), block.len(), "nothing is left out");
                assert_eq!(codec::decode_evidence(&again).as_ref(), Ok(evidence));
                no_part_is_read(block, |part| codec::decode_evidence(part).ok());
            }
            let notes = codec::decode_notes(Some(block));
            if let Ok(notes) = &notes {
                assert_eq!(codec::encode_notes(notes).as_deref(), Some(block));
                no_part_is_read(block, |part| codec::decode_notes(Some(part)).ok());
            }
            let kind = evidence.map(|_| 9).unwrap_or_else(word);
            (kind, notes.is_ok(), block.len() / 4)
        });
}

/// A column of a row.
#[derive(Clone, Debug, PartialEq)]
enum Cell {
    Null,
    Number(i64),
    Text(String),
    Bytes(Vec<u8>),
}

const COLUMNS: usize = row::BODY + 1;

impl Cell {
    fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    fn bytes(bytes: Option<&[u8]>) -> Self {
        bytes.map_or(Self::Null, |bytes| Self::Bytes(bytes.to_vec()))
    }

    fn write(&self, out: &mut Vec<u8>) {
        let (tag, bytes) = match self {
            Self::Null => (0, Vec::new()),
            Self::Number(number) => (1, number.to_string().into_bytes()),
            Self::Text(text) => (2, text.clone().into_bytes()),
            Self::Bytes(bytes) => (3, bytes.clone()),
        };
        out.extend([
            tag,
            bytes.len().to_le_bytes()[0],
            bytes.len().to_le_bytes()[1],
        ]);
        out.extend(bytes);
    }

    /// The next one, as far as there is one.
    fn read(input: &mut &[u8]) -> Option<Self> {
        let (head, rest) = input.split_first_chunk::<3>()?;
        let length = usize::from(u16::from_le_bytes([head[1], head[2]])).min(rest.len());
        let (bytes, rest) = rest.split_at(length);
        *input = rest;
        let text = || str::from_utf8(bytes).ok();
        Some(match head[0] % 4 {
            1 => text()?.parse().map_or(Self::Null, Self::Number),
            2 => text().map_or(Self::Null, Self::text),
            3 => Self::Bytes(bytes.to_vec()),
            _ => Self::Null,
        })
    }
}

struct Cells(Vec<Cell>);

impl Cells {
    fn of(record: &Record) -> Self {
        let times = &record.times;
        let at =
            |at: Option<onlyonce_core::Timestamp>| at.map_or(Cell::Null, |at| Cell::Number(at.0));
        let number = |number: u64| Cell::Number(i64::try_from(number).unwrap());
        let response = record.response.as_deref();
        let is_packed =
            |response: &&StoredResponse| !matches!(response.body, StoredBody::Packed { .. });
        let head = response.filter(is_packed).map(codec::encode_head);
        let evidence = record.evidence.as_ref().map(codec::encode_evidence);
        let millis = u64::try_from(record.tombstone_ttl.as_millis()).unwrap();
        Self(vec![
            Cell::bytes(Some(&record.id.0)),
            Cell::Number(row::ROW_VERSION),
            Cell::text(record.scope.as_str()),
            Cell::text(record.key.as_str()),
            Cell::text(&record.route),
            Cell::text(&record.method),
            Cell::text(&record.path),
            number(record.revision.0),
            Cell::text(record.state.as_str()),
            Cell::bytes(Some(&record.attempt_id.0.to_be_bytes())),
            number(record.fence.0.into()),
            number(record.generation.into()),
            Cell::bytes(record.fingerprint.as_ref().map(|print| &print.0[..])),
            Cell::bytes(Some(&record.recipe.0)),
            Cell::bytes(record.caller.as_ref().map(|mark| &mark.0[..])),
            number(millis),
            record
                .last_error
                .map_or(Cell::Null, |error| Cell::text(error.as_str())),
            at(times.created_at),
            at(times.last_run_at),
            at(times.completed_at),
            at(times.expires_at),
            at(times.lease_until),
            at(times.unknown_since),
            at(times.reconcile_after),
            at(times.delete_at),
            response.map_or(Cell::Null, |one| number(one.status.as_u16().into())),
            response.map_or(Cell::Null, |one| number(one.stored_bytes())),
            Cell::bytes(head.as_deref()),
            Cell::bytes(evidence.as_deref()),
            number(record.negatives.into()),
            number(record.inconclusive.into()),
            number(record.dead_letter.into()),
            Cell::bytes(codec::encode_notes(&record.notes).as_deref()),
            Cell::bytes(response.and_then(codec::body_of)),
        ])
    }

    fn written(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.0.iter().for_each(|cell| cell.write(&mut out));
        out
    }

    fn read(mut input: &[u8]) -> Self {
        let cells = std::iter::from_fn(|| Cell::read(&mut input));
        let cells = cells.chain(std::iter::repeat(Cell::Null));
        Self(cells.take(COLUMNS).collect())
    }
}

impl Columns for Cells {
    fn bytes(&self, column: usize) -> Result<Option<&[u8]>, RowError> {
        match &self.0[column] {
            Cell::Null => Ok(None),
            Cell::Bytes(bytes) => Ok(Some(bytes)),
            _ => Err(unreadable("not bytes")),
        }
    }

    fn text(&self, column: usize) -> Result<Option<&str>, RowError> {
        match &self.0[column] {
            Cell::Null => Ok(None),
            Cell::Text(text) => Ok(Some(text)),
            _ => Err(unreadable("not text")),
        }
    }

    fn number(&self, column: usize) -> Result<Option<i64>, RowError> {
        match &self.0[column] {
            Cell::Null => Ok(None),
            Cell::Number(number) => Ok(Some(*number)),
            _ => Err(unreadable("not a number")),
        }
    }

    fn flag(&self, column: usize) -> Result<bool, RowError> {
        self.number(column)?
            .map_or_else(|| Err(row::missing()), |number| Ok(number != 0))
    }
}

/// Goal: a row is read as exactly what stands in its columns, whichever SQL database they come from.
#[test]
fn sql_rows() {
    for record in records() {
        let read = row::read_whole(&Cells::of(&record)).unwrap();
        assert_eq!(read, record);
    }
    Fuzz::new("sql row", 40_000)
        .seeds(records().iter().map(|record| Cells::of(record).written()))
        .words([
            "in_progress",
            "completed",
            "unknown",
            "expired",
            "\x01\x01\x000",
            "\0\0\0",
        ])
        .max_bytes(1_200)
        .run(|input| {
            let cells = Cells::read(input);
            let _ = row::read_listed(&cells);
            let _ = row::read_journal(&cells);
            let record = match row::read_whole(&cells) {
                Ok(record) => record,
                Err(error) => return (error.to_string(), 0),
            };
            let again = Cells::of(&record);
            // Blocks of bytes are compared by what they say; a flag may be any number but 0.
            for column in (0..=24).chain(28..=30) {
                match (&cells.0[column], &again.0[column]) {
                    (Cell::Bytes(one), Cell::Bytes(other)) if column == 28 => {
                        assert_eq!(one.len(), other.len());
                    }
                    (one, other) => assert_eq!(one, other, "column {column}"),
                }
            }
            assert_eq!(cells.0[32], again.0[32], "notes");
            assert_eq!(cells.0[33], again.0[33], "the body");
            assert_eq!(row::read_whole(&again).unwrap(), record);
            let seen =
                usize::from(record.evidence.is_some()) * 2 + usize::from(record.response.is_some());
            (record.state.as_str().to_owned(), seen)
        });
}

#[test]
fn redis_rows() {
    use crate::row::{body, read_whole, stored};

    let id = RecordId([7; 16]);
    let body_of = |record: &Record| body(record).cloned();
    for mut record in records() {
        record.id = id;
        let again = read_whole(id, &stored(&record), body_of(&record));
        assert_eq!(again.unwrap(), record);
    }
    Fuzz::new("redis row", 40_000)
        .seeds(records().iter().map(stored))
        .words([
            "in_progress",
            "completed",
            "|",
            ",",
            "unknown",
            "\x01\0\0\0",
            "0|0|",
        ])
        .run(|row| {
            let mut seen = (0, 0, 0);
            for body in [None, Some(Bytes::from_static(b"body"))] {
                let Ok(record) = read_whole(id, row, body.clone()) else {
                    continue;
                };
                let again = stored(&record);
                let (written, read) = (fields(&again), fields(row));
                assert_eq!((&written[0], &written[2..4]), (&read[0], &read[2..4]));
                // Blocks of an older version have no notes.
                let older = usize::from(read[4][0] == 1);
                assert_eq!(
                    written[4].len(),
                    read[4].len() + older,
                    "nothing is left out"
                );
                assert_eq!(read_whole(id, &again, body_of(&record)).unwrap(), record);
                no_part_is_read(row, |part| read_whole(id, part, body.clone()).ok());
                let has = usize::from(record.evidence.is_some()) * 2
                    + usize::from(record.response.is_some());
                let state = State::ALL.iter().position(|one| *one == record.state);
                seen = (1 + has, 1 + state.unwrap(), usize::from(read[4][0]));
            }
            (seen, row.len() / 16)
        });

    /// Revision, number, state, times and block.
    fn fields(row: &[u8]) -> Vec<&[u8]> {
        row.splitn(5, |byte| *byte == b'|').collect()
    }
}
