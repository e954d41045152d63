//! Chains of three steps: started first, then worked on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queuert_measured::{Arguments, BoxError, Letter, Report, Stopwatch};

use crate::calls::Calls;
use crate::database::Database;
use crate::{Peer, Settings, drain, plain};

const STEPS: usize = 3;
const STARTERS: usize = 8;

pub(crate) async fn run<P: Peer>(
    peer: &P,
    database: &mut Database,
    settings: &Settings,
    arguments: &Arguments,
) -> Result<Report, BoxError> {
    let chains: usize = arguments.value("jobs")?;
    let limit = Duration::from_secs_f64(arguments.value("seconds")?);
    start(peer, chains).await?;
    database.analyze().await?;
    let calls = Calls::new(STEPS * chains);
    let before = database.observer.counts().await?;
    let stopwatch = Stopwatch::start();
    peer.work_chains(calls.clone()).await?;
    let ended = drain::wait(peer, database, &calls, &stopwatch, limit, STEPS * chains).await?;
    let name = format!("steps of chains of three: {}", settings.name);
    let mut steps = stopwatch.rate_over(ended.elapsed, name, "steps/s", ended.done);
    database.observer.cost_since(&before, &mut steps).await?;
    let rate = steps.value / STEPS as f64;
    let whole = plain(format!("chains of three: {}", settings.name), "chains/s", rate);
    Ok(Report::from(vec![whole, steps]).fact(
        format!("{}: steps done", settings.name),
        format!(
            "{} of {}{}",
            ended.done,
            STEPS * chains,
            if ended.in_time {
                ""
            } else {
                ", cut off; chains/s is a third of the steps/s"
            }
        ),
    ))
}

async fn start<P: Peer>(peer: &P, chains: usize) -> Result<(), BoxError> {
    let next = Arc::new(AtomicUsize::new(0));
    let running: Vec<_> = (0..STARTERS)
        .map(|_| {
            let (peer, next) = (peer.clone(), Arc::clone(&next));
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= chains {
                        return Ok::<_, BoxError>(());
                    }
                    peer.start_chain(Letter::new(number as u64)).await?;
                }
            })
        })
        .collect();
    for task in running {
        task.await??;
    }
    Ok(())
}
