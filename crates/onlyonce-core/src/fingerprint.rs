//! The fingerprint: whether two requests with one key are the same request.
//!
//! It is a MAC over the method, the host, the target, the headers that count and the body in a form that
//! ignores what cannot change the meaning: the order of JSON members, white space, the multipart boundary,
//! the compression. Everything that an upstream can route on is included. Where normalising could make two
//! different requests look the same, the raw bytes are hashed instead. A tag for the form used keeps a raw
//! fingerprint from ever equalling a canonical one.
//!
//! Deliberately absent: framing and protocol version. Chunked or not, HTTP/1.1 or HTTP/2, a request
//! is the same request.

mod decode;
mod form;
mod frame;
mod json;
mod multipart;
mod number;
mod pointer;
mod recipe;
mod target;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::fmt;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};

pub use decode::{MAX_DECODED_BYTES, MAX_EXPANSION};
pub use form::MAX_FORM_PAIRS;
pub use json::{MAX_DEPTH, canonicalise};
pub use multipart::{MAX_PART_HEADERS, MAX_PARTS};
pub use pointer::{Pointer, PointerError};
pub use recipe::{BodyMode, Recipe, RecipeError, RecipeId};

pub(crate) use recipe::DEFAULT_HEADERS;

use crate::readings::{METHOD_OVERRIDES, URL_OVERRIDES};
use crate::secret::{ScopeHasher, write_hex};
use frame::{write_framed, write_framed_with, write_length};
use recipe::Version;

/// Larger buffers are freed after a request instead of being kept by the thread.
const MAX_KEPT_BYTES: usize = 64 * 1024;

/// Domain separation: names the whole construction, so that a later one cannot collide with it.
const DOMAIN: [&[u8]; 2] = [b"onlyonce/fingerprint/1", b"onlyonce/fingerprint/2"];

/// The MAC of what counts in a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

/// The parts of a request that a fingerprint can depend on.
#[derive(Clone, Copy)]
pub struct RequestView<'a> {
    /// The method, as sent.
    pub method: &'a str,
    /// Host and port of the target, if it has them: `:authority`, or the absolute form.
    pub authority: Option<&'a str>,
    /// Path and query exactly as forwarded.
    pub target: &'a str,
    /// All headers; the recipe selects.
    pub headers: &'a HeaderMap,
    /// The whole body, without its transfer coding.
    pub body: &'a [u8],
}

impl ScopeHasher {
    /// The fingerprint of `request` under `recipe`, in this hasher's scope.
    pub fn fingerprint(&self, recipe: &Recipe, request: &RequestView<'_>) -> Fingerprint {
        BUFFERS.with_borrow_mut(|buffers| {
            buffers.message.clear();
            let decoded = match recipe.version() {
                Version::One => {
                    write_head(recipe, request, &mut buffers.message);
                    None
                }
                Version::Two => {
                    write_whole_head(recipe, request, &mut buffers.message);
                    decode::decoded(request.headers, request.body)
                }
            };
            let body = decoded.as_deref();
            let is_as_sent = body.is_none() && decode::codings(request.headers).next().is_some();
            let request = &RequestView {
                body: body.unwrap_or(request.body),
                ..*request
            };
            let raw = match write_body(recipe, request, is_as_sent, buffers) {
                Written::Here => &[],
                Written::Raw => request.body,
            };
            let fingerprint = Fingerprint(self.sign(&[&buffers.message, raw]));
            buffers.shrink();
            fingerprint
        })
    }
}

