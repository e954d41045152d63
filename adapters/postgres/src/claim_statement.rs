//! The statement that takes jobs.

use queuert::adapter::ClaimJobs;

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

/// Whether a claim looks at how many bytes the inputs of its jobs have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Weighing {
    /// Whatever they have.
    None,
    /// Jobs for which there are no bytes left ($10), beyond the first ($9), are put back as they were, by the same statement.
    Bytes,
}

impl Weighing {
    pub(crate) fn of(claim: &ClaimJobs) -> Self {
        match claim.admits_all() {
            true => Self::None,
            false => Self::Bytes,
        }
    }
}

/// The parts of the statement that weigh.
struct Scales {
    /// Further common table expressions, `g` among them, which puts jobs back.
    steps: String,
    /// The condition that a job of `c`, with this alias, is within the bytes.
    within: fn(&str) -> String,
    /// How many were put back.
    put_back: &'static str,
}

impl Scales {
    /// The sum is all that most claims need. The size of a text is known without its bytes. `outputs` is what a job of `c`
    /// with blockers counts for, besides its input.
    fn of(weighing: Weighing, outputs: &str) -> Self {
        let bytes = format!("octet_length(c.input) + CASE WHEN c.blockers > 0 THEN {outputs} ELSE 0 END");
        match weighing {
            Weighing::None => Self {
                steps: String::new(),
                within: |_| "true".to_owned(),
                put_back: "0::bigint",
            },
            Weighing::Bytes => Self {
                steps: format!(
                    "weight AS MATERIALIZED (\
                    SELECT coalesce(sum({bytes}), 0) <= $10::bigint AS fits FROM c), \
                    beyond AS MATERIALIZED (SELECT s.id FROM (\
                    SELECT c.id, row_number() OVER w AS place, sum({bytes}) OVER w AS bytes FROM c \
                    WINDOW w AS (ORDER BY c.rank, c.id ROWS UNBOUNDED PRECEDING)) AS s \
                    WHERE NOT (SELECT fits FROM weight) AND s.place > $9::bigint AND s.bytes > $10::bigint), \
                    g AS (INSERT INTO {{schema}}.ready SELECT d.* FROM d \
                    WHERE NOT (SELECT fits FROM weight) AND d.id IN (SELECT b.id FROM beyond AS b)), "
                ),
                within: |job| format!("((SELECT fits FROM weight) OR {job}.id NOT IN (SELECT b.id FROM beyond AS b))"),
                put_back: "(SELECT count(*) FROM beyond)",
            },
        }
    }
}

/// From how many jobs on a claim is hopeful. Below that a lock for each costs little, and those who want a few jobs are
/// many who want the same ones.
pub(crate) const MANY: usize = 100;

/// Up to how many types a claim has a branch for each. The server plans every branch, on every connection, and gives up on a
/// few thousand of them; a lazy merge of fewer reads less.
pub(crate) const MOST_BRANCHES: usize = 64;

/// Whether others were in the way of one of the last claims.
pub(crate) type Rivals = Lately<64>;

/// Of a job that is taken, `j`, what the caller does not know.
const JOB: &str = "j.id, j.type_id, j.chain_id, j.chain_type_id, j.chain_index, j.input, j.priority, j.max_attempts, \
     j.created_at, j.dedup_key, j.trace_context, j.blockers";

/// The same with the rest of what is answered of it, in the order in which it is read.
const TAKEN: &str = "c.id, c.type_id, c.chain_id, c.chain_type_id, c.chain_index, c.input, c.priority, c.max_attempts, \
     c.created_at, c.dedup_key, c.trace_context, c.blockers, c.attempt, c.claims, c.scheduled_at, c.rank, c.queue";

/// How many columns describe a job, with those of its failure. What is the same for all comes after them.
pub(crate) const JOB_COLUMNS: usize = 20;

/// Where the first look at the index begins: not before the entries that were read until then have been counted.
const COUNTED_FROM: &str = "(SELECT CASE WHEN clock.entries >= 0 THEN $7::bigint END FROM clock)";

