//! Applies the missing steps of the schema, each in a transaction of its own.

use std::time::Duration;

use queuert::{StateError, StateErrorKind};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::Instant;

use crate::error::{has_code, misconfigured, translate};
use crate::migrate::{Step, check_version, last_version, render, step, version_of};
use crate::statements::{Filling, fill, plain, quote, text};

/// How long a step is tried again while a transaction holds a lock that it needs.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_secs(60);

/// How often to try again when others create the same things at the same moment.
const MANY_TRIES: u32 = 200;

/// How long a try waits for a lock. Statements of other sessions queue behind it meanwhile, so it gives up soon, lets them
/// pass, and the step is tried again.
const SHORT_WAIT: Duration = Duration::from_millis(500);

/// The second try, and then one of so many, waits for longer than `deadlock_timeout`: the server cancels an autovacuum that
/// is in the way of a lock only when a session has waited for so long.
const LONG_WAIT_EVERY: u32 = 3;

/// A `deadlock_timeout` that is longer is not waited for, because the statements of others would wait too.
const LONGEST_DEADLOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// A step's transaction goes from one statement to the next without a pause.
const MOST_IDLE_MILLISECONDS: u32 = 5_000;

const LOCK_NOT_AVAILABLE: &str = "55P03";

/// How far a try has come.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    /// It has applied a step, and more are missing.
    Behind,
    /// Nothing is missing.
    Current,
}

/// Applies the missing steps. Each is committed by itself, together with its row in the ledger: a step that waits for a lock
/// holds no lock on the tables of the steps before it. Of many processes that start at once, one has the ledger locked and
/// applies a step; the others wait for the lock, look again and go on from there. Before there is a ledger they collide on
/// the names of schema and ledger, and the losers try again.
///
/// A step is tried for as long as the patience says, while others hold locks that it needs.
pub(crate) async fn apply(
    connection: &mut PgConnection,
    schema: &str,
    steps: &[Step],
    patience: Duration,
) -> Result<(), StateError> {
    let mut begun = Instant::now();
    let (mut collisions, mut waits) = (0, 0);
    while collisions < MANY_TRIES {
        match try_step(connection, schema, steps, waits % LONG_WAIT_EVERY == 1).await {
            Ok(Progress::Current) => return Ok(()),
            Ok(Progress::Behind) => (begun, waits) = (Instant::now(), 0),
            Err(Failure::Refused(error)) => return Err(error),
            Err(Failure::Database(error)) if has_code(&error, LOCK_NOT_AVAILABLE) => {
                if begun.elapsed() >= patience {
                    return Err(locked(connection, schema, patience).await?);
                }
                waits += 1;
                tokio::time::sleep(SHORT_WAIT.mul_f64(0.5 + fastrand::f64())).await;
            }
            Err(Failure::Database(error)) if collided(&error) => {
                collisions += 1;
                let pause = fastrand::u64(1..=10 + u64::from(collisions.min(40)));
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            Err(Failure::Database(error)) => return Err(translate(error)),
        }
    }
    Err(misconfigured(format!(
        "the schema {} could not be created, because others kept creating parts of it; start again",
        quote(schema)
    )))
}

/// Why a try has failed.
#[derive(Debug)]
enum Failure {
    /// The statements failed, perhaps because of what others do at the moment.
    Database(sqlx::Error),
    /// The schema is not one that this program may change.
    Refused(StateError),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

/// Applies one step, if one is missing.
async fn try_step(
    connection: &mut PgConnection,
    schema: &str,
    steps: &[Step],
    long: bool,
) -> Result<Progress, Failure> {
    let mut transaction = connection.begin().await?;
    let exists: bool = sqlx::query_scalar(plain(text::SCHEMA_EXISTS))
        .bind(schema)
        .persistent(false)
        .fetch_one(&mut *transaction)
        .await?;
    let filling = Filling::none()
        .when("waits_long", long)
        .when("creates_schema", !exists)
        .with("idle_limit", MOST_IDLE_MILLISECONDS)
        .with("lock_wait", SHORT_WAIT.as_millis())
        .with("longest_deadlock_timeout", LONGEST_DEADLOCK_TIMEOUT.as_millis())
        .with("ledger", fill(text::LEDGER, &Filling::none()));
    let prepare = render(&fill(text::PREPARE_STEP, &filling), schema);
    sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut *transaction).await?;
    let version = version_of(&mut transaction, schema).await?.map_err(Failure::Refused)?;
    // A process of a later version may have migrated the schema since it was inspected.
    if let Err(newer) = check_version(version, steps, schema) {
        transaction.rollback().await?;
        return Err(Failure::Refused(newer));
    }
    let next = (1..).zip(steps).find(|(number, _)| *number > version);
    let reached = match next {
        Some((number, (name, sql))) => {
            let text = render(&step(number, name, sql), schema);
            sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut *transaction).await?;
            number
        }
        None => version,
    };
    transaction.commit().await?;
    if reached == last_version(steps) {
        Ok(Progress::Current)
    } else {
        Ok(Progress::Behind)
    }
}

