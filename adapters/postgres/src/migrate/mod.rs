//! The schema: created and brought up to date by the process that connects first.

mod apply;

use queuert::StateError;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use crate::error::{misconfigured, translate};
use crate::migrate::apply::{LOCK_PATIENCE, apply};
use crate::statements::{Filling, fill, plain, quote, text};

/// One step of the schema, as plain SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// Its number, from one.
    pub version: u32,
    /// What it does.
    pub name: &'static str,
    /// Its statements, with the name of the schema in place. Run them in one transaction.
    pub sql: String,
}

/// The name of a step, and its statements with placeholders.
pub(crate) type Step = (&'static str, &'static str);

/// The steps in order; the version of a step is its place in this list, from one.
pub(crate) const STEPS: &[Step] = &[("schema", include_str!("../../migrations/0001_schema.sql"))];

/// What the role must be able to use.
pub(crate) const TABLES: [&str; 15] = [
    "blocker",
    "failure",
    "job",
    "job_type",
    "key_lock",
    "later",
    "maintainer",
    "migration",
    "open_key",
    "process",
    "ready",
    "result",
    "running",
    "stopped",
    "waiting",
];

const FUNCTIONS: [&str; 2] = ["finish_many", "finish_one"];

/// The length that Postgres keeps of a name.
const LONGEST_NAME: usize = 63;

/// All steps of the schema, in order.
pub(crate) fn migrations(schema: &str) -> Result<Vec<Migration>, StateError> {
    check_name(schema)?;
    let steps = (1..).zip(STEPS).map(|(version, (name, sql))| {
        let mut sql_of_step = String::new();
        if version == 1 {
            let ledger = fill(text::LEDGER, &Filling::none());
            sql_of_step.push_str(&format!("CREATE SCHEMA IF NOT EXISTS {{schema}};\n\n{ledger};\n\n"));
        }
        sql_of_step.push_str(&step(version, name, sql));
        Migration {
            version,
            name,
            sql: render(&sql_of_step, schema),
        }
    });
    Ok(steps.collect())
}

pub(crate) fn step(version: u32, name: &str, sql: &str) -> String {
    format!("{sql}\nINSERT INTO {{schema}}.migration (version, name) VALUES ({version}, '{name}');\n")
}

pub(crate) fn render(template: &str, schema: &str) -> String {
    // The name comes last, because it may look like anything, and the mark around functions is one that is not in it.
    let mut marks = (0..).map(|number| format!("$body{number}$"));
    let mark = marks.find(|mark| !schema.contains(mark)).unwrap_or_default();
    let template = template.replace("{body}", &mark);
    template.replace("{schema}", &quote(schema))
}

/// Refuses what Postgres would cut off or reserve.
pub(crate) fn check_name(schema: &str) -> Result<(), StateError> {
    let fits = !schema.is_empty() && schema.len() <= LONGEST_NAME && !schema.contains('\0');
    if fits && !schema.starts_with("pg_") {
        return Ok(());
    }
    Err(misconfigured(format!(
        "the schema name `{}` cannot be used: take 1 to {LONGEST_NAME} bytes, not starting with `pg_`",
        schema.escape_debug()
    )))
}

/// What is in the database.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// There is no schema of this name.
    NoSchema,
    /// Steps are missing after this version.
    Behind(u32),
    /// Up to date.
    Current,
}

/// Brings the schema up to date, unless told not to, and checks that the role can work with it.
pub(crate) async fn install(connection: &mut PgConnection, schema: &str, migrate: bool) -> Result<(), StateError> {
    check_name(schema)?;
    let found = look(connection, schema).await?;
    if found != Found::Current {
        if !migrate {
            return Err(misconfigured(format!(
                "the schema {} is missing or out of date, and migrating was switched off; apply `PostgresState::migrations`",
                quote(schema)
            )));
        }
        may_migrate(connection, schema, &found).await?;
        apply(connection, schema, STEPS, LOCK_PATIENCE).await?;
    }
    may_work(connection, schema).await
}

async fn look(connection: &mut PgConnection, schema: &str) -> Result<Found, StateError> {
    // In a transaction, so that a pooler keeps the statements together.
    let mut transaction = connection.begin().await.map_err(translate)?;
    let found = inspect(&mut transaction, schema).await?;
    transaction.commit().await.map_err(translate)?;
    Ok(found)
}

/// What is there, without writing anything.
///
/// # Errors
///
/// Misconfigured if it is newer than this code, or if other tables have the names of this library's.
async fn inspect(connection: &mut PgConnection, schema: &str) -> Result<Found, StateError> {
    let exists: bool = sqlx::query_scalar(plain(text::SCHEMA_EXISTS))
        .bind(schema)
        .persistent(false)
        .fetch_one(&mut *connection)
        .await
        .map_err(translate)?;
    if !exists {
        return Ok(Found::NoSchema);
    }
    let columns: Vec<(String, String)> = sqlx::query_as(plain(text::FIRST_COLUMNS))
        .bind(schema)
        .bind(TABLES.map(str::to_owned).to_vec())
        .persistent(false)
        .fetch_all(&mut *connection)
        .await
        .map_err(translate)?;
    match columns.iter().find(|(table, _)| table == "migration") {
        Some((_, first)) if first == "version" => {}
        Some(_) => return Err(foreign("migration", schema)),
        None => {
            return match columns.first() {
                Some((table, _)) => Err(foreign(table, schema)),
                None => Ok(Found::Behind(0)),
            };
        }
    }
    may_work(connection, schema).await?;
    let version = version_of(connection, schema).await.map_err(translate)??;
    check_version(version, STEPS, schema)?;
    if version == last_version(STEPS) {
        Ok(Found::Current)
    } else {
        Ok(Found::Behind(version))
    }
}

