//! Clears the queue tables of dead rows while they are busy, long before autovacuum does.

use std::collections::HashMap;
use std::time::Duration;

use queuert::StateError;
use tokio::time::Instant;

use crate::connection::connect::Access;
use crate::connection::session::query;
use crate::error::translate;
use crate::row;
use crate::statements::{Filling, quote, text};
use crate::store::Store;
use crate::transaction::Work;

/// The tables whose rows are written and deleted all the time. The others only grow, and autovacuum takes care of them.
const TABLES: [&str; 5] = ["later", "open_key", "ready", "running", "waiting"];

/// So many dead rows are worth a vacuum, and as many again for every this many live ones, because it reads whole
/// indexes.
const ENOUGH: i64 = 5_000;
const LIVE_PER_DEAD: i64 = 20;
/// From one vacuum of a table to the next: at least this long, and so many times what the last one took.
const PAUSE: Duration = Duration::from_secs(5);
const SHARE: u32 = 10;
/// After how long a vacuum is tried again if it had to leave dead rows, because a transaction can still see them.
const STUCK: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Vacuums {
    last: HashMap<String, Vacuum>,
    /// Whether it was reported that vacuums do not work.
    told: bool,
}

#[derive(Debug)]
struct Vacuum {
    ended: Instant,
    took: Duration,
    /// Dead rows that it left.
    left: i64,
}

#[derive(Debug)]
struct Counts {
    table: String,
    dead: i64,
    live: i64,
    allowed: bool,
}

impl Vacuums {
    /// Vacuums what needs it, and says whether anything did.
    pub(crate) async fn run(
        &mut self,
        schema: &str,
        store: &Store,
        access: &Access,
        findings: &mut Vec<String>,
    ) -> Result<bool, StateError> {
        let mut busy = false;
        for counts in count(schema, store, access).await? {
            if !is_due(&counts, self.last.get(&counts.table), Instant::now()) {
                continue;
            }
            busy = true;
            if !counts.allowed {
                self.tell(
                    findings,
                    format!(
                        "the role may not vacuum the tables of the schema {}, and busy ones get slower until autovacuum \
                         comes by; make it their owner or, from Postgres 17 on, GRANT MAINTAIN on them",
                        quote(schema)
                    ),
                );
                continue;
            }
            let begun = Instant::now();
            if let Err(error) = vacuum(store, &counts.table, access).await {
                // Anything else is the connection's fault, and a matter of waiting.
                let sqlx::Error::Database(database) = &error else {
                    return Err(translate(error));
                };
                let problem = format!(
                    "{}.{} could not be vacuumed: {}",
                    quote(schema),
                    counts.table,
                    database.message()
                );
                self.tell(findings, problem);
            }
            let (ended, took) = (Instant::now(), begun.elapsed());
            let after = count(schema, store, access).await?;
            let left = after
                .iter()
                .find(|after| after.table == counts.table)
                .map_or(0, |after| after.dead);
            self.last.insert(counts.table, Vacuum { ended, took, left });
        }
        Ok(busy)
    }

    /// Forgets everything except what has been reported.
    pub(crate) fn forget(&mut self) {
        self.last.clear();
    }

    fn tell(&mut self, findings: &mut Vec<String>, finding: String) {
        if !std::mem::replace(&mut self.told, true) {
            findings.push(finding);
        }
    }
}

fn is_due(counts: &Counts, last: Option<&Vacuum>, now: Instant) -> bool {
    let enough = ENOUGH + counts.live / LIVE_PER_DEAD;
    if counts.dead < enough {
        return false;
    }
    let Some(last) = last else { return true };
    let since = now.saturating_duration_since(last.ended);
    since >= PAUSE.max(last.took * SHARE) && (counts.dead - last.left >= enough || since >= STUCK)
}

async fn count(schema: &str, store: &Store, access: &Access) -> Result<Vec<Counts>, StateError> {
    let mut work = Work::statement(access).await?;
    let tables = TABLES.map(str::to_owned).to_vec();
    let counts = query(&store.sql.dead_rows).bind(schema.to_owned()).bind(tables);
    let rows = work.session().fetch(counts).await?;
    work.commit().await?;
    let read = |found| {
        Ok(Counts {
            table: row::get(found, "table_name")?,
            dead: row::get(found, "dead")?,
            live: row::get(found, "live")?,
            allowed: row::get(found, "is_allowed")?,
        })
    };
    rows.iter().map(read).collect()
}

/// Vacuums a table, as one message of one statement.
async fn vacuum(store: &Store, table: &str, access: &Access) -> Result<(), sqlx::Error> {
    let text = store.statement(text::VACUUM, Filling::none().with("table", quote(table)));
    let mut connection = access.budget.for_upkeep().await?;
    sqlx::raw_sql(text).execute(&mut *connection).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(dead: i64, live: i64) -> Counts {
        Counts {
            table: "ready".to_owned(),
            dead,
            live,
            allowed: true,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_table_is_vacuumed_when_it_is_worth_it_and_not_all_the_time() {
        let ended = Instant::now();
        let after = |seconds| ended + Duration::from_secs(seconds);
        assert!(!is_due(&counts(4_999, 0), None, ended));
        assert!(is_due(&counts(5_000, 0), None, ended));
        assert!(!is_due(&counts(50_000, 1_000_000), None, ended), "a long backlog");
        let short = Vacuum {
            ended,
            took: Duration::from_millis(20),
            left: 0,
        };
        assert!(!is_due(&counts(90_000, 0), Some(&short), after(4)));
        assert!(is_due(&counts(90_000, 0), Some(&short), after(5)));
        let long = Vacuum {
            took: Duration::from_secs(2),
            ..short
        };
        assert!(!is_due(&counts(90_000, 0), Some(&long), after(19)));
        assert!(is_due(&counts(90_000, 0), Some(&long), after(20)));
        let in_vain = Vacuum { left: 88_000, ..long };
        assert!(
            !is_due(&counts(90_000, 0), Some(&in_vain), after(30)),
            "a snapshot is held"
        );
        assert!(is_due(&counts(90_000, 0), Some(&in_vain), after(60)));
    }
}