/// The first jobs of all types: one ordered, limited branch per type, merged as far as rows are needed.
fn branches(types: usize, reach: usize) -> String {
    let branches: Vec<String> = (1..=types)
        .map(|place| {
            let from = match place {
                1 => COUNTED_FROM,
                _ => "$7::bigint",
            };
            format!(
                "(SELECT r.ctid AS tid, r.rank, r.id FROM {{schema}}.ready AS r WHERE r.type_id = ($1::integer[])[{place}] \
                 AND r.rank >= {from} ORDER BY r.rank, r.id LIMIT {reach})"
            )
        })
        .collect();
    let branches = branches.join(" UNION ALL ");
    format!("m AS MATERIALIZED (SELECT b.tid FROM ({branches}) AS b ORDER BY b.rank, b.id LIMIT {reach})")
}

/// The same for any number of types, in a text that does not depend on it.
///
/// The first job of each type is read. Of these, the `reach` smallest are of the only types that can have one of the `reach`
/// first jobs of all. A few jobs of each of these types are read (`near`), which gives a bound for the last of the first
/// jobs (`edge`), and of the types whose few jobs all lie before that bound the others up to the bound (`far`). With the
/// square root of `reach` for a few, no more than twice `reach` times that root are read, whatever the backlog is.
fn heads(reach: usize) -> String {
    let few = reach.isqrt().max(1);
    let (last, rest) = (reach.saturating_sub(1), reach - few);
    // The bound, or what is greater than anything.
    let edge = "(coalesce((SELECT e.rank FROM edge AS e), 9223372036854775807), \
                coalesce((SELECT e.id FROM edge AS e), 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid))";
    format!(
        "heads AS MATERIALIZED (SELECT t.id AS type_id, h.rank, h.id FROM unnest($1::integer[]) AS t(id) CROSS JOIN LATERAL (\
         SELECT r.rank, r.id FROM {{schema}}.ready AS r WHERE r.type_id = t.id AND r.rank >= {COUNTED_FROM} \
         ORDER BY r.rank, r.id LIMIT 1) AS h), \
         near AS MATERIALIZED (SELECT f.type_id, n.tid, n.rank, n.id, n.place FROM (\
         SELECT h.type_id FROM heads AS h ORDER BY h.rank, h.id LIMIT {reach}) AS f CROSS JOIN LATERAL (\
         SELECT r.ctid AS tid, r.rank, r.id, row_number() OVER (ORDER BY r.rank, r.id) AS place FROM {{schema}}.ready AS r \
         WHERE r.type_id = f.type_id AND r.rank >= $7::bigint ORDER BY r.rank, r.id LIMIT {few}) AS n), \
         edge AS MATERIALIZED (SELECT n.rank, n.id FROM near AS n ORDER BY n.rank, n.id OFFSET {last} LIMIT 1), \
         far AS MATERIALIZED (SELECT x.tid, x.rank, x.id FROM near AS n CROSS JOIN LATERAL (\
         SELECT r.ctid AS tid, r.rank, r.id FROM {{schema}}.ready AS r WHERE r.type_id = n.type_id \
         AND (r.rank, r.id) > (n.rank, n.id) AND (r.rank, r.id) <= {edge} ORDER BY r.rank, r.id LIMIT {rest}) AS x \
         WHERE n.place = {few} AND (n.rank, n.id) < {edge}), \
         m AS MATERIALIZED (SELECT b.tid FROM (SELECT n.tid, n.rank, n.id FROM near AS n UNION ALL \
         SELECT x.tid, x.rank, x.id FROM far AS x) AS b ORDER BY b.rank, b.id LIMIT {reach})"
    )
}

/// How many entries of the index a claim has to read that takes so many jobs, of those that the statement counts.
pub(crate) fn needed_entries(types: usize, taken: usize) -> usize {
    match types {
        ..=MOST_BRANCHES => taken + types,
        // The statement itself leaves out the jobs that it has looked at.
        _ => 0,
    }
}

