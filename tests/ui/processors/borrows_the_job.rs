use queuert::JobTypes;
use queuert::memory::{Attempt, MemoryState};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Fetch {
    url: String,
}

#[derive(JobTypes)]
enum Import {
    #[job(entry, output = usize)]
    Fetch(Fetch),
}

fn main() {
    let client = queuert::Client::new(MemoryState::new());
    let _ = client.worker().process(|job: Attempt<Fetch>| async { job.finish(job.url.len()) });
}
