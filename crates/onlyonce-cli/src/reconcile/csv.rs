//! Comma-separated values by RFC 4180, one record at a time.

use std::io::{self, BufRead};

/// The maximum size of a record, in bytes.
const MAX_RECORD: u64 = 1 << 20;
/// Precedes the first record of some files, and is not part of it.
const BYTE_ORDER_MARK: char = '\u{feff}';
/// May surround a field, and is not part of it unless quoted.
const BLANKS: [char; 2] = [' ', '\t'];

/// Reads records.
pub(super) struct Reader<R> {
    from: R,
    /// The number of the last line read.
    pub(super) line: u64,
}

impl<R: BufRead> Reader<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, line: 0 }
    }

    /// The fields of the next record; `None` at the end. Empty lines are skipped.
    pub(super) fn next(&mut self) -> io::Result<Option<Vec<String>>> {
        let mut text = String::new();
        loop {
            let before = text.len();
            let left = MAX_RECORD.saturating_sub(before as u64);
            let read = io::Read::take(&mut self.from, left).read_line(&mut text)?;
            if read == 0 {
                if left == 0 || before > 0 {
                    return Err(self.bad("a quoted field does not end"));
                }
                return Ok(None);
            }
            self.line += 1;
            // Spreadsheets mark their files as UTF-8.
            if self.line == 1 && text.starts_with(BYTE_ORDER_MARK) {
                text.remove(0);
            }
            // An open quote continues in the next line; doubled ones cancel out.
            if text.matches('"').count() % 2 == 1 {
                continue;
            }
            if text.trim_end_matches(['\r', '\n']).is_empty() {
                text.clear();
                continue;
            }
            return self.fields(text.trim_end_matches(['\r', '\n'])).map(Some);
        }
    }

    fn fields(&self, record: &str) -> io::Result<Vec<String>> {
        let mut fields = Vec::new();
        let mut rest = record;
        loop {
            let begun = rest.trim_start_matches(BLANKS);
            let (field, after) = match begun.strip_prefix('"') {
                Some(quoted) => {
                    let (field, after) = self.quoted(quoted)?;
                    (field, after.trim_start_matches(BLANKS))
                }
                None => {
                    let (field, after) = begun.split_at(begun.find(',').unwrap_or(begun.len()));
                    (field.trim_end_matches(BLANKS).to_owned(), after)
                }
            };
            fields.push(field);
            match after.strip_prefix(',') {
                Some(next) => rest = next,
                None if after.is_empty() => return Ok(fields),
                None => return Err(self.bad("something follows a closing quote")),
            }
        }
    }

    fn quoted<'t>(&self, text: &'t str) -> io::Result<(String, &'t str)> {
        let mut field = String::new();
        let mut rest = text;
        loop {
            let Some(at) = rest.find('"') else {
                return Err(self.bad("a quoted field does not end"));
            };
            field.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            match rest.strip_prefix('"') {
                Some(after) => {
                    field.push('"');
                    rest = after;
                }
                None => return Ok((field, rest)),
            }
        }
    }

    fn bad(&self, why: &str) -> io::Error {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("line {}: {why}", self.line),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> io::Result<Vec<Vec<String>>> {
        let mut reader = Reader::new(text.as_bytes());
        let mut records = Vec::new();
        while let Some(record) = reader.next()? {
            records.push(record);
        }
        Ok(records)
    }

    #[test]
    fn records() {
        let found = all("key,status\r\na,\"x, \"\"y\"\"\"\n\n\"two\nlines\",\n").unwrap();
        let expected = [
            &["key", "status"][..],
            &["a", "x, \"y\""],
            &["two\nlines", ""],
        ];
        assert_eq!(found, expected);
        let found = all("\u{feff}\"key\" , status\n a b ,\" x \"\t,\n").unwrap();
        let expected = [&["key", "status"][..], &["a b", " x ", ""]];
        assert_eq!(found, expected);
        for wrong in ["\"a", "a\n\"b\"c\n", "\"a\nb"] {
            assert!(all(wrong).is_err(), "{wrong}");
        }
    }
}
