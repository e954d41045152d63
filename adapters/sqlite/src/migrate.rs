//! The schema: created and brought up to date by whoever opens the file first.

use queuert::{StateError, StateErrorKind};
use sqlx::{AssertSqlSafe, SqliteConnection};

use crate::error::translate;

/// One step of the schema, as plain SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// Its number, from one.
    pub version: u32,
    /// What it does.
    pub name: &'static str,
    /// Its statements, with the prefix in place.
    pub sql: String,
}

/// The steps in order; the version of a step is its place in this list, from one.
const STEPS: &[(&str, &str)] = &[("schema", include_str!("../migrations/0001_schema.sql"))];

/// The ledger. It is this library's own: migrations of the application never meet it.
const LEDGER: &str = "CREATE TABLE {prefix}migration (version INTEGER PRIMARY KEY, name TEXT NOT NULL, \
     applied_at INTEGER NOT NULL) STRICT";

const LONGEST_PREFIX: usize = 40;

/// What the steps create, after the prefix: tables first, then indexes. SQLite keeps the names of both in one place.
const NAMES: [&str; 16] = [
    "migration",
    "job",
    "blocker",
    "notice",
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

/// All steps of the schema, in order.
pub(crate) fn migrations(prefix: &str) -> Result<Vec<Migration>, StateError> {
    check_prefix(prefix)?;
    let steps = (1..).zip(STEPS).map(|(version, (name, sql))| {
        let mut text = String::new();
        if version == 1 {
            text.push_str(LEDGER);
            text.push_str(";\n\n");
        }
        text.push_str(sql);
        text.push_str("\nINSERT INTO {prefix}migration (version, name, applied_at) VALUES (");
        text.push_str(&format!(
            "{version}, '{name}', CAST(unixepoch('subsec') * 1000000 AS INTEGER));\n"
        ));
        Migration {
            version,
            name,
            sql: render(&text, prefix),
        }
    });
    Ok(steps.collect())
}

/// Puts the prefix in place.
pub(crate) fn render(template: &str, prefix: &str) -> String {
    template.replace("{prefix}", prefix)
}

/// Prefixes become part of statements, so nothing but letters, digits and underscores gets in.
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

/// What is in the file.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// Up to date.
    Current,
    /// Steps are missing after this version.
    Behind(u32),
}

/// Whether the schema is there and known, without writing anything.
///
/// # Errors
///
/// Misconfigured if it is newer than this code, or if tables or indexes of somebody else have our names.
async fn inspect(connection: &mut SqliteConnection, prefix: &str) -> Result<Found, StateError> {
    let ledger = format!("{prefix}migration");
    let mut taken = Vec::new();
    // SQLite does not tell names apart by case.
    let names: Vec<String> = sqlx::query_scalar("SELECT lower(name) FROM sqlite_schema")
        .fetch_all(&mut *connection)
        .await
        .map_err(translate)?;
    for name in NAMES.map(|name| format!("{prefix}{name}")) {
        if names.contains(&name.to_ascii_lowercase()) {
            taken.push(name);
        }
    }
    if !taken.contains(&ledger) {
        return match taken.is_empty() {
            true => Ok(Found::Behind(0)),
            false => Err(foreign(&taken.join("`, `"))),
        };
    }
    let columns: Vec<String> = sqlx::query_scalar("SELECT name FROM pragma_table_info(?1) ORDER BY cid")
        .bind(&ledger)
        .fetch_all(&mut *connection)
        .await
        .map_err(translate)?;
    if columns != ["version", "name", "applied_at"] {
        return Err(foreign(&ledger));
    }
    let query = format!("SELECT coalesce(max(version), 0) FROM {ledger}");
    let version: i64 = sqlx::query_scalar(AssertSqlSafe(query))
        .fetch_one(&mut *connection)
        .await
        .map_err(translate)?;
    let known = i64::try_from(STEPS.len()).unwrap_or(i64::MAX);
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
        Ok(version) if i64::from(version) == known => Ok(Found::Current),
        Ok(version) => Ok(Found::Behind(version)),
        Err(_) => Err(foreign(&ledger)),
    }
}

fn foreign(names: &str) -> StateError {
    StateError::new(
        StateErrorKind::Misconfigured,
        format!("the database has `{names}`, which is not queuert's; choose another prefix with `.prefix(..)`"),
    )
}

/// Whether the schema is complete. Reads only, so it needs no lock.
pub(crate) async fn is_current(connection: &mut SqliteConnection, prefix: &str) -> Result<bool, StateError> {
    Ok(inspect(connection, prefix).await? == Found::Current)
}

/// Brings the schema up to date. The caller has begun an immediate transaction, so of many processes that start at
/// once one does it and the others, looking again once they have the lock, find it done.
pub(crate) async fn apply(connection: &mut SqliteConnection, prefix: &str) -> Result<(), StateError> {
    let Found::Behind(version) = inspect(connection, prefix).await? else {
        return Ok(());
    };
    for step in migrations(prefix)?.into_iter().filter(|step| step.version > version) {
        sqlx::raw_sql(AssertSqlSafe(step.sql))
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
