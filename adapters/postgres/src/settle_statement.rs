//! The statement that ends attempts, a whole batch at once.

use std::time::Duration;

use crate::create::SCHEDULED;
use crate::sabotage::Bug;

/// How long a batch waits for a lock before it passes over the row. Nobody who is at work has one for longer: a renewal,
/// a sweep or the start of a dependant is over after a few round trips and a write to the disk. And it is as long as a
/// worker lets an end rest that was passed over, so waiting costs no end more than twice what it saves. A transaction
/// that keeps its lock holds up each batch that meets a row of it for this long, and only the first time: see
/// [`LockedJobs`](crate::locked_jobs::LockedJobs).
pub(crate) const PATIENCE: Duration = Duration::from_millis(10);

/// What the statement for a batch must be able to do. Parts that no item needs are left out of its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) finishes: bool,
    pub(crate) continues: bool,
    pub(crate) hands_over: bool,
    pub(crate) gives_back: bool,
    pub(crate) buries: bool,
    locking: Locking,
}

/// What becomes of a row that another transaction has locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Locking {
    /// It is waited for.
    #[default]
    Wait,
    /// It is passed over.
    Skip,
    /// The whole statement fails. Hardly ever does anybody else have a lock, and finding out by locking each row costs
    /// as much as deleting it.
    Fail,
}

/// How a statement fails that has written a next job for an attempt that does not have its job any more: with a division
/// by zero.
pub(crate) const MISSED: &str = "22012";

/// The kinds of outcomes, as the statement knows them.
pub(crate) const FINISH: i16 = 0;
pub(crate) const CONTINUE: i16 = 1;
pub(crate) const RETRY: i16 = 2;
pub(crate) const BURY: i16 = 3;
pub(crate) const RELEASE: i16 = 4;
pub(crate) const SNOOZE: i16 = 5;

impl Shape {
    pub(crate) fn of(kinds: &[i16], hands_over: bool, locking: Locking) -> Self {
        let any = |wanted: &[i16]| kinds.iter().any(|kind| wanted.contains(kind));
        Self {
            finishes: any(&[FINISH]),
            continues: any(&[CONTINUE]),
            hands_over,
            gives_back: any(&[RETRY, RELEASE, SNOOZE]),
            buries: any(&[BURY]),
            locking,
        }
    }

