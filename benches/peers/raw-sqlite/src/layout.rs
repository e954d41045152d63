//! The rows of our adapter, with which those of the bare statements are compared: the same columns must be filled, so
//! that the same indexes are written.

use queuert_measured::BoxError;
use rusqlite::Connection;
use rusqlite::types::Value;

/// Of these only the type of the value must be the same.
const VARYING: &[&str] = &[
    "seq",
    "id",
    "chain_id",
    "chain_created_at",
    "created_at",
    "scheduled_at",
    "started_at",
    "ended_at",
    "rank",
    "lease_owner",
    "lease_until",
    "fence",
    "settled_fence",
    "completed_by",
    "input",
    "output",
];

type Row = Vec<(String, Value)>;

/// One row of each status, written by our adapter.
pub(crate) struct Layout {
    pending: Row,
    running: Row,
    completed: Row,
}

impl Layout {
    /// Reads the rows that the suite has left in the file, and takes them out.
    pub(crate) fn take_from(connection: &Connection) -> Result<Self, BoxError> {
        let layout = Self {
            pending: any(connection, 1)?,
            running: any(connection, 2)?,
            completed: any(connection, 3)?,
        };
        connection.execute_batch("DELETE FROM queuert_job; PRAGMA wal_checkpoint(TRUNCATE)")?;
        Ok(layout)
    }

    pub(crate) fn check_pending(&self, connection: &Connection) -> Result<(), BoxError> {
        compare(&self.pending, &any(connection, 1)?)
    }

    pub(crate) fn check_running(&self, connection: &Connection) -> Result<(), BoxError> {
        compare(&self.running, &any(connection, 2)?)
    }

    pub(crate) fn check_completed(&self, connection: &Connection) -> Result<(), BoxError> {
        compare(&self.completed, &any(connection, 3)?)
    }
}

/// Some row with the status.
fn any(connection: &Connection, status: i64) -> Result<Row, BoxError> {
    let mut statement = connection.prepare("SELECT * FROM queuert_job WHERE status = ?1 LIMIT 1")?;
    let names: Vec<String> = statement.column_names().into_iter().map(str::to_owned).collect();
    let values = statement.query_row([status], |row| {
        (0..names.len())
            .map(|place| row.get::<_, Value>(place))
            .collect::<Result<Vec<_>, _>>()
    });
    let values = values.map_err(|error| format!("no job has the status {status}: {error}"))?;
    Ok(names.into_iter().zip(values).collect())
}

fn compare(ours: &Row, raw: &Row) -> Result<(), BoxError> {
    for ((name, ours), (_, raw)) in ours.iter().zip(raw) {
        let same = if VARYING.contains(&name.as_str()) {
            ours.data_type() == raw.data_type()
        } else {
            ours == raw
        };
        if !same {
            return Err(format!(
                "the layout has changed: `{name}` is {ours:?} in a row of the adapter and {raw:?} in a raw one; bring the \
                 statements of benches/peers/raw-sqlite up to date"
            )
            .into());
        }
    }
    Ok(())
}
