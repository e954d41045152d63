//! Which of the processes that hold leases are alive.
//!
//! A handle that claims jobs makes a file beside the database, with a name that nobody else ever uses, and keeps it
//! locked. The operating system lets go of the lock when the process ends, however it ends, and not before: not while it
//! is stopped, busy or swapped out. The table of processes says whose workers are whose. So whoever finds a file that is
//! not locked knows that these workers are gone.
//!
//! What cannot be found out is left to the leases: a file that is missing (somebody has deleted it by hand), a directory
//! that cannot be written, a file system without locks.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::PathBuf;

use queuert::__task::{Lock, LockGuard};
use queuert::StateError;
use tokio::time::Instant;
use uuid::Uuid;

use crate::connection::{Db, query};
use crate::statements::json::Batch;
use crate::store::Core;

/// So many sets of workers of one handle are remembered; a program that starts ever new ones keeps the table small.
const MOST_WORKERS: usize = 64;

#[derive(Debug)]
pub(crate) struct Presence {
    /// What the names of the files start with; `None` for a database in memory.
    base: Option<PathBuf>,
    own: Lock<Own>,
    /// Dead processes, and when that was found out.
    deaths: Lock<HashMap<Uuid, Instant>>,
}

#[derive(Debug)]
enum Own {
    /// Nothing has been claimed so far.
    Absent,
    Present(FileLock),
    /// There can be no file, or no lock on it.
    Impossible,
}

/// A file that this handle keeps locked.
#[derive(Debug)]
struct FileLock {
    key: Uuid,
    /// Locked until it is closed.
    _file: File,
    /// Whose rows are committed.
    workers: HashSet<String>,
}

/// What the rows of another process say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Alive,
    Dead,
    Unknown,
}

/// What a claim has to write about its worker.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Enlisting {
    key: Uuid,
    /// Whether workers without leases are to be forgotten first.
    crowded: bool,
}

/// Workers whose processes have died, and these processes.
#[derive(Debug, Default)]
pub(crate) struct Dead {
    pub(crate) workers: BTreeSet<String>,
    /// Their processes, and those whose files are missing.
    gone: Vec<Uuid>,
}

impl Presence {
    /// For the database at this path.
    pub(crate) fn new(database: Option<PathBuf>) -> Self {
        let base = database.map(|path| {
            let mut base = path.into_os_string();
            base.push("-alive-");
            PathBuf::from(base)
        });
        Self {
            base,
            own: Lock::new(Own::Absent),
            deaths: Lock::default(),
        }
    }

    pub(crate) fn is_possible(&self) -> bool {
        self.base.is_some()
    }

