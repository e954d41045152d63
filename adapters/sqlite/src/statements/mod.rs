//! The statements, with the reasons for their indexes. Locks need none: whoever writes holds the only write lock.

pub(crate) mod batched;
pub(crate) mod json;

use std::fmt;

use sqlx::SqlStr;

use crate::migrate::render;
use crate::row::{CHAIN, CLAIMED, HEAD, JOB};
use crate::statements::batched::{Batched, shared};

/// How many jobs a claim moves from later to due at most, so that a million jobs of one hour do not stall a claim.
const PROMOTIONS: usize = 10_000;

/// How many jobs at the head of a queue are looked at for the one that has been due longest.
const LOOKED_AT: usize = 100;

/// The most types in one compound query; SQLite's limit is 500.
pub(crate) const ARMS: usize = 200;

/// Every fixed statement, rendered for one table prefix.
pub(crate) struct Statements {
    prefix: String,
    pub(crate) insert_jobs: Batched,
    pub(crate) set_mark: SqlStr,
    pub(crate) back_to_mark: SqlStr,
    pub(crate) drop_mark: SqlStr,
    pub(crate) insert_blockers: SqlStr,
    pub(crate) taken_ids: SqlStr,
    /// When the newest job was created.
    pub(crate) newest: SqlStr,
    /// Changes nothing, and takes the write lock for the rest of the transaction.
    pub(crate) take_write_lock: SqlStr,
    pub(crate) chain_statuses: SqlStr,
    pub(crate) duplicates: SqlStr,
    pub(crate) promote: SqlStr,
    pub(crate) next_due: SqlStr,
    pub(crate) ready: SqlStr,
    pub(crate) heads_of_types: SqlStr,
    pub(crate) renew: SqlStr,
    pub(crate) why_lost: SqlStr,
    pub(crate) expired: SqlStr,
    pub(crate) leaseless: SqlStr,
    pub(crate) orphaned: SqlStr,
    pub(crate) processes: SqlStr,
    pub(crate) enlist: SqlStr,
    pub(crate) forget_workers: SqlStr,
    pub(crate) claimed: SqlStr,
    pub(crate) finish: Batched,
    pub(crate) take: Batched,
    pub(crate) hand_over: Batched,
    pub(crate) finished_now: Batched,
    pub(crate) heads: Batched,
    pub(crate) change: Batched,
    pub(crate) change_keys: SqlStr,
    pub(crate) mark_done: SqlStr,
    pub(crate) mark_last: SqlStr,
    pub(crate) unblocked_by: SqlStr,
    pub(crate) continued_blocked: SqlStr,
    pub(crate) unblockable: SqlStr,
    pub(crate) way: SqlStr,
    pub(crate) way_edges: SqlStr,
    pub(crate) jobs_by_id: SqlStr,
    pub(crate) latest_jobs: SqlStr,
    pub(crate) chains_by_id: SqlStr,
    pub(crate) blockers_of: SqlStr,
    pub(crate) key_holders: SqlStr,
    pub(crate) open_blockers: SqlStr,
    pub(crate) blockers_of_chains: SqlStr,
    pub(crate) references: SqlStr,
    pub(crate) delete_chains: [SqlStr; 4],
    pub(crate) finished: SqlStr,
    pub(crate) insert_notices: SqlStr,
    pub(crate) drop_notices: SqlStr,
    pub(crate) read_notices: SqlStr,
    pub(crate) last_notice: SqlStr,
    pub(crate) data_version: SqlStr,
    pub(crate) watched_types: SqlStr,
}

impl fmt::Debug for Statements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Statements")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// The row number of the latest job of the chain with the given id. Almost always that is the first one, which the
/// index over ids finds; else the last entry of the chain in the index over later jobs.
fn latest(chain: &str) -> String {
    format!(
        "coalesce((SELECT seq FROM {{prefix}}job WHERE id = {chain} AND chain_index = 0 AND latest = 1), \
         (SELECT seq FROM {{prefix}}job WHERE chain_id = {chain} AND chain_index > 0 ORDER BY chain_index DESC LIMIT 1))"
    )
}

/// The chains for which the given one waits, or would wait if it were retried, as `b.chain_id`.
fn ahead(chain: &str) -> String {
    format!(
        "CROSS JOIN {{prefix}}job AS l ON l.seq = {} AND l.status IN (0, 4, 5) \
         CROSS JOIN {{prefix}}blocker AS b ON b.job_id = l.id AND b.done = 0",
        latest(chain)
    )
}

fn job_columns(alias: &str) -> String {
    let columns: Vec<_> = JOB.iter().map(|column| format!("{alias}{column}")).collect();
    columns.join(", ")
}

