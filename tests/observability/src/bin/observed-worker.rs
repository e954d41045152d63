//! A worker process: `observed-worker <name> <first|second> <database> <schema> <endpoint>`. It ends when its input does.

use std::error::Error;
use std::time::Duration;

use observability_tests::orders::{Check, Invoice, Pack, Refuse, Ship};
use observability_tests::telemetry::Telemetry;
use queuert::Client;
use queuert_otel::Otel;
use queuert_postgres::{Attempt, PostgresState};
use tokio::io::AsyncReadExt;

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, part, database, schema, endpoint] = &arguments[..] else {
        return Err("five arguments: name, part, database, schema, endpoint".into());
    };
    let telemetry = Telemetry::export_to(endpoint, name)?;
    let state = PostgresState::options()
        .schema(schema)
        .max_connections(4)
        .connect(database)
        .await?;
    let otel = Otel::new(&telemetry.traces, &telemetry.metrics).sample_queues_every(Duration::from_millis(50));
    let client = Client::builder(state).observability(otel).build();
    let worker = client
        .worker()
        .name(name.as_str())
        .concurrency(3)
        .poll_interval(Duration::from_millis(20));
    let worker = match part.as_str() {
        "first" => worker
            .process(|job: Attempt<Check>| async move {
                if job.number() == 1 {
                    return Err("not yet".into());
                }
                match job.good {
                    true => job.continue_with(Ship),
                    false => job.continue_with(Refuse),
                }
            })
            .process(|job: Attempt<Pack>| async move { job.begin().await?.finish(3).await }),
        _ => worker
            .process(|job: Attempt<Ship>| async move { job.finish("shipped".to_owned()) })
            .process(|job: Attempt<Refuse>| async move { job.finish("refused".to_owned()) })
            .process(|job: Attempt<Invoice>| async move {
                let (parcels, approved) = *job.blockers();
                job.finish(if approved { parcels * 10 } else { 0 })
            }),
    };
    let workers = worker.start().await?;
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    workers.stop().await;
    tokio::task::spawn_blocking(move || telemetry.shut_down()).await?;
    Ok(())
}
