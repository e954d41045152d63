//! Rows that the server makes by itself, in the adapter's own tables: a million of them in seconds. What is measured on
//! them reads some back through the adapter, so rows that it would not understand are noticed.

use queuert::adapter::StateAdapter;
use queuert::{ChainId, JobStatus};
use queuert_postgres::PostgresState;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use uuid::Uuid;

use crate::measure::BoxError;

/// Where the rows are made.
pub(crate) struct Maker<'a> {
    pub(crate) connection: &'a mut PgConnection,
    pub(crate) schema: &'a str,
}

impl Maker<'_> {
    async fn run(&mut self, text: &str) -> Result<(), BoxError> {
        let text = text.replace("{schema}", self.schema);
        sqlx::raw_sql(AssertSqlSafe(text))
            .execute(&mut *self.connection)
            .await?;
        Ok(())
    }

    pub(crate) async fn clear(&mut self) -> Result<(), BoxError> {
        self.run("TRUNCATE {schema}.job, {schema}.ready; ANALYZE {schema}.job, {schema}.ready")
            .await
    }

    /// As autovacuum would by and by, but not in the middle of what is measured.
    pub(crate) async fn vacuum(&mut self) -> Result<(), BoxError> {
        for table in ["job", "ready", "later", "running", "result"] {
            self.run(&format!("VACUUM (ANALYZE) {{schema}}.{table}")).await?;
        }
        Ok(())
    }

    /// Writes jobs, and what `rest` makes of the rows `new(id, type_id, at)`. The ids grow, as the library's do.
    async fn write(&mut self, type_name: &str, jobs: usize, rest: &str) -> Result<(), BoxError> {
        let input = r#"{"number":1,"address":"member.000001@mail.example.com","template":"welcome-to-the-service","locale":"en-GB","note":"the third of five letters"}"#;
        let text = format!(
            "INSERT INTO {{schema}}.job_type (id, name) SELECT \
               ('x' || left(encode(sha256(convert_to(n, 'UTF8')), 'hex'), 8))::bit(32)::integer, n \
               FROM (SELECT '{type_name}' AS n) AS t ON CONFLICT DO NOTHING; \
             WITH new AS MATERIALIZED (SELECT \
               (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7' || \
                substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid AS id, t.id AS type_id, \
               (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 1000000 AS at \
               FROM generate_series(1, {jobs}), {{schema}}.job_type AS t WHERE t.name = '{type_name}'), \
             job AS (INSERT INTO {{schema}}.job (id, chain_id, chain_index, type_id, chain_type_id, chain_created_at, \
               created_at, blockers, priority, keyed, input) \
               SELECT id, id, 0, type_id, type_id, at, at, 0, 0, false, '{input}' FROM new) {rest}; \
             ANALYZE {{schema}}.job, {{schema}}.ready, {{schema}}.later, {{schema}}.running, {{schema}}.result"
        );
        self.run(&text).await
    }

    pub(crate) async fn ready(&mut self, type_name: &str, jobs: usize) -> Result<(), BoxError> {
        let rest = "INSERT INTO {schema}.ready (id, rank, scheduled_at, type_id, attempt, claims, priority, awaited) \
                    SELECT id, at, at, type_id, 0, 0, 0, false FROM new";
        self.write(type_name, jobs, rest).await
    }

    pub(crate) async fn later(&mut self, type_name: &str, jobs: usize) -> Result<(), BoxError> {
        let rest = "INSERT INTO {schema}.later (id, scheduled_at, type_id, attempt, claims, priority, awaited) \
                    SELECT id, at + 86400000000, type_id, 0, 0, 0, false FROM new";
        self.write(type_name, jobs, rest).await
    }

    pub(crate) async fn finished(&mut self, type_name: &str, jobs: usize) -> Result<(), BoxError> {
        let output = r#"{"message":"message-000000000001","accepted":true}"#;
        let rest = format!(
            "INSERT INTO {{schema}}.result (id, ended_at, chain_created_at, scheduled_at, chain_type_id, attempt, \
             claims, final, output) SELECT id, at, at, at, type_id, 1, 1, true, '{output}' FROM new"
        );
        self.write(type_name, jobs, &rest).await
    }

    pub(crate) async fn running(&mut self, type_name: &str, jobs: usize) -> Result<(), BoxError> {
        let rest = "INSERT INTO {schema}.running (id, leased_until, scheduled_at, started_at, type_id, attempt, claims, \
                    priority, awaited, fence, owner, keyed, chain_type_id, chain_created_at) \
                    SELECT id, at + 86400000000, at, at, type_id, 1, 1, 0, false, gen_random_uuid(), 'another-worker', \
                    false, type_id, at FROM new";
        self.write(type_name, jobs, rest).await
    }

    /// Reads some finished ones back through the adapter.
    pub(crate) async fn check_finished(&mut self, state: &PostgresState) -> Result<(), BoxError> {
        let text = format!("SELECT /* observer */ id FROM {}.result LIMIT 100", self.schema);
        let rows = sqlx::raw_sql(AssertSqlSafe(text))
            .fetch_all(&mut *self.connection)
            .await?;
        let ids: Vec<Uuid> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let ids: Vec<ChainId> = ids.into_iter().map(ChainId::from_uuid).collect();
        let chains = state.get_chains(None, &ids).await?;
        let whole = |chain: &&queuert::ChainRecord| chain.status == JobStatus::Completed && chain.output.is_some();
        if ids.is_empty() || chains.iter().filter(whole).count() != ids.len() {
            return Err("the adapter does not see the finished jobs that were made".into());
        }
        Ok(())
    }

    /// How many jobs are finished.
    pub(crate) async fn count_finished(&mut self) -> Result<usize, BoxError> {
        let text = format!("SELECT /* observer */ count(*) FROM {}.result WHERE final", self.schema);
        let count: i64 = sqlx::query_scalar(AssertSqlSafe(text))
            .fetch_one(&mut *self.connection)
            .await?;
        Ok(usize::try_from(count)?)
    }
}
