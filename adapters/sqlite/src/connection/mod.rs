//! One face for two kinds of connection.
//!
//! The caller's transactions need a connection of sqlx, which keeps a thread for each: every statement goes there and
//! every row comes back one by one, copied column by column. This library's own groups of operations need none of that,
//! so they run on a plain connection, on the writer's own thread. The verbs are written once, for both.

pub(crate) mod close;
pub(crate) mod connections;
pub(crate) mod hidden;
pub(crate) mod identity;
pub(crate) mod session;

use futures_util::TryStreamExt;
use queuert::StateError;
use rusqlite::types::{ToSqlOutput, ValueRef};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments as _, Decode, Row as _, SqlStr, Sqlite, SqliteConnection};
use uuid::Uuid;

use crate::error::{DbError, corrupt};

/// A connection that verbs run on.
pub(crate) enum Db<'c> {
    /// One of sqlx: the caller's, a reader, or one that only the caller's options can open.
    Lent(&'c mut SqliteConnection),
    /// One of this library's own: what runs on it never waits, but for the disk.
    Own(&'c mut rusqlite::Connection),
}

impl Db<'_> {
    /// Runs a query and reads each of its rows.
    pub(crate) async fn fetch<T: Send>(
        &mut self,
        query: Query<'_>,
        mut read: impl FnMut(&Row<'_>) -> Result<T, StateError> + Send,
    ) -> Result<Vec<T>, StateError> {
        match self {
            Self::Lent(connection) => {
                let rows = query.for_sqlx().fetch_all(&mut **connection).await;
                let rows = rows.map_err(DbError::from)?;
                rows.iter().map(|row| read(&Row::Lent(row))).collect()
            }
            Self::Own(connection) => {
                let mut statement = connection.prepare_cached(query.text.as_str()).map_err(DbError::from)?;
                let values = rusqlite::params_from_iter(&query.values);
                let mut rows = statement.query(values).map_err(DbError::from)?;
                let mut all = Vec::new();
                while let Some(row) = rows.next().map_err(DbError::from)? {
                    all.push(read(&Row::Own(row))?);
                }
                Ok(all)
            }
        }
    }

    /// Runs a query and reads its rows up to the first for which there is no value. The rest is not read, but for a few rows
    /// that sqlx may have read ahead.
    pub(crate) async fn fetch_while<T: Send>(
        &mut self,
        query: Query<'_>,
        mut read: impl FnMut(&Row<'_>) -> Result<Option<T>, StateError> + Send,
    ) -> Result<Vec<T>, StateError> {
        let mut all = Vec::new();
        match self {
            Self::Lent(connection) => {
                let mut rows = query.for_sqlx().fetch(&mut **connection);
                while let Some(row) = rows.try_next().await.map_err(DbError::from)?
                    && let Some(value) = read(&Row::Lent(&row))?
                {
                    all.push(value);
                }
            }
            Self::Own(connection) => {
                let mut statement = connection.prepare_cached(query.text.as_str()).map_err(DbError::from)?;
                let values = rusqlite::params_from_iter(&query.values);
                let mut rows = statement.query(values).map_err(DbError::from)?;
                while let Some(row) = rows.next().map_err(DbError::from)?
                    && let Some(value) = read(&Row::Own(row))?
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

    /// Runs a statement that returns no rows, and says how many it has changed.
    pub(crate) async fn execute(&mut self, query: Query<'_>) -> Result<usize, DbError> {
        match self {
            Self::Lent(connection) => {
                let done = query.for_sqlx().execute(&mut **connection).await?;
                Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
            }
            Self::Own(connection) => {
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
        reason = "encoding a number, a text or bytes as an argument has no way to fail"
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

/// What is bound to a statement.
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
    Lent(&'r SqliteRow),
    Own(&'r rusqlite::Row<'r>),
}

impl<'r> Row<'r> {
    pub(crate) fn get<T: Column<'r>>(&self, index: usize) -> Result<T, StateError> {
        T::read(self, index)
    }

    /// An optional column of sqlx.
    fn lent<T: Decode<'r, Sqlite>>(row: &'r SqliteRow, index: usize) -> Result<Option<T>, StateError> {
        // Unchecked: the tables are STRICT, so the types are the declared ones, and checking every column of every row
        // costs.
        Ok(row.try_get_unchecked(index).map_err(DbError::from)?)
    }

    fn own(row: &'r rusqlite::Row<'r>, index: usize) -> Result<ValueRef<'r>, StateError> {
        Ok(row.get_ref(index).map_err(DbError::from)?)
    }
}

/// A type that a column can be read as.
pub(crate) trait Column<'r>: Sized {
    fn read(row: &Row<'r>, index: usize) -> Result<Self, StateError>;
}

impl<'r> Column<'r> for Option<i64> {
    fn read(row: &Row<'r>, index: usize) -> Result<Self, StateError> {
        match row {
            Row::Lent(row) => Row::lent(row, index),
            Row::Own(row) => match Row::own(row, index)? {
                ValueRef::Null => Ok(None),
                ValueRef::Integer(number) => Ok(Some(number)),
                _ => Err(wrong(index, "a number")),
            },
        }
    }
}

impl<'r> Column<'r> for Option<&'r str> {
    fn read(row: &Row<'r>, index: usize) -> Result<Self, StateError> {
        match row {
            Row::Lent(row) => Row::lent(row, index),
            Row::Own(row) => match Row::own(row, index)? {
                ValueRef::Null => Ok(None),
                ValueRef::Text(text) => std::str::from_utf8(text).map(Some).map_err(|_| wrong(index, "text")),
                _ => Err(wrong(index, "text")),
            },
        }
    }
}

impl<'r> Column<'r> for Option<&'r [u8]> {
    fn read(row: &Row<'r>, index: usize) -> Result<Self, StateError> {
        match row {
            Row::Lent(row) => Row::lent(row, index),
            Row::Own(row) => match Row::own(row, index)? {
                ValueRef::Null => Ok(None),
                ValueRef::Blob(bytes) => Ok(Some(bytes)),
                _ => Err(wrong(index, "bytes")),
            },
        }
    }
}

impl<'r> Column<'r> for Option<String> {
    fn read(row: &Row<'r>, index: usize) -> Result<Self, StateError> {
        Ok(<Option<&'r str>>::read(row, index)?.map(str::to_owned))
    }
}

impl<'r> Column<'r> for Option<Uuid> {
    fn read(row: &Row<'r>, index: usize) -> Result<Self, StateError> {
        let bytes = <Option<&'r [u8]>>::read(row, index)?;
        let id = bytes.map(Uuid::from_slice).transpose();
        id.map_err(|error| wrong(index, "an id").with_source(error))
    }
}

macro_rules! required {
    ($($type:ty),*) => {$(
        impl<'r> Column<'r> for $type {
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
