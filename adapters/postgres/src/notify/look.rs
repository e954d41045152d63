//! The statement by which one process looks for all: for due jobs of all types, and for processes that have died.

use std::time::Duration;

use queuert::TypeName;
use sqlx::{PgConnection, Row, SqlStr};

use crate::liveness::other_processes::FoundProcess;
use crate::notify::payload::{Ticket, looked};
use crate::statements::{Filling, Schema, fill, text};
use crate::store::micros;

/// So many due jobs of a type are counted. More than the idle workers of a fleet are not needed.
const MOST_COUNTED: i64 = 256;

/// So many processes whose locks are free are announced.
const MOST_MISSED: i64 = 100;

/// How a process looks at the store of a schema.
#[derive(Debug)]
pub(crate) struct Look {
    text: SqlStr,
    early: Duration,
}

/// What a look has found.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    /// Types with jobs that are due, or will be before the next look, and how many there are at least.
    pub(crate) due: Vec<(TypeName, usize)>,
    /// The other processes, if the look was for them too.
    pub(crate) others: Option<Vec<FoundProcess>>,
    /// How long it took the server.
    pub(crate) took: Duration,
    /// Whether some lease has expired.
    pub(crate) expired: bool,
}

impl Look {
    pub(crate) fn new(schema: &str, early: Duration) -> Self {
        let filling = Filling::none()
            .with("most", MOST_COUNTED)
            .with("most_missed", MOST_MISSED);
        let filled = fill(text::LOOK, &filling);
        Self {
            text: Schema::new(schema).complete(&filled),
            early,
        }
    }

    pub(crate) async fn run(
        &self,
        connection: &mut PgConnection,
        channel: Option<String>,
        ticket: Ticket,
        process: Option<i64>,
        more: &str,
    ) -> Result<Looked, sqlx::Error> {
        let (head, tail) = looked(ticket, process.is_some());
        // Nothing that a pooler in transaction mode would have to remember.
        let look = sqlx::query(self.text.clone())
            .persistent(false)
            .bind(channel)
            .bind(head)
            .bind(process)
            .bind(micros(self.early))
            .bind(format!("{tail}{more}"));
        let mut looked = Looked {
            others: process.map(|_| Vec::new()),
            ..Looked::default()
        };
        for row in look.fetch_all(connection).await? {
            let (name, number): (Option<String>, i64) = (row.try_get("type_name")?, row.try_get("number")?);
            let renewed_at: Option<i64> = row.try_get("renewed_at")?;
            match (name, renewed_at) {
                (Some(name), _) => {
                    let jobs = usize::try_from(number).unwrap_or(1);
                    looked.due.push((TypeName::from(name), jobs));
                }
                (None, Some(renewed_at)) => looked.others.get_or_insert_default().push(FoundProcess {
                    key: number,
                    renewed_at,
                    is_free: row.try_get("is_free")?,
                }),
                (None, None) => {
                    looked.took = Duration::from_micros(u64::try_from(number).unwrap_or(0));
                    looked.expired = row.try_get("has_expired")?;
                }
            }
        }
        Ok(looked)
    }
}
