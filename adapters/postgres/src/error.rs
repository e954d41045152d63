//! What Postgres fails with, translated into what the caller can do about it.

use queuert::{StateError, StateErrorKind};

use crate::transaction::ENDED;

/// Translates an error of sqlx.
pub(crate) fn translate(error: sqlx::Error) -> StateError {
    let (kind, message) = match &error {
        // PgBouncer's words; it has no code of its own for it.
        sqlx::Error::Database(database) if database.message().contains("statement pooling mode") => (
            StateErrorKind::Misconfigured,
            "the pooler in front of the server is in statement mode, in which there are no transactions; set its \
             `pool_mode` to `transaction` or `session`, or connect to the server itself",
        ),
        // The answer of a statement that must run in a transaction, and of a savepoint outside of one.
        error if has_ended(error) => (
            StateErrorKind::TransactionEnded,
            "the connection is in no transaction any more: a statement of the caller's ended it; run it again from the \
             beginning, and leave its end to `commit` and `rollback`",
        ),
        sqlx::Error::Database(database) => of_code(database.code().as_deref().unwrap_or_default()),
        sqlx::Error::PoolTimedOut => (
            StateErrorKind::Transient,
            "no connection came free in time; look for transactions that are kept open, for calls that lack \
             `.within(&mut tx)` and wait for the transaction around them, or allow more with `max_connections`",
        ),
        sqlx::Error::PoolClosed => (
            StateErrorKind::Transient,
            "the pool of connections has been closed, by `close` or by the application; connect again, and stop the workers \
             before closing",
        ),
        sqlx::Error::Tls(_) => (
            StateErrorKind::Misconfigured,
            "the server and this program cannot agree on encryption; check `sslmode` in the URL and enable one of \
             sqlx's `tls-*` features",
        ),
        sqlx::Error::Configuration(_) => (
            StateErrorKind::Misconfigured,
            "the connection is configured wrongly; the URL looks like postgres://user:password@host:5432/database",
        ),
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => (
            StateErrorKind::Corrupt,
            "a row of the database is not what it should be: something other than this library wrote it; the cause names the \
             column, mend it or delete the chain",
        ),
        // No row of the answer would be any better.
        sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnIndexOutOfBounds { .. }
        | sqlx::Error::TypeNotFound { .. } => (
            StateErrorKind::Misconfigured,
            "the database answered with other columns than it should; the schema is not that of this version: let this \
             library migrate it, or apply `migrations()`",
        ),
        sqlx::Error::Encode(_) => (
            StateErrorKind::Corrupt,
            "a value cannot be sent to the database; the cause says why, make it smaller or change it",
        ),
        sqlx::Error::Io(_) => (
            StateErrorKind::Transient,
            "the database cannot be reached; check that it runs, and the host and port of the URL",
        ),
        _ => (
            StateErrorKind::Transient,
            "the connection to the database failed; try again, and look at the cause if it goes on",
        ),
    };
    StateError::new(kind, message).with_source(error)
}

