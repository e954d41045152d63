//! Attempts recorded are attempts observed: who ran what, and how each of them ended.

use std::collections::{BTreeSet, HashSet};

use queuert::{JobId, JobRecord};

use super::{Audit, completed};
use crate::facts::Run;

const COMPLETED: [&str; 2] = ["Finished", "Continued"];

/// How an attempt ends that has lost its job, or whose job is gone.
const LOST: [&str; 5] = [
    "Aborted-TakenByAnotherWorker",
    "Aborted-AlreadyCompleted",
    "Aborted-NotFound",
    "Aborted-Cancelled",
    "Aborted-Error",
];

fn is_lost(run: &Run) -> bool {
    run.ends.iter().any(|end| LOST.contains(&end.as_str()))
}

impl Audit<'_> {
    pub(super) fn attempts(&mut self) {
        let facts = self.facts;
        let none = Vec::new();
        for job in &facts.jobs {
            let runs = facts.runs.get(&job.id).unwrap_or(&none);
            self.count.claims += job.claims as usize;
            self.claims(job, runs);
            self.completion(job, runs);
            self.other_ends(job, runs);
            self.unknown_ends(job, runs);
        }
        let known: HashSet<JobId> = facts.jobs.iter().map(|job| job.id).collect();
        for (job, runs) in &facts.runs {
            self.runs(*job, runs);
            self.recoveries(runs);
            // Chains that are deleted have one job.
            if !known.contains(job) && !facts.has_noted(job.as_chain(), "deleting") && !facts.forgets() {
                self.broken("no chain is lost", job.as_chain(), "it was run, and is not there");
            }
        }
        self.count.reaped += facts.reaped.values().map(Vec::len).sum::<usize>();
    }

    /// Every run is one of the recorded claims, and the last of these is one that a processor saw.
    fn claims(&mut self, job: &JobRecord, runs: &[Run]) {
        let seen: BTreeSet<u32> = runs.iter().map(|run| run.claim).collect();
        let forgets = self.facts.forgets();
        if seen
            .iter()
            .any(|claim| *claim == 0 || (*claim > job.claims && !forgets))
        {
            let what = format!("claims {seen:?} were run, {} are recorded", job.claims);
            self.broken("every attempt is counted", job.chain_id, what);
        }
        // Run twice under one number: the first claim was forgotten.
        let forgotten = runs.len() - seen.len();
        self.count.forgotten += forgotten;
        if forgotten > 0 && self.facts.crashes == 0 {
            let what = format!("{forgotten} claims were given twice, and the server has not crashed");
            self.broken("claimed once", job.chain_id, what);
        }
        if completed(job) && job.completed_by.is_some() && !seen.contains(&job.claims) {
            let what = format!("claim {} completed it, and no processor saw it", job.claims);
            self.broken("completed by a processor", job.chain_id, what);
        }
        // Which of the runs that are in the logs the store has forgotten cannot be known.
        if forgets {
            return;
        }
        // Snoozes and releases spend no attempt, all else does; operators reset the number.
        let ended = |how: &str| runs.iter().flat_map(|run| &run.ends).filter(|end| *end == how).count();
        let snoozed = ended("Snoozed");
        // A snooze may be written and its answer lost. Whoever asks again is told that the job is another's by then.
        let untold = |run: &Run| run.snoozing && is_lost(run) && self.facts.loses_answers();
        let given_up = |end: &String| ["Aborted-Shutdown", "Aborted-Error"].contains(&end.as_str());
        let unknown = |run: &&Run| run.ends.is_empty() || run.ends.iter().any(given_up) || untold(run);
        let unknown = runs.iter().filter(unknown).count() + (job.claims as usize).saturating_sub(seen.len());
        let unspent = job.claims.checked_sub(job.attempt).map(|unspent| unspent as usize);
        let retried = self.facts.has_noted(job.chain_id, "retrying");
        if unspent.is_none_or(|unspent| !retried && !(snoozed..=snoozed + unknown).contains(&unspent)) {
            let what = format!("{} claims, {snoozed} snoozes, and {} attempts", job.claims, job.attempt);
            self.broken("every attempt is counted", job.chain_id, what);
        }
    }

    /// One attempt completed the job, the one that held its last claim.
    fn completion(&mut self, job: &JobRecord, runs: &[Run]) {
        if self.facts.forgets() {
            return;
        }
        let says = |run: &&Run| run.ends.iter().any(|end| COMPLETED.contains(&end.as_str()));
        let by: Vec<&Run> = runs.iter().filter(says).collect();
        let worker = job.completed_by.as_ref().map(|worker| worker.as_str());
        let claims: Vec<u32> = by.iter().map(|run| run.claim).collect();
        let well = match (&*claims, worker) {
            ([], None) => true,
            ([claim], Some(worker)) => *claim == job.claims && crate::facts::is_of(worker, &by[0].process),
            // Whoever completed it may have been killed before it could say so, or was never told.
            ([], Some(worker)) => {
                let unsure = |run: &Run| run.claim == job.claims && is_lost(run);
                self.facts.was_killed(worker) || (self.facts.loses_answers() && runs.iter().any(unsure))
            }
            _ => false,
        };
        if !well {
            let what = format!(
                "claims {claims:?} of {} say that they completed {}, which {worker:?} completed",
                job.claims, job.id
            );
            self.broken("completed once", job.chain_id, what);
        }
    }

    /// Of the other claims none ended in two ways.
    fn other_ends(&mut self, job: &JobRecord, runs: &[Run]) {
        let reaped = self.facts.reaped.get(&job.id).map_or(0, Vec::len);
        let written = |run: &&Run| {
            let spent = ["Failed", "Died", "Snoozed"];
            run.ends.iter().any(|end| spent.contains(&end.as_str()))
        };
        let written = runs.iter().filter(written).count();
        let by_worker = usize::from(completed(job) && job.completed_by.is_some());
        let allowed = (job.claims as usize).saturating_sub(by_worker);
        if reaped + written > allowed && self.facts.crashes == 0 {
            let what = format!(
                "of {} claims {written} failed or snoozed, {reaped} leases expired, and it is {}",
                job.claims, job.status
            );
            self.broken("an attempt ends once", job.chain_id, what);
        }
    }

    /// In a backlog nobody but the workers ends anything: of an attempt that did not complete the job it is known how it
    /// ended. It told that it failed, a process took over its expired lease, or the store has an error of which no process
    /// told. The process that wrote a failure may have been killed, or its answer lost: then the processor has told before.
    fn unknown_ends(&mut self, job: &JobRecord, runs: &[Run]) {
        let facts = self.facts;
        if facts.backlog.is_none() || facts.forgets() {
            return;
        }
        let has_failed = |run: &&Run| run.ends.iter().any(|end| ["Failed", "Died"].contains(&end.as_str()));
        let untold = |run: &&Run| run.failing.is_some() && (run.ends.is_empty() || is_lost(run));
        let failed = runs.iter().filter(has_failed).count();
        let untold = runs.iter().filter(untold).count();
        let reaped = facts.reaped.get(&job.id).map_or(0, Vec::len);
        let stored = job.last_error.as_ref().is_some_and(|error| {
            let told = |run: &Run| run.failing == Some(error.attempt);
            !runs.iter().filter(has_failed).any(told)
        });
        // Snoozes and claims that are given back are no attempts.
        let others = (job.attempt as usize).saturating_sub(usize::from(completed(job)));
        if others > failed + reaped + untold + usize::from(stored) {
            let what = format!(
                "of {} attempts {failed} failed by their own account, {reaped} leases expired, and of the rest nobody knows",
                job.attempt
            );
            self.broken("every attempt is accounted for", job.chain_id, what);
        }
    }

    /// What a process began it ended, once, unless it was killed.
    fn runs(&mut self, job: JobId, runs: &[Run]) {
        for run in runs {
            self.count.runs += 1;
            for end in &run.ends {
                *self.count.ends.entry(end.clone()).or_default() += 1;
            }
            self.count.stale += usize::from(run.refused || (run.returned && is_lost(run)));
            match run.ends.len() {
                0 if self.facts.killed.contains_key(&run.process) => self.count.unended += 1,
                1 => {}
                many => {
                    let what = format!("{} began claim {} and ended it {many} times", run.process, run.claim);
                    self.broken("every attempt is accounted for", job.as_chain(), what);
                }
            }
        }
    }

    /// How long after a kill what was cut off is run again.
    fn recoveries(&mut self, runs: &[Run]) {
        for cut in runs.iter().filter(|run| run.ends.is_empty()) {
            let Some(killed) = self.facts.killed.get(&cut.process) else {
                continue;
            };
            let next = runs
                .iter()
                .filter(|run| run.at >= *killed && run.process != cut.process)
                .map(|run| run.at)
                .min();
            if let Some(next) = next {
                self.count.recoveries.push((next - killed).unsigned_abs());
            }
        }
    }
}
