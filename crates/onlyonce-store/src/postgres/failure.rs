//! What an error of the driver says about a write.

use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::StoreError;

/// What the server says when `lock_timeout` is over.
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// How a statement failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server took it back because of what it was asked to write: a neighbour may be to blame.
    Content(sqlx::Error),
    /// The server took it back because somebody holds a row locked for longer than it waits.
    Locked(sqlx::Error),
    /// The server took it back, for a reason that is the same for everybody.
    Refused(sqlx::Error),
    /// Nobody said how it ended.
    Lost(sqlx::Error),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        let Some(told) = error
            .as_database_error()
            .and_then(|error| error.try_downcast_ref::<PgDatabaseError>())
        else {
            return Self::Lost(error);
        };
        // A server that ends the session may have committed before: only an ordinary error is a
        // rollback.
        if told.severity() != PgSeverity::Error {
            return Self::Lost(error);
        }
        if told.code() == LOCK_NOT_AVAILABLE {
            return Self::Locked(error);
        }
        match told.code().get(..2) {
            // Bad data, broken rules, deadlocks: the others may fare better without the one.
            Some("21" | "22" | "23" | "40") => Self::Content(error),
            _ => Self::Refused(error),
        }
    }
}

impl Failure {
    /// The statement may be tried again in two halves.
    pub(super) fn may_be_a_neighbours(&self) -> bool {
        matches!(self, Self::Content(_))
    }

    /// Whether the connection is of no more use.
    pub(super) fn ends_the_connection(&self) -> bool {
        match self {
            Self::Content(_) | Self::Locked(_) => false,
            // Such as a server that has become a standby: another connection may find the new one.
            // But one that was only too slow is not helped by connections made anew.
            Self::Refused(error) => !was_cancelled(error),
            Self::Lost(_) => true,
        }
    }

    /// What a writer is told.
    pub(super) fn of_a_write(&self) -> StoreError {
        match self {
            Self::Content(error) | Self::Locked(error) | Self::Refused(error) => {
                StoreError::Unavailable(error.to_string().into())
            }
            Self::Lost(error) => StoreError::Ambiguous(error.to_string().into()),
        }
    }

    /// What a reader is told.
    pub(super) fn of_a_read(&self) -> StoreError {
        match self {
            Self::Content(error)
            | Self::Locked(error)
            | Self::Refused(error)
            | Self::Lost(error) => StoreError::Unavailable(error.to_string().into()),
        }
    }
}

/// Whether the server took a statement back because its time was over, or because it was told to.
fn was_cancelled(error: &sqlx::Error) -> bool {
    let error = error.as_database_error();
    error.is_some_and(|error| error.code().is_some_and(|code| code == "57014"))
}
