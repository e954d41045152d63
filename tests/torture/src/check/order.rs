//! The order of claims.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use queuert::adapter::{AGEING_STEP, rank};
use queuert::{JobId, JobRecord, Timestamp};

use super::Audit;
use crate::jobs::{BY_FEW, WAITING};

/// Jobs may overtake each other by so much: their transactions commit later than they were created, and a restart that
/// forgets a claim makes it again.
const SLACK: Duration = Duration::from_secs(15);

/// A job that was ready from its scheduled time to its only claim.
struct Queued {
    rank: i64,
    id: JobId,
    ready: Timestamp,
    claimed: Timestamp,
}

impl Queued {
    fn of(job: &JobRecord) -> Option<Self> {
        let type_name = job.type_name.as_str();
        // The worker that ends a job of a chain may be given the next one out of turn; a job that waits for others is ready
        // later; and some types are run by few processes.
        let in_turn = job.chain_index == 0 && job.claims == 1;
        let out_of_turn = WAITING.contains(&type_name) || BY_FEW.contains(&type_name);
        let claimed = job.started_at.filter(|_| in_turn && !out_of_turn)?;
        Some(Self {
            rank: rank(job.scheduled_at, job.priority, AGEING_STEP),
            id: job.id,
            ready: job.scheduled_at,
            claimed,
        })
    }
}

impl Audit<'_> {
    /// No job is claimed while one of a lower rank is ready, long before and long after.
    pub(super) fn order(&mut self) {
        let facts = self.facts;
        if facts.forgets() {
            return;
        }
        // An operator who retries a job puts it back into the queue.
        let jobs = facts
            .jobs
            .iter()
            .filter(|job| !facts.has_noted(job.chain_id, "retrying"));
        let mut by_claim: Vec<Queued> = jobs.filter_map(Queued::of).collect();
        by_claim.sort_unstable_by_key(|job| (job.claimed, job.id));
        let mut by_ready: Vec<&Queued> = by_claim.iter().collect();
        by_ready.sort_unstable_by_key(|job| job.ready);
        // Jobs that were ready long before a claim, and are claimed long after it.
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
                let what = format!("{other} was ready while {} was claimed, which ranks behind it", job.id);
                self.broken("the order of ranks", other.as_chain(), what);
            }
        }
    }
}
