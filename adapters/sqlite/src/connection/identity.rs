//! Whether the files at the path are still those that the store has opened.
//!
//! A connection goes on with the file that it has opened, whatever becomes of its name: after a rename over it, or a
//! deletion, what is written goes to a file that no other program finds. SQLite does not look, so this does.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use queuert::{StateError, StateErrorKind};
use tokio::time::Instant;

/// How often a connection looks for the log and its index. The database itself is looked for at every commit.
const LOOK_FOR_LOGS: Duration = Duration::from_millis(100);

/// Device and number on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId(u64, u64);

/// The file of a store.
#[derive(Debug)]
pub(crate) struct Opened {
    path: PathBuf,
    id: FileId,
}

impl Opened {
    /// The file that was just opened at this path. `None` where files cannot be told apart: in memory, behind a VFS of
    /// the application's own, and on systems other than Unix.
    pub(crate) fn at(path: PathBuf) -> Option<Self> {
        let id = id(&path).ok()??;
        Some(Self { path, id })
    }

    /// Fails if the path leads to another file, or to none.
    pub(crate) fn check(&self) -> Result<(), StateError> {
        self.check_and_tell(
            "This call has written nothing. Put the file back, with its `-wal` and `-shm`, and the store goes on",
        )
    }

    /// The same when all connections of the store are closed. SQLite does not fold the log of a file that is not at its
    /// path, and leaves it there. Nothing here touches that log: it is found by its name, and whoever has put another file
    /// in place may have put a log beside it, or work on both already, a moment after any look at it.
    pub(crate) fn check_at_close(&self) -> Result<(), StateError> {
        self.check_and_tell(
            "The store is closed, but its log (`-wal`) may not have been folded into the file. Put the file back, with its `-wal` \
             and `-shm`, and close the store again, or open it again",
        )
    }

    fn check_and_tell(&self, consequence: &str) -> Result<(), StateError> {
        let what = match id(&self.path) {
            Ok(Some(found)) if found == self.id => return Ok(()),
            Ok(Some(_)) => "another file is in its place",
            Err(error) if error.kind() == ErrorKind::NotFound => "it was deleted, or renamed, or its directory was",
            // It cannot be found out; SQLite says what is wrong, if anything is.
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

/// The log and its index beside a database, as one connection has found them.
#[derive(Debug)]
pub(crate) struct Logs {
    paths: [PathBuf; 2],
    found: [Option<FileId>; 2],
    looked_at: Option<Instant>,
}

impl Logs {
    /// Beside the database at this path, which SQLite has made of the caller's.
    pub(crate) fn beside(database: &Path) -> Self {
        Self {
            paths: [log_beside(database), beside(database, "-shm")],
            found: [None; 2],
            looked_at: None,
        }
    }

    /// Another connection may find others: SQLite removes them with the last connection.
    pub(crate) fn forget(&mut self) {
        self.found = [None; 2];
        self.looked_at = None;
    }

    /// Fails if one of them is missing that was there, or is another one; looks ten times a second. Called inside a
    /// transaction, in which both are there.
    pub(crate) fn check(&mut self) -> Result<(), StateError> {
        let lately = |at: Instant| at.elapsed() < LOOK_FOR_LOGS;
        match self.looked_at.is_some_and(lately) {
            true => Ok(()),
            false => self.look(),
        }
    }

    /// The same, and looks in any case.
    pub(crate) fn look(&mut self) -> Result<(), StateError> {
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
        self.looked_at = Some(Instant::now());
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
        assert!(Opened::at(path.clone()).is_none(), "there is no file");
        fs::write(&path, "one").unwrap();
        let opened = Opened::at(path.clone()).unwrap();
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
        let mut logs = Logs::beside(&directory.path().join("app.db"));
        assert!(logs.look().is_ok(), "there were none");
        let wal = directory.path().join("app.db-wal");
        fs::write(&wal, "").unwrap();
        assert!(logs.look().is_ok() && logs.look().is_ok());
        fs::remove_file(&wal).unwrap();
        assert!(logs.look().unwrap_err().to_string().contains("app.db-wal"));
        logs.forget();
        assert!(logs.look().is_ok(), "another connection finds others");
    }
}
