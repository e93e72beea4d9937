//! What a request asks of the layer: whether it has a key, whose it is, and the form in which it is compared.
//!
//! Requests that are served and requests that shadow mode only observes are read here alike.

use bytes::Bytes;
use http::{HeaderMap, header, request::Parts, uri::Authority};
use onlyonce_core::{Policy, readings::Methods};

use super::{
    Identity, Shared,
    headers::{KeyHeader, Sent, read_key},
    strip_hop_by_hop,
};
use crate::{
    engine::Arrival,
    limits::{self, ConnectionId},
    problem::Problem,
    shadow::Would,
    stats::Event,
};

/// What the head of a request asks for.
pub(super) enum Wanted {
    /// The layer does not apply to its method.
    Nothing,
    /// It has no key and needs none.
    Keyless,
    /// It has a key.
    Key(Sent, Identity),
    /// It is refused before anybody looks for its key.
    Refuse(Rejected),
}

/// Why a request is refused by its head alone.
pub(super) enum Rejected {
    Unauthenticated,
    Grpc,
    KeyMissing,
    KeyInvalid(String),
}

impl Rejected {
    pub(super) fn event(&self) -> Event {
        match self {
            Self::Unauthenticated => Event::Unauthenticated,
            Self::Grpc => Event::GrpcUnsupported,
            Self::KeyMissing => Event::Enforced,
            Self::KeyInvalid(_) => Event::InvalidKey,
        }
    }

    pub(super) fn problem(self) -> Problem {
        match self {
            Self::Unauthenticated => Problem::Unauthenticated,
            Self::Grpc => Problem::GrpcUnsupported,
            Self::KeyMissing => Problem::KeyMissing,
            Self::KeyInvalid(why) => Problem::KeyInvalid(why),
        }
    }

    pub(super) fn would(&self) -> Would {
        match self {
            Self::Unauthenticated => Would::Unauthenticated,
            Self::Grpc => Would::Grpc,
            Self::KeyMissing => Would::Missing,
            Self::KeyInvalid(_) => Would::Invalid,
        }
    }
}

/// Reads the head of a request, and counts the request if it has or needs a key.
pub(super) fn wanted(shared: &Shared, parts: &Parts) -> Wanted {
    let policy = &shared.policy;
    let methods = Methods::of(&parts.method, &parts.headers);
    if !policy.honours(methods) {
        return Wanted::Nothing;
    }
    let found = read_key(&parts.headers, policy);
    if matches!(found, KeyHeader::Absent) && !policy.demands_key(methods) {
        return Wanted::Keyless;
    }
    shared.stats.count(Event::Request);
    let Some(identity) = shared.identify.identify(parts) else {
        return Wanted::Refuse(Rejected::Unauthenticated);
    };
    if is_grpc(&parts.headers) {
        return Wanted::Refuse(Rejected::Grpc);
    }
    match found {
        KeyHeader::Present(sent) => Wanted::Key(sent, identity),
        KeyHeader::Absent => Wanted::Refuse(Rejected::KeyMissing),
        KeyHeader::Invalid(why) => Wanted::Refuse(Rejected::KeyInvalid(why)),
    }
}

/// Whether the request carries a key.
pub(super) fn brings_key(policy: &Policy, parts: &Parts) -> bool {
    let methods = Methods::of(&parts.method, &parts.headers);
    policy.honours(methods) && parts.headers.contains_key(&policy.header_name)
}

/// Whether the request is a gRPC call, whose answer does not show by its status how the call ended. If
/// there are several content types, the upstream may believe any of them.
fn is_grpc(headers: &HeaderMap) -> bool {
    const PREFIX: &[u8] = b"application/grpc";
    headers
        .get_all(header::CONTENT_TYPE)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .filter_map(|kind| kind.trim_ascii().get(..PREFIX.len()))
        .any(|start| start.eq_ignore_ascii_case(PREFIX))
}

/// The complete request with `headers` and `body`, as it is compared and reserved. `parts` need not have its
/// headers any more.
pub(super) async fn arrived(
    shared: &Shared,
    parts: &Parts,
    mut headers: HeaderMap,
    (sent, identity): (&Sent, &Identity),
    body: Bytes,
) -> Arrival {
    let (engine, policy) = (&shared.engine, &shared.policy);
    let too_old = policy.max_request_age.is_some_and(|longest| {
        let now = engine.wall_clock();
        limits::is_too_old(&headers, &policy.request_time_header, longest, now)
    });
    // Before the comparison, so that a request is compared as it is forwarded; and before our headers are
    // added, since a client could otherwise name them in `Connection`.
    strip_hop_by_hop(&mut headers);
    let target = parts.uri.path_and_query();
    let arrival = Arrival::new(
        engine,
        identity.scope.clone(),
        sent.key.clone(),
        None,
        shared.route.clone(),
        &parts.method,
        target.map_or("/", |target| target.as_str()),
        headers,
        body,
    );
    let authority = parts.uri.authority().map(Authority::as_str);
    let marks = identity.marks(engine);
    let connection = parts.extensions.get::<ConnectionId>().copied();
    let mut arrival = arrival
        .by(marks)
        .spelled(sent.spelling.clone())
        .addressed_to(authority)
        .made_too_long_ago(too_old)
        .executed_for(identity.executes_as(marks.mark, connection));
    if let Some(client) = identity.client_id() {
        arrival = arrival.from_client(client);
    }
    arrival.fingerprinted(&policy.recipe).await
}
