//! Deletes expired data that applications left: inbox entries past their time, and the rows of natural keys.
//! Skips locked rows.

use super::{
    scan::Scanners,
    server::{Results, Session, understood},
    text::{Script, bytes},
};
use crate::{
    StoreError,
    sql::{
        failure::Failure,
        row::{Columns as _, RowError},
    },
};

/// Rows of each kind deleted at once.
const AT_ONCE: usize = 500;
/// How long the row of a natural key stays after it was created, in milliseconds. Keeping it costs little,
/// and creating it again costs a write.
const NATURAL_KEYS_STAY: i64 = 3_600_000;

impl Scanners {
    /// One round.
    pub(super) async fn forget(&self) -> Result<(), StoreError> {
        let outcome = self.transact(&(), |session, ()| Box::pin(tidy(session)));
        outcome.await.map_err(|failure| failure.of_a_write())
    }
}

async fn tidy(session: &mut Session<'_>) -> Result<(), Failure> {
    let mut script = Script::timed();
    script.add("START TRANSACTION");
    script.add(format_args!(
        "SELECT consumer, message_id FROM onlyonce_inbox FORCE INDEX (inbox_by_age) \
         WHERE keep_until <= @oo_now LIMIT {AT_ONCE} FOR UPDATE SKIP LOCKED"
    ));
    script.add(format_args!(
        "SELECT id FROM onlyonce_natural_keys FORCE INDEX (natural_keys_by_age) \
         WHERE made_at <= @oo_now - {NATURAL_KEYS_STAY} LIMIT {AT_ONCE} FOR UPDATE SKIP LOCKED"
    ));
    let results = session.send(&script).await?;
    let (notes, keys) = understood(doomed(&results))?;
    let mut script = Script::default();
    if !notes.is_empty() {
        script.add(format_args!("DELETE FROM onlyonce_inbox WHERE {notes}"));
    }
    if !keys.is_empty() {
        script.add(format_args!(
            "DELETE FROM onlyonce_natural_keys WHERE id IN ({keys})"
        ));
    }
    script.commit();
    session.send(&script).await.map(|_| ())
}

/// The conditions for the rows to delete; empty if there are none.
fn doomed(results: &Results) -> Result<(String, String), RowError> {
    let rows = |statement: usize| results.get(statement).into_iter().flatten();
    let (mut notes, mut keys) = (String::new(), String::new());
    for row in rows(2) {
        notes.push_str(if notes.is_empty() { "" } else { " OR " });
        notes.push_str("(consumer = ");
        bytes(&mut notes, row.bytes(0)?);
        notes.push_str(" AND message_id = ");
        bytes(&mut notes, row.bytes(1)?);
        notes.push(')');
    }
    for row in rows(3) {
        keys.push_str(if keys.is_empty() { "" } else { ", " });
        bytes(&mut keys, row.bytes(0)?);
    }
    Ok((notes, keys))
}
