//! One request through the layer in shadow mode: observed, never refused because of its key.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body::{Frame, SizeHint};
use onlyonce_core::policy::{Answered, lost_by_proxy};
use tower::ServiceExt;
use tower_service::Service;

use super::{
    Identity, Shared,
    capture::{Captured, capture_into, is_unkeepable},
    headers::take_outcome,
    request::{Wanted, arrived, wanted},
    service::{checked, pass},
};
use crate::{
    body::{Body, BoxError},
    engine::Attempt,
    limits::{ConnectionId, Holder},
    problem::Problem,
    seam::find_not_sent,
    shadow::{self, Observations, Would},
};

/// Forwards the request, and notes what the layer would have done with it.
pub(super) async fn observe<S, B, R>(
    shared: &Shared,
    observations: &Observations,
    inner: S,
    parts: Parts,
    body: B,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let policy = &shared.policy;
    let body = Body::stream(body);
    let engine = &shared.engine;
    let note_without_key = |would| {
        let identity = shared.identify.identify(&parts);
        let client = identity.as_ref().and_then(Identity::name);
        observations.note(engine, would, client, None);
    };
    let (sent, identity) = match wanted(shared, &parts) {
        Wanted::Key(sent, identity) => (sent, identity),
        Wanted::Nothing => return pass(inner, parts, body, policy).await,
        Wanted::Keyless => {
            note_without_key(Would::Keyless);
            return pass(inner, parts, body, policy).await;
        }
        Wanted::Refuse(rejected) => {
            note_without_key(rejected.would());
            return timely(shared, pass(inner, parts, body, policy)).await;
        }
    };
    let client = identity.name();
    let too_large = http_body::Body::size_hint(&body).lower() > policy.max_request_body;
    let connection = parts.extensions.get::<ConnectionId>().copied();
    let holder = Holder::of(identity.client_id().as_ref(), connection);
    let reading = async {
        if too_large {
            let read = Bytes::new();
            return Captured::TooLong { read, rest: body };
        }
        let held = shared.engine.body_budget().account(holder);
        capture_into(held, body, policy.max_request_body).await
    };
    // The body has as long to arrive as the answer has, as without observation.
    let read = tokio::time::timeout(policy.timeout, reading).await;
    let captured = match read {
        Ok(read) => read,
        Err(_) => return Ok(Problem::RequestTimeout.response(policy)),
    };
    let (bytes, trailers) = match captured {
        Captured::Whole { bytes, trailers } => (bytes, trailers),
        Captured::TooLong { read, rest } => {
            observations.note(engine, Would::TooLarge, client, Some(&sent.key));
            let body = Body::stream(Resumed { read, rest });
            return timely(shared, pass(inner, parts, body, policy)).await;
        }
        // Observation must not cost anybody a request.
        Captured::NoRoom { read, rest } => {
            observations.note(engine, Would::Unobserved, client, Some(&sent.key));
            let body = Body::stream(Resumed { read, rest });
            return timely(shared, pass(inner, parts, body, policy)).await;
        }
        Captured::Truncated(_) => return Ok(Problem::RequestIncomplete.response(policy)),
    };
    // A copy, since the request is forwarded as it came.
    let headers = parts.headers.clone();
    let arrival = arrived(shared, &parts, headers, (&sent, &identity), bytes.clone()).await;
    let (would, attempt) = shared.engine.observatory().observe(arrival, policy).await;
    observations.note(engine, would, client, Some(&sent.key));
    let body = Body::full(bytes, trailers);
    match attempt {
        Some(attempt) => {
            let request = Request::from_parts(parts, body);
            Ok(executed(shared, &attempt, inner, request).await)
        }
        None => timely(shared, pass(inner, parts, body, policy)).await,
    }
}

/// Forwards the first request with its key, and records how it ended.
async fn executed<S, R>(
    shared: &Shared,
    attempt: &Attempt,
    inner: S,
    request: Request<Body>,
) -> Response<Body>
where
    S: Service<Request<Body>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let policy = &shared.policy;
    let method = request.method().clone();
    let answer = tokio::time::timeout(policy.timeout, inner.oneshot(request)).await;
    let Ok(answer) = answer else {
        attempt.settle(&shadow::without_answer(true)).await;
        return Problem::UpstreamTimeout.response(policy);
    };
    let response = match answer {
        Ok(response) => response,
        Err(error) => {
            let was_sent = find_not_sent(&*error.into()).is_none();
            attempt.settle(&shadow::without_answer(was_sent)).await;
            return match was_sent {
                true => Problem::UpstreamFailed.response(policy),
                false => Problem::UpstreamNotReached.response(policy),
            };
        }
    };
    let (mut parts, body) = checked(response, &method, policy).into_parts();
    let declared = take_outcome(&mut parts.headers, &mut parts.extensions, policy);
    let verdict = policy.judge(&Answered {
        status: parts.status,
        declared,
        reached_before: attempt.record().reached_before(),
        lost_by_proxy: lost_by_proxy(parts.status, &parts.headers, &[]),
    });
    let is_kept = !is_unkeepable(&parts, policy.max_body_size);
    attempt
        .settle(&shadow::settlement(verdict, parts.status, is_kept))
        .await;
    Response::from_parts(parts, body)
}

async fn timely<E>(
    shared: &Shared,
    answer: impl Future<Output = Result<Response<Body>, E>>,
) -> Result<Response<Body>, E> {
    match tokio::time::timeout(shared.policy.timeout, answer).await {
        Ok(answer) => answer,
        Err(_) => Ok(Problem::UpstreamTimeout.response(&shared.policy)),
    }
}

/// A body whose beginning has already been read.
struct Resumed {
    read: Bytes,
    rest: Body,
}

impl http_body::Body for Resumed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match std::mem::take(&mut self.read) {
            read if !read.is_empty() => Poll::Ready(Some(Ok(Frame::data(read)))),
            _ => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.read.len() as u64;
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + read);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + read);
        }
        hint
    }
}
