//! Which headers cross the layer, in which direction, and which are stored.

use bytes::{Bytes, BytesMut};
use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{self, Entry},
};
use onlyonce_core::{
    Key, Policy, Spelling,
    policy::Declared,
    readings::{METHOD_OVERRIDES, URL_OVERRIDES},
};

use crate::{key_status::STATUS, seam::Outcome};

use super::hop::{named_in_connection, strip_hop_by_hop};

/// Names the attempt that a request belongs to, for the upstream.
pub(super) static ATTEMPT: HeaderName = HeaderName::from_static("idempotency-attempt");
/// The upstream's statement of what happened.
pub(super) static OUTCOME: HeaderName = HeaderName::from_static("idempotency-outcome");
/// When an answer expires.
pub(super) static EXPIRES: HeaderName = HeaderName::from_static("idempotency-key-expires");
/// The generation of the key that an answer belongs to, if it is not the first.
pub(super) static GENERATION: HeaderName = HeaderName::from_static("idempotency-generation");

/// How long a client is willing to wait (RFC 7240).
const PREFER: HeaderName = HeaderName::from_static("prefer");
static REPLAYED: HeaderName = HeaderName::from_static("x-idempotent-replayed");

const NEVER_STORED: [&str; 18] = [
    "set-cookie",
    "age",
    "date",
    "www-authenticate",
    "traceparent",
    "tracestate",
    "x-request-id",
    "x-correlation-id",
    "x-amzn-trace-id",
    "server-timing",
    "via",
    "alt-svc",
    // Computed from the stored bytes.
    "content-length",
    // Set for each answer, or never.
    "idempotency-outcome",
    "idempotency-attempt",
    "idempotency-generation",
    "idempotency-status",
    "x-idempotent-replayed",
];

/// Never stored with an error: these headers describe the moment of the error.
pub(super) const NEVER_STORED_OF_ERRORS: [HeaderName; 3] = [
    header::RETRY_AFTER,
    HeaderName::from_static("stripe-should-retry"),
    HeaderName::from_static("x-should-retry"),
];

const NEVER_STORED_PREFIXES: [&str; 3] = ["proxy-", "ratelimit", "x-ratelimit-"];

/// The sender of a message's headers, or of the trailers after its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaker {
    Client,
    Upstream,
}

/// The names that `speaker` must not use, since only the layer may send them to the recipient.
fn claims(speaker: Speaker, policy: &Policy) -> impl Iterator<Item = &HeaderName> + Clone {
    let of_both = [&ATTEMPT, &OUTCOME, &REPLAYED, &policy.replayed_header];
    let to_clients = [&GENERATION, &STATUS, &EXPIRES];
    let to_clients = Some(to_clients).filter(|_| speaker == Speaker::Upstream);
    of_both.into_iter().chain(to_clients.into_iter().flatten())
}

fn strip<'a>(headers: &mut HeaderMap, names: impl Iterator<Item = &'a HeaderName> + Clone) {
    // One pass over the names costs less than a lookup of each of these, and nearly always suffices.
    if headers
        .keys()
        .any(|name| names.clone().any(|one| one == name))
    {
        for name in names {
            headers.remove(name);
        }
    }
}

/// Every request header that the layer or the upstream acts on: those the layer sets or reads, and those
/// that override the method or the URL.
fn believed(policy: &Policy) -> impl Iterator<Item = &HeaderName> + Clone {
    let own = [&policy.header_name, &EXPIRES, &GENERATION, &STATUS];
    let readings = METHOD_OVERRIDES.iter().chain(&URL_OVERRIDES);
    claims(Speaker::Client, policy).chain(own).chain(readings)
}

/// Removes from a client's request the headers that only the layer, or the upstream, may set.
pub(super) fn strip_claims(headers: &mut HeaderMap, policy: &Policy) {
    strip(headers, claims(Speaker::Client, policy));
    strip_lookalikes(headers, believed(policy));
}

