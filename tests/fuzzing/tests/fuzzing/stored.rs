//! What lies in rows: payloads that another build wrote, and trace contexts that another library made.

use proptest::prelude::*;
use queuert::adapter::{
    Authority, ClaimJobs, ClaimType, CommitSpan, Creation, NewChain, NewJob, ObservabilityAdapter, Outcome, Settled,
    Settlement, StateAdapter,
};
use queuert::{Attempt, AttemptOutcome, ChainId, ChainRef, Client, Error, Fence, JobId, JobTypes, Payload, WorkerId};
use queuert_fuzzing::{Stores, fuzz, lines, text};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

const PAYLOADS: &str = include_str!("../../corpus/payloads.txt");
const TRACES: &str = include_str!("../../corpus/traces.txt");
const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/regressions/stored.txt");

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Task {
    n: u32,
}

#[derive(JobTypes)]
enum Tasks {
    #[job(entry, output = u32)]
    Task(Task),
}

fn new_id() -> JobId {
    JobId::from_uuid(Uuid::new_v4())
}

/// JSON text has no zeros in it, and Postgres takes none.
fn storable(corpus: &'static str) -> impl Strategy<Value = String> {
    text(corpus).prop_map(|text| text.replace('\0', ""))
}

/// An input that nobody knows is kept as it is, and its attempt ends the job for good or well, and in no other way.
async fn input<S: StateAdapter + Clone>(state: &S, text: &str) {
    let id = new_id();
    let job = NewJob::new(id, "task", Payload::from_text(text));
    let created = state.create_chains(None, &[NewChain::new(job)]).await;
    created.expect("well").expect("not refused");
    let stored = state.get_jobs(None, &[id]).await.expect("well");
    assert_eq!(stored[0].input.as_str(), text);

    let client = Client::new(state.clone());
    let good = client.start(Task { n: 7 }).await.expect("the chain starts");
    let worker = client
        .worker()
        .process(|job: Attempt<Task, S>| async move { job.finish(job.n) });
    let drained = worker.drain().await.expect("well");
    let outcome = |id| {
        let ran = drained.attempts.iter().find(|ran| ran.attempt.job.id == id);
        &ran.expect("it ran").outcome
    };
    match serde_json::from_str::<Task>(text) {
        Ok(_) => assert!(matches!(outcome(id), AttemptOutcome::Finished), "{:?}", outcome(id)),
        Err(_) => assert!(matches!(outcome(id), AttemptOutcome::Died { .. }), "{:?}", outcome(id)),
    }
    assert!(matches!(outcome(good.id().first_job()), AttemptOutcome::Finished));
}

/// An output that nobody knows is kept as it is, and who reads it is told which row it is.
async fn output<S: StateAdapter + Clone>(state: &S, text: &str) {
    let id = new_id();
    let job = NewJob::new(id, "task", Payload::from_text("{\"n\":1}"));
    let created = state.create_chains(None, &[NewChain::new(job)]).await;
    created.expect("well").expect("not refused");
    let (worker, fence) = (WorkerId::new("fuzz"), Fence::from_uuid(Uuid::new_v4()));
    let types = vec![ClaimType {
        name: "task".into(),
        lease: std::time::Duration::from_secs(60),
    }];
    let claim = ClaimJobs::new(types, 1, worker.clone(), fence);
    let claimed = state.claim_jobs(&claim).await.expect("well");
    assert_eq!(claimed.jobs[0].job.id, id);
    let settlement = Settlement {
        job: id,
        authority: Authority::Fence { fence, worker },
        outcome: Outcome::Finish {
            output: Payload::from_text(text),
        },
    };
    let settled = state.settle_jobs(None, &[settlement]).await.expect("well");
    assert!(matches!(settled[0], Settled::Applied(_)), "{settled:?}");
    let stored = state.get_jobs(None, &[id]).await.expect("well");
    assert_eq!(stored[0].output.as_ref().map(Payload::as_str), Some(text));

    let client = Client::new(state.clone());
    let chain: ChainRef<Task> = ChainRef::new(ChainId::from_uuid(id.as_uuid()));
    match (client.wait(&chain).await, serde_json::from_str::<u32>(text)) {
        (Ok(output), Ok(expected)) => assert_eq!(output, expected),
        (Err(error), Err(_)) => assert!(error.to_string().contains(&id.to_string()), "{error}"),
        (read, expected) => panic!("{read:?} instead of {expected:?}"),
    }
}

#[test]
fn any_payload_is_kept_and_contained() {
    let stores = Stores::open();
    let check = |text: String| {
        stores.runtime.block_on(async {
            for check in ["input", "output"] {
                match check {
                    "input" => {
                        input(&stores.memory, &text).await;
                        input(&stores.sqlite, &text).await;
                        input(&stores.postgres, &text).await;
                    }
                    _ => {
                        output(&stores.memory, &text).await;
                        output(&stores.sqlite, &text).await;
                        output(&stores.postgres, &text).await;
                    }
                }
            }
        });
    };
    lines(PAYLOADS).into_iter().for_each(&check);
    fuzz(REGRESSIONS, 60, &storable(PAYLOADS), check);
    stores.runtime.block_on(stores.watched.assert_untouched());
}

/// Says that every start is part of this trace.
struct Traced(String);

impl ObservabilityAdapter for Traced {
    fn creation_span(&self, _: &Creation<'_>) -> Option<Box<dyn CommitSpan>> {
        Some(Box::new(Context(self.0.clone())))
    }
}

/// What is stored with the jobs of that trace.
struct Context(String);

impl CommitSpan for Context {
    fn trace_context(&self) -> Option<String> {
        Some(self.0.clone())
    }
}

/// A trace context is kept as it is, or left out. It never keeps a chain from being started.
async fn trace<S: StateAdapter + Clone>(state: &S, text: &str) {
    let client = Client::builder(state.clone())
        .observability(Traced(text.to_owned()))
        .build();
    let chain = client.start(Task { n: 1 }).await;
    let chain = chain.unwrap_or_else(|error: Error| panic!("{text:?} keeps a chain from being started: {error}"));
    let jobs = state.get_jobs(None, &[chain.id().first_job()]).await.expect("well");
    let stored = jobs[0].trace_context.as_deref();
    assert!(
        stored.is_none() || stored == Some(text),
        "{stored:?} instead of {text:?}"
    );
    let kept = text.is_ascii() && !text.chars().any(char::is_control) && !text.is_empty();
    if kept && text.len() <= 55 {
        assert_eq!(stored, Some(text));
    }
}

#[test]
fn any_trace_context_is_kept_or_left_out() {
    let stores = Stores::open();
    let check = |text: String| {
        stores.runtime.block_on(async {
            trace(&stores.memory, &text).await;
            trace(&stores.sqlite, &text).await;
            trace(&stores.postgres, &text).await;
        });
    };
    lines(TRACES).into_iter().for_each(&check);
    fuzz(REGRESSIONS, 100, &text(TRACES), check);
    stores.runtime.block_on(stores.watched.assert_untouched());
}
