//! Onboards three users: a chain with a branch, a retry that succeeds, a fan-in over the three chains, and a "request
//! handler" that waits for a result.
//!
//! ```sh
//! cargo run -p quick-start
//! ```
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::Duration;

use queuert::memory::{Attempt, JobResult, MemoryState};
use queuert::{Client, Error, JobType, JobTypes, RetryPolicy};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Provision {
    user: String,
    company: bool,
}

#[derive(Serialize, Deserialize)]
struct SendWelcome {
    user: String,
}

#[derive(Serialize, Deserialize)]
struct CallBySales {
    user: String,
}

#[derive(Serialize, Deserialize)]
struct Report;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, continues = [SendWelcome, CallBySales])]
    Provision(Provision),
    #[job(output = String)]
    SendWelcome(SendWelcome),
    #[job(output = String)]
    CallBySales(CallBySales),
    #[job(entry, output = usize, blockers = [Provision])]
    Report(Report),
}

/// Fails on its first attempt, as services do.
async fn provision(job: Attempt<Provision>) -> JobResult {
    if job.user == "grace" && job.number() == 1 {
        println!("  provision    {:<6} attempt 1 fails, and is retried", job.user);
        return Err("the account service does not answer".into());
    }
    println!("  provision    {:<6} attempt {}", job.user, job.number());
    let user = job.user.clone();
    // The branch: anything else than the two declared continuations does not compile.
    if job.company {
        job.continue_with(CallBySales { user })
    } else {
        job.continue_with(SendWelcome { user })
    }
}

async fn send_welcome(job: Attempt<SendWelcome>) -> JobResult {
    println!("  send-welcome {}", job.user);
    let done = format!("{} was welcomed", job.user);
    job.finish(done)
}

async fn call_by_sales(job: Attempt<CallBySales>) -> JobResult {
    println!("  call-by-sales {}", job.user);
    let done = format!("{} was called", job.user);
    job.finish(done)
}

/// Starts when all its blockers have completed, and reads their outputs. No worker was held meanwhile.
async fn report(job: Attempt<Report>) -> JobResult {
    println!("  report       over {:?}", job.blockers());
    let count = job.blockers().len();
    job.finish(count)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::new(MemoryState::new());
    let workers = client
        .worker()
        .process(provision)
        .process(send_welcome)
        .process(call_by_sales)
        .process(report)
        .retry(RetryPolicy::new().initial(Duration::from_millis(200)))
        .concurrency(4)
        .start()
        .await?;

    println!("onboarding three users:");
    let users = [("ada", false), ("grace", false), ("acme", true)];

    // One transaction: the users, their chains and the report that waits for them exist together or not at all.
    let mut tx = client.begin().await?;
    for (user, _) in users {
        tx.put(&format!("user:{user}"), "new").await?;
    }
    let steps = users.map(|(user, company)| Provision {
        user: user.into(),
        company,
    });
    let chains = client.start_many(steps).within(&mut tx).await?;
    let report = client.start(Report.blocked_by(&chains)).within(&mut tx).await?;
    tx.commit().await?;

    // What a request handler would do.
    let count = client.wait(&report).timeout(Duration::from_secs(10)).await?;
    println!("the report counts {count} users:");
    for chain in &chains {
        if let Some(chain) = client.get_chain(chain).await? {
            let output = chain.output.as_deref().unwrap_or("nothing yet");
            println!(
                "  {} ({} jobs, {}): {output}",
                chain.input.user, chain.length, chain.status
            );
        }
    }
    workers.stop().await;
    Ok(())
}
