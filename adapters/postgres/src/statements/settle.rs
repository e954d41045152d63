//! The statement that ends attempts, a whole batch at once.

use std::time::Duration;

use crate::sabotage::Bug;
use crate::store::{CLOCK, idle_until};
use crate::transaction::in_transaction;
use crate::type_ids::KNOWN;
use crate::verbs::create::scheduled;

/// How long a batch waits for a lock before it passes over the row. Nobody who is at work has one for longer: a renewal,
/// a sweep or the start of a dependant is over after a few round trips and a write to the disk. And it is as long as a
/// worker lets an end rest that was passed over, so waiting costs no end more than twice what it saves. A transaction
/// that keeps its lock holds up each batch that meets a row of it for this long, and only the first time: see
/// [`LockedJobs`](crate::verbs::settle::locked_jobs::LockedJobs).
pub(crate) const PATIENCE: Duration = Duration::from_millis(10);

/// What the statement for a batch must be able to do. Parts that no item needs are left out of its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) finishes: bool,
    pub(crate) continues: bool,
    pub(crate) hands_over: bool,
    pub(crate) gives_back: bool,
    pub(crate) buries: bool,
    one_worker: bool,
    locking: Locking,
}

/// What becomes of a row that another transaction has locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Locking {
    /// It is waited for: in the caller's transaction, and an error if that has ended.
    #[default]
    Wait,
    /// It is passed over.
    Skip,
    /// The whole statement fails. Hardly ever does anybody else have a lock, and finding out by locking each row costs
    /// as much as deleting it.
    Fail,
}

/// The kinds of outcomes, as the statement knows them.
pub(crate) const FINISH: i16 = 0;
pub(crate) const CONTINUE: i16 = 1;
pub(crate) const RETRY: i16 = 2;
pub(crate) const BURY: i16 = 3;
pub(crate) const RELEASE: i16 = 4;
pub(crate) const SNOOZE: i16 = 5;

/// What is bound to the statement. All but two are arrays with an element per item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parameter {
    Jobs,
    Fences,
    Kinds,
    /// One for all.
    Worker,
    Workers,
    /// Outputs or errors.
    Texts,
    Times,
    Delays,
    NextIds,
    NextTypes,
    NextPriorities,
    NextMaxAttempts,
    NextTraces,
    NextInputs,
    NextFences,
    NextLeases,
    /// The ageing step, one for all.
    Step,
    /// The types of all next jobs, each once, and their names: the statement does nothing unless the database has them.
    KnownNumbers,
    KnownNames,
}

impl Parameter {
    /// Its type, and the name of its column if it is an array.
    fn sql(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Jobs => ("uuid[]", Some("id")),
            Self::Fences => ("uuid[]", Some("fence")),
            Self::Kinds => ("smallint[]", Some("kind")),
            Self::Worker => ("text", None),
            Self::Workers => ("text[]", Some("worker")),
            Self::Texts => ("text[]", Some("text")),
            Self::Times => ("bigint[]", Some("at")),
            Self::Delays => ("bigint[]", Some("delay")),
            Self::NextIds => ("uuid[]", Some("next_id")),
            Self::NextTypes => ("integer[]", Some("next_type")),
            Self::NextPriorities => ("smallint[]", Some("next_priority")),
            Self::NextMaxAttempts => ("bigint[]", Some("max_attempts")),
            Self::NextTraces => ("text[]", Some("trace_context")),
            Self::NextInputs => ("text[]", Some("input")),
            Self::NextFences => ("uuid[]", Some("next_fence")),
            Self::NextLeases => ("bigint[]", Some("next_lease")),
            Self::Step => ("bigint", None),
            Self::KnownNumbers => ("integer[]", None),
            Self::KnownNames => ("text[]", None),
        }
    }
}

impl Shape {
    pub(crate) fn of(kinds: &[i16], hands_over: bool, one_worker: bool, locking: Locking) -> Self {
        let any = |wanted: &[i16]| kinds.iter().any(|kind| wanted.contains(kind));
        Self {
            finishes: any(&[FINISH]),
            continues: any(&[CONTINUE]),
            hands_over,
            gives_back: any(&[RETRY, RELEASE, SNOOZE]),
            buries: any(&[BURY]),
            one_worker,
            locking,
        }
    }

    /// Whether items have to say of which kind they are.
    fn is_mixed(self) -> bool {
        self.gives_back || self.buries || (self.finishes && self.continues)
    }

    /// Whether items say when something is due.
    fn has_times(self) -> bool {
        self.continues || self.gives_back
    }

