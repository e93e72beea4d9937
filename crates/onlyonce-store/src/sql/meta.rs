//! What a store keeps beside its records, for every SQL database: fingerprint recipes, immutable blocks, and
//! notes that are overwritten.

use onlyonce_core::{Recipe, RecipeId};

use super::{
    dialect::{Dialect, Statement, Value},
    row::{self, Columns as _, RowError},
    scan::Reader,
};
use crate::StoreError;

/// Stores a recipe, unless it is stored already.
pub(crate) fn keep_recipe<D: Dialect>(id: RecipeId, recipe: Vec<u8>) -> Statement {
    let (tables, or_nothing) = (D::TABLES, D::or_nothing("id"));
    let sql = format!("INSERT INTO {tables}recipes (id, recipe) VALUES (?1, ?2){or_nothing}");
    D::statement(&sql, vec![Value::bytes(id.0), Value::bytes(recipe)])
}

/// Stores a block, unless the name is taken.
pub(crate) fn keep_block<D: Dialect>(name: &str, block: &[u8]) -> Statement {
    let (tables, or_nothing) = (D::TABLES, D::or_nothing("name"));
    let sql = format!("INSERT INTO {tables}meta (name, value) VALUES (?1, ?2){or_nothing}");
    D::statement(&sql, vec![block_name(name), Value::bytes(block)])
}

/// Stores a note under a name.
pub(crate) fn note<D: Dialect>(name: impl Into<String>, value: Value) -> Statement {
    noted::<D>("?2", vec![Value::text(name), value])
}

/// Stores the server's time `now`, an expression, under a name.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn note_time<D: Dialect>(name: &str, now: &str) -> Statement {
    noted::<D>(now, vec![Value::text(name)])
}

/// Stores the value of `expression` under a name.
fn noted<D: Dialect>(expression: &str, values: Vec<Value>) -> Statement {
    let (tables, or_update) = (D::TABLES, D::or_update("name", &["value"]));
    let sql =
        format!("INSERT INTO {tables}meta (name, value) VALUES (?1, {expression}){or_update}");
    D::statement(&sql, values)
}

/// The fingerprint recipe with this id.
pub(crate) async fn recipe<R: Reader>(
    reader: &R,
    id: RecipeId,
) -> Result<Option<Recipe>, StoreError> {
    let sql = format!(
        "SELECT recipe FROM {}recipes WHERE id = ?1",
        R::Dialect::TABLES
    );
    let rows = reader.ask(&sql, vec![Value::bytes(id.0)], |row| {
        let bytes = row.bytes(0)?.ok_or_else(row::missing)?;
        Recipe::decode(bytes).map_err(|error| RowError::Unreadable(error.into()))
    });
    Ok(rows.await?.pop())
}

/// The block stored under `name`.
pub(crate) async fn block<R: Reader>(
    reader: &R,
    name: &str,
) -> Result<Option<Vec<u8>>, StoreError> {
    let sql = format!(
        "SELECT value FROM {}meta WHERE name = ?1",
        R::Dialect::TABLES
    );
    let values = vec![block_name(name)];
    let rows = reader.ask(&sql, values, |row| row::blob(row, 0));
    Ok(rows.await?.pop().flatten())
}

/// The row name of the block `name`.
fn block_name(name: &str) -> Value {
    Value::text(format!("block/{name}"))
}
