use queuert::JobTypes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct SendMail;
#[derive(Serialize, Deserialize)]
struct SendLetter;
#[derive(Serialize, Deserialize)]
struct SendHTTP;
#[derive(Serialize, Deserialize)]
struct SendHttp;

#[derive(JobTypes)]
enum Onboarding {
    #[job(entry, output = ())]
    SendMail(SendMail),
    #[job(entry, output = (), name = "send-mail")]
    SendLetter(SendLetter),
    #[job(entry, output = ())]
    SendHTTP(SendHTTP),
    #[job(entry, output = ())]
    SendHttp(SendHttp),
}

fn main() {}