impl Statements {
    pub(crate) fn new(prefix: &str) -> Self {
        let sql = |template: &str| shared(render(template, prefix));
        let batched = |template: &str, columns| Batched::new(template, prefix, columns);
        let job = job_columns("j.");
        let latest_of_value = latest("unhex(r.value)");
        Self {
            prefix: prefix.to_owned(),
            // The chain's id and type are left out where they are those of the job.
            insert_jobs: batched(
                "INSERT INTO {prefix}job (id, chain_id, chain_index, latest, status, type, chain_type, chain_created_at, \
                 chain_keyed, created_at, scheduled_at, priority, rank, due, attempt, claims, max_attempts, blockers, \
                 deduplication_key, open_key, trace_context, input) \
                 SELECT column1, coalesce(column2, column1), column3, 1, column4, column5, coalesce(column6, column5), column7, \
                 column8, column9, column10, column11, column12, column13, 0, 0, column14, column15, column16, column16, \
                 column17, column18 FROM (VALUES {rows}) WHERE column1 IS NOT NULL",
                18,
            ),
            set_mark: sql("SAVEPOINT queuert_rows"),
            back_to_mark: sql("ROLLBACK TO queuert_rows"),
            drop_mark: sql("RELEASE queuert_rows"),
            insert_blockers: sql("INSERT INTO {prefix}blocker (job_id, position, chain_id, done) \
                 SELECT unhex(value ->> 0), value ->> 1, unhex(value ->> 2), value ->> 3 FROM json_each(?1)"),
            newest: sql("SELECT max(created_at) FROM {prefix}job"),
            take_write_lock: sql("DELETE FROM {prefix}job WHERE false"),
            taken_ids: sql("SELECT j.id FROM json_each(?1) AS r CROSS JOIN {prefix}job AS j ON j.id = unhex(r.value)"),
            chain_statuses: sql(&format!(
                "SELECT unhex(r.value), (SELECT status FROM {{prefix}}job WHERE seq = {latest_of_value}) FROM json_each(?1) AS r"
            )),
            // The newest chain that counts: one that is young enough (`since` is null if no ended chain counts), or else an
            // open one, which is older. Open ones have an index of their own, which keeps a key that has been used a million
            // times as cheap as a new one.
            duplicates: sql(&format!(
                "WITH wanted AS MATERIALIZED (SELECT key AS place, value ->> 0 AS type, CAST(unhex(value ->> 1) AS TEXT) AS key, \
                 value ->> 2 AS since, value ->> 3 AS except_ids FROM json_each(?1)), \
                 found AS MATERIALIZED (SELECT w.place, coalesce(\
                 (SELECT f.id FROM {{prefix}}job AS f INDEXED BY {{prefix}}job_key WHERE f.type = w.type AND \
                 f.deduplication_key = w.key AND f.deduplication_key IS NOT NULL AND f.created_at >= w.since \
                 AND f.id NOT IN (SELECT unhex(e.value) FROM json_each(w.except_ids) AS e) \
                 ORDER BY f.created_at DESC, f.id DESC LIMIT 1), \
                 (SELECT f.id FROM {{prefix}}job AS f INDEXED BY {{prefix}}job_open_key WHERE f.type = w.type AND \
                 f.open_key = w.key AND f.open_key IS NOT NULL \
                 AND f.id NOT IN (SELECT unhex(e.value) FROM json_each(w.except_ids) AS e) \
                 ORDER BY f.created_at DESC, f.id DESC LIMIT 1)) AS id FROM wanted AS w) \
                 SELECT d.place, d.id, (SELECT status FROM {{prefix}}job WHERE seq = {}) FROM found AS d WHERE d.id IS NOT NULL",
                latest("d.id")
            )),
            // Moves what has become due over to where claims look.
            promote: sql(&format!(
                "UPDATE {{prefix}}job SET due = 1 WHERE seq IN (SELECT seq FROM {{prefix}}job INDEXED BY {{prefix}}job_later \
                 WHERE status = 1 AND due = 0 AND type IN (SELECT value FROM json_each(?1)) AND scheduled_at <= ?2 \
                 LIMIT {PROMOTIONS})"
            )),
            next_due: sql(
                "SELECT min((SELECT scheduled_at FROM {prefix}job INDEXED BY {prefix}job_later WHERE status = 1 AND due = 0 \
                 AND type = t.value ORDER BY scheduled_at LIMIT 1)) FROM json_each(?1) AS t",
            ),
            // Counts entries of the index and reads few rows. What has become due since the last claim still lies apart.
            ready: sql(&format!(
                "SELECT (SELECT count(*) FROM (SELECT 1 FROM {{prefix}}job INDEXED BY {{prefix}}job_queue WHERE status = 1 \
                 AND due = 1 AND type = r.value LIMIT ?3)) + (SELECT count(*) FROM (SELECT 1 FROM {{prefix}}job \
                 INDEXED BY {{prefix}}job_later WHERE status = 1 AND due = 0 AND type = r.value AND scheduled_at <= ?2 LIMIT ?3)), \
                 (SELECT min(scheduled_at) FROM (SELECT scheduled_at FROM {{prefix}}job INDEXED BY {{prefix}}job_queue \
                 WHERE status = 1 AND due = 1 AND type = r.value ORDER BY rank, id LIMIT {LOOKED_AT})), \
                 (SELECT scheduled_at FROM {{prefix}}job INDEXED BY {{prefix}}job_later WHERE status = 1 AND due = 0 \
                 AND type = r.value AND scheduled_at <= ?2 ORDER BY scheduled_at LIMIT 1) \
                 FROM json_each(?1) AS r ORDER BY r.key"
            )),
            // The types whose first jobs have the smallest ranks, for claims of more types than one statement merges.
            heads_of_types: sql("SELECT h.type FROM (SELECT t.value AS type, (SELECT seq FROM {prefix}job \
                 INDEXED BY {prefix}job_queue WHERE status = 1 AND due = 1 AND type = t.value ORDER BY rank, id LIMIT 1) AS seq \
                 FROM json_each(?1) AS t) AS h CROSS JOIN {prefix}job AS j ON j.seq = h.seq ORDER BY j.rank, j.id LIMIT ?2"),
            renew: sql(
                "UPDATE {prefix}job SET lease_until = x.until FROM (SELECT unhex(value ->> 0) AS id, \
                 unhex(value ->> 1) AS fence, value ->> 2 AS until FROM json_each(?1)) AS x \
                 WHERE {prefix}job.id = x.id AND status = 2 AND {prefix}job.fence = x.fence RETURNING id, fence",
            ),
            why_lost: sql(
                "SELECT j.id, j.status, j.fence FROM json_each(?1) AS r CROSS JOIN {prefix}job AS j ON j.id = unhex(r.value)",
            ),
            // Through the index over leases, which has no more entries than there are running jobs.
            claimed: sql(&format!(
                "SELECT {job} FROM {{prefix}}job AS j INDEXED BY {{prefix}}job_lease WHERE j.status = 2 \
                 AND j.lease_until > -9223372036854775808 AND j.fence = ?1"
            )),
            // Running jobs are few, so one index over all types does, and reaping does not depend on how many there are.
            expired: sql(&format!(
                "SELECT {job} FROM {{prefix}}job AS j INDEXED BY {{prefix}}job_lease WHERE j.status = 2 AND j.lease_until <= ?1 \
                 AND j.type IN (SELECT value FROM json_each(?2)) \
                 AND j.id NOT IN (SELECT unhex(value) FROM json_each(?3)) \
                 ORDER BY j.lease_until, j.id LIMIT ?4"
            )),
            // The same for running jobs without an end of their lease, which no other search finds: something other than this
            // library has damaged their rows.
            leaseless: sql(&format!(
                "SELECT {job} FROM {{prefix}}job AS j INDEXED BY {{prefix}}job_lease WHERE j.status = 2 AND j.lease_until IS NULL \
                 AND j.type IN (SELECT value FROM json_each(?2)) \
                 AND j.id NOT IN (SELECT unhex(value) FROM json_each(?3)) ORDER BY j.id LIMIT ?4"
            )),
            // The same for the leases of workers that have died, however long they would last.
            orphaned: sql(&format!(
                "SELECT {job} FROM {{prefix}}job AS j INDEXED BY {{prefix}}job_lease WHERE j.status = 2 \
                 AND j.lease_until > ?1 AND j.lease_owner IN (SELECT value FROM json_each(?5)) \
                 AND j.type IN (SELECT value FROM json_each(?2)) \
                 AND j.id NOT IN (SELECT unhex(value) FROM json_each(?3)) \
                 ORDER BY j.lease_until, j.id LIMIT ?4"
            )),
            processes: sql("SELECT key, worker FROM {prefix}process"),
            enlist: sql("INSERT OR IGNORE INTO {prefix}process (key, worker) VALUES (?1, ?2)"),
            forget_workers: sql(
                "DELETE FROM {prefix}process WHERE key IN (SELECT unhex(value) FROM json_each(?1)) AND NOT EXISTS (\
                 SELECT 1 FROM {prefix}job AS j INDEXED BY {prefix}job_lease WHERE j.status = 2 \
                 AND j.lease_until > -9223372036854775808 AND j.lease_owner = {prefix}process.worker)",
            ),
            // The end that almost every job has: finished by its attempt, nobody waits for the chain, and no key has to be
            // given back on another row. What does not match takes the long way. The plus signs keep SQLite from making
            // an index over the values and running through all jobs.
            finish: batched(
                "UPDATE {prefix}job AS j INDEXED BY {prefix}job_id SET status = 3, ended_at = x.column5, \
                 completed_by = x.column3, error_attempt = NULL, error_at = NULL, error = NULL, settled_fence = x.column2, \
                 output = x.column4, open_key = NULL, lease_owner = NULL, lease_until = NULL, fence = NULL \
                 FROM (VALUES {rows}) AS x WHERE j.id = +x.column1 AND j.status = 2 AND j.fence = +x.column2 \
                 AND (j.chain_keyed = 0 OR j.chain_index = 0) \
                 AND NOT EXISTS (SELECT 1 FROM {prefix}blocker AS b WHERE b.chain_id = j.chain_id AND b.done = 0)",
                5,
            )
            .or_singly(
                "UPDATE {prefix}job AS j INDEXED BY {prefix}job_id SET status = 3, ended_at = ?5, completed_by = ?3, \
                 error_attempt = NULL, error_at = NULL, error = NULL, settled_fence = ?2, output = ?4, open_key = NULL, \
                 lease_owner = NULL, lease_until = NULL, fence = NULL \
                 WHERE j.id = ?1 AND j.status = 2 AND j.fence = ?2 AND (j.chain_keyed = 0 OR j.chain_index = 0) \
                 AND NOT EXISTS (SELECT 1 FROM {prefix}blocker AS b WHERE b.chain_id = j.chain_id AND b.done = 0)",
                prefix,
            ),
            // The second half of a claim.
            take: batched(
                "UPDATE {prefix}job AS j SET status = 2, attempt = min(attempt, 9223372036854775806) + 1, \
                 claims = min(claims, 9223372036854775806) + 1, \
                 started_at = x.column2, lease_owner = x.column3, fence = x.column4, lease_until = x.column5 \
                 FROM (VALUES {rows}) AS x WHERE j.seq = x.column1",
                5,
            )
            .or_singly(
                "UPDATE {prefix}job SET status = 2, attempt = min(attempt, 9223372036854775806) + 1, \
                 claims = min(claims, 9223372036854775806) + 1, started_at = ?2, \
                 lease_owner = ?3, fence = ?4, lease_until = ?5 WHERE seq = ?1",
                prefix,
            ),
            // What was inserted as running by the worker that has claimed it with that.
            hand_over: batched(
                "UPDATE {prefix}job AS j SET attempt = 1, claims = 1, started_at = x.column2, lease_owner = x.column3, \
                 fence = x.column4, lease_until = x.column5 FROM (VALUES {rows}) AS x WHERE j.id = x.column1",
                5,
            )
            .or_singly(
                "UPDATE {prefix}job SET attempt = 1, claims = 1, started_at = ?2, lease_owner = ?3, fence = ?4, \
                 lease_until = ?5 WHERE id = ?1",
                prefix,
            ),
            // Which of the ends above have happened, asked where some have not.
            finished_now: batched(
                "SELECT j.id FROM (VALUES {rows}) AS x CROSS JOIN {prefix}job AS j INDEXED BY {prefix}job_id \
                 ON j.id = x.column1 WHERE j.status = 3 AND j.settled_fence = x.column2 AND j.ended_at = x.column3",
                3,
            ),
            heads: batched(
                &format!(
                    "SELECT x.column1, {HEAD}, \
                     EXISTS (SELECT 1 FROM {{prefix}}blocker AS b WHERE b.chain_id = j.chain_id AND b.done = 0), \
                     EXISTS (SELECT 1 FROM {{prefix}}job AS n WHERE n.id = x.column3) \
                     FROM (VALUES {{rows}}) AS x CROSS JOIN {{prefix}}job AS j INDEXED BY {{prefix}}job_id ON j.id = x.column2"
                ),
                3,
            ),
            // One statement for every way in which a job can change after its claim. Columns that are in no index cost
            // nothing to write again; the payload and the error text are touched only where they change.
            change: batched(
                "UPDATE {prefix}job AS j SET status = x.column2, latest = x.column3, due = x.column4, \
                 scheduled_at = x.column5, rank = x.column6, attempt = x.column7, ended_at = x.column8, \
                 completed_by = x.column9, error_attempt = iif(x.column10, j.error_attempt, x.column11), \
                 error_at = iif(x.column10, j.error_at, x.column12), error = iif(x.column10, j.error, x.column13), \
                 settled_fence = coalesce(x.column14, j.settled_fence), output = coalesce(x.column15, j.output), \
                 open_key = iif(x.column16, j.deduplication_key, NULL), lease_owner = NULL, lease_until = NULL, fence = NULL \
                 FROM (VALUES {rows}) AS x WHERE j.seq = x.column1",
                16,
            ),
            change_keys: sql(
                "UPDATE {prefix}job SET open_key = iif(x.open, deduplication_key, NULL) FROM \
                 (SELECT unhex(value ->> 0) AS id, value ->> 1 AS open FROM json_each(?1)) AS x WHERE {prefix}job.id = x.id",
            ),
            mark_done: sql(
                "UPDATE {prefix}blocker SET done = 1 WHERE done = 0 AND chain_id IN (SELECT unhex(value) FROM json_each(?1))",
            ),
            // 2: this was the last one that the job waited for.
            mark_last: sql(
                "UPDATE {prefix}blocker SET done = 2 WHERE chain_id = ?1 \
                 AND job_id IN (SELECT unhex(value) FROM json_each(?2))",
            ),
            // Whom the end of a chain made pending, by the job that ended it.
            unblocked_by: sql(
                "SELECT DISTINCT r.key, d.id, d.chain_id, d.type FROM json_each(?1) AS r \
                 CROSS JOIN {prefix}job AS j INDEXED BY {prefix}job_id ON j.id = unhex(r.value) AND j.latest = 1 \
                 CROSS JOIN {prefix}blocker AS b INDEXED BY {prefix}blocker_chain ON b.chain_id = j.chain_id AND b.done = 2 \
                 CROSS JOIN {prefix}job AS d INDEXED BY {prefix}job_id ON d.id = b.job_id ORDER BY r.key, d.id",
            ),
            // Which jobs were continued with one that waited: for a chain that is open, or until the last one ended.
            continued_blocked: sql(
                "SELECT r.key FROM json_each(?1) AS r \
                 CROSS JOIN {prefix}job AS j INDEXED BY {prefix}job_id ON j.id = unhex(r.value) \
                 CROSS JOIN {prefix}job AS n INDEXED BY {prefix}job_chain ON n.chain_id = j.chain_id \
                 AND n.chain_index = j.chain_index + 1 AND n.chain_index > 0 \
                 WHERE EXISTS (SELECT 1 FROM {prefix}blocker AS b WHERE b.job_id = n.id AND b.done <> 1)",
            ),
            unblockable: sql(
                "SELECT DISTINCT j.seq, j.id, j.chain_id, j.type, j.scheduled_at, j.priority, j.attempt FROM json_each(?1) AS r \
                 CROSS JOIN {prefix}blocker AS b ON b.chain_id = unhex(r.value) \
                 CROSS JOIN {prefix}job AS j ON j.id = b.job_id AND j.status = 0 \
                 WHERE NOT EXISTS (SELECT 1 FROM {prefix}blocker AS o INDEXED BY {prefix}blocker_open \
                 WHERE o.job_id = j.id AND o.done = 0) ORDER BY j.id",
            ),
            // Each chain once, and what each of them waits for is read once. The edges are asked for only where the way leads
            // to the chain that the search is for.
            way: sql(&format!(
                "WITH RECURSIVE way (chain) AS (SELECT unhex(value) FROM json_each(?1) UNION \
                 SELECT b.chain_id FROM way AS w {}) SELECT chain FROM way",
                ahead("w.chain")
            )),
            way_edges: sql(&format!(
                "SELECT unhex(r.value), b.chain_id FROM json_each(?1) AS r {}",
                ahead("unhex(r.value)")
            )),
            jobs_by_id: sql(&format!(
                "SELECT {job} FROM json_each(?1) AS r CROSS JOIN {{prefix}}job AS j ON j.id = unhex(r.value) ORDER BY r.key"
            )),
            latest_jobs: sql(&format!(
                "SELECT {job}, r.key FROM json_each(?1) AS r CROSS JOIN {{prefix}}job AS j ON j.seq = {latest_of_value} ORDER BY r.key"
            )),
            chains_by_id: sql(&format!(
                "SELECT {CHAIN} FROM json_each(?1) AS r \
                 CROSS JOIN {{prefix}}job AS f ON f.id = unhex(r.value) AND f.chain_index = 0 \
                 CROSS JOIN {{prefix}}job AS l ON l.seq = {} ORDER BY r.key",
                latest("f.id")
            )),
            blockers_of: sql(&format!(
                "SELECT {CHAIN}, b.job_id FROM json_each(?1) AS r CROSS JOIN {{prefix}}blocker AS b ON b.job_id = unhex(r.value) \
                 CROSS JOIN {{prefix}}job AS f ON f.id = b.chain_id AND f.chain_index = 0 \
                 CROSS JOIN {{prefix}}job AS l ON l.seq = {} ORDER BY r.key, b.position",
                latest("f.id")
            )),
            key_holders: sql(
                "SELECT f.id, f.type, f.deduplication_key, (SELECT o.id FROM {prefix}job AS o INDEXED BY {prefix}job_open_key \
                 WHERE o.type = f.type AND o.open_key = f.deduplication_key AND o.open_key IS NOT NULL AND o.id <> f.id \
                 ORDER BY o.created_at DESC, o.id DESC LIMIT 1) \
                 FROM json_each(?1) AS r CROSS JOIN {prefix}job AS f ON f.id = unhex(r.value) AND f.deduplication_key IS NOT NULL",
            ),
            open_blockers: sql(
                "SELECT DISTINCT b.job_id FROM json_each(?1) AS r CROSS JOIN {prefix}blocker AS b INDEXED BY {prefix}blocker_open \
                 ON b.job_id = unhex(r.value) AND b.done = 0",
            ),
            blockers_of_chains: sql(
                "SELECT DISTINCT b.chain_id FROM json_each(?1) AS r CROSS JOIN {prefix}job AS j ON j.id = unhex(r.value) \
                 CROSS JOIN {prefix}blocker AS b ON b.job_id = j.id UNION \
                 SELECT b.chain_id FROM json_each(?1) AS r CROSS JOIN {prefix}job AS j INDEXED BY {prefix}job_chain \
                 ON j.chain_id = unhex(r.value) AND j.chain_index > 0 CROSS JOIN {prefix}blocker AS b ON b.job_id = j.id",
            ),
            references: sql("SELECT b.chain_id, b.job_id, j.chain_id FROM json_each(?1) AS r \
                 CROSS JOIN {prefix}blocker AS b ON b.chain_id = unhex(r.value) \
                 CROSS JOIN {prefix}job AS j ON j.id = b.job_id AND j.status <> 3 GROUP BY b.chain_id, b.job_id ORDER BY r.key, b.job_id"),
            // Edges first, while the jobs can still be found.
            delete_chains: [
                "DELETE FROM {prefix}blocker WHERE chain_id IN (SELECT unhex(value) FROM json_each(?1))",
                "DELETE FROM {prefix}blocker WHERE job_id IN (SELECT unhex(value) FROM json_each(?1) UNION ALL \
                 SELECT j.id FROM json_each(?1) AS r CROSS JOIN {prefix}job AS j INDEXED BY {prefix}job_chain \
                 ON j.chain_id = unhex(r.value) AND j.chain_index > 0)",
                "DELETE FROM {prefix}job WHERE chain_index > 0 AND chain_id IN (SELECT unhex(value) FROM json_each(?1))",
                "DELETE FROM {prefix}job WHERE id IN (SELECT unhex(value) FROM json_each(?1))",
            ]
            .map(sql),
            // By time of creation: whoever ended before a moment was created before it too.
            finished: sql(
                "SELECT l.chain_id FROM (SELECT 3 AS status UNION ALL SELECT 5) AS s CROSS JOIN {prefix}job AS l \
                 INDEXED BY {prefix}job_rest ON l.latest = 1 AND l.status NOT IN (1, 2) AND l.status = s.status \
                 AND l.chain_created_at < ?1 WHERE l.ended_at < ?1 AND NOT EXISTS (SELECT 1 FROM {prefix}blocker AS b \
                 JOIN {prefix}job AS d ON d.id = b.job_id AND d.status <> 3 WHERE b.chain_id = l.chain_id) LIMIT ?2",
            ),
            insert_notices: sql("INSERT INTO {prefix}notice (origin, kind, id, type, count, at) \
                 SELECT ?2, value ->> 0, unhex(value ->> 1), value ->> 2, value ->> 3, ?3 FROM json_each(?1)"),
            drop_notices: sql("DELETE FROM {prefix}notice WHERE seq <= (SELECT max(seq) FROM {prefix}notice) - ?1"),
            read_notices: sql(
                "SELECT seq, origin, kind, id, type, count FROM {prefix}notice WHERE seq > ?1 ORDER BY seq",
            ),
            data_version: sql("PRAGMA data_version"),
            last_notice: sql("SELECT coalesce(max(seq), 0) FROM {prefix}notice"),
            watched_types: sql(
                "SELECT r.value, (SELECT count(*) FROM (SELECT 1 FROM {prefix}job AS j INDEXED BY {prefix}job_queue \
                 WHERE j.status = 1 AND j.due = 1 AND j.type = r.value LIMIT 64)), \
                 (SELECT scheduled_at FROM {prefix}job AS j INDEXED BY {prefix}job_later \
                 WHERE j.status = 1 AND j.due = 0 AND j.type = r.value ORDER BY scheduled_at LIMIT 1) FROM json_each(?1) AS r",
            ),
        }
    }

