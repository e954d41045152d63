//! Checks that the files at the path are still the ones that the store has opened.
//!
//! A connection keeps using the file that it has opened, even if the path leads to another file: after a rename over it, or a
//! deletion, it writes to a file that no other program finds. SQLite does not check this, so this module does.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use queuert::{StateError, StateErrorKind};
use tokio::time::Instant;

/// How often a connection checks the log and its index. The database itself is checked at every commit.
const LOG_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The device of a file, and its number on that device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId(u64, u64);

/// The file of a store.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    path: PathBuf,
    id: FileId,
}

impl OpenedFile {
    /// The file that was just opened at this path. `None` if files cannot be told apart: in memory, behind a VFS of the
    /// application, and on systems other than Unix.
    pub(crate) fn at(path: PathBuf) -> Option<Self> {
        let id = id(&path).ok()??;
        Some(Self { path, id })
    }

    /// Fails if the path leads to another file, or to none.
    pub(crate) fn check(&self) -> Result<(), StateError> {
        self.check_with_advice(
            "This call has written nothing. Put the file back, with its `-wal` and `-shm`, and the store goes on",
        )
    }

    /// The same when all connections of the store are closed. SQLite does not fold the log of a file that is not at its
    /// path, and leaves the log there. This library does not touch it either: a log is found by its name, and the program
    /// that has put another file in place may have put a log beside it, and may be using both.
    pub(crate) fn check_at_close(&self) -> Result<(), StateError> {
        self.check_with_advice(
            "The store is closed, but its log (`-wal`) may not have been folded into the file. Put the file back, with its `-wal` \
             and `-shm`, and close the store again, or open it again",
        )
    }

    fn check_with_advice(&self, consequence: &str) -> Result<(), StateError> {
        let what = match id(&self.path) {
            Ok(Some(found)) if found == self.id => return Ok(()),
            Ok(Some(_)) => "another file is in its place",
            Err(error) if error.kind() == ErrorKind::NotFound => "it was deleted, or renamed, or its directory was",
            // The file cannot be examined; if something is wrong, SQLite reports it.
            Ok(None) | Err(_) => return Ok(()),
        };
        Err(StateError::new(
            StateErrorKind::Misconfigured,
            format!(
                "{}: the database is not the file any more that the store has opened: {what}. {consequence}. Or go on with \
                 what is at the path now: stop every program that has the database open, move the `-wal` and `-shm` that the \
                 old file has left at the path to where the old file is (delete them if that is gone), and only then open \
                 the store again. SQLite would write a log that is left there into the new file, and damage it",
                self.path.display()
            ),
        ))
    }
}

/// The log of a database and its index, as one connection has found them.
#[derive(Debug)]
pub(crate) struct LogFiles {
    paths: [PathBuf; 2],
    found: [Option<FileId>; 2],
    checked_at: Option<Instant>,
}

impl LogFiles {
    /// The files beside the database at this path, which is the path as SQLite has resolved it.
    pub(crate) fn beside(database: &Path) -> Self {
        Self {
            paths: [log_beside(database), beside(database, "-shm")],
            found: [None; 2],
            checked_at: None,
        }
    }

    /// Forgets the files before a new connection is opened, which may find others: SQLite deletes them with the last
    /// connection.
    pub(crate) fn forget(&mut self) {
        self.found = [None; 2];
        self.checked_at = None;
    }

    /// Fails if a file that was found before is missing, or was replaced; checks at most ten times a second. Called inside
    /// a transaction, during which both files exist.
    pub(crate) fn check(&mut self) -> Result<(), StateError> {
        if self.checked_at.is_some_and(|at| at.elapsed() < LOG_CHECK_INTERVAL) {
            return Ok(());
        }
        self.check_now()
    }

    /// The same, without regard to the last check.
    pub(crate) fn check_now(&mut self) -> Result<(), StateError> {
        for (path, known) in self.paths.iter().zip(&mut self.found) {
            match (id(path), &known) {
                (Ok(Some(found)), Some(known)) if found == *known => {}
                (Ok(found), None) => *known = found,
                (Ok(Some(_)), Some(_)) => return Err(moved(path, "another file is in its place")),
                (Err(error), Some(_)) if error.kind() == ErrorKind::NotFound => {
                    return Err(moved(path, "it was deleted or renamed"));
                }
                (Ok(None) | Err(_), _) => {}
            }
        }
        self.checked_at = Some(Instant::now());
        Ok(())
    }
}

/// The path of the log of a database.
pub(crate) fn log_beside(database: &Path) -> PathBuf {
    beside(database, "-wal")
}

fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(suffix);
    PathBuf::from(path)
}

fn moved(path: &Path, what: &str) -> StateError {
    StateError::new(
        StateErrorKind::Misconfigured,
        format!(
            "{}: this part of the database was taken away while the store had it open: {what}. This call has written \
             nothing; what was committed within the last moments may be missing for other programs. Stop every program \
             that has the database open, check it with `PRAGMA integrity_check`, and open the store again",
            path.display()
        ),
    )
}

#[cfg(unix)]
fn id(path: &Path) -> io::Result<Option<FileId>> {
    use std::os::unix::fs::MetadataExt;
    let found = fs::metadata(path)?;
    Ok(Some(FileId(found.dev(), found.ino())))
}

#[cfg(not(unix))]
fn id(path: &Path) -> io::Result<Option<FileId>> {
    fs::metadata(path).map(|_| None)
}

#[cfg(all(test, unix))]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_file_is_told_from_one_in_its_place() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("app.db");
        assert!(OpenedFile::at(path.clone()).is_none(), "there is no file");
        fs::write(&path, "one").unwrap();
        let opened = OpenedFile::at(path.clone()).unwrap();
        assert!(opened.check().is_ok());
        let aside = directory.path().join("aside.db");
        fs::rename(&path, &aside).unwrap();
        assert!(opened.check().unwrap_err().to_string().contains("deleted, or renamed"));
        fs::write(&path, "one").unwrap();
        assert!(opened.check().unwrap_err().to_string().contains("another file"));
        fs::rename(&aside, &path).unwrap();
        assert!(opened.check().is_ok(), "it is back");
    }

    #[test]
    fn logs_that_were_there_must_stay() {
        let directory = TempDir::new().unwrap();
        let mut logs = LogFiles::beside(&directory.path().join("app.db"));
        assert!(logs.check_now().is_ok(), "there were none");
        let wal = directory.path().join("app.db-wal");
        fs::write(&wal, "").unwrap();
        assert!(logs.check_now().is_ok() && logs.check_now().is_ok());
        fs::remove_file(&wal).unwrap();
        assert!(logs.check_now().unwrap_err().to_string().contains("app.db-wal"));
        logs.forget();
        assert!(logs.check_now().is_ok(), "another connection finds others");
    }
}
