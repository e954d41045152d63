//! What the statements of one caller can leave behind on a connection: attached databases, temporary tables, views and
//! triggers, and settings of the connection. The transaction of the next caller begins without them.
//!
//! One statement reads them, after the transaction has ended and while its caller goes on. It leaves out settings that only
//! make statements faster or slower, because each costs some two microseconds. It also leaves out settings that cannot be
//! changed inside a transaction: if a caller has ended its transaction with a statement of its own, the store assumes that
//! they were changed.

use std::sync::LazyLock;

use sqlx::{AssertSqlSafe, SqliteConnection};

use crate::statements::{DETACH_STATEMENTS, DROP_TEMPORARY_STATEMENTS, READ_SESSION, SESSION_VALUES, without_comments};

/// The settings that make statements of other callers fail, or change what they do.
const SETTINGS: [&str; 10] = [
    "busy_timeout",
    "ignore_check_constraints",
    "legacy_alter_table",
    "locking_mode",
    "max_page_count",
    "query_only",
    "recursive_triggers",
    "reverse_unordered_selects",
    "trusted_schema",
    "writable_schema",
];

static READ: LazyLock<String> = LazyLock::new(|| {
    let settings = SETTINGS.map(|name| format!("(SELECT * FROM pragma_{name})")).join(", ");
    without_comments(READ_SESSION).replace("{settings}", &settings)
});

/// The state of a connection when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session(String);

impl Session {
    pub(crate) async fn of(connection: &mut SqliteConnection) -> Result<Self, sqlx::Error> {
        let read = sqlx::query_scalar(AssertSqlSafe(READ.as_str()));
        read.fetch_one(connection).await.map(Self)
    }

    /// Whether the connection is in the same state.
    pub(crate) async fn is_unchanged(&self, connection: &mut SqliteConnection) -> bool {
        Self::of(connection).await.is_ok_and(|found| found == *self)
    }

    /// Restores the state as far as possible, for a database in memory, which cannot be opened again.
    pub(crate) async fn restore(&self, connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        let mut statements: Vec<String> = Vec::new();
        for select in [DETACH_STATEMENTS, DROP_TEMPORARY_STATEMENTS] {
            statements.extend(sqlx::query_scalar(select).fetch_all(&mut *connection).await?);
        }
        // In the order of `read_session.sql`.
        let values: Vec<String> = sqlx::query_scalar(SESSION_VALUES)
            .bind(self.0.clone())
            .fetch_all(&mut *connection)
            .await?;
        let ignores_case = values.get(2).is_none_or(|ignores_case| ignores_case != "0");
        let like = if ignores_case { "OFF" } else { "ON" };
        statements.push(format!("PRAGMA case_sensitive_like = {like}"));
        // sqlx turns this on for every connection.
        statements.push("PRAGMA foreign_keys = ON".to_owned());
        let settings = SETTINGS.iter().zip(values.iter().skip(3));
        statements.extend(settings.map(|(name, value)| format!("PRAGMA {name} = {value}")));
        for statement in statements {
            sqlx::raw_sql(AssertSqlSafe(statement))
                .execute(&mut *connection)
                .await?;
        }
        Ok(())
    }
}
