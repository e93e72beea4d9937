//! RFC 8785 (JCS) in one pass from bytes to bytes, refusing whatever JCS would conflate.
//!
//! There is no tree: values are written as they are read. A small object with unsorted members is rearranged
//! in place. Larger ones are noted and rearranged in one copy at the end, so that apart from sorting the cost
//! is linear, however objects are nested. Depth is bounded, and so is recursion.
//!
//! Deliberately absent: repairing anything. Duplicate names, lone surrogates and numbers that a double cannot
//! hold exactly make the whole body non-canonical, and its raw bytes are hashed.

use std::cmp::Ordering;

use super::number;

/// Arrays and objects nested deeper than this are not canonicalised.
pub const MAX_DEPTH: usize = 128;

/// How many bytes of a name are compared at a time.
const KEY_BYTES: usize = 8;

/// Objects up to this size, in bytes, are rearranged in place.
const IN_PLACE_BYTES: usize = 512;

/// Buffers that outlive a call, so that a warm canonicaliser does not allocate.
#[derive(Default)]
pub(super) struct Scratch {
    /// Members of the objects that are open.
    members: Vec<Member>,
    /// Objects with unsorted members.
    unsorted: Vec<Unsorted>,
    /// The members of those objects, sorted, object by object.
    sorted: Vec<Member>,
    spare: Vec<u8>,
}

impl Scratch {
    pub(super) fn capacity(&self) -> usize {
        let members = self.members.capacity() + self.sorted.capacity();
        members * size_of::<Member>()
            + self.unsorted.capacity() * size_of::<Unsorted>()
            + self.spare.capacity()
    }

    /// Appends `out[at..end]` with every object sorted. In `unsorted` the range begins at `next` or later.
    fn arrange(&mut self, out: &[u8], mut at: usize, end: usize, mut next: usize) {
        next += self.unsorted[next..].partition_point(|one| one.start < at);
        while let Some(object) = self.unsorted.get(next).copied() {
            if object.start >= end {
                break;
            }
            self.spare.extend_from_slice(&out[at..object.start]);
            for index in object.first..object.first + object.count {
                if index > object.first {
                    self.spare.push(b',');
                }
                let Member { start, end, .. } = self.sorted[index];
                self.arrange(out, start, end, next + 1);
            }
            at = object.end;
            // Objects within this one have been arranged with its members.
            next += self.unsorted[next..].partition_point(|one| one.start < at);
        }
        self.spare.extend_from_slice(&out[at..end]);
    }
}

/// An object with unsorted members: the range of its members in the output, and the range of the sorted ones
/// in [`Scratch::sorted`].
#[derive(Clone, Copy)]
struct Unsorted {
    start: usize,
    end: usize,
    first: usize,
    count: usize,
}

/// The canonical form of a JSON text, or `None` if its raw bytes must be hashed instead.
pub fn canonicalise(input: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(input.len());
    write_canonical(input, &mut out, &mut Scratch::default())?;
    Some(out)
}

/// Appends the canonical form of `input` to `out`; on `None`, `out` contains garbage past its old end.
pub(super) fn write_canonical(
    input: &[u8],
    out: &mut Vec<u8>,
    scratch: &mut Scratch,
) -> Option<()> {
    Canonicaliser {
        input,
        at: 0,
        out,
        scratch,
        exact_only: true,
    }
    .text()
}

/// Exact JCS, including its rounding of numbers, for comparison with the JCS vectors.
#[cfg(test)]
pub(super) fn rounded(input: &[u8]) -> Option<Vec<u8>> {
    let (mut out, mut scratch) = (Vec::new(), Scratch::default());
    let canonicaliser = Canonicaliser {
        input,
        at: 0,
        out: &mut out,
        scratch: &mut scratch,
        exact_only: false,
    };
    canonicaliser.text()?;
    Some(out)
}

/// The position of one member of an open object in the output, with quotes and without commas.
#[derive(Clone, Copy)]
struct Member {
    start: usize,
    name_end: usize,
    end: usize,
    /// While sorting: the ranks of the next eight bytes of the name, and where the bytes after them begin.
    key: u64,
    rest: usize,
}

impl Member {
    fn name(self, out: &[u8]) -> &[u8] {
        &out[self.start + 1..self.name_end - 1]
    }
}