/// The error for a step that could not be applied because of locks, with the sessions that hold them, the longest
/// transaction first.
async fn locked(connection: &mut PgConnection, schema: &str, patience: Duration) -> Result<StateError, StateError> {
    let holders: Vec<String> = sqlx::query_scalar(plain(text::LOCK_HOLDERS))
        .bind(schema)
        .persistent(false)
        .fetch_all(connection)
        .await
        .map_err(translate)?;
    let holders = if holders.is_empty() {
        "sessions that have ended meanwhile".to_owned()
    } else {
        format!("the sessions {}", holders.join(", "))
    };
    Ok(StateError::new(
        StateErrorKind::Transient,
        format!(
            "the schema {} could not be brought up to date for {patience:?}, because {holders} kept its tables locked; \
             end these transactions, or stop the old workers, and start again",
            quote(schema)
        ),
    ))
}

/// Whether another process created the same thing at the same moment, or a deadlock was found.
fn collided(error: &sqlx::Error) -> bool {
    // unique_violation (in the catalogue), duplicate_schema, duplicate_table, duplicate_object, deadlock_detected,
    // serialization_failure, internal_error ("tuple concurrently updated").
    ["23505", "42P06", "42P07", "42710", "40P01", "40001", "XX000"]
        .iter()
        .any(|code| has_code(error, code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::STEPS;
    use tokio::task::JoinHandle;

    /// The schema, then a step that changes two tables of starts, then one that changes `running`.
    const MORE: [Step; 3] = [
        STEPS[0],
        (
            "starts",
            "ALTER TABLE {schema}.key_lock ADD of_a_test integer; ALTER TABLE {schema}.blocker ADD of_a_test integer;",
        ),
        ("running", "ALTER TABLE {schema}.running ADD of_a_test integer;"),
    ];

    /// A schema that was made by the first step, and a session that has read `running` in a transaction that goes on.
    struct Scene {
        url: String,
        schema: String,
        report: PgConnection,
        watcher: PgConnection,
    }

    impl Scene {
        async fn new() -> Self {
            let url = postgres_support::server_url().await;
            let schema = postgres_support::unique_name("queuert_test");
            let mut report = PgConnection::connect(&url).await.unwrap();
            let watcher = PgConnection::connect(&url).await.unwrap();
            apply(&mut report, &schema, STEPS, LOCK_PATIENCE).await.unwrap();
            let begin = format!(
                "SET application_name = 'a long report'; BEGIN; SELECT count(*) FROM {}.running",
                quote(&schema)
            );
            run(&mut report, &begin).await;
            Self {
                url,
                schema,
                report,
                watcher,
            }
        }

        async fn connection(&self) -> PgConnection {
            PgConnection::connect(&self.url).await.unwrap()
        }

        /// Begins to apply these steps, on another connection.
        async fn migrate(&self, steps: &'static [Step]) -> JoinHandle<Result<(), StateError>> {
            let (mut own, schema) = (self.connection().await, self.schema.clone());
            tokio::spawn(async move { apply(&mut own, &schema, steps, LOCK_PATIENCE).await })
        }

        /// Waits until a session waits for `running`, and for as long as `also` says.
        async fn until_it_waits(&mut self, migrating: &JoinHandle<Result<(), StateError>>, also: &str) {
            let waits = format!(
                "SELECT count(*) FROM pg_locks WHERE relation = '{}.running'::regclass AND NOT granted AND {also}",
                quote(&self.schema)
            );
            while number(&mut self.watcher, &waits).await == 0 {
                assert!(!migrating.is_finished(), "the report still holds its lock");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }

        async fn version(&mut self) -> u32 {
            version_of(&mut self.watcher, &self.schema).await.unwrap().unwrap()
        }

        async fn drop_schema(mut self) {
            let drop = format!(
                "SET client_min_messages = warning; DROP SCHEMA {} CASCADE",
                quote(&self.schema)
            );
            run(&mut self.watcher, &drop).await;
        }
    }

    async fn run(connection: &mut PgConnection, text: &str) {
        sqlx::raw_sql(AssertSqlSafe(text.to_owned()))
            .execute(connection)
            .await
            .unwrap();
    }

    async fn number(connection: &mut PgConnection, text: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(text.to_owned()))
            .fetch_one(connection)
            .await
            .unwrap()
    }

    /// The error for a lock that is never released names the session that holds it. Nothing of the step is left behind.
    #[tokio::test]
    async fn the_sessions_that_hold_the_lock_are_named() {
        let mut scene = Scene::new().await;
        let mut own = scene.connection().await;
        let pid = number(&mut scene.report, "SELECT pg_backend_pid()::bigint").await;
        let refused = apply(&mut own, &scene.schema, &MORE, Duration::ZERO).await.unwrap_err();
        let version = scene.version().await;
        run(&mut scene.report, "COMMIT").await;
        let applied = apply(&mut own, &scene.schema, &MORE, LOCK_PATIENCE).await;
        let last = scene.version().await;
        scene.drop_schema().await;
        assert_eq!(refused.kind(), StateErrorKind::Transient);
        let text = refused.to_string();
        assert!(
            text.contains(&format!("the sessions {pid} (a long report) kept")),
            "{text}"
        );
        assert_eq!(version, 2);
        applied.unwrap();
        assert_eq!(last, 3);
    }

    /// A step that has to wait for a lock waits for a bounded time and is tried again: statements of other sessions that
    /// came behind it go on, although the transaction that it waits for does not end.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_step_that_waits_for_a_lock_holds_up_no_other_session() {
        let mut scene = Scene::new().await;
        let mut other = scene.connection().await;
        let migrating = scene.migrate(&MORE).await;
        let read = format!("SELECT count(*) FROM {}.running", quote(&scene.schema));
        for _ in 0..3 {
            scene.until_it_waits(&migrating, "true").await;
            run(&mut other, &read).await;
            assert!(!migrating.is_finished(), "the report still holds its lock");
        }
        run(&mut scene.report, "COMMIT").await;
        migrating.await.unwrap().unwrap();
        scene.drop_schema().await;
    }

    /// Each step is committed by itself: while one waits for a lock, no table of an earlier one is locked, and starts go on.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_start_goes_through_while_a_later_step_waits() {
        let mut scene = Scene::new().await;
        let mut starter = scene.connection().await;
        let migrating = scene.migrate(&MORE).await;
        // It waits for no lock, so it fails if any of its tables is locked.
        run(&mut starter, "SET lock_timeout = '1ms'").await;
        for chain in 1..=3 {
            scene.until_it_waits(&migrating, "true").await;
            let start = "INSERT INTO {schema}.key_lock (type_id, key) VALUES (1, '{chain}'); \
                 INSERT INTO {schema}.open_key (created_at, type_id, chain_id, key) \
                   VALUES (5, 1, lpad('{chain}', 32, '0')::uuid, '{chain}'); \
                 SELECT count(*) FROM {schema}.blocker; \
                 INSERT INTO {schema}.ready (id, rank, scheduled_at, type_id, attempt, claims, priority, awaited) \
                   VALUES (lpad('{chain}', 32, '0')::uuid, 5, 5, 1, 0, 0, 0, false)";
            let start = start.replace("{schema}", &quote(&scene.schema));
            run(&mut starter, &start.replace("{chain}", &chain.to_string())).await;
        }
        assert!(!migrating.is_finished(), "the report still holds its lock");
        assert_eq!(scene.version().await, 2, "the step before is committed");
        run(&mut scene.report, "COMMIT").await;
        migrating.await.unwrap().unwrap();
        scene.drop_schema().await;
    }

    /// The server cancels an autovacuum that is in the way of a lock only after a session has waited for
    /// `deadlock_timeout`. So some of the tries wait for longer than that.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn some_tries_outlast_the_deadlock_timeout() {
        let mut scene = Scene::new().await;
        let migrating = scene.migrate(&MORE).await;
        let long = "clock_timestamp() - waitstart > current_setting('deadlock_timeout')::interval";
        scene.until_it_waits(&migrating, long).await;
        run(&mut scene.report, "COMMIT").await;
        migrating.await.unwrap().unwrap();
        scene.drop_schema().await;
    }

    /// A process that is frozen in the middle of a step has a session that the server ends. The step asks for the settings that
    /// hold in its transaction.
    #[tokio::test]
    async fn a_step_has_a_limit_for_its_idle_time() {
        const ASKING: [Step; 2] = [
            STEPS[0],
            (
                "ask",
                "CREATE TABLE {schema}.of_a_test AS \
                 SELECT current_setting('idle_in_transaction_session_timeout') AS idle;",
            ),
        ];
        for (before, expected) in [("0", "5s"), ("1min", "5s"), ("700ms", "700ms")] {
            let mut scene = Scene::new().await;
            run(&mut scene.report, "COMMIT").await;
            let mut own = scene.connection().await;
            let set = format!("SET idle_in_transaction_session_timeout = '{before}'");
            run(&mut own, &set).await;
            apply(&mut own, &scene.schema, &ASKING, LOCK_PATIENCE).await.unwrap();
            let idle = format!("SELECT idle FROM {}.of_a_test", quote(&scene.schema));
            let idle: String = sqlx::query_scalar(AssertSqlSafe(idle))
                .fetch_one(&mut scene.watcher)
                .await
                .unwrap();
            assert_eq!(idle, expected);
            scene.drop_schema().await;
        }
    }

    /// Many processes apply several steps at once: each step is applied once.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn several_steps_are_applied_once_each_by_processes_that_start_together() {
        let mut scene = Scene::new().await;
        run(&mut scene.report, "COMMIT").await;
        let mut migrating = Vec::new();
        for _ in 0..8 {
            migrating.push(scene.migrate(&MORE).await);
        }
        for one in migrating {
            one.await.unwrap().unwrap();
        }
        let ledger = format!("SELECT count(*) FROM {}.migration", quote(&scene.schema));
        assert_eq!(number(&mut scene.watcher, &ledger).await, 3);
        // A program that knows fewer steps than were applied stays away.
        let mut older = scene.connection().await;
        let refused = apply(&mut older, &scene.schema, STEPS, LOCK_PATIENCE)
            .await
            .unwrap_err();
        assert!(refused.to_string().contains("is of version 3"), "{refused}");
        scene.drop_schema().await;
    }
}
