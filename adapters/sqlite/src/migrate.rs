//! The schema: the first process that opens the file creates it or brings it up to date.

use queuert::{StateError, StateErrorKind};
use sqlx::{AssertSqlSafe, SqliteConnection};

use crate::error::translate;
use crate::statements::{LEDGER_COLUMNS, LEDGER_VERSION, RECORD_MIGRATION, SCHEMA_NAMES, without_comments};

/// One migration, as plain SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// The number of the migration, from one.
    pub version: u32,
    /// A short description.
    pub name: &'static str,
    /// The statements, with the prefix in place.
    pub sql: String,
}

/// The migrations in order; the version of a migration is its place in this list, from one.
const MIGRATIONS: &[(&str, &str)] = &[("schema", include_str!("../migrations/0001_schema.sql"))];

const LONGEST_PREFIX: usize = 40;

/// The names, after the prefix, of the tables and then the indexes that the migrations create. SQLite has one namespace
/// for both.
const NAMES: [&str; 17] = [
    "migration",
    "job",
    "blocker",
    "notice",
    "pause",
    "process",
    "job_id",
    "job_chain",
    "job_queue",
    "job_later",
    "job_lease",
    "job_created",
    "job_rest",
    "job_key",
    "job_open_key",
    "blocker_chain",
    "blocker_open",
];

/// All migrations, in order.
pub(crate) fn migrations(prefix: &str) -> Result<Vec<Migration>, StateError> {
    check_prefix(prefix)?;
    let migrations = (1..).zip(MIGRATIONS).map(|(version, (name, sql))| {
        let record = without_comments(RECORD_MIGRATION)
            .replace("{version}", &version.to_string())
            .replace("{name}", name);
        Migration {
            version,
            name,
            sql: format!("{sql}\n{record}\n").replace("{prefix}", prefix),
        }
    });
    Ok(migrations.collect())
}

/// Checks a prefix, which becomes part of statements: only letters, digits and underscores.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), StateError> {
    let starts_well = prefix.bytes().next().is_none_or(|first| !first.is_ascii_digit());
    let fits = prefix.len() <= LONGEST_PREFIX && !prefix.to_ascii_lowercase().starts_with("sqlite_");
    if starts_well && fits && prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return Ok(());
    }
    Err(StateError::new(
        StateErrorKind::Misconfigured,
        format!(
            "the table prefix `{prefix}` cannot be used: take at most {LONGEST_PREFIX} letters, digits and underscores, not \
             starting with a digit or with `sqlite_`"
        ),
    ))
}

/// The schema of a file.
#[derive(Debug, PartialEq, Eq)]
enum SchemaVersion {
    Current,
    /// Migrations after this version are missing.
    Behind(u32),
}

/// Reads the version of the schema, without writing anything.
///
/// # Errors
///
/// Misconfigured if the schema is newer than this code, or if tables or indexes with these names are not this
/// library's.
async fn read_version(connection: &mut SqliteConnection, prefix: &str) -> Result<SchemaVersion, StateError> {
    let ledger = format!("{prefix}migration");
    let mut taken = Vec::new();
    let names: Vec<String> = sqlx::query_scalar(SCHEMA_NAMES)
        .fetch_all(&mut *connection)
        .await
        .map_err(translate)?;
    for name in NAMES.map(|name| format!("{prefix}{name}")) {
        if names.contains(&name.to_ascii_lowercase()) {
            taken.push(name);
        }
    }
    if !taken.contains(&ledger) {
        if taken.is_empty() {
            return Ok(SchemaVersion::Behind(0));
        }
        return Err(foreign(&taken.join("`, `")));
    }
    let columns: Vec<String> = sqlx::query_scalar(LEDGER_COLUMNS)
        .bind(&ledger)
        .fetch_all(&mut *connection)
        .await
        .map_err(translate)?;
    if columns != ["version", "name", "applied_at"] {
        return Err(foreign(&ledger));
    }
    let select = LEDGER_VERSION.replace("{prefix}", prefix);
    let version: i64 = sqlx::query_scalar(AssertSqlSafe(select))
        .fetch_one(&mut *connection)
        .await
        .map_err(translate)?;
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    if version > known {
        return Err(StateError::new(
            StateErrorKind::Misconfigured,
            format!(
                "the schema of the database is version {version}, this program knows versions up to {known}; update the \
                 program"
            ),
        ));
    }
    match u32::try_from(version) {
        Ok(version) if i64::from(version) == known => Ok(SchemaVersion::Current),
        Ok(version) => Ok(SchemaVersion::Behind(version)),
        Err(_) => Err(foreign(&ledger)),
    }
}

fn foreign(names: &str) -> StateError {
    StateError::new(
        StateErrorKind::Misconfigured,
        format!("the database has `{names}`, which is not queuert's; choose another prefix with `.prefix(..)`"),
    )
}

/// Whether the schema is up to date. It only reads, and so needs no lock.
pub(crate) async fn is_current(connection: &mut SqliteConnection, prefix: &str) -> Result<bool, StateError> {
    Ok(read_version(connection, prefix).await? == SchemaVersion::Current)
}

/// Brings the schema up to date. The caller has begun an immediate transaction, so if many processes start at once, one
/// of them applies the migrations, and the others find them applied when they get the lock.
pub(crate) async fn apply(connection: &mut SqliteConnection, prefix: &str) -> Result<(), StateError> {
    let SchemaVersion::Behind(version) = read_version(connection, prefix).await? else {
        return Ok(());
    };
    let missing = migrations(prefix)?.into_iter();
    for migration in missing.filter(|migration| migration.version > version) {
        sqlx::raw_sql(AssertSqlSafe(migration.sql))
            .execute(&mut *connection)
            .await
            .map_err(translate)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sqlx::{Connection, Executor};

    #[tokio::test]
    async fn every_name_that_is_created_is_looked_for() {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        for step in migrations("t_").unwrap() {
            connection.execute(AssertSqlSafe(step.sql)).await.unwrap();
        }
        let created = "SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name";
        let created: Vec<String> = sqlx::query_scalar(created).fetch_all(&mut connection).await.unwrap();
        let mut known = NAMES.map(|name| format!("t_{name}"));
        known.sort_unstable();
        assert_eq!(created, known);
    }
}
