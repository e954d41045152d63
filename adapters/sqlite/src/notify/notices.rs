//! Hints that are written into the file for other processes, which cannot read them from the jobs.

use queuert::adapter::Notice;
use queuert::{ChainId, JobId, StateError, TypeName};
use uuid::Uuid;

use crate::clock;
use crate::connection::{Connection, Row, query};
use crate::statements::json_rows::JsonRows;
use crate::store::{Store, count};

/// How many hints are kept: enough for the busiest interval between two reads of another process.
const KEPT: i64 = 10_000;

/// Kinds of hints, as the table has them.
const JOBS_AVAILABLE: i64 = 0;
const CHAIN_ENDED: i64 = 1;
const LEASE_LOST: i64 = 2;
const PAUSES_CHANGED: i64 = 3;

/// Writes hints.
pub(crate) async fn insert<'a>(
    connection: &mut Connection<'_>,
    store: &Store,
    notices: impl IntoIterator<Item = &'a Notice>,
) -> Result<(), StateError> {
    let mut rows = JsonRows::new();
    for notice in notices {
        rows.row(|row| {
            match notice {
                Notice::JobsAvailable { type_name, count: jobs } => row
                    .number(JOBS_AVAILABLE)
                    .null()
                    .text(type_name.as_str())
                    .number(count(*jobs)),
                Notice::ChainEnded(chain) => row.number(CHAIN_ENDED).id(chain.as_uuid()).null().number(1),
                Notice::LeaseLost(job) => row.number(LEASE_LOST).id(job.as_uuid()).null().number(1),
                Notice::PausesChanged => row.number(PAUSES_CHANGED).null().null().number(1),
                // Readers skip a kind that they do not know.
                _ => row.number(-1).null().null().number(1),
            };
        });
    }
    if rows.is_empty() {
        return Ok(());
    }
    let insert = query(&store.statements.insert_notices)
        .bind(rows.finish())
        .bind(store.origin)
        .bind(clock::now().as_micros());
    connection.execute(insert).await?;
    let delete = query(&store.statements.delete_old_notices).bind(KEPT);
    connection.execute(delete).await?;
    Ok(())
}

/// Tells other processes, with the commit of the transaction, that attempts have lost their jobs.
pub(crate) async fn insert_lost_leases(
    connection: &mut Connection<'_>,
    store: &Store,
    jobs: impl IntoIterator<Item = JobId>,
) -> Result<(), StateError> {
    let notices: Vec<Notice> = jobs.into_iter().map(Notice::LeaseLost).collect();
    insert(connection, store, &notices).await
}

/// A hint that was read.
pub(super) struct ReadNotice {
    pub(super) seq: i64,
    /// The handle that wrote it.
    pub(super) origin: Uuid,
    /// `None` for a kind that this version does not know.
    pub(super) notice: Option<Notice>,
}

pub(super) fn read(row: &Row<'_>) -> Result<ReadNotice, StateError> {
    let notice = match row.get::<i64>("kind")? {
        JOBS_AVAILABLE => Some(Notice::JobsAvailable {
            type_name: TypeName::from(row.get::<String>("type")?),
            count: usize::try_from(row.get::<i64>("count")?).unwrap_or(1),
        }),
        CHAIN_ENDED => Some(Notice::ChainEnded(ChainId::from_uuid(row.get("id")?))),
        LEASE_LOST => Some(Notice::LeaseLost(JobId::from_uuid(row.get("id")?))),
        PAUSES_CHANGED => Some(Notice::PausesChanged),
        _ => None,
    };
    Ok(ReadNotice {
        seq: row.get("seq")?,
        origin: row.get("origin")?,
        notice,
    })
}
