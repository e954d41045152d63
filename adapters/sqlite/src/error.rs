//! Errors of SQLite, translated into what the caller can do about them.

use queuert::{StateError, StateErrorKind};

/// The result codes of SQLite that have an advice of their own.
mod code {
    pub(super) const ERROR: i32 = 1;
    pub(super) const PERM: i32 = 3;
    pub(super) const BUSY: i32 = 5;
    pub(super) const LOCKED: i32 = 6;
    pub(super) const NOMEM: i32 = 7;
    pub(super) const READONLY: i32 = 8;
    pub(super) const INTERRUPT: i32 = 9;
    pub(super) const IOERR: i32 = 10;
    pub(super) const CORRUPT: i32 = 11;
    pub(super) const FULL: i32 = 13;
    pub(super) const CANTOPEN: i32 = 14;
    pub(super) const PROTOCOL: i32 = 15;
    pub(super) const SCHEMA: i32 = 17;
    pub(super) const TOOBIG: i32 = 18;
    pub(super) const CONSTRAINT: i32 = 19;
    pub(super) const MISMATCH: i32 = 20;
    pub(super) const NOTADB: i32 = 26;
    pub(super) const CONSTRAINT_PRIMARYKEY: i32 = 1555;
    pub(super) const CONSTRAINT_UNIQUE: i32 = 2067;
}

/// The error of a statement, on either kind of connection.
#[derive(Debug)]
pub(crate) enum StatementError {
    Sqlx(sqlx::Error),
    Rusqlite(rusqlite::Error),
}

impl From<sqlx::Error> for StatementError {
    fn from(error: sqlx::Error) -> Self {
        Self::Sqlx(error)
    }
}

impl From<rusqlite::Error> for StatementError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Rusqlite(error)
    }
}

impl From<StatementError> for StateError {
    fn from(error: StatementError) -> Self {
        let translated = advice(&error);
        match error {
            StatementError::Sqlx(error) => translated.with_source(error),
            StatementError::Rusqlite(error) => translated.with_source(error),
        }
    }
}

impl StatementError {
    /// SQLite's extended result code.
    fn code(&self) -> Option<i32> {
        match self {
            Self::Sqlx(error) => sqlx_code(error),
            Self::Rusqlite(error) => rusqlite_code(error),
        }
    }

    /// Whether another connection holds the lock that the statement needs.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.code().map(primary), Some(code::BUSY | code::LOCKED))
    }

    /// Whether rows violate a constraint, perhaps one that is checked only at the commit.
    pub(crate) fn is_constraint(&self) -> bool {
        self.code().map(primary) == Some(code::CONSTRAINT)
    }

    /// Whether a unique index refused a row.
    pub(crate) fn is_unique_violation(&self) -> bool {
        matches!(self.code(), Some(code::CONSTRAINT_PRIMARYKEY | code::CONSTRAINT_UNIQUE))
    }
}

/// Translates an error of sqlx.
pub(crate) fn translate(error: sqlx::Error) -> StateError {
    StatementError::Sqlx(error).into()
}

/// Translates an error of sqlx when the file is opened for the first time. Only another path, or other rights, can help then.
pub(crate) fn translate_first(error: sqlx::Error) -> StateError {
    if sqlx_code(&error).map(primary) == Some(code::CANTOPEN) {
        let advice = "the database cannot be opened; check that its directory exists and can be written";
        return StateError::new(StateErrorKind::Misconfigured, advice).with_source(error);
    }
    translate(error)
}

