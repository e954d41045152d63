//! Takes back jobs whose lease has expired, or whose owner has died. A task of its own: saturated workers do not starve
//! it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::adapter::{ReapLeases, ReapedJob, StateAdapter};
use crate::effects::Effects;
use crate::event::{Ages, Event, JobInfo};
use crate::job::JobStatus;
use crate::worker::context::{Runtime, contained};
use crate::worker::health::Backoff;

/// How many to take per call: few enough that one call is short, many enough that a crashed fleet is back soon.
const BATCH: usize = 100;
const LONGEST_INTERVAL: Duration = Duration::from_secs(15);
/// However many owners die, sweeps are this far apart, unless there is more to take.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) async fn reap_loop<S: StateAdapter>(runtime: Arc<Runtime<S>>) {
    let interval = runtime
        .settings
        .reap_interval
        .unwrap_or_else(|| default_interval(&runtime));
    let mut backoff = Backoff::new(runtime.client.entropy());
    // When the last sweep began that went well: deaths that were known by then have been taken care of.
    let mut swept_at = Instant::now();
    loop {
        let begun = Instant::now();
        let pause = match sweep(&runtime).await {
            // There may be more.
            Some(BATCH..) => Duration::ZERO,
            Some(_) => {
                swept_at = begun;
                backoff.reset();
                runtime.client.entropy().jittered(interval, 0.1)
            }
            None => backoff.next_pause().min(interval),
        };
        let owner_died = async {
            tokio::time::sleep(SHORTEST_INTERVAL).await;
            runtime.client.state().owner_died(swept_at).await;
        };
        tokio::select! {
            biased;
            () = runtime.quit.cancelled() => return,
            () = runtime.stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            () = owner_died => {}
        }
    }
}

fn default_interval<S: StateAdapter>(runtime: &Runtime<S>) -> Duration {
    let shortest = runtime.types.values().map(|job_type| job_type.lease.duration).min();
    (shortest.unwrap_or(LONGEST_INTERVAL) / 2).min(LONGEST_INTERVAL)
}

/// Takes one batch, and says how many that were; `None` if the store failed.
pub(crate) async fn sweep<S: StateAdapter>(runtime: &Runtime<S>) -> Option<usize> {
    let own = runtime.flights.by_job().keys().copied().collect();
    let reap = ReapLeases::new(runtime.reap_types(), BATCH, own);
    let result = contained(runtime.client.state().reap_leases(&reap)).await;
    runtime.heard_from_store("reap", &result);
    let reaped = result.ok()?;
    let mut effects = Effects::new(runtime.client.hub());
    for ReapedJob {
        job,
        owner,
        expired_at,
        cause,
    } in &reaped
    {
        let info = JobInfo::of(job);
        effects.lease_lost(job.id);
        effects.event(|| Event::JobReaped {
            job: info.clone(),
            owner: owner.clone(),
            expired_at: *expired_at,
            cause: *cause,
            worker: runtime.worker.clone(),
        });
        if job.status == JobStatus::Dead {
            let error = job.last_error.as_ref().map(|error| error.message.clone());
            let ages = job.ended_at.map(|ended_at| Ages::at(job, ended_at)).unwrap_or_default();
            effects.died(&info, ages, error.unwrap_or_default());
        } else {
            effects.jobs_available(&job.type_name, 1);
        }
    }
    runtime.flush(effects).await;
    Some(reaped.len())
}