/// The version of a schema to which all of these steps were applied.
pub(crate) fn last_version(steps: &[Step]) -> u32 {
    u32::try_from(steps.len()).unwrap_or(u32::MAX)
}

/// Refuses a schema that is newer than this program, which knows these steps.
pub(crate) fn check_version(version: u32, steps: &[Step], schema: &str) -> Result<(), StateError> {
    let known = last_version(steps);
    if version <= known {
        return Ok(());
    }
    Err(misconfigured(format!(
        "the schema {} is of version {version}, this program knows versions up to {known}; update the program",
        quote(schema)
    )))
}

fn foreign(table: &str, schema: &str) -> StateError {
    misconfigured(format!(
        "the schema {} has a table `{table}` that is not queuert's; choose another schema with `.schema(..)`",
        quote(schema)
    ))
}

/// Whether the role may create what is missing.
async fn may_migrate(connection: &mut PgConnection, schema: &str, found: &Found) -> Result<(), StateError> {
    let mut transaction = connection.begin().await.map_err(translate)?;
    let row = sqlx::query(plain(text::RIGHT_TO_CREATE))
        .bind(schema)
        .bind(*found == Found::NoSchema)
        .bind(TABLES.map(str::to_owned).to_vec())
        .persistent(false)
        .fetch_one(&mut *transaction)
        .await
        .map_err(translate)?;
    transaction.commit().await.map_err(translate)?;
    let (role, database): (String, String) = (row.get("role"), row.get("database"));
    if row.get("may_create") {
        let Some(owner) = row.get::<Option<String>, _>("other_owner") else {
            return Ok(());
        };
        return Err(misconfigured(format!(
            "the schema {} is out of date, and its tables belong to {owner}: connect once as that role, or apply \
             `PostgresState::migrations` as it",
            quote(schema)
        )));
    }
    let grant = match found {
        Found::NoSchema => format!("GRANT CREATE ON DATABASE {database} TO {role}"),
        _ => format!("GRANT USAGE, CREATE ON SCHEMA {} TO {role}", quote(schema)),
    };
    Err(misconfigured(format!(
        "the role may not create the tables of queuert; run `{grant}`, or apply `PostgresState::migrations` as the owner"
    )))
}

/// Whether the role may do what the verbs do. All that is missing is named at once.
async fn may_work(connection: &mut PgConnection, schema: &str) -> Result<(), StateError> {
    let mut transaction = connection.begin().await.map_err(translate)?;
    let rows = sqlx::query(plain(text::MISSING_RIGHTS))
        .bind(schema)
        .bind(TABLES.map(str::to_owned).to_vec())
        .persistent(false)
        .fetch_all(&mut *transaction)
        .await
        .map_err(translate)?;
    let uncallable = sqlx::query(plain(text::UNCALLABLE_FUNCTIONS))
        .bind(schema)
        .bind(FUNCTIONS.map(str::to_owned).to_vec())
        .persistent(false)
        .fetch_all(&mut *transaction)
        .await
        .map_err(translate)?;
    transaction.commit().await.map_err(translate)?;
    let mut grants = Vec::new();
    for row in &uncallable {
        let (function, role): (String, String) = (row.get("function"), row.get("role"));
        grants.push(format!("GRANT EXECUTE ON FUNCTION {function} TO {role}"));
    }
    for row in &rows {
        let role: String = row.get("role");
        if !row.get::<bool, _>("may_use_schema") {
            grants.push(format!("GRANT USAGE ON SCHEMA {} TO {role}", quote(schema)));
        }
        let (table, privilege): (Option<String>, Option<String>) = (row.get("table_name"), row.get("privilege"));
        if let (Some(table), Some(right)) = (table, privilege) {
            grants.push(format!("GRANT {right} ON {}.{table} TO {role}", quote(schema)));
        }
    }
    grants.dedup();
    if grants.is_empty() {
        return Ok(());
    }
    Err(misconfigured(format!(
        "the role lacks rights; run as the owner: {}",
        grants.join("; ")
    )))
}

/// The version in the ledger.
pub(crate) async fn version_of(
    connection: &mut PgConnection,
    schema: &str,
) -> Result<Result<u32, StateError>, sqlx::Error> {
    let version = render(&fill(text::VERSION, &Filling::none()), schema);
    let version: i32 = sqlx::query_scalar(AssertSqlSafe(version))
        .persistent(false)
        .fetch_one(connection)
        .await?;
    Ok(u32::try_from(version).map_err(|_| foreign("migration", schema)))
}
