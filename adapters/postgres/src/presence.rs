//! Which of the processes that hold leases are alive.
//!
//! A process that claims jobs has a lifeline, a session that holds a lock, and a row that says which workers are its own.
//! Whoever finds the lock free twice, a grace apart, takes these workers for dead: a connection that was merely cut is
//! made anew within the grace. Nobody is judged whose row is older than the server's last start (the table forgets a
//! crash by itself), nor by a process that has just lost its own lifeline: what cut one connection may have cut them all.
//!
//! All processes of a fleet share the work. The more there are, the more rarely each looks, so that the fleet as a whole
//! looks some four times a second, however large it is.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use queuert::{StateError, WorkerId};
use sqlx::postgres::PgConnectOptions;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::connect::Access;
use crate::core::Core;
use crate::lifeline::Lifeline;
use crate::row;
use crate::session::{Session, query};
use crate::transaction::Work;

/// How long a lock must be free. A process whose connection was cut is back long before.
const GRACE: Duration = Duration::from_secs(1);

/// Who has lost its own lifeline judges nobody for this long.
const ABSTENTION: Duration = Duration::from_secs(10);

/// How often a process looks: alone; with others, times their number; and in any case.
const ALONE: Duration = Duration::from_secs(5);
const PER_PROCESS: Duration = Duration::from_millis(250);
const LEAST: Duration = Duration::from_millis(500);
const MOST: Duration = Duration::from_secs(15);

/// When somebody is missed: soon again.
const SUSPECTED: Duration = Duration::from_millis(200);

/// So many sets of workers of one process are remembered, the latest.
const MOST_WORKERS: usize = 64;

/// The start of the server, in microseconds.
const STARTED: &str = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint";

/// $1 own key. All others, with whether nobody holds their lock, which is taken for no longer than this takes.
const LOOK: &str = "SELECT p.key, p.workers, pg_try_advisory_xact_lock(p.key) FROM {schema}.process AS p \
     WHERE p.key <> $1 AND p.registered_at > {started}";

/// $1 those who are taken for dead. Everybody, with whether it is one of them and its lock was free and is now taken, so
/// that it cannot come back before the transaction has ended.
const CONFIRM: &str = "SELECT p.key, p.workers, \
     CASE WHEN p.key = ANY ($1::bigint[]) THEN pg_try_advisory_xact_lock(p.key) ELSE false END \
     FROM {schema}.process AS p WHERE p.registered_at > {started}";

/// $1 key, $2 workers. With it goes what was left by a server that has been started since.
const REGISTER: &str = "WITH old AS (DELETE FROM {schema}.process AS p WHERE p.key <> $1 AND p.registered_at <= {started}) \
     INSERT INTO {schema}.process AS p (key, registered_at, workers) VALUES ($1, {now}, $2::text[]) \
     ON CONFLICT (key) DO UPDATE SET registered_at = excluded.registered_at, workers = excluded.workers";

/// $1 keys. Forgets the dead whose leases are all taken.
const FORGET: &str = "DELETE FROM {schema}.process AS p WHERE p.key = ANY ($1::bigint[]) \
     AND NOT EXISTS (SELECT 1 FROM {schema}.running AS r WHERE r.owner = ANY (p.workers))";

fn complete(text: &str) -> String {
    text.replace("{started}", STARTED)
}

/// What this handle of the store knows about itself and the others.
#[derive(Debug)]
pub(crate) struct Presence {
    lifeline: Arc<Lifeline>,
    connect: Arc<PgConnectOptions>,
    workers: Arc<watch::Sender<VecDeque<String>>>,
    keepers: Mutex<Vec<AbortHandle>>,
    /// One looks at a time.
    looking: tokio::sync::Mutex<()>,
    others: Mutex<Others>,
}

#[derive(Debug, Default)]
struct Others {
    looked_at: Option<Instant>,
    count: usize,
    /// Since when their locks are free.
    missed: BTreeMap<i64, Instant>,
    /// Who is taken for dead, and since when.
    deaths: HashMap<i64, Instant>,
}

/// Another process, as a look has found it.
#[derive(Debug)]
struct Found {
    key: i64,
    is_free: bool,
}

impl Others {
    /// When to look next.
    fn due(&self) -> Option<Instant> {
        let suspected = self.missed.len() > self.deaths.len();
        let interval = match u32::try_from(self.count).unwrap_or(u32::MAX) {
            _ if suspected => SUSPECTED,
            0 => ALONE,
            others => PER_PROCESS.saturating_mul(others.saturating_add(1)).clamp(LEAST, MOST),
        };
        self.looked_at.map(|looked_at| looked_at + interval)
    }

