use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Fetch;
#[derive(Serialize, Deserialize)]
struct Store;
#[derive(Serialize, Deserialize)]
struct Plain;
#[derive(Serialize, Deserialize)]
struct A;
#[derive(Serialize, Deserialize)]
struct B;
#[derive(Serialize, Deserialize)]
struct C;

#[derive(JobTypes)]
enum Import {
    #[job(entry, continues = [Store])]
    Fetch(Fetch),
    #[job(output = ())]
    Store(Store),
}

#[derive(JobTypes)]
enum Reports {
    #[job(entry, output = (), blockers = Store)]
    A(A),
    #[job(entry, output = (), blockers = [Plain])]
    B(B),
    #[job(entry, output = (), blockers = (Fetch, Missing))]
    C(C),
}

fn main() {}
