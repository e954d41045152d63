use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Fetch;
#[derive(Serialize, Deserialize)]
struct A;
#[derive(Serialize, Deserialize)]
struct B;
#[derive(Serialize, Deserialize)]
struct C;
#[derive(Serialize, Deserialize)]
struct D;

#[derive(JobTypes)]
enum Import {
    #[job(entry, output = ())]
    Fetch(Fetch),
    #[job(entry, output = (), blockers = (Fetch))]
    A(A),
    #[job(entry, output = (), blockers = (Fetch, Fetch, Fetch, Fetch, Fetch, Fetch, Fetch, Fetch, Fetch))]
    B(B),
    #[job(entry, output = (), blockers = [Fetch, A])]
    C(C),
    #[job(entry, output = (), blockers = ())]
    D(D),
}

fn main() {}
