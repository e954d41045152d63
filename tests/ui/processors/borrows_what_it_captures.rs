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

fn work(client: &Client<MemoryState>, prefix: String) {
    let _ = client.worker().process(|job: Attempt<Fetch>| {
        let body = format!("{prefix}{}", job.url);
        async move { job.continue_with(Store { body }) }
    });
}

fn main() {}
