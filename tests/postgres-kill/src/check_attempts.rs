//! The rules about attempts: who ran what, and how each of them ended.

use std::collections::HashSet;

use queuert::{JobId, JobRecord};

use crate::check::Audit;
use crate::facts::{End, Run};

const COMPLETED: [&str; 2] = ["Finished", "Continued"];

impl Audit<'_> {
    /// Every claim is a run of a processor, or was taken from one that never began; every run has an end that somebody
    /// saw, or its process was killed; every claim but the last was ended in one way.
    pub(crate) fn attempts(&mut self) {
        let facts = self.facts;
        for job in &facts.jobs {
            let runs = facts.runs.get(&job.id).map_or(&[][..], Vec::as_slice);
            let ends = facts.ends.get(&job.id).map_or(&[][..], Vec::as_slice);
            self.claims(job, runs);
            self.runs(job, runs, ends);
            self.completion(job, ends);
            self.other_ends(job, ends);
        }
        let known: HashSet<JobId> = facts.jobs.iter().map(|job| job.id).collect();
        for job in facts.runs.keys().filter(|job| !known.contains(*job)) {
            self.broken("no chain is lost", job.as_chain(), "it was run, and is not there");
        }
    }

    fn claims(&mut self, job: &JobRecord, runs: &[Run]) {
        let seen: HashSet<u32> = runs.iter().map(|run| run.claim).collect();
        self.count.claims += job.claims as usize;
        self.count.unseen += (job.claims as usize).saturating_sub(seen.len());
        // Nothing here snoozes or is released, so all claims are attempts.
        if job.attempt != job.claims {
            let what = format!("{} claims, {} attempts", job.claims, job.attempt);
            self.broken("every attempt is counted", job.chain_id, what);
        }
        if seen.iter().any(|claim| *claim == 0 || *claim > job.claims) {
            let what = format!("claims {seen:?} were run, {} are recorded", job.claims);
            self.broken("every attempt is counted", job.chain_id, what);
        }
        if !seen.contains(&job.claims) {
            let what = format!("claim {} completed it, and no processor saw it", job.claims);
            self.broken("completed by a processor", job.chain_id, what);
        }
        // Run twice under one number: the first claim was forgotten.
        let forgotten = runs.len() - seen.len();
        self.count.forgotten += forgotten;
        if forgotten > 0 && self.facts.crashes == 0 {
            let what = format!("{forgotten} claims were given twice, and the server has not crashed");
            self.broken("claimed once", job.chain_id, what);
        }
    }

    /// What a process began it ended, and nothing else, unless it was killed.
    fn runs(&mut self, job: &JobRecord, runs: &[Run], ends: &[End]) {
        let began = runs.iter().map(|run| (run.process.as_str(), run.claim));
        let ended = ends.iter().map(|end| (end.process.as_str(), end.claim));
        let all: HashSet<(&str, u32)> = began.clone().chain(ended.clone()).collect();
        for which in all {
            let (process, claim) = which;
            let began = began.clone().filter(|run| *run == which).count();
            let ended = ended.clone().filter(|end| *end == which).count();
            self.count.killed += began.saturating_sub(ended);
            if began < ended || (began > ended && !self.facts.killed.contains(process)) {
                let what = format!("{process} began claim {claim} {began} times and ended it {ended} times");
                self.broken("every attempt is accounted for", job.chain_id, what);
            }
        }
    }

    /// One attempt completed the job, the last one.
    fn completion(&mut self, job: &JobRecord, ends: &[End]) {
        let completed: Vec<u32> = ends
            .iter()
            .filter(|end| COMPLETED.contains(&end.how.as_str()))
            .map(|end| end.claim)
            .collect();
        self.count.completed += completed.len();
        // Whoever completed it may have been killed before it could say so.
        let by_killed = job.completed_by.as_ref().is_some_and(|worker| {
            let killed = |name: &String| is_of(worker.as_str(), name);
            self.facts.killed.iter().any(killed)
        });
        if completed != [job.claims] && !(completed.is_empty() && by_killed) {
            let what = format!(
                "claims {completed:?} of {} say that they completed {}",
                job.claims, job.id
            );
            self.broken("completed once", job.chain_id, what);
        }
    }

    /// The claims before the last ended by a failure that was written, or by an expired lease, and not by both.
    fn other_ends(&mut self, job: &JobRecord, ends: &[End]) {
        let facts = self.facts;
        let failed: Vec<u32> = ends
            .iter()
            .filter(|end| end.how == "Failed")
            .map(|end| end.claim)
            .collect();
        let reaped = facts.reaped.get(&job.id).map_or(0, Vec::len);
        let others = (job.claims as usize).saturating_sub(1);
        let told = failed.len() + reaped;
        let different: HashSet<u32> = failed.iter().copied().collect();
        self.count.failed += failed.len();
        self.count.aborted += ends.iter().filter(|end| end.how == "Aborted").count();
        self.count.reaped += reaped;
        self.count.untold += others.saturating_sub(told);
        if told > others || different.len() < failed.len() || different.contains(&job.claims) {
            let what = format!(
                "of {} claims {failed:?} failed, and {reaped} leases of it expired",
                job.claims
            );
            self.broken("an attempt ends once", job.chain_id, what);
        }
        // Whoever wrote an end may have been killed, or its answer lost and the job gone when it asked again. Then the
        // store tells of the latest one, and a processor has told before that it would fail.
        let stored = facts
            .failures
            .get(&job.id)
            .is_some_and(|attempt| !different.contains(attempt));
        let untold = |run: &&Run| {
            let same = |end: &&End| end.process == run.process && end.claim == run.claim;
            ends.iter().filter(same).all(|end| end.how == "Aborted")
        };
        let failing = facts.failing.get(&job.id).into_iter().flatten().filter(untold).count();
        if others.saturating_sub(told) > usize::from(stored) + failing {
            let what = format!(
                "of {} claims {failed:?} failed, {reaped} leases of it expired, and of the rest nobody knows",
                job.claims
            );
            self.broken("every attempt is accounted for", job.chain_id, what);
        }
    }
}

/// Whether a worker is of this process: the name of the process, and a number that the library adds.
pub(crate) fn is_of(worker: &str, process: &str) -> bool {
    worker.strip_prefix(process).is_some_and(|rest| rest.starts_with('-'))
}
