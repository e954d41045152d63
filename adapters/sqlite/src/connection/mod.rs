//! One interface for two kinds of connection.
//!
//! The caller's transactions need a connection of sqlx. sqlx has a thread for each connection: every statement goes to that
//! thread, and every row comes back one by one, copied column by column. The batches of the writer do not need that, so
//! they run on a connection of rusqlite, on the writer's thread. The verbs are written once, for both.

pub(crate) mod close;
pub(crate) mod connections;
pub(crate) mod hidden;
pub(crate) mod identity;
pub(crate) mod lendable;
pub(crate) mod session;

use futures_util::TryStreamExt;
use queuert::StateError;
use rusqlite::types::{ToSqlOutput, ValueRef};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments as _, Decode, Row as _, SqlStr, Sqlite, SqliteConnection};
use uuid::Uuid;

use crate::error::{StatementError, corrupt};
use crate::row::ColumnList;

/// A connection on which verbs run.
pub(crate) enum Connection<'c> {
    /// A connection of the caller, a reader, or one that only the caller's options can open.
    Sqlx(&'c mut SqliteConnection),
    /// A connection of the writer. A statement on it blocks the thread and never yields.
    Rusqlite(&'c mut rusqlite::Connection),
}

impl Connection<'_> {
    /// Runs a query and reads each of its rows.
    pub(crate) async fn fetch<T: Send>(
        &mut self,
        query: Query<'_>,
        mut read: impl FnMut(&Row<'_>) -> Result<T, StateError> + Send,
    ) -> Result<Vec<T>, StateError> {
        match self {
            Self::Sqlx(connection) => {
                let rows = query.for_sqlx().fetch_all(&mut **connection).await;
                let rows = rows.map_err(StatementError::from)?;
                rows.iter().map(|row| read(&Row::Sqlx(row))).collect()
            }
            Self::Rusqlite(connection) => {
                let mut statement = connection
                    .prepare_cached(query.text.as_str())
                    .map_err(StatementError::from)?;
                let values = rusqlite::params_from_iter(&query.values);
                let mut rows = statement.query(values).map_err(StatementError::from)?;
                let mut all = Vec::new();
                while let Some(row) = rows.next().map_err(StatementError::from)? {
                    all.push(read(&Row::Rusqlite(row))?);
                }
                Ok(all)
            }
        }
    }

    /// Runs a query and reads its rows until `read` returns no value. sqlx may have fetched a few more rows by then.
    pub(crate) async fn fetch_while<T: Send>(
        &mut self,
        query: Query<'_>,
        mut read: impl FnMut(&Row<'_>) -> Result<Option<T>, StateError> + Send,
    ) -> Result<Vec<T>, StateError> {
        let mut all = Vec::new();
        match self {
            Self::Sqlx(connection) => {
                let mut rows = query.for_sqlx().fetch(&mut **connection);
                while let Some(row) = rows.try_next().await.map_err(StatementError::from)?
                    && let Some(value) = read(&Row::Sqlx(&row))?
                {
                    all.push(value);
                }
            }
            Self::Rusqlite(connection) => {
                let mut statement = connection
                    .prepare_cached(query.text.as_str())
                    .map_err(StatementError::from)?;
                let values = rusqlite::params_from_iter(&query.values);
                let mut rows = statement.query(values).map_err(StatementError::from)?;
                while let Some(row) = rows.next().map_err(StatementError::from)?
                    && let Some(value) = read(&Row::Rusqlite(row))?
                {
                    all.push(value);
                }
            }
        }
        Ok(all)
    }

    /// Runs a query and reads its first row.
    pub(crate) async fn first<T: Send>(
        &mut self,
        query: Query<'_>,
        read: impl FnMut(&Row<'_>) -> Result<T, StateError> + Send,
    ) -> Result<Option<T>, StateError> {
        Ok(self.fetch(query, read).await?.into_iter().next())
    }

    /// Runs a statement that returns no rows, and returns how many rows it has changed.
    pub(crate) async fn execute(&mut self, query: Query<'_>) -> Result<usize, StatementError> {
        match self {
            Self::Sqlx(connection) => {
                let done = query.for_sqlx().execute(&mut **connection).await?;
                Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
            }
            Self::Rusqlite(connection) => {
                let mut statement = connection.prepare_cached(query.text.as_str())?;
                Ok(statement.execute(rusqlite::params_from_iter(&query.values))?)
            }
        }
    }
}

/// A statement with its values.
#[derive(Debug)]
pub(crate) struct Query<'q> {
    text: SqlStr,
    values: Vec<Value<'q>>,
}

impl<'q> Query<'q> {
    pub(crate) fn new(text: &SqlStr, values: Vec<Value<'q>>) -> Self {
        Self {
            text: text.clone(),
            values,
        }
    }

    pub(crate) fn bind(mut self, value: impl Into<Value<'q>>) -> Self {
        self.values.push(value.into());
        self
    }

    #[expect(
        clippy::expect_used,
        reason = "encoding a number, a text or bytes as an argument cannot fail"
    )]
    fn for_sqlx(self) -> sqlx::query::Query<'static, Sqlite, SqliteArguments> {
        let mut arguments = SqliteArguments::default();
        arguments.reserve(self.values.len(), 0);
        for value in self.values {
            let added = match value {
                Value::Null => arguments.add(None::<i64>),
                Value::Number(number) => arguments.add(number),
                Value::Id(id) => arguments.add(id.as_bytes().as_slice()),
                Value::Text(text) => arguments.add(text),
                Value::Owned(text) => arguments.add(text),
            };
            added.expect("plain values can be encoded");
        }
        sqlx::query_with(self.text, arguments)
    }
}

