//! What Postgres fails with, translated into what the caller can do about it.

use queuert::{StateError, StateErrorKind};

/// Translates an error of sqlx.
pub(crate) fn translate(error: sqlx::Error) -> StateError {
    let (kind, message) = match &error {
        sqlx::Error::Database(database) => of_code(database.code().as_deref().unwrap_or_default()),
        sqlx::Error::PoolTimedOut => (
            StateErrorKind::Transient,
            "no connection came free in time; look for transactions that are kept open, for calls that lack \
             `.within(&mut tx)` and wait for the transaction around them, or allow more with `max_connections`",
        ),
        sqlx::Error::PoolClosed => (StateErrorKind::Transient, "the pool of connections has been closed"),
        sqlx::Error::Tls(_) => (
            StateErrorKind::Misconfigured,
            "the server and this program cannot agree on encryption; check `sslmode` in the URL and enable one of \
             sqlx's `tls-*` features",
        ),
        sqlx::Error::Configuration(_) => (
            StateErrorKind::Misconfigured,
            "the connection is configured wrongly; the URL looks like postgres://user:password@host:5432/database",
        ),
        sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_)
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnIndexOutOfBounds { .. } => (
            StateErrorKind::Corrupt,
            "a row of the database is not what it should be",
        ),
        sqlx::Error::Encode(_) => (StateErrorKind::Corrupt, "a value cannot be sent to the database"),
        sqlx::Error::Io(_) => (
            StateErrorKind::Transient,
            "the database cannot be reached; check that it runs, and the host and port of the URL",
        ),
        _ => (StateErrorKind::Transient, "the connection to the database failed"),
    };
    StateError::new(kind, message).with_source(error)
}

/// Kind and advice for an SQLSTATE.
fn of_code(code: &str) -> (StateErrorKind, &'static str) {
    use StateErrorKind::{Conflict, Corrupt, Misconfigured, Transient};
    match code {
        "40P01" => (
            Conflict,
            "deadlock: this transaction and another one wait for locks of each other; roll it back and run it again",
        ),
        "40001" | "40003" => (
            Conflict,
            "the transaction collided with another one; roll it back and run it again",
        ),
        "55P03" => (
            Conflict,
            "a lock was not granted in the time that `lock_timeout` allows; run the transaction again",
        ),
        "25P02" => (
            Conflict,
            "a statement of this transaction had failed, so nothing of it can be committed; roll it back and run it \
             again",
        ),
        "53300" => (
            Transient,
            "the server has no connection left for this role; lower `max_connections` of this program's pools, or raise \
             the server's `max_connections` or the role's limit",
        ),
        "25006" => (
            Transient,
            "the server accepts no writes: it is a replica, or a failover is under way; connect to the primary",
        ),
        "28P01" | "28000" => (
            Misconfigured,
            "the server refuses this user or password; check the credentials in the URL and the server's pg_hba.conf",
        ),
        "3D000" => (
            Misconfigured,
            "the database does not exist; create it, or correct its name at the end of the URL",
        ),
        "42501" => (
            Misconfigured,
            "the role lacks a right; the cause names the object that it may not use, GRANT it as the owner",
        ),
        "3F000" | "42P01" | "42703" => (
            Misconfigured,
            "a table or column of the schema is missing; let this library migrate it, or apply `migrations()`",
        ),
        "22021" | "22P05" => (
            Corrupt,
            "a text cannot be stored: Postgres keeps no NUL characters, and this database needs UTF8 as its encoding",
        ),
        "54000" | "54001" => (Corrupt, "a value is too large for the database"),
        // By `idle_in_transaction_session_timeout`, or, from Postgres 17 on, `transaction_timeout`.
        "25P03" | "25P04" => (
            Transient,
            "the server ended the session because its transaction took too long; shorten it, or allow more time",
        ),
        "57014" => (
            Transient,
            "the statement was cancelled, by `statement_timeout` or by an administrator",
        ),
        _ => match code.get(..2) {
            // Connection exceptions, resources, operator intervention, system errors, internal errors.
            Some("08" | "53" | "57" | "58" | "XX") => (Transient, "the server failed, or is stopping or starting"),
            Some("40") => (Conflict, "the transaction was rolled back by the server; run it again"),
            Some("22" | "23") => (Corrupt, "the database refused a value"),
            _ => (Misconfigured, "the database refused a statement"),
        },
    }
}

/// Whether a unique index refused a row.
pub(crate) fn is_unique_violation(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(error) if error.is_unique_violation())
}

/// Whether the error has this SQLSTATE.
pub(crate) fn has_code(error: &sqlx::Error, code: &str) -> bool {
    matches!(error, sqlx::Error::Database(error) if error.code().as_deref() == Some(code))
}

/// A row that is not what it should be.
pub(crate) fn corrupt(message: impl Into<String>) -> StateError {
    StateError::new(StateErrorKind::Corrupt, message)
}

/// Something that a person must put right.
pub(crate) fn misconfigured(message: impl Into<String>) -> StateError {
    StateError::new(StateErrorKind::Misconfigured, message)
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