/// Removes from trailers what their `speaker` must not send, and what nobody checks after a body: a server
/// that merges trailers into the headers would believe it.
pub(super) fn strip_trailers(trailers: &mut HeaderMap, speaker: Speaker, policy: &Policy) {
    strip_hop_by_hop(trailers);
    strip(trailers, claims(speaker, policy));
    match speaker {
        Speaker::Client => {
            strip(trailers, believed(policy));
            strip_lookalikes(trailers, believed(policy));
        }
        // The key belongs in front of the body.
        Speaker::Upstream => strip(trailers, std::iter::once(&policy.header_name)),
    }
}

/// Removes from an answer's `Trailer` what [`strip_trailers`] removes from its trailers.
pub(super) fn strip_announced(headers: &mut HeaderMap, policy: &Policy) {
    if !headers.contains_key(header::TRAILER) {
        return;
    }
    let nothing = HeaderValue::from_static("");
    let lines = headers.get_all(header::TRAILER).iter();
    let names = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let names = names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok());
    let mut announced: HeaderMap = names.map(|name| (name, nothing.clone())).collect();
    strip_trailers(&mut announced, Speaker::Upstream, policy);
    headers.remove(header::TRAILER);
    headers.extend(names_of(&announced).map(|names| (header::TRAILER, names)));
}

/// The names of `trailers`, as `Trailer` lists them.
fn names_of(trailers: &HeaderMap) -> Option<HeaderValue> {
    let names: Vec<&str> = trailers.keys().map(HeaderName::as_str).collect();
    let names = HeaderValue::from_str(&names.join(", ")).ok()?;
    (!trailers.is_empty()).then_some(names)
}

/// Removes headers whose names contain underscores and read like one of `names`. Many servers, such as
/// those behind CGI or WSGI, treat the two as one, and nothing has checked this one.
pub fn strip_lookalikes<'a>(
    headers: &mut HeaderMap,
    names: impl Iterator<Item = &'a HeaderName> + Clone,
) {
    let dashed = |byte: u8| if byte == b'_' { b'-' } else { byte };
    let is_lookalike = |name: &&HeaderName| {
        let text = name.as_str();
        text.contains('_')
            && names.clone().all(|own| own != *name)
            && names.clone().any(|own| {
                let own_text = own.as_str().bytes().map(dashed);
                text.bytes().map(dashed).eq(own_text)
            })
    };
    let found: Vec<HeaderName> = headers.keys().filter(is_lookalike).cloned().collect();
    for name in found {
        headers.remove(name);
    }
}

/// Takes the upstream's declared outcome from its answer, and removes the headers that only the layer may
/// send to a client.
pub(super) fn take_outcome(
    headers: &mut HeaderMap,
    extensions: &mut Extensions,
    policy: &Policy,
) -> Option<Declared> {
    let declared = extensions.remove::<Outcome>().map(|outcome| outcome.0);
    let declared = declared.or_else(|| {
        // A proxy may have made one line of several.
        let mut words = headers.get_all(&OUTCOME).iter().flat_map(|value| {
            let words = value.to_str().unwrap_or_default().split(',');
            let words = words.filter(|word| !word.trim().is_empty());
            words.map(|word| Declared::from_word(&word.trim().to_ascii_lowercase()))
        });
        let first = words.next()?;
        // An upstream that declares two different outcomes has not declared what happened.
        match words.all(|word| word == first) {
            true => first,
            false => Some(Declared::Unknown),
        }
    });
    strip(headers, claims(Speaker::Upstream, policy));
    declared
}

/// The key in a request's headers.
pub(super) enum KeyHeader {
    Absent,
    Present(Sent),
    Invalid(String),
}

/// A key as a client sent it.
pub(super) struct Sent {
    pub(super) key: Key,
    /// The spelling for the upstream, unless the record notes an earlier one.
    pub(super) spelling: Spelling,
    /// The header's value as received, which the client gets back.
    pub(super) value: HeaderValue,
}