    fn own(&self) -> LockGuard<'_, Own> {
        self.own.lock()
    }

    fn key(&self) -> Option<Uuid> {
        match &*self.own() {
            Own::Present(lock) => Some(lock.key),
            Own::Absent | Own::Impossible => None,
        }
    }

    fn path(&self, key: Uuid) -> Option<PathBuf> {
        let mut path = self.base.clone()?.into_os_string();
        path.push(key.simple().to_string());
        Some(PathBuf::from(path))
    }

    /// What is to be written with a claim of this worker, if anything. The file is there and locked when it returns.
    pub(crate) fn enlist(&self, worker: &str) -> Option<Enlisting> {
        let mut own = self.own();
        if matches!(*own, Own::Absent) {
            *own = match self.appear() {
                Some(lock) => Own::Present(lock),
                None => Own::Impossible,
            };
        }
        match &*own {
            Own::Present(lock) if !lock.workers.contains(worker) => Some(Enlisting {
                key: lock.key,
                crowded: lock.workers.len() >= MOST_WORKERS,
            }),
            _ => None,
        }
    }

    /// The claim is committed.
    pub(crate) fn enlisted(&self, worker: &str) {
        if let Own::Present(lock) = &mut *self.own()
            && !lock.workers.contains(worker)
        {
            // Some of their rows have been deleted with the claim; the next claim of each writes it again.
            if lock.workers.len() >= MOST_WORKERS {
                lock.workers.clear();
            }
            lock.workers.insert(worker.to_owned());
        }
    }

    /// Makes a file and locks it. Nobody looks at it before a row names it, which is later.
    fn appear(&self) -> Option<FileLock> {
        let key = Uuid::new_v4();
        let path = self.path(key)?;
        let file = OpenOptions::new().write(true).create_new(true).open(&path).ok()?;
        // Where locks are there and do nothing, everybody would look dead.
        let excludes = |path| {
            matches!(
                File::open(path).map(|other| other.try_lock_shared()),
                Ok(Err(TryLockError::WouldBlock))
            )
        };
        if file.try_lock().is_ok() && excludes(&path) {
            return Some(FileLock {
                key,
                _file: file,
                workers: HashSet::new(),
            });
        }
        let _ = fs::remove_file(path);
        None
    }

    /// If somebody has deleted the file of this handle, it is not to be relied on: the next claim makes another one.
    fn reappear(&self) {
        let mut own = self.own();
        if let Own::Present(lock) = &*own
            && let Some(path) = self.path(lock.key)
            && matches!(path.try_exists(), Ok(false))
        {
            *own = Own::Absent;
        }
    }

    /// Gives up the lock: to all others this handle has died.
    pub(crate) fn leave(&self) {
        *self.own() = Own::Impossible;
    }

    fn life(&self, key: Uuid) -> Life {
        if self.key() == Some(key) {
            return Life::Alive;
        }
        let Some(path) = self.path(key) else {
            return Life::Unknown;
        };
        // Shared, so that those who look at the same time do not take each other for its process.
        match File::open(path).map(|file| file.try_lock_shared()) {
            Ok(Ok(())) => Life::Dead,
            Ok(Err(TryLockError::WouldBlock)) => Life::Alive,
            Ok(Err(TryLockError::Error(_))) | Err(_) => Life::Unknown,
        }
    }

    fn is_missing(&self, key: Uuid) -> bool {
        let found = self.path(key).map(fs::metadata);
        matches!(found, Some(Err(error)) if error.kind() == ErrorKind::NotFound)
    }

    /// Who has died, of those who are in the table.
    fn sort_out(&self, rows: &[(Uuid, String)]) -> Dead {
        let mut lives: BTreeMap<Uuid, Life> = BTreeMap::new();
        for (key, _) in rows {
            lives.entry(*key).or_insert_with(|| self.life(*key));
        }
        let (mut dead, mut others) = (BTreeSet::new(), BTreeSet::new());
        for (key, worker) in rows {
            match lives.get(key) {
                Some(Life::Dead) => dead.insert(worker.clone()),
                _ => others.insert(worker.clone()),
            };
        }
        let gone = lives.iter().filter(|(key, life)| match life {
            Life::Dead => true,
            Life::Unknown => self.is_missing(**key),
            Life::Alive => false,
        });
        Dead {
            // A name that is used twice is alive if one of the two is.
            workers: dead.difference(&others).cloned().collect(),
            gone: gone.map(|(key, _)| *key).collect(),
        }
    }

    /// Whether the death of one of them has been found out later than that.
    pub(crate) fn has_died_since(&self, rows: &[(Uuid, String)], since: Instant) -> bool {
        self.reappear();
        let keys: BTreeSet<Uuid> = rows.iter().map(|(key, _)| *key).collect();
        let mut deaths = self.deaths.lock();
        deaths.retain(|key, _| keys.contains(key));
        for key in keys {
            if self.life(key) == Life::Dead {
                deaths.entry(key).or_insert_with(Instant::now);
            }
        }
        deaths.values().any(|found_at| *found_at > since)
    }
}

/// All processes with their workers.
pub(crate) async fn processes(db: &mut Db<'_>, core: &Core) -> Result<Vec<(Uuid, String)>, StateError> {
    db.fetch(query(&core.sql.processes), |found| Ok((found.get(0)?, found.get(1)?)))
        .await
}

/// Writes whose worker it is, in the transaction of its claim, unless that is known.
pub(crate) async fn enlist(db: &mut Db<'_>, core: &Core, worker: &str) -> Result<(), StateError> {
    let Some(Enlisting { key, crowded }) = core.presence.enlist(worker) else {
        return Ok(());
    };
    if crowded {
        forget(db, core, &[key]).await?;
    }
    db.execute(query(&core.sql.enlist).bind(key).bind(worker)).await?;
    Ok(())
}

/// Who has died. The caller's transaction has the write lock, so nobody is added meanwhile.
pub(crate) async fn dead(db: &mut Db<'_>, core: &Core) -> Result<Dead, StateError> {
    let rows = match core.presence.is_possible() {
        true => processes(db, core).await?,
        false => Vec::new(),
    };
    Ok(core.presence.sort_out(&rows))
}

