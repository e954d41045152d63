use queuert::memory::{Attempt, JobResult};
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

async fn store(job: Attempt<Store>) -> JobResult {
    job.finish(7)
}

// Stands for the client of any other adapter.
fn work<S: queuert::adapter::StateAdapter>(client: &Client<S>) {
    let _ = client.worker().process(store);
}

fn main() {}