    /// The first half of a claim, for a number of types: the first jobs by rank over all of them.
    ///
    /// Parameters: 1 the limit, then the name of each type.
    ///
    /// A compound query with an order is a lazy merge in SQLite: each arm is a run over the queue index that stops when
    /// the limit is reached, so the cost is that of the jobs taken plus one look per type.
    pub(crate) fn claim(&self, types: usize) -> SqlStr {
        let arm = |place: usize| {
            format!(
                "SELECT {CLAIMED} FROM {{prefix}}job INDEXED BY {{prefix}}job_queue \
                 WHERE status = 1 AND due = 1 AND type = ?{}",
                2 + place
            )
        };
        let merge = |arms: Vec<String>| format!("{} ORDER BY rank, id LIMIT ?1", arms.join(" UNION ALL "));
        let arms: Vec<_> = (0..types).map(arm).collect();
        let text = if types <= ARMS {
            merge(arms)
        } else {
            let groups = arms.chunks(ARMS);
            let groups = groups.map(|group| format!("SELECT * FROM ({})", merge(group.to_vec())));
            merge(groups.collect())
        };
        shared(render(&text, &self.prefix))
    }

    pub(crate) fn render(&self, template: &str) -> SqlStr {
        shared(render(template, &self.prefix))
    }

    /// The columns of a job, of the table alias `j`.
    pub(crate) fn job_columns() -> String {
        job_columns("j.")
    }

