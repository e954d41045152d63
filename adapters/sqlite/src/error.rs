//! What SQLite fails with, translated into what the caller can do about it.

use queuert::{StateError, StateErrorKind};

/// The result codes of SQLite that are told apart.
mod code {
    pub(super) const PERM: i32 = 3;
    pub(super) const BUSY: i32 = 5;
    pub(super) const LOCKED: i32 = 6;
    pub(super) const READONLY: i32 = 8;
    pub(super) const INTERRUPT: i32 = 9;
    pub(super) const IOERR: i32 = 10;
    pub(super) const CORRUPT: i32 = 11;
    pub(super) const FULL: i32 = 13;
    pub(super) const CANTOPEN: i32 = 14;
    pub(super) const CONSTRAINT: i32 = 19;
    pub(super) const NOTADB: i32 = 26;
    pub(super) const CONSTRAINT_PRIMARYKEY: i32 = 1555;
    pub(super) const CONSTRAINT_UNIQUE: i32 = 2067;
}

/// What a statement fails with, on either kind of connection.
#[derive(Debug)]
pub(crate) enum DbError {
    Lent(sqlx::Error),
    Own(rusqlite::Error),
}

impl From<sqlx::Error> for DbError {
    fn from(error: sqlx::Error) -> Self {
        Self::Lent(error)
    }
}

impl From<rusqlite::Error> for DbError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Own(error)
    }
}

impl From<DbError> for StateError {
    fn from(error: DbError) -> Self {
        let translated = advice(&error);
        match error {
            DbError::Lent(error) => translated.with_source(error),
            DbError::Own(error) => translated.with_source(error),
        }
    }
}

impl DbError {
    /// SQLite's extended result code.
    fn code(&self) -> Option<i32> {
        match self {
            Self::Lent(error) => lent_code(error),
            Self::Own(error) => own_code(error),
        }
    }

    /// Whether another connection holds the lock that the statement needs.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.code().map(primary), Some(code::BUSY | code::LOCKED))
    }

    /// Whether the rows break a constraint, perhaps one that is only checked at the commit.
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
    DbError::Lent(error).into()
}

/// What can be done about an error.
fn advice(error: &DbError) -> StateError {
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
        Some(code::CANTOPEN) => (
            StateErrorKind::Misconfigured,
            "the database cannot be opened; check that its directory exists and can be written",
        ),
        Some(code::NOTADB) => (
            StateErrorKind::Misconfigured,
            "the file is not an SQLite database (or is encrypted); choose another path",
        ),
        Some(code::CORRUPT) => (
            StateErrorKind::Corrupt,
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
        Some(code::INTERRUPT) => (StateErrorKind::Transient, "the statement was interrupted"),
        Some(_) => (StateErrorKind::Misconfigured, "the database refused a statement"),
        None => match error {
            DbError::Lent(
                sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_),
            )
            | DbError::Own(_) => (
                StateErrorKind::Corrupt,
                "a row of the database is not what it should be",
            ),
            DbError::Lent(sqlx::Error::PoolClosed) => {
                (StateErrorKind::Transient, "the store has been closed; open it again")
            }
            DbError::Lent(sqlx::Error::PoolTimedOut) => (
                StateErrorKind::Transient,
                "no reading connection came free in time; allow more with `readers`",
            ),
            _ => (StateErrorKind::Transient, "the connection to the database failed"),
        },
    };
    StateError::new(kind, message)
}

/// Whether another connection holds the lock that the statement needs.
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    matches!(lent_code(error).map(primary), Some(code::BUSY | code::LOCKED))
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
    let own = source.downcast_ref::<rusqlite::Error>().and_then(own_code);
    matches!(own.map(primary), Some(code::BUSY | code::LOCKED))
}

/// By its source: which variants there are depends on the features of rusqlite, which the application may set.
fn own_code(error: &rusqlite::Error) -> Option<i32> {
    use std::error::Error as _;
    let source = error.source()?.downcast_ref::<rusqlite::ffi::Error>()?;
    Some(source.extended_code)
}

fn lent_code(error: &sqlx::Error) -> Option<i32> {
    match error {
        sqlx::Error::Database(error) => error.code()?.parse().ok(),
        _ => None,
    }
}

/// The low byte of SQLite's extended codes is the primary one.
fn primary(code: i32) -> i32 {
    code & 0xFF
}

/// The same failure for another one who waits for it.
pub(crate) fn copy(error: &StateError) -> StateError {
    use std::error::Error as _;
    let copy = StateError::new(error.kind(), error.to_string());
    match error.source() {
        Some(source) => copy.with_source(source.to_string()),
        None => copy,
    }
}

/// A row that is not what it should be.
pub(crate) fn corrupt(message: impl Into<String>) -> StateError {
    StateError::new(StateErrorKind::Corrupt, message)
}