    /// $1 jobs, $2 fences, $3 kinds, $4 workers, $5 outputs or errors, $6 times, $7 delays, $8 the ageing step; of next
    /// jobs $9 ids, $10 types, $11 priorities, $12 most attempts, $13 trace contexts, $14 inputs, and where some are handed
    /// over $15 fences, $16 leases. One row: the jobs that were settled, and the time.
    ///
    /// What an awaited chain's end has to do is not in here: the mark is on the row that is deleted, so it cannot be
    /// missed. A next job is written before the old one is given up, so that an id that is taken refuses the item and no
    /// error spoils the transaction. Everything after hangs on what the deletion returns. For this the old job is locked
    /// first; or, where the statement may fail, it fails with [`MISSED`] if there are more next jobs than old ones that
    /// were given up: a lock for each costs as much as all else that is done to that row.
    pub(crate) fn statement(self) -> String {
        let (next_arrays, next_columns, next_returned) = match (self.continues, self.hands_over) {
            (true, false) => (
                ", $9::uuid[], $10::integer[], $11::smallint[], $12::bigint[], $13::text[], $14::text[]",
                ", next_id, next_type, next_priority, max_attempts, trace_context, input",
                ", a.next_id, a.next_type, a.next_priority",
            ),
            (true, true) => (
                ", $9::uuid[], $10::integer[], $11::smallint[], $12::bigint[], $13::text[], $14::text[], $15::uuid[], \
                 $16::bigint[]",
                ", next_id, next_type, next_priority, max_attempts, trace_context, input, next_fence, next_lease",
                ", a.next_id, a.next_type, a.next_priority, a.next_fence, a.next_lease",
            ),
            (false, _) => ("", "", ""),
        };
        let timeout = match self.locking {
            Locking::Fail => format!("set_config('lock_timeout', '{}ms', true)", PATIENCE.as_millis()),
            _ => "''".to_owned(),
        };
        let held = match Bug::Fencing.is_on() {
            false => "r.id = a.id AND r.fence = a.fence",
            true => "r.id = a.id",
        };
        let mine = match self.finishes {
            true if Bug::Unblocking.is_on() => format!(
                "{held} AND NOT (a.kind = 0 AND EXISTS (SELECT 1 FROM {{schema}}.job AS j \
                 JOIN {{schema}}.blocker AS b ON b.chain_id = j.chain_id WHERE j.id = a.id))"
            ),
            true => format!("{held} AND NOT (a.kind = 0 AND r.awaited)"),
            false => held.to_owned(),
        };
        let mut text = format!(
            "WITH clock AS MATERIALIZED (SELECT {{now}} AS now, {timeout} AS timeout), \
             u AS MATERIALIZED (SELECT u.*, {SCHEDULED} AS next_at FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], \
             $4::text[], $5::text[], $6::bigint[], $7::bigint[]{next_arrays}) \
             AS u(id, fence, kind, worker, text, at, delay{next_columns}) CROSS JOIN clock), "
        );
        let mut source = "u";
        let may_fail = self.locking == Locking::Fail;
        if self.locking == Locking::Skip || (self.continues && !may_fail) {
            let skip = if self.locking == Locking::Skip {
                " SKIP LOCKED"
            } else {
                ""
            };
            text.push_str(&format!(
                "l AS MATERIALIZED (SELECT a.* FROM u AS a CROSS JOIN LATERAL (\
                 SELECT 1 FROM {{schema}}.running AS r WHERE {mine} FOR UPDATE{skip}) AS x), "
            ));
            source = "l";
        }
        if self.continues {
            text.push_str(&format!(
                "n AS (INSERT INTO {{schema}}.job (id, chain_id, chain_index, type_id, chain_type_id, chain_created_at, \
                 created_at, blockers, priority, keyed, max_attempts, trace_context, input) \
                 SELECT a.next_id, j.chain_id, j.chain_index + 1, a.next_type, j.chain_type_id, j.chain_created_at, \
                 clock.now, 0, a.next_priority, j.keyed, a.max_attempts, a.trace_context, a.input \
                 FROM {source} AS a JOIN {{schema}}.job AS j ON j.id = a.id CROSS JOIN clock WHERE a.kind = 1 \
                 ON CONFLICT (id) DO NOTHING RETURNING id), \
                 g AS MATERIALIZED (SELECT a.* FROM {source} AS a WHERE a.kind <> 1 OR a.next_id IN (SELECT n.id FROM n)), "
            ));
            // By itself, and not as a condition of the deletion: that is checked again for a row that somebody has just
            // changed, apart from the rest of the statement.
            source = "g";
        }
        // The condition on the clock is checked before any row is read, so that the timeout is in force by then.
        text.push_str(&format!(
            "f AS (DELETE FROM {{schema}}.running AS r USING {source} AS a \
             WHERE {mine} AND (SELECT timeout FROM clock) IS NOT NULL \
             RETURNING r.id, r.scheduled_at, r.started_at, r.type_id, r.attempt, r.claims, r.priority, r.awaited, \
             a.fence, a.kind, a.worker, a.text, a.next_at{next_returned}), "
        ));
        if self.finishes || self.continues || self.buries {
            text.push_str(&format!(
                "p AS MATERIALIZED (SELECT f.*, j.chain_id, j.chain_type_id, j.chain_created_at, j.keyed \
                 FROM f JOIN {{schema}}.job AS j ON j.id = f.id{}), ",
                if self.gives_back {
                    " WHERE f.kind IN (0, 1, 3)"
                } else {
                    ""
                }
            ));
        }
        if self.finishes || self.continues {
            text.push_str(
                "result AS (INSERT INTO {schema}.result (id, ended_at, chain_created_at, scheduled_at, chain_type_id, \
                 attempt, claims, final, started_at, settled_fence, completed_by, output) \
                 SELECT p.id, clock.now, p.chain_created_at, p.scheduled_at, p.chain_type_id, p.attempt, p.claims, \
                 p.kind = 0, p.started_at, p.fence, p.worker, p.text FROM p CROSS JOIN clock WHERE p.kind IN (0, 1)), ",
            );
        }
        if self.hands_over {
            text.push_str(
                "taken AS (INSERT INTO {schema}.running (id, leased_until, scheduled_at, started_at, type_id, attempt, \
                 claims, priority, awaited, fence, owner) \
                 SELECT p.next_id, CASE WHEN p.next_lease > 9223372036854775807 - clock.now THEN 9223372036854775807 \
                 ELSE clock.now + p.next_lease END, p.next_at, clock.now, p.next_type, 1, 1, p.next_priority, p.awaited, \
                 p.next_fence, p.worker FROM p CROSS JOIN clock WHERE p.kind = 1 AND p.next_fence IS NOT NULL), ",
            );
        }
        if self.continues {
            text.push_str(&pending(
                "next",
                "p",
                "p.next_id, p.next_at, p.next_type, 0, 0, p.next_priority, p.awaited, \
                 NULL::bigint, NULL::uuid",
                match self.hands_over {
                    true => "p.kind = 1 AND p.next_fence IS NULL",
                    false => "p.kind = 1",
                },
                "p.next_at",
                "p.next_priority",
            ));
        }
        if self.gives_back {
            // What is released keeps its place.
            let at = "CASE WHEN f.kind = 4 THEN f.scheduled_at ELSE f.next_at END";
            let columns = format!(
                "f.id, {at}, f.type_id, CASE WHEN f.kind = 2 THEN f.attempt ELSE greatest(f.attempt - 1, 0) END, f.claims, \
                 f.priority, f.awaited, f.started_at, f.fence"
            );
            text.push_str(&pending("back", "f", &columns, "f.kind IN (2, 4, 5)", at, "f.priority"));
        }
        if self.buries {
            text.push_str(
                "stopped AS (INSERT INTO {schema}.stopped (id, ended_at, chain_created_at, scheduled_at, chain_type_id, \
                 attempt, claims, status, awaited, started_at, settled_fence) \
                 SELECT p.id, clock.now, p.chain_created_at, p.scheduled_at, p.chain_type_id, p.attempt, p.claims, 4, \
                 p.awaited, p.started_at, p.fence FROM p CROSS JOIN clock WHERE p.kind = 3), ",
            );
        }
        if self.buries || self.gives_back {
            text.push_str(
                "failure AS (INSERT INTO {schema}.failure (id, attempt, at, message) \
                 SELECT f.id, f.attempt, clock.now, f.text FROM f CROSS JOIN clock WHERE f.kind IN (2, 3) \
                 ON CONFLICT (id) DO UPDATE SET attempt = excluded.attempt, at = excluded.at, \
                 message = excluded.message), ",
            );
        }
        if self.finishes || self.buries {
            text.push_str(
                "key AS (DELETE FROM {schema}.open_key AS k USING p \
                 WHERE k.chain_id = p.chain_id AND p.keyed AND p.kind IN (0, 3)), ",
            );
        }
        text.truncate(text.len() - 2);
        // One row for all of them: a row each would cost the server and the process more than all else in the answer.
        text.push_str(" SELECT ARRAY(SELECT f.id FROM f), clock.now");
        if self.continues && may_fail {
            text.push_str(
                ", 1 / (CASE WHEN (SELECT count(*) FROM n) = (SELECT count(*) FROM f WHERE f.kind = 1) THEN 1 ELSE 0 END)",
            );
        }
        text.push_str(" FROM clock");
        text
    }
}

/// The two tables of pending jobs, fed from `source`.
fn pending(name: &str, source: &str, columns: &str, which: &str, at: &str, priority: &str) -> String {
    let names = "id, scheduled_at, type_id, attempt, claims, priority, awaited, started_at, settled_fence";
    format!(
        "{name}_later AS (INSERT INTO {{schema}}.later ({names}) SELECT {columns} FROM {source} CROSS JOIN clock \
         WHERE {which} AND {at} > clock.now), \
         {name}_ready AS (INSERT INTO {{schema}}.ready ({names}, rank) SELECT {columns}, {at} - {priority} * $8::bigint \
         FROM {source} CROSS JOIN clock WHERE {which} AND {at} <= clock.now), "
    )
}
