//! What an error of MySQL or MariaDB says about a write.

use sqlx::mysql::MySqlDatabaseError;

use crate::sql::failure::Failure;

/// The server chose this transaction to end a deadlock, and has taken back all of it.
const DEADLOCK: u16 = 1213;
/// Somebody holds a row for longer than the statement waits. The statement is taken back, the
/// transaction stays open.
const LOCK_WAIT_TIMEOUT: u16 = 1205;
/// The same of a statement that does not wait, on MySQL.
const LOCK_NOWAIT: u16 = 3572;
/// A row has changed since the transaction's snapshot (`innodb_snapshot_isolation`).
const RECORD_CHANGED: u16 = 1020;
/// A row with the same key is there.
const DUPLICATE: u16 = 1062;
/// There is no such table.
const NO_SUCH_TABLE: u16 = 1146;
/// The statement's time was over, or somebody ended it.
const CANCELLED: [u16; 3] = [1969, 3024, 1317];

fn number(error: &sqlx::Error) -> Option<u16> {
    let told = error
        .as_database_error()?
        .try_downcast_ref::<MySqlDatabaseError>()?;
    Some(told.number())
}

/// Whether the server ended a deadlock at our cost: nothing was written, and trying again is all it
/// takes.
pub(super) fn was_deadlock(error: &sqlx::Error) -> bool {
    number(error) == Some(DEADLOCK)
}

/// Whether a statement in the caller's transaction met another one: what the transaction did is taken
/// back, by the server or by whoever gives it up, and may be done again.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    let conflicts = [DEADLOCK, LOCK_WAIT_TIMEOUT, LOCK_NOWAIT, RECORD_CHANGED];
    number(error).is_some_and(|number| conflicts.contains(&number))
}

/// Whether a statement failed because there is no such table.
pub(super) fn was_missing(error: &sqlx::Error) -> bool {
    number(error) == Some(NO_SUCH_TABLE)
}

/// Whether an insert found its key there.
pub(super) fn was_duplicate(error: &sqlx::Error) -> bool {
    number(error) == Some(DUPLICATE)
}

/// How a statement before the COMMIT failed. The server carries out none that follow one that
/// failed, so whatever it says, nothing was written; silence alone leaves that open.
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
        // Bad data, broken rules, deadlocks: the others may fare better without the one.
        _ if content => Failure::Content(error),
        _ => Failure::Refused(error),
    }
}

/// How a COMMIT failed. Only of a deadlock, which a cluster finds that late, is it sure that nothing
/// was written.
pub(super) fn judge_commit(error: sqlx::Error) -> Failure {
    match was_deadlock(&error) {
        true => Failure::Content(error),
        false => Failure::Lost(error),
    }
}