thread_local! {
    // A warm thread fingerprints an ordinary request without allocating.
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

#[derive(Default)]
struct Buffers {
    message: Vec<u8>,
    json: json::Scratch,
}

impl Buffers {
    fn shrink(&mut self) {
        if self.message.capacity() + self.json.capacity() > MAX_KEPT_BYTES {
            *self = Buffers::default();
        }
    }
}

/// The form in which a body is hashed. The tags are part of every stored fingerprint.
#[derive(Clone, Copy)]
enum BodyKind {
    Raw = 0,
    Json = 1,
    JsonFields = 2,
    Form = 3,
    Multipart = 4,
    /// Raw, with content codings that could not be decoded.
    Encoded = 5,
}

/// Where `write_body` put the body's bytes.
enum Written {
    /// In the message.
    Here,
    /// Nowhere: the request's own bytes follow the message.
    Raw,
}

/// Writes the head for version 2: everything that a server can route on.
fn write_whole_head(recipe: &Recipe, request: &RequestView<'_>, out: &mut Vec<u8>) {
    let headers = Lines::of(request.headers);
    write_framed(DOMAIN[1], out);
    write_framed(&recipe.id().0, out);
    write_framed_with(out, |out| {
        out.extend(request.method.bytes().map(|byte| byte.to_ascii_uppercase()));
    });
    for name in METHOD_OVERRIDES.iter().chain(&URL_OVERRIDES) {
        headers.write_values(name, out);
    }
    if recipe.host() {
        let host = target::effective_host(request.authority, request.headers);
        let aliases = recipe.host_aliases();
        let is_alias = aliases.iter().any(|one| one.as_bytes() == host);
        let one = aliases.first().filter(|_| is_alias);
        write_framed(one.map_or(&host, |one| one.as_bytes()), out);
    }
    target::write_target(recipe, request.target, out);
    // The recipe's id covers the names of the headers, so absent ones need no entry.
    for (text, name) in recipe.named_headers() {
        if let Some(name) = name
            && headers.values(name).next().is_some()
        {
            write_framed(text.as_bytes(), out);
            headers.write_values(name, out);
        }
    }
    write_length(0, out);
}

/// Headers, where names with underscores count as those with dashes: many servers make no difference.
struct Lines<'a> {
    headers: &'a HeaderMap,
    /// Whether any name has an underscore. Hardly any request has one, and the others skip that search.
    has_underscores: bool,
}

impl<'a> Lines<'a> {
    fn of(headers: &'a HeaderMap) -> Self {
        let mut names = headers.keys();
        Self {
            headers,
            has_underscores: names.any(|name| name.as_str().contains('_')),
        }
    }

