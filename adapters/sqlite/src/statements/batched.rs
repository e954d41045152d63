//! Batches as parameters: `VALUES (?, ..), (?, ..), ..`, because a statement costs more than its rows, and reading rows
//! out of JSON costs more than binding them.
//!
//! The text of a statement depends on the number of its rows, and SQLite prepares every text anew. So there are a few
//! sizes only, each twice the one before; what is left of a size stays unbound, which SQLite reads as rows of `NULL`.
//! The parameters have no numbers on purpose: sqlx asks for the name of each, and SQLite looks for it in a list.

use std::sync::{Arc, OnceLock};

use queuert::StateError;
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::connection::{Db, Query, Row, Value};
use crate::error::DbError;
use crate::migrate::render;

/// The sizes are the powers of two up to this many rows. Times the columns of the widest row, it must stay below
/// SQLite's limit of 32,766 parameters.
const LARGEST: usize = 1 << (SIZES - 1);

const SIZES: usize = 11;

/// A statement over any number of rows. Its text has `{rows}` where the rows go; they are called `column1`, `column2` and
/// so on there, and a row whose first column is `NULL` is none.
#[derive(Debug)]
pub(crate) struct Batched {
    template: String,
    columns: usize,
    texts: [OnceLock<SqlStr>; SIZES],
    /// The same for one row, with `?1`, `?2` and so on for its columns, where that is faster than a batch: an `UPDATE`
    /// that joins a list puts it into a table first.
    single: Option<SqlStr>,
}

impl Batched {
    pub(crate) fn new(template: &str, prefix: &str, columns: usize) -> Self {
        Self {
            template: render(template, prefix),
            columns,
            texts: Default::default(),
            single: None,
        }
    }

    /// With a statement for one row, which is run again and again where calls are cheap.
    pub(crate) fn or_singly(mut self, single: &str, prefix: &str) -> Self {
        self.single = Some(shared(render(single, prefix)));
        self
    }

    /// The text for one row, if there is one.
    #[cfg(test)]
    pub(crate) fn single(&self) -> Option<&SqlStr> {
        self.single.as_ref()
    }

    /// The text for at least that many rows.
    pub(crate) fn text(&self, rows: usize) -> SqlStr {
        let size = rows.clamp(1, LARGEST).next_power_of_two();
        let place = usize::try_from(size.trailing_zeros()).unwrap_or(SIZES - 1);
        let text = self.texts[place].get_or_init(|| {
            let row = format!("({})", vec!["?"; self.columns].join(","));
            let rows = vec![row.as_str(); size].join(",");
            shared(self.template.replace("{rows}", &rows))
        });
        text.clone()
    }

    /// Runs the statement for all rows, in as few calls as there are, and says how many rows it has changed.
    pub(crate) async fn execute<'q, T>(
        &self,
        db: &mut Db<'_>,
        rows: &'q [T],
        mut fill: impl FnMut(&mut Values<'q>, &'q T) + Send,
    ) -> Result<usize, DbError>
    where
        T: Sync,
    {
        let mut changed = 0;
        if let (Some(single), Db::Own(connection)) = (&self.single, &mut *db) {
            let mut statement = connection.prepare_cached(single.as_str())?;
            let mut values = Values(Vec::with_capacity(self.columns));
            for row in rows {
                values.0.clear();
                fill(&mut values, row);
                changed += statement.execute(rusqlite::params_from_iter(&values.0))?;
            }
            return Ok(changed);
        }
        let mut left = rows;
        while !left.is_empty() {
            let (chunk, after) = left.split_at(chunk_of(db, left.len()));
            changed += db.execute(self.query(chunk, &mut fill)).await?;
            left = after;
        }
        Ok(changed)
    }

    /// Runs the query for all rows, and reads what it finds.
    pub(crate) async fn fetch<'q, T, U>(
        &self,
        db: &mut Db<'_>,
        rows: &'q [T],
        mut fill: impl FnMut(&mut Values<'q>, &'q T) + Send,
        mut read: impl FnMut(&Row<'_>) -> Result<U, StateError> + Send,
    ) -> Result<Vec<U>, StateError>
    where
        T: Sync,
        U: Send,
    {
        let mut found = Vec::with_capacity(rows.len());
        let mut left = rows;
        while !left.is_empty() {
            let (chunk, after) = left.split_at(chunk_of(db, left.len()));
            found.append(&mut db.fetch(self.query(chunk, &mut fill), &mut read).await?);
            left = after;
        }
        Ok(found)
    }

    /// Whether that many rows take more than one call, so that a failure may leave some of them behind.
    pub(crate) fn takes_several(&self, db: &Db<'_>, rows: usize) -> bool {
        rows > 0 && chunk_of(db, rows) < rows
    }

    fn query<'q, T>(&self, rows: &'q [T], fill: &mut impl FnMut(&mut Values<'q>, &'q T)) -> Query<'q> {
        let mut values = Values(Vec::with_capacity(rows.len() * self.columns));
        for row in rows {
            fill(&mut values, row);
        }
        Query::new(&self.text(rows.len()), values.0)
    }
}

/// How many rows go into the next call. Where calls are cheap, each has a size of its own and nothing stays unbound;
/// where they go through another thread, one call takes them all.
fn chunk_of(db: &Db<'_>, rows: usize) -> usize {
    match db {
        Db::Own(_) => LARGEST.min(1 << rows.ilog2()),
        Db::Lent(_) => LARGEST.min(rows),
    }
}

/// A text that is cheap to clone, which sqlx does at every call.
pub(crate) fn shared(text: String) -> SqlStr {
    AssertSqlSafe(Arc::<str>::from(text)).into_sql_str()
}

/// The values of rows, one after the other.
#[derive(Debug)]
pub(crate) struct Values<'q>(Vec<Value<'q>>);

impl<'q> Values<'q> {
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
