//! YAML text as events with positions. No other file uses the parser.

use std::borrow::Cow;

use granit_parser::{Event as Raw, Marker, Parser, ScalarStyle};

/// A position in the text: line and column from 1, width in characters. Line 0 means no position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span {
    /// The line.
    pub line: u32,
    /// The column, in characters.
    pub col: u32,
    /// The number of characters, on the first line.
    pub width: u32,
}

/// How to parse the text.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The deepest nesting.
    pub max_depth: usize,
    /// Whether `%YAML` and other directives are accepted.
    pub directives: bool,
    /// Whether an alias without an anchor is an event rather than an error.
    pub unknown_aliases: bool,
}

/// An item of the text. Anchor 0 means no anchor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'t> {
    /// Another document begins.
    Document,
    /// A single value.
    Scalar {
        /// The value without its quotes.
        text: Cow<'t, str>,
        /// Whether the value is unquoted.
        is_plain: bool,
        /// The value's anchor.
        anchor: usize,
    },
    /// A list with this anchor begins.
    List(usize),
    /// A mapping with this anchor begins.
    Map(usize),
    /// The innermost list or mapping ends.
    End,
    /// The value with this anchor, repeated.
    Alias(usize),
    /// An alias of this name, for which there is no anchor.
    UnknownAlias(String),
}

/// An event and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed<'t> {
    /// The event.
    pub event: Event<'t>,
    /// Its position.
    pub at: Span,
    /// Its tag, and the tag's position.
    pub tag: Option<(String, Span)>,
}

/// Why the text is not YAML.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not YAML: {why}")]
pub struct SyntaxError {
    /// The position.
    pub at: Span,
    /// The parser's message.
    pub why: String,
}

/// The events of `text`, in order; nothing follows an error.
pub fn events(
    text: &str,
    options: Options,
) -> impl Iterator<Item = Result<Placed<'_>, SyntaxError>> {
    let options = granit_parser::options! {
        emit_unresolved_aliases: options.unknown_aliases,
        disallow_directives: !options.directives,
        flow_nesting_limit: options.max_depth,
        block_nesting_limit: options.max_depth,
    };
    Parser::new_from_str_with_options(text, options).filter_map(|parsed| match parsed {
        Ok((raw, span)) => placed(raw, &span).map(Ok),
        Err(error) => Some(Err(SyntaxError {
            at: place(error.marker(), 1),
            why: error.info(),
        })),
    })
}

fn placed<'t>(raw: Raw<'t>, span: &granit_parser::Span) -> Option<Placed<'t>> {
    let at = place(&span.start, width_of(span));
    let tag = raw.tag().map(|tag| {
        let tag_at = span.tag_span();
        let tag_at = tag_at.map_or(at, |tag| place(&tag.start, width_of(&tag)));
        (tag.original(), tag_at)
    });
    let event = match raw {
        Raw::DocumentStart(..) => Event::Document,
        Raw::Scalar(text, style, anchor, _) => Event::Scalar {
            text,
            is_plain: style == ScalarStyle::Plain,
            anchor,
        },
        Raw::SequenceStart(_, anchor, _) => Event::List(anchor),
        Raw::MappingStart(_, anchor, _) => Event::Map(anchor),
        Raw::SequenceEnd | Raw::MappingEnd => Event::End,
        Raw::Alias(anchor) => Event::Alias(anchor),
        Raw::UnresolvedAlias(name) => Event::UnknownAlias(name.to_string()),
        _ => return None,
    };
    Some(Placed { event, at, tag })
}

fn place(marker: &Marker, width: usize) -> Span {
    let bounded = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Span {
        line: bounded(marker.line()),
        col: bounded(marker.col()).saturating_add(1),
        width: bounded(width.max(1)),
    }
}

fn width_of(span: &granit_parser::Span) -> usize {
    if span.start.line() == span.end.line() {
        span.end.col().saturating_sub(span.start.col())
    } else {
        1
    }
}
