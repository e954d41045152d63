//! The rules about time: what goes first, and that everybody goes on.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use queuert::adapter::{AGEING_STEP, rank};
use queuert::{JobId, JobRecord, Timestamp};

use crate::check::Audit;
use crate::check_attempts::is_of;

/// Jobs may overtake each other by so much: their transactions commit later than they were created, and a restart that
/// forgets a claim makes it again.
const SLACK: Duration = Duration::from_secs(15);

/// Processes have so long after a restart to find the server again.
const RECOVERY: Duration = Duration::from_secs(10);

/// With so many jobs for each process, everyone gets some.
const ENOUGH: usize = 100;

/// A job that was ready from its creation to its only claim.
struct Queued {
    rank: i64,
    id: JobId,
    ready: Timestamp,
    claimed: Timestamp,
}

impl Queued {
    fn of(job: &JobRecord) -> Option<Self> {
        let waited = job.type_name.as_str() == "gather" || job.claims != 1;
        let claimed = job.started_at.filter(|_| !waited)?;
        Some(Self {
            rank: rank(job.scheduled_at, job.priority, AGEING_STEP),
            id: job.id,
            ready: job.scheduled_at,
            claimed,
        })
    }
}

impl Audit<'_> {
    /// No job is claimed while one of a lower rank lies ready, long before and long after.
    pub(crate) fn order(&mut self) {
        let facts = self.facts;
        let mut by_claim: Vec<Queued> = facts.jobs.iter().filter_map(Queued::of).collect();
        by_claim.sort_unstable_by_key(|job| (job.claimed, job.id));
        let mut by_ready: Vec<&Queued> = by_claim.iter().collect();
        by_ready.sort_unstable_by_key(|job| job.ready);
        // What was ready long before a claim, and is claimed long after it.
        let mut passed_over: BTreeSet<(i64, JobId)> = BTreeSet::new();
        let (mut ready, mut claimed) = (by_ready.into_iter().peekable(), by_claim.iter().peekable());
        let mut overtaken: HashSet<JobId> = HashSet::new();
        for job in &by_claim {
            while let Some(other) = ready.next_if(|other| other.ready.saturating_add(SLACK) < job.claimed) {
                if other.claimed > job.claimed.saturating_add(SLACK) {
                    passed_over.insert((other.rank, other.id));
                }
            }
            while let Some(other) = claimed.next_if(|other| other.claimed <= job.claimed.saturating_add(SLACK)) {
                passed_over.remove(&(other.rank, other.id));
            }
            if let Some((first, other)) = passed_over.first()
                && *first < job.rank
                && overtaken.insert(*other)
            {
                let what = format!("{other} lay ready while {} was claimed, which ranks behind it", job.id);
                self.broken("the order of ranks", other.as_chain(), what);
            }
        }
    }

    /// Who lives through a restart of the server runs jobs again after it.
    pub(crate) fn carrying_on(&mut self) {
        let facts = self.facts;
        for (place, restart) in facts.restarts.iter().enumerate() {
            let next = facts.restarts.get(place + 1).map(|next| next.at);
            let since = |after: Timestamp| {
                let jobs = facts.jobs.iter();
                jobs.filter(move |job| {
                    let started = job.started_at;
                    started > Some(after) && next.is_none_or(|next| started < Some(next))
                })
            };
            if since(restart.at.saturating_add(RECOVERY)).count() < ENOUGH * restart.survivors.len() {
                continue;
            }
            let workers: HashSet<&str> = since(restart.at)
                .filter_map(|job| job.completed_by.as_ref())
                .map(queuert::WorkerId::as_str)
                .collect();
            for process in &restart.survivors {
                if !workers.iter().any(|worker| is_of(worker, process)) {
                    let what = format!("{process} has run nothing since restart {} of the server", place + 1);
                    self.broken_everywhere("every process carries on", what);
                }
            }
        }
    }
}