    /// Whether attempts complete their jobs.
    fn completes(self) -> bool {
        self.finishes || self.continues
    }

    /// In the order in which they are bound. What no item needs is left out: the server reads, takes apart and keeps
    /// each element of each array.
    pub(crate) fn parameters(self) -> Vec<Parameter> {
        use Parameter::*;
        let worker = match self.one_worker {
            true => Worker,
            false => Workers,
        };
        let parts: [(bool, &[Parameter]); 7] = [
            (true, &[Jobs, Fences]),
            (self.is_mixed(), &[Kinds]),
            (self.completes(), &[worker]),
            (self.finishes || self.gives_back || self.buries, &[Texts]),
            (self.has_times(), &[Times, Delays, Step]),
            (
                self.continues,
                &[
                    NextIds,
                    NextTypes,
                    NextPriorities,
                    NextMaxAttempts,
                    NextTraces,
                    NextInputs,
                    KnownNumbers,
                    KnownNames,
                ],
            ),
            (self.hands_over, &[NextFences, NextLeases]),
        ];
        let parts = parts.into_iter().filter(|(wanted, _)| *wanted);
        parts.flat_map(|(_, part)| part.iter().copied()).collect()
    }

    /// A parameter where it stands in the statement.
    fn bound(self, parameter: Parameter) -> String {
        let place = self.parameters().iter().position(|each| *each == parameter);
        format!("${}::{}", place.map_or(0, |place| place + 1), parameter.sql().0)
    }

    /// The condition that `f` is of one of these kinds. Where all are of one kind, only that is asked for.
    fn is(self, kinds: &str) -> String {
        match self.is_mixed() {
            true => format!("f.kind IN ({kinds})"),
            false => "true".to_owned(),
        }
    }