    fn saw(&mut self, found: &[Found], now: Instant) {
        self.looked_at = Some(now);
        self.count = found.len();
        let free: BTreeSet<i64> = found
            .iter()
            .filter(|other| other.is_free)
            .map(|other| other.key)
            .collect();
        self.missed.retain(|key, _| free.contains(key));
        for key in free {
            let since = *self.missed.entry(key).or_insert(now);
            if now.saturating_duration_since(since) >= GRACE {
                self.deaths.entry(key).or_insert(now);
            }
        }
        self.deaths.retain(|key, _| self.missed.contains_key(key));
    }

    /// What was seen before does not count any more.
    fn forget(&mut self, now: Instant) {
        self.looked_at = Some(now);
        self.missed.clear();
        self.deaths.clear();
    }
}

impl Presence {
    /// Of a handle whose connections carry the number of a lifeline.
    pub(crate) fn new(connect: Arc<PgConnectOptions>) -> Option<Self> {
        Some(Self {
            lifeline: Lifeline::of_options(&connect)?,
            connect,
            workers: Arc::default(),
            keepers: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
            others: Mutex::default(),
        })
    }

    fn others(&self) -> MutexGuard<'_, Others> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These workers of this process have claimed jobs.
    pub(crate) fn enlist(&self, worker: &WorkerId, core: &Arc<Core>, access: &Access) {
        self.workers.send_if_modified(|workers| {
            if workers.iter().any(|known| known == worker.as_str()) {
                return false;
            }
            if workers.len() >= MOST_WORKERS {
                workers.pop_front();
            }
            workers.push_back(worker.as_str().to_owned());
            true
        });
        let mut keepers = self.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        // On the runtime that claims. Should it end while another one goes on, the next claim starts them again.
        if keepers.is_empty() || keepers.iter().any(AbortHandle::is_finished) {
            keepers.drain(..).for_each(|keeper| keeper.abort());
            let keep = Arc::clone(&self.lifeline).keep(PgConnectOptions::clone(&self.connect));
            let register = register(
                Arc::clone(&self.lifeline),
                self.workers.subscribe(),
                Arc::clone(core),
                access.clone(),
            );
            keepers.extend([tokio::spawn(keep).abort_handle(), tokio::spawn(register).abort_handle()]);
        }
    }

    /// Gives up the lifeline: to all others this process has died.
    pub(crate) fn leave(&self) {
        let mut keepers = self.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        keepers.drain(..).for_each(|keeper| keeper.abort());
    }

    /// Who is taken for dead.
    pub(crate) fn deaths(&self) -> Vec<i64> {
        self.others().deaths.keys().copied().collect()
    }

    /// Waits until somebody is taken for dead, later than that.
    pub(crate) async fn death_since(&self, since: Instant, core: &Core, access: &Access) {
        loop {
            if self.others().deaths.values().any(|found_at| *found_at > since) {
                return;
            }
            let due = self.others().due();
            if let Some(due) = due {
                tokio::time::sleep_until(due).await;
            }
            let _turn = self.looking.lock().await;
            // Another set of workers of this process may have looked meanwhile.
            if self.others().due() == due {
                self.look(core, access).await;
            }
        }
    }

    async fn look(&self, core: &Core, access: &Access) {
        let found = self.find(core, access).await;
        let now = Instant::now();
        let lost_at = self.lifeline.watch().borrow().lost_at;
        let abstains = lost_at.is_some_and(|lost_at| now.saturating_duration_since(lost_at) < ABSTENTION);
        let mut others = self.others();
        match found {
            Ok(found) if !abstains => others.saw(&found, now),
            Ok(found) => {
                others.count = found.len();
                others.forget(now);
            }
            // Whoever calls the store notices too.
            Err(_) => others.forget(now),
        }
    }

