//! One successor each, in the declared order, up to the right end; fan-in; deduplication.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use queuert::{ChainRecord, JobRecord, JobStatus, Timestamp};

use super::{Audit, completed, number_of};
use crate::faults::clock::SMALL_STEP;
use crate::jobs::{LIVES, from_outside, parts, path, result_of};
use crate::plan::{Database, Fault};

impl Audit<'_> {
    pub(super) fn chains(&mut self) {
        let chains = std::mem::take(&mut self.chains);
        for (chain, jobs) in &chains {
            let indexes: Vec<u32> = jobs.iter().map(|job| job.chain_index).collect();
            let wanted: Vec<u32> = (0..).take(jobs.len()).collect();
            if indexes != wanted {
                self.broken(
                    "one successor",
                    *chain,
                    format!("the indexes of its jobs are {indexes:?}"),
                );
            }
            let numbers: HashSet<u64> = jobs.iter().filter_map(|job| number_of(job)).collect();
            let Some(n) = numbers.iter().next().copied().filter(|_| numbers.len() == 1) else {
                self.broken("inputs are passed on", *chain, format!("they carry {numbers:?}"));
                continue;
            };
            let types: Vec<&str> = jobs.iter().map(|job| job.type_name.as_str()).collect();
            if types != path(types[0], n) {
                let what = format!("it went {types:?}, not {:?}", path(types[0], n));
                self.broken("the declared way", *chain, what);
            }
            if let Some(record) = self.facts.chains.get(chain) {
                self.end(record, jobs, n);
            }
        }
        self.chains = chains;
    }

    /// Every chain has ended as it should, or it is known why it has not.
    fn end(&mut self, record: &ChainRecord, jobs: &[&JobRecord], n: u64) {
        let (facts, chain) = (self.facts, record.id);
        let entry = jobs[0].type_name.as_str();
        let (last, before) = jobs.split_last().unwrap_or((&jobs[0], &[]));
        for job in before.iter().filter(|job| !completed(job)) {
            let what = format!("{} {} is {} and has a successor", job.type_name, job.id, job.status);
            self.broken("one successor", chain, what);
        }
        for job in jobs.iter().filter(|job| job.lease.is_some()) {
            let what = format!("{} {} has one, and nobody runs", job.type_name, job.id);
            self.broken("no lease without an owner", chain, what);
        }
        if last.status != record.status || record.length as usize != jobs.len() {
            let what = format!("the chain is {} after {} jobs", record.status, record.length);
            self.broken("a chain is as its last job", chain, what);
        }
        let noted = |what: &str| facts.has_noted(chain, what);
        let explained = match (entry, record.status) {
            // What a person did may be forgotten; what was not must have come to an end.
            ("approval", status) if facts.forgets() => matches!(status, JobStatus::Pending | JobStatus::Completed),
            ("doomed", status) if facts.forgets() => matches!(status, JobStatus::Cancelled | JobStatus::Completed),
            ("failing", status) => status == JobStatus::Dead && last.attempt == LIVES,
            ("approval", JobStatus::Pending) => !noted("approved"),
            ("approval", status) => status == JobStatus::Completed && noted("approving"),
            ("doomed", JobStatus::Cancelled) => noted("cancelling") && !noted("retried"),
            ("doomed", JobStatus::Completed) => !noted("cancelled") || noted("retrying"),
            (_, status) => status == JobStatus::Completed,
        };
        if !explained || record.status.is_open() != record.ended_at.is_none() {
            let what = format!(
                "{} {} is {} after {} attempts",
                last.type_name, last.id, last.status, last.attempt
            );
            self.broken("every chain ends", chain, what);
        }
        if record.status == JobStatus::Completed {
            self.output(record, last, n);
        }
    }

    fn output(&mut self, record: &ChainRecord, last: &JobRecord, n: u64) {
        let outside = last.completed_by.is_none();
        let blockers = self.facts.blockers.get(&last.id);
        let expected = match blockers {
            Some(blockers) => blockers.iter().filter_map(output_of).sum(),
            None if outside => from_outside(n),
            None => result_of(last.type_name.as_str(), n),
        };
        let may_be_outside = ["approval", "contested"].contains(&last.type_name.as_str());
        let told = |what: &str| self.facts.has_noted(record.id, what);
        let told_outside = (told("contested") || told("approved")) && !self.facts.forgets();
        if (outside && !may_be_outside) || (!outside && told_outside) {
            let what = format!("by {:?}", last.completed_by);
            self.broken("completed by whom it was", record.id, what);
        }
        if output_of(record) != Some(expected) {
            let output = record.output.as_ref().map(queuert::Payload::as_str);
            self.broken(
                "the right output",
                record.id,
                format!("{output:?} instead of {expected}"),
            );
        }
    }

    /// How far apart two times of the store may be that were taken by different processes.
    fn slack(&self) -> Duration {
        let wrong = self.facts.database == Database::Sqlite && self.facts.faults.contains(&Fault::Clock);
        Duration::from_millis(if wrong { 2 * SMALL_STEP.unsigned_abs() } else { 0 })
    }

    /// A job that waits begins after the last of its blockers has ended.
    pub(super) fn fan_in(&mut self) {
        let facts = self.facts;
        let slack = self.slack();
        for job in &facts.jobs {
            let Some(blockers) = facts.blockers.get(&job.id) else {
                continue;
            };
            let wanted = number_of(job)
                .filter(|_| job.type_name.as_str() == "collect")
                .map(parts);
            if blockers.is_empty() || wanted.is_some_and(|wanted| wanted != blockers.len() as u64) {
                let what = format!("{} {} has {} blockers", job.type_name, job.id, blockers.len());
                self.broken("fan-in is exact", job.chain_id, what);
            }
            let Some(started) = job.started_at else {
                continue;
            };
            for blocker in blockers {
                let late = blocker
                    .ended_at
                    .is_none_or(|ended| ended > started.saturating_add(slack));
                if late || blocker.status != JobStatus::Completed {
                    let what = format!("{} {} did not wait for {}", job.type_name, job.id, blocker.id);
                    self.broken("fan-in is exact", job.chain_id, what);
                }
            }
        }
    }

    /// At no time are two chains with one key open.
    pub(super) fn deduplication(&mut self) {
        let facts = self.facts;
        let slack = self.slack();
        let mut keys: BTreeMap<&str, Vec<&ChainRecord>> = BTreeMap::new();
        for chain in facts.chains.values() {
            match &chain.deduplication_key {
                Some(key) => keys.entry(key).or_default().push(chain),
                None if chain.type_name.as_str() == "keyed" => {
                    self.broken("deduplication", chain.id, "its key is lost");
                }
                None => {}
            }
        }
        for (key, mut chains) in keys {
            chains.sort_by_key(|chain| chain.created_at);
            for pair in chains.windows(2) {
                let open_at = |chain: &ChainRecord, time: Timestamp| {
                    chain.ended_at.is_none_or(|ended| ended > time.saturating_add(slack))
                };
                // With wrong clocks nobody knows which came first: they overlap for sure if neither order explains them.
                if let [first, second] = pair
                    && open_at(first, second.created_at)
                    && open_at(second, first.created_at)
                {
                    let what = format!("chain {} of `{key}` was still open when it began", first.id);
                    self.broken("deduplication", second.id, what);
                }
            }
        }
        for row in facts.started.iter().filter(|row| row.existing) {
            let found = facts.chains.get(&row.chain);
            if found.is_none_or(|chain| chain.deduplication_key.is_none()) {
                self.broken(
                    "deduplication",
                    row.chain,
                    "a starter was given a chain that has no such key",
                );
            }
        }
    }
}

fn output_of(chain: &ChainRecord) -> Option<u64> {
    chain.output.as_ref()?.decode().ok()
}
