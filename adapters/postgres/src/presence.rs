//! Which of the processes that hold leases are alive.
//!
//! A process that claims jobs has a lifeline, a session that holds a lock, and a row that says which workers are its own;
//! it has both before its first claim. A process that finds the lock of another one free twice, a grace apart, takes its
//! workers for dead: a connection that was merely cut is made anew within the grace. If it cannot be, because the server
//! has no connection left, the process says in its row that it lives, over any connection that it has, and so does every
//! renewal of leases: as long as the row changes, the process is alive. A process is not judged if its row is older than
//! the server's last start (the table forgets a crash by itself), nor by a process that has just lost its own lifeline:
//! what cut one connection may have cut them all.
//!
//! All processes of a fleet share the work. Where there is a notifier, the process that looks for due jobs looks for free
//! locks with the same statement, and the others hear of it and need not look ([`notify_fleet`](crate::notify_fleet)). It takes
//! back the jobs of its own types only, so it also says which locks are free, and processes that run other types look then.
//! Elsewhere each process looks by itself: the more there are, the more rarely, so that the fleet as a whole looks some five
//! times in two seconds, however large it is. A process that has found a free lock looks again soon until it knows.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use queuert::__task::{Lock, LockGuard, spawn};
use queuert::{StateError, WorkerId};
use sqlx::postgres::PgConnectOptions;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::connect::Access;
use crate::core::Core;
use crate::hidden::Hidden;
use crate::lifeline::Lifeline;
use crate::presence_others::{Found, Others, SUSPECTED};
use crate::row;
use crate::session::{Session, query};
use crate::transaction::Work;

/// How often a process without a lifeline says that it lives. Several times per grace.
const SIGN_OF_LIFE: Duration = Duration::from_millis(250);

/// How long one sign may take: the next one may find a better connection.
const SIGN_DEADLINE: Duration = Duration::from_millis(750);

/// How long the first claim waits for the lifeline and the row. A server that has no connection left must not keep
/// workers from working: their leases decide then.
const FIRST_CLAIM: Duration = Duration::from_secs(2);

/// Who has lost its own lifeline judges nobody for this long.
const ABSTENTION: Duration = Duration::from_secs(10);

/// A look that takes longer is not waited for.
const LONGEST_LOOK: Duration = Duration::from_secs(5);

/// With more sets of workers than this, those of one process are forgotten that have not claimed for a while: they have
/// stopped, or will be known again with their next claim.
const MANY_WORKERS: usize = 64;
const STOPPED: Duration = Duration::from_secs(600);

/// Sweeps that are this far apart need not look for expired leases if the notifier has done so within this time.
const SELDOM: Duration = Duration::from_secs(5);
const LATELY: Duration = Duration::from_secs(2);

/// The start of the server, in microseconds.
pub(crate) const STARTED: &str = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint";

/// $1 own key. All others, with their last sign of life, and whether nobody holds their lock, which is taken for no longer
/// than this takes.
const LOOK: &str = "SELECT p.key, p.renewed_at, pg_try_advisory_xact_lock(p.key) FROM {schema}.process AS p \
     WHERE p.key <> $1 AND p.registered_at > {started}";

/// $1 those who are taken for dead, $2 their last signs of life. Those of whom there was none since; until the transaction
/// ends, there can be none.
const LOCK: &str = "SELECT p.key FROM {schema}.process AS p JOIN unnest($1::bigint[], $2::bigint[]) AS d(key, renewed_at) \
     ON d.key = p.key AND d.renewed_at = p.renewed_at FOR UPDATE OF p SKIP LOCKED";

/// $1 own key.
const SIGN: &str = "UPDATE {schema}.process SET renewed_at = {now} WHERE key = $1";

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
    connect: Hidden<Arc<PgConnectOptions>>,
    workers: Arc<watch::Sender<Vec<Enlisted>>>,
    /// The workers that are in the row.
    registered: Arc<watch::Sender<Vec<String>>>,
    keepers: Lock<Vec<AbortHandle>>,
    /// One looks at a time.
    looking: Lock<Option<Instant>>,
    others: Lock<Others>,
    /// Changes when a look of the notifier has found something.
    noted: watch::Sender<()>,
    leases: Lock<Leases>,
}

/// What is known of expired leases.
#[derive(Debug, Default)]
struct Leases {
    /// When a look of the notifier has found that no lease had expired.
    none_expired: Option<Instant>,
    /// When a sweep was last asked for.
    swept: Option<Instant>,
}

