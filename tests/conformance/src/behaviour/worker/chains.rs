//! Chains: their steps, branches, loops, and who runs them.

use queuert::{JobId, JobStatus, JobTypes, Step};
use uuid::Uuid;

use super::types::{
    Countdown, First, FromHere, FromThere, Large, Note, Ping, Pong, Second, Shared, Small, Third, Triage, TriageOutput,
    Work,
};
use super::world::{Gate, Job, Log, World, eager, start};
use crate::behaviour::PairFixture;

/// A job that was started before the worker is run (W1).
pub async fn a_job_started_before_the_worker_runs<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 7 }).await.expect("the chain starts");
    let workers = start(world.worker().process(|job: Job<F, Work>| async move {
        let n = job.n;
        job.finish(n + 1)
    }))
    .await;
    assert_eq!(world.output(&chain).await, 8);
    workers.stop().await;
}

/// A job that is started while the worker runs is run (W3).
pub async fn a_job_started_while_the_worker_runs_runs<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let workers = start(world.worker().process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    let first = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.output(&first).await;
    let second = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.output(&second).await;
    workers.stop().await;
}

/// One worker runs several job types (W2).
pub async fn one_worker_runs_several_types<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let work = world.client.start(Work { n: 2 }).await.expect("the chain starts");
    let note = world
        .client
        .start(Note { text: "hello".into() })
        .await
        .expect("the chain starts");
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, Work>| async move { job.finish(20) })
            .process(|job: Job<F, Note>| async move {
                let text = job.text.to_uppercase();
                job.finish(text)
            }),
    )
    .await;
    assert_eq!(world.output(&work).await, 20);
    assert_eq!(world.output(&note).await, "HELLO");
    workers.stop().await;
}

/// A chain of three jobs has one id, three job ids in order, the type of its first job throughout, and one output (C1).
pub async fn three_steps_are_one_chain<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let seen = Log::new();
    let chain = world.client.start(First { n: 1 }).await.expect("the chain starts");
    let (first, second, third) = (seen.clone(), seen.clone(), seen.clone());
    let workers = start(
        world
            .worker()
            .process(move |job: Job<F, First>| {
                first.add((job.id(), job.chain_id()));
                let n = job.n;
                async move { job.continue_with(Second { n: n + 1 }) }
            })
            .process(move |job: Job<F, Second>| {
                second.add((job.id(), job.chain_id()));
                let n = job.n;
                async move { job.continue_with(Third { n: n * 10 }) }
            })
            .process(move |job: Job<F, Third>| {
                third.add((job.id(), job.chain_id()));
                let n = job.n;
                async move { job.finish(n + 3) }
            }),
    )
    .await;
    assert_eq!(world.output(&chain).await, 23);
    workers.stop().await;
    let jobs = world.jobs(&chain).await;
    let names: Vec<_> = jobs.iter().map(|job| job.type_name.as_str()).collect();
    assert_eq!(names, ["first", "second", "third"]);
    let indexes: Vec<_> = jobs.iter().map(|job| job.chain_index).collect();
    assert_eq!(indexes, [0, 1, 2]);
    assert!(jobs.iter().all(|job| job.chain_type.as_str() == "first"));
    assert!(
        jobs.iter()
            .all(|job| job.status == JobStatus::Completed && job.lease.is_none())
    );
    let ids: Vec<_> = jobs.iter().map(|job| (job.id, chain.id())).collect();
    assert_eq!(seen.all(), ids, "each attempt saw its own id and that of the chain");
    assert_eq!(jobs[0].id, chain.id().first_job());
    assert!(
        jobs[0].output.is_none() && jobs[1].output.is_none(),
        "only the last job has the output"
    );
    assert_eq!(world.chain(&chain).await.length, 3);
}

/// A chain takes the branch that its processor chose, with the input that the branch needs (C2, C3).
pub async fn a_branch_is_chosen_by_the_processor<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let small = world.client.start(Triage { n: 4 }).await.expect("the chain starts");
    let large = world.client.start(Triage { n: 400 }).await.expect("the chain starts");
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, Triage>| async move {
                let n = job.n;
                if n < 10 {
                    job.continue_with(Small { n })
                } else {
                    let text = "ab".to_owned();
                    job.continue_with(Large { text, times: 3 })
                }
            })
            .process(|job: Job<F, Small>| async move { job.finish(job.n) })
            .process(|job: Job<F, Large>| async move {
                let text = job.text.repeat(job.times);
                job.finish(text)
            }),
    )
    .await;
    assert!(matches!(world.output(&small).await, TriageOutput::Small(4)));
    assert!(matches!(world.output(&large).await, TriageOutput::Large(text) if text == "ababab"));
    workers.stop().await;
    assert_eq!(world.chain(&small).await.latest_type.as_str(), "small");
}

