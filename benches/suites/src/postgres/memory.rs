//! How much memory a process needs that drains a million jobs.

use queuert::Client;
use queuert_measured::Letter;

use super::BATCH;
use super::ours::{SendLetter, report, run_out};
use super::server::Server;
use crate::measure::{BoxError, Report, Stopwatch};
use crate::work::batches;

pub(super) async fn run(name: &'static str, jobs: usize, concurrency: usize) -> Result<Report, BoxError> {
    let mut server = Server::clean().await?;
    let state = server.state(None).await?;
    let client = Client::new(state.clone());
    // Their ids are not kept: a million of them would be part of what is measured.
    for batch in batches(jobs, BATCH) {
        client
            .start_many(batch.map(|number| SendLetter(Letter::new(number))))
            .await?;
    }
    let before = server.counts().await?;
    let stopwatch = Stopwatch::start();
    run_out(&client, jobs, concurrency).await?;
    let mut figure = stopwatch.rate(name, "jobs/s", jobs);
    server.cost_since(&before, &mut figure).await?;
    let finished = server.maker().count_finished().await?;
    if finished != jobs {
        return Err(format!("{finished} of {jobs} jobs are finished").into());
    }
    server.maker().check_finished(&state).await?;
    report(figure, &state, server).await
}
