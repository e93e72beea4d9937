//! OpenTelemetry context: the parent of a request's span, the context sent to the upstream, and links between
//! attempts.
//!
//! Two kinds of link join the attempts of one operation. Every span of a key is linked to the *operation*: a
//! context whose trace id is the id of the key's record, the same on every node and after a restart. No span
//! with that id is ever sent; the id is a name to search for. Every later attempt is also linked to the span
//! of the *first attempt*, if this process has executed that recently.

use std::{
    collections::{HashMap, VecDeque},
    sync::LazyLock,
};

use http::{HeaderMap, HeaderValue};
use onlyonce_core::RecordId;
use opentelemetry::{
    Context, KeyValue,
    trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState},
};
use parking_lot::Mutex;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
/// The link attribute that says what the link points to.
const LINK: &str = "onlyonce.link";
/// First attempts that are remembered; the oldest are forgotten first.
const MAX_REMEMBERED: usize = 10_000;

#[derive(Default)]
struct Remembered {
    contexts: HashMap<RecordId, SpanContext>,
    order: VecDeque<RecordId>,
}

impl Remembered {
    fn keep(&mut self, id: RecordId, context: SpanContext) {
        if self.contexts.insert(id, context).is_none() {
            self.order.push_back(id);
        }
        if self.order.len() > MAX_REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.contexts.remove(&oldest);
        }
    }
}

static FIRST_ATTEMPTS: LazyLock<Mutex<Remembered>> = LazyLock::new(Mutex::default);

/// Makes the span a child of the one named in `headers`.
pub(super) fn adopt(span: &Span, headers: &HeaderMap) {
    if !span.is_disabled()
        && let Some(parent) = parent(headers)
    {
        // This fails only for a span that has started, and this one has not.
        let _ = span.set_parent(Context::new().with_remote_span_context(parent));
    }
}

/// The context in `traceparent`; `None` if it is malformed. Of a version later than 00, the part in the form
/// of 00 is read.
fn parent(headers: &HeaderMap) -> Option<SpanContext> {
    let mut lines = headers.get_all(TRACEPARENT).iter();
    let text = lines.next()?.to_str().ok()?;
    if lines.next().is_some() {
        return None;
    }
    let mut parts = text.trim().split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let lengths = [version, trace, span, flags].map(str::len);
    let is_known = version != "ff" && (version != "00" || parts.next().is_none());
    let is_lower = !text.bytes().any(|byte| byte.is_ascii_uppercase());
    if lengths != [2, 32, 16, 2] || !is_known || !is_lower {
        return None;
    }
    let state: Vec<&str> = headers
        .get_all(TRACESTATE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .collect();
    let context = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED,
        true,
        state.join(",").parse().unwrap_or_default(),
    );
    context.is_valid().then_some(context)
}

/// Writes the span's context to the headers, for their recipient.
pub(super) fn inject(span: &Span, headers: &mut HeaderMap) {
    let context = span.context();
    let named = context.span().span_context().clone();
    if !named.is_valid() {
        return;
    }
    let text = format!(
        "00-{}-{}-{:02x}",
        named.trace_id(),
        named.span_id(),
        named.trace_flags().to_u8()
    );
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(TRACEPARENT, value);
    }
}

/// Links the span to the operation of its key.
pub(super) fn name_operation(span: &Span, id: RecordId) {
    let [half, _] = id.0.as_chunks::<8>().0 else {
        return;
    };
    let operation = SpanContext::new(
        TraceId::from_bytes(id.0),
        SpanId::from_bytes(*half),
        TraceFlags::default(),
        true,
        TraceState::default(),
    );
    span.add_link_with_attributes(operation, vec![KeyValue::new(LINK, "operation")]);
}

/// Remembers the span as the first attempt.
pub(super) fn remember(span: &Span, id: RecordId) {
    let context = span.context().span().span_context().clone();
    if !context.is_valid() {
        return;
    }
    FIRST_ATTEMPTS.lock().keep(id, context);
}

/// Links the span to the first attempt, if that is remembered.
pub(super) fn link(span: &Span, id: RecordId) {
    let first = FIRST_ATTEMPTS.lock().contexts.get(&id).cloned();
    if let Some(first) = first {
        span.add_link_with_attributes(first, vec![KeyValue::new(LINK, "first_attempt")]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &'static str) -> Option<SpanContext> {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, HeaderValue::from_static(text));
        parent(&headers)
    }

    #[test]
    fn only_what_is_well_formed_is_a_parent() {
        let good = named("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
        assert!(good.is_sampled() && good.is_remote());
        assert_eq!(good.span_id().to_string(), "b7ad6b7169203331");
        for bad in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
        ] {
            assert!(named(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let context = || {
            SpanContext::new(
                TraceId::from(1),
                SpanId::from(1),
                TraceFlags::SAMPLED,
                false,
                TraceState::default(),
            )
        };
        let mut remembered = Remembered::default();
        for number in 0..MAX_REMEMBERED as u128 + 5 {
            remembered.keep(RecordId(number.to_be_bytes()), context());
            remembered.keep(RecordId(number.to_be_bytes()), context());
        }
        assert_eq!(remembered.contexts.len(), MAX_REMEMBERED);
        assert_eq!(remembered.order.len(), MAX_REMEMBERED);
        assert!(!remembered.contexts.contains_key(&RecordId([0; 16])));
    }
}
