//! What an upstream's answer means for its key, and which part of it is stored.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, response::Parts};
use onlyonce_core::{
    StoredResponse,
    machine::Settlement,
    policy::{Answered, Verdict, lost_by_proxy},
    record::StoredBody,
};

use super::{
    Shared,
    headers::{compact, stored, take_outcome},
    strip_hop_by_hop,
};
use crate::engine::Attempt;

/// The settlement of the key that an answer causes.
pub(super) fn judge(
    shared: &Shared,
    attempt: &Attempt,
    parts: &mut Parts,
    (body, read, trailers): (StoredBody, &[u8], Option<&HeaderMap>),
) -> Settlement {
    let policy = &shared.policy;
    let declared = take_outcome(&mut parts.headers, &mut parts.extensions, policy);
    let answered = Answered {
        status: parts.status,
        declared,
        reached_before: attempt.record().reached_before(),
        // A proxy that loses an answer midway says so in the trailers.
        lost_by_proxy: lost_by_proxy(parts.status, &parts.headers, read)
            || trailers.is_some_and(|trailers| lost_by_proxy(parts.status, trailers, &[])),
    };
    strip_hop_by_hop(&mut parts.headers);
    match policy.judge(&answered) {
        Verdict::Complete => {
            let mut answer = StoredResponse {
                status: parts.status,
                headers: stored(&parts.headers, parts.status, policy),
                body,
            };
            if policy.stores_by_head(&answer) {
                answer = answer.head_only();
            }
            match &mut answer.body {
                StoredBody::Full { bytes, .. } => compact(&mut answer.headers, bytes),
                StoredBody::NotStored => compact(&mut answer.headers, &mut Bytes::new()),
                // No upstream produces one.
                StoredBody::Packed { .. } => {}
            }
            Settlement::Complete(Arc::new(answer))
        }
        Verdict::Release(error) => Settlement::Release(error),
        Verdict::Unknown(error) => Settlement::Unknown(error),
    }
}
