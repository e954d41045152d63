use queuert::JobTypes;
use queuert::memory::{Attempt, JobResult};
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
    #[job(output = usize)]
    Store(Store),
}

async fn fetch(job: Attempt<Fetch>) -> JobResult {
    job.continue_with(Store { body: job.url.clone() })
}

async fn store(job: Attempt<Store>) -> JobResult {
    job.finish(job.body.len())
}

fn main() {}
