use queuert::memory::{Attempt, JobResult};
use queuert::JobTypes;
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

async fn fetch(job: Attempt<Fetch>) -> JobResult {
    let body = job.url;
    job.continue_with(Store { body })
}

fn main() {}
