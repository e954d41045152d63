//! What all verbs share: the statements, the settings, and what the process remembers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::{AssertSqlSafe, PgPool, SqlSafeStr, SqlStr};

use crate::claim_statement::{self, Rivals, Taking, Weighing};
use crate::finish::Awaited;
use crate::horizon::Horizons;
use crate::locked_jobs::LockedJobs;
use crate::lost_jobs::LostJobs;
use crate::settle_statement::Shape;
use crate::sql::Statements;
use crate::types::Types;
use queuert::__task::Lock;

/// The server's clock, not the start of the transaction, in microseconds since 1970.
pub(crate) const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// For transactions of attempts that have written the end of their job, or locked its row: only the commit is left to do. A
/// process that is frozen or vanishes before it would keep the job from all others, whatever its lease says. So the server
/// ends the session if it is idle in this transaction when the lease is over, or after five seconds if that is later. A limit
/// that the session has already, of its role for example, stays if it is shorter. The functions in `0001_schema.sql` do the
/// same.
pub(crate) fn idle_until(leased_until: &str) -> String {
    format!(
        "set_config('idle_in_transaction_session_timeout', \
         least(greatest(({leased_until} - {{now}}) / 1000, 5000), 2147483647, \
         nullif((extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint, 0))::text, \
         true)"
    )
}

/// The time of a statement that begins with reading it into `clock`.
pub(crate) const CLOCK: &str = "(SELECT now FROM clock)";

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) pool: PgPool,
    pub(crate) sql: Statements,
    pub(crate) types: Types,
    pub(crate) ageing_step: Duration,
    /// The schema's name, as the user gave it.
    pub(crate) schema: String,
    /// The same, quoted.
    quoted: String,
    /// The same as it is written inside of `E''`.
    schema_text: String,
    /// Statements whose text depends on the call, by their template.
    rendered: Lock<HashMap<String, SqlStr>>,
    /// Claims by the number of types and of rows to look at, and by what they do about locks.
    claims: Lock<HashMap<(usize, usize, Taking, Weighing), SqlStr>>,
    pub(crate) rivals: Rivals,
    /// Where claims begin to look.
    pub(crate) horizons: Horizons,
    /// Jobs whose ends came upon somebody's lock.
    pub(crate) locked: LockedJobs,
    pub(crate) awaited: Awaited,
    pub(crate) lost: LostJobs,
    /// Settlements by what is in the batch.
    settlements: Lock<HashMap<Shape, SqlStr>>,
    /// Counts the verbs of this process that have written to the queues.
    work: AtomicU64,
}

impl Core {
    pub(crate) fn new(pool: PgPool, schema: &str, ageing_step: Duration) -> Self {
        Self {
            pool,
            sql: Statements::new(schema),
            types: Types::default(),
            horizons: Horizons::default(),
            locked: LockedJobs::default(),
            awaited: Awaited::default(),
            lost: LostJobs::default(),
            rivals: Rivals::default(),
            ageing_step,
            schema: schema.to_owned(),
            quoted: quote(schema),
            schema_text: escape(&quote(schema)),
            rendered: Lock::default(),
            claims: Lock::default(),
            settlements: Lock::default(),
            work: AtomicU64::new(0),
        }
    }

    /// Takes note that this process writes to the queues, so that there may be something to tidy up.
    pub(crate) fn note_work(&self) {
        self.work.fetch_add(1, Ordering::Relaxed);
    }

    /// How often it did.
    pub(crate) fn work(&self) -> u64 {
        self.work.load(Ordering::Relaxed)
    }

    /// A template with the schema's name in place of `{schema}` and the time in place of `{now}`. The text is remembered, so there must not be too many
    /// different ones.
    pub(crate) fn render(&self, template: &str) -> SqlStr {
        let mut rendered = self.rendered.lock();
        if let Some(text) = rendered.get(template) {
            return text.clone();
        }
        let text = self.complete(template);
        rendered.insert(template.to_owned(), text.clone());
        text
    }

    pub(crate) fn claim_statement(&self, types: usize, reach: usize, taking: Taking, weighing: Weighing) -> SqlStr {
        // Beyond the branches the text is the same for any number.
        let types = types.min(claim_statement::MOST_BRANCHES + 1);
        let mut claims = self.claims.lock();
        let text = || self.complete(&claim_statement::statement(types, reach, taking, weighing));
        claims
            .entry((types, reach, taking, weighing))
            .or_insert_with(text)
            .clone()
    }

    pub(crate) fn settle_statement(&self, shape: Shape) -> SqlStr {
        let mut settlements = self.settlements.lock();
        let text = || self.complete(&shape.statement());
        settlements.entry(shape).or_insert_with(text).clone()
    }

    /// The same without remembering it.
    pub(crate) fn complete(&self, template: &str) -> SqlStr {
        // The name comes last and is not searched, because it may look like anything.
        let parts = template.split("{schema}").map(|part| {
            let part = part.replace("{now}", NOW);
            part.replace("{schema_text}", &self.schema_text)
        });
        let text = parts.collect::<Vec<_>>().join(&self.quoted);
        AssertSqlSafe(text).into_sql_str()
    }

    /// The ageing step in microseconds.
    pub(crate) fn step(&self) -> i64 {
        i64::try_from(self.ageing_step.as_micros()).unwrap_or(i64::MAX)
    }
}

/// A name as Postgres reads it back, whatever is in it.
pub(crate) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as it is written inside of `E''`.
pub(crate) fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\'', "''")
}

pub(crate) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// As the tables keep it.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Attempts and the like are kept in four bytes.
pub(crate) fn integer(number: impl TryInto<i32>) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}
