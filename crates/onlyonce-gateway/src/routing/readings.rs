//! All readings of a path that some server may make: how often the path is decoded, where segments end, which
//! segments are dropped, and which part of a segment is its name.
//!
//! The number of readings is bounded by the constants and by the path: a choice has two branches only where
//! the two differ.

/// How often percent-encoding is undone: by a proxy, a server, a framework.
const MAX_DECODINGS: usize = 3;
/// The longest ending that names a format, such as `.json`, in characters without the dot.
const MAX_FORMAT_LENGTH: usize = 5;

/// Whether every server reads a path alike: nothing in it is decoded, folded, dropped or cut off.
pub(super) fn is_plain(path: &str) -> bool {
    let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' | b'/');
    path.bytes().all(is_plain) && !path.contains("//")
}

/// One way to read a path.
pub(super) struct Reading<'p> {
    segments: &'p [&'p [u8]],
    names: Names,
}

/// Which part of a segment is its name.
#[derive(Clone, Copy)]
struct Names {
    /// Upper and lower case are the same.
    folded: bool,
    /// Parameters are not part of the name.
    cut: bool,
    /// Dots and white space at the end are not part of the name.
    trimmed: bool,
    /// A format is not part of the name, at the end of the path or of the route.
    without_format: bool,
}

impl Reading<'_> {
    /// How many segments `route` has, if the path begins with all of them.
    pub(super) fn begins_with(&self, route: &str) -> Option<usize> {
        let last = self.segments.iter().rposition(|one| !one.is_empty());
        let mut names = route.split('/').filter(|name| !name.is_empty()).peekable();
        let mut count = 0;
        while let Some(name) = names.next() {
            let segment = self.segments.get(count)?;
            // A format ends the path, or the resource that the rest of the path is about.
            let may_have_format = Some(count) == last || names.peek().is_none();
            if !self.names.is(segment, may_have_format, name.as_bytes()) {
                return None;
            }
            count += 1;
        }
        Some(count)
    }
}

impl Names {
    /// Whether `segment` is called `name`, after removing as many endings as needed: endings may follow one
    /// another, and a name may itself look like it has an ending.
    fn is(self, segment: &[u8], may_have_format: bool, name: &[u8]) -> bool {
        let mut segment = segment;
        if self.cut {
            segment = without_parameters(segment);
        }
        loop {
            if self.trimmed {
                segment = trimmed(segment);
            }
            let is_called = match self.folded {
                true => segment.eq_ignore_ascii_case(name),
                false => segment == name,
            };
            let left = match self.without_format && may_have_format {
                true => without_format(segment),
                false => segment,
            };
            // Each iteration shortens `segment`.
            if is_called || left.len() == segment.len() {
                return is_called;
            }
            segment = left;
        }
    }
}

/// How a path is split into segments.
#[derive(Clone, Copy)]
struct Split {
    /// A backslash also ends a segment.
    backslashes: bool,
    /// Empty segments count.
    keeps_empty: bool,
    /// `.` and `..` are resolved.
    dots: bool,
    /// `.` and `..` are resolved even with parameters: `..;`.
    parameters: bool,
    /// A host follows two leading slashes.
    host: bool,
}

impl Split {
    fn apply<'p>(self, path: &'p [u8], segments: &mut Vec<&'p [u8]>) {
        segments.clear();
        let is_slash = |byte: &u8| *byte == b'/' || (self.backslashes && *byte == b'\\');
        let path = match path.split_first() {
            Some((first, rest)) if is_slash(first) => rest,
            _ => path,
        };
        for part in path.split(is_slash).skip(if self.host { 2 } else { 0 }) {
            let name = if self.parameters {
                without_parameters(part)
            } else {
                part
            };
            match name {
                b"" if !self.keeps_empty => {}
                b"." if self.dots => {}
                b".." if self.dots => drop(segments.pop()),
                _ => segments.push(part),
            }
        }
    }
}

/// Calls `read` with every reading of `path` until `read` returns false.
pub(super) fn each(path: &[u8], mut read: impl FnMut(&Reading<'_>) -> bool) {
    let mut text = path.to_vec();
    for _ in 0..=MAX_DECODINGS {
        if !each_split(&text, &mut read) {
            return;
        }
        let decoded: Vec<u8> = percent_encoding::percent_decode(&text).collect();
        if decoded.len() == text.len() {
            return;
        }
        text = decoded;
    }
}

fn each_split(path: &[u8], read: &mut impl FnMut(&Reading<'_>) -> bool) -> bool {
    let has = |byte: u8| path.contains(&byte);
    let mut segments = Vec::new();
    for backslashes in either(has(b'\\')) {
        let is_slash = |byte: &u8| *byte == b'/' || (backslashes && *byte == b'\\');
        let is_double = |two: &[u8]| two.iter().all(is_slash);
        let doubled = path.windows(2).any(is_double);
        let begins_doubled = path.first_chunk::<2>().is_some_and(|two| is_double(two));
        for keeps_empty in either(doubled) {
            for (dots, parameters) in [(false, false), (true, false), (true, true)] {
                if (dots && !has(b'.') && !has(b';')) || (parameters && !has(b';')) {
                    continue;
                }
                for host in either(begins_doubled) {
                    let split = Split {
                        backslashes,
                        keeps_empty,
                        dots,
                        parameters,
                        host,
                    };
                    split.apply(path, &mut segments);
                    if !each_name(&segments, path, read) {
                        return false;
                    }
                }
            }
        }
    }
    true
}

fn each_name(segments: &[&[u8]], path: &[u8], read: &mut impl FnMut(&Reading<'_>) -> bool) -> bool {
    let has_parameters = path.iter().any(is_parameter_mark);
    let has_ending = path.iter().any(is_trimmed);
    for folded in [false, true] {
        for cut in either(has_parameters) {
            for (trimmed, without_format) in [(false, false), (true, false), (true, true)] {
                if trimmed && !has_ending {
                    continue;
                }
                let names = Names {
                    folded,
                    cut,
                    trimmed,
                    without_format,
                };
                if !read(&Reading { segments, names }) {
                    return false;
                }
            }
        }
    }
    true
}

/// Both values if they differ, else only `false`.
fn either(differ: bool) -> impl Iterator<Item = bool> {
    std::iter::once(false).chain(differ.then_some(true))
}

/// Whether a byte begins parameters, a query or a fragment, or ends a C string.
fn is_parameter_mark(byte: &u8) -> bool {
    matches!(byte, b';' | b'?' | b'#' | 0)
}

fn without_parameters(segment: &[u8]) -> &[u8] {
    let end = segment.iter().position(is_parameter_mark);
    &segment[..end.unwrap_or(segment.len())]
}

/// Whether some file systems ignore this byte at the end of a name.
fn is_trimmed(byte: &u8) -> bool {
    *byte == b'.' || *byte <= b' '
}

fn trimmed(segment: &[u8]) -> &[u8] {
    let end = segment.iter().rposition(|byte| !is_trimmed(byte));
    &segment[..end.map_or(0, |last| last + 1)]
}

fn without_format(segment: &[u8]) -> &[u8] {
    match segment.iter().rposition(|byte| *byte == b'.') {
        Some(dot) => {
            let format = &segment[dot + 1..];
            let is_format = (1..=MAX_FORMAT_LENGTH).contains(&format.len())
                && format.iter().all(u8::is_ascii_alphanumeric);
            if is_format { &segment[..dot] } else { segment }
        }
        None => segment,
    }
}
