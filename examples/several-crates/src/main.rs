//! Job types from several crates in one application. Each library declares an enum of its own and brings its processors;
//! the application has an enum too, whose jobs start chains of the libraries and wait for them. One worker runs them all,
//! or several do, in one process or in many: each needs the processors of the types that it is to run.
//!
//! `cargo run -p several-crates` prints:
//!
//! ```text
//!   checkout         for ada
//!   billing.invoice  number 1 for ada
//!   mails.send       to ada: Thank you for your order
//!   confirm          waited for both
//! Invoice 1 is written, and ada has a mail.
//! ```
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use billing::{Invoice, InvoiceNumber};
use queuert::{JobType, JobTypes};
use queuert_sqlite::{Attempt, Client, JobResult, SqliteState};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Checkout {
    customer: String,
    cents: i64,
}

#[derive(Serialize, Deserialize)]
struct Confirm;

#[derive(JobTypes)]
enum Orders {
    #[job(entry, continues = [Confirm])]
    Checkout(Checkout),
    #[job(output = String, blockers = (Invoice, mails::Send))] // entries of other enums, from other crates
    Confirm(Confirm),
}

async fn checkout(job: Attempt<Checkout>) -> JobResult {
    println!("  checkout         for {}", job.customer);
    let invoice = Invoice {
        customer: job.customer.clone(),
        cents: job.cents,
    };
    let mail = mails::Send {
        to: job.customer.clone(),
        subject: "Thank you for your order".into(),
    };
    let mut tx = job.begin().await?;
    let (invoice, mail) = job.client().start_each((invoice, mail)).within(&mut tx).await?;
    tx.continue_with(Confirm.blocked_by((&invoice, &mail))).await
}

async fn confirm(job: Attempt<Confirm>) -> JobResult {
    println!("  confirm          waited for both");
    let (InvoiceNumber(number), customer) = job.blockers();
    let summary = format!("Invoice {number} is written, and {customer} has a mail.");
    job.finish(summary)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::new(SqliteState::open(":memory:").await?);
    let mut tx = client.begin().await?;
    billing::create_tables(&mut tx).await?;
    tx.commit().await?;

    let worker = client.worker().process(checkout).process(confirm);
    let worker = billing::processors(mails::processors(worker));
    let workers = worker.start().await?;

    let customer = "ada".to_owned();
    let chain = client.start(Checkout { customer, cents: 4200 }).await?;
    println!("{}", client.wait(&chain).await?);
    workers.stop().await;
    Ok(())
}
