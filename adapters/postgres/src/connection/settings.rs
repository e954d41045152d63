//! The settings that the library's statements need, those that the caller's statements would have elsewhere, and the texts
//! that set them.

use queuert::StateError;
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::statements::{Filling, fill, text};

/// What the statements of this library need, and most others do not: plans that are made once, and that follow the
/// indexes in their order whatever the tables looked like when they were made.
pub(super) const TUNING: [(&str, &str); 4] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("jit", "off"),
];

/// One snapshot per statement: a statement that waited for a lock sees what its holder has written.
pub(super) const ISOLATION: (&str, &str) = ("default_transaction_isolation", "read committed");

/// The library's own transactions go from one statement to the next without a pause. One that does not is of a process
/// that is frozen or has vanished, and its locks are in the way of the others. Not set where the session has a shorter limit.
const IDLE: (&str, &str) = ("idle_in_transaction_session_timeout", "5s");

/// What the server sets where this library sets something else.
#[derive(Debug)]
pub(super) struct Usual {
    tuning: [String; 4],
    isolation: String,
    /// Whether a transaction may be idle for a shorter time than [`IDLE`] allows.
    is_impatient: bool,
    /// Whether transactions are deferrable unless they say otherwise.
    is_deferrable: bool,
}

impl Usual {
    /// Reads the answer of `inspect.sql`.
    pub(super) fn read(setting: impl Fn(&str) -> Result<String, StateError>) -> Result<Self, StateError> {
        let mut tuning = [const { String::new() }; TUNING.len()];
        for (value, (name, _)) in tuning.iter_mut().zip(TUNING) {
            *value = setting(name)?;
        }
        Ok(Self {
            tuning,
            isolation: setting("isolation")?,
            is_impatient: setting("has_short_idle_limit")? == "true",
            is_deferrable: setting("deferrable")? == "on",
        })
    }

    /// The limit for the library's own transactions, unless the usual one is shorter.
    fn idle(&self) -> Option<(&'static str, &'static str)> {
        (!self.is_impatient).then_some(IDLE)
    }

    /// How the transactions of callers are marked. `DEFERRABLE` costs no statement, and means something only to a serializable
    /// transaction that reads: where transactions are serializable, or deferrable anyway, the mark is a setting.
    fn mark(&self) -> Mark {
        if self.isolation == "serializable" || self.is_deferrable {
            Mark::Setting
        } else {
            Mark::Deferrable
        }
    }
}

/// How a transaction is marked in which the library writes for the caller; `in_transaction.sql` looks for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    None,
    /// By `BEGIN .. DEFERRABLE`.
    Deferrable,
    /// By a statement of its own, `mark.sql`.
    Setting,
}

/// What begins transactions.
#[derive(Clone, Debug)]
pub(super) struct Begins {
    /// For the caller.
    pub(super) for_caller: SqlStr,
    /// For the library's own statements.
    pub(super) for_library: SqlStr,
}

impl Begins {
    /// On sessions of the library's own, which have the settings that the transaction needs, all but its isolation level.
    pub(super) fn own(usual: &Usual) -> Self {
        Self {
            for_caller: begin(Some(&usual.isolation), [], usual.mark()),
            for_library: read_committed(usual.idle()),
        }
    }

    /// With settings that end with the transaction.
    pub(super) fn guarded(usual: &Usual) -> Self {
        Self {
            for_caller: begin(None, [], usual.mark()),
            for_library: read_committed(TUNING.into_iter().chain(usual.idle())),
        }
    }
}

fn read_committed(settings: impl IntoIterator<Item = (&'static str, &'static str)>) -> SqlStr {
    begin(Some("READ COMMITTED"), settings, Mark::None)
}

/// The message that begins a transaction: at this isolation level, or that of the session, with settings that end with it,
/// and with the mark of one in which the library writes for the caller.
fn begin<'s>(isolation: Option<&str>, settings: impl IntoIterator<Item = (&'s str, &'s str)>, mark: Mark) -> SqlStr {
    let set_local = |(name, value): (&str, &str)| {
        fill(
            text::SET_LOCAL,
            &Filling::none().with("name", name).with("value", value),
        )
    };
    let settings: Vec<String> = settings.into_iter().map(set_local).collect();
    let filling = Filling::none()
        .when("isolated", isolation.is_some())
        .when("deferrable", mark == Mark::Deferrable)
        .when("marked", mark == Mark::Setting)
        .with("isolation", isolation.unwrap_or_default())
        .with("settings", settings.concat())
        .with("mark", fill(text::MARK, &Filling::none()));
    AssertSqlSafe(fill(text::BEGIN, &filling)).into_sql_str()
}

/// The statements that give a session of the library's own the settings of the caller's statements, and back. They are sent
/// when a connection goes from one use to the other, which is seldom, and not in every transaction.
#[derive(Clone, Debug)]
pub(crate) struct CallerSettings {
    pub(super) apply: SqlStr,
    pub(super) restore: SqlStr,
}

