//! What all verbs share: the statements, the settings, and what the process remembers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use queuert::__task::Lock;
use sqlx::{PgPool, SqlStr};

use crate::contention::{AwaitedEnds, Contention, LockedJobs};
use crate::statements::claim::Claim;
use crate::statements::settle::Shape;
use crate::statements::{Filling, Schema, Statements, fill};
use crate::type_ids::TypeIds;
use crate::verbs::claim::rows_without_job::RowsWithoutJob;
use crate::verbs::claim::scan_start::ScanStarts;

#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) pool: PgPool,
    pub(crate) schema: Schema,
    pub(crate) sql: Statements,
    pub(crate) ageing_step: Duration,
    pub(crate) type_ids: TypeIds,
    /// Whether other transactions are in the way of claims.
    pub(crate) contention: Contention,
    /// Whether chains end that jobs wait for.
    pub(crate) awaited_ends: AwaitedEnds,
    /// Jobs whose ends met a lock of another transaction.
    pub(crate) locked_jobs: LockedJobs,
    /// Where claims begin to read.
    pub(crate) scan_starts: ScanStarts,
    pub(crate) rows_without_job: RowsWithoutJob,
    /// Texts whose gaps a caller has filled, by the address of the template.
    filled: Lock<HashMap<(usize, Filling), SqlStr>>,
    claims: Lock<HashMap<Claim, SqlStr>>,
    settlements: Lock<HashMap<Shape, SqlStr>>,
    /// Counts the verbs of this process that have written to the queues.
    writes: AtomicU64,
}

impl Store {
    pub(crate) fn new(pool: PgPool, schema: &str, ageing_step: Duration) -> Self {
        let schema = Schema::new(schema);
        Self {
            pool,
            sql: Statements::new(&schema),
            schema,
            ageing_step,
            type_ids: TypeIds::default(),
            contention: Contention::default(),
            awaited_ends: AwaitedEnds::default(),
            locked_jobs: LockedJobs::default(),
            scan_starts: ScanStarts::default(),
            rows_without_job: RowsWithoutJob::default(),
            filled: Lock::default(),
            claims: Lock::default(),
            settlements: Lock::default(),
            writes: AtomicU64::new(0),
        }
    }

    /// Counts a verb of this process that writes to the queues, so that there may be work for the upkeep.
    pub(crate) fn note_write(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// How many verbs of this process have written to the queues.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// A template with these gaps filled. The text is remembered, so there must not be too many different ones.
    pub(crate) fn statement(&self, template: &'static str, filling: Filling) -> SqlStr {
        let mut filled = self.filled.lock();
        let text = filled.entry((template.as_ptr().addr(), filling));
        let text = text.or_insert_with_key(|(_, filling)| self.schema.complete(&fill(template, filling)));
        text.clone()
    }

    pub(crate) fn claim_statement(&self, claim: Claim) -> SqlStr {
        let mut claims = self.claims.lock();
        let text = || self.schema.complete(&claim.text());
        claims.entry(claim).or_insert_with(text).clone()
    }

    pub(crate) fn settle_statement(&self, shape: Shape) -> SqlStr {
        let mut settlements = self.settlements.lock();
        let text = || self.schema.complete(&shape.text());
        settlements.entry(shape).or_insert_with(text).clone()
    }

    /// The ageing step in microseconds.
    pub(crate) fn step(&self) -> i64 {
        micros(self.ageing_step)
    }
}

/// A limit as the statements take it.
pub(crate) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A duration as the tables keep it.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// A number of attempts, edges or places as the tables keep it, in four bytes.
pub(crate) fn integer(number: impl TryInto<i32>) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}