/// A job may continue with its own type until it is done (C4).
pub async fn a_loop_ends_when_its_processor_says_so<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world
        .client
        .start(Countdown { left: 5, total: 0 })
        .await
        .expect("the chain starts");
    let workers = start(world.worker().process(|job: Job<F, Countdown>| async move {
        let (left, total) = (job.left, job.total);
        match left {
            0 => job.finish(total),
            _ => job.continue_with(Countdown {
                left: left - 1,
                total: total + left,
            }),
        }
    }))
    .await;
    assert_eq!(world.output(&chain).await, 15);
    workers.stop().await;
    assert_eq!(world.chain(&chain).await.length, 6);
}

/// A chain may go back to an earlier type and still finish (C5).
pub async fn a_chain_may_go_back<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Ping { n: 0 }).await.expect("the chain starts");
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, Ping>| async move {
                let n = job.n;
                job.continue_with(Pong { n: n + 1 })
            })
            .process(|job: Job<F, Pong>| async move {
                let n = job.n;
                if n < 3 {
                    job.continue_with(Ping { n })
                } else {
                    job.finish(n)
                }
            }),
    )
    .await;
    assert_eq!(world.output(&chain).await, 3);
    workers.stop().await;
    let names: Vec<_> = world.jobs(&chain).await.into_iter().map(|job| job.type_name).collect();
    assert_eq!(names.len(), 6);
    assert!(names.iter().step_by(2).all(|name| name.as_str() == "ping"));
}

/// A step that two chain types share sees the type of the chain that it is in (C6).
pub async fn a_shared_step_sees_the_type_of_its_chain<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let here = world.client.start(FromHere { n: 1 }).await.expect("the chain starts");
    let there = world.client.start(FromThere { n: 2 }).await.expect("the chain starts");
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, FromHere>| async move { job.continue_with(Shared { n: 1 }) })
            .process(|job: Job<F, FromThere>| async move { job.continue_with(Shared { n: 2 }) })
            .process(|job: Job<F, Shared>| async move {
                let from = job.record().chain_type.to_string();
                job.finish(from)
            }),
    )
    .await;
    assert_eq!(world.output(&here).await, "from-here");
    assert_eq!(world.output(&there).await, "from-there");
    workers.stop().await;
}

/// A chain that a processor starts on the side is independent of its own (C7).
pub async fn a_chain_started_in_a_processor_is_independent<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let side = Log::new();
    let gate = Gate::closed();
    let chain = world.client.start(Work { n: 1 }).await.expect("the chain starts");
    let (started, held) = (side.clone(), gate.clone());
    let workers = start(
        world
            .worker()
            .process(move |job: Job<F, Work>| {
                let started = started.clone();
                async move {
                    started.add(job.client().start(Note { text: "side".into() }).await?.chain());
                    job.finish(1)
                }
            })
            .process(move |job: Job<F, Note>| {
                let held = held.clone();
                async move {
                    held.pass().await;
                    let text = job.text.clone();
                    job.finish(text)
                }
            }),
    )
    .await;
    world.output(&chain).await;
    let side = side.all()[0];
    assert!(
        world.chain(side).await.status.is_open(),
        "its starter did not wait for it"
    );
    assert_eq!(world.chain(&chain).await.length, 1);
    gate.open();
    assert_eq!(world.output(side).await, "side");
    workers.stop().await;
}

/// A continuation may have an id of the caller's choice (C8).
pub async fn a_continuation_may_have_a_supplied_id<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let id = JobId::from_uuid(Uuid::from_u128(42));
    let chain = world.client.start(FromHere { n: 1 }).await.expect("the chain starts");
    let workers = start(
        world
            .worker()
            .process(move |job: Job<F, FromHere>| async move { job.continue_with(Step::new(Shared { n: 1 }).id(id)) })
            .process(|job: Job<F, Shared>| async move { job.finish(String::new()) }),
    )
    .await;
    world.output(&chain).await;
    workers.stop().await;
    assert_eq!(world.jobs(&chain).await[1].id, id);
}

