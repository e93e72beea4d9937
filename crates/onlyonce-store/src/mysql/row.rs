//! How the rows of these servers are read.

use sqlx::{Row as _, mysql::MySqlRow};

use crate::sql::row::{Columns, RowError};

impl Columns for MySqlRow {
    fn bytes(&self, column: usize) -> Result<Option<&[u8]>, RowError> {
        Ok(self.try_get(column)?)
    }

    /// Text is kept as bytes. What is not text was not written by this program.
    fn text(&self, column: usize) -> Result<Option<&str>, RowError> {
        let bytes = self.bytes(column)?;
        bytes
            .map(|bytes| {
                std::str::from_utf8(bytes).map_err(|error| RowError::Unreadable(error.into()))
            })
            .transpose()
    }

    fn number(&self, column: usize) -> Result<Option<i64>, RowError> {
        Ok(self.try_get(column)?)
    }

    fn flag(&self, column: usize) -> Result<bool, RowError> {
        Ok(self.try_get(column)?)
    }
}