    /// Takes what [`Shape::parameters`] says. One row: the jobs that were settled, the time, and whether
    /// the database has the types of the next jobs; if not, nothing was done.
    ///
    /// What an awaited chain's end has to do is not in here: the mark is on the row that is deleted, so it cannot be
    /// missed. Everything hangs on what the deletion returns, but for next jobs: they are written before the old ones are
    /// given up, so that an id that is taken refuses the item and no error spoils the transaction, and for this the old
    /// jobs are locked first. Where the statement may fail it does so if an id is taken, and next jobs come after the old
    /// ones, too: a lock for each, and keeping all that is given twice more, costs half as much as all the rest.
    ///
    /// Every step in between keeps its rows, outputs and all, so there are as few of them as can be. Rows are looked up one
    /// by one, whatever the server believes the tables hold, which is what `ANY` and `OFFSET 0` are for: a plan that was
    /// made when `running` looked empty would compare all with all.
    pub(crate) fn statement(self) -> String {
        let parameters = self.parameters();
        let arrays = parameters
            .iter()
            .filter_map(|parameter| Some((*parameter, parameter.sql().1?)));
        let (arrays, columns): (Vec<String>, Vec<&str>) = arrays
            .map(|(parameter, column)| (self.bound(parameter), column))
            .unzip();
        let (arrays, columns) = (arrays.join(", "), columns.join(", "));
        let timeout = match self.locking {
            Locking::Fail => format!("set_config('lock_timeout', '{}ms', true)", PATIENCE.as_millis()),
            // In the transaction of an attempt.
            Locking::Wait => {
                let idle = format!(
                    "(SELECT CASE WHEN count(*) > 0 THEN {} ELSE '' END FROM unnest({}) AS u(id) CROSS JOIN LATERAL (\
                     SELECT r.leased_until FROM {{schema}}.running AS r WHERE r.id = u.id OFFSET 0) AS r)",
                    idle_until("min(r.leased_until)"),
                    self.bound(Parameter::Jobs)
                );
                in_transaction(&idle, "text")
            }
            Locking::Skip => "''".to_owned(),
        };
        let held = match Bug::Fencing.is_on() {
            false => "r.id = ANY (ARRAY[a.id]) AND r.fence = a.fence",
            true => "r.id = ANY (ARRAY[a.id])",
        };
        let finishes = match self.is_mixed() {
            true => "a.kind = 0",
            false => "true",
        };
        let mine = match self.finishes {
            true if Bug::Unblocking.is_on() => format!(
                "{held} AND NOT ({finishes} AND EXISTS (SELECT 1 FROM {{schema}}.job AS j \
                 JOIN {{schema}}.blocker AS b ON b.chain_id = j.chain_id WHERE j.id = a.id))"
            ),
            true => format!("{held} AND NOT ({finishes} AND r.awaited)"),
            false => held.to_owned(),
        };
        let known = match self.continues {
            true => KNOWN
                .replace("{numbers}", &self.bound(Parameter::KnownNumbers))
                .replace("{names}", &self.bound(Parameter::KnownNames)),
            false => "true".to_owned(),
        };
        let mut text =
            format!("WITH clock AS MATERIALIZED (SELECT {{now}} AS now, {timeout} AS timeout, {known} AS known), ");
        let mut source = format!("unnest({arrays}) AS a({columns})");
        let may_fail = self.locking == Locking::Fail;
        if self.locking == Locking::Skip || (self.continues && !may_fail) {
            let skip = match self.locking {
                Locking::Skip => " SKIP LOCKED",
                _ => "",
            };
            text.push_str(&format!(
                "l AS MATERIALIZED (SELECT a.* FROM {source} CROSS JOIN LATERAL (\
                 SELECT 1 FROM {{schema}}.running AS r WHERE {mine} FOR UPDATE{skip}) AS x \
                 WHERE (SELECT known FROM clock)), "
            ));
            source = "l AS a".to_owned();
        }
        let (continues, others) = match self.is_mixed() {
            true => ("a.kind = 1", "a.kind <> 1"),
            false => ("true", "false"),
        };
        if self.continues && !may_fail {
            text.push_str(&format!(
                "n AS ({} WHERE {continues} ON CONFLICT (id) DO NOTHING RETURNING id), \
                 g AS MATERIALIZED (SELECT a.* FROM {source} WHERE {others} OR a.next_id IN (SELECT n.id FROM n)), ",
                next_jobs(&source)
            ));
            // By itself, and not as a condition of the deletion: that is checked again for a row that somebody has just
            // changed, apart from the rest of the statement.
            source = "g AS a".to_owned();
        }
        let given = parameters.iter().filter_map(|parameter| match parameter {
            Parameter::Jobs | Parameter::Times | Parameter::Delays => None,
            Parameter::NextMaxAttempts | Parameter::NextTraces | Parameter::NextInputs if !may_fail => None,
            parameter => parameter.sql().1,
        });
        let given: String = given.map(|column| format!(", a.{column}")).collect();
        let next_at = match self.has_times() {
            true => format!(", {} AS next_at", scheduled("a", CLOCK)),
            false => String::new(),
        };
        let rank = match self.gives_back {
            true => ", r.rank",
            false => "",
        };
        // The condition on the clock is checked before any row is read, so that the timeout is in force by then.
        text.push_str(&format!(
            "f AS (DELETE FROM {{schema}}.running AS r USING {source} \
             WHERE {mine} AND (SELECT known AND timeout IS NOT NULL FROM clock) \
             RETURNING r.id, r.scheduled_at, r.started_at, r.type_id, r.attempt, r.claims, r.priority, r.awaited, \
             r.keyed, r.chain_type_id, r.chain_created_at{rank}{given}{next_at}), "
        ));
        if self.continues && may_fail {
            text.push_str(&format!("n AS ({} WHERE {continues}), ", next_jobs("f AS a")));
        }
        let worker = match self.one_worker {
            true => self.bound(Parameter::Worker),
            false => "f.worker".to_owned(),
        };
        if self.completes() {
            let (last, output) = match (self.is_mixed(), self.finishes) {
                (true, _) => ("f.kind = 0", if self.finishes { "f.text" } else { "NULL" }),
                (false, true) => ("true", "f.text"),
                (false, false) => ("false", "NULL"),
            };
            text.push_str(&format!(
                "result AS (INSERT INTO {{schema}}.result (id, ended_at, chain_created_at, scheduled_at, chain_type_id, \
                 attempt, claims, final, started_at, settled_fence, completed_by, output) \
                 SELECT f.id, {CLOCK}, f.chain_created_at, f.scheduled_at, f.chain_type_id, f.attempt, f.claims, {last}, \
                 f.started_at, f.fence, {worker}, {output} FROM f WHERE {}), ",
                self.is("0, 1")
            ));
        }
        if self.hands_over {
            text.push_str(&format!(
                "taken AS (INSERT INTO {{schema}}.running (id, leased_until, scheduled_at, started_at, type_id, attempt, \
                 claims, priority, awaited, fence, owner, keyed, chain_type_id, chain_created_at) \
                 SELECT f.next_id, {CLOCK} + least(f.next_lease, 9223372036854775807 - {CLOCK}), f.next_at, {CLOCK}, \
                 f.next_type, 1, 1, f.next_priority, f.awaited, f.next_fence, {worker}, f.keyed, f.chain_type_id, \
                 f.chain_created_at FROM f WHERE {} AND f.next_fence IS NOT NULL), ",
                self.is("1")
            ));
        }
        let step = match self.has_times() {
            true => self.bound(Parameter::Step),
            false => String::new(),
        };
        if self.continues {
            let which = match self.hands_over {
                true => format!("{} AND f.next_fence IS NULL", self.is("1")),
                false => self.is("1"),
            };
            text.push_str(&pending(
                "next",
                "f.next_id, f.next_at, f.next_type, 0, 0, f.next_priority, f.awaited, NULL::bigint, NULL::uuid",
                &which,
                "f.next_at",
                &format!("f.next_at - f.next_priority * {step}"),
            ));
        }
        if self.gives_back {
            // What is released keeps its place.
            let at = "CASE WHEN f.kind = 4 THEN greatest(f.scheduled_at, 0) ELSE f.next_at END";
            let columns = format!(
                "f.id, {at}, f.type_id, CASE WHEN f.kind = 2 THEN f.attempt ELSE greatest(f.attempt, 1) - 1 END, f.claims, \
                 f.priority, f.awaited, f.started_at, f.fence"
            );
            text.push_str(&pending(
                "back",
                &columns,
                "f.kind IN (2, 4, 5)",
                at,
                &format!(
                    "CASE WHEN f.kind = 4 THEN coalesce(f.rank, f.scheduled_at - f.priority * {step}) \
                     ELSE f.next_at - f.priority * {step} END"
                ),
            ));
        }
        if self.buries {
            text.push_str(&format!(
                "stopped AS (INSERT INTO {{schema}}.stopped (id, ended_at, chain_created_at, scheduled_at, chain_type_id, \
                 attempt, claims, status, awaited, started_at, settled_fence, type_id) \
                 SELECT f.id, {CLOCK}, f.chain_created_at, f.scheduled_at, f.chain_type_id, f.attempt, f.claims, 4, f.awaited, \
                 f.started_at, f.fence, f.type_id FROM f WHERE f.kind = 3), "
            ));
        }
        if self.buries || self.gives_back {
            text.push_str(&format!(
                "failure AS (INSERT INTO {{schema}}.failure (id, attempt, at, message) \
                 SELECT f.id, f.attempt, {CLOCK}, f.text FROM f WHERE f.kind IN (2, 3) \
                 ON CONFLICT (id) DO UPDATE SET attempt = excluded.attempt, at = excluded.at, \
                 message = excluded.message), "
            ));
        }
        if self.finishes || self.buries {
            text.push_str(&format!(
                "key AS (DELETE FROM {{schema}}.open_key AS k WHERE k.chain_id = ANY (ARRAY(\
                 SELECT j.chain_id FROM f CROSS JOIN LATERAL (\
                 SELECT j.chain_id, j.keyed FROM {{schema}}.job AS j WHERE j.id = f.id OFFSET 0) AS j \
                 WHERE f.keyed AND j.keyed AND {}))), ",
                self.is("0, 3")
            ));
        }
        text.truncate(text.len() - 2);
        // One row for all of them: a row each would cost the server and the process more than all else in the answer.
        text.push_str(" SELECT ARRAY(SELECT f.id FROM f), clock.now, clock.known FROM clock");
        text
    }
}

