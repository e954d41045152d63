//! The statements whose text is always the same.

pub(crate) mod claim;
pub(crate) mod settle;

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::row::{CHAIN, FAILURE, JOB, LATEST, STATE};
use crate::sabotage::Bug;
use crate::store::{NOW, idle_until, quote};
use crate::transaction::in_transaction;
use crate::type_ids::KNOWN;

/// The statements, with the name of the schema in place.
#[derive(Debug)]
pub(crate) struct Statements {
    /// The time, and whether the transaction sees one moment for its whole life; the second in a transaction of the caller's,
    /// where it is an error if that has ended.
    pub(crate) now_and_frozen: SqlStr,
    pub(crate) now_and_frozen_within: SqlStr,
    /// $1 numbers, $2 names. Whether the database has these types; the second in a transaction of the caller's, where it is an
    /// error if that has ended.
    pub(crate) knows_types: SqlStr,
    pub(crate) knows_types_within: SqlStr,
    pub(crate) types_by_name: SqlStr,
    pub(crate) types_by_number: SqlStr,
    pub(crate) all_types: SqlStr,
    /// $1 jobs. A whole job per row, in the order given, and the time.
    pub(crate) jobs_by_id: SqlStr,
    /// The same in a transaction of the caller's, and an error if it has ended and jobs were found.
    pub(crate) jobs_by_id_within: SqlStr,
    /// $1 chains. A whole chain per row, in the order given.
    pub(crate) chains_by_id: SqlStr,
    /// $1 jobs. Their blocker chains, whole, in the declared order, each followed by the job.
    pub(crate) blockers_of: SqlStr,
    /// $1 jobs. How many edges to chains that have not completed each of them has, if any.
    pub(crate) open_blockers: SqlStr,
    /// $1 jobs, $2 positions, $3 chains.
    pub(crate) insert_blockers: SqlStr,
    /// $1 jobs. Status, fence and last fence of each, and whether its chain is awaited.
    pub(crate) standing: SqlStr,
    pub(crate) renew: SqlStr,
    /// $1 job, $2 fence. One row if the job is the caller's, whose transaction is to commit now.
    pub(crate) hold: SqlStr,
    /// $1 the end of a lease. For transactions that end an attempt in several statements.
    pub(crate) idle_until: SqlStr,
    pub(crate) promote: SqlStr,
    pub(crate) lock_keys: SqlStr,
    pub(crate) duplicates: SqlStr,
    pub(crate) take_keys: SqlStr,
    /// $1 chains.
    pub(crate) delete_keys: SqlStr,
    /// $1 chains.
    pub(crate) reopen_keys: SqlStr,
    pub(crate) taken_ids: SqlStr,
    pub(crate) insert_failures: SqlStr,
    pub(crate) insert_results: SqlStr,
    pub(crate) insert_stopped: SqlStr,
    pub(crate) insert_waiting: SqlStr,
    pub(crate) insert_later: SqlStr,
    pub(crate) insert_ready: SqlStr,
    pub(crate) insert_jobs: SqlStr,
    /// `0001_schema.sql` describes the functions.
    pub(crate) finish_one: SqlStr,
    pub(crate) finish_many: SqlStr,
    /// $1 jobs, with how many of their edges have been taken now. Those that have none left.
    pub(crate) unblock: SqlStr,
    /// $1 completed jobs. What their ends did to other jobs.
    pub(crate) recall: SqlStr,
    pub(crate) way: SqlStr,
    /// $1 chains. Each with a chain that it waits for, a row for each of these.
    pub(crate) way_edges: SqlStr,
    /// Before locks that may have to be let go again, afterwards, and to let them go.
    pub(crate) lock_savepoint: SqlStr,
    pub(crate) release_lock_savepoint: SqlStr,
    pub(crate) undo_lock_savepoint: SqlStr,
}

/// The latest job of chain `c.id`; null if there is no such chain.
pub(crate) const LATEST_ID: &str = "coalesce((SELECT n.id FROM {schema}.job AS n WHERE n.chain_id = c.id \
     AND n.chain_index > 0 ORDER BY n.chain_index DESC LIMIT 1), \
     (SELECT f.id FROM {schema}.job AS f WHERE f.id = c.id AND f.chain_index = 0))";

