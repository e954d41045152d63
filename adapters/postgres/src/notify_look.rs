//! The statement by which one process looks for all: for due jobs of all types, and for processes that have died.

use std::time::Duration;

use queuert::TypeName;
use sqlx::{AssertSqlSafe, PgConnection, Row, SqlSafeStr, SqlStr};

use crate::core::{NOW, micros, quote};
use crate::notify_payload::{Ticket, looked};
use crate::presence::STARTED;
use crate::presence_others::Found;

/// So many due jobs of a type are counted. More than the idle workers of a fleet are not needed.
const MOST_COUNTED: i64 = 256;

/// So many processes whose locks are free are announced.
const MOST_MISSED: i64 = 100;

/// $1 the channel, or null if no other process is to know, $2 and $5 the announcement before and after the time that the look
/// took, $3 the key of this process, or null if it does not look for dead ones, $4 how many microseconds before its time a job
/// counts as due: a worker that claims too early is told when to come back.
///
/// A row per type with its number of jobs; a row per process with its last sign of life and whether its lock is free, which
/// is taken for no longer than this takes; and one row, the last, with the microseconds and whether some lease has expired. Its commit need not wait for the
/// disk: nothing is written but the announcement. That names the processes whose locks are free, for those that run their
/// types and do not look now.
const LOOK: &str = "WITH due AS MATERIALIZED (SELECT t.name, r.jobs + l.jobs AS jobs FROM {schema}.job_type AS t \
     CROSS JOIN LATERAL (SELECT count(*) AS jobs FROM (SELECT FROM {schema}.ready AS r WHERE r.type_id = t.id \
     ORDER BY r.rank, r.id LIMIT {most}) AS x) AS r \
     CROSS JOIN LATERAL (SELECT count(*) AS jobs FROM (SELECT FROM {schema}.later AS l WHERE l.type_id = t.id \
     AND l.scheduled_at <= {now} + $4::bigint ORDER BY l.scheduled_at LIMIT {most}) AS x) AS l), \
     others AS MATERIALIZED (SELECT p.key, p.renewed_at, pg_try_advisory_xact_lock(p.key) AS is_free \
     FROM {schema}.process AS p WHERE p.key <> $3::bigint AND p.registered_at > {started}) \
     SELECT d.name, d.jobs, NULL::bigint, NULL::boolean, NULL::boolean FROM due AS d WHERE d.jobs > 0 \
     UNION ALL SELECT NULL, o.key, o.renewed_at, o.is_free, NULL FROM others AS o \
     UNION ALL SELECT NULL, t.took, NULL, CASE WHEN $1::text IS NOT NULL \
     THEN set_config('synchronous_commit', 'off', true) IS NULL OR pg_notify($1::text, $2::text || t.took || $5::text \
     || (SELECT coalesce(string_agg('M' || m.key || ':', ''), '') FROM (SELECT o.key FROM others AS o WHERE o.is_free \
     LIMIT {most_missed}) AS m)) IS NULL END, \
     EXISTS (SELECT FROM {schema}.running AS r WHERE r.leased_until <= {now}) FROM (SELECT (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint AS took OFFSET 0) AS t";

/// How a process looks at the store of a schema.
#[derive(Debug)]
pub(crate) struct Look {
    text: SqlStr,
    early: Duration,
}

/// What a look has found.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    /// Types with jobs that are due, or will be before the next look, and how many there are at least.
    pub(crate) due: Vec<(TypeName, usize)>,
    /// The other processes, if the look was for them too.
    pub(crate) others: Option<Vec<Found>>,
    /// How long it took the server.
    pub(crate) took: Duration,
    /// Whether some lease has expired.
    pub(crate) expired: bool,
}

impl Look {
    pub(crate) fn new(schema: &str, early: Duration) -> Self {
        let text = LOOK
            .replace("{now}", NOW)
            .replace("{started}", STARTED)
            .replace("{most}", &MOST_COUNTED.to_string())
            .replace("{most_missed}", &MOST_MISSED.to_string());
        // The name comes last, because it may look like anything.
        let text = text.replace("{schema}", &quote(schema));
        Self {
            text: AssertSqlSafe(text).into_sql_str(),
            early,
        }
    }

    pub(crate) async fn run(
        &self,
        connection: &mut PgConnection,
        channel: Option<String>,
        ticket: Ticket,
        process: Option<i64>,
        more: &str,
    ) -> Result<Looked, sqlx::Error> {
        let (head, tail) = looked(ticket, process.is_some());
        // Nothing that a pooler in transaction mode would have to remember.
        let look = sqlx::query(self.text.clone())
            .persistent(false)
            .bind(channel)
            .bind(head)
            .bind(process)
            .bind(micros(self.early))
            .bind(format!("{tail}{more}"));
        let mut looked = Looked {
            others: process.map(|_| Vec::new()),
            ..Looked::default()
        };
        for row in look.fetch_all(connection).await? {
            let (name, number): (Option<String>, i64) = (row.try_get(0)?, row.try_get(1)?);
            let renewed_at: Option<i64> = row.try_get(2)?;
            match (name, renewed_at) {
                (Some(name), _) => {
                    let jobs = usize::try_from(number).unwrap_or(1);
                    looked.due.push((TypeName::from(name), jobs));
                }
                (None, Some(renewed_at)) => looked.others.get_or_insert_default().push(Found {
                    key: number,
                    renewed_at,
                    is_free: row.try_get(3)?,
                }),
                (None, None) => {
                    looked.took = Duration::from_micros(u64::try_from(number).unwrap_or(0));
                    looked.expired = row.try_get(4)?;
                }
            }
        }
        Ok(looked)
    }
}