/// Kind and advice for an SQLSTATE. Only what is wrong with one value or row is [`StateErrorKind::Corrupt`]: a worker gives
/// up what it has to write after that, and after nothing else.
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
            "the transaction may not write: the server is a replica or a failover is under way, then connect to the primary; \
             or `default_transaction_read_only` is on for the role, the database or the server, then turn it off",
        ),
        "28P01" | "28000" => (
            Misconfigured,
            "the server refuses this user or password; check the credentials in the URL and the server's pg_hba.conf",
        ),
        "3D000" => (
            Misconfigured,
            "the database does not exist; create it, or correct its name at the end of the URL",
        ),
        "55000" => (
            Misconfigured,
            "the server is not in a state to do this; the cause says why, such as a database that accepts no connections",
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
            "a text cannot be stored: Postgres keeps no NUL characters, and only a database with UTF8 as its encoding keeps every \
             other one; remove the character, or create the database with UTF8",
        ),
        "54000" => (
            Corrupt,
            "a value is too large for the database; store it elsewhere and pass a reference to it",
        ),
        // Not a fault of a value or a row: nothing that was to be written may be given up for it.
        "54001" => (
            Misconfigured,
            "the server has too little stack for a statement of this library; raise `max_stack_depth` of the server, which \
             must stay below the limit of the operating system (`ulimit -s`), and report the statement",
        ),
        // By `idle_in_transaction_session_timeout`, or, from Postgres 17 on, `transaction_timeout`.
        "25P03" | "25P04" => (
            Transient,
            "the server ended the session because its transaction took too long; shorten it, or allow more time",
        ),
        "57014" => (
            Transient,
            "the statement was cancelled, by `statement_timeout` or by an administrator; try again, or allow more time for \
             this role",
        ),
        _ => match code.get(..2) {
            // Connection exceptions, resources, operator intervention, system errors, internal errors.
            Some("08" | "53" | "57" | "58" | "XX") => (
                Transient,
                "the server failed, or is stopping or starting; try again, and look at the cause and the server's log if it \
                 goes on",
            ),
            Some("40") => (Conflict, "the transaction was rolled back by the server; run it again"),
            // A trigger of the user's refuses the row with `RAISE EXCEPTION`: this library raises none.
            _ if code == "P0001" => (
                Corrupt,
                "a trigger refused a row; the cause has its words: change what it refuses, or the trigger",
            ),
            Some("22" | "23") => (
                Corrupt,
                "the database refused a value; the cause names the rule, change the value, or the constraint or trigger that \
                 was added to the table",
            ),
            _ => (
                Misconfigured,
                "the database refused a statement; the cause says why: check that the schema is that of this version and was \
                 not changed by hand",
            ),
        },
    }
}

/// Whether a unique index refused a row.
pub(crate) fn is_unique_violation(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(error) if error.is_unique_violation())
}

/// Whether a statement was to run in a transaction that has ended.
fn has_ended(error: &sqlx::Error) -> bool {
    let asked = |error: &dyn sqlx::error::DatabaseError| error.message().contains(ENDED);
    // There is no transaction, or another one, without the savepoint.
    has_code(error, "25P01")
        || has_code(error, "3B001")
        || has_code(error, "42704") && matches!(error, sqlx::Error::Database(error) if asked(&**error))
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

/// The same failure, for another caller that waits for it.
pub(crate) fn copy(error: &StateError) -> StateError {
    use std::error::Error as _;
    let copy = StateError::new(error.kind(), error.to_string());
    match error.source() {
        Some(source) => copy.with_source(source.to_string()),
        None => copy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker gives up what it has to write after an error of one row, and after nothing else.
    #[test]
    fn only_what_is_wrong_with_a_value_concerns_one_row() {
        let of_the_server = [
            // Logins, passwords, databases, rights, schemas.
            "28000", "28P01", "3D000", "55000", "42501", "3F000", "42P01", "42703", "42883", "0A000",
            // Servers that are away, full, read-only, or in another's way.
            "08006", "53100", "53200", "53300", "57014", "57P01", "57P03", "58030", "XX000", "XX001", "25006", "25P03",
            "40001", "40P01", "55P03", "25P02", "",
            // Statements that the server's stack is too small for.
            "54001",
        ];
        for code in of_the_server {
            assert!(!of_code(code).0.concerns_one_row(), "{code}");
        }
        for code in ["22021", "22P05", "22001", "23505", "23514", "54000", "P0001"] {
            assert!(of_code(code).0.concerns_one_row(), "{code}");
        }
    }

    /// What happened, and then the next step.
    #[test]
    fn every_message_says_what_to_do() {
        let codes = [
            "40P01", "40001", "40000", "55P03", "25P02", "53300", "53100", "25006", "28P01", "3D000", "55000", "42501",
            "3F000", "P0001", "22021", "54000", "54001", "25P03", "57014", "57P01", "08006", "XX000", "22001", "23514",
            "42883", "",
        ];
        for code in codes {
            let (_, message) = of_code(code);
            assert!(message.contains("; "), "{code}: {message}");
        }
        for error in [
            sqlx::Error::PoolTimedOut,
            sqlx::Error::PoolClosed,
            sqlx::Error::WorkerCrashed,
            sqlx::Error::Tls("no".into()),
            sqlx::Error::Configuration("no".into()),
            sqlx::Error::Decode("no".into()),
            sqlx::Error::Encode("no".into()),
            sqlx::Error::ColumnNotFound("no".into()),
            sqlx::Error::Io(std::io::Error::other("no")),
        ] {
            let message = translate(error).to_string();
            assert!(message.contains("; "), "{message}");
        }
    }
}