    /// The row number of the latest job of a chain, as an expression.
    pub(crate) fn latest(chain: &str) -> String {
        latest(chain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sqlx::{AssertSqlSafe, Connection, Executor, Row, SqliteConnection};

    async fn database() -> SqliteConnection {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        for step in crate::migrate::migrations("t_").unwrap() {
            connection.execute(AssertSqlSafe(step.sql)).await.unwrap();
        }
        connection
    }

    fn all(statements: &Statements) -> Vec<SqlStr> {
        let Statements {
            prefix: _,
            insert_jobs,
            set_mark,
            back_to_mark,
            drop_mark,
            insert_blockers,
            newest,
            // It has no rows to look for.
            take_write_lock: _,
            taken_ids,
            chain_statuses,
            duplicates,
            promote,
            next_due,
            ready,
            heads_of_types,
            renew,
            why_lost,
            expired,
            leaseless,
            orphaned,
            processes,
            enlist,
            forget_workers,
            claimed,
            finish,
            take,
            hand_over,
            finished_now,
            heads,
            change,
            change_keys,
            mark_done,
            mark_last,
            unblocked_by,
            continued_blocked,
            unblockable,
            way,
            way_edges,
            jobs_by_id,
            latest_jobs,
            chains_by_id,
            blockers_of,
            key_holders,
            open_blockers,
            blockers_of_chains,
            references,
            delete_chains,
            finished,
            insert_notices,
            drop_notices,
            read_notices,
            last_notice,
            // EXPLAIN has nothing to say of a pragma.
            data_version: _,
            watched_types,
        } = statements;
        let fixed = [
            set_mark,
            back_to_mark,
            drop_mark,
            insert_blockers,
            newest,
            taken_ids,
            chain_statuses,
            duplicates,
            promote,
            next_due,
            ready,
            heads_of_types,
            renew,
            why_lost,
            expired,
            leaseless,
            orphaned,
            processes,
            enlist,
            forget_workers,
            claimed,
            change_keys,
            mark_done,
            mark_last,
            unblocked_by,
            continued_blocked,
            unblockable,
            way,
            way_edges,
            jobs_by_id,
            latest_jobs,
            chains_by_id,
            blockers_of,
            key_holders,
            open_blockers,
            blockers_of_chains,
            references,
            finished,
            insert_notices,
            drop_notices,
            read_notices,
            last_notice,
            watched_types,
        ];
        let claims = [1, 2, 50, 512, 1_000].map(|types| statements.claim(types));
        let batched = [insert_jobs, finish, take, hand_over, finished_now, heads, change];
        let singles: Vec<SqlStr> = batched.iter().filter_map(|one| one.single().cloned()).collect();
        let batched = batched
            .iter()
            .flat_map(|batched| [1, 100, 1_000].map(|rows| batched.text(rows)));
        fixed
            .into_iter()
            .chain(delete_chains)
            .cloned()
            .chain(claims)
            .chain(singles)
            .chain(batched)
            .collect()
    }

    /// No statement may read a table of jobs from one end to the other.
    #[tokio::test]
    async fn every_statement_compiles_and_none_scans_the_jobs() {
        let mut connection = database().await;
        for statements in all(&Statements::new("t_")) {
            for statement in statements.as_str().split("; ") {
                let explain = format!("EXPLAIN QUERY PLAN {statement}");
                let plan = sqlx::query(AssertSqlSafe(explain)).fetch_all(&mut connection).await;
                let plan = plan.unwrap_or_else(|error| panic!("{error}\n{statement}"));
                for step in plan {
                    let detail: String = step.get(3);
                    let scan = detail.starts_with("SCAN t_job") || detail.starts_with("SCAN j ");
                    assert!(!scan, "{detail}\n{statement}");
                }
            }
        }
    }

    /// A database of the other kind of connection, which counts what its statements do.
    fn counting() -> rusqlite::Connection {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        for step in crate::migrate::migrations("t_").unwrap() {
            connection.execute_batch(&step.sql).unwrap();
        }
        connection
    }

    fn id(number: usize) -> String {
        format!("{number:032x}")
    }

    /// Adds a chain with one job, in this status and of this type, that waits for others.
    fn add(connection: &rusqlite::Connection, number: usize, status: i64, type_name: &str, blockers: &[usize]) {
        let insert = "INSERT INTO t_job (id, chain_id, chain_index, latest, status, type, chain_type, chain_created_at, \
             chain_keyed, created_at, scheduled_at, priority, rank, due, attempt, claims, blockers, input) \
             VALUES (unhex(?1), unhex(?1), 0, 1, ?2, ?3, ?3, 0, 0, 0, 0, 0, ?4, 1, 0, 0, 0, '1')";
        let values = rusqlite::params![id(number), status, type_name, i64::try_from(number).unwrap()];
        connection.prepare_cached(insert).unwrap().execute(values).unwrap();
        let insert = "INSERT INTO t_blocker (job_id, position, chain_id, done) VALUES (unhex(?1), ?2, unhex(?3), 0)";
        for (position, blocker) in blockers.iter().enumerate() {
            let values = rusqlite::params![id(number), i64::try_from(position).unwrap(), id(*blocker)];
            connection.prepare_cached(insert).unwrap().execute(values).unwrap();
        }
    }

    /// Runs a statement to its end: how many rows it had, and how many steps of SQLite's own machine it took.
    fn steps(connection: &rusqlite::Connection, text: &SqlStr, values: impl rusqlite::Params) -> (usize, i32) {
        let mut statement = connection.prepare(text.as_str()).unwrap();
        let mut rows = statement.query(values).unwrap();
        let mut count = 0;
        while rows.next().unwrap().is_some() {
            count += 1;
        }
        drop(rows);
        (count, statement.get_status(rusqlite::StatementStatus::VmStep))
    }

    /// Twice the size may take twice the steps, and no more.
    fn assert_linear(small: i32, large: i32, what: &str) {
        assert!(small > 0, "{what}: nothing was counted");
        assert!(
            large <= small / 2 * 5,
            "{what}: {small} steps, {large} for twice the size"
        );
    }

    /// One search for all blockers, whether they share what they wait for, or each waits for the next.
    #[test]
    fn the_search_for_a_circle_takes_steps_by_the_edges() {
        let statements = Statements::new("t_");
        let search = |chains: usize, blockers: &dyn Fn(usize) -> Vec<usize>| {
            let connection = counting();
            for number in 0..10 {
                add(&connection, chains + number, 1, "shared", &[]);
            }
            for number in 0..chains {
                add(&connection, number, 0, "waiting", &blockers(number));
            }
            let all =
                crate::statements::json::Batch::of_ids((0..chains).map(|number| uuid::Uuid::from_u128(number as u128)));
            let (found, way) = steps(&connection, &statements.way, [&all]);
            let (edges, told) = steps(&connection, &statements.way_edges, [&all]);
            (found, edges, way + told)
        };
        for (wide, edges_each) in [(true, 10), (false, 1)] {
            let [small, large] = [400, 800].map(|chains| {
                let shared = |_: usize| (chains..chains + 10).collect();
                let next = |number: usize| vec![number + 1];
                let (found, edges, steps) = search(chains, if wide { &shared } else { &next });
                assert_eq!(
                    (found, edges),
                    (chains + if wide { 10 } else { 1 }, chains * edges_each)
                );
                steps
            });
            assert_linear(small, large, "the search for a circle");
        }
    }

    /// Whatever the backlog of each is.
    #[test]
    fn the_heads_of_many_types_take_steps_by_the_types() {
        let statements = Statements::new("t_");
        let search = |types: usize, backlog: usize| {
            let connection = counting();
            for number in 0..types * backlog {
                add(&connection, number, 1, &format!("type-{}", number % types), &[]);
            }
            let names: Vec<String> = (0..types).map(|number| format!("type-{number}")).collect();
            let names = crate::statements::json::Batch::of_texts(names.iter().map(String::as_str));
            let (found, steps) = steps(&connection, &statements.heads_of_types, rusqlite::params![names, 100]);
            assert_eq!(found, 100);
            steps
        };
        let small = search(500, 1);
        assert_linear(small, search(1_000, 1), "the heads of many types");
        let deep = search(500, 20);
        assert!(
            deep <= small + small / 10,
            "{small} steps, {deep} with twenty times the backlog"
        );
    }
}
