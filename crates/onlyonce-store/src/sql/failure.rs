//! What an error of the driver says about a write.

use crate::{BoxError, StoreError, Unfit};

/// How a statement failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server took it back because of what it was asked to write: a neighbour may be to blame.
    Content(sqlx::Error),
    /// The server took it back because somebody holds a row locked for longer than it waits.
    Locked(sqlx::Error),
    /// The server took it back because its time was over, or because it was told to.
    Cancelled(sqlx::Error),
    /// The server took it back, for a reason that is the same for everybody.
    Refused(sqlx::Error),
    /// The server carried it out, and says that it did not wait for everybody whom a commit waits for.
    Unconfirmed(sqlx::Error),
    /// Nobody said how it ended.
    Lost(sqlx::Error),
}

impl Failure {
    /// The statement may be tried again in two halves.
    pub(crate) fn may_be_a_neighbours(&self) -> bool {
        matches!(self, Self::Content(_))
    }

    /// Whether the connection is of no more use.
    pub(crate) fn ends_the_connection(&self) -> bool {
        match self {
            // A server that was only too slow is not helped by connections made anew.
            Self::Content(_) | Self::Locked(_) | Self::Cancelled(_) | Self::Unconfirmed(_) => false,
            // Such as a server that has become a standby: another connection may find the new one.
            Self::Refused(_) | Self::Lost(_) => true,
        }
    }

    /// What the driver said.
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

    /// Whether a write may stand that is less safe than one that was acknowledged.
    pub(crate) fn leaves_doubt(&self) -> bool {
        matches!(self, Self::Unconfirmed(_) | Self::Lost(_))
    }

    /// What a writer is told.
    pub(crate) fn of_a_write(&self) -> StoreError {
        match self {
            Self::Unconfirmed(error) | Self::Lost(error) => StoreError::Ambiguous(source(error)),
            other => other.of_a_read(),
        }
    }

    /// What a reader is told.
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

/// Why the store must not be used, where an error says so.
pub(crate) fn unfit(error: &sqlx::Error) -> Option<&Unfit> {
    match error {
        sqlx::Error::Io(error) => error.get_ref()?.downcast_ref(),
        _ => None,
    }
}

/// Why the store must not be used, where an error says so; else what may be said of it.
fn source(error: &sqlx::Error) -> BoxError {
    match unfit(error) {
        Some(unfit) => Box::new(unfit.clone()),
        None => text(error).into(),
    }
}

/// What may be said of an error. MySQL quotes the statement in its messages, and the statement holds
/// keys and answers: of those, the numbers must do.
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

/// A server that did not answer.
pub(crate) fn no_answer(what: &'static str) -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, what))
}

/// Whether an error says that a server did not answer, rather than that the connection is gone.
#[cfg(feature = "mysql")]
pub(crate) fn is_silence(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut)
}
