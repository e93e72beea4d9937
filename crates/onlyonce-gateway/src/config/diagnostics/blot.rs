//! What of a source line must not be shown: passwords, tokens, hashes, and values of headers.

use crate::config::interpolate::is_name;

/// The line at `index`, as it may be shown. A line of a mapping of headers shows their names alone.
pub(super) fn line(lines: &[&str], index: usize) -> String {
    let Some(line) = lines.get(index) else {
        return String::new();
    };
    let shown = blotted(line);
    let text = line.trim_start();
    // An item of a list is the name of a header.
    if text.starts_with(['#']) || text.starts_with("- ") || !is_within_headers(lines, index) {
        return shown;
    }
    let value = match line.find(": ").or_else(|| line.find(':')) {
        Some(colon) => colon + 1,
        None => 0,
    };
    let value = value + line[value..].len() - line[value..].trim_start().len();
    if is_variable(line[value..].trim().trim_matches(['"', '\''])) {
        return shown;
    }
    let stars = line[value..].chars().count();
    format!("{}{}", &line[..value], "*".repeat(stars))
}

/// Whether one of the lines that this one stands under begins a mapping of headers.
fn is_within_headers(lines: &[&str], index: usize) -> bool {
    let indent = |line: &str| line.len() - line.trim_start_matches(' ').len();
    let mut least = indent(lines[index]);
    for line in lines[..index].iter().rev() {
        let text = line.trim_start();
        if text.is_empty() || text.starts_with('#') || indent(line) >= least {
            continue;
        }
        if begins_headers(text) {
            return true;
        }
        least = indent(line);
    }
    false
}

/// Whether `text` ends in `headers:`, or in an open bracket after it.
fn begins_headers(text: &str) -> bool {
    const FIELD: &str = "headers:";
    let Some(at) = text.rfind(FIELD) else {
        return false;
    };
    let rest = text[at + FIELD.len()..].trim();
    let rest = rest.split(" #").next().unwrap_or_default();
    let is_empty = rest.is_empty() || rest.starts_with(['#', '&', '!']);
    let opened = rest.matches('{').count() > rest.matches('}').count();
    let is_field = text[..at]
        .chars()
        .next_back()
        .is_none_or(|before| " {,\"'".contains(before));
    is_field && (is_empty || opened)
}

/// Whether a value is nothing but a variable, which is no secret and helps the reader.
fn is_variable(value: &str) -> bool {
    let schemes = ["Bearer ", "Basic ", "Token "];
    let bare = schemes.iter().find_map(|scheme| value.strip_prefix(scheme));
    let name = bare.unwrap_or(value).strip_prefix("${");
    name.and_then(|name| name.strip_suffix('}'))
        .is_some_and(is_name)
}

/// Puts stars over the values of a mapping in brackets whose inside begins at `from`.
fn blot_values(plain: &[char], from: usize, characters: &mut [char]) {
    let mut at = from;
    while let Some(character) = plain.get(at) {
        match character {
            '}' => return,
            '"' | '\'' => at = end_of_quoted(plain, at) + 1,
            ':' if plain.get(at + 1).is_none_or(|next| " \"'".contains(*next)) => {
                let start = at + 1 + plain[at + 1..].iter().take_while(|c| **c == ' ').count();
                let (start, end) = match plain.get(start) {
                    Some('"' | '\'') => (start + 1, end_of_quoted(plain, start)),
                    _ => (start, end_of_bare(plain, start)),
                };
                let value: String = plain[start..end].iter().collect();
                if !is_variable(&value) {
                    characters[start..end].fill('*');
                }
                // The quote that ends it is not one that begins something.
                at = end + usize::from(matches!(plain.get(end), Some('"' | '\'')));
            }
            _ => at += 1,
        }
    }
}

/// Where the text ends whose opening quote stands at `at`.
fn end_of_quoted(plain: &[char], at: usize) -> usize {
    let quote = plain[at];
    let mut end = at + 1;
    while let Some(character) = plain.get(end) {
        let doubled = quote == '\'' && *character == quote && plain.get(end + 1) == Some(&quote);
        let escaped = quote == '"' && *character == '\\';
        if *character == quote && !doubled {
            return end;
        }
        end += if doubled || escaped { 2 } else { 1 };
    }
    plain.len()
}

/// Where a value without quotes ends, blanks before the end left out.
fn end_of_bare(plain: &[char], start: usize) -> usize {
    let mut end = start;
    while let Some(character) = plain.get(end) {
        match character {
            '$' if plain.get(end + 1) == Some(&'{') => {
                let rest = plain[end..].iter().position(|c| *c == '}');
                end = rest.map_or(plain.len(), |rest| end + rest + 1);
            }
            ',' | '}' => break,
            _ => end += 1,
        }
    }
    let blanks = plain[start..end].iter().rev().take_while(|c| **c == ' ');
    end - blanks.count()
}

/// `line` with a star for every character of a password in a URL, of a bearer token, of a key's hash and
/// of what stands in the place of a variable's name, so that columns stay where they are.
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
        // A password may hold a slash or an at sign itself. Rather too much is blotted than too little.
        let end = ends(start, "\"'");
        if let Some(at) = plain[start..end].iter().rposition(|c| *c == '@') {
            let user = plain[start..start + at]
                .iter()
                .position(|c| *c == ':')
                .unwrap_or(0);
            characters[start + user..start + at].fill('*');
        }
    }
    for start in starts_of("bearer ") {
        // `${NAME}` is no secret and helps the reader.
        if plain.get(start) != Some(&'$') {
            let end = ends(start, "\"'");
            characters[start..end].fill('*');
        }
    }
    for field in ["sha256:", "_env:"] {
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
            // The name of a variable is no secret. Whatever else stands there may be one: the hash of a
            // short key, or the key itself.
            let is_plain = value.starts_with('$') || (field == "_env:" && is_name(&value));
            if !is_plain {
                characters[start..end].fill('*');
            }
        }
    }
    for start in starts_of("headers:") {
        let opening = start + plain[start..].iter().take_while(|c| **c == ' ').count();
        if plain.get(opening) == Some(&'{') {
            blot_values(&plain, opening + 1, &mut characters);
        }
    }
    characters.into_iter().collect()
}
