use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct A;
#[derive(Serialize, Deserialize)]
struct B;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, output = ())]
    Unit,
    #[job(entry, output = ())]
    Empty(),
    #[job(entry, output = ())]
    Named { user: u64 },
    #[job(entry, output = ())]
    Several(A, B),
    #[job(entry, output = ())]
    Number(u64),
    #[job(entry, output = ())]
    Tuple((A, B)),
    #[job(entry, output = ())]
    Reference(&'static A),
}

fn main() {}
