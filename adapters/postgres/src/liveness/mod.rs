//! Which of the processes that hold leases are alive.
//!
//! A process that claims jobs has a session that holds a lock ([`session_lock`]) and a row in `process` with the names of its
//! workers; it has both before its first claim. A process that finds the lock of another one free twice, a grace apart, takes
//! the workers of that process for dead: a connection that was merely cut is made again within the grace. If it cannot be,
//! because the server has no connection left, the process says in its row that it lives, over any connection that it has, and
//! so does every renewal of leases: as long as the row changes, the process is alive. A process is not judged if its row is
//! older than the server's last start (a crash of the server empties the table), nor by a process that has just lost its own
//! session lock: the fault that cut one connection may have cut them all.
//!
//! All processes of a fleet share the work. Where there is a notifier, the process that looks for due jobs looks for free
//! locks with the same statement, and announces it to the others, which need not look
//! ([`fleet`](crate::notify::fleet)). It takes back the jobs of its own types only, so it also announces which locks are free,
//! and processes that run other types look then. Elsewhere each process looks by itself: the more processes there are, the more rarely,
//! so that the fleet as a whole looks some five times in two seconds, however large it is. A process that has found a free
//! lock looks again soon until it knows.

pub(crate) mod other_processes;
pub(crate) mod session_lock;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use queuert::__task::{Lock, LockGuard, spawn};
use queuert::{StateError, WorkerId};
use sqlx::postgres::PgConnectOptions;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::connection::connect::Access;
use crate::connection::hidden::Hidden;
use crate::connection::retry_pauses;
use crate::connection::session::{Session, query};
use crate::liveness::other_processes::{FoundProcess, OtherProcesses, SUSPECTED};
use crate::liveness::session_lock::SessionLock;
use crate::row;
use crate::store::Store;
use crate::transaction::Work;

/// How often a process that has lost its session lock says that it lives. Several times per grace.
const SIGN_OF_LIFE: Duration = Duration::from_millis(250);

/// How long one sign of life may take: the next one may find a better connection.
const SIGN_DEADLINE: Duration = Duration::from_millis(750);

/// How long the first claim waits for the session lock and the row. A server that has no connection left must not keep workers
/// from working: their leases decide then.
const FIRST_CLAIM: Duration = Duration::from_secs(2);

/// A process that has lost its own session lock judges no other process for this long.
const ABSTENTION: Duration = Duration::from_secs(10);

/// Other sets of workers do not wait longer than this for a look to end.
const LONGEST_LOOK: Duration = Duration::from_secs(5);

/// When a process has more sets of workers than this, it forgets those that have not claimed for `STOPPED`: they have
/// stopped, or register again with their next claim.
const MANY_WORKERS: usize = 64;
const STOPPED: Duration = Duration::from_secs(600);

/// Sweeps that are this far apart need not look for expired leases if the notifier has done so within `LATELY`.
const SELDOM: Duration = Duration::from_secs(5);
const LATELY: Duration = Duration::from_secs(2);

/// What this handle of the store knows about itself and the others.
#[derive(Debug)]
pub(crate) struct Liveness {
    session_lock: Arc<SessionLock>,
    connect: Hidden<Arc<PgConnectOptions>>,
    workers: Arc<watch::Sender<Vec<Enlisted>>>,
    /// The workers that the row of this process names.
    registered: Arc<watch::Sender<Vec<String>>>,
    keepers: Lock<Vec<AbortHandle>>,
    /// Since when a set of workers of this process looks: one at a time.
    looking: Lock<Option<Instant>>,
    others: Lock<OtherProcesses>,
    /// Changes when a look of the notifier has ended.
    noted: watch::Sender<()>,
    leases: Lock<Leases>,
}

/// What is known of expired leases.
#[derive(Debug, Default)]
struct Leases {
    /// When a look of the notifier has found that no lease had expired.
    none_expired: Option<Instant>,
    /// When the core last asked for a sweep.
    swept: Option<Instant>,
}

/// A set of workers of this process.
#[derive(Clone, Debug)]
struct Enlisted {
    name: String,
    claimed_at: Instant,
}

/// Takes note of a claim. Returns whether the set of workers was not known.
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
pub(crate) struct DeadProcess {
    key: i64,
    /// Its last sign of life.
    renewed_at: i64,
}