struct Canonicaliser<'a> {
    input: &'a [u8],
    at: usize,
    out: &'a mut Vec<u8>,
    scratch: &'a mut Scratch,
    exact_only: bool,
}

impl Canonicaliser<'_> {
    fn text(mut self) -> Option<()> {
        str::from_utf8(self.input).ok()?;
        let base = self.out.len();
        self.scratch.members.clear();
        self.scratch.unsorted.clear();
        self.scratch.sorted.clear();
        self.skip_white_space();
        self.value(0)?;
        self.skip_white_space();
        if self.at != self.input.len() {
            return None;
        }
        if !self.scratch.unsorted.is_empty() {
            self.scratch.unsorted.sort_unstable_by_key(|one| one.start);
            self.scratch.spare.clear();
            self.scratch.arrange(self.out, base, self.out.len(), 0);
            self.out.truncate(base);
            self.out.extend_from_slice(&self.scratch.spare);
        }
        Some(())
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        match self.peek()? {
            b'"' => self.string(),
            b'{' => self.object(depth + 1),
            b'[' => self.array(depth + 1),
            b'-' | b'0'..=b'9' => self.number(),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            _ => None,
        }
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.copy_byte();
        self.skip_white_space();
        if self.peek()? == b']' {
            self.copy_byte();
            return Some(());
        }
        loop {
            self.value(depth)?;
            self.skip_white_space();
            match self.peek()? {
                b',' => self.copy_byte(),
                b']' => break,
                _ => return None,
            }
            self.skip_white_space();
        }
        self.copy_byte();
        Some(())
    }

    fn object(&mut self, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.copy_byte();
        self.skip_white_space();
        if self.peek()? == b'}' {
            self.copy_byte();
            return Some(());
        }
        let base = self.scratch.members.len();
        let body_start = self.out.len();
        let mut sorted = true;
        loop {
            let index = self.scratch.members.len();
            self.name()?;
            if index > base {
                let [previous, this] = *self.scratch.members.last_chunk()?;
                match compare_names(previous.name(self.out), this.name(self.out)) {
                    Ordering::Less => {}
                    Ordering::Equal => return None,
                    Ordering::Greater => sorted = false,
                }
            }
            self.value(depth)?;
            self.scratch.members[index].end = self.out.len();
            self.skip_white_space();
            match self.peek()? {
                b',' => self.copy_byte(),
                b'}' => break,
                _ => return None,
            }
            self.skip_white_space();
        }
        if !sorted {
            self.sort_members(base, body_start)?;
        }
        self.scratch.members.truncate(base);
        self.copy_byte();
        Some(())
    }

    /// Parses a member's name and colon and opens its entry.
    fn name(&mut self) -> Option<()> {
        if self.peek()? != b'"' {
            return None;
        }
        let start = self.out.len();
        self.string()?;
        let name_end = self.out.len();
        self.scratch.members.push(Member {
            start,
            name_end,
            end: name_end,
            key: 0,
            rest: start + 1,
        });
        self.skip_white_space();
        if self.peek()? != b':' {
            return None;
        }
        self.copy_byte();
        self.skip_white_space();
        Some(())
    }

    /// Rearranges an object with unsorted members, or notes that it has to be.
    fn sort_members(&mut self, base: usize, body_start: usize) -> Option<()> {
        let Scratch {
            members,
            unsorted,
            sorted,
            spare,
        } = &mut *self.scratch;
        let members = &mut members[base..];
        let out = &mut *self.out;
        sort_by_name(members, out)?;
        if out.len() - body_start <= IN_PLACE_BYTES {
            spare.clear();
            for member in members {
                if !spare.is_empty() {
                    spare.push(b',');
                }
                spare.extend_from_slice(&out[member.start..member.end]);
            }
            out.truncate(body_start);
            out.extend_from_slice(spare);
            return Some(());
        }
        unsorted.push(Unsorted {
            start: body_start,
            end: out.len(),
            first: sorted.len(),
            count: members.len(),
        });
        sorted.extend_from_slice(members);
        Some(())
    }

    fn number(&mut self) -> Option<()> {
        let scanned = number::canonicalise(&self.input[self.at..], self.out)?;
        self.at += scanned.length;
        (scanned.exact || !self.exact_only).then_some(())
    }

    fn literal(&mut self, text: &[u8]) -> Option<()> {
        if !self.input[self.at..].starts_with(text) {
            return None;
        }
        self.at += text.len();
        self.out.extend_from_slice(text);
        Some(())
    }

    fn string(&mut self) -> Option<()> {
        // The opening quote belongs to the first run, so a string without escapes is one copy.
        let mut run_start = self.at;
        self.at += 1;
        loop {
            let rest = &self.input[self.at..];
            self.at += verbatim_run(rest)?;
            match self.input[self.at] {
                b'"' => {
                    self.at += 1;
                    self.out.extend_from_slice(&self.input[run_start..self.at]);
                    return Some(());
                }
                b'\\' => {
                    self.out.extend_from_slice(&self.input[run_start..self.at]);
                    self.escape()?;
                    run_start = self.at;
                }
                _ => return None,
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        let kind = *self.input.get(self.at + 1)?;
        self.at += 2;
        match kind {
            b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't' => self.out.extend([b'\\', kind]),
            b'/' => self.out.push(b'/'),
            b'u' => {
                let character = self.unicode_escape()?;
                self.push_character(character);
            }
            _ => return None,
        }
        Some(())
    }

    /// The character of `\uXXXX`, or of a surrogate pair.
    fn unicode_escape(&mut self) -> Option<char> {
        let unit = self.code_unit()?;
        if !(0xD800..=0xDBFF).contains(&unit) {
            return char::from_u32(unit);
        }
        if !self.input[self.at..].starts_with(b"\\u") {
            return None;
        }
        self.at += 2;
        let low = self.code_unit()?;
        if !(0xDC00..=0xDFFF).contains(&low) {
            return None;
        }
        char::from_u32(0x1_0000 + ((unit - 0xD800) << 10) + (low - 0xDC00))
    }

    fn code_unit(&mut self) -> Option<u32> {
        let digits = self.input.get(self.at..self.at + 4)?;
        self.at += 4;
        digits.iter().try_fold(0, |unit, digit| {
            Some(unit * 16 + char::from(*digit).to_digit(16)?)
        })
    }

    fn push_character(&mut self, character: char) {
        match character {
            '"' => self.out.extend_from_slice(b"\\\""),
            '\\' => self.out.extend_from_slice(b"\\\\"),
            '\u{8}' => self.out.extend_from_slice(b"\\b"),
            '\t' => self.out.extend_from_slice(b"\\t"),
            '\n' => self.out.extend_from_slice(b"\\n"),
            '\u{c}' => self.out.extend_from_slice(b"\\f"),
            '\r' => self.out.extend_from_slice(b"\\r"),
            '\0'..'\u{20}' => {
                let hex = |nibble: u32| b"0123456789abcdef"[nibble as usize & 0xF];
                let code = u32::from(character);
                self.out.extend_from_slice(b"\\u00");
                self.out.extend([hex(code >> 4), hex(code)]);
            }
            _ => self
                .out
                .extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.input.get(self.at).copied()
    }

    /// Copies a structural byte that `peek` has just returned.
    fn copy_byte(&mut self) {
        self.out.push(self.input[self.at]);
        self.at += 1;
    }

    fn skip_white_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }
}

/// The number of bytes before the next quote, backslash or control character, if there is one.
///
/// Eight bytes are tested at a time: subtracting borrows into the top bit of each byte that is too
/// small. A borrow can only spoil bytes above the first hit, so the lowest hit is always true.
fn verbatim_run(text: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::MAX / 0xFF;
    const TOPS: u64 = ONES * 0x80;
    let (words, rest) = text.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let quotes = word ^ (ONES * b'"' as u64);
        let slashes = word ^ (ONES * b'\\' as u64);
        let hits = (word.wrapping_sub(ONES * 0x20) & !word)
            | (quotes.wrapping_sub(ONES) & !quotes)
            | (slashes.wrapping_sub(ONES) & !slashes);
        if hits & TOPS != 0 {
            return Some(index * 8 + (hits & TOPS).trailing_zeros() as usize / 8);
        }
    }
    let tail = rest
        .iter()
        .position(|byte| matches!(byte, 0..0x20 | b'"' | b'\\'))?;
    Some(words.len() * 8 + tail)
}

