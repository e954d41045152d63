//! Facts as lines of the history.

use queuert::adapter::{Authority, Outcome};

use super::Fact;
use crate::history::History;

impl Fact {
    /// As a line of the history.
    pub fn describe(&self, history: &mut History) -> String {
        match self {
            Fact::Created { new, created, .. } => {
                let blockers: Vec<_> = new.job.blockers.iter().map(|chain| history.chain(*chain)).collect();
                format!(
                    "created {} {} {} after [{}] key {:?}{}",
                    new.job.type_name,
                    history.chain(created.id),
                    created.status,
                    blockers.join(" "),
                    new.deduplication.as_ref().map(|wanted| &wanted.key),
                    if created.deduplicated { " (was there)" } else { "" }
                )
            }
            Fact::Claimed { claim, jobs, .. } => {
                let jobs: Vec<_> = jobs.iter().map(|claimed| history.job(claimed.job.id)).collect();
                let worker = history.worker(&claim.worker);
                format!(
                    "{worker} claimed {} under {}",
                    jobs.join(" "),
                    history.fence(claim.fence)
                )
            }
            Fact::Renewed { job, fence, .. } => {
                format!("renewed {} under {}", history.job(*job), history.fence(*fence))
            }
            Fact::Held { job, fence } => format!("held {} under {}", history.job(*job), history.fence(*fence)),
            Fact::Settled {
                settlement, applied, ..
            } => {
                let by = match &settlement.authority {
                    Authority::Fence { fence, .. } => history.fence(*fence),
                    Authority::Outside => "outside".to_owned(),
                };
                let how = match &settlement.outcome {
                    Outcome::Finish { output } => format!("finish {output:?}"),
                    Outcome::Continue { next } => format!("continue with {} {}", next.type_name, history.job(next.id)),
                    other => format!("{other:?}"),
                };
                let unblocked: Vec<_> = applied.unblocked.iter().map(|one| history.job(one.job)).collect();
                format!(
                    "settled {} under {by}: {how}; unblocked [{}]",
                    history.job(settlement.job),
                    unblocked.join(" ")
                )
            }
            Fact::Reaped { jobs, .. } => {
                let jobs: Vec<_> = jobs.iter().map(|reaped| history.job(reaped.job.id)).collect();
                format!("reaped {}", jobs.join(" "))
            }
            Fact::Triggered { jobs, .. } => {
                let jobs: Vec<_> = jobs.iter().map(|job| history.job(job.id)).collect();
                format!("triggered {}", jobs.join(" "))
            }
            Fact::Retried { jobs, .. } => {
                let jobs: Vec<_> = jobs.iter().map(|job| history.job(job.id)).collect();
                format!("retried {}", jobs.join(" "))
            }
            Fact::Cancelled { chains } => {
                let chains: Vec<_> = chains.iter().map(|one| history.chain(one.chain.id)).collect();
                format!("cancelled {}", chains.join(" "))
            }
            Fact::Deleted { chains } => {
                let chains: Vec<_> = chains.iter().map(|one| history.chain(one.chain.id)).collect();
                format!("deleted {}", chains.join(" "))
            }
        }
    }
}