/// A continuation with an id that exists is a counted failure that says so, and the chain does not go on (C9, H21).
pub async fn a_continuation_with_a_taken_id_is_a_failure<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let taken = world
        .client
        .start(Note { text: String::new() })
        .await
        .expect("the chain starts");
    let id = taken.id().first_job();
    let plain = world
        .client
        .start(FromHere { n: 0 })
        .max_attempts(2)
        .await
        .expect("the chain starts");
    let written = world
        .client
        .start(FromThere { n: 0 })
        .max_attempts(2)
        .await
        .expect("the chain starts");
    let workers = start(
        world
            .worker()
            .process(move |job: Job<F, FromHere>| async move { job.continue_with(Step::new(Shared { n: 1 }).id(id)) })
            .process(move |job: Job<F, FromThere>| async move {
                let tx = job.begin().await?;
                tx.continue_with(Step::new(Shared { n: 1 }).id(id)).await
            }),
    )
    .await;
    for chain in [plain.id(), written.id()] {
        let dead = world.until(chain, JobStatus::Dead).await;
        assert_eq!(dead.attempt, 2);
        let error = dead.last_error.expect("the error is stored").message;
        assert!(error.contains(&id.to_string()), "the error names the id: {error}");
        assert_eq!(world.chain(chain).await.length, 1);
    }
    workers.stop().await;
}

/// The steps of one chain may run on workers of different processes (B4).
pub async fn the_steps_of_a_chain_run_on_different_workers<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let (other, _) = world.other_process();
    let chain = world.client.start(FromHere { n: 1 }).await.expect("the chain starts");
    let here = start(
        world
            .worker()
            .name("here")
            .process(|job: Job<F, FromHere>| async move { job.continue_with(Shared { n: 1 }) }),
    )
    .await;
    let there = start(
        eager(&other)
            .name("there")
            .process(|job: Job<F, Shared>| async move { job.finish(String::new()) }),
    )
    .await;
    world.output(&chain).await;
    let jobs = world.jobs(&chain).await;
    assert_eq!(jobs[0].completed_by.as_ref(), Some(here.id()));
    assert_eq!(jobs[1].completed_by.as_ref(), Some(there.id()));
    here.stop().await;
    there.stop().await;
}

/// A job of a type that no worker has a processor for is left alone, and nobody is disturbed by it (I17).
pub async fn a_job_of_an_unknown_type_is_never_claimed<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let unknown = world
        .client
        .start(Note { text: String::new() })
        .await
        .expect("the chain starts");
    let workers = start(world.worker().process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    for n in 0..3 {
        let known = world.client.start(Work { n }).await.expect("the chain starts");
        world.output(&known).await;
    }
    workers.stop().await;
    let job = world.latest(&unknown).await;
    assert_eq!((job.status, job.attempt, job.claims), (JobStatus::Pending, 0, 0));
    assert!(super::types::Cases::NAMES.contains(&job.type_name.as_str()));
}

/// Many chains on many workers all complete, each job once (I5).
pub async fn many_chains_complete_each_job_once<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let (other, _) = world.other_process();
    let ran = Log::new();
    let chains = world
        .client
        .start_many((0..60).map(|n| First { n }))
        .await
        .expect("the chains start");
    let mut sets = Vec::new();
    for client in [&world.client, &other] {
        let (first, second, third) = (ran.clone(), ran.clone(), ran.clone());
        let worker = eager(client)
            .concurrency(5)
            .process(move |job: Job<F, First>| {
                first.add(job.id());
                let n = job.n;
                async move { job.continue_with(Second { n }) }
            })
            .process(move |job: Job<F, Second>| {
                second.add(job.id());
                let n = job.n;
                async move { job.continue_with(Third { n }) }
            })
            .process(move |job: Job<F, Third>| {
                third.add(job.id());
                let n = job.n;
                async move { job.finish(n) }
            });
        sets.push(start(worker).await);
    }
    for (n, chain) in chains.iter().enumerate() {
        assert_eq!(world.output(chain).await as usize, n);
        assert_eq!(world.chain(chain).await.length, 3);
    }
    for workers in sets {
        workers.stop().await;
    }
    let mut ran = ran.all();
    assert_eq!(ran.len(), 180);
    ran.sort_unstable();
    ran.dedup();
    assert_eq!(ran.len(), 180, "a job ran twice");
}
