//! Middlewares and values. A middleware wraps every attempt of a worker: it sees the outcome, can refuse, and can add
//! typed values for the layers inside. It can also write in the transactions of the attempts that it wraps.
//!
//! Here the outermost one prints what happens, the next finds the tenant of the job, and the innermost writes a record
//! that is committed together with the work, or not at all.
//!
//! `cargo run -p patterns --bin middleware` prints:
//!
//! ```text
//! invoice, attempt 1
//!   10 EUR for acme
//! invoice, attempt 1: finishes
//! invoice, attempt 1
//!   20 USD for globex
//! invoice, attempt 1: fails: the printer is out of paper
//! invoice, attempt 2
//!   20 USD for globex
//! invoice, attempt 2: finishes
//! invoice, attempt 1
//! invoice, attempt 1: fails: there is no tenant `initech`
//! 2 invoices; in the record: invoice attempt 1, invoice attempt 2
//! ```
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::collections::HashMap;

use queuert::{AttemptContext, AttemptInfo, CompletionKind, JobError, JobTypes, Middleware, Next};
use queuert_sqlite::{Attempt, Client, JobResult, SqliteState, Transaction};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Invoice {
    tenant: String,
    amount: u32,
}

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = (), retry(initial = "20ms"))]
    Invoice(Invoice),
}

/// Prints what happens.
struct Narrate;

impl Middleware<SqliteState> for Narrate {
    async fn attempt(&self, job: &mut AttemptContext<SqliteState>, next: Next<'_, SqliteState>) -> JobResult {
        let what = format!("{}, attempt {}", job.info().job.type_name, job.info().attempt);
        println!("{what}");
        let result = next.run(job).await;
        match &result {
            Ok(completion) => match completion.kind() {
                CompletionKind::Continue { next_type, .. } => println!("{what}: continues with {next_type}"),
                CompletionKind::Snooze => println!("{what}: snoozes"),
                _ => println!("{what}: finishes"),
            },
            Err(error) => println!("{what}: fails: {error}"),
        }
        result
    }
}

/// A value that the worker provides to all attempts.
struct Currencies(HashMap<&'static str, &'static str>);

/// A value that a middleware adds to one attempt.
struct Tenant {
    name: String,
    currency: &'static str,
}

/// Finds the tenant of the job. A job without a tenant is refused before it runs.
struct FindTenant;

impl Middleware<SqliteState> for FindTenant {
    async fn attempt(&self, job: &mut AttemptContext<SqliteState>, next: Next<'_, SqliteState>) -> JobResult {
        // A middleware wraps all job types, so it reads the field that their inputs have in common.
        #[derive(Deserialize)]
        struct OfTenant {
            tenant: String,
        }
        let OfTenant { tenant: name } = job.job().input.decode().map_err(JobError::fatal)?;
        let Some(&currency) = job.get::<Currencies>()?.0.get(name.as_str()) else {
            return Err(JobError::fatal(format!("there is no tenant `{name}`")));
        };
        job.insert(Tenant { name, currency });
        next.run(job).await
    }
}

/// Writes a record in the transaction of the attempt.
struct Record;

impl Middleware<SqliteState> for Record {
    async fn transaction_closing(&self, attempt: &AttemptInfo, tx: &mut Transaction) -> Result<(), JobError> {
        sqlx::query("INSERT INTO record (job, attempt) VALUES (?, ?)")
            .bind(attempt.job.type_name.as_str())
            .bind(attempt.attempt)
            .execute(&mut **tx)
            .await?;
        Ok(())
    }
}

async fn invoice(job: Attempt<Invoice>) -> JobResult {
    let tenant = job.get::<Tenant>()?; // a value that was not provided is an error that names its type
    println!("  {} {} for {}", job.amount, tenant.currency, tenant.name);
    let mut tx = job.begin().await?;
    sqlx::query("INSERT INTO invoices (tenant, amount) VALUES (?, ?)")
        .bind(&tenant.name)
        .bind(job.amount)
        .execute(&mut *tx)
        .await?;
    if tenant.name == "globex" && job.number() == 1 {
        return Err("the printer is out of paper".into());
    }
    tx.finish(()).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::new(SqliteState::open(":memory:").await?);
    let mut tx = client.begin().await?;
    sqlx::query("CREATE TABLE invoices (tenant TEXT NOT NULL, amount INTEGER NOT NULL)")
        .execute(&mut *tx)
        .await?;
    sqlx::query("CREATE TABLE record (job TEXT NOT NULL, attempt INTEGER NOT NULL)")
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;

    let workers = client
        .worker()
        .process(invoice)
        .provide(Currencies(HashMap::from([("acme", "EUR"), ("globex", "USD")])))
        .middleware(Narrate) // the first one is the outermost
        .middleware(FindTenant)
        .middleware(Record)
        .start()
        .await?;
    for (tenant, amount) in [("acme", 10), ("globex", 20), ("initech", 30)] {
        let tenant = tenant.to_owned();
        let chain = client.start(Invoice { tenant, amount }).await?;
        let _ = client.wait(&chain).await; // the last one is dead
    }
    workers.stop().await;

    let mut tx = client.begin().await?;
    let invoices: i64 = sqlx::query_scalar("SELECT count(*) FROM invoices")
        .fetch_one(&mut *tx)
        .await?;
    let record: Vec<String> = sqlx::query_scalar("SELECT job || ' attempt ' || attempt FROM record ORDER BY rowid")
        .fetch_all(&mut *tx)
        .await?;
    println!("{invoices} invoices; in the record: {}", record.join(", "));
    Ok(())
}
