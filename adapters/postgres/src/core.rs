//! What all verbs share: the statements, the settings, and what the process remembers.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use queuert::{StateError, Timestamp};
use sqlx::{AssertSqlSafe, PgPool, SqlSafeStr, SqlStr};

use crate::claim_statement::{self, Rivals, Taking};
use crate::finish::Awaited;
use crate::horizon::Horizons;
use crate::locked_jobs::LockedJobs;
use crate::row;
use crate::session::{Session, query};
use crate::settle_statement::Shape;
use crate::sql::Statements;
use crate::types::Types;

/// The server's clock, not the start of the transaction, in microseconds since 1970.
pub(crate) const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// The time of a statement that begins with reading it into `clock`.
pub(crate) const CLOCK: &str = "(SELECT now FROM clock)";

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) pool: PgPool,
    pub(crate) sql: Statements,
    pub(crate) types: Types,
    pub(crate) ageing_step: Duration,
    /// The schema's name, quoted.
    schema: String,
    /// The same as it is written inside of `E''`.
    schema_text: String,
    /// Statements whose text depends on the call, by their template.
    rendered: Mutex<HashMap<String, SqlStr>>,
    /// Claims by the number of types and of rows to look at, and by what they do about locks.
    claims: Mutex<HashMap<(usize, usize, Taking), SqlStr>>,
    pub(crate) rivals: Rivals,
    /// Where claims begin to look.
    pub(crate) horizons: Horizons,
    /// Jobs whose ends came upon somebody's lock.
    pub(crate) locked: LockedJobs,
    pub(crate) awaited: Awaited,
    /// Settlements by what is in the batch.
    settlements: Mutex<HashMap<Shape, SqlStr>>,
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
            rivals: Rivals::default(),
            ageing_step,
            schema: quote(schema),
            schema_text: escape(&quote(schema)),
            rendered: Mutex::default(),
            claims: Mutex::default(),
            settlements: Mutex::default(),
        }
    }

    /// A template with the schema's name in place of `{schema}` and the time in place of `{now}`. The text is remembered, so there must not be too many
    /// different ones.
    pub(crate) fn render(&self, template: &str) -> SqlStr {
        let mut rendered = self.rendered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = rendered.get(template) {
            return text.clone();
        }
        let text = self.complete(template);
        rendered.insert(template.to_owned(), text.clone());
        text
    }

    pub(crate) fn claim_statement(&self, types: usize, reach: usize, taking: Taking) -> SqlStr {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let text = || self.complete(&claim_statement::statement(types, reach, taking));
        claims.entry((types, reach, taking)).or_insert_with(text).clone()
    }

    pub(crate) fn settle_statement(&self, shape: Shape) -> SqlStr {
        let mut settlements = self.settlements.lock().unwrap_or_else(PoisonError::into_inner);
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
        let text = parts.collect::<Vec<_>>().join(&self.schema);
        AssertSqlSafe(text).into_sql_str()
    }

    /// The ageing step in microseconds.
    pub(crate) fn step(&self) -> i64 {
        i64::try_from(self.ageing_step.as_micros()).unwrap_or(i64::MAX)
    }

    pub(crate) async fn now(&self, session: &mut Session<'_>) -> Result<Timestamp, StateError> {
        let rows = session.fetch(query(&self.sql.now)).await?;
        let now = rows.first().map(|found| row::get(found, 0)).transpose()?;
        Ok(Timestamp::from_micros(now.unwrap_or_default()))
    }
}

/// A name as Postgres reads it back, whatever is in it.
pub(crate) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as it is written inside of `E''`.
fn escape(text: &str) -> String {
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
