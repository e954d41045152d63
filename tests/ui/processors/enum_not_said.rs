use queuert::memory::MemoryState;
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

fn work(client: &Client<MemoryState>) {
    let _ = client.worker().process_all(|job| async move {
        match job {
            ImportAttempt::Fetch(job) => job.continue_with(Store { body: "it".into() }),
            ImportAttempt::Store(job) => job.finish(7),
        }
    });
}

fn main() {}
