//! What the statements of one caller may leave on a connection for the next: attached databases, temporary tables, views
//! and triggers, and settings of the connection. Each caller's transaction begins without those of another.
//!
//! One statement reads them, after the transaction has ended and while its caller goes on. It leaves out settings that only
//! make statements faster or slower, because each costs some two microseconds, and those that cannot be changed inside a
//! transaction: a caller that has ended its transaction with a statement of its own is taken for one that has changed them.

use std::sync::LazyLock;

use sqlx::{AssertSqlSafe, SqliteConnection};

/// The settings that make the statements of others fail, or change what they do.
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

/// The number of attached databases, that of temporary objects, whether `LIKE` ignores case, and the settings.
static LOOK: LazyLock<String> = LazyLock::new(|| {
    let settings = SETTINGS.map(|name| format!("(SELECT * FROM pragma_{name})")).join(", ");
    format!(
        "SELECT json_array((SELECT count(*) FROM pragma_database_list WHERE seq > 1), \
         (SELECT count(*) FROM sqlite_temp_master), 'a' LIKE 'A', {settings})"
    )
});

/// How a connection was when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session(String);

impl Session {
    pub(crate) async fn of(connection: &mut SqliteConnection) -> Result<Self, sqlx::Error> {
        let look = sqlx::query_scalar(AssertSqlSafe(LOOK.as_str()));
        look.fetch_one(connection).await.map(Self)
    }

    /// Whether the connection is as it was.
    pub(crate) async fn is_kept(&self, connection: &mut SqliteConnection) -> bool {
        Self::of(connection).await.is_ok_and(|found| found == *self)
    }

    /// Makes the connection what it was, as far as that is possible: for a database in memory, which cannot be opened again.
    pub(crate) async fn restore(&self, connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        let attached = "SELECT format('DETACH \"%w\"', name) FROM pragma_database_list WHERE seq > 1";
        // A table takes its indexes and triggers with it.
        let temporary = "SELECT format('DROP %s IF EXISTS temp.\"%w\"', type, name) FROM sqlite_temp_master \
                         WHERE type IN ('trigger', 'view', 'table') AND name NOT LIKE 'sqlite!_%' ESCAPE '!' \
                         ORDER BY type <> 'trigger', type <> 'view'";
        let mut statements: Vec<String> = Vec::new();
        for look in [attached, temporary] {
            statements.extend(sqlx::query_scalar(look).fetch_all(&mut *connection).await?);
        }
        // In the order of `LOOK`, after the two counts.
        let was: Vec<String> = sqlx::query_scalar("SELECT CAST(value AS TEXT) FROM json_each(?1)")
            .bind(self.0.clone())
            .fetch_all(&mut *connection)
            .await?;
        let like = was.get(2).map_or("OFF", |ignores_case| match ignores_case.as_str() {
            "0" => "ON",
            _ => "OFF",
        });
        statements.push(format!("PRAGMA case_sensitive_like = {like}"));
        // sqlx has them checked on every connection.
        statements.push("PRAGMA foreign_keys = ON".to_owned());
        let settings = SETTINGS.iter().zip(was.iter().skip(3));
        statements.extend(settings.map(|(name, value)| format!("PRAGMA {name} = {value}")));
        for statement in statements {
            sqlx::raw_sql(AssertSqlSafe(statement))
                .execute(&mut *connection)
                .await?;
        }
        Ok(())
    }
}
