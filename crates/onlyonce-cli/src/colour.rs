//! Colours for terminals. A pipe, `NO_COLOR` and a `dumb` terminal get none.
//!
//! Text is laid out first and coloured afterwards, so that escape codes do not count as width.

use std::{
    env,
    io::{self, IsTerminal},
};

const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const DIM: &str = "2";

/// Words for a state, which are coloured at the beginning of a cell or a value.
const WORDS: [(&str, &str); 13] = [
    ("completed", GREEN),
    ("delivered", GREEN),
    ("protected", GREEN),
    ("pass", GREEN),
    ("in_progress", YELLOW),
    ("failed_retryable", YELLOW),
    ("pending", YELLOW),
    ("unknown", RED),
    ("dead", RED),
    ("HOLE", RED),
    ("FAIL", RED),
    ("expired", DIM),
    ("exempt", DIM),
];
/// What precedes a coloured word.
const BEFORE: [&str; 3] = ["│ ", "┆ ", "state        "];

/// `text` for standard output.
pub(crate) fn output(text: &str) -> String {
    match wants(&io::stdout()) {
        true => states(text),
        false => text.to_owned(),
    }
}

/// Diagnostics, for standard error.
pub(crate) fn diagnostics(text: &str) -> String {
    match wants(&io::stderr()) {
        true => findings(text),
        false => text.to_owned(),
    }
}

fn wants(stream: &impl IsTerminal) -> bool {
    let is_said = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    stream.is_terminal() && !is_said("NO_COLOR") && !is_dumb
}

fn painted(word: &str, colour: &str) -> String {
    format!("\x1b[{colour}m{word}\x1b[0m")
}

fn states(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((at, before)) = BEFORE
        .iter()
        .filter_map(|before| Some((rest.find(before)?, before)))
        .min()
    {
        let (done, after) = rest.split_at(at + before.len());
        shown.push_str(done);
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let ends = after
            .find(|letter| !is_letter(letter))
            .unwrap_or(after.len());
        let (word, left) = after.split_at(ends);
        let colour = WORDS.iter().find(|(known, _)| *known == word);
        // `unknown-1` is a key.
        match colour.filter(|_| left.starts_with([' ', '\n', ':'])) {
            Some((_, colour)) => shown.push_str(&painted(word, colour)),
            None => shown.push_str(word),
        }
        rest = left;
    }
    shown + rest
}

fn findings(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let found = [(" error:", RED), (" warning:", YELLOW)]
            .into_iter()
            .find_map(|(word, colour)| Some((line.split_once(word)?, word, colour)));
        match found {
            Some(((before, after), word, colour)) if !before.contains(char::is_whitespace) => {
                shown.push_str(before);
                shown.push_str(&painted(word, colour));
                shown.push_str(after);
            }
            _ => shown.push_str(line),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_that_say_how_it_stands_are_coloured() {
        let row = "│ unknown-1 ┆ unknown (connection_lost) ┆ completed ┆ note: unknown │\n";
        let expected = "│ unknown-1 ┆ \x1b[31munknown\x1b[0m (connection_lost) ┆ \
                        \x1b[32mcompleted\x1b[0m ┆ note: unknown │\n";
        assert_eq!(states(row), expected);
        assert_eq!(
            states("state        completed\n"),
            "state        \x1b[32mcompleted\x1b[0m\n"
        );
        assert_eq!(states("nothing"), "nothing");
    }

    #[test]
    fn diagnostics_stand_out_by_their_kind() {
        let found = "a.yaml:1:2: error: bad\n   1 | x: error: y\na.yaml:2:1: warning: weak\n";
        let expected = "a.yaml:1:2:\x1b[31m error:\x1b[0m bad\n   1 | x: error: y\n\
                        a.yaml:2:1:\x1b[33m warning:\x1b[0m weak\n";
        assert_eq!(findings(found), expected);
    }
}
