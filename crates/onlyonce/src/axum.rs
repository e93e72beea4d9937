//! Integration with axum: how a handler gets the attempt that owns its key, and how an answer or an error
//! becomes a response.

use axum_core::{
    body::Body,
    extract::FromRequestParts,
    response::{IntoResponse, Response},
};
use http::{StatusCode, request::Parts};
use onlyonce_core::policy::Declared;

use crate::{
    seam::{Outcome, Reservation},
    transaction::{Answer, RunError},
};

impl<S: Send + Sync> FromRequestParts<S> for Reservation {
    type Rejection = (StatusCode, &'static str);

    /// The attempt, if the layer has reserved a key. Enforce keys on the route; otherwise every request
    /// without a key is refused here.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let missing = (
            StatusCode::BAD_REQUEST,
            "this needs an idempotency key: no key was reserved for the request",
        );
        parts.extensions.get::<Self>().cloned().ok_or(missing)
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        Answer::into_response::<Body>(self)
    }
}

impl IntoResponse for RunError {
    /// 503, with what is known for the layer: a rollback proves that nothing was done.
    fn into_response(self) -> Response {
        let declared = match &self {
            Self::Store(_) | Self::RolledBack(_) => Declared::NotExecuted,
            Self::Lost | Self::Unclear(_) | Self::UnknownVersion(_) => Declared::Unknown,
        };
        tracing::warn!(error = %self, "a transaction was not committed");
        let mut response = (StatusCode::SERVICE_UNAVAILABLE, self.to_string()).into_response();
        response.extensions_mut().insert(Outcome(declared));
        response
    }
}