/// Writes the next jobs of items `a`.
fn next_jobs(items: &str) -> String {
    format!(
        "INSERT INTO {{schema}}.job (id, chain_id, chain_index, type_id, chain_type_id, chain_created_at, created_at, \
         blockers, priority, keyed, max_attempts, trace_context, input) \
         SELECT a.next_id, j.chain_id, j.chain_index + 1, a.next_type, j.chain_type_id, j.chain_created_at, \
         {CLOCK}, 0, a.next_priority, j.keyed, a.max_attempts, a.trace_context, a.input \
         FROM {items} CROSS JOIN LATERAL (SELECT * FROM {{schema}}.job AS j WHERE j.id = a.id OFFSET 0) AS j"
    )
}

/// The two tables of pending jobs, fed from `f`.
fn pending(name: &str, columns: &str, which: &str, at: &str, rank: &str) -> String {
    let names = "id, scheduled_at, type_id, attempt, claims, priority, awaited, started_at, settled_fence";
    format!(
        "{name}_later AS (INSERT INTO {{schema}}.later ({names}) SELECT {columns} FROM f WHERE {which} AND {at} > {CLOCK}), \
         {name}_ready AS (INSERT INTO {{schema}}.ready ({names}, rank) SELECT {columns}, {rank} FROM f \
         WHERE {which} AND {at} <= {CLOCK}), "
    )
}