impl Liveness {
    /// For a handle whose connections carry the number of the session lock.
    pub(crate) fn new(session_lock: Arc<SessionLock>, connect: Arc<PgConnectOptions>) -> Self {
        Self {
            session_lock,
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

    pub(crate) fn session_lock(&self) -> Arc<SessionLock> {
        Arc::clone(&self.session_lock)
    }

    /// Whether a pooler was found since.
    pub(crate) fn is_pooled(&self) -> bool {
        self.session_lock.is_pooled()
    }

    fn others(&self) -> LockGuard<'_, OtherProcesses> {
        self.others.lock()
    }

    pub(crate) fn key(&self) -> i64 {
        self.session_lock.key()
    }

    /// Registers workers of this process that are about to claim jobs. The first time it waits until other processes can know
    /// of them.
    pub(crate) async fn enlist(&self, worker: &WorkerId, store: &Arc<Store>, access: &Access) {
        let now = Instant::now();
        let added = self
            .workers
            .send_if_modified(|workers| enlist(workers, worker.as_str(), now));
        self.keep(store, access);
        if added {
            let mut registered = self.registered.subscribe();
            let known = registered.wait_for(|names| names.iter().any(|name| name == worker.as_str()));
            // Boxed, because it is rare. If it times out, the leases decide.
            let _ = Box::pin(tokio::time::timeout(FIRST_CLAIM, known)).await;
        }
    }

    /// Starts the tasks, unless they run.
    fn keep(&self, store: &Arc<Store>, access: &Access) {
        // On the runtime that claims. Should it end while another one goes on, the next claim starts them again.
        if are_gone(&self.keepers.lock()) {
            let keep = Arc::clone(&self.session_lock).keep(PgConnectOptions::clone(&self.connect));
            let register = register(
                Arc::clone(&self.session_lock),
                self.workers.subscribe(),
                Arc::clone(&self.registered),
                Arc::clone(store),
                access.clone(),
            );
            let vouch = vouch(Arc::clone(&self.session_lock), Arc::clone(store), access.clone());
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

    /// Gives the session lock up: to all other processes this one has died.
    pub(crate) fn leave(&self) {
        let keepers = std::mem::take(&mut *self.keepers.lock());
        keepers.iter().for_each(AbortHandle::abort);
    }

    /// The processes that are taken for dead.
    pub(crate) fn deaths(&self) -> Vec<DeadProcess> {
        let others = self.others();
        let missed = others.missed.iter().filter(|(key, _)| others.deaths.contains_key(key));
        missed
            .map(|(key, absence)| DeadProcess {
                key: *key,
                renewed_at: absence.renewed_at,
            })
            .collect()
    }

    /// Waits until a process is taken for dead, later than that.
    pub(crate) async fn death_since(&self, since: Instant, store: &Store, access: &Access) {
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
                self.look(store, access).await;
            }
        }
    }

    /// The right to look, unless another set of workers of this process is about to look. The right is lost after a while: its
    /// owner may be a future that is not polled.
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

    async fn look(&self, store: &Store, access: &Access) {
        match self.find(store, access).await {
            Ok(found) => self.note(&found),
            // The caller notices the failure at its next call, too.
            Err(_) => self.others().forget(Instant::now()),
        }
    }

    /// Takes note of what a look of this process or of the notifier has found.
    pub(crate) fn note(&self, found: &[FoundProcess]) {
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

    /// Takes note whether a look of the notifier has found an expired lease.
    pub(crate) fn note_leases(&self, expired: bool) {
        self.leases.lock().none_expired = (!expired).then(Instant::now);
    }

    /// Whether a sweep would find nothing, because a look has just found no expired lease. Not if the core asks for sweeps
    /// often: then it wants them prompt.
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

    /// Takes note that another process has looked for dead processes: this one need not do so for a while.
    pub(crate) fn others_looked(&self) {
        self.others().relieve(Instant::now());
    }

    /// Takes note that another process misses the one with this key, and does not run all types that this process runs: this
    /// process looks, too.
    pub(crate) fn others_miss(&self, key: i64) {
        if key != self.key() && self.others().suspect(key) {
            self.noted.send_replace(());
        }
    }

    /// The key of this process, if it may take others for dead, so that the rest of the fleet can rely on its looks.
    pub(crate) fn may_judge(&self) -> Option<i64> {
        let can = !self.is_pooled() && !are_gone(&self.keepers.lock()) && !self.abstains(Instant::now());
        can.then(|| self.key())
    }

    fn abstains(&self, now: Instant) -> bool {
        let lost_at = self.session_lock.watch().borrow().lost_at;
        lost_at.is_some_and(|lost_at| now.saturating_duration_since(lost_at) < ABSTENTION)
    }

    async fn find(&self, store: &Store, access: &Access) -> Result<Vec<FoundProcess>, StateError> {
        let mut work = Work::statement(access).await?;
        let look = query(&store.sql.other_processes).bind(self.session_lock.key());
        let rows = work.session().fetch(look).await?;
        work.commit().await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            found.push(FoundProcess {
                key: row::get(row, "key")?,
                renewed_at: row::get(row, "renewed_at")?,
                is_free: row::get(row, "is_free")?,
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

impl Drop for Liveness {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Keeps the row of this process. It is written whenever a session has taken the lock again, because the table may have been
/// emptied, and when the process has other workers. It is deleted when a pooler is found: no session can prove any more that
/// this process lives, so no other process may judge it.
async fn register(
    session_lock: Arc<SessionLock>,
    mut workers: watch::Receiver<Vec<Enlisted>>,
    registered: Arc<watch::Sender<Vec<String>>>,
    store: Arc<Store>,
    access: Access,
) {
    let mut held = session_lock.watch();
    let mut backoff = retry_pauses();
    while !session_lock.is_pooled() {
        // Neither is ever closed: this task has both, or its handle goes with it.
        let taken = tokio::select! {
            taken = held.wait_for(|held| held.sessions > 0) => taken.map(|held| held.taken),
            () = session_lock.pooled() => break,
        };
        let names: Vec<String> = workers
            .borrow_and_update()
            .iter()
            .map(|known| known.name.clone())
            .collect();
        if write(&store, &access, session_lock.key(), names.clone()).await.is_err() {
            tokio::time::sleep(backoff.next_pause()).await;
            continue;
        }
        registered.send_replace(names);
        backoff.reset();
        let anew = held.wait_for(|held| held.sessions > 0 && taken.as_ref().is_ok_and(|taken| held.taken != *taken));
        tokio::select! {
            _ = anew => {}
            changed = workers.changed() => if changed.is_err() { return },
            () = session_lock.pooled() => break,
        }
    }
    while withdraw(&store, &access, session_lock.key()).await.is_err() {
        tokio::time::sleep(backoff.next_pause()).await;
    }
}

async fn write(store: &Store, access: &Access, key: i64, workers: Vec<String>) -> Result<(), StateError> {
    let mut work = Work::statement(access).await?;
    let register = query(&store.sql.register).bind(key).bind(workers);
    work.session().execute(register).await?;
    work.commit().await
}

/// Says that this process lives whenever it has lost its session lock, until another session has it.
async fn vouch(session_lock: Arc<SessionLock>, store: Arc<Store>, access: Access) {
    let mut held = session_lock.watch();
    while !session_lock.is_pooled() {
        // Never closed: this task has the sender, too.
        let _ = held.wait_for(|held| held.sessions == 0 && held.taken > 0).await;
        // If it fails, the next one may not. If all of them do, no other process can tell this one from a dead one.
        let _ = tokio::time::timeout(SIGN_DEADLINE, sign(&store, &access, session_lock.key())).await;
        tokio::time::sleep(SIGN_OF_LIFE).await;
    }
}

async fn sign(store: &Store, access: &Access, key: i64) -> Result<(), StateError> {
    let mut work = Work::renewal(access).await?;
    work.session().execute(query(&store.sql.sign_of_life).bind(key)).await?;
    work.commit().await
}

async fn withdraw(store: &Store, access: &Access, key: i64) -> Result<(), StateError> {
    let mut work = Work::statement(access).await?;
    let withdraw = query(&store.sql.withdraw).bind(key);
    work.session().execute(withdraw).await?;
    work.commit().await
}

/// Processes whose session lock is confirmed to be free, and their workers. None of them can come back before the transaction
/// ends.
#[derive(Debug, Default)]
pub(crate) struct ConfirmedDead {
    keys: Vec<i64>,
    pub(crate) workers: Vec<String>,
}

pub(crate) async fn confirm(
    session: &mut Session<'_>,
    store: &Store,
    dead: &[DeadProcess],
) -> Result<ConfirmedDead, StateError> {
    if dead.is_empty() {
        return Ok(ConfirmedDead::default());
    }
    let lock = query(&store.sql.lock_silent)
        .bind(dead.iter().map(|missed| missed.key).collect::<Vec<_>>())
        .bind(dead.iter().map(|missed| missed.renewed_at).collect::<Vec<_>>());
    let locked = session.fetch(lock).await?;
    let silent = locked.iter().map(|found| row::get(found, "key"));
    let silent = silent.collect::<Result<Vec<i64>, _>>()?;
    if silent.is_empty() {
        return Ok(ConfirmedDead::default());
    }
    let confirm = query(&store.sql.confirm_dead).bind(silent);
    let mut keys = Vec::new();
    let (mut dead_workers, mut live_workers) = (BTreeSet::new(), BTreeSet::new());
    for found in session.fetch(confirm).await? {
        let workers: Vec<String> = row::get(&found, "workers")?;
        if row::get(&found, "is_dead")? {
            keys.push(row::get(&found, "key")?);
            dead_workers.extend(workers);
        } else {
            live_workers.extend(workers);
        }
    }
    // A name that two processes use is alive if one of the two is.
    let workers = dead_workers.difference(&live_workers).cloned().collect();
    Ok(ConfirmedDead { keys, workers })
}

/// Deletes the rows of dead processes, once their leases are taken.
pub(crate) async fn forget(
    session: &mut Session<'_>,
    store: &Store,
    confirmed: &ConfirmedDead,
) -> Result<(), StateError> {
    if confirmed.keys.is_empty() {
        return Ok(());
    }
    let forget = query(&store.sql.forget_dead).bind(confirmed.keys.clone());
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
