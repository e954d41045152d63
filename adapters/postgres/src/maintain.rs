//! Upkeep by the workers themselves: who does it, and in which order.

use std::time::Duration;

use queuert::adapter::{Maintain, Maintained};
use queuert::{StateError, Timestamp};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::connect::Access;
use crate::core::Core;
use crate::maintain_check::Check;
use crate::maintain_retention::Sweeps;
use crate::maintain_vacuum::Vacuums;
use crate::retention::Retention;
use crate::row;
use crate::session::{Session, query};
use crate::transaction::Work;

/// How long the upkeep is somebody's after they last asked for it. Longer than a worker lets one call run.
const LEASE: Duration = Duration::from_secs(60);
/// Until the next turn: while tables fill up with dead rows, and otherwise.
const BUSY: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(15);
/// A process that is alone and has written nothing since its last turn leaves out its turns for this long. Not if it is asked
/// more often than this.
const REST_OF_LONE: Duration = Duration::from_secs(50);
const OFTEN: Duration = Duration::from_secs(10);
/// How often a process looks whether the database still has the types that it knows. Whoever meets one that is lost adds it
/// at once; this is for those that nobody meets.
const TYPES: Duration = Duration::from_secs(60);
/// When there are more chains to delete, or more rows to check.
const MORE_TO_DELETE: Duration = Duration::from_millis(200);
const MORE_TO_CHECK: Duration = Duration::from_secs(1);
/// Those who are not elected ask again when the lease could be over, within these bounds.
const SOONEST: Duration = Duration::from_secs(1);

/// $1 worker, $2 duration of the lease. Makes it the worker's, or keeps it so, unless somebody else has it; and locks
/// the row until the transaction ends. Returns the time, and when all rows were last checked.
const ELECT: &str = "UPDATE {schema}.maintainer SET owner = $1, leased_until = {now} + $2::bigint \
     WHERE single = (SELECT m.single FROM {schema}.maintainer AS m \
     WHERE m.single AND (m.owner = $1 OR m.leased_until <= {now}) FOR UPDATE SKIP LOCKED) RETURNING {now}, checked_at";

/// The rest of the lease; nothing if there is no row, as after somebody has emptied all tables.
const REST: &str = "SELECT m.leased_until - {now} FROM {schema}.maintainer AS m WHERE m.single";

const ADD_ROW: &str = "INSERT INTO {schema}.maintainer (leased_until, checked_at, single, owner) \
     VALUES (0, 0, true, '') ON CONFLICT DO NOTHING";

/// $1 worker. All rows have been checked.
const CHECKED: &str = "UPDATE {schema}.maintainer SET checked_at = {now} \
     WHERE single = (SELECT m.single FROM {schema}.maintainer AS m WHERE m.single AND m.owner = $1 FOR UPDATE SKIP LOCKED)";

/// What a process remembers between two turns. Losing it costs some work, and nothing else.
#[derive(Debug)]
pub(crate) struct Upkeep {
    /// The schema's name, not quoted.
    schema: String,
    retention: Retention,
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    types_seen: Option<Instant>,
    vacuums: Vacuums,
    sweeps: Sweeps,
    check: Option<Check>,
    /// When it was last asked.
    asked: Option<Instant>,
    /// When it was last this process's turn and nothing was left to do, and how much the process had written then.
    rested: Option<(Instant, u64)>,
}

impl Memory {
    /// What was remembered is old when this process is elected again.
    fn forget(&mut self) {
        self.vacuums.forget();
        self.sweeps = Sweeps::default();
        self.check = None;
    }
}

/// The election of a worker, renewed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Term {
    pub(crate) now: Timestamp,
    pub(crate) checked_at: Timestamp,
}

impl Upkeep {
    pub(crate) fn new(schema: &str, retention: Retention) -> Self {
        Self {
            schema: schema.to_owned(),
            retention,
            memory: Mutex::default(),
        }
    }

