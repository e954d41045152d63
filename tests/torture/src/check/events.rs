//! Events match state: what processes are told has happened did happen, and once.

use std::collections::HashMap;

use queuert::{ChainId, JobId, JobRecord, JobStatus};

use super::{Audit, completed};

impl Audit<'_> {
    pub(super) fn events(&mut self) {
        // What was told before it was forgotten may be told again.
        if !self.facts.forgets() {
            self.told();
        }
        self.untold();
    }

    /// Nothing is announced that is not so.
    fn told(&mut self) {
        let facts = self.facts;
        let jobs: HashMap<JobId, &JobRecord> = facts.jobs.iter().map(|job| (job.id, job)).collect();
        for ((what, id), who) in &facts.events {
            let (Ok(job), Ok(chain)) = (id.parse::<JobId>(), id.parse::<ChainId>()) else {
                continue;
            };
            let known = jobs.get(&job).copied();
            let status = facts.chains.get(&chain).map(|record| record.status);
            let noted = |what: &str| facts.has_noted(chain, what);
            let gone = noted("deleting");
            let again = noted("retrying");
            let times = who.len();
            let well = match what.as_str() {
                "job-completed" => {
                    let by = &who[0].1;
                    let found = known.and_then(|record| record.completed_by.as_ref());
                    let same = found.map_or("-", |worker| worker.as_str()) == by;
                    times == 1 && (gone || known.is_some_and(completed) && same)
                }
                "job-unblocked" => times == 1 && known.is_some_and(|record| record.status != JobStatus::Blocked),
                "job-dead" => known.is_some_and(|record| record.status == JobStatus::Dead || again),
                "chain-completed" => times == 1 && (gone || status == Some(JobStatus::Completed)),
                "chain-dead" => (times == 1 && status == Some(JobStatus::Dead)) || again,
                "chain-cancelled" => times == 1 && (gone || again || status == Some(JobStatus::Cancelled)),
                "chain-retried" => times == 1 && again,
                "chain-deleted" => times == 1 && gone && status.is_none(),
                _ => true,
            };
            if !well {
                let what = format!("{what} {id}, {times} times, by {who:?}; it is {status:?}");
                self.broken(
                    "events match state",
                    known.map_or(chain, |record| record.chain_id),
                    what,
                );
            }
        }
    }

    /// What happened is announced, unless its process was killed or never got the answer.
    fn untold(&mut self) {
        let facts = self.facts;
        if facts.loses_answers() {
            return;
        }
        for job in facts.jobs.iter().filter(|job| completed(job)) {
            let Some(worker) = &job.completed_by else {
                continue;
            };
            let told = |what: &str, id: String| facts.events.contains_key(&(what.to_owned(), id));
            let ends = facts
                .chains
                .get(&job.chain_id)
                .is_some_and(|chain| chain.length == job.chain_index + 1);
            let all = told("job-completed", job.id.to_string())
                && (!ends || told("chain-completed", job.chain_id.to_string()));
            if !all && !facts.was_killed(worker.as_str()) {
                let what = format!("nobody was told that {} completed {}", worker.as_str(), job.id);
                self.broken("events match state", job.chain_id, what);
            }
        }
    }
}
