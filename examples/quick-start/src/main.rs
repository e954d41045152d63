//! Onboards three users: a chain with a branch, a retry that succeeds, a fan-in over the three chains, and a "request
//! handler" that waits for the result. Everything is in one file, so a run that is interrupted is picked up by the next.
//!
//! ```sh
//! cargo run -p quick-start                # keeps quick-start.db in the current directory
//! cargo run -p quick-start -- other.db    # another file
//! ```
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::Duration;

use queuert::{ChainRef, JobStatus, JobType, JobTypes, LeaseSettings, RetryPolicy};
use queuert_sqlite::{Attempt, Client, JobResult, SqliteState};
use serde::{Deserialize, Serialize};
use sqlx::SqliteConnection;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Serialize, Deserialize)]
struct Provision {
    user: i64,
    name: String,
    company: bool,
}

#[derive(Serialize, Deserialize)]
struct SendWelcome {
    user: i64,
    name: String,
}

#[derive(Serialize, Deserialize)]
struct CallBySales {
    user: i64,
    name: String,
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

/// Stands for slow work, such as mails and payments: long enough to be interrupted.
async fn work() {
    tokio::time::sleep(Duration::from_millis(400)).await;
}

async fn provision(job: Attempt<Provision>) -> JobResult {
    println!("  provision      {:<6} attempt {}", job.name, job.number());
    work().await;
    if job.name == "grace" && job.number() == 1 {
        println!("  provision      {:<6} fails, and is tried again", job.name);
        return Err("the account service does not answer".into()); // what `?` does
    }
    // SQLite has one writer, so the transaction begins after the slow part. The account and the next job are committed
    // together, or neither.
    let mut tx = job.begin().await?;
    sqlx::query("UPDATE users SET account = 'A-' || id WHERE id = ?")
        .bind(job.user)
        .execute(&mut *tx)
        .await?;
    // The branch: a continuation that is not declared does not compile.
    let (user, name) = (job.user, job.name.clone());
    if job.company {
        tx.continue_with(CallBySales { user, name }).await
    } else {
        tx.continue_with(SendWelcome { user, name }).await
    }
}

async fn send_welcome(job: Attempt<SendWelcome>) -> JobResult {
    println!("  send-welcome   {}", job.name);
    work().await;
    let mut tx = job.begin().await?;
    count_greeting(&mut tx, job.user).await?;
    tx.finish(format!("{} was welcomed", job.name)).await
}

async fn call_by_sales(job: Attempt<CallBySales>) -> JobResult {
    println!("  call-by-sales  {}", job.name);
    work().await;
    let mut tx = job.begin().await?;
    count_greeting(&mut tx, job.user).await?;
    tx.finish(format!("{} was called", job.name)).await
}

/// Counts, so that a job that completes twice would show.
async fn count_greeting(connection: &mut SqliteConnection, user: i64) -> sqlx::Result<()> {
    let update = sqlx::query("UPDATE users SET greetings = greetings + 1 WHERE id = ?").bind(user);
    update.execute(connection).await.map(drop)
}

/// Runs when all its blockers have completed, and reads their outputs; it occupied no worker meanwhile. It writes nothing
/// of its own, so it needs no transaction.
async fn report(job: Attempt<Report>) -> JobResult {
    println!("  report         over {} chains", job.blockers().len());
    work().await;
    let count = job.blockers().len();
    job.finish(count)
}

/// One transaction: the users, their chains and the report that waits for them exist together or not at all.
async fn start_onboarding(client: &Client) -> Result<ChainRef<Report>> {
    let mut tx = client.begin().await?;
    let mut chains = Vec::new();
    for (name, company) in [("ada", false), ("grace", false), ("acme", true)] {
        let user = sqlx::query_scalar("INSERT INTO users (name) VALUES (?) RETURNING id")
            .bind(name)
            .fetch_one(&mut *tx)
            .await?;
        let name = name.to_owned();
        chains.push(client.start(Provision { user, name, company }).within(&mut tx).await?);
    }
    let report = client.start(Report.blocked_by(&chains)).within(&mut tx).await?;
    tx.commit().await?;
    Ok(report.chain())
}

/// The chains of an interrupted run: its report is still open. A run begins in one transaction, so none is half begun.
async fn find_unfinished(client: &Client) -> Result<Option<ChainRef<Report>>> {
    let open = [JobStatus::Blocked, JobStatus::Pending, JobStatus::Running];
    let reports = client.list_chains().starting_with::<Report>().statuses(open).await?;
    Ok(reports.items.first().map(|report| ChainRef::new(report.id)))
}

async fn print_unfinished(client: &Client, report: &ChainRef<Report>) -> Result<()> {
    let mut chains = client.get_blockers(report.id().first_job()).await?;
    chains.extend(client.get_chain_record(report).await?);
    let open = chains.iter().filter(|chain| chain.status.is_open()).count();
    println!(
        "An earlier run was interrupted: {open} of its {} chains are unfinished.",
        chains.len()
    );
    let running = chains.iter().filter(|chain| chain.status == JobStatus::Running).count();
    if running > 0 {
        println!("{running} of them ran when it was killed, and go on in a moment.");
    }
    Ok(())
}

/// Prints the chains beside the rows of the application's table: what was done for each user, and by how many jobs.
async fn print_onboarded(client: &Client, report: &ChainRef<Report>) -> Result<()> {
    let chains = client.get_blockers(report.id().first_job()).await?;
    let mut tx = client.begin().await?; // only reads, so it is not committed
    for chain in chains {
        let chain = chain.typed::<Provision>()?;
        let (account, greetings): (String, i64) = sqlx::query_as("SELECT account, greetings FROM users WHERE id = ?")
            .bind(chain.input.user)
            .fetch_one(&mut *tx)
            .await?;
        println!(
            "  user {:<3} {account:<5} {greetings} greeting, {} jobs, {}: {}",
            chain.input.user,
            chain.length,
            chain.status,
            chain.output.as_deref().unwrap_or_default(),
        );
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "quick-start.db".to_owned());
    let client = Client::new(SqliteState::open(&path).await?);

    // Your own tables live in the same file.
    let mut tx = client.begin().await?;
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS users \
         (id INTEGER PRIMARY KEY, name TEXT NOT NULL, account TEXT, greetings INTEGER NOT NULL DEFAULT 0)",
    )
    .execute(&mut *tx)
    .await?;
    let users: i64 = sqlx::query_scalar("SELECT count(*) FROM users")
        .fetch_one(&mut *tx)
        .await?;
    tx.commit().await?;
    println!("{path} has {users} users.");

