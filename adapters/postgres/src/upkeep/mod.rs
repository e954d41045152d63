//! Upkeep by the workers themselves: which process does it, and in which order.

mod check;
mod expiry;
mod retention;
mod vacuum;

use std::time::Duration;

use queuert::adapter::{Maintain, Maintained};
use queuert::{StateError, Timestamp};
use tokio::sync::Mutex;
use tokio::time::Instant;

pub use retention::Retention;

use crate::connection::connect::Access;
use crate::connection::session::{Session, query};
use crate::row;
use crate::store::Store;
use crate::transaction::Work;
use crate::upkeep::check::Check;
use crate::upkeep::expiry::Sweeps;
use crate::upkeep::vacuum::Vacuums;

/// How long the upkeep is a worker's after it last asked for it. Longer than a worker lets one call run.
const LEASE: Duration = Duration::from_secs(60);
/// Until the next turn: while tables fill up with dead rows, and otherwise.
const BUSY: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(15);
/// A process that is alone and has written nothing since its last turn leaves out its turns for this long, unless the core asks
/// for upkeep more often than `OFTEN`.
const REST_OF_LONE: Duration = Duration::from_secs(50);
const OFTEN: Duration = Duration::from_secs(10);
/// How often a process checks that the database still has the types that it knows. A statement that needs a lost type adds it at
/// once; this is for types that no statement needs.
const TYPES: Duration = Duration::from_secs(60);
/// When there are more chains to delete, or more rows to check.
const MORE_TO_DELETE: Duration = Duration::from_millis(200);
const MORE_TO_CHECK: Duration = Duration::from_secs(1);
/// A worker that is not elected asks again when the lease could be over: not before this time, and after [`LEASE`] at the latest.
const SOONEST: Duration = Duration::from_secs(1);

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
    /// When the core last asked for upkeep.
    asked: Option<Instant>,
    /// When this process last had a turn and left nothing to do, and how many verbs had written then.
    rested: Option<(Instant, u64)>,
}

impl Memory {
    /// Forgets what will be out of date when this process is elected again.
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
        store: &Store,
        access: &Access,
        maintain: &Maintain,
        alone: bool,
    ) -> Result<Maintained, StateError> {
        // Other workers of this process do the upkeep at the moment.
        let Ok(mut memory) = self.memory.try_lock() else {
            return Ok(again_in(IDLE));
        };
        let written = store.writes();
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
            Box::pin(store.refresh_types(access)).await?;
            memory.types_seen = Some(Instant::now());
        }
        let worker = maintain.worker.as_str();
        let mut work = Work::statement(access).await?;
        let term = elect(&mut work.session(), store, worker).await?;
        let Some(term) = term else {
            let rest = rest(&mut work.session(), store).await?;
            work.commit().await?;
            memory.forget();
            let mut done = again_in(rest.clamp(SOONEST, LEASE));
            done.findings.extend(store.rows_without_job.finding());
            return Ok(done);
        };
        work.commit().await?;

        let mut done = again_in(IDLE);
        if memory
            .vacuums
            .run(&self.schema, store, access, &mut done.findings)
            .await?
        {
            done.again_in = Some(BUSY);
        }
        let sweep = memory.sweeps.run(&self.retention, store, access, worker, term.now);
        if sweep.await?.add_to(&mut done.deleted) {
            done.again_in = Some(MORE_TO_DELETE);
        }
        let check = memory.check.take().or_else(|| Check::due(term));
        if let Some(mut check) = check {
            if check.run(store, access, worker, &mut done.unblocked).await? {
                let mut work = Work::statement(access).await?;
                let checked = query(&store.sql.note_check).bind(worker.to_owned());
                work.session().execute(checked).await?;
                work.commit().await?;
                done.findings.extend(check.findings());
            } else {
                memory.check = Some(check);
                done.again_in = done.again_in.min(Some(MORE_TO_CHECK));
            }
        }
        if done.again_in == Some(IDLE) && self.retention.is_forever() {
            memory.rested = Some((Instant::now(), written));
        }
        // Last, because findings that are taken out and not returned are lost.
        done.findings.extend(store.rows_without_job.finding());
        Ok(done)
    }
}

fn again_in(pause: Duration) -> Maintained {
    Maintained {
        again_in: Some(pause),
        ..Maintained::default()
    }
}

/// Whether the worker has the upkeep, from now on or still. In a transaction no other worker can have it until the end.
pub(crate) async fn elect(session: &mut Session<'_>, store: &Store, worker: &str) -> Result<Option<Term>, StateError> {
    let lease = i64::try_from(LEASE.as_micros()).unwrap_or(i64::MAX);
    let elected = session
        .fetch(query(&store.sql.elect).bind(worker.to_owned()).bind(lease))
        .await?;
    let Some(found) = elected.first() else {
        return Ok(None);
    };
    Ok(Some(Term {
        now: Timestamp::from_micros(row::get(found, "now")?),
        checked_at: Timestamp::from_micros(row::get(found, "checked_at")?),
    }))
}

async fn rest(session: &mut Session<'_>, store: &Store) -> Result<Duration, StateError> {
    let rows = session.fetch(query(&store.sql.rest_of_lease)).await?;
    let Some(found) = rows.first() else {
        session.execute(query(&store.sql.add_row)).await?;
        return Ok(Duration::ZERO);
    };
    let micros: i64 = row::get(found, "rest")?;
    Ok(Duration::from_micros(u64::try_from(micros).unwrap_or_default()))
}
