//! Measures how many processes of a fleet look for one new job, and how soon.
//!
//! ```text
//! cargo run --release -p queuert-postgres --example notify_fleet -- [processes] [busy processes] [jobs]
//! ```
//!
//! On the server of `QUEUERT_TEST_POSTGRES_URL`, or a local one. Every worker process is a real one, and prints a line
//! for each wake-up, which stands for a look at the store.
#![expect(clippy::print_stdout, reason = "this is what it is for")]

use std::process::Stdio;
use std::time::Duration;

use queuert::adapter::{Demand, Notice, NotifyAdapter, Topic, Wake};
use queuert_postgres::PostgresNotify;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::Instant;

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Long enough for every step in which an announcement is offered wider.
const SETTLE: Duration = Duration::from_millis(400);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), AnyError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, schema, peers, room] = &arguments[..]
        && role == "worker"
    {
        return work(schema, peers.parse()?, room.parse()?).await;
    }
    let number = |place: usize, default: usize| match arguments.get(place) {
        Some(text) => text.parse(),
        None => Ok(default),
    };
    measure(number(0, 20)?, number(1, 0)?, number(2, 100)?).await
}

fn join(schema: &str) -> Result<PostgresNotify, AnyError> {
    let url = std::env::var("QUEUERT_TEST_POSTGRES_URL")
        .unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/postgres".to_owned());
    Ok(PostgresNotify::connect_lazy(&url, schema)?)
}

/// A worker process: busy for ever without room, and always idle with some.
async fn work(schema: &str, peers: usize, room: usize) -> Result<(), AnyError> {
    let notify = join(schema)?;
    let demand = Demand::new(room);
    let topic = Topic::Jobs {
        types: vec!["task".into()],
        demand: demand.clone(),
    };
    let mut wakes = notify.subscribe(topic).await?;
    while notify.peers() < peers {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("ready");
    while let Some(wake) = wakes.recv().await {
        println!(
            "{}",
            if matches!(wake, Wake::Notice(_)) {
                "look"
            } else {
                "other"
            }
        );
        demand.set(room);
    }
    Ok(())
}

async fn measure(processes: usize, busy: usize, jobs: usize) -> Result<(), AnyError> {
    let schema = format!("fleet_{:x}", fastrand::u64(..));
    let (lines, mut heard) = mpsc::unbounded_channel();
    let mut children: Vec<Child> = Vec::new();
    for place in 0..processes {
        let room = if place < busy { 0 } else { 10 };
        let mut child = Command::new(std::env::current_exe()?)
            .args(["worker", &schema, &(processes - 1).to_string(), &room.to_string()])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = child.stdout.take().ok_or("a child has an output")?;
        let lines = lines.clone();
        tokio::spawn(async move {
            let mut output = BufReader::new(output).lines();
            while let Ok(Some(line)) = output.next_line().await {
                if lines.send((line, Instant::now())).is_err() {
                    return;
                }
            }
        });
        children.push(child);
    }
    for _ in 0..processes {
        heard.recv().await.ok_or("the children are there")?;
    }
    let notify = join(&schema)?;
    let (mut looks, mut latencies) = (0, Vec::new());
    for _ in 0..jobs {
        let announced = Instant::now();
        let notice = Notice::JobsAvailable {
            type_name: "task".into(),
            count: 1,
        };
        notify.announce(&[notice]).await?;
        let mut first = None;
        while let Ok(Some((line, at))) = tokio::time::timeout(SETTLE, heard.recv()).await {
            if line == "look" {
                looks += 1;
                first.get_or_insert(at - announced);
            }
        }
        latencies.extend(first);
    }
    latencies.sort_unstable();
    let quantile = |share: f64| {
        #[expect(
            clippy::cast_sign_loss,
            clippy::cast_possible_truncation,
            reason = "a share of a small number"
        )]
        let place = (latencies.len() as f64 * share) as usize;
        latencies
            .get(place.min(latencies.len().saturating_sub(1)))
            .copied()
            .unwrap_or_default()
    };
    println!(
        "{processes} processes, {busy} of them busy, {jobs} jobs one by one: {looks} looks, {:.2} per job; \
         {} jobs found somebody, the median after {:.1?}, 99 % within {:.1?}",
        looks as f64 / jobs as f64,
        latencies.len(),
        quantile(0.5),
        quantile(0.99),
    );
    Ok(())
}
