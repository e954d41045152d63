//! How long a job waits while everybody is idle.

use std::time::Duration;

use queuert_measured::{Arguments, BoxError, Letter, Report};
use tokio::time::Instant;

use crate::calls::Calls;
use crate::database::Database;
use crate::{Peer, Settings, plain};

const WARM_UP: usize = 20;
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) async fn run<P: Peer>(
    peer: &P,
    database: &mut Database,
    settings: &Settings,
    arguments: &Arguments,
) -> Result<Report, BoxError> {
    let samples: usize = arguments.value("jobs")?;
    let limit = Duration::from_secs_f64(arguments.value("seconds")?);
    let calls = Calls::with_times(WARM_UP + samples);
    peer.work(calls.clone()).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut started = Vec::new();
    for number in 0..WARM_UP + samples {
        let called = Instant::now();
        peer.start_one(Letter::new(number as u64)).await?;
        started.push((called, Instant::now()));
        tokio::time::sleep(PAUSE).await;
    }
    // A peer that only polls may need a while for the last ones.
    let _ = tokio::time::timeout(limit, calls.all_made()).await;
    let mut from_return = Vec::new();
    let mut from_call = Vec::new();
    for (number, (called, returned)) in started.iter().enumerate().skip(WARM_UP) {
        let seen = calls.seen(number as u64);
        let seen = seen.ok_or_else(|| format!("job {number} was not processed within {limit:?}"))?;
        from_call.push(millis(*called, seen));
        from_return.push(millis(*returned, seen));
    }
    let done = loop {
        let done = peer.done(&mut database.checks, started.len()).await?;
        if done == started.len() || started[0].0.elapsed() > 4 * limit {
            break done;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    if done != started.len() {
        return Err(format!("{done} of {} jobs were done", started.len()).into());
    }
    from_return.sort_unstable_by(f64::total_cmp);
    from_call.sort_unstable_by(f64::total_cmp);
    let name = &settings.name;
    let part = |sorted: &[f64], part: f64| sorted[((sorted.len() as f64 * part) as usize).min(sorted.len() - 1)];
    Ok(Report::from(vec![
        plain(
            format!("start returned to processor, p50: {name}"),
            "ms",
            part(&from_return, 0.5),
        ),
        plain(
            format!("start returned to processor, p99: {name}"),
            "ms",
            part(&from_return, 0.99),
        ),
        plain(
            format!("start called to processor, p50: {name}"),
            "ms",
            part(&from_call, 0.5),
        ),
        plain(
            format!("start called to processor, p99: {name}"),
            "ms",
            part(&from_call, 0.99),
        ),
    ]))
}

/// Below zero if the processor was faster than the answer to whoever started the job.
fn millis(from: Instant, to: Instant) -> f64 {
    let ahead = to.saturating_duration_since(from).as_secs_f64();
    let behind = from.saturating_duration_since(to).as_secs_f64();
    (ahead - behind) * 1e3
}
