//! The watermark: a time before which no more jobs can appear.
//!
//! Every statement that inserts jobs locks the table `job` (`ROW EXCLUSIVE`) before it reads the clock, and the lock lasts
//! until its transaction ends and what it wrote is visible. So a transaction that is not seen with the lock gives its jobs a
//! later time than the one at which the locks are looked at, or is over. One that is seen with the lock has given none a
//! time before its own beginning.
//!
//! Two statements, in this order. First the time and the beginnings of all transactions, then the locks: a transaction that
//! ends in between is still counted, and one that is prepared in between, and has no session any more, is found by its lock.

use std::collections::HashMap;

use queuert::{StateError, Timestamp};

use crate::connection::session::{Session, query};
use crate::error::{corrupt, misconfigured};
use crate::row;
use crate::store::Store;

/// A time before which no more jobs can appear.
pub(crate) async fn watermark(session: &mut Session<'_>, store: &Store) -> Result<Timestamp, StateError> {
    let rows = session.fetch(query(&store.sql.sessions)).await?;
    let found = rows.first().ok_or_else(|| corrupt("the time has no answer"))?;
    let now = Timestamp::from_micros(row::get(found, "now")?);
    if row::get(found, "is_standby")? {
        return Err(misconfigured(
            "the server is a standby, which does not know the transactions that are open on its primary, so nothing can be \
             followed here; follow on the primary",
        ));
    }
    let role: String = row::get(found, "own_role")?;
    let sessions = Sessions::new(
        row::get(found, "processes")?,
        row::get(found, "beginnings")?,
        row::get(found, "roles")?,
    );
    let writers = session.fetch(query(&store.sql.writers)).await?;
    let writers = writers.iter().map(|found| row::get(found, "process"));
    bound(now, &role, &sessions, writers.collect::<Result<Vec<_>, _>>()?)
}

/// Sessions by their process: when the transaction began, if this role may know it, and the role of the session.
#[derive(Debug, Default)]
struct Sessions(HashMap<i32, (Option<i64>, Option<String>)>);

impl Sessions {
    fn new(
        processes: Option<Vec<i32>>,
        beginnings: Option<Vec<Option<i64>>>,
        roles: Option<Vec<Option<String>>>,
    ) -> Self {
        let about = beginnings
            .unwrap_or_default()
            .into_iter()
            .zip(roles.unwrap_or_default());
        Self(processes.unwrap_or_default().into_iter().zip(about).collect())
    }
}

/// The watermark by the transactions that may write jobs.
fn bound(now: Timestamp, role: &str, sessions: &Sessions, writers: Vec<Option<i32>>) -> Result<Timestamp, StateError> {
    let mut watermark = now;
    for writer in writers {
        let Some(process) = writer else {
            // A prepared transaction: nothing says when it began. Every time that could be given might be too late.
            watermark = Timestamp::from_micros(0);
            continue;
        };
        match sessions.0.get(&process) {
            // It had no transaction when the time was read.
            None => {}
            Some((Some(beginning), _)) => watermark = watermark.min(Timestamp::from_micros(*beginning)),
            Some((None, other)) => {
                return Err(misconfigured(format!(
                    "a session of role `{}` writes jobs, and role `{role}` may not see when its transaction began, so nothing \
                     can be followed; run `GRANT pg_read_all_stats TO \"{role}\"`, and leave `track_activities` on",
                    other.as_deref().unwrap_or("?")
                )));
            }
        }
    }
    Ok(watermark)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions() -> Sessions {
        let names = vec![Some("own".to_owned()), Some("own".to_owned()), Some("other".to_owned())];
        Sessions::new(Some(vec![1, 2, 3]), Some(vec![Some(70), Some(50), None]), Some(names))
    }

    fn at(writers: &[Option<i32>]) -> Result<i64, String> {
        let watermark = bound(Timestamp::from_micros(100), "own", &sessions(), writers.to_vec());
        watermark.map(Timestamp::as_micros).map_err(|error| error.to_string())
    }

    #[test]
    fn without_writers_the_watermark_is_the_present() {
        assert_eq!(at(&[]), Ok(100));
    }

    #[test]
    fn the_oldest_writer_counts_and_others_do_not() {
        assert_eq!(at(&[Some(1)]), Ok(70));
        assert_eq!(at(&[Some(1), Some(2)]), Ok(50));
    }

    #[test]
    fn a_writer_that_began_after_the_look_at_the_sessions_does_not_count() {
        assert_eq!(at(&[Some(9)]), Ok(100));
    }

    #[test]
    fn a_prepared_transaction_leaves_nothing_before_the_watermark() {
        assert_eq!(at(&[Some(1), None]), Ok(0));
    }

    #[test]
    fn a_writer_that_may_not_be_seen_is_an_error_that_names_the_grant() {
        let error = at(&[Some(3)]).unwrap_err();
        assert!(
            error.contains("GRANT pg_read_all_stats TO \"own\"") && error.contains("`other`"),
            "{error}"
        );
    }
}
