use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Fetch;
#[derive(Serialize, Deserialize)]
struct Store;
#[derive(Serialize, Deserialize)]
struct Report;

#[derive(JobTypes)]
enum Import {
    #[job(entry, continues = [Store])]
    Fetch(Fetch),
    #[job(output = ())]
    Store(Store),
    #[job(entry, output = (), blockers = [Store])]
    Report(Report),
}

fn main() {}