    fn values(&self, name: &'a HeaderName) -> impl Iterator<Item = &'a HeaderValue> {
        let dashed = |byte: u8| if byte == b'_' { b'-' } else { byte };
        let is_alike = move |other: &HeaderName| {
            let other = other.as_str();
            other.contains('_') && other.bytes().map(dashed).eq(name.as_str().bytes())
        };
        let headers = self.headers;
        let others = self.has_underscores.then(|| headers.iter());
        let alike = others.into_iter().flatten();
        let alike = alike.filter(move |(other, _)| is_alike(other));
        headers
            .get_all(name)
            .iter()
            .chain(alike.map(|(_, value)| value))
    }

    fn write_values(&self, name: &'a HeaderName, out: &mut Vec<u8>) {
        write_length(self.values(name).count(), out);
        for value in self.values(name) {
            write_value(name, value, out);
        }
    }
}

/// Writes a header value; that of Content-Type without its parameters, in lower case.
fn write_value(name: &HeaderName, value: &HeaderValue, out: &mut Vec<u8>) {
    if *name != CONTENT_TYPE {
        return write_framed(value.as_bytes(), out);
    }
    let media_type = media_type(value.as_bytes());
    write_framed_with(out, |out| {
        out.extend(media_type.iter().map(u8::to_ascii_lowercase));
    });
}

fn write_head(recipe: &Recipe, request: &RequestView<'_>, out: &mut Vec<u8>) {
    write_framed(DOMAIN[0], out);
    write_framed(&recipe.id().0, out);
    write_framed(request.method.as_bytes(), out);
    write_framed(request.target.as_bytes(), out);
    write_length(recipe.headers().len(), out);
    for (text, name) in recipe.named_headers() {
        write_framed(text.as_bytes(), out);
        let values = name.map(|name| request.headers.get_all(name));
        let count = values.as_ref().map_or(0, |values| values.iter().count());
        write_length(count, out);
        for (name, values) in name.iter().zip(&values) {
            values
                .iter()
                .for_each(|value| write_value(name, value, out));
        }
    }
}

/// Writes the kind of body and the body. Whatever is in doubt falls back to raw bytes.
fn write_body(
    recipe: &Recipe,
    request: &RequestView<'_>,
    is_as_sent: bool,
    buffers: &mut Buffers,
) -> Written {
    let start = buffers.message.len();
    if recipe.version() == Version::Two && is_as_sent {
        buffers.message.push(BodyKind::Encoded as u8);
        write_length(
            decode::codings(request.headers).count(),
            &mut buffers.message,
        );
        for coding in decode::codings(request.headers) {
            write_framed(&coding.to_ascii_lowercase(), &mut buffers.message);
        }
        write_length(request.body.len(), &mut buffers.message);
        return Written::Raw;
    }
    if write_understood(recipe, request, buffers).is_some() {
        return Written::Here;
    }
    buffers.message.truncate(start);
    buffers.message.push(BodyKind::Raw as u8);
    write_length(request.body.len(), &mut buffers.message);
    Written::Raw
}

fn write_understood(
    recipe: &Recipe,
    request: &RequestView<'_>,
    buffers: &mut Buffers,
) -> Option<()> {
    let Buffers { message, json } = buffers;
    let is_as_sent = recipe.version() == Version::One && is_encoded(request.headers);
    if recipe.mode() == BodyMode::Raw || is_as_sent {
        return None;
    }
    let content_type = sole_content_type(request.headers)?;
    let media_type = media_type(content_type);
    if is_json(media_type) {
        if recipe.fields().is_empty() && recipe.ignore().is_empty() {
            message.push(BodyKind::Json as u8);
            return write_framed_with(message, |out| {
                json::write_canonical(request.body, out, json)
            });
        }
        return write_selected(recipe, request.body, message, json);
    }
    if media_type.eq_ignore_ascii_case(b"application/x-www-form-urlencoded") {
        message.push(BodyKind::Form as u8);
        return form::write_form(request.body, message);
    }
    if media_type.eq_ignore_ascii_case(b"multipart/form-data") {
        let boundary = multipart::boundary(content_type)?;
        message.push(BodyKind::Multipart as u8);
        return multipart::write_parts(request.body, &boundary, message);
    }
    None
}

/// Writes the part of a JSON body that the recipe's pointers select.
fn write_selected(
    recipe: &Recipe,
    body: &[u8],
    message: &mut Vec<u8>,
    json: &mut json::Scratch,
) -> Option<()> {
    let mut document = Vec::with_capacity(body.len());
    json::write_canonical(body, &mut document, json)?;
    if !recipe.ignore().is_empty() {
        let mut kept = Vec::with_capacity(document.len());
        pointer::prune(&document, recipe.ignore(), &mut kept);
        document = kept;
    }
    if recipe.fields().is_empty() {
        message.push(BodyKind::Json as u8);
        write_framed(&document, message);
        return Some(());
    }
    message.push(BodyKind::JsonFields as u8);
    for field in recipe.fields() {
        let value = pointer::find(&document, field);
        message.push(u8::from(value.is_some()));
        write_framed(value.unwrap_or_default(), message);
    }
    Some(())
}

fn sole_content_type(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let value = values.next()?;
    // With two of them, we cannot know which one the upstream believes.
    values.next().is_none().then_some(value.as_bytes())
}

/// A Content-Type without its parameters.
fn media_type(content_type: &[u8]) -> &[u8] {
    content_type
        .split(|byte| *byte == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii()
}

fn is_json(media_type: &[u8]) -> bool {
    let suffix = media_type.len().saturating_sub(b"+json".len());
    media_type.eq_ignore_ascii_case(b"application/json")
        || (media_type.contains(&b'/') && media_type[suffix..].eq_ignore_ascii_case(b"+json"))
}

fn is_encoded(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(CONTENT_ENCODING).iter();
    codings.any(|coding| {
        !coding
            .as_bytes()
            .trim_ascii()
            .eq_ignore_ascii_case(b"identity")
    })
}
