//! Classifies PostgreSQL errors by what they say about a write.

use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::sql::failure::Failure;

/// The code of a `lock_timeout`.
const LOCK_NOT_AVAILABLE: &str = "55P03";
/// The code of a `statement_timeout`, and of a cancelled statement.
const QUERY_CANCELED: &str = "57014";

/// Classifies the error of a statement.
pub(super) fn judge(error: sqlx::Error) -> Failure {
    let Some(told) = error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<PgDatabaseError>())
    else {
        return Failure::Lost(error);
    };
    // A server that ends the session may have committed before: only an ordinary error means a rollback.
    if told.severity() != PgSeverity::Error {
        return Failure::Lost(error);
    }
    match told.code() {
        LOCK_NOT_AVAILABLE => Failure::Locked(error),
        QUERY_CANCELED => Failure::Cancelled(error),
        // Bad data, violated constraints, deadlocks: the rest of the batch may succeed without this one.
        code if matches!(code.get(..2), Some("21" | "22" | "23" | "40")) => Failure::Content(error),
        _ => Failure::Refused(error),
    }
}