impl CallerSettings {
    /// `None` if no setting differs.
    pub(super) fn of(usual: &Usual) -> Option<Self> {
        let differing = TUNING
            .iter()
            .zip(&usual.tuning)
            .filter(|((_, tuned), value)| tuned != value);
        let (tuned, usual): (Vec<_>, Vec<_>) = differing
            .map(|((name, tuned), value)| ((*name, *tuned), (*name, value.as_str())))
            .unzip();
        let set = |settings: &[(&str, &str)]| {
            let set_session = |(name, value): &(&str, &str)| {
                let filling = Filling::none().with("name", name).with("value", value);
                fill(text::SET_SESSION, &filling)
            };
            let settings: Vec<String> = settings.iter().map(set_session).collect();
            AssertSqlSafe(format!("SELECT {}", settings.join(", "))).into_sql_str()
        };
        (!tuned.is_empty()).then(|| Self {
            apply: set(&usual),
            restore: set(&tuned),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use sqlx::postgres::PgConnectOptions;
    use sqlx::{Connection, PgConnection};

    use super::*;
    use crate::connection::connect::inspect;
    use crate::statements::plain;

    async fn options() -> PgConnectOptions {
        PgConnectOptions::from_str(&postgres_support::server_url().await).unwrap()
    }

    /// The library's own transactions have a limit for idle time, which is never longer than that of the role.
    #[tokio::test]
    async fn a_transaction_of_the_library_has_the_shorter_limit_for_idle_time() {
        for (of_role, expected) in [("0", "5s"), ("1min", "5s"), ("700ms", "700ms")] {
            let options = options().await.options([(IDLE.0, of_role)]);
            let mut connection = PgConnection::connect_with(&options).await.unwrap();
            let usual = inspect(&mut connection).await.unwrap();
            let texts = [Begins::guarded(&usual).for_library, Begins::own(&usual).for_library];
            for begin in texts {
                sqlx::raw_sql(begin).execute(&mut connection).await.unwrap();
                let idle: String = sqlx::query_scalar("SELECT current_setting('idle_in_transaction_session_timeout')")
                    .fetch_one(&mut connection)
                    .await
                    .unwrap();
                assert_eq!(idle, expected, "{of_role}");
                sqlx::raw_sql("ROLLBACK").execute(&mut connection).await.unwrap();
            }
        }
    }

    /// After the end of its job too, the session ends no later than the role's limit says.
    #[tokio::test]
    async fn the_end_of_a_job_does_not_loosen_the_limit_of_the_role() {
        let until = fill("SELECT {limit_idle_time:{now} + 60500000}", &Filling::none());
        for (of_role, expected) in [("0", 55_000..=60_500), ("2h", 55_000..=60_500), ("700ms", 700..=700)] {
            let options = options().await.options([(IDLE.0, of_role)]);
            let mut connection = PgConnection::connect_with(&options).await.unwrap();
            sqlx::raw_sql("BEGIN").execute(&mut connection).await.unwrap();
            sqlx::raw_sql(AssertSqlSafe(until.clone()))
                .execute(&mut connection)
                .await
                .unwrap();
            let idle = "SELECT (extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) \
                 * 1000)::bigint";
            let idle: i64 = sqlx::query_scalar(idle).fetch_one(&mut connection).await.unwrap();
            assert!(expected.contains(&idle), "{of_role}: {idle}");
        }
    }

    /// Whatever the role's transactions are like, one that the caller has ended has lost its mark.
    #[tokio::test]
    async fn a_transaction_has_its_mark_until_it_ends() {
        const DEFERRABLE: (&str, &str) = ("default_transaction_deferrable", "on");
        const SERIALIZABLE: (&str, &str) = ("default_transaction_isolation", "serializable");
        const REPEATABLE: (&str, &str) = ("default_transaction_isolation", "repeatable read");
        let roles: [(&[_], Mark); 5] = [
            (&[], Mark::Deferrable),
            (&[REPEATABLE], Mark::Deferrable),
            (&[DEFERRABLE], Mark::Setting),
            (&[SERIALIZABLE], Mark::Setting),
            (&[SERIALIZABLE, DEFERRABLE], Mark::Setting),
        ];
        for (of_role, mark) in roles {
            let options = options().await.options(of_role.iter().copied());
            let mut connection = PgConnection::connect_with(&options).await.unwrap();
            let usual = inspect(&mut connection).await.unwrap();
            assert_eq!(usual.mark(), mark, "{of_role:?}");
            for begin in [Begins::own(&usual).for_caller, Begins::guarded(&usual).for_caller] {
                for end in ["COMMIT", "ROLLBACK"] {
                    sqlx::raw_sql(begin.clone()).execute(&mut connection).await.unwrap();
                    assert!(is_open(&mut connection).await, "{of_role:?}");
                    for statement in [end, "BEGIN", end] {
                        sqlx::raw_sql(statement).execute(&mut connection).await.unwrap();
                        assert!(!is_open(&mut connection).await, "{of_role:?}: {end}");
                    }
                }
            }
        }
    }

    async fn is_open(connection: &mut PgConnection) -> bool {
        sqlx::raw_sql(plain(text::IS_OPEN)).execute(connection).await.is_ok()
    }
}