/// A set of workers of this process.
#[derive(Clone, Debug)]
struct Enlisted {
    name: String,
    claimed_at: Instant,
}

/// Takes note of a claim. Whether the set of workers was not known.
fn enlist(workers: &mut Vec<Enlisted>, name: &str, now: Instant) -> bool {
    if let Some(known) = workers.iter_mut().find(|known| known.name == name) {
        known.claimed_at = now;
        return false;
    }
    if workers.len() >= MANY_WORKERS {
        workers.retain(|known| now.saturating_duration_since(known.claimed_at) < STOPPED);
    }
    workers.push(Enlisted {
        name: name.to_owned(),
        claimed_at: now,
    });
    true
}

/// A process that is taken for dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missed {
    key: i64,
    /// Its last sign of life.
    renewed_at: i64,
}

impl Presence {
    /// Of a handle whose connections carry the number of the lifeline.
    pub(crate) fn new(lifeline: Arc<Lifeline>, connect: Arc<PgConnectOptions>) -> Self {
        Self {
            lifeline,
            connect: Hidden(connect),
            workers: Arc::default(),
            registered: Arc::default(),
            keepers: Lock::default(),
            looking: Lock::default(),
            others: Lock::default(),
            noted: watch::Sender::default(),
            leases: Lock::default(),
        }
    }

    pub(crate) fn lifeline(&self) -> Arc<Lifeline> {
        Arc::clone(&self.lifeline)
    }

    /// Whether a pooler was found since.
    pub(crate) fn is_pooled(&self) -> bool {
        self.lifeline.is_pooled()
    }

