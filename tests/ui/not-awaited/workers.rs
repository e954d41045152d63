#![deny(unused_must_use)]

use queuert::memory::{Attempt, MemoryState};
use queuert::{Client, JobTypes};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Fetch {
    url: String,
}
#[derive(Serialize, Deserialize)]
struct Store {
    body: String,
}

#[derive(JobTypes)]
enum Import {
    #[job(entry, continues = [Store])]
    Fetch(Fetch),
    #[job(output = u64)]
    Store(Store),
}

async fn work(client: &Client<MemoryState>) {
    client.worker().process(|job: Attempt<Store>| async move { job.finish(7) });
}

fn main() {}
