//! What an error of PostgreSQL says about a write.

use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::sql::failure::Failure;

/// What the server says when `lock_timeout` is over.
const LOCK_NOT_AVAILABLE: &str = "55P03";
/// What it says when `statement_timeout` is over, or when it was told to end a statement.
const QUERY_CANCELED: &str = "57014";

/// How a statement failed.
pub(super) fn judge(error: sqlx::Error) -> Failure {
    let Some(told) = error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<PgDatabaseError>())
    else {
        return Failure::Lost(error);
    };
    // A server that ends the session may have committed before: only an ordinary error is a
    // rollback.
    if told.severity() != PgSeverity::Error {
        return Failure::Lost(error);
    }
    match told.code() {
        LOCK_NOT_AVAILABLE => Failure::Locked(error),
        QUERY_CANCELED => Failure::Cancelled(error),
        // Bad data, broken rules, deadlocks: the others may fare better without the one.
        code if matches!(code.get(..2), Some("21" | "22" | "23" | "40")) => Failure::Content(error),
        _ => Failure::Refused(error),
    }
}
