//! The known scopes, and records by id, for every SQL database.

use onlyonce_core::RecordId;

use super::{
    dialect::{Dialect, Statement, Value},
    row,
    scan::Reader,
};
use crate::{Listed, SCOPES_AT_ONCE, StoreError};

/// Stores the name of a scope, replacing an earlier one.
pub(crate) fn keep<D: Dialect>(id: RecordId, name: &str) -> Statement {
    D::statement(&D::keep_scope(), vec![Value::Id(id.0), Value::text(name)])
}

/// Selects the next scopes, in the order of their ids.
pub(crate) fn next<D: Dialect>(after: Option<RecordId>) -> Statement {
    let is_next = if after.is_some() {
        "id > ?1"
    } else {
        "id >= ?1"
    };
    let sql = format!(
        "SELECT id, name FROM {}scopes WHERE {is_next} ORDER BY id LIMIT {SCOPES_AT_ONCE}",
        D::TABLES,
    );
    D::statement(&sql, vec![Value::Id(after.map_or([0; 16], |id| id.0))])
}

/// The next scopes, in the order of their ids.
pub(crate) async fn after<R: Reader>(
    reader: &R,
    after: Option<RecordId>,
) -> Result<Vec<(RecordId, String)>, StoreError> {
    let rows = reader.read(next::<R::Dialect>(after), |row| {
        let name = row::text(row, 1)?.to_owned();
        Ok((RecordId(row::array(row, 0)?), name))
    });
    rows.await
}

/// The records with these ids, with their numbers.
pub(crate) async fn listed<R: Reader>(
    reader: &R,
    ids: &[RecordId],
) -> Result<Vec<(u64, Listed)>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let probes = probes::<R::Dialect>(ids);
    let rows = reader.read(probes, |row| Ok(row::readable(row::read_listed(row))));
    Ok(rows.await?.into_iter().flatten().collect())
}

/// Probes the unique index of ids once for each id.
pub(crate) fn probes<D: Dialect>(ids: &[RecordId]) -> Statement {
    let places: Vec<String> = (1..=ids.len()).map(|place| format!("?{place}")).collect();
    let values = ids.iter().map(|id| Value::Id(id.0)).collect();
    D::statement(&D::by_ids(&places.join(", ")), values)
}
