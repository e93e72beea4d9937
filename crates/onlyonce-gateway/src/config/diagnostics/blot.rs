//! Hides secrets when lines of a configuration file are printed. A star replaces each character, so that
//! columns stay the same. When in doubt, more is hidden.

use crate::config::{interpolate::is_name, tree::Span};

/// The field whose members are headers.
const HEADERS: &str = "headers";
/// Endings of field names that people put secrets into. No field has such a name, so a file with one is
/// refused, and its line printed.
const SECRET_FIELDS: [&str; 7] = [
    "password:",
    "passwd:",
    "secret:",
    "token:",
    "credential:",
    "credentials:",
    "api_key:",
];
/// Endings of URL parameters that hold credentials.
const CREDENTIALS: [&str; 4] = ["password=", "secret=", "token=", "key="];

/// The lines of `text`, with stars for the values of all headers: each may be a credential. Also works on
/// text that is not YAML, since that is when lines are printed.
pub(super) fn without_header_values(text: &str) -> Vec<String> {
    let mut within = Within::Nothing;
    text.lines().map(|line| within.hide(line)).collect()
}

/// What encloses the start of the next line.
enum Within {
    Nothing,
    /// A block of headers, whose name is in this column.
    Block(usize),
    /// The braces of headers, this deep.
    Braces(usize),
}

impl Within {
    /// `line` as it may be shown.
    fn hide(&mut self, line: &str) -> String {
        let mut characters: Vec<char> = line.chars().collect();
        let first = characters.iter().position(|c| !c.is_whitespace());
        let Some(first) = first else {
            return line.to_owned();
        };
        let mut at = 0;
        match *self {
            Self::Block(column) if first > column => {
                hide_value(&mut characters, first);
                return characters.into_iter().collect();
            }
            Self::Block(_) => *self = Self::Nothing,
            Self::Braces(depth) => at = self.hide_braces(&mut characters, 0, depth),
            Self::Nothing => {}
        }
        while let Some(name) = headers_at(&characters, at) {
            at = name + HEADERS.len();
            // After the name: an optional quote, the colon, and an optional anchor.
            at += usize::from(matches!(characters.get(at), Some('"' | '\'')));
            at = skip_blanks(&characters, at + 1);
            if characters.get(at) == Some(&'&') {
                let word = characters[at..].iter().take_while(|c| !c.is_whitespace());
                at = skip_blanks(&characters, at + word.count());
            }
            match characters.get(at) {
                None | Some('#') => {
                    *self = Self::Block(name);
                    break;
                }
                Some('{') => at = self.hide_braces(&mut characters, at + 1, 1),
                Some(_) => {}
            }
        }
        characters.into_iter().collect()
    }

    /// Hides the values between braces from `at` on; returns their end.
    fn hide_braces(&mut self, characters: &mut [char], at: usize, depth: usize) -> usize {
        let (mut at, mut depth) = (at, depth);
        let mut is_value = false;
        *self = Self::Nothing;
        while let Some(&character) = characters.get(at) {
            let past = past_variable(characters, at);
            match character {
                _ if past > at => {
                    at = past;
                    continue;
                }
                quote @ ('"' | '\'') => {
                    let rest = characters[at + 1..].iter();
                    let length = rest.take_while(|c| **c != quote).count();
                    if is_value {
                        hide_text(characters, at + 1, at + 1 + length);
                    }
                    at += length + 1;
                }
                ':' => is_value = true,
                ',' => is_value = false,
                '{' => depth += 1,
                '}' => {
                    depth -= 1;
                    if depth == 0 {
                        return at + 1;
                    }
                }
                character if is_value && !character.is_whitespace() => characters[at] = '*',
                _ => {}
            }
            at += 1;
        }
        *self = Self::Braces(depth);
        at
    }
}

/// The position of the name `headers` with its colon, at or after `from`.
fn headers_at(characters: &[char], from: usize) -> Option<usize> {
    let name: Vec<char> = HEADERS.chars().collect();
    (from..characters.len()).find(|&at| {
        let before = at.checked_sub(1).and_then(|before| characters.get(before));
        let is_begun = before.is_none_or(|c| c.is_whitespace() || "{,\"'".contains(*c));
        let after = characters.get(at + name.len()..).unwrap_or(&[]);
        let after = after.strip_prefix(&['"'][..]).unwrap_or(after);
        let after = after.strip_prefix(&['\''][..]).unwrap_or(after);
        is_begun && characters[at..].starts_with(&name) && after.first() == Some(&':')
    })
}

