use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Fetch;
#[derive(Serialize, Deserialize)]
struct Store;
#[derive(Serialize, Deserialize)]
struct FetchOutput;
#[derive(Serialize, Deserialize)]
struct ImportAttempt;

#[derive(JobTypes)]
enum Import {
    #[job(entry, output = FetchOutput, continues = [Store, ImportAttempt])]
    Fetch(Fetch),
    #[job(output = ())]
    Store(Store),
    #[job(output = ())]
    ImportAttempt(ImportAttempt),
}

fn main() {}
