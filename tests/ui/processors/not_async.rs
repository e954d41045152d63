use queuert::memory::{Attempt, JobResult, MemoryState};
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

fn store(job: Attempt<Store>) -> JobResult {
    job.finish(7)
}

fn work(client: &Client<MemoryState>) {
    let _ = client.worker().process(store);
}

fn main() {}
