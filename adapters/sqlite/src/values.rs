//! Batches as parameters: `VALUES (?, ..), (?, ..), ..`, because a statement costs more than its rows, and reading rows
//! out of JSON costs more than binding them.
//!
//! The text of a statement depends on the number of its rows, and SQLite prepares every text anew. So there are a few
//! sizes only, each twice the one before; what is left of a size stays unbound, which SQLite reads as rows of `NULL`.
//! The parameters have no numbers on purpose: sqlx asks for the name of each, and SQLite looks for it in a list.

use std::sync::{Arc, OnceLock};

use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments as _, AssertSqlSafe, Encode, SqlSafeStr, SqlStr, Sqlite, SqliteConnection, Type};
use uuid::Uuid;

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
}

impl Batched {
    pub(crate) fn new(template: &str, prefix: &str, columns: usize) -> Self {
        Self {
            template: render(template, prefix),
            columns,
            texts: Default::default(),
        }
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

    /// Runs the statement for all rows, in as few calls as there are, and gives what it returns.
    pub(crate) async fn fetch<T>(
        &self,
        connection: &mut SqliteConnection,
        rows: &[T],
        mut fill: impl FnMut(&mut Row, &T),
    ) -> Result<Vec<SqliteRow>, sqlx::Error> {
        let mut found = Vec::new();
        for chunk in rows.chunks(LARGEST) {
            let mut row = Row::with_room(chunk.len() * self.columns);
            for one in chunk {
                fill(&mut row, one);
            }
            let query = sqlx::query_with(self.text(chunk.len()), row.arguments);
            let some = query.fetch_all(&mut *connection).await?;
            match found.is_empty() {
                true => found = some,
                false => found.extend(some),
            }
        }
        Ok(found)
    }
}

/// A text that is cheap to clone, which sqlx does at every call.
pub(crate) fn shared(text: String) -> SqlStr {
    AssertSqlSafe(Arc::<str>::from(text)).into_sql_str()
}

/// The values of rows, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Row {
    arguments: SqliteArguments,
}

impl Row {
    fn with_room(values: usize) -> Self {
        let mut row = Self::default();
        row.arguments.reserve(values, 0);
        row
    }

    #[expect(
        clippy::expect_used,
        reason = "encoding a number, a text or bytes as an argument has no way to fail"
    )]
    fn value<'a>(&mut self, value: impl Encode<'a, Sqlite> + Type<Sqlite>) -> &mut Self {
        self.arguments.add(value).expect("plain values can be encoded");
        self
    }

    pub(crate) fn number(&mut self, number: impl Into<i64>) -> &mut Self {
        self.value(number.into())
    }

    pub(crate) fn optional_number(&mut self, number: Option<impl Into<i64>>) -> &mut Self {
        self.value(number.map(Into::into))
    }

    pub(crate) fn id(&mut self, id: Uuid) -> &mut Self {
        self.value(id.as_bytes().as_slice())
    }

    pub(crate) fn optional_id(&mut self, id: Option<Uuid>) -> &mut Self {
        match id {
            Some(id) => self.id(id),
            None => self.null(),
        }
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.value(text)
    }

    pub(crate) fn optional_text(&mut self, text: Option<&str>) -> &mut Self {
        self.value(text)
    }

    pub(crate) fn null(&mut self) -> &mut Self {
        self.value(None::<i64>)
    }
}
