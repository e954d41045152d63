//! The statement that takes jobs.

use crate::core::CLOCK;
use crate::lately::Lately;
use crate::settle_statement::PATIENCE;

/// What becomes of a job that another transaction has locked, most of the time because it takes the job too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Taking {
    /// It is passed over. Each row is locked before it is taken, which costs as much as taking it.
    Skip,
    /// It is waited for, and for no longer than [`PATIENCE`], by when another claim is over: then the statement fails. What
    /// somebody else has taken meanwhile is missing. Whoever keeps a job locked for longer costs one claim in many that
    /// much, see [`Rivals`].
    Hope,
}

/// From how many jobs on a claim is hopeful. Below that a lock for each costs little, and those who want a few jobs are
/// many who want the same ones.
pub(crate) const MANY: usize = 100;

/// Whether others were in the way of one of the last claims.
pub(crate) type Rivals = Lately<64>;

/// Of a job that is taken, `j`, what the caller does not know.
const JOB: &str = "j.id, j.type_id, j.chain_id, j.chain_type_id, j.chain_index, j.input, j.priority, j.max_attempts, \
     j.created_at, j.dedup_key, j.trace_context, j.blockers";

/// The same with the rest of what is answered of it, in the order in which it is read.
const TAKEN: &str = "c.id, c.type_id, c.chain_id, c.chain_type_id, c.chain_index, c.input, c.priority, c.max_attempts, \
     c.created_at, c.dedup_key, c.trace_context, c.blockers, c.attempt, c.claims, c.scheduled_at, c.rank";

/// How many columns describe a job, with those of its failure. What is the same for all comes after them.
pub(crate) const JOB_COLUMNS: usize = 19;

/// The claim: one ordered, limited branch per type, merged as far as rows are needed. Limits of branches are literals,
/// because a plan for any limit would sort the backlog. If a job has become due that still lies apart, nothing is taken,
/// unless told so ($6): it must be moved over first, or the order would be wrong.
///
/// $1 types, $2 how many, $3 leases, $4 worker, $5 fence, $7 and $8 the rank and the time before which nothing is looked
/// for (see `horizon`). A row per job; and one row, the last, with the time, when the next job is due that lies apart, how
/// many rows there were if fewer than asked for were taken, and how many index entries were read, of jobs that are ready
/// and of those that lie apart.
///
/// Jobs are looked up one by one, whatever the server believes the tables hold: a plan that was made when they looked empty
/// would read all of them for each.
///
/// The server counts entries per session, so they are counted before and after: the first branch begins when the clock has
/// been read, and the last row is made when all others have been. The clock also brings the timeout into force.
pub(crate) fn statement(types: usize, reach: usize, taking: Taking) -> String {
    let branches: Vec<String> = (1..=types)
        .map(|place| {
            let from = match place {
                1 => "(SELECT CASE WHEN clock.entries >= 0 THEN $7::bigint END FROM clock)",
                _ => "$7::bigint",
            };
            format!(
                "(SELECT r.ctid AS tid, r.rank, r.id FROM {{schema}}.ready AS r WHERE r.type_id = ($1::integer[])[{place}] \
                 AND r.rank >= {from} ORDER BY r.rank, r.id LIMIT {reach})"
            )
        })
        .collect();
    let branches = branches.join(" UNION ALL ");
    let (timeout, rows) = match taking {
        Taking::Skip => (
            "''".to_owned(),
            "SELECT l.tid FROM m CROSS JOIN LATERAL (\
             SELECT r.ctid AS tid FROM {schema}.ready AS r WHERE r.ctid = m.tid FOR UPDATE SKIP LOCKED) AS l",
        ),
        Taking::Hope => (
            format!("set_config('lock_timeout', '{}ms', true)", PATIENCE.as_millis()),
            "SELECT m.tid FROM m",
        ),
    };
    let lease = match types {
        1 => "($3::bigint[])[1]",
        _ => "($3::bigint[])[array_position($1::integer[], j.type_id)]",
    };
    let none = "NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint";
    let no_job = ["NULL"; JOB_COLUMNS].join(", ");
    format!(
        // A claim that is forgotten in a crash of the server is a job that is ready again, and the fence refuses the
        // old attempt: no reason to wait for the disk.
        "WITH clock AS MATERIALIZED (\
         SELECT {{now}} AS now, set_config('synchronous_commit', 'off', true) AS quick, {timeout} AS timeout, \
         pg_stat_get_xact_tuples_returned(E'{{schema_text}}.ready_claim'::regclass) AS entries, \
         pg_stat_get_xact_tuples_returned(E'{{schema_text}}.later_due'::regclass) AS entries_apart), \
         ahead AS MATERIALIZED (SELECT min(x.at) AS at FROM clock CROSS JOIN unnest($1::integer[]) AS t(id) \
         CROSS JOIN LATERAL (SELECT l.scheduled_at AS at FROM {{schema}}.later AS l WHERE l.type_id = t.id \
         AND l.scheduled_at >= $8::bigint ORDER BY l.scheduled_at LIMIT 1) AS x), \
         m AS MATERIALIZED (SELECT b.tid FROM ({branches}) AS b ORDER BY b.rank, b.id LIMIT {reach}), \
         d AS (DELETE FROM {{schema}}.ready WHERE ctid = ANY (ARRAY({rows} \
         WHERE $6::boolean OR coalesce((SELECT at FROM ahead) > {CLOCK}, true) LIMIT $2::bigint)) RETURNING *), \
         c AS MATERIALIZED (SELECT {JOB}, d.attempt + 1 AS attempt, d.claims + 1 AS claims, d.scheduled_at, d.rank, \
         d.awaited, d.settled_fence, j.keyed, j.chain_created_at \
         FROM d CROSS JOIN LATERAL (SELECT * FROM {{schema}}.job AS j WHERE j.id = d.id OFFSET 0) AS j), \
         r AS (INSERT INTO {{schema}}.running (id, leased_until, scheduled_at, started_at, type_id, attempt, claims, \
         priority, awaited, fence, owner, settled_fence, keyed, chain_type_id, chain_created_at) \
         SELECT j.id, {CLOCK} + least({lease}, 9223372036854775807 - {CLOCK}), j.scheduled_at, {CLOCK}, j.type_id, j.attempt, \
         j.claims, j.priority, j.awaited, $5::uuid, $4::text, j.settled_fence, j.keyed, j.chain_type_id, \
         j.chain_created_at FROM c AS j) \
         SELECT {TAKEN}, NULL::integer, NULL::bigint, NULL::text, {none} FROM c WHERE c.claims = 1 \
         UNION ALL SELECT {TAKEN}, f.attempt, f.at, f.message, {none} FROM c LEFT JOIN LATERAL (\
         SELECT * FROM {{schema}}.failure AS f WHERE f.id = c.id OFFSET 0) AS f ON true WHERE c.claims > 1 \
         UNION ALL SELECT {no_job}, clock.now, ahead.at, CASE WHEN (SELECT count(*) FROM d) < $2::bigint \
         THEN (SELECT count(*) FROM m) END, \
         (SELECT pg_stat_get_xact_tuples_returned(E'{{schema_text}}.ready_claim'::regclass)) - clock.entries, \
         (SELECT pg_stat_get_xact_tuples_returned(E'{{schema_text}}.later_due'::regclass)) - clock.entries_apart \
         FROM clock CROSS JOIN ahead"
    )
}
