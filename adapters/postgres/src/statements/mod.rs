//! Every SQL text of this crate: a `.sql` file each, in the folder of the module that sends it.
//!
//! [`template`] says how the gaps of a file are filled. Three kinds of texts:
//!
//! - [`Statements`]: texts without gaps, and texts with one flag. They are filled once for each store.
//! - [`text`]: templates that a caller fills, through [`Store::statement`](crate::store::Store::statement) if the text is worth
//!   remembering. [`claim`] and [`settle`] fill the two large ones.
//! - `fragments/`: parts that several texts share.

pub(crate) mod claim;
pub(crate) mod settle;
mod template;

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

pub(crate) use template::{Filling, fill};

/// The name of the schema, as texts need it.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    name: String,
    quoted: String,
    /// The quoted name as it is written inside of `E''`.
    text: String,
}

impl Schema {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            quoted: quote(name),
            text: escape(&quote(name)),
        }
    }

    /// The name as the user gave it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A filled template with the schema in place.
    pub(crate) fn complete(&self, filled: &str) -> SqlStr {
        // The name itself is not searched, because it may look like anything.
        let parts = filled
            .split("{schema}")
            .map(|part| part.replace("{schema_text}", &self.text));
        AssertSqlSafe(parts.collect::<Vec<_>>().join(&self.quoted)).into_sql_str()
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

/// A text with one flag.
#[derive(Debug)]
pub(crate) struct Variants {
    plain: SqlStr,
    flagged: SqlStr,
}

impl Variants {
    /// The text with the flag set, or without it.
    pub(crate) fn when(&self, flagged: bool) -> &SqlStr {
        if flagged { &self.flagged } else { &self.plain }
    }
}

macro_rules! fragments {
    ($($name:ident),+ $(,)?) => {
        /// The fragments by their names.
        const FRAGMENTS: &[(&str, &str)] = &[
            $((stringify!($name), include_str!(concat!("fragments/", stringify!($name), ".sql"))),)+
        ];
    };
}

fragments! {
    back_at,
    back_attempt,
    blockers_ahead,
    bound_or_greatest,
    chain_columns,
    clock,
    counted_scan_start,
    failure,
    first_of_last,
    in_transaction,
    insert_next_jobs,
    insert_simple_jobs,
    item_may_settle,
    job_columns,
    latest_id,
    latest_id_of_existing,
    latest_job,
    latest_of_first,
    limit_idle_time,
    lock_wanted,
    may_be_reaped,
    now,
    server_start,
    state,
    transaction_ended,
    types_exist,
}

macro_rules! statements {
    (
        fixed { $($folder:literal: $($name:ident),+;)+ }
        variants { $($variant_folder:literal: $($variant:ident($flag:ident)),+;)+ }
    ) => {
        /// The texts that no call changes, with the schema in place. Each file describes its text.
        #[derive(Debug)]
        pub(crate) struct Statements {
            $($(pub(crate) $name: SqlStr,)+)+
            $($(pub(crate) $variant: Variants,)+)+
        }

        impl Statements {
            pub(crate) fn new(schema: &Schema) -> Self {
                let complete = |template: &str, filling: Filling| schema.complete(&fill(template, &filling));
                Self {
                    $($($name: complete(
                        include_str!(concat!($folder, "/", stringify!($name), ".sql")),
                        Filling::none(),
                    ),)+)+
                    $($($variant: Variants {
                        plain: complete(
                            include_str!(concat!($variant_folder, "/", stringify!($variant), ".sql")),
                            Filling::none(),
                        ),
                        flagged: complete(
                            include_str!(concat!($variant_folder, "/", stringify!($variant), ".sql")),
                            Filling::none().when(stringify!($flag), true),
                        ),
                    },)+)+
                }
            }

            /// All texts, with their names.
            #[cfg(test)]
            fn all(&self) -> Vec<(&'static str, &SqlStr)> {
                vec![
                    $($((stringify!($name), &self.$name),)+)+
                    $($((stringify!($variant), &self.$variant.plain), (stringify!($variant), &self.$variant.flagged),)+)+
                ]
            }
        }
    };
}

statements! {
    fixed {
        "types": types_by_name, types_by_number, all_types;
        "snapshot": confirm_open_keys, limit_lock_wait, probe_ids;
        "query": chains_by_id, blockers_of, sessions, writers;
        "create": taken_ids, delete_jobs, insert_blockers, insert_jobs, lock_keys, duplicates, take_keys, reopen_keys,
            delete_keys, keys_of_chains, open_holders;
        "transition": insert_ready, insert_later, insert_waiting, insert_result, insert_stopped, insert_failures;
        "claim": promote, running_under_fence;
        "lease": renew, hold, limit_idle_time, standing, has_expired, reap;
        "settle": unblock, repeated_ends, finish_one, finish_many;
        "operate": kept_ranks, open_blockers, references, jobs_of_chains, delete_edges_of, delete_edges_to,
            delete_key_locks;
        "locks": blockers_of_all, blockers_of_latest, chains_ahead, edges_ahead, chains_of_jobs, savepoint,
            release_savepoint, rollback_to_savepoint;
        "liveness": other_processes, lock_silent, confirm_dead, register, sign_of_life, withdraw, forget_dead;
        "upkeep": elect, rest_of_lease, add_row, note_check, lock_waiting, lock_completed, lock_stopped, dead_rows,
            limit_lock_wait_of_deletion;
    }
    variants {
        "types": types_exist(guarded);
        "snapshot": now(guarded);
        "query": jobs_by_id(guarded);
        "settle": dependants(skips);
        "locks": lock_chains(skips), lock_damaged(skips);
    }
}

macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident = $file:literal;)+) => {
        /// Templates that a caller fills. Each file describes its text and its gaps.
        pub(crate) mod text {
            $(pub(crate) const $name: &str = include_str!($file);)+
        }
    };
}

