//! Blockers: a job waits for other chains to complete, then runs with their outputs. Until then it is a row in the
//! database; no worker and no task waits with it.
//!
//! - `Report` fans out: it starts one chain per region, in the transaction in which it continues with `Total`.
//! - `Total` fans in: it waits for all of them, however many there are (`blockers = [Sales]`).
//! - `Letter` waits for two chains of different types, and has their outputs as a tuple (`blockers = (Report, Address)`).
//!
//! `cargo run -p patterns --bin blockers` prints:
//!
//! ```text
//! The letter is blocked by 2 chains.
//!   report   of May, over 3 regions
//!   address  of Ada
//!   sales    north: 120
//!   sales    south: 80
//!   sales    west: 200
//!   total    120 + 80 + 200
//!   letter   ready
//! To Ada, 12 St James's Square: we sold 400 in May.
//! ```
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use queuert::{JobType, JobTypes};
use queuert_sqlite::{Attempt, Client, JobResult, SqliteState};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Report {
    month: String,
    regions: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Sales {
    region: String,
}

#[derive(Serialize, Deserialize)]
struct Total {
    month: String,
}

#[derive(Serialize, Deserialize)]
struct Address {
    customer: String,
}

#[derive(Serialize, Deserialize)]
struct Letter;

#[derive(JobTypes)]
enum Reporting {
    #[job(entry, continues = [Total])]
    Report(Report),
    #[job(entry, output = u32)]
    Sales(Sales),
    #[job(output = String, blockers = [Sales])] // any number of chains that start with `Sales`
    Total(Total),
    #[job(entry, output = String)]
    Address(Address),
    #[job(entry, output = String, blockers = (Report, Address))] // exactly one of each
    Letter(Letter),
}

async fn report(job: Attempt<Report>) -> JobResult {
    println!("  report   of {}, over {} regions", job.month, job.regions.len());
    let sales = job.regions.iter().map(|region| Sales { region: region.clone() });
    // One transaction: the chains of the regions and the job that waits for them exist together or not at all.
    let mut tx = job.begin().await?;
    let chains = job.client().start_many(sales).within(&mut tx).await?;
    let month = job.month.clone();
    tx.continue_with(Total { month }.blocked_by(&chains)).await
}

async fn sales(job: Attempt<Sales>) -> JobResult {
    let sold = match job.region.as_str() {
        "north" => 120,
        "south" => 80,
        _ => 200,
    };
    println!("  sales    {}: {sold}", job.region);
    job.finish(sold)
}

async fn total(job: Attempt<Total>) -> JobResult {
    let sold: &Vec<u32> = job.blockers(); // in the order in which the chains were given
    let terms: Vec<String> = sold.iter().map(u32::to_string).collect();
    println!("  total    {}", terms.join(" + "));
    let sentence = format!("we sold {} in {}", sold.iter().sum::<u32>(), job.month);
    job.finish(sentence)
}

async fn address(job: Attempt<Address>) -> JobResult {
    println!("  address  of {}", job.customer);
    let address = format!("{}, 12 St James's Square", job.customer);
    job.finish(address)
}

async fn letter(job: Attempt<Letter>) -> JobResult {
    println!("  letter   ready");
    let (report, address) = job.blockers(); // typed as declared: `(String, String)`
    let letter = format!("To {address}: {report}.");
    job.finish(letter)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::new(SqliteState::open(":memory:").await?);

    let mut tx = client.begin().await?;
    let report_of_may = Report {
        month: "May".into(),
        regions: ["north", "south", "west"].map(String::from).into(),
    };
    let address_of_ada = Address { customer: "Ada".into() };
    let (may, ada) = client
        .start_each((report_of_may, address_of_ada))
        .within(&mut tx)
        .await?;
    // Forgetting a blocker, swapping the two, or giving a chain of another type does not compile.
    let chain = client.start(Letter.blocked_by((&may, &ada))).within(&mut tx).await?;
    tx.commit().await?;

    let waits_for = client.get_blockers(chain.id().first_job()).await?;
    println!("The letter is {} by {} chains.", chain.status(), waits_for.len());

    let workers = client
        .worker()
        .process(report)
        .process(sales)
        .process(total)
        .process(address)
        .process(letter)
        .start()
        .await?;
    println!("{}", client.wait(&chain).await?);
    workers.stop().await;
    Ok(())
}
