//! Deleting chains that ended long ago, a batch at a time, oldest first.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use queuert::adapter::ExpiredChain;
use queuert::{ChainId, StateError, StateErrorKind, Timestamp, TypeName};
use tokio::time::Instant;
use uuid::Uuid;

use crate::connection::connect::Access;
use crate::connection::session::{Session, query};
use crate::row;
use crate::statements::{Filling, text};
use crate::store::Store;
use crate::transaction::Work;
use crate::upkeep::Retention;
use crate::upkeep::elect;
use crate::verbs::operate::delete::{erase, references};

/// Chains per transaction.
const BATCH: i64 = 500;
/// How long one turn may go on.
const TURN: Duration = Duration::from_secs(1);
/// From the end of one sweep over all types to the next: a tenth of the shortest age, within these bounds.
const SOONEST: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(60);

/// Numbers in the table of what has stopped.
const DEAD: i16 = 4;
const CANCELLED: i16 = 5;

/// Where the sweeps over old chains are.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    /// The runs that are left of this sweep.
    runs: VecDeque<Run>,
    ended: Option<Instant>,
}

/// Chains of one type that ended in one way.
#[derive(Clone, Debug)]
struct Run {
    type_name: TypeName,
    type_id: i32,
    /// `None`: completed.
    stopped: Option<i16>,
    before: i64,
    /// The end of the last page.
    after: (i64, Uuid),
}

/// What came of a turn.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    deleted: Vec<ExpiredChain>,
    more: bool,
}

impl Swept {
    /// Adds what was deleted, and says whether there is more to do.
    pub(crate) fn add_to(self, deleted: &mut Vec<ExpiredChain>) -> bool {
        deleted.extend(self.deleted);
        self.more
    }
}

impl Sweeps {
    pub(crate) async fn run(
        &mut self,
        retention: &Retention,
        store: &Store,
        access: &Access,
        worker: &str,
        now: Timestamp,
    ) -> Result<Swept, StateError> {
        let mut swept = Swept::default();
        let Some(shortest) = retention.shortest() else {
            return Ok(swept);
        };
        if self.runs.is_empty() {
            let pause = (shortest / 10).clamp(SOONEST, LATEST);
            if self.ended.is_some_and(|ended| ended.elapsed() < pause) {
                return Ok(swept);
            }
            self.runs = plan(retention, store, access, now).await?;
        }
        let begun = Instant::now();
        while let Some(run) = self.runs.front_mut() {
            if begun.elapsed() >= TURN {
                swept.more = true;
                return Ok(swept);
            }
            match delete_page(run, store, access, worker).await {
                Ok(Page::Next(deleted)) => swept.deleted.extend(deleted),
                Ok(Page::Last(deleted)) => {
                    swept.deleted.extend(deleted);
                    self.runs.pop_front();
                }
                // The deleted chains must be reported; the failure will come again if it lasts.
                Err(_) if !swept.deleted.is_empty() => {
                    swept.more = true;
                    return Ok(swept);
                }
                Err(error) => return Err(error),
            }
        }
        self.ended = Some(Instant::now());
        Ok(swept)
    }
}

async fn plan(
    retention: &Retention,
    store: &Store,
    access: &Access,
    now: Timestamp,
) -> Result<VecDeque<Run>, StateError> {
    let mut work = Work::statement(access).await?;
    let types = store.all_types(&mut work.session()).await?;
    work.commit().await?;
    let mut runs = VecDeque::new();
    for type_id in types {
        let Some(type_name) = store.type_ids.name(type_id) else {
            continue;
        };
        let Some(age) = retention.age(&type_name) else {
            continue;
        };
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        for stopped in [None, Some(CANCELLED), Some(DEAD)] {
            if stopped == Some(DEAD) && !retention.deletes_dead() {
                continue;
            }
            runs.push_back(Run {
                type_name: type_name.clone(),
                type_id,
                stopped,
                before: now.as_micros().saturating_sub(age),
                after: (i64::MIN, Uuid::nil()),
            });
        }
    }
    Ok(runs)
}