texts! {
    ADD_TYPES = "types/add_types.sql";
    CONFIRM_ROWS = "snapshot/confirm_rows.sql";
    CREATE_ALIKE = "create/create_alike.sql";
    CREATE_SIMPLE = "create/create_simple.sql";
    DELETE_FROM = "transition/delete_from.sql";
    SAMPLE = "claim/sample.sql";
    MARK_AWAITED = "locks/mark_awaited.sql";

    COUNT_CHAINS_OF_TYPES = "query/count_chains_of_types.sql";
    COUNT_ROWS = "query/count_rows.sql";
    COUNT_OF_TABLE = "query/count_of_table.sql";
    PAGE_OF_JOBS = "query/page_of_jobs.sql";
    PAGE_OF_CHAINS = "query/page_of_chains.sql";
    WALK = "query/walk.sql";
    SOURCE_OF_MERGE = "query/source_of_merge.sql";
    SOURCE_OF_WALK = "query/source_of_walk.sql";
    RUN_OF_TYPES = "query/run_of_types.sql";
    RUN_OF_JOBS = "query/run_of_jobs.sql";
    RUN_OF_FIRST_JOBS = "query/run_of_first_jobs.sql";
    RUN_OF_ENDED = "query/run_of_ended.sql";
    JOBS_BY_CONDITION = "query/jobs_by_condition.sql";
    JOBS_OF_CHAINS = "query/jobs_of_chains.sql";
    CHAINS_OF_TYPES = "query/chains_of_types.sql";
    DEPENDANTS_OF_CHAIN = "query/dependants.sql";
    JOBS_IN_TABLE = "query/jobs_in_table.sql";
    CHAINS_IN_TABLE = "query/chains_in_table.sql";
    CHAINS_BY_CONDITION = "query/chains_by_condition.sql";
    ENDED_CHAINS = "query/ended_chains.sql";
    TIES = "query/ties.sql";
    IS_IN_TABLE = "query/is_in_table.sql";
    IS_ROOT = "query/is_root.sql";
    IS_BLOCKED_BY = "query/is_blocked_by.sql";
    IS_CHAIN_OF_JOBS = "query/is_chain_of_jobs.sql";

    CHECK_WITHOUT_JOB = "upkeep/check_without_job.sql";
    CHECK_OF_ANOTHER_TYPE = "upkeep/check_of_another_type.sql";
    CHECK_WITHOUT_TYPE = "upkeep/check_without_type.sql";
    CHECK_NOT_IN_ONE_TABLE = "upkeep/check_not_in_one_table.sql";
    CHECK_MISCOUNTED = "upkeep/check_miscounted.sql";
    CHECK_WITHOUT_BLOCKER = "upkeep/check_without_blocker.sql";
    EXPIRED_COMPLETED = "upkeep/expired_completed.sql";
    EXPIRED_STOPPED = "upkeep/expired_stopped.sql";
    VACUUM = "upkeep/vacuum.sql";

    IS_OWN_SESSION = "liveness/is_own_session.sql";
    TAKE_SESSION_LOCK = "liveness/take_session_lock.sql";

    BEGIN = "connection/begin.sql";
    SET_LOCAL = "connection/set_local.sql";
    SET_SESSION = "connection/set_session.sql";
    MARK = "transaction/mark.sql";
    SHIELD = "transaction/shield.sql";
    IS_OPEN = "transaction/is_open.sql";
    SAVEPOINT = "transaction/savepoint.sql";
    RELEASE_SAVEPOINT = "transaction/release_savepoint.sql";
    ROLLBACK_TO_SAVEPOINT = "transaction/rollback_to_savepoint.sql";

    ANNOUNCE = "notify/announce.sql";
    ANNOUNCE_WITHIN = "notify/announce_within.sql";
    BEGIN_LOOK = "notify/begin_look.sql";
    LISTENER_SETTINGS = "notify/session_settings.sql";
    LOOK = "notify/look.sql";
    SESSION = "notify/session.sql";

    ANSWERS_LATE = "connection/answers_late.sql";
    INSPECT = "connection/inspect.sql";

    FIRST_COLUMNS = "migrate/first_columns.sql";
    LEDGER = "migrate/ledger.sql";
    LOCK_HOLDERS = "migrate/lock_holders.sql";
    MISSING_RIGHTS = "migrate/missing_rights.sql";
    PREPARE_STEP = "migrate/prepare_step.sql";
    RIGHT_TO_CREATE = "migrate/right_to_create.sql";
    SCHEMA_EXISTS = "migrate/schema_exists.sql";
    UNCALLABLE_FUNCTIONS = "migrate/uncallable_functions.sql";
    VERSION = "migrate/version.sql";
}

/// A text that needs no schema, without its comments.
pub(crate) fn plain(template: &str) -> SqlStr {
    AssertSqlSafe(fill(template, &Filling::none())).into_sql_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_gap_is_left_and_a_schema_may_have_any_name() {
        let name = "o'dd \\ \"{schema}\" {now}";
        let statements = Statements::new(&Schema::new(name));
        for (statement, text) in statements.all() {
            let text = text
                .as_str()
                .replace(&quote(name), "")
                .replace(&escape(&quote(name)), "");
            assert!(!text.contains(['{', '}']), "{statement}: {text}");
            assert!(!text.contains("--"), "{statement}: {text}");
        }
    }
}
