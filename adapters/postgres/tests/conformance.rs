//! The contract of the adapters, kept by those of Postgres. Every case has a schema of its own.

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::try_join_all;
use queuert::JobId;
use queuert::adapter::{NotifyAdapter, StateAdapter};
use queuert_conformance::{Capabilities, PairFixture, StateFixture, state_conformance};
use queuert_postgres::{PostgresNotify, PostgresState};
use sqlx::PgConnection;
use sqlx::postgres::PgPoolOptions;
use support::Schema;

const AGEING_STEP: Duration = Duration::from_millis(200);

/// What ends a transaction without the library. Postgres ends none by itself.
const ENDS: [&str; 4] = ["ROLLBACK", "COMMIT", "ROLLBACK; BEGIN", "COMMIT; BEGIN"];

/// Stores in schemas of their own.
struct Postgres {
    /// Whether connections are the application's, on which nothing may be kept.
    from_pool: bool,
    /// How many connections are open before a case begins. Leases of a tenth of a second are shorter than it takes to
    /// open one on a busy machine.
    open: usize,
    schemas: Mutex<Vec<Arc<Schema>>>,
}

impl Postgres {
    fn new() -> Self {
        Self {
            from_pool: false,
            open: 0,
            schemas: Mutex::default(),
        }
    }

    fn from_pool() -> Self {
        Self {
            from_pool: true,
            ..Self::new()
        }
    }

    fn with_open_connections() -> Self {
        Self { open: 6, ..Self::new() }
    }

    /// The schema of the store that was made last.
    fn schema(&self) -> Arc<Schema> {
        let schemas = self.schemas.lock().expect("no test panics with the lock");
        Arc::clone(schemas.last().expect("a store has been made"))
    }
}

impl StateFixture for Postgres {
    type State = PostgresState;

    async fn state(&self) -> PostgresState {
        let schema = Arc::new(Schema::new());
        let options = schema.options().ageing_step(AGEING_STEP);
        let state = match self.from_pool {
            false => options.connect_with(schema.connect_options()).await,
            true => {
                let pool = PgPoolOptions::new().max_connections(16);
                options
                    .from_pool(pool.connect_lazy_with(schema.connect_options()))
                    .await
            }
        };
        let state = state.expect("the test server can be used");
        let opening = (0..self.open).map(|_| state.pool().acquire());
        let opened = try_join_all(opening).await.expect("the test server has connections");
        drop(opened);
        let mut transaction = state.begin().await.expect("a transaction can be begun");
        schema
            .run(&mut transaction, "CREATE TABLE {schema}.marker (name text PRIMARY KEY)")
            .await;
        state.commit(transaction).await.expect("the user's table can be made");
        self.schemas.lock().expect("no test panics with the lock").push(schema);
        state
    }

    async fn elapse(&self, _: &PostgresState, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn capabilities(&self) -> Capabilities {
        let all = Capabilities::none()
            .concurrent_writers()
            .poison()
            .markers()
            .ends(ENDS.len());
        // Behind a pool of the application's there may be a pooler, whose sessions outlive a process.
        match self.from_pool {
            false => all.owners(),
            true => all,
        }
    }

    fn ageing_step(&self) -> Duration {
        AGEING_STEP
    }

    /// A busy server takes its time over the round trips of a verb that does not wait.
    fn patience(&self) -> Duration {
        Duration::from_millis(300)
    }

    async fn twin(&self, _: &PostgresState) -> PostgresState {
        let schema = self.schema();
        let options = schema.options().ageing_step(AGEING_STEP);
        let twin = options.connect_with(schema.connect_options()).await;
        twin.expect("the test server can be used")
    }

    /// Its sessions end, as they do with a process; `tests/torture` kills real ones.
    async fn kill(&self, twin: PostgresState) {
        let schema = self.schema();
        let mut connection = schema.connection().await;
        let select = format!(
            "SELECT count(*) FROM {0}.running AS r \
             WHERE NOT EXISTS (SELECT 1 FROM {0}.process AS p WHERE r.owner = ANY (p.workers))",
            schema.name()
        );
        // It is known a moment after its first claim.
        let known = async {
            loop {
                let unknown: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(select.clone()))
                    .fetch_one(&mut connection)
                    .await
                    .expect("the table can be read");
                if unknown == 0 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), known)
            .await
            .expect("a process that claims jobs is known");
        twin.close().await;
    }

