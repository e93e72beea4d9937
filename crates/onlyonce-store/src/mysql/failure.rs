//! Classifies MySQL and MariaDB errors by what they say about a write.

use sqlx::mysql::MySqlDatabaseError;

use crate::sql::failure::Failure;

/// The server ended a deadlock by rolling back this whole transaction.
const DEADLOCK: u16 = 1213;
/// A row stayed locked for longer than the statement waits. The statement is rolled back, the transaction
/// stays open.
const LOCK_WAIT_TIMEOUT: u16 = 1205;
/// The same for a statement that does not wait, on MySQL.
const LOCK_NOWAIT: u16 = 3572;
/// A row has changed since the transaction's snapshot (`innodb_snapshot_isolation`).
const RECORD_CHANGED: u16 = 1020;
/// A row with the same key exists.
const DUPLICATE: u16 = 1062;
/// The table does not exist.
const NO_SUCH_TABLE: u16 = 1146;
/// The statement timed out, or was cancelled.
const CANCELLED: [u16; 3] = [1969, 3024, 1317];

fn number(error: &sqlx::Error) -> Option<u16> {
    let told = error
        .as_database_error()?
        .try_downcast_ref::<MySqlDatabaseError>()?;
    Some(told.number())
}

/// Whether the server rolled back our transaction to end a deadlock: nothing was written, and a retry is
/// enough.
pub(super) fn was_deadlock(error: &sqlx::Error) -> bool {
    number(error) == Some(DEADLOCK)
}

/// Whether a statement in the caller's transaction met a conflict: the transaction is rolled back, by the
/// server or by its owner, and may be run again.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    let conflicts = [DEADLOCK, LOCK_WAIT_TIMEOUT, LOCK_NOWAIT, RECORD_CHANGED];
    number(error).is_some_and(|number| conflicts.contains(&number))
}

/// Whether a statement failed because the table does not exist.
pub(super) fn was_missing(error: &sqlx::Error) -> bool {
    number(error) == Some(NO_SUCH_TABLE)
}

/// Whether an insert found its key present.
pub(super) fn was_duplicate(error: &sqlx::Error) -> bool {
    number(error) == Some(DUPLICATE)
}

/// Classifies the failure of a statement before the COMMIT. The server executes no statement after a failed
/// one, so after any error nothing was written; only silence leaves that open.
pub(super) fn judge(error: sqlx::Error) -> Failure {
    let Some(number) = number(&error) else {
        return Failure::Lost(error);
    };
    let state = error.as_database_error().and_then(|error| error.code());
    let class = state.as_deref().and_then(|state| state.get(..2));
    let content = matches!(class, Some("21" | "22" | "23" | "40"));
    match number {
        LOCK_WAIT_TIMEOUT | LOCK_NOWAIT => Failure::Locked(error),
        number if CANCELLED.contains(&number) => Failure::Cancelled(error),
        // Bad data, violated constraints, deadlocks: the rest of the batch may succeed without this one.
        _ if content => Failure::Content(error),
        _ => Failure::Refused(error),
    }
}

/// Classifies the failure of a COMMIT. Only after a deadlock, which a cluster detects that late, is it
/// certain that nothing was written.
pub(super) fn judge_commit(error: sqlx::Error) -> Failure {
    match was_deadlock(&error) {
        true => Failure::Content(error),
        false => Failure::Lost(error),
    }
}