/// The advice for an error. Only an error of one value or row is [`StateErrorKind::Corrupt`]: after that, and after no other
/// error, a worker gives up the result that it has to write.
fn advice(error: &StatementError) -> StateError {
    let (kind, message) = match error.code().map(primary) {
        Some(code::BUSY | code::LOCKED) => (
            StateErrorKind::Transient,
            "the database is locked by another connection; look for a process that keeps a transaction open on this file",
        ),
        Some(code::READONLY) => (
            StateErrorKind::Misconfigured,
            "the database cannot be written; check the rights of the file and of its directory (SQLite creates `-wal` and \
             `-shm` files next to it)",
        ),
        Some(code::PERM) => (
            StateErrorKind::Misconfigured,
            "access to the database was denied; check the rights of the file and of its directory",
        ),
        // The store is open, so the file existed. `translate_first` has the advice for the first opening.
        Some(code::CANTOPEN) => (
            StateErrorKind::Transient,
            "the database cannot be opened again for now; check that the process may open more files (`ulimit -n`), and \
             that the directory of the database exists and can be written",
        ),
        Some(code::NOTADB) => (
            StateErrorKind::Misconfigured,
            "the file is not an SQLite database (or is encrypted); choose another path",
        ),
        Some(code::CORRUPT) => (
            StateErrorKind::Misconfigured,
            "the database is damaged; restore a backup, or recover what is left with `sqlite3 <file> .recover`",
        ),
        Some(code::FULL) => (
            StateErrorKind::Transient,
            "the disk is full, or the database has reached its size limit; make room, nothing was written",
        ),
        Some(code::IOERR) => (
            StateErrorKind::Transient,
            "the operating system failed to read or write the database; check the disk and the space on it",
        ),
        Some(code::TOOBIG) => (
            StateErrorKind::Corrupt,
            "a value is too large for the database; store it elsewhere and pass a reference to it",
        ),
        Some(code::CONSTRAINT | code::MISMATCH) => (
            StateErrorKind::Corrupt,
            "the database refused a value; the cause names the rule, change the value, or the constraint or trigger that was \
             added to the table",
        ),
        Some(code::NOMEM) => (
            StateErrorKind::Transient,
            "there was no memory left for the statement; give the process more, or let it do less at a time",
        ),
        Some(code::PROTOCOL | code::SCHEMA) => (
            StateErrorKind::Transient,
            "another connection was in the way of the statement; try again",
        ),
        Some(code::INTERRUPT) => (
            StateErrorKind::Transient,
            "the statement was interrupted by the application; try again",
        ),
        Some(_) => (
            StateErrorKind::Misconfigured,
            "the database refused a statement; the cause says why: check that the tables are those of this version and were \
             not changed by hand",
        ),
        None => match error {
            StatementError::Sqlx(
                sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_),
            )
            | StatementError::Rusqlite(_) => (
                StateErrorKind::Corrupt,
                "a row of the database is not what it should be: something other than this library wrote it; the cause names the \
                 column, mend it or delete the chain",
            ),
            StatementError::Sqlx(sqlx::Error::PoolClosed) => {
                (StateErrorKind::Transient, "the store has been closed; open it again")
            }
            StatementError::Sqlx(sqlx::Error::PoolTimedOut) => (
                StateErrorKind::Transient,
                "no reading connection came free in time; allow more with `readers`",
            ),
            _ => (
                StateErrorKind::Transient,
                "the connection to the database failed; try again, and look at the cause if it goes on",
            ),
        },
    };
    StateError::new(kind, message)
}

/// Whether another connection holds the lock that the statement needs.
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    matches!(sqlx_code(error).map(primary), Some(code::BUSY | code::LOCKED))
}

/// Whether SQLite refused a statement that is not possible in the current state of the connection.
pub(crate) fn is_refused(error: &sqlx::Error) -> bool {
    sqlx_code(error).map(primary) == Some(code::ERROR)
}

/// Whether an operation failed because another connection holds the lock.
pub(crate) fn is_locked(error: &StateError) -> bool {
    use std::error::Error as _;
    let Some(source) = error.source() else {
        return false;
    };
    if let Some(lent) = source.downcast_ref::<sqlx::Error>() {
        return is_busy(lent);
    }
    let own = source.downcast_ref::<rusqlite::Error>().and_then(rusqlite_code);
    matches!(own.map(primary), Some(code::BUSY | code::LOCKED))
}

/// From the source of the error: which variants exist depends on the features of rusqlite, which the application may set.
fn rusqlite_code(error: &rusqlite::Error) -> Option<i32> {
    use std::error::Error as _;
    let source = error.source()?.downcast_ref::<rusqlite::ffi::Error>()?;
    Some(source.extended_code)
}

fn sqlx_code(error: &sqlx::Error) -> Option<i32> {
    match error {
        sqlx::Error::Database(error) => error.code()?.parse().ok(),
        _ => None,
    }
}

/// The low byte of SQLite's extended codes is the primary one.
fn primary(code: i32) -> i32 {
    code & 0xFF
}

/// A copy of an error for another caller.
pub(crate) fn copy(error: &StateError) -> StateError {
    use std::error::Error as _;
    let copy = StateError::new(error.kind(), error.to_string());
    match error.source() {
        Some(source) => copy.with_source(source.to_string()),
        None => copy,
    }
}

/// The error for a row that has an impossible value.
pub(crate) fn corrupt(message: impl Into<String>) -> StateError {
    StateError::new(StateErrorKind::Corrupt, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker gives up a result after an error of one row, and after no other error.
    #[test]
    fn only_what_is_wrong_with_a_value_concerns_one_row() {
        let failed = |code: i32| {
            let error = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
            StateError::from(StatementError::from(error)).kind()
        };
        let of_one_row = [code::TOOBIG, code::CONSTRAINT, code::MISMATCH];
        for code in 1..=26 {
            assert_eq!(
                failed(code).concerns_one_row(),
                of_one_row.contains(&code),
                "code {code}"
            );
        }
        assert!(failed(code::CONSTRAINT_UNIQUE).concerns_one_row());
    }

    /// What happened, and then the next step.
    #[test]
    fn every_message_says_what_to_do() {
        let own = (1..=26).map(|code| rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None));
        let own = own.map(|error| StateError::from(StatementError::from(error)));
        let lent = [
            sqlx::Error::PoolTimedOut,
            sqlx::Error::PoolClosed,
            sqlx::Error::WorkerCrashed,
            sqlx::Error::Decode("no".into()),
        ];
        for error in own.chain(lent.map(translate)) {
            let message = error.to_string();
            assert!(message.contains("; "), "{message}");
        }
    }
}
