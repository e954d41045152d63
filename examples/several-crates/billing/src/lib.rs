//! A library with tables of its own: it works on SQLite.

use queuert::{JobTypes, WorkerBuilder};
use queuert_sqlite::{Attempt, JobResult, SqliteState};
use serde::{Deserialize, Serialize};
use sqlx::SqliteConnection;

/// Writes an invoice.
#[derive(Debug, Serialize, Deserialize)]
pub struct Invoice {
    /// The customer.
    pub customer: String,
    /// The amount.
    pub cents: i64,
}

/// The number on an invoice.
#[derive(Debug, Serialize, Deserialize)]
pub struct InvoiceNumber(pub i64);

/// The jobs of this library.
///
/// All applications on one database share the names of job types, so those of a library have its name in front.
#[derive(Debug, JobTypes)]
pub enum Billing {
    /// Its output is the number.
    #[job(entry, output = InvoiceNumber, name = "billing.invoice")]
    Invoice(Invoice),
}

/// Creates the tables of this library.
///
/// # Errors
///
/// If a statement fails.
pub async fn create_tables(connection: &mut SqliteConnection) -> sqlx::Result<()> {
    sqlx::query("CREATE TABLE billing_invoice (number INTEGER PRIMARY KEY, customer TEXT, cents INTEGER)")
        .execute(connection)
        .await
        .map(drop)
}

/// Adds the processors of this library to a worker of the application.
pub fn processors(worker: WorkerBuilder<SqliteState>) -> WorkerBuilder<SqliteState> {
    worker.process(invoice)
}

#[expect(clippy::print_stdout, reason = "an example talks to its reader")]
async fn invoice(job: Attempt<Invoice>) -> JobResult {
    let mut tx = job.begin().await?;
    let number = sqlx::query_scalar("INSERT INTO billing_invoice (customer, cents) VALUES (?, ?) RETURNING number")
        .bind(&job.customer)
        .bind(job.cents)
        .fetch_one(&mut *tx)
        .await?;
    println!("  billing.invoice  number {number} for {}", job.customer);
    tx.finish(InvoiceNumber(number)).await
}