pub(crate) fn query<'q>(text: &SqlStr) -> Query<'q> {
    Query::new(text, Vec::new())
}

/// A value that is bound to a statement.
#[derive(Debug)]
pub(crate) enum Value<'q> {
    Null,
    Number(i64),
    Id(Uuid),
    Text(&'q str),
    Owned(String),
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<Uuid> for Value<'_> {
    fn from(id: Uuid) -> Self {
        Self::Id(id)
    }
}

impl<'q> From<&'q str> for Value<'q> {
    fn from(text: &'q str) -> Self {
        Self::Text(text)
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self::Owned(text)
    }
}

impl<'q, T: Into<Self>> From<Option<T>> for Value<'q> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl rusqlite::ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Number(number) => ValueRef::Integer(*number),
            Self::Id(id) => ValueRef::Blob(id.as_bytes()),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Owned(text) => ValueRef::Text(text.as_bytes()),
        }))
    }
}

/// A row that a query has found.
pub(crate) enum Row<'r> {
    Sqlx(&'r SqliteRow),
    Rusqlite(&'r rusqlite::Row<'r>),
}

impl<'r> Row<'r> {
    /// The column with this name.
    pub(crate) fn get<T: FromColumn<'r>>(&self, name: &str) -> Result<T, StateError> {
        let index = match self {
            Self::Sqlx(row) => row
                .try_column(name)
                .map(sqlx::Column::ordinal)
                .map_err(StatementError::from)?,
            Self::Rusqlite(row) => row.as_ref().column_index(name).map_err(StatementError::from)?,
        };
        T::read(self, index)
    }

    /// The column at this place of a list, without a search for its name.
    pub(crate) fn at<T: FromColumn<'r>>(&self, column: impl ColumnList) -> Result<T, StateError> {
        T::read(self, column.index())
    }

    /// The first column, of a pragma whose columns have no documented names.
    pub(crate) fn first<T: FromColumn<'r>>(&self) -> Result<T, StateError> {
        T::read(self, 0)
    }

    fn of_sqlx<T: Decode<'r, Sqlite>>(row: &'r SqliteRow, index: usize) -> Result<Option<T>, StateError> {
        // Unchecked, because the tables are STRICT and so hold the declared types; to check every column of every row would
        // cost.
        Ok(row.try_get_unchecked(index).map_err(StatementError::from)?)
    }

    fn of_rusqlite(row: &'r rusqlite::Row<'r>, index: usize) -> Result<ValueRef<'r>, StateError> {
        Ok(row.get_ref(index).map_err(StatementError::from)?)
    }
}

/// A type that a column can be read as.
pub(crate) trait FromColumn<'r>: Sized {
    fn read(row: &Row<'r>, index: usize) -> Result<Self, StateError>;
}

impl<'r> FromColumn<'r> for Option<i64> {
    fn read(row: &Row<'r>, index: usize) -> Result<Self, StateError> {
        match row {
            Row::Sqlx(row) => Row::of_sqlx(row, index),
            Row::Rusqlite(row) => match Row::of_rusqlite(row, index)? {
                ValueRef::Null => Ok(None),
                ValueRef::Integer(number) => Ok(Some(number)),
                _ => Err(wrong(index, "a number")),
            },
        }
    }
}

impl<'r> FromColumn<'r> for Option<&'r str> {
    fn read(row: &Row<'r>, index: usize) -> Result<Self, StateError> {
        match row {
            Row::Sqlx(row) => Row::of_sqlx(row, index),
            Row::Rusqlite(row) => match Row::of_rusqlite(row, index)? {
                ValueRef::Null => Ok(None),
                ValueRef::Text(text) => std::str::from_utf8(text).map(Some).map_err(|_| wrong(index, "text")),
                _ => Err(wrong(index, "text")),
            },
        }
    }
}

impl<'r> FromColumn<'r> for Option<&'r [u8]> {
    fn read(row: &Row<'r>, index: usize) -> Result<Self, StateError> {
        match row {
            Row::Sqlx(row) => Row::of_sqlx(row, index),
            Row::Rusqlite(row) => match Row::of_rusqlite(row, index)? {
                ValueRef::Null => Ok(None),
                ValueRef::Blob(bytes) => Ok(Some(bytes)),
                _ => Err(wrong(index, "bytes")),
            },
        }
    }
}

impl<'r> FromColumn<'r> for Option<String> {
    fn read(row: &Row<'r>, index: usize) -> Result<Self, StateError> {
        Ok(<Option<&'r str>>::read(row, index)?.map(str::to_owned))
    }
}

impl<'r> FromColumn<'r> for Option<Uuid> {
    fn read(row: &Row<'r>, index: usize) -> Result<Self, StateError> {
        let bytes = <Option<&'r [u8]>>::read(row, index)?;
        let id = bytes.map(Uuid::from_slice).transpose();
        id.map_err(|error| wrong(index, "an id").with_source(error))
    }
}

macro_rules! required {
    ($($type:ty),*) => {$(
        impl<'r> FromColumn<'r> for $type {
            fn read(row: &Row<'r>, index: usize) -> Result<Self, StateError> {
                <Option<$type>>::read(row, index)?.ok_or_else(|| corrupt(format!("column {index} is empty")))
            }
        }
    )*};
}

required!(i64, &'r str, String, Uuid);

fn wrong(index: usize, wanted: &str) -> StateError {
    corrupt(format!("column {index} does not hold {wanted}"))
}
