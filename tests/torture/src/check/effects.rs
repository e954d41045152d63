//! What a job wrote in its completing transaction is there once if it completed, and not at all otherwise.

use std::collections::{BTreeMap, HashMap};

use queuert::JobId;

use super::{Audit, completed, number_of};
use crate::facts::EffectRow;
use crate::jobs::WITH_EFFECT;
use crate::store::tables::{ACCOUNTS, EACH, Movement};

impl Audit<'_> {
    pub(super) fn effects(&mut self) {
        let facts = self.facts;
        let mut rows: HashMap<JobId, Vec<&EffectRow>> = HashMap::new();
        for row in &facts.effects {
            rows.entry(row.job).or_default().push(row);
        }
        for job in &facts.jobs {
            // Whoever completes a job from outside has no such row.
            let writes = WITH_EFFECT.contains(&job.type_name.as_str()) && job.completed_by.is_some();
            let wanted = usize::from(completed(job) && writes);
            let rows = rows.remove(&job.id).unwrap_or_default();
            if rows.len() != wanted {
                let what = format!(
                    "{} {} is {} and has {} rows",
                    job.type_name,
                    job.id,
                    job.status,
                    rows.len()
                );
                self.broken("effects once", job.chain_id, what);
            }
            let completed_by = job.completed_by.as_ref().map(|worker| worker.as_str());
            for row in rows {
                if row.attempt != i64::from(job.attempt) || completed_by != Some(row.worker.as_str()) {
                    let what = format!(
                        "attempt {} of {} wrote it, the last was {} and completed by {completed_by:?}",
                        row.attempt, row.worker, job.attempt
                    );
                    self.broken("only the last attempt counts", job.chain_id, what);
                }
            }
            if job.type_name.as_str() == "staged" && completed(job) && !facts.reserved.contains(&job.id) {
                self.broken(
                    "prepared before completed",
                    job.chain_id,
                    "what it prepared is not there",
                );
            }
        }
        for (job, rows) in rows {
            let what = format!("{} rows of job {job}, which is not there", rows.len());
            self.broken("effects once", rows[0].chain, what);
        }
    }

    /// Every account has what the completed transfers say, and nothing was made or lost.
    pub(super) fn money(&mut self) {
        let facts = self.facts;
        let mut wanted: BTreeMap<i64, i64> = (0..ACCOUNTS).map(|account| (account, EACH)).collect();
        for job in facts
            .jobs
            .iter()
            .filter(|job| job.type_name.as_str() == "transfer" && completed(job))
        {
            let movement = Movement::of(number_of(job).unwrap_or_default());
            *wanted.entry(movement.from).or_default() -= movement.amount;
            *wanted.entry(movement.to).or_default() += movement.amount;
        }
        for (account, balance) in &wanted {
            let found = facts.balances.get(account);
            if found != Some(balance) {
                let what = format!("account {account} has {found:?} instead of {balance}");
                self.broken_everywhere("the money adds up", what);
            }
        }
        let sum: i64 = facts.balances.values().sum();
        if sum != ACCOUNTS * EACH {
            self.broken_everywhere("the money adds up", format!("there is {sum} in all"));
        }
    }
}
