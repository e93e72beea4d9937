//! Classifies driver errors in the caller's transaction.

use super::failure::Failure;
use crate::transactional::TransactionError;

/// The codes of conflicting transactions: an outdated snapshot, a deadlock.
const CONFLICTS: [&str; 2] = ["40001", "40P01"];

impl From<sqlx::Error> for TransactionError {
    fn from(error: sqlx::Error) -> Self {
        let code = error.as_database_error().and_then(|error| error.code());
        let conflict = code.is_some_and(|code| CONFLICTS.contains(&&*code));
        #[cfg(feature = "mysql")]
        let conflict = conflict || crate::mysql::is_conflict(&error);
        match conflict {
            true => Self::Conflict(Box::new(error)),
            false => Self::Database(Box::new(error)),
        }
    }
}

impl From<Failure> for TransactionError {
    fn from(failure: Failure) -> Self {
        failure.into_error().into()
    }
}