/// Compares two canonically escaped names by the UTF-16 code units of their unescaped form.
fn compare_names(a: &[u8], b: &[u8]) -> Ordering {
    let Some(at) = a.iter().zip(b).position(|(x, y)| x != y) else {
        return a.len().cmp(&b.len());
    };
    if a[..=at].contains(&b'\\') || b[at] == b'\\' {
        let from = escape_around(a, at);
        return unescaped(&a[from..])
            .map(utf16_rank)
            .cmp(unescaped(&b[from..]).map(utf16_rank));
    }
    utf16_rank(a[at]).cmp(&utf16_rank(b[at]))
}

/// The start of the escape that contains `at`; `at` itself if there is none.
fn escape_around(text: &[u8], at: usize) -> usize {
    let mut from = 0;
    while let Some(offset) = text[from..at].iter().position(|byte| *byte == b'\\') {
        let start = from + offset;
        let length = match text.get(start + 1) {
            Some(b'u') => 6,
            _ => 2,
        };
        if start + 1 == at || start + length > at {
            return start;
        }
        from = start + length;
    }
    at
}

/// Sorts members by the UTF-16 code units of their names; `None` if two have the same name.
///
/// Eight bytes of each name are compared at a time, and the rest only among names that are equal so far. No
/// byte is examined twice, so names with a common prefix cost no more than others.
fn sort_by_name(members: &mut [Member], out: &[u8]) -> Option<()> {
    loop {
        for member in &mut *members {
            let name_end = member.name_end - 1;
            (member.key, member.rest) = next_key(out, member.rest, name_end);
        }
        members.sort_unstable_by_key(|member| member.key);
        let [first, .., last] = members else {
            return Some(());
        };
        if first.key != last.key {
            for alike in members.chunk_by_mut(|a, b| a.key == b.key) {
                still_alike(alike)?;
                if alike.len() > 1 {
                    sort_by_name(alike, out)?;
                }
            }
            return Some(());
        }
        still_alike(members)?;
    }
}

