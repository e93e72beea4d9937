//! Classifies driver errors by what they say about a write.

use crate::{BoxError, StoreError, Unfit};

/// How a statement failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Rolled back because of the content of a write: possibly another one's in the batch.
    Content(sqlx::Error),
    /// Rolled back because a row stayed locked for longer than the statement waits.
    Locked(sqlx::Error),
    /// Rolled back because of a timeout, or because the statement was cancelled.
    Cancelled(sqlx::Error),
    /// Rolled back for a reason that is the same for every statement.
    Refused(sqlx::Error),
    /// Executed, but the commit did not wait for everybody it should wait for.
    Unconfirmed(sqlx::Error),
    /// The outcome is not known.
    Lost(sqlx::Error),
}

impl Failure {
    /// Whether the batch may be tried again in two halves.
    pub(crate) fn may_be_a_neighbours(&self) -> bool {
        matches!(self, Self::Content(_))
    }

    /// Whether the connection is unusable.
    pub(crate) fn ends_the_connection(&self) -> bool {
        match self {
            // New connections do not help a server that was only too slow.
            Self::Content(_) | Self::Locked(_) | Self::Cancelled(_) | Self::Unconfirmed(_) => false,
            // For example a server that has become a standby: another connection may find the new primary.
            Self::Refused(_) | Self::Lost(_) => true,
        }
    }

    /// The driver's error.
    pub(crate) fn into_error(self) -> sqlx::Error {
        match self {
            Self::Content(error)
            | Self::Locked(error)
            | Self::Cancelled(error)
            | Self::Refused(error)
            | Self::Unconfirmed(error)
            | Self::Lost(error) => error,
        }
    }

    /// Whether a write may stand that is less durable than an acknowledged one.
    pub(crate) fn leaves_doubt(&self) -> bool {
        matches!(self, Self::Unconfirmed(_) | Self::Lost(_))
    }

    /// The error for a write.
    pub(crate) fn of_a_write(&self) -> StoreError {
        match self {
            Self::Unconfirmed(error) | Self::Lost(error) => StoreError::Ambiguous(source(error)),
            other => other.of_a_read(),
        }
    }

    /// The error for a read.
    pub(crate) fn of_a_read(&self) -> StoreError {
        match self {
            Self::Content(error)
            | Self::Locked(error)
            | Self::Cancelled(error)
            | Self::Refused(error)
            | Self::Unconfirmed(error)
            | Self::Lost(error) => StoreError::Unavailable(source(error)),
        }
    }
}

/// Why the store must not be used, if the error says so.
pub(crate) fn unfit(error: &sqlx::Error) -> Option<&Unfit> {
    match error {
        sqlx::Error::Io(error) => error.get_ref()?.downcast_ref(),
        _ => None,
    }
}

/// Why the store must not be used, if the error says so; else a text that may be logged.
fn source(error: &sqlx::Error) -> BoxError {
    match unfit(error) {
        Some(unfit) => Box::new(unfit.clone()),
        None => text(error).into(),
    }
}

/// A text for an error that may be logged. MySQL quotes the statement in its messages, and the statement
/// contains keys and answers, so only the error numbers are used.
fn text(error: &sqlx::Error) -> String {
    #[cfg(feature = "mysql")]
    if let Some(told) = error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>())
    {
        let state = told.code().unwrap_or("HY000");
        return format!("the server says {} ({state})", told.number());
    }
    error.to_string()
}

/// The error for a server that did not answer.
pub(crate) fn no_answer(what: &'static str) -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, what))
}

/// Whether the error means that a server did not answer, rather than that the connection is gone.
#[cfg(feature = "mysql")]
pub(crate) fn is_silence(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut)
}