    async fn find(&self, core: &Core, access: &Access) -> Result<Vec<Found>, StateError> {
        let mut work = Work::single(access).await?;
        let look = query(&core.render(&complete(LOOK))).bind(self.lifeline.key());
        let rows = work.session().fetch(look).await?;
        work.finish().await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            found.push(Found {
                key: row::get(row, 0)?,
                is_free: row::get(row, 2)?,
            });
        }
        Ok(found)
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Keeps the row of this process: written whenever its lifeline was made anew, because the table may have been emptied, and
/// when it has other workers.
async fn register(
    lifeline: Arc<Lifeline>,
    mut workers: watch::Receiver<VecDeque<String>>,
    core: Arc<Core>,
    access: Access,
) {
    let mut held = lifeline.watch();
    let mut backoff = crate::notify_backoff::Backoff::default();
    loop {
        // Neither is ever closed: this task has both, or its handle goes with it.
        let taken = held.wait_for(|held| held.sessions > 0).await.map(|held| held.taken);
        let names: Vec<String> = workers.borrow_and_update().iter().cloned().collect();
        if write(&core, &access, lifeline.key(), names).await.is_err() {
            tokio::time::sleep(backoff.next_pause()).await;
            continue;
        }
        backoff.reset();
        let anew = held.wait_for(|held| held.sessions > 0 && taken.as_ref().is_ok_and(|taken| held.taken != *taken));
        tokio::select! {
            _ = anew => {}
            changed = workers.changed() => if changed.is_err() { return },
        }
    }
}

async fn write(core: &Core, access: &Access, key: i64, workers: Vec<String>) -> Result<(), StateError> {
    let mut work = Work::single(access).await?;
    let register = query(&core.render(&complete(REGISTER))).bind(key).bind(workers);
    work.session().execute(register).await?;
    work.finish().await
}

/// Those of the dead who are dead indeed, and their workers. They stay so until the transaction ends.
#[derive(Debug, Default)]
pub(crate) struct Confirmed {
    keys: Vec<i64>,
    pub(crate) workers: Vec<String>,
}

pub(crate) async fn confirm(session: &mut Session<'_>, core: &Core, dead: &[i64]) -> Result<Confirmed, StateError> {
    if dead.is_empty() {
        return Ok(Confirmed::default());
    }
    let confirm = query(&core.render(&complete(CONFIRM))).bind(dead.to_vec());
    let (mut keys, mut lost, mut others) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for found in session.fetch(confirm).await? {
        let workers: Vec<String> = row::get(&found, 1)?;
        match row::get(&found, 2)? {
            true => {
                keys.push(row::get(&found, 0)?);
                lost.extend(workers);
            }
            false => others.extend(workers),
        }
    }
    // A name that is used twice is alive if one of the two is.
    let workers = lost.difference(&others).cloned().collect();
    Ok(Confirmed { keys, workers })
}

/// Forgets them, once their leases are taken.
pub(crate) async fn forget(session: &mut Session<'_>, core: &Core, confirmed: &Confirmed) -> Result<(), StateError> {
    if confirmed.keys.is_empty() {
        return Ok(());
    }
    let forget = query(&core.render(FORGET)).bind(confirmed.keys.clone());
    session.execute(forget).await
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(300);

    fn saw(others: &mut Others, free: &[i64], held: &[i64], now: Instant) {
        let of = |keys: &[i64], is_free| {
            keys.iter()
                .map(move |key| Found { key: *key, is_free })
                .collect::<Vec<_>>()
        };
        let found: Vec<Found> = of(free, true).into_iter().chain(of(held, false)).collect();
        others.saw(&found, now);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_missed_for_the_grace_is_dead_and_who_comes_back_is_not() {
        let mut others = Others::default();
        let begun = Instant::now();
        saw(&mut others, &[1], &[2], begun);
        assert!(others.deaths.is_empty());
        assert_eq!(others.due(), Some(begun + SUSPECTED));
        saw(&mut others, &[], &[1, 2], begun + STEP);
        saw(&mut others, &[1], &[2], begun + STEP * 2);
        saw(&mut others, &[1], &[2], begun + STEP * 4);
        assert!(others.deaths.is_empty(), "it was there in between");
        let end = begun + STEP * 2 + GRACE;
        saw(&mut others, &[1], &[2], end);
        assert_eq!(others.deaths, HashMap::from([(1, end)]));
        saw(&mut others, &[1], &[2], end + STEP);
        assert_eq!(others.deaths, HashMap::from([(1, end)]), "found out once");
        assert_eq!(others.due(), Some(end + STEP + PER_PROCESS * 3), "no hurry any more");
        saw(&mut others, &[], &[2], end + STEP * 2);
        assert!(others.deaths.is_empty(), "its row has gone");
    }

    #[tokio::test(start_paused = true)]
    async fn a_gap_in_what_is_known_starts_the_grace_again() {
        let mut others = Others::default();
        let begun = Instant::now();
        saw(&mut others, &[1], &[], begun);
        others.forget(begun + STEP);
        saw(&mut others, &[1], &[], begun + GRACE);
        assert!(others.deaths.is_empty());
        saw(&mut others, &[1], &[], begun + GRACE * 2);
        assert_eq!(others.deaths.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_fleet_looks_no_more_often_than_a_small_one() {
        let now = Instant::now();
        for (size, interval) in [
            (0, ALONE),
            (1, LEAST),
            (3, PER_PROCESS * 4),
            (19, PER_PROCESS * 20),
            (500, MOST),
        ] {
            let mut others = Others::default();
            assert_eq!(others.due(), None, "the first look comes at once");
            saw(&mut others, &[], &Vec::from_iter(0..size), now);
            assert_eq!(others.due(), Some(now + interval), "{size} others");
        }
    }
}