/// Hides the value of a header on a line of its own, or one line of a multi-line value.
fn hide_value(characters: &mut [char], first: usize) {
    let colon = (first..characters.len()).find(|&at| {
        let after = characters.get(at + 1);
        characters[at] == ':' && after.is_none_or(|c| c.is_whitespace())
    });
    let start = colon.map_or(first, |colon| skip_blanks(characters, colon + 1));
    hide_text(characters, start, characters.len());
}

/// Writes stars from `start` to `end`, except over variables, blanks and quotes.
fn hide_text(characters: &mut [char], start: usize, end: usize) {
    let mut at = start;
    while at < end {
        let past = past_variable(characters, at);
        if past > at {
            at = past;
            continue;
        }
        let character = characters[at];
        if !character.is_whitespace() && !matches!(character, '"' | '\'') {
            characters[at] = '*';
        }
        at += 1;
    }
}

/// The position after `${NAME}`, if it is at `at`: a variable's name is not secret, and helps the reader.
fn past_variable(characters: &[char], at: usize) -> usize {
    let Some(rest) = characters
        .get(at..)
        .and_then(|rest| rest.strip_prefix(&['$', '{'][..]))
    else {
        return at;
    };
    let name: String = rest.iter().take_while(|c| **c != '}').collect();
    match is_name(&name) {
        true => (at + 3 + name.len()).min(characters.len()),
        false => at,
    }
}

fn skip_blanks(characters: &[char], from: usize) -> usize {
    let rest = characters.get(from..).unwrap_or(&[]);
    from + rest.iter().take_while(|c| c.is_whitespace()).count()
}

/// `line` with stars over the span `at`.
pub(super) fn without(line: &str, at: Span) -> String {
    let first = (at.col as usize).saturating_sub(1);
    let hidden = first..first.saturating_add(at.width as usize);
    let star = |(index, character): (usize, char)| match hidden.contains(&index) {
        true => '*',
        false => character,
    };
    line.chars().enumerate().map(star).collect()
}

/// `line` with a star for every character of a password in a URL, of a bearer token, of a key's hash and of a
/// value where a variable's name belongs, so that columns stay the same.
pub(super) fn blotted(line: &str) -> String {
    let mut characters: Vec<char> = line.chars().collect();
    let plain = characters.clone();
    let ends = |from: usize, stops: &str| {
        plain[from..]
            .iter()
            .position(|c| c.is_whitespace() || stops.contains(*c))
            .map_or(plain.len(), |offset| from + offset)
    };
    let starts_of = |word: &str| {
        let word: Vec<char> = word.chars().collect();
        let length = word.len();
        plain
            .windows(length)
            .enumerate()
            .filter(move |(_, part)| {
                part.iter()
                    .zip(&word)
                    .all(|(left, right)| left.eq_ignore_ascii_case(right))
            })
            .map(move |(index, _)| index + length)
            .collect::<Vec<_>>()
    };
    for start in starts_of("://") {
        // A password may itself contain a slash or an at sign. When in doubt, more is hidden.
        let end = ends(start, "\"'");
        if let Some(at) = plain[start..end].iter().rposition(|c| *c == '@') {
            let user = plain[start..start + at]
                .iter()
                .position(|c| *c == ':')
                .unwrap_or(0);
            characters[start + user..start + at].fill('*');
        }
    }
    for start in CREDENTIALS.iter().flat_map(|name| starts_of(name)) {
        // `${NAME}` and `{key}` are not secret, and help the reader.
        if !matches!(plain.get(start), Some('$' | '{')) {
            let end = ends(start, "\"'&");
            characters[start..end].fill('*');
        }
    }
    for start in starts_of("bearer ") {
        // `${NAME}` is not secret, and helps the reader.
        if plain.get(start) != Some(&'$') {
            let end = ends(start, "\"'");
            characters[start..end].fill('*');
        }
    }
    for field in ["sha256:", "_env:"].into_iter().chain(SECRET_FIELDS) {
        for start in starts_of(field) {
            let spaces = plain[start..].iter().take_while(|c| **c == ' ').count();
            let (start, end) = match plain.get(start + spaces) {
                Some(quote @ ('"' | '\'')) => {
                    let start = start + spaces + 1;
                    let end = plain[start..].iter().position(|c| c == quote);
                    (start, end.map_or(plain.len(), |end| start + end))
                }
                _ => (start + spaces, ends(start + spaces, ",}")),
            };
            let value: String = plain[start..end].iter().collect();
            // A variable's name is not secret. Anything else may be: the hash of a short key, or the key
            // itself.
            let is_plain = value.starts_with('$') || (field == "_env:" && is_name(&value));
            if !is_plain {
                characters[start..end].fill('*');
            }
        }
    }
    characters.into_iter().collect()
}