    fn others(&self) -> LockGuard<'_, Others> {
        self.others.lock()
    }

    pub(crate) fn key(&self) -> i64 {
        self.lifeline.key()
    }

    /// These workers of this process are about to claim jobs. The first time it waits until the others can know of them.
    pub(crate) async fn enlist(&self, worker: &WorkerId, core: &Arc<Core>, access: &Access) {
        let now = Instant::now();
        let added = self
            .workers
            .send_if_modified(|workers| enlist(workers, worker.as_str(), now));
        self.keep(core, access);
        if added {
            let mut registered = self.registered.subscribe();
            let known = registered.wait_for(|names| names.iter().any(|name| name == worker.as_str()));
            // Boxed, because it is rare. Without it the leases decide.
            let _ = Box::pin(tokio::time::timeout(FIRST_CLAIM, known)).await;
        }
    }

    /// Starts the tasks, unless they are there.
    fn keep(&self, core: &Arc<Core>, access: &Access) {
        // On the runtime that claims. Should it end while another one goes on, the next claim starts them again.
        if are_gone(&self.keepers.lock()) {
            let keep = Arc::clone(&self.lifeline).keep(PgConnectOptions::clone(&self.connect));
            let register = register(
                Arc::clone(&self.lifeline),
                self.workers.subscribe(),
                Arc::clone(&self.registered),
                Arc::clone(core),
                access.clone(),
            );
            let vouch = vouch(Arc::clone(&self.lifeline), Arc::clone(core), access.clone());
            let mut old = vec![
                spawn(keep).abort_handle(),
                spawn(register).abort_handle(),
                spawn(vouch).abort_handle(),
            ];
            {
                let mut keepers = self.keepers.lock();
                // Another claim may have started them meanwhile.
                if are_gone(&keepers) {
                    std::mem::swap(&mut *keepers, &mut old);
                }
            }
            old.iter().for_each(AbortHandle::abort);
        }
    }

    /// Gives up the lifeline: to all others this process has died.
    pub(crate) fn leave(&self) {
        let keepers = std::mem::take(&mut *self.keepers.lock());
        keepers.iter().for_each(AbortHandle::abort);
    }

    /// Who is taken for dead.
    pub(crate) fn deaths(&self) -> Vec<Missed> {
        let others = self.others();
        let missed = others.missed.iter().filter(|(key, _)| others.deaths.contains_key(key));
        missed
            .map(|(key, absence)| Missed {
                key: *key,
                renewed_at: absence.renewed_at,
            })
            .collect()
    }

    /// Waits until somebody is taken for dead, later than that.
    pub(crate) async fn death_since(&self, since: Instant, core: &Core, access: &Access) {
        let mut noted = self.noted.subscribe();
        loop {
            if self.others().deaths.values().any(|found_at| *found_at > since) {
                return;
            }
            let due = self.others().due();
            if let Some(due) = due {
                tokio::select! {
                    biased;
                    // Never closed: this value has the sender.
                    _ = noted.changed() => continue,
                    () = tokio::time::sleep_until(due) => {}
                }
            }
            let Some(_turn) = self.look_alone() else {
                tokio::time::sleep(SUSPECTED).await;
                continue;
            };
            // Another set of workers of this process may have looked meanwhile.
            if self.others().due() == due {
                self.look(core, access).await;
            }
        }
    }

    /// The right to look, unless another set of workers of this process is about to. It is lost after a while: its owner
    /// may be a future that nobody polls.
    fn look_alone(&self) -> Option<Turn<'_>> {
        let now = Instant::now();
        let mut looking = self.looking.lock();
        if looking.is_some_and(|since| now.saturating_duration_since(since) < LONGEST_LOOK) {
            return None;
        }
        *looking = Some(now);
        Some(Turn {
            looking: &self.looking,
            since: now,
        })
    }

    async fn look(&self, core: &Core, access: &Access) {
        match self.find(core, access).await {
            Ok(found) => self.note(&found),
            // Whoever calls the store notices too.
            Err(_) => self.others().forget(Instant::now()),
        }
    }

    /// Takes note of what a look has found, of this task or of the notifier.
    pub(crate) fn note(&self, found: &[Found]) {
        let now = Instant::now();
        let abstains = self.abstains(now);
        let mut others = self.others();
        if abstains {
            others.count = found.len();
            others.forget(now);
        } else {
            others.saw(found, now);
        }
        drop(others);
        self.noted.send_replace(());
    }

    /// A look of the notifier has found whether some lease has expired.
    pub(crate) fn note_leases(&self, expired: bool) {
        self.leases.lock().none_expired = (!expired).then(Instant::now);
    }

    /// Whether a sweep would find nothing, as a look has just found. Not if sweeps are asked for often: they are to be prompt.
    pub(crate) fn may_skip_sweep(&self) -> bool {
        let now = Instant::now();
        let mut leases = self.leases.lock();
        let seldom = |swept: Instant| now.saturating_duration_since(swept) >= SELDOM;
        let fresh = |seen: Instant| now.saturating_duration_since(seen) < LATELY;
        let seldom = leases.swept.replace(now).is_some_and(seldom);
        seldom && leases.none_expired.is_some_and(fresh)
    }

    /// Whether this process looks for others, and has found none.
    pub(crate) fn is_alone(&self) -> bool {
        self.may_judge().is_some() && self.others().count == 0
    }

    /// Another process has looked for dead ones: this one need not do so for a while.
    pub(crate) fn others_looked(&self) {
        self.others().relieve(Instant::now());
    }

    /// Another process misses the one with this key, and does not run all of the types that this process runs: this one
    /// looks, too.
    pub(crate) fn others_miss(&self, key: i64) {
        if key != self.key() && self.others().suspect(key) {
            self.noted.send_replace(());
        }
    }

    /// The own key, if this process may take others for dead, so that the rest of the fleet can rely on its looks.
    pub(crate) fn may_judge(&self) -> Option<i64> {
        let can = !self.is_pooled() && !are_gone(&self.keepers.lock()) && !self.abstains(Instant::now());
        can.then(|| self.key())
    }

    fn abstains(&self, now: Instant) -> bool {
        let lost_at = self.lifeline.watch().borrow().lost_at;
        lost_at.is_some_and(|lost_at| now.saturating_duration_since(lost_at) < ABSTENTION)
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
                renewed_at: row::get(row, 1)?,
                is_free: row::get(row, 2)?,
            });
        }
        Ok(found)
    }
}

/// The right to look, until it is dropped.
struct Turn<'p> {
    looking: &'p Lock<Option<Instant>>,
    since: Instant,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.looking.lock().take_if(|since| *since == self.since);
    }
}