    /// Any failed statement makes Postgres answer the commit with a rollback.
    async fn poison(&self, connection: &mut PgConnection) {
        let failed = sqlx::raw_sql("SELECT 1 / 0").execute(connection).await;
        assert!(failed.is_err(), "a division by zero fails");
    }

    fn damages(&self) -> &'static [&'static str] {
        &[
            "job.chain_type_id = 7",
            "job.chain_type_id = other",
            "job.type_id = 7",
            "job.type_id = other",
            "job.max_attempts = -1",
            "job.blockers = -1",
            "state.attempt = -5",
            "state.attempt = -2147483648",
            "state.claims = -5",
        ]
    }

    fn lease_damages(&self) -> &'static [&'static str] {
        &["running.type_id = 7", "running.type_id = other"]
    }

    fn state_damages(&self) -> &'static [&'static str] {
        &["state is deleted"]
    }

    /// Columns of the job itself are in `job`; what changes is in the table of its state, whichever that is. `other` is
    /// another type, of which there are no jobs.
    async fn damage(&self, _: &PostgresState, job: JobId, how: &str) {
        let schema = self.schema();
        let mut connection = schema.connection().await;
        if how == "state is deleted" {
            for table in ["ready", "later", "waiting", "running"] {
                let delete = format!("DELETE FROM {{schema}}.{table} WHERE id = '{job}'");
                schema.run(&mut connection, &delete).await;
            }
            return;
        }
        let (table, value) = how.split_once('.').expect("a table and a value");
        let tables: &[&str] = match table {
            "state" => &["ready", "later", "waiting", "running"],
            "running" => &["running"],
            _ => &["job"],
        };
        schema.run(&mut connection, &support::add_types(&["other"])).await;
        let other = "(SELECT id FROM {schema}.job_type WHERE name = 'other')";
        let value = value.replace("other", other);
        for table in tables {
            let update = format!("UPDATE {{schema}}.{table} SET {value} WHERE id = '{job}'");
            schema.run(&mut connection, &update).await;
        }
    }

    async fn end_transaction(&self, connection: &mut PgConnection, way: usize) {
        sqlx::raw_sql(ENDS[way])
            .execute(connection)
            .await
            .expect("the statement ends the transaction");
    }

    async fn write_marker(&self, connection: &mut PgConnection, marker: &str) {
        let insert = format!("INSERT INTO {{schema}}.marker VALUES ('{marker}')");
        self.schema().run(connection, &insert).await;
    }

    async fn read_marker(&self, _: &PostgresState, marker: &str) -> bool {
        let schema = self.schema();
        let mut connection = schema.connection().await;
        let select = format!("SELECT name FROM {}.marker WHERE name = $1", schema.name());
        let found: Option<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(select))
            .bind(marker)
            .fetch_optional(&mut connection)
            .await
            .expect("a marker can be read");
        found.is_some()
    }
}

state_conformance!(Postgres::new());

/// The same on connections of the application's.
mod from_pool {
    use super::Postgres;

    queuert_conformance::state_conformance!(Postgres::from_pool());
}

/// The shipping client and workers, with hints through the database.
impl PairFixture for Postgres {
    async fn notify(&self) -> Arc<dyn NotifyAdapter> {
        let schema = self.schema();
        let pool = PgPoolOptions::new().max_connections(2);
        let pool = pool.connect_lazy_with(schema.connect_options());
        Arc::new(PostgresNotify::from_pool(pool, schema.name()))
    }
}

mod client {
    use super::Postgres;

    queuert_conformance::client_behaviour!(Postgres::new());
}

mod worker {
    use super::Postgres;

    queuert_conformance::worker_behaviour!(Postgres::with_open_connections());
}
