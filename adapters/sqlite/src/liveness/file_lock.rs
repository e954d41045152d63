//! The files whose locks say which processes are alive.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::PathBuf;

use queuert::__task::{Lock, LockGuard};
use tokio::time::Instant;
use uuid::Uuid;

/// How many sets of workers of one handle the table keeps, so that a program that starts new sets again and again keeps it
/// small.
const MOST_WORKERS: usize = 64;

#[derive(Debug)]
pub(crate) struct Liveness {
    /// The beginning of the paths of the files; `None` for a database in memory.
    base: Option<PathBuf>,
    own: Lock<OwnLock>,
    /// Dead processes, and when this handle noticed.
    deaths: Lock<HashMap<Uuid, Instant>>,
}

#[derive(Debug)]
enum OwnLock {
    /// This handle has not claimed anything.
    Absent,
    Held(FileLock),
    /// The file cannot be created or locked, or the handle is closed.
    Impossible,
}

/// A file that this handle keeps locked.
#[derive(Debug)]
struct FileLock {
    key: Uuid,
    /// Locked until it is closed.
    _file: File,
    /// The workers whose rows are committed.
    workers: HashSet<String>,
}

/// What the file of a process says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessState {
    Alive,
    Dead,
    Unknown,
}

/// What a claim has to write about its worker.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Registration {
    pub(super) key: Uuid,
    /// Whether the workers of this handle that have no leases are to be deleted first.
    pub(super) crowded: bool,
}

/// Processes that have died.
#[derive(Debug, Default)]
pub(crate) struct DeadProcesses {
    /// Their workers.
    pub(crate) workers: BTreeSet<String>,
    /// The processes, and also processes whose files are missing.
    pub(super) keys: Vec<Uuid>,
}

impl Liveness {
    /// For the database at this path.
    pub(crate) fn new(database: Option<PathBuf>) -> Self {
        let base = database.map(|path| {
            let mut base = path.into_os_string();
            base.push("-alive-");
            PathBuf::from(base)
        });
        Self {
            base,
            own: Lock::new(OwnLock::Absent),
            deaths: Lock::default(),
        }
    }

    pub(crate) fn is_possible(&self) -> bool {
        self.base.is_some()
    }

