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

async fn store(job: Attempt<Store>) -> JobResult {
    let tx = job.begin().await?;
    tx.finish(7)
}

fn main() {}