    pub(crate) async fn run(
        &self,
        core: &Core,
        access: &Access,
        maintain: &Maintain,
        alone: bool,
    ) -> Result<Maintained, StateError> {
        // Other workers of this process are at it.
        let Ok(mut memory) = self.memory.try_lock() else {
            return Ok(again_in(IDLE));
        };
        let written = core.work();
        let often = memory
            .asked
            .replace(Instant::now())
            .is_none_or(|asked| asked.elapsed() < OFTEN);
        let rests = |(since, done): (Instant, u64)| since.elapsed() < REST_OF_LONE && done == written;
        if alone && !often && memory.rested.is_some_and(rests) {
            return Ok(again_in(IDLE));
        }
        memory.rested = None;
        if memory.types_seen.is_none_or(|seen| seen.elapsed() >= TYPES) {
            Box::pin(core.refresh_types(access)).await?;
            memory.types_seen = Some(Instant::now());
        }
        let worker = maintain.worker.as_str();
        let mut work = Work::single(access).await?;
        let term = elect(&mut work.session(), core, worker).await?;
        let Some(term) = term else {
            let rest = rest(&mut work.session(), core).await?;
            work.finish().await?;
            memory.forget();
            let mut done = again_in(rest.clamp(SOONEST, LEASE));
            done.findings.extend(core.lost.finding());
            return Ok(done);
        };
        work.finish().await?;

        let mut done = again_in(IDLE);
        if memory
            .vacuums
            .run(&self.schema, core, access, &mut done.findings)
            .await?
        {
            done.again_in = Some(BUSY);
        }
        let sweep = memory.sweeps.run(&self.retention, core, access, worker, term.now);
        if sweep.await?.add_to(&mut done.deleted) {
            done.again_in = Some(MORE_TO_DELETE);
        }
        let check = memory.check.take().or_else(|| Check::due(term));
        if let Some(mut check) = check {
            if check.run(core, access, worker, &mut done.unblocked).await? {
                let mut work = Work::single(access).await?;
                let checked = query(&core.render(CHECKED)).bind(worker.to_owned());
                work.session().execute(checked).await?;
                work.finish().await?;
                done.findings.extend(check.findings());
            } else {
                memory.check = Some(check);
                done.again_in = done.again_in.min(Some(MORE_TO_CHECK));
            }
        }
        if done.again_in == Some(IDLE) && self.retention.is_forever() {
            memory.rested = Some((Instant::now(), written));
        }
        // Last, because what is taken out and not returned is not told.
        done.findings.extend(core.lost.finding());
        Ok(done)
    }
}

fn again_in(pause: Duration) -> Maintained {
    Maintained {
        again_in: Some(pause),
        ..Maintained::default()
    }
}

/// Whether the worker has the upkeep, from now on or still. In a transaction nobody else can have it until the end.
pub(crate) async fn elect(session: &mut Session<'_>, core: &Core, worker: &str) -> Result<Option<Term>, StateError> {
    let lease = i64::try_from(LEASE.as_micros()).unwrap_or(i64::MAX);
    let elected = session
        .fetch(query(&core.render(ELECT)).bind(worker.to_owned()).bind(lease))
        .await?;
    let Some(found) = elected.first() else {
        return Ok(None);
    };
    Ok(Some(Term {
        now: Timestamp::from_micros(row::get(found, 0)?),
        checked_at: Timestamp::from_micros(row::get(found, 1)?),
    }))
}

async fn rest(session: &mut Session<'_>, core: &Core) -> Result<Duration, StateError> {
    let rows = session.fetch(query(&core.render(REST))).await?;
    let Some(found) = rows.first() else {
        session.execute(query(&core.render(ADD_ROW))).await?;
        return Ok(Duration::ZERO);
    };
    let micros: i64 = row::get(found, 0)?;
    Ok(Duration::from_micros(u64::try_from(micros).unwrap_or_default()))
}