    let onboarding = match find_unfinished(&client).await? {
        Some(onboarding) => {
            print_unfinished(&client, &onboarding).await?;
            println!("Going on:");
            onboarding
        }
        None => {
            println!("Nothing was left unfinished by an earlier run. Onboarding three users:");
            start_onboarding(&client).await?
        }
    };

    let workers = client
        .worker()
        .process(provision)
        .process(send_welcome)
        .process(call_by_sales)
        .process(report)
        .retry(RetryPolicy::new().initial(Duration::from_millis(500)))
        // The jobs of a killed process run again once its death is known and their backoff is over, or when their leases
        // expire. The default of a minute suits a service.
        .lease(LeaseSettings::new(Duration::from_secs(3)))
        .concurrency(4)
        .start()
        .await?;

    tokio::select! {
        // A request handler: it waits for the result, and occupies neither a worker nor a connection.
        count = client.wait(&onboarding).timeout(Duration::from_secs(60)) => {
            println!("The request handler has its answer: {} users are on board.", count?);
            print_onboarded(&client, &onboarding).await?;
            println!("Run it again for three more. Interrupt it (Ctrl-C, kill -9), and the next run goes on.");
            println!("To start afresh, delete {path}.");
        }
        _ = tokio::signal::ctrl_c() => {
            println!("Interrupted. What runs may end, the rest waits in {path}: run it again to go on.");
        }
    }
    workers.stop().await;
    client.state().close().await?;
    Ok(())
}