/// `None` if two of these members, whose names are equal so far, both end here.
fn still_alike(members: &[Member]) -> Option<()> {
    let ended = members
        .iter()
        .filter(|member| member.rest >= member.name_end - 1);
    (ended.take(2).count() < 2).then_some(())
}

/// The ranks of the next eight bytes of a name that ends at `end`, and where the bytes after them begin. A
/// missing byte ranks below any other.
fn next_key(out: &[u8], mut at: usize, end: usize) -> (u64, usize) {
    let mut key = 0;
    for _ in 0..KEY_BYTES {
        key <<= 8;
        if at >= end {
            continue;
        }
        let escape = if out[at] == b'\\' {
            if out.get(at + 1) == Some(&b'u') { 6 } else { 2 }
        } else {
            1
        };
        let byte = match escape {
            1 => out[at],
            _ => unescaped(&out[at..end]).next().unwrap_or_default(),
        };
        key |= u64::from(key_rank(byte));
        at += escape;
    }
    (key, at)
}

/// The order of [`utf16_rank`] in one nonzero byte. UTF-8 has no byte above 0xF4.
fn key_rank(byte: u8) -> u8 {
    match byte {
        0xEE | 0xEF => byte + 6,
        0xF0.. => byte - 1,
        _ => byte + 1,
    }
}

/// Ranks leading UTF-8 bytes as UTF-16 orders their characters: surrogate pairs come before U+E000.
fn utf16_rank(byte: u8) -> u16 {
    match byte {
        0xEE | 0xEF => u16::from(byte) + 0x100,
        _ => u16::from(byte),
    }
}

/// The bytes that a canonically escaped string (without its quotes) represents.
pub(super) fn unescaped(text: &[u8]) -> impl Iterator<Item = u8> {
    let mut bytes = text.iter().copied();
    std::iter::from_fn(move || {
        let byte = bytes.next()?;
        if byte != b'\\' {
            return Some(byte);
        }
        Some(match bytes.next()? {
            b'b' => 0x08,
            b't' => b'\t',
            b'n' => b'\n',
            b'f' => 0x0C,
            b'r' => b'\r',
            // Canonical text writes only control characters this way, and all are below 0x20.
            b'u' => {
                let digits = bytes.by_ref().take(4);
                digits.fold(0_u8, |n, d| {
                    n << 4 | char::from(d).to_digit(16).map_or(0, |d| d as u8)
                })
            }
            other => other,
        })
    })
}