/// A page, with what was deleted of it.
enum Page {
    Next(Vec<ExpiredChain>),
    Last(Vec<ExpiredChain>),
}

async fn delete_page(run: &mut Run, store: &Store, access: &Access, worker: &str) -> Result<Page, StateError> {
    let mut work = Work::statement(access).await?;
    let found = read_page(&mut work.session(), store, run).await?;
    work.commit().await?;
    let Some((last, _)) = found.last() else {
        return Ok(Page::Last(Vec::new()));
    };
    let (last, full) = (*last, found.len() >= usize::try_from(BATCH).unwrap_or(usize::MAX));
    let old: Vec<Uuid> = found.iter().filter(|(_, old)| *old).map(|((_, id), _)| *id).collect();
    let mut deleted = Vec::new();
    if !old.is_empty() {
        let mut work = Work::transaction(access).await?;
        match delete_chains(&mut work.session(), store, run, worker, old).await {
            Ok(chains) => {
                work.commit().await?;
                let expired = |id| ExpiredChain {
                    id: ChainId::from_uuid(id),
                    type_name: run.type_name.clone(),
                };
                deleted.extend(chains.into_iter().map(expired));
            }
            // Another transaction has a lock; the next sweep tries again.
            Err(error) if error.kind() == StateErrorKind::Conflict => work.rollback().await?,
            Err(error) => return Err(error),
        }
    }
    run.after = last;
    Ok(if full { Page::Next(deleted) } else { Page::Last(deleted) })
}

/// The next page: where each chain stands in the order, and whether it ended long enough ago.
async fn read_page(
    session: &mut Session<'_>,
    store: &Store,
    run: &Run,
) -> Result<Vec<((i64, Uuid), bool)>, StateError> {
    let template = match run.stopped {
        None => text::EXPIRED_COMPLETED,
        Some(_) => text::EXPIRED_STOPPED,
    };
    let (created_at, id) = run.after;
    let mut page = query(&store.statement(template, Filling::none().with("batch", BATCH)))
        .bind(run.type_id)
        .bind(run.before)
        .bind(created_at)
        .bind(id);
    if let Some(status) = run.stopped {
        page = page.bind(status);
    }
    let mut found = Vec::new();
    for row in &session.fetch(page).await? {
        let place = (row::get(row, "chain_created_at")?, row::get(row, "id")?);
        found.push((place, row::get(row, "is_expired")?));
    }
    Ok(found)
}

/// Deletes the chains that no other transaction has locked and to which no job refers, if the upkeep is still this worker's.
async fn delete_chains(
    session: &mut Session<'_>,
    store: &Store,
    run: &Run,
    worker: &str,
    last_jobs: Vec<Uuid>,
) -> Result<Vec<Uuid>, StateError> {
    if elect(session, store, worker).await?.is_none() {
        return Ok(Vec::new());
    }
    session.execute(query(&store.sql.limit_lock_wait_of_deletion)).await?;
    let lock = match run.stopped {
        None => query(&store.sql.lock_completed).bind(last_jobs),
        Some(status) => query(&store.sql.lock_stopped)
            .bind(last_jobs)
            .bind(run.before)
            .bind(status),
    };
    let mut chains: Vec<Uuid> = Vec::new();
    let mut keyed = false;
    for found in &session.fetch(lock).await? {
        chains.push(row::get(found, "chain_id")?);
        keyed |= row::get::<bool>(found, "keyed")?;
    }
    // A chain that stays may refer to another one, which then stays too.
    while !chains.is_empty() {
        let referenced: HashSet<Uuid> = references(session, store, &chains)
            .await?
            .iter()
            .map(|reference| reference.chain.as_uuid())
            .collect();
        if referenced.is_empty() {
            break;
        }
        chains.retain(|chain| !referenced.contains(chain));
    }
    if !chains.is_empty() {
        erase(session, store, &chains, keyed).await?;
    }
    Ok(chains)
}
