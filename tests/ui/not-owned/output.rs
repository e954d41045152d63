use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct A;
#[derive(Serialize, Deserialize)]
struct B;
#[derive(Serialize, Deserialize)]
struct C;
#[derive(Serialize, Deserialize)]
struct D;
#[derive(Serialize, Deserialize)]
struct E;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, output = &str)]
    A(A),
    #[job(entry, output = Vec<Option<std::borrow::Cow<'a, str>>>)]
    B(B),
    #[job(entry, output = impl Sized)]
    C(C),
    #[job(entry, output = _)]
    D(D),
    #[job(entry, output = &'static [u8])]
    E(E),
}

fn main() {}
