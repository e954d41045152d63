//! Statements over rows of parameters, `VALUES (?, ..), (?, ..), ..`: one statement with many rows costs less than many
//! statements, and parameters cost less than rows in JSON.
//!
//! The text depends on the number of rows, and SQLite prepares each text by itself. So there are only a few sizes, each twice
//! the one before. Parameters that are left over stay unbound, which SQLite reads as rows of `NULL`. The parameters have no
//! numbers, because sqlx asks SQLite for the name of each parameter, and SQLite finds names by a linear search.

use std::sync::OnceLock;

use queuert::StateError;
use sqlx::SqlStr;

use super::shared;
use crate::connection::{Connection, Query, Row, Value};
use crate::error::StatementError;

const SIZES: usize = 11;

/// The largest number of rows in one statement. Times the columns of the widest row, it must stay below SQLite's limit of
/// 32,766 parameters.
const LARGEST: usize = 1 << (SIZES - 1);

/// A statement over any number of rows, which its text reads from `(SELECT column1 AS .., column2 AS .. FROM (VALUES {rows}))`.
/// A list of names in a `WITH` clause would be shorter, but SQLite runs it with more steps per row. The statement ignores a row
/// whose first column is `NULL`.
#[derive(Debug)]
pub(crate) struct BatchStatement {
    template: String,
    columns: usize,
    /// By the logarithm of the size.
    texts: [OnceLock<SqlStr>; SIZES],
    /// The same for one row, with the columns as numbered parameters, if that is faster than a batch: an `UPDATE` that joins
    /// a list copies the list into a temporary table first.
    single: Option<SqlStr>,
}

impl BatchStatement {
    pub(crate) fn new(template: String) -> Self {
        let has_column = |number: &usize| template.contains(&format!("column{number} AS "));
        Self {
            columns: (1..).take_while(has_column).count(),
            template,
            texts: Default::default(),
            single: None,
        }
    }

    /// Adds a statement for one row, which is run once per row on a connection where calls are cheap.
    pub(crate) fn or_one_by_one(mut self, single: SqlStr) -> Self {
        self.single = Some(single);
        self
    }

    /// The text for one row, if there is one.
    #[cfg(test)]
    pub(super) fn single(&self) -> Option<&SqlStr> {
        self.single.as_ref()
    }

    /// The text for at least that many rows.
    pub(super) fn text(&self, rows: usize) -> SqlStr {
        let size = rows.clamp(1, LARGEST).next_power_of_two();
        let place = usize::try_from(size.trailing_zeros()).unwrap_or(SIZES - 1);
        let text = self.texts[place].get_or_init(|| {
            let row = format!("({})", vec!["?"; self.columns].join(","));
            let rows = vec![row.as_str(); size].join(",");
            shared(self.template.replace("{rows}", &rows))
        });
        text.clone()
    }

    /// Runs the statement for all rows, in as few calls as possible, and returns how many rows it has changed. `fill` adds
    /// the columns of one row in the order of the text.
    pub(crate) async fn execute<'q, T>(
        &self,
        connection: &mut Connection<'_>,
        rows: &'q [T],
        mut fill: impl FnMut(&mut RowValues<'q>, &'q T) + Send,
    ) -> Result<usize, StatementError>
    where
        T: Sync,
    {
        if rows.is_empty() {
            return Ok(0);
        }
        let mut changed = 0;
        if let (Some(single), Connection::Rusqlite(connection)) = (&self.single, &mut *connection) {
            let mut statement = connection.prepare_cached(single.as_str())?;
            let mut values = RowValues(Vec::with_capacity(self.columns));
            for row in rows {
                values.0.clear();
                fill(&mut values, row);
                changed += statement.execute(rusqlite::params_from_iter(&values.0))?;
            }
            return Ok(changed);
        }
        let mut left = rows;
        while !left.is_empty() {
            let (chunk, after) = left.split_at(rows_of_next_call(connection, left.len()));
            changed += connection.execute(self.query(chunk, &mut fill)).await?;
            left = after;
        }
        Ok(changed)
    }

    /// Runs the query for all rows, and reads the rows that it finds.
    pub(crate) async fn fetch<'q, T, U>(
        &self,
        connection: &mut Connection<'_>,
        rows: &'q [T],
        mut fill: impl FnMut(&mut RowValues<'q>, &'q T) + Send,
        mut read: impl FnMut(&Row<'_>) -> Result<U, StateError> + Send,
    ) -> Result<Vec<U>, StateError>
    where
        T: Sync,
        U: Send,
    {
        let mut found = Vec::with_capacity(rows.len());
        let mut left = rows;
        while !left.is_empty() {
            let (chunk, after) = left.split_at(rows_of_next_call(connection, left.len()));
            found.append(&mut connection.fetch(self.query(chunk, &mut fill), &mut read).await?);
            left = after;
        }
        Ok(found)
    }

    /// Whether that many rows take more than one call, so that a failure may leave some of them behind.
    pub(crate) fn takes_several_calls(&self, connection: &Connection<'_>, rows: usize) -> bool {
        rows > 0 && rows_of_next_call(connection, rows) < rows
    }

    fn query<'q, T>(&self, rows: &'q [T], fill: &mut impl FnMut(&mut RowValues<'q>, &'q T)) -> Query<'q> {
        let mut values = RowValues(Vec::with_capacity(rows.len() * self.columns));
        for row in rows {
            fill(&mut values, row);
        }
        Query::new(&self.text(rows.len()), values.0)
    }
}

/// How many rows go into the next call. On a connection of rusqlite calls are cheap, so each call has a size of its own and
/// no parameter stays unbound. On a connection of sqlx a call goes through another thread, so one call takes all rows.
fn rows_of_next_call(connection: &Connection<'_>, rows: usize) -> usize {
    match connection {
        Connection::Rusqlite(_) => LARGEST.min(1 << rows.ilog2()),
        Connection::Sqlx(_) => LARGEST.min(rows),
    }
}

/// The values of rows, one after the other.
#[derive(Debug)]
pub(crate) struct RowValues<'q>(Vec<Value<'q>>);

impl<'q> RowValues<'q> {
    pub(crate) fn add(&mut self, value: impl Into<Value<'q>>) -> &mut Self {
        self.0.push(value.into());
        self
    }

    pub(crate) fn number(&mut self, number: impl Into<i64>) -> &mut Self {
        self.add(number.into())
    }

    pub(crate) fn null(&mut self) -> &mut Self {
        self.add(Value::Null)
    }
}
