//! Every SQL text of this adapter, one file each, in folders named after their users.
//!
//! A file begins with comments that say what the statement does, its parameters and the reasons for its shape.
//! Statements need no row locks: a transaction that writes has SQLite's only write lock. Lists of ids go in as JSON
//! arrays, or as rows ([`BatchStatement`]).
//!
//! In a text, `{prefix}` is the prefix of the tables, `{job_columns}` and the like are the lists of `row.rs`, and
//! `{latest_job_of(..)}` is a fragment that takes an expression.

pub(crate) mod batch_statement;
pub(crate) mod json_rows;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;

use queuert::__task::Lock;
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};
use std::sync::Arc;

use crate::row::{ChainColumn, ClaimColumn, ColumnList, JobColumn};
use batch_statement::BatchStatement;

/// The most queries in one compound query; SQLite's limit is 500.
pub(crate) const MERGED_TYPES: usize = 200;

/// The text of a file.
macro_rules! text {
    ($folder:literal, $name:ident) => {
        include_str!(concat!($folder, "/", stringify!($name), ".sql"))
    };
}

/// Declares [`Statements`]: fixed statements by their folders and names, then statements over any number of rows, some
/// of them with a statement for one row.
macro_rules! statements {
    (
        fixed { $($folder:literal: $($name:ident),*;)* }
        batches { $($batch_folder:literal: $($batch:ident $(or $single:ident)?),*;)* }
    ) => {
        /// The statements, with the prefix of one store in place. Each has the name of its file.
        pub(crate) struct Statements {
            prefix: String,
            /// The query of a claim, by the number of types that it merges.
            claims: Lock<HashMap<usize, SqlStr>>,
            $($(pub(crate) $name: SqlStr,)*)*
            $($(pub(crate) $batch: BatchStatement,)*)*
        }

        impl Statements {
            pub(crate) fn new(prefix: &str) -> Self {
                Self {
                    prefix: prefix.to_owned(),
                    claims: Lock::default(),
                    $($($name: shared(fill(text!($folder, $name), prefix)),)*)*
                    $($($batch: BatchStatement::new(fill(text!($batch_folder, $batch), prefix))
                        $(.or_one_by_one(shared(fill(text!($batch_folder, $single), prefix))))?,)*)*
                }
            }

            /// All statements with their names.
            #[cfg(test)]
            fn all(&self) -> (Vec<(&'static str, &SqlStr)>, Vec<&BatchStatement>) {
                let fixed = vec![$($((stringify!($name), &self.$name),)*)*];
                (fixed, vec![$($(&self.$batch,)*)*])
            }
        }
    };
}

statements! {
    fixed {
        "create": insert_blockers, savepoint_insert, rollback_insert, release_insert, existing_jobs, duplicates,
            chain_statuses;
        "claim": promote, next_due, sample_queues, first_types, claimed_jobs;
        "lease": renew, job_fences, expired, missing, orphaned;
        "liveness": processes, register_worker, delete_workers;
        "settle": complete_blockers, unblockable_jobs, mark_last_blocker, jobs_unblocked_by, blocked_successors,
            chains_waited_for, blocker_edges;
        "transition": update_open_keys;
        "operate": latest_jobs, key_holders, jobs_with_open_blockers, blockers_of_chains, blocker_references,
            delete_blockers_by_chain, delete_blockers_by_job, delete_later_jobs, delete_first_jobs;
        "pause": pauses, put_pause, delete_pause;
        "query": jobs_by_id, chains_by_id, blockers_of_jobs, newest_job, count_pending;
        "locks": take_write_lock;
        "upkeep": finished_chains;
        "notify": insert_notices, delete_old_notices, read_notices, last_notice, data_version, watched_types;
    }
    batches {
        "create": insert_jobs;
        "claim": claim_jobs or claim_job;
        "settle": finish_jobs or finish_job, finished_jobs, hand_over_jobs or hand_over_job, jobs_to_settle;
        "transition": apply_transitions;
    }
}

/// Texts that their users complete.
pub(crate) const LIST_JOBS: &str = text!("query", list_jobs);
pub(crate) const LIST_CHAINS: &str = text!("query", list_chains);
pub(crate) const LIST_CHAINS_BY_LATEST: &str = text!("query", list_chains_by_latest);
pub(crate) const WHERE_IN_CHAINS: &str = text!("fragments", where_in_chains);
pub(crate) const WHERE_BLOCKED_BY: &str = text!("fragments", where_blocked_by);
pub(crate) const WHERE_HAS_JOB: &str = text!("fragments", where_has_job);
pub(crate) const WHERE_ROOT: &str = text!("fragments", where_root);
pub(crate) const WHERE_PENDING: &str = text!("fragments", where_pending);
const LATEST_JOB_OF: &str = text!("fragments", latest_job_of);
const CLAIMABLE_JOBS: &str = text!("claim", claimable_jobs);

/// Texts about a connection.
pub(crate) const READ_SESSION: &str = text!("connection", read_session);
pub(crate) const DETACH_STATEMENTS: &str = text!("connection", detach_statements);
pub(crate) const DROP_TEMPORARY_STATEMENTS: &str = text!("connection", drop_temporary_statements);
pub(crate) const SESSION_VALUES: &str = text!("connection", session_values);
pub(crate) const DATABASE_FILE: &str = text!("connection", database_file);

/// Texts about the schema.
pub(crate) const SCHEMA_NAMES: &str = text!("migrate", schema_names);
pub(crate) const LEDGER_COLUMNS: &str = text!("migrate", ledger_columns);
pub(crate) const LEDGER_VERSION: &str = text!("migrate", ledger_version);
pub(crate) const RECORD_MIGRATION: &str = text!("migrate", record_migration);

impl Statements {
    /// The first half of a claim, for a number of types. Parameters: the limit, then the name of each type.
    pub(crate) fn claim(&self, types: usize) -> SqlStr {
        let mut claims = self.claims.lock();
        claims
            .entry(types)
            .or_insert_with(|| shared(fill(&merged_claim(types), &self.prefix)))
            .clone()
    }

    /// A statement from a text that the caller has completed.
    pub(crate) fn filled(&self, template: &str) -> SqlStr {
        shared(fill(template, &self.prefix))
    }
}

impl fmt::Debug for Statements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Statements")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// The queries of all types, merged: in groups, because SQLite limits the number of queries in one compound query.
fn merged_claim(types: usize) -> String {
    let query = without_comments(CLAIMABLE_JOBS);
    // The first parameter is the limit.
    let queries: Vec<String> = (2..2 + types)
        .map(|parameter| query.replace("{type}", &format!("?{parameter}")))
        .collect();
    let merge = |queries: &[String]| format!("{} ORDER BY rank, id LIMIT ?1", queries.join(" UNION ALL "));
    if types <= MERGED_TYPES {
        return merge(&queries);
    }
    let groups = queries.chunks(MERGED_TYPES);
    let groups: Vec<String> = groups
        .map(|group| format!("SELECT * FROM ({})", merge(group)))
        .collect();
    merge(&groups)
}

/// Fills in what statements share, and the prefix, and removes comments and line breaks: prepared statements are looked
/// up by their text at every call.
fn fill(template: &str, prefix: &str) -> String {
    let template = without_comments(template);
    let mut text = String::with_capacity(template.len());
    let mut rest = template.as_str();
    let latest_job = without_comments(LATEST_JOB_OF);
    while let Some((before, after)) = rest.split_once("{latest_job_of(") {
        let (chain, after) = after.split_once(")}").unwrap_or((after, ""));
        text.push_str(before);
        text.push_str(&latest_job.replace("{chain}", chain));
        rest = after;
    }
    text.push_str(rest);
    text.replace("{job_columns}", &JobColumn::sql())
        .replace("{chain_columns}", &ChainColumn::sql())
        .replace("{claim_columns}", &ClaimColumn::sql())
        .replace("{prefix}", prefix)
}

/// The text in one line. No text has two dashes outside of comments.
pub(crate) fn without_comments(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.split("--").next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// A text that is cheap to clone, which sqlx does at every call.
pub(crate) fn shared(text: String) -> SqlStr {
    AssertSqlSafe(Arc::<str>::from(text)).into_sql_str()
}