/// Forgets the dead whose leases are all taken, and removes their files.
pub(crate) async fn bury(db: &mut Db<'_>, core: &Core, dead: &Dead) -> Result<(), StateError> {
    if dead.gone.is_empty() {
        return Ok(());
    }
    forget(db, core, &dead.gone).await?;
    let left: HashSet<Uuid> = processes(db, core).await?.into_iter().map(|(key, _)| key).collect();
    for key in dead.gone.iter().filter(|key| !left.contains(key)) {
        // Should the transaction fail, their rows name files that are missing, and the leases decide.
        if let Some(path) = core.presence.path(*key) {
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}

/// Deletes what is known of these processes' workers, but for those that have leases.
async fn forget(db: &mut Db<'_>, core: &Core, keys: &[Uuid]) -> Result<(), StateError> {
    let keys = Batch::of_ids(keys.iter().copied());
    db.execute(query(&core.sql.forget_workers).bind(keys)).await?;
    Ok(())
}

/// Deletes what is known of this handle's workers, before it is closed, and the file if nothing is left to say.
pub(crate) async fn depart(db: &mut Db<'_>, core: &Core) -> Result<(), StateError> {
    let Some(key) = core.presence.key() else {
        return Ok(());
    };
    let gone = Dead {
        gone: vec![key],
        ..Dead::default()
    };
    bury(db, core, &gone).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn presences() -> (TempDir, Presence, Presence) {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("app.db");
        let of = || Presence::new(Some(path.clone()));
        let (one, other) = (of(), of());
        (directory, one, other)
    }

    fn rows(presence: &Presence, worker: &str) -> Vec<(Uuid, String)> {
        vec![(presence.key().unwrap(), worker.to_owned())]
    }

    #[test]
    fn a_handle_is_alive_until_it_lets_go() {
        let (_directory, one, other) = presences();
        assert!(one.enlist("a").is_some(), "the first claim says whose worker it is");
        assert!(one.enlist("a").is_some(), "it was not committed");
        one.enlisted("a");
        assert_eq!(one.enlist("a"), None);
        let rows = rows(&one, "a");
        let before = Instant::now();
        assert!(other.sort_out(&rows).workers.is_empty() && !other.has_died_since(&rows, before));
        assert!(one.sort_out(&rows).workers.is_empty(), "to itself, too");
        drop(one);
        assert!(other.has_died_since(&rows, before));
        assert!(!other.has_died_since(&rows, Instant::now()), "it was found out before");
        let dead = other.sort_out(&rows);
        assert_eq!(Vec::from_iter(dead.workers), ["a"]);
        assert_eq!(dead.gone, [rows[0].0]);
    }

    #[test]
    fn who_looks_at_the_same_time_is_not_in_the_way() {
        let (_directory, one, other) = presences();
        one.enlist("a");
        let rows = rows(&one, "a");
        let path = one.path(rows[0].0).unwrap();
        drop(one);
        let third = File::open(path).unwrap();
        third.try_lock_shared().unwrap();
        assert_eq!(Vec::from_iter(other.sort_out(&rows).workers), ["a"]);
    }

    #[test]
    fn a_missing_file_says_nothing_and_is_made_anew() {
        let (_directory, one, other) = presences();
        one.enlist("a");
        one.enlisted("a");
        let before = rows(&one, "a");
        fs::remove_file(one.path(before[0].0).unwrap()).unwrap();
        assert!(other.sort_out(&before).workers.is_empty());
        assert_eq!(
            other.sort_out(&before).gone,
            [before[0].0],
            "nobody is there to be asked"
        );
        one.has_died_since(&[], Instant::now());
        assert!(one.enlist("a").is_some());
        assert_ne!(rows(&one, "a"), before);
    }

    #[test]
    fn a_name_that_two_use_is_alive_while_one_of_them_is() {
        let (_directory, one, other) = presences();
        one.enlist("a");
        other.enlist("a");
        let both = [rows(&one, "a"), rows(&other, "a")].concat();
        drop(one);
        assert!(other.sort_out(&both).workers.is_empty());
    }

    #[test]
    fn without_a_place_for_the_file_there_is_nothing_to_say() {
        let nowhere = Presence::new(Some(PathBuf::from("/nonexistent/app.db")));
        assert_eq!(nowhere.enlist("a"), None);
        let in_memory = Presence::new(None);
        assert_eq!(in_memory.enlist("a"), None);
        assert!(!in_memory.is_possible());
    }

    #[test]
    fn ever_new_workers_do_not_pile_up() {
        let (_directory, one, _other) = presences();
        for number in 0..3 * MOST_WORKERS {
            let enlisting = one.enlist(&number.to_string()).unwrap();
            assert_eq!(enlisting.crowded, number > 0 && number % MOST_WORKERS == 0);
            one.enlisted(&number.to_string());
        }
    }
}