pub(super) fn read_key(headers: &HeaderMap, policy: &Policy) -> KeyHeader {
    let mut values = headers.get_all(&policy.header_name).into_iter();
    let Some(value) = values.next() else {
        return KeyHeader::Absent;
    };
    if values.next().is_some() {
        return KeyHeader::Invalid("it stands there more than once".to_owned());
    }
    if named_in_connection(headers).contains(&policy.header_name) {
        return KeyHeader::Invalid("the header Connection names it".to_owned());
    }
    let read = Key::parse(value.as_bytes(), &policy.key_rules)
        .and_then(|key| Ok((Spelling::of(&key, value.as_bytes())?, key)));
    match read {
        Ok((spelling, key)) => KeyHeader::Present(Sent {
            key,
            spelling,
            value: value.clone(),
        }),
        Err(error) => KeyHeader::Invalid(error.to_string()),
    }
}

/// The seconds of `Prefer: wait=N`, if the client sent it.
pub fn preferred_wait(headers: &HeaderMap) -> Option<u64> {
    headers
        .get_all(PREFER)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| outside_quotes(value, ','))
        .filter_map(|preference| outside_quotes(preference, ';').next())
        .filter_map(|preference| preference.split_once('='))
        .find(|(name, _)| name.trim().eq_ignore_ascii_case("wait"))
        .and_then(|(_, seconds)| seconds.trim().trim_matches('"').parse().ok())
}

/// The parts of `text` between occurrences of `separator` outside quoted strings (RFC 9110 5.6.4).
fn outside_quotes(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(move |character| {
        let ends = character == separator && !is_quoted;
        is_quoted ^= character == '"' && !is_escaped;
        is_escaped = character == '\\' && is_quoted && !is_escaped;
        ends
    })
}

/// The headers of an answer that are stored, in order.
pub(super) fn stored(headers: &HeaderMap, status: StatusCode, policy: &Policy) -> HeaderMap {
    let is_kept = |(name, _): &(&HeaderName, &HeaderValue)| {
        **name == policy.header_name || may_be_stored(name, status)
    };
    let count = headers.iter().filter(is_kept).count();
    let mut kept = HeaderMap::with_capacity(count);
    for (name, value) in headers.iter().filter(is_kept) {
        kept.append(name.clone(), value.clone());
    }
    kept
}

/// The headers of an answer that another party gives in the upstream's place, as the upstream's own would
/// be stored: without those of one hop or one exchange, and without those that a replay sets itself.
pub fn remembered(mut headers: HeaderMap, status: StatusCode, policy: &Policy) -> HeaderMap {
    strip_hop_by_hop(&mut headers);
    let mut kept = stored(&headers, status, policy);
    strip(&mut kept, claims(Speaker::Upstream, policy));
    kept.remove(&policy.header_name);
    kept
}

/// Copies an answer into one allocation of its own. As received, it points into the connection's read
/// buffers, and keeping a few hundred bytes of a buffer keeps all of it.
pub(super) fn compact(headers: &mut HeaderMap, body: &mut Bytes) {
    let values: usize = headers.values().map(HeaderValue::len).sum();
    let mut block = BytesMut::with_capacity(values + body.len());
    for value in headers.values() {
        block.extend_from_slice(value.as_bytes());
    }
    block.extend_from_slice(body);
    let mut block = block.freeze();
    for value in headers.values_mut() {
        let copy = block.split_to(value.len());
        if let Ok(copy) = HeaderValue::from_maybe_shared(copy) {
            *value = copy;
        }
    }
    *body = block;
}

fn may_be_stored(name: &HeaderName, status: StatusCode) -> bool {
    let is_error = status.is_client_error() || status.is_server_error();
    let text = name.as_str();
    !(NEVER_STORED.contains(&text)
        || NEVER_STORED_PREFIXES
            .iter()
            .any(|prefix| text.starts_with(prefix))
        || (is_error && NEVER_STORED_OF_ERRORS.contains(name)))
}

