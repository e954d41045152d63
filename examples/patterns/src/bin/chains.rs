//! Chain patterns: a job continues its chain with the next one, takes one of several branches, goes round in a loop, or
//! ends the chain. What a job may do is declared on its type; anything else does not compile.
//!
//! `cargo run -p patterns --bin chains` prints:
//!
//! ```text
//! Order 1 is picked up:
//!   reserve
//!   pack
//!   collect
//!   => it is on shelf B1
//! Order 2 is sent:
//!   reserve
//!   pack
//!   ship
//!   track, look 1
//!   track, look 2
//!   track, look 3
//!   => it arrived, 6 jobs
//! The job types as a diagram, for example for your documentation:
//! flowchart TD
//!     reserve(["reserve"])
//!     reserve --> pack
//!     pack["pack"]
//!     pack --> collect
//!     pack --> ship
//!     collect["collect"]
//!     collect ==> collect_output[/"Shelf"/]
//!     ship["ship"]
//!     ship --> track
//!     track["track"]
//!     track ==> track_output[/"Arrived"/]
//!     track --> track
//! ```
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::Duration;

use queuert::{JobTypes, Step};
use queuert_sqlite::{Attempt, Client, JobResult, SqliteState};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Reserve {
    order: u32,
    pick_up: bool,
}

#[derive(Serialize, Deserialize)]
struct Pack {
    order: u32,
    pick_up: bool,
}

#[derive(Serialize, Deserialize)]
struct Collect {
    order: u32,
}

#[derive(Serialize, Deserialize)]
struct Ship {
    order: u32,
}

/// The state of a loop is the input of its next round.
#[derive(Serialize, Deserialize)]
struct Track {
    order: u32,
    look: u32,
}

#[derive(Serialize, Deserialize)]
struct Shelf(String);

#[derive(Serialize, Deserialize)]
struct Arrived;

#[derive(JobTypes)]
enum Fulfilment {
    #[job(entry, continues = [Pack])] // chains start here
    Reserve(Reserve),
    #[job(continues = [Collect, Ship])] // a branch
    Pack(Pack),
    #[job(output = Shelf)] // one end
    Collect(Collect),
    #[job(continues = [Track])]
    Ship(Ship),
    #[job(continues = [Track], output = Arrived)] // a loop, and another end
    Track(Track),
}

async fn reserve(job: Attempt<Reserve>) -> JobResult {
    println!("  reserve");
    let Reserve { order, pick_up } = *job; // an attempt dereferences to its input
    job.continue_with(Pack { order, pick_up })
}

async fn pack(job: Attempt<Pack>) -> JobResult {
    println!("  pack");
    let Pack { order, pick_up } = *job;
    match pick_up {
        true => job.continue_with(Collect { order }),
        false => job.continue_with(Ship { order }),
    }
}

async fn collect(job: Attempt<Collect>) -> JobResult {
    println!("  collect");
    job.finish(Shelf(format!("B{}", job.order)))
}

async fn ship(job: Attempt<Ship>) -> JobResult {
    println!("  ship");
    job.continue_with(Track {
        order: job.order,
        look: 1,
    })
}

async fn track(job: Attempt<Track>) -> JobResult {
    let Track { order, look } = *job;
    println!("  track, look {look}");
    if look == 3 {
        return job.finish(Arrived);
    }
    // A `Step` is an input with settings: the next round is due later. Until then it is only a row.
    let again = Step::new(Track { order, look: look + 1 });
    job.continue_with(again.delay(Duration::from_millis(50)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::new(SqliteState::open(":memory:").await?); // the name of a file makes it durable
    let workers = client
        .worker()
        .process(reserve)
        .process(pack)
        .process(collect)
        .process(ship)
        .process(track)
        .start()
        .await?;

    for (order, pick_up) in [(1, true), (2, false)] {
        println!("Order {order} is {}:", if pick_up { "picked up" } else { "sent" });
        let chain = client.start(Reserve { order, pick_up }).await?;
        // The ends have different outputs, so the derive made an enum of them.
        match client.wait(&chain).await? {
            ReserveOutput::Collect(Shelf(shelf)) => println!("  => it is on shelf {shelf}"),
            ReserveOutput::Track(Arrived) => {
                let jobs = client.list_chain_jobs(&chain).await?.items.len();
                println!("  => it arrived, {jobs} jobs");
            }
        }
    }
    workers.stop().await;

    println!("The job types as a diagram, for example for your documentation:");
    print!("{}", Fulfilment::graph().mermaid());
    Ok(())
}