/// The chains for which chain `c.id` waits, or would wait if it were retried. Everything is looked up chain by chain, whatever
/// the planner believes that the tables hold.
const AHEAD: &str = "CROSS JOIN LATERAL (SELECT {latest_id} AS id OFFSET 0) AS l \
     CROSS JOIN LATERAL (SELECT 1 FROM {schema}.waiting AS w WHERE w.id = l.id \
     UNION ALL SELECT 1 FROM {schema}.stopped AS s WHERE s.id = l.id LIMIT 1) AS s \
     CROSS JOIN LATERAL (SELECT b.chain_id FROM {schema}.blocker AS b WHERE b.job_id = l.id OFFSET 0)";

fn now_and_frozen(now: &str) -> String {
    format!("SELECT {now}, current_setting('transaction_isolation') IN ('repeatable read', 'serializable')")
}

fn knows_types() -> String {
    KNOWN
        .replace("{numbers}", "$1::integer[]")
        .replace("{names}", "$2::text[]")
}

impl Statements {
    pub(crate) fn new(schema: &str) -> Self {
        let schema = quote(schema);
        let sql = |text: &str| {
            let text = text
                .replace("{now}", NOW)
                .replace("{latest_id}", LATEST_ID)
                .replace("{latest}", LATEST)
                .replace("{state}", STATE)
                .replace("{schema}", &schema);
            AssertSqlSafe(text).into_sql_str()
        };
        Self {
            now_and_frozen: sql(&now_and_frozen("{now}")),
            now_and_frozen_within: sql(&now_and_frozen(&in_transaction("{now}", "bigint"))),
            knows_types: sql(&format!("SELECT {}", knows_types())),
            knows_types_within: sql(&format!("SELECT {}", in_transaction(&knows_types(), "boolean"))),
            types_by_name: sql("SELECT id, name FROM {schema}.job_type WHERE name = ANY ($1::text[])"),
            types_by_number: sql("SELECT id, name FROM {schema}.job_type WHERE id = ANY ($1::integer[])"),
            all_types: sql(include_str!("all_types.sql")),
            // Jobs that have lost their state too, so that a person can look at them.
            jobs_by_id: sql(&format!(
                "SELECT {JOB}, {{now}} FROM unnest($1::uuid[]) WITH ORDINALITY AS u(id, place) \
                 JOIN {{schema}}.job AS j ON j.id = u.id LEFT JOIN {STATE} ON true {FAILURE} ORDER BY u.place"
            )),
            jobs_by_id_within: sql(&format!(
                "SELECT {JOB}, {} FROM unnest($1::uuid[]) WITH ORDINALITY AS u(id, place) \
                 JOIN {{schema}}.job AS j ON j.id = u.id LEFT JOIN {STATE} ON true {FAILURE} ORDER BY u.place",
                in_transaction("{now}", "bigint")
            )),
            chains_by_id: sql(&format!(
                "SELECT {CHAIN} FROM unnest($1::uuid[]) WITH ORDINALITY AS u(id, place) \
                 JOIN {{schema}}.job AS f ON f.id = u.id AND f.chain_index = 0 CROSS JOIN {LATEST} \
                 LEFT JOIN {STATE} ON true {FAILURE} ORDER BY u.place"
            )),
            blockers_of: sql(&format!(
                "SELECT {CHAIN}, b.job_id FROM {{schema}}.blocker AS b \
                 JOIN {{schema}}.job AS f ON f.id = b.chain_id AND f.chain_index = 0 CROSS JOIN {LATEST} \
                 CROSS JOIN {STATE} {FAILURE} WHERE b.job_id = ANY ($1::uuid[]) ORDER BY b.job_id, b.position"
            )),
            open_blockers: sql("SELECT b.job_id, count(*)::integer FROM {schema}.blocker AS b \
                 CROSS JOIN LATERAL (SELECT b.chain_id AS id) AS c WHERE b.job_id = ANY ($1::uuid[]) \
                 AND NOT EXISTS (SELECT 1 FROM {schema}.result AS r WHERE r.id = {latest_id} AND r.final) \
                 GROUP BY b.job_id"),
            insert_blockers: sql("INSERT INTO {schema}.blocker (job_id, position, chain_id) \
                 SELECT * FROM unnest($1::uuid[], $2::integer[], $3::uuid[])"),
            standing: sql(&format!(
                "SELECT j.id, s.status, s.fence, s.settled_fence, s.awaited FROM unnest($1::uuid[]) AS u(id) \
                 JOIN {{schema}}.job AS j ON j.id = u.id CROSS JOIN {STATE}"
            )),
            renew: sql(include_str!("renew.sql")),
            hold: sql(&format!(
                "SELECT {} FROM {{schema}}.running WHERE id = $1 AND {} FOR UPDATE",
                in_transaction(&idle_until("leased_until"), "text"),
                match Bug::Fencing.is_on() {
                    false => "fence = $2",
                    true => "$2::uuid IS NOT NULL",
                }
            )),
            idle_until: sql(&format!("SELECT {}", idle_until("$1::bigint"))),
            promote: sql(include_str!("promote.sql")),
            // The update changes nothing and writes nothing, but a row that is there already is locked for it. The answer
            // are the rows that were not there.
            lock_keys: sql("INSERT INTO {schema}.key_lock AS k (type_id, key) \
                 SELECT type_id, key FROM unnest($1::integer[], $2::text[]) AS u(type_id, key) ORDER BY 1, 2 \
                 ON CONFLICT (type_id, key) DO UPDATE SET key = excluded.key WHERE false RETURNING k.type_id, k.key"),
            duplicates: sql(include_str!("duplicates.sql")),
            take_keys: sql(&include_str!("take_keys.sql")
                .replace("{sabotaged}", if Bug::Deduplication.is_on() { "true" } else { "false" })),
            delete_keys: sql("DELETE FROM {schema}.open_key WHERE chain_id = ANY ($1::uuid[])"),
            reopen_keys: sql(include_str!("reopen_keys.sql")),
            taken_ids: sql("SELECT id FROM {schema}.job WHERE id = ANY ($1::uuid[])"),
            insert_failures: sql("INSERT INTO {schema}.failure AS e (id, attempt, at, message) \
                 SELECT * FROM unnest($1::uuid[], $2::integer[], $3::bigint[], $4::text[]) ON CONFLICT (id) \
                 DO UPDATE SET attempt = excluded.attempt, at = excluded.at, message = excluded.message"),
            insert_results: sql(
                "INSERT INTO {schema}.result (id, scheduled_at, attempt, claims, started_at, \
                 settled_fence, ended_at, chain_created_at, chain_type_id, final, completed_by, output) \
                 SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::integer[], $4::integer[], $5::bigint[], \
                 $6::uuid[], $7::bigint[], $8::bigint[], $9::integer[], $10::boolean[], $11::text[], $12::text[])",
            ),
            insert_stopped: sql(
                "INSERT INTO {schema}.stopped (id, scheduled_at, attempt, claims, started_at, \
                 settled_fence, ended_at, chain_created_at, chain_type_id, awaited, status, type_id) \
                 SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::integer[], $4::integer[], $5::bigint[], \
                 $6::uuid[], $7::bigint[], $8::bigint[], $9::integer[], $10::boolean[], $11::smallint[], $12::integer[])",
            ),
            insert_waiting: sql(
                "INSERT INTO {schema}.waiting (id, scheduled_at, attempt, claims, started_at, \
                 settled_fence, type_id, priority, awaited, remaining) \
                 SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::integer[], $4::integer[], $5::bigint[], \
                 $6::uuid[], $7::integer[], $8::smallint[], $9::boolean[], $10::integer[])",
            ),
            insert_later: sql(
                "INSERT INTO {schema}.later (id, scheduled_at, attempt, claims, started_at, \
                 settled_fence, type_id, priority, awaited, rank) \
                 SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::integer[], $4::integer[], $5::bigint[], \
                 $6::uuid[], $7::integer[], $8::smallint[], $9::boolean[], $10::bigint[])",
            ),
            insert_ready: sql(
                "INSERT INTO {schema}.ready (id, scheduled_at, attempt, claims, started_at, \
                 settled_fence, type_id, priority, awaited, rank) \
                 SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::integer[], $4::integer[], $5::bigint[], \
                 $6::uuid[], $7::integer[], $8::smallint[], $9::boolean[], $10::bigint[])",
            ),
            insert_jobs: sql(include_str!("insert_jobs.sql")),
            finish_one: sql(&format!(
                "SELECT {}",
                in_transaction("{schema}.finish_one($1, $2, $3, $4)", "boolean")
            )),
            finish_many: sql("SELECT * FROM {schema}.finish_many($1, $2, $3, $4, $5, $6)"),
            unblock: sql(include_str!("unblock.sql")),
            recall: sql(include_str!("recall.sql")),
            way: sql(&include_str!("way.sql").replace("{ahead}", AHEAD)),
            way_edges: sql(&format!(
                "SELECT c.id, b.chain_id FROM unnest($1::uuid[]) AS c(id) {AHEAD} AS b"
            )),
            lock_savepoint: sql("SAVEPOINT queuert_lock"),
            release_lock_savepoint: sql("RELEASE SAVEPOINT queuert_lock"),
            undo_lock_savepoint: sql("ROLLBACK TO SAVEPOINT queuert_lock"),
        }
    }
}