/// Lists in `Trailer` what will follow the body, since a server sends only the trailers listed there.
pub(super) fn announce_trailers(headers: &mut HeaderMap, trailers: Option<&HeaderMap>) {
    let Some(trailers) = trailers else { return };
    if let Some(names) = names_of(trailers)
        && let Entry::Vacant(vacant) = headers.entry(header::TRAILER)
    {
        vacant.insert(names);
    }
    // A body with trailers is chunked, and a length would contradict that.
    headers.remove(header::CONTENT_LENGTH);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn what_speaks_of_one_answer_only_is_not_stored() {
        let answer = map(&[
            ("set-cookie", "a=1"),
            ("link", "<a>"),
            ("link", "<b>"),
            ("x-ratelimit-remaining", "1"),
            ("ratelimit", "1"),
            ("proxy-status", "x"),
            ("retry-after", "3"),
            ("stripe-should-retry", "true"),
            ("x-should-retry", "true"),
            ("location", "/p/1"),
        ]);
        let policy = Policy::default();
        let kept = map(&[("link", "<a>"), ("link", "<b>"), ("location", "/p/1")]);
        assert_eq!(stored(&answer, StatusCode::PAYMENT_REQUIRED, &policy), kept);
        assert!(stored(&answer, StatusCode::ACCEPTED, &policy).contains_key("retry-after"));
    }

    #[test]
    fn sql_functions_leave_out_the_same() {
        let functions = include_str!("../../../onlyonce-store/src/postgres/functions.sql");
        let (_, rest) = functions
            .split_once("FUNCTION onlyonce.may_be_stored")
            .unwrap();
        let list = rest.split_once("$$;").unwrap().0;
        let names = NEVER_STORED.iter().chain(&NEVER_STORED_PREFIXES);
        let names = names.map(|name| (*name).to_owned());
        let of_errors = NEVER_STORED_OF_ERRORS.map(|name| name.to_string());
        for name in names.chain(of_errors) {
            assert!(list.contains(&format!("'{name}'")), "{name}");
        }
    }

    #[test]
    fn a_compact_answer_is_the_same_answer() {
        let before = map(&[("link", "<a>"), ("link", "<b>"), ("etag", "\"x\"")]);
        let (mut headers, mut body) = (before.clone(), Bytes::from_static(b"body"));
        compact(&mut headers, &mut body);
        assert_eq!((headers, body), (before, Bytes::from_static(b"body")));
    }

    #[test]
    fn the_configured_header_is_exempt() {
        let policy = Policy::builder()
            .header_name(HeaderName::from_static("x-request-id"))
            .build();
        let answer = map(&[("x-request-id", "k")]);
        assert_eq!(stored(&answer, StatusCode::OK, &policy), answer);
    }

    #[test]
    fn preferences_are_read() {
        assert_eq!(
            preferred_wait(&map(&[("prefer", "respond-async, wait=10")])),
            Some(10)
        );
        assert_eq!(preferred_wait(&map(&[("prefer", "wait=0; x=1")])), Some(0));
        assert_eq!(preferred_wait(&map(&[("prefer", "wait=soon")])), None);
        for (quoted, wait) in [
            (r#"foo="a, wait=5", wait=0"#, Some(0)),
            (r#"foo="a\", wait=5", wait=0"#, Some(0)),
            (r#"foo="a\\", wait=5"#, Some(5)),
            (r#"foo="; wait=5""#, None),
            (r#"foo; x="a, wait=5";y, wait="7""#, Some(7)),
            (r#"foo="never closed, wait=5"#, None),
        ] {
            assert_eq!(
                preferred_wait(&map(&[("prefer", quoted)])),
                wait,
                "{quoted}"
            );
        }
    }
}
