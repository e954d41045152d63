//! What is done with every peer, done with ours.

use std::time::Duration;

use queuert::Client;

use crate::measure::{BoxError, Report, Stopwatch};
use crate::postgres::ours::{WARM_UP, check_started, fill, start_singly};
use crate::postgres::server::Server;

/// Single starts by one task and by many, then batches of a thousand, all into the same tables.
pub(super) async fn starts(jobs: usize, many: usize, time: Duration) -> Result<Report, BoxError> {
    let mut server = Server::clean().await?;
    let state = server.state(None).await?;
    let client = Client::new(state.clone());
    let mut figures = Vec::new();
    for (tasks, text) in [(1, "1 task"), (many, "16 tasks")] {
        start_singly(&client, tasks, WARM_UP).await?;
        let before = server.counts().await?;
        let stopwatch = Stopwatch::start();
        let started = start_singly(&client, tasks, time).await?;
        let mut figure = stopwatch.rate(format!("single starts, {text}: queuert"), "jobs/s", started.len());
        server.cost_since(&before, &mut figure).await?;
        check_started(&state, &started).await?;
        figures.push(figure);
    }
    let before = server.counts().await?;
    let stopwatch = Stopwatch::start();
    let started = fill(&client, jobs).await?;
    let mut figure = stopwatch.rate("start, batches of 1,000: queuert", "jobs/s", jobs);
    server.cost_since(&before, &mut figure).await?;
    check_started(&state, &started).await?;
    figures.push(figure);
    state.close().await;
    server.described(Report::from(figures)).await
}
