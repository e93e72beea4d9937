//! What an error of the driver says about the caller's transaction.

use super::failure::Failure;
use crate::transactional::TransactionError;

/// What servers say when transactions do not go together: a snapshot that is out of date, a deadlock.
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