/// The claim: the first jobs of all types together, see [`branches`] and [`heads`]. Their limits are literals,
/// because a plan for any limit would sort the backlog. If a job has become due that still lies apart, nothing is taken,
/// unless told so ($6): it must be moved over first, or the order would be wrong.
///
/// $1 types, in order of their numbers, $2 how many, $3 leases, $4 worker, $5 fence, $7 and $8 the rank and the time before which nothing is looked
/// for (see `horizon`). A row per job; and one row, the last, with the time, when the next job is due that lies apart, how
/// many rows there were if fewer than asked for were taken, how many index entries were read, of jobs that are ready
/// and of those that lie apart, and the ids of rows that had no job, if there were any: they are taken away like the others,
/// because to put them back would cost every claim, and are told of, see [`LostJobs`](crate::lost_jobs::LostJobs).
///
/// If it weighs (see [`Weighing`]), $9 how many jobs are taken whatever their inputs weigh, and $10 how many bytes the inputs of
/// all jobs may have otherwise, with those of their blockers' outputs, for which a job with blockers counts by its type ($11).
/// A job beyond that is put back with a new row of the same content before anyone can see that
/// it was taken. The last row has how many there were, after the lost ids.
///
/// The rank goes with a job that was claimed before, which may have kept it from then; otherwise it follows from the time.
///
/// Jobs are looked up one by one, whatever the server believes the tables hold: a plan that was made when they looked empty
/// would read all of them for each.
///
/// The server counts entries per session, so they are counted before and after: the first branch begins when the clock has
/// been read, and the last row is made when all others have been. The clock also brings the timeout into force.
pub(crate) fn statement(types: usize, reach: usize, taking: Taking, weighing: Weighing) -> String {
    let (candidates, place, live) = match types {
        1 => (branches(types, reach), "1", ""),
        ..=MOST_BRANCHES => (branches(types, reach), "array_position($1::integer[], {job}.queue)", ""),
        _ => (
            heads(reach),
            "width_bucket({job}.queue, $1::integer[])",
            " - (SELECT count(*) FROM heads) - (SELECT count(*) FROM near) - (SELECT count(*) FROM far)",
        ),
    };
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
    let Scales {
        steps,
        within,
        put_back,
    } = Scales::of(weighing, &format!("($11::bigint[])[{}]", place.replace("{job}", "c")));
    let lease = format!("($3::bigint[])[{}]", place.replace("{job}", "j"));
    let (in_claim, in_running) = (within("c"), within("j"));
    let none = "NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::uuid[], NULL::bigint";
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
         {candidates}, \
         d AS (DELETE FROM {{schema}}.ready WHERE ctid = ANY (ARRAY({rows} \
         WHERE $6::boolean OR coalesce((SELECT at FROM ahead) > {CLOCK}, true) LIMIT $2::bigint)) RETURNING *), \
         c AS MATERIALIZED (SELECT {JOB}, least(d.attempt, 2147483646) + 1 AS attempt, \
         least(d.claims, 2147483646) + 1 AS claims, d.scheduled_at, d.rank, d.type_id AS queue, \
         d.awaited, d.settled_fence, j.keyed, j.chain_created_at \
         FROM d CROSS JOIN LATERAL (SELECT * FROM {{schema}}.job AS j WHERE j.id = d.id OFFSET 0) AS j), \
         {steps}r AS (INSERT INTO {{schema}}.running (id, leased_until, scheduled_at, started_at, type_id, attempt, claims, \
         priority, awaited, fence, owner, settled_fence, keyed, chain_type_id, chain_created_at, rank) \
         SELECT j.id, {CLOCK} + least({lease}, 9223372036854775807 - {CLOCK}), j.scheduled_at, {CLOCK}, j.queue, j.attempt, \
         j.claims, j.priority, j.awaited, $5::uuid, $4::text, j.settled_fence, j.keyed, j.chain_type_id, \
         j.chain_created_at, CASE WHEN j.claims > 1 THEN j.rank END FROM c AS j WHERE {in_running}) \
         SELECT {TAKEN}, NULL::integer, NULL::bigint, NULL::text, {none} FROM c WHERE c.claims <= 1 AND {in_claim} \
         UNION ALL SELECT {TAKEN}, f.attempt, f.at, f.message, {none} FROM c LEFT JOIN LATERAL (\
         SELECT * FROM {{schema}}.failure AS f WHERE f.id = c.id OFFSET 0) AS f ON true WHERE c.claims > 1 AND {in_claim} \
         UNION ALL SELECT {no_job}, clock.now, ahead.at, CASE WHEN (SELECT count(*) FROM d) < $2::bigint \
         THEN (SELECT count(*) FROM m) END, \
         (SELECT pg_stat_get_xact_tuples_returned(E'{{schema_text}}.ready_claim'::regclass)) - clock.entries{live}, \
         (SELECT pg_stat_get_xact_tuples_returned(E'{{schema_text}}.later_due'::regclass)) - clock.entries_apart, \
         CASE WHEN (SELECT count(*) FROM d) > (SELECT count(*) FROM c) \
         THEN ARRAY(SELECT d.id FROM d WHERE d.id NOT IN (SELECT c.id FROM c)) END, {put_back} \
         FROM clock CROSS JOIN ahead"
    )
}