fn are_gone(keepers: &[AbortHandle]) -> bool {
    keepers.is_empty() || keepers.iter().any(AbortHandle::is_finished)
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Keeps the row of this process: written whenever its lifeline was made anew, because the table may have been emptied, and
/// when it has other workers. Taken away when a pooler is found: no session of this process can say any more that it lives, so
/// it must not be judged by one.
async fn register(
    lifeline: Arc<Lifeline>,
    mut workers: watch::Receiver<Vec<Enlisted>>,
    registered: Arc<watch::Sender<Vec<String>>>,
    core: Arc<Core>,
    access: Access,
) {
    let mut held = lifeline.watch();
    let mut backoff = crate::notify_backoff::Backoff::default();
    while !lifeline.is_pooled() {
        // Neither is ever closed: this task has both, or its handle goes with it.
        let taken = tokio::select! {
            taken = held.wait_for(|held| held.sessions > 0) => taken.map(|held| held.taken),
            () = lifeline.pooled() => break,
        };
        let names: Vec<String> = workers
            .borrow_and_update()
            .iter()
            .map(|known| known.name.clone())
            .collect();
        if write(&core, &access, lifeline.key(), names.clone()).await.is_err() {
            tokio::time::sleep(backoff.next_pause()).await;
            continue;
        }
        registered.send_replace(names);
        backoff.reset();
        let anew = held.wait_for(|held| held.sessions > 0 && taken.as_ref().is_ok_and(|taken| held.taken != *taken));
        tokio::select! {
            _ = anew => {}
            changed = workers.changed() => if changed.is_err() { return },
            () = lifeline.pooled() => break,
        }
    }
    while withdraw(&core, &access, lifeline.key()).await.is_err() {
        tokio::time::sleep(backoff.next_pause()).await;
    }
}

async fn write(core: &Core, access: &Access, key: i64, workers: Vec<String>) -> Result<(), StateError> {
    let mut work = Work::single(access).await?;
    let register = query(&core.render(&complete(REGISTER))).bind(key).bind(workers);
    work.session().execute(register).await?;
    work.finish().await
}

/// Says that this process lives whenever it has lost its lifeline, for as long as there is no other one.
async fn vouch(lifeline: Arc<Lifeline>, core: Arc<Core>, access: Access) {
    let mut held = lifeline.watch();
    while !lifeline.is_pooled() {
        // Never closed: this task has the sender, too.
        let _ = held.wait_for(|held| held.sessions == 0 && held.taken > 0).await;
        // If it fails, the next one may not; if all of them do, nobody can tell this process from a dead one.
        let _ = tokio::time::timeout(SIGN_DEADLINE, sign(&core, &access, lifeline.key())).await;
        tokio::time::sleep(SIGN_OF_LIFE).await;
    }
}

async fn sign(core: &Core, access: &Access, key: i64) -> Result<(), StateError> {
    let mut work = Work::renewing(access).await?;
    work.session().execute(query(&core.render(SIGN)).bind(key)).await?;
    work.finish().await
}

async fn withdraw(core: &Core, access: &Access, key: i64) -> Result<(), StateError> {
    let mut work = Work::single(access).await?;
    let withdraw = query(&core.render("DELETE FROM {schema}.process AS p WHERE p.key = $1")).bind(key);
    work.session().execute(withdraw).await?;
    work.finish().await
}

/// Those of the dead who are dead indeed, and their workers. They stay so until the transaction ends.
#[derive(Debug, Default)]
pub(crate) struct Confirmed {
    keys: Vec<i64>,
    pub(crate) workers: Vec<String>,
}

pub(crate) async fn confirm(session: &mut Session<'_>, core: &Core, dead: &[Missed]) -> Result<Confirmed, StateError> {
    if dead.is_empty() {
        return Ok(Confirmed::default());
    }
    let lock = query(&core.render(LOCK))
        .bind(dead.iter().map(|missed| missed.key).collect::<Vec<_>>())
        .bind(dead.iter().map(|missed| missed.renewed_at).collect::<Vec<_>>());
    let locked = session.fetch(lock).await?;
    let silent = locked.iter().map(|found| row::get(found, 0));
    let silent = silent.collect::<Result<Vec<i64>, _>>()?;
    if silent.is_empty() {
        return Ok(Confirmed::default());
    }
    let confirm = query(&core.render(&complete(CONFIRM))).bind(silent);
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

    #[tokio::test(start_paused = true)]
    async fn a_set_of_workers_that_claims_is_never_forgotten() {
        let (mut workers, begun) = (Vec::new(), Instant::now());
        let names: Vec<String> = (0..3 * MANY_WORKERS).map(|number| number.to_string()).collect();
        for name in &names {
            assert!(enlist(&mut workers, name, begun));
        }
        for name in &names {
            assert!(!enlist(&mut workers, name, begun + STOPPED / 2), "it is known");
        }
        let later = begun + STOPPED;
        assert!(!enlist(&mut workers, "0", later));
        assert!(enlist(&mut workers, "new", later));
        assert_eq!(workers.len(), names.len() + 1, "all have claimed");
        assert!(enlist(&mut workers, "newer", begun + STOPPED + STOPPED / 2));
        assert_eq!(workers.len(), 3, "those that have not claimed for long are forgotten");
    }
}