    fn own(&self) -> LockGuard<'_, OwnLock> {
        self.own.lock()
    }

    /// The key of this handle, once it has claimed jobs.
    pub(super) fn key(&self) -> Option<Uuid> {
        match &*self.own() {
            OwnLock::Held(lock) => Some(lock.key),
            OwnLock::Absent | OwnLock::Impossible => None,
        }
    }

    fn path(&self, key: Uuid) -> Option<PathBuf> {
        let mut path = self.base.clone()?.into_os_string();
        path.push(key.simple().to_string());
        Some(PathBuf::from(path))
    }

    /// What is to be written with a claim of this worker, if anything. The file exists and is locked when this returns.
    pub(super) fn register(&self, worker: &str) -> Option<Registration> {
        let mut own = self.own();
        if matches!(*own, OwnLock::Absent) {
            *own = match self.create_file() {
                Some(lock) => OwnLock::Held(lock),
                None => OwnLock::Impossible,
            };
        }
        match &*own {
            OwnLock::Held(lock) if !lock.workers.contains(worker) => Some(Registration {
                key: lock.key,
                crowded: lock.workers.len() >= MOST_WORKERS,
            }),
            _ => None,
        }
    }

    /// Notes that a claim of this worker was committed.
    pub(crate) fn registered(&self, worker: &str) {
        if let OwnLock::Held(lock) = &mut *self.own()
            && !lock.workers.contains(worker)
        {
            // The claim has deleted the rows of some workers; the next claim of each of them writes its row again.
            if lock.workers.len() >= MOST_WORKERS {
                lock.workers.clear();
            }
            lock.workers.insert(worker.to_owned());
        }
    }

    /// Creates a file and locks it. No process looks at it before a row names it, which is later.
    fn create_file(&self) -> Option<FileLock> {
        let key = Uuid::new_v4();
        let path = self.path(key)?;
        let file = OpenOptions::new().write(true).create_new(true).open(&path).ok()?;
        // On a file system whose locks do nothing, every process would look dead.
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

    /// If the file of this handle was deleted, other processes cannot tell whether it is alive: the next claim creates
    /// another file.
    fn replace_deleted_file(&self) {
        let mut own = self.own();
        if let OwnLock::Held(lock) = &*own
            && let Some(path) = self.path(lock.key)
            && matches!(path.try_exists(), Ok(false))
        {
            *own = OwnLock::Absent;
        }
    }

    /// Releases the lock: other processes take this handle for dead.
    pub(crate) fn release(&self) {
        *self.own() = OwnLock::Impossible;
    }

    fn state_of(&self, key: Uuid) -> ProcessState {
        if self.key() == Some(key) {
            return ProcessState::Alive;
        }
        let Some(path) = self.path(key) else {
            return ProcessState::Unknown;
        };
        // A shared lock, so that processes that look at the same time do not take one another for the owner of the file.
        match File::open(path).map(|file| file.try_lock_shared()) {
            Ok(Ok(())) => ProcessState::Dead,
            Ok(Err(TryLockError::WouldBlock)) => ProcessState::Alive,
            Ok(Err(TryLockError::Error(_))) | Err(_) => ProcessState::Unknown,
        }
    }

    fn is_missing(&self, key: Uuid) -> bool {
        let found = self.path(key).map(fs::metadata);
        matches!(found, Some(Err(error)) if error.kind() == ErrorKind::NotFound)
    }

    /// Removes the file of a process.
    pub(super) fn remove_file(&self, key: Uuid) {
        if let Some(path) = self.path(key) {
            let _ = fs::remove_file(path);
        }
    }

    /// The processes of the table that have died.
    pub(super) fn find_dead(&self, rows: &[(Uuid, String)]) -> DeadProcesses {
        let mut states: BTreeMap<Uuid, ProcessState> = BTreeMap::new();
        for (key, _) in rows {
            states.entry(*key).or_insert_with(|| self.state_of(*key));
        }
        let (mut dead, mut others) = (BTreeSet::new(), BTreeSet::new());
        for (key, worker) in rows {
            match states.get(key) {
                Some(ProcessState::Dead) => dead.insert(worker.clone()),
                _ => others.insert(worker.clone()),
            };
        }
        let gone = states.iter().filter(|(key, state)| match state {
            ProcessState::Dead => true,
            ProcessState::Unknown => self.is_missing(**key),
            ProcessState::Alive => false,
        });
        DeadProcesses {
            // If two processes have workers of the same name, the name is alive while one of the processes is.
            workers: dead.difference(&others).cloned().collect(),
            keys: gone.map(|(key, _)| *key).collect(),
        }
    }

    /// Whether this handle noticed later than `since` that one of these processes has died.
    pub(crate) fn has_died_since(&self, rows: &[(Uuid, String)], since: Instant) -> bool {
        self.replace_deleted_file();
        let keys: BTreeSet<Uuid> = rows.iter().map(|(key, _)| *key).collect();
        let mut deaths = self.deaths.lock();
        deaths.retain(|key, _| keys.contains(key));
        for key in keys {
            if self.state_of(key) == ProcessState::Dead {
                deaths.entry(key).or_insert_with(Instant::now);
            }
        }
        deaths.values().any(|noticed_at| *noticed_at > since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn handles() -> (TempDir, Liveness, Liveness) {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("app.db");
        let of = || Liveness::new(Some(path.clone()));
        let (one, other) = (of(), of());
        (directory, one, other)
    }

    fn rows(handle: &Liveness, worker: &str) -> Vec<(Uuid, String)> {
        vec![(handle.key().unwrap(), worker.to_owned())]
    }

    #[test]
    fn a_handle_is_alive_until_it_releases_its_lock() {
        let (_directory, one, other) = handles();
        assert!(one.register("a").is_some(), "the first claim registers its worker");
        assert!(one.register("a").is_some(), "it was not committed");
        one.registered("a");
        assert_eq!(one.register("a"), None);
        let rows = rows(&one, "a");
        let before = Instant::now();
        assert!(other.find_dead(&rows).workers.is_empty() && !other.has_died_since(&rows, before));
        assert!(
            one.find_dead(&rows).workers.is_empty(),
            "the handle knows that it is alive itself"
        );
        drop(one);
        assert!(other.has_died_since(&rows, before));
        assert!(!other.has_died_since(&rows, Instant::now()), "it was noticed before");
        let dead = other.find_dead(&rows);
        assert_eq!(Vec::from_iter(dead.workers), ["a"]);
        assert_eq!(dead.keys, [rows[0].0]);
    }

    #[test]
    fn processes_that_look_at_the_same_time_do_not_disturb_one_another() {
        let (_directory, one, other) = handles();
        one.register("a");
        let rows = rows(&one, "a");
        let path = one.path(rows[0].0).unwrap();
        drop(one);
        let third = File::open(path).unwrap();
        third.try_lock_shared().unwrap();
        assert_eq!(Vec::from_iter(other.find_dead(&rows).workers), ["a"]);
    }

    #[test]
    fn a_missing_file_proves_nothing_and_is_replaced() {
        let (_directory, one, other) = handles();
        one.register("a");
        one.registered("a");
        let before = rows(&one, "a");
        fs::remove_file(one.path(before[0].0).unwrap()).unwrap();
        assert!(other.find_dead(&before).workers.is_empty());
        assert_eq!(other.find_dead(&before).keys, [before[0].0], "its row can be deleted");
        one.has_died_since(&[], Instant::now());
        assert!(one.register("a").is_some());
        assert_ne!(rows(&one, "a"), before);
    }

    #[test]
    fn a_name_of_two_processes_is_alive_while_one_of_them_is() {
        let (_directory, one, other) = handles();
        one.register("a");
        other.register("a");
        let both = [rows(&one, "a"), rows(&other, "a")].concat();
        drop(one);
        assert!(other.find_dead(&both).workers.is_empty());
    }

    #[test]
    fn without_a_file_there_is_no_registration() {
        let nowhere = Liveness::new(Some(PathBuf::from("/nonexistent/app.db")));
        assert_eq!(nowhere.register("a"), None);
        let in_memory = Liveness::new(None);
        assert_eq!(in_memory.register("a"), None);
        assert!(!in_memory.is_possible());
    }

    #[test]
    fn new_workers_do_not_accumulate() {
        let (_directory, one, _other) = handles();
        for number in 0..3 * MOST_WORKERS {
            let registration = one.register(&number.to_string()).unwrap();
            assert_eq!(registration.crowded, number > 0 && number % MOST_WORKERS == 0);
            one.registered(&number.to_string());
        }
    }
}
