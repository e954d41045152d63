//! Takes back jobs whose lease has expired, or whose owner has died. It is a task of its own, so that busy workers do not
//! delay it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::adapter::{Backoff, ReapLeases, ReapType, ReapedJob, StateAdapter};
use crate::effects::Effects;
use crate::event::{Ages, Event, JobInfo};
use crate::job::JobStatus;
use crate::worker::attempt::attempts::Attempts;
use crate::worker::contained::contained;
use crate::worker::context::Context;

/// How many jobs one call takes back: few enough that the call is short, many enough that the jobs of many crashed processes
/// run again soon.
const BATCH: usize = 100;
const LONGEST_INTERVAL: Duration = Duration::from_secs(15);
/// However many owners die, sweeps are this far apart, unless a sweep has left jobs to take back.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) async fn reap_loop<S: StateAdapter>(attempts: Arc<Attempts<S>>) {
    let context = &*attempts.context;
    let interval = context.settings.reap_interval;
    let interval = interval.unwrap_or_else(|| default_interval(context));
    let mut backoff = Backoff::new(context.client.entropy());
    // When the last successful sweep began: it has taken back the jobs of owners whose death was known by then.
    let mut swept_at = Instant::now();
    loop {
        let begun = Instant::now();
        let pause = match sweep(&attempts).await {
            // A full batch may have left jobs to take back.
            Some(BATCH..) => Duration::ZERO,
            Some(_) => {
                swept_at = begun;
                backoff.reset();
                context.client.entropy().jittered(interval, 0.1)
            }
            None => backoff.next_pause().min(interval),
        };
        let owner_died = async {
            tokio::time::sleep(SHORTEST_INTERVAL).await;
            context.client.state().owner_died(swept_at).await;
        };
        tokio::select! {
            biased;
            () = context.quit.cancelled() => return,
            () = context.stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            () = owner_died => {}
        }
    }
}

fn default_interval<S: StateAdapter>(context: &Context<S>) -> Duration {
    let shortest = context.types.values().map(|job_type| job_type.lease.duration).min();
    (shortest.unwrap_or(LONGEST_INTERVAL) / 2).min(LONGEST_INTERVAL)
}

/// Takes back one batch, and returns how many jobs that were; `None` if the store failed.
pub(crate) async fn sweep<S: StateAdapter>(attempts: &Attempts<S>) -> Option<usize> {
    let context = &*attempts.context;
    let own = attempts.in_flight.by_job().keys().copied().collect();
    let types = context.types.iter();
    let types = types.map(|(name, job_type)| ReapType::new(name.clone(), job_type.retry, job_type.lease.duration));
    let reap = ReapLeases::new(types.collect(), BATCH, own);
    let result = contained(context.client.state().reap_leases(&reap)).await;
    context.health.record("reap", &result);
    let reaped = result.ok()?;
    let mut effects = Effects::new(context.client.hub());
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
            worker: context.worker.clone(),
        });
        if job.status == JobStatus::Dead {
            let error = job.last_error.as_ref().map(|error| error.message.clone());
            let ages = job.ended_at.map(|ended_at| Ages::at(job, ended_at)).unwrap_or_default();
            effects.died(&info, ages, error.unwrap_or_default());
        } else {
            effects.jobs_available(&job.type_name, 1);
        }
    }
    context.flush(effects).await;
    Some(reaped.len())
}
