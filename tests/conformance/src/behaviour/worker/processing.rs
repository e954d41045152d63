//! How a processor does its work: without a transaction, in one, or in stages.

use queuert::{Error, JobStatus};

use super::types::{FromHere, Note, Shared, Work};
use super::world::{Gate, Job, Log, World, ms, skip, start};
use crate::behaviour::PairFixture;
use crate::faulty::Verb;

/// A plain completion opens no transaction: a claim, the processor, a settlement (PM1, I3).
pub async fn a_plain_completion_opens_no_transaction<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 1 }).await.expect("the chain starts");
    let workers = start(world.worker().process(|job: Job<F, Work>| async move { job.finish(2) })).await;
    assert_eq!(world.output(&chain).await, 2);
    workers.stop().await;
    assert_eq!(world.faults.calls(Verb::Begin), 0);
    assert_eq!(world.faults.calls(Verb::HoldLease), 0);
    assert_eq!(world.faults.batches(Verb::SettleJobs), [1]);
}

/// No transaction and no lock is held while the processor works: others can lock its chain meanwhile (PM2, I3).
pub async fn nothing_is_locked_while_a_processor_works<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 1 }).await.expect("the chain starts");
    let gate = Gate::closed();
    let held = gate.clone();
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            job.prepare(async |_| Ok::<_, Error>(())).await?;
            held.pass().await;
            let tx = job.begin().await?;
            tx.finish(1).await
        }
    }))
    .await;
    gate.arrived(1).await;
    let running = world.latest(&chain).await;
    assert_eq!(running.status, JobStatus::Running);
    assert!(running.lease.is_some(), "a running job has a lease");
    let mut tx = world.client.begin().await.expect("a transaction opens");
    let open = world
        .client
        .open::<Work>(&chain)
        .within(&mut tx)
        .await
        .expect("nobody holds the chain");
    assert_eq!(open.n, 1);
    drop(open);
    tx.rollback().await.expect("the transaction rolls back");
    gate.open();
    assert_eq!(world.output(&chain).await, 1);
    workers.stop().await;
}

/// A transactional completion settles inside the processor's transaction, which the worker commits (PM5, PM6).
pub async fn a_transactional_completion_is_committed_by_the_worker<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(FromHere { n: 1 }).await.expect("the chain starts");
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, FromHere>| async move {
                let n = job.n;
                job.begin().await?.continue_with(Shared { n }).await
            })
            .process(|job: Job<F, Shared>| async move {
                let tx = job.begin().await?;
                tx.finish("done".to_owned()).await
            }),
    )
    .await;
    assert_eq!(world.output(&chain).await, "done");
    workers.stop().await;
    assert_eq!(world.faults.calls(Verb::Begin), 2);
    assert_eq!(world.faults.calls(Verb::Commit), 2);
    assert_eq!(world.faults.calls(Verb::SettleJobs), 2);
}

/// Nothing of a transactional completion can be seen before the worker has committed it (I1, I2).
pub async fn a_completion_is_invisible_until_it_is_committed<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 1 }).await.expect("the chain starts");
    let gate = Gate::closed();
    let held = gate.clone();
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            let tx = job.begin().await?;
            let completion = tx.finish(1).await?;
            held.pass().await;
            Ok(completion)
        }
    }))
    .await;
    gate.arrived(1).await;
    let running = world.latest(&chain).await;
    assert_eq!(running.status, JobStatus::Running);
    assert!(running.output.is_none());
    gate.open();
    assert_eq!(world.output(&chain).await, 1);
    workers.stop().await;
}

/// Completions read the job that they end, and only the one that the processor returns has an effect (PM1).
pub async fn the_completion_that_is_returned_counts<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 20 }).await.expect("the chain starts");
    let workers = start(world.worker().process(|job: Job<F, Work>| async move {
        let dropped = job.finish(job.n)?;
        let snoozed = job.snooze(ms(60_000))?;
        drop((dropped, snoozed));
        job.finish(job.n + 1)
    }))
    .await;
    assert_eq!(world.output(&chain).await, 21);
    workers.stop().await;
    assert_eq!(world.latest(&chain).await.attempt, 1);
}

/// Staged work: `prepare` returns its value and is committed at once, the slow part runs outside, `begin` and `finish`
/// complete (PM3, PM4, PR5).
pub async fn staged_work_commits_in_two_transactions<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 20 }).await.expect("the chain starts");
    let side = Log::new();
    let started = side.clone();
    let workers = start(world.worker().name("clerk").process(move |job: Job<F, Work>| {
        let started = started.clone();
        async move {
            let client = job.client().clone();
            let n = job.n;
            let prepared = job
                .prepare(async |tx| {
                    let note = client
                        .start(Note {
                            text: "reserved".into(),
                        })
                        .within(tx)
                        .await?;
                    Ok::<_, Error>((n + 1, note.chain()))
                })
                .await?;
            // Committed: another connection sees it.
            let reserved = client.get_chain(prepared.1).await?;
            assert!(
                reserved.is_some(),
                "what was prepared is committed before the slow part"
            );
            started.add(prepared.1);
            let tx = job.begin().await?;
            tx.finish(prepared.0 * 2).await
        }
    }))
    .await;
    assert_eq!(world.output(&chain).await, 42);
    let worker = workers.id().clone();
    workers.stop().await;
    let job = world.latest(&chain).await;
    assert_eq!(job.completed_by.as_ref(), Some(&worker));
    assert!(worker.as_str().starts_with("clerk-"), "{worker}");
    assert_eq!(side.len(), 1);
    assert_eq!(world.faults.calls(Verb::HoldLease), 1, "prepare is fenced");
}

/// `prepare` may be used several times, and a transaction that is opened and dropped leaves nothing (PR1).
pub async fn stages_may_repeat_and_dropped_transactions_leave_nothing<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let workers = start(world.worker().process(|job: Job<F, Work>| async move {
        let client = job.client().clone();
        for round in 0..3 {
            let round = format!("{round}");
            job.prepare(async |tx| client.start(Note { text: round }).within(tx).await)
                .await?;
        }
        let mut dropped = job.begin().await?;
        client.start(Note { text: "lost".into() }).within(&mut dropped).await?;
        drop(dropped);
        job.finish(3)
    }))
    .await;
    world.output(&chain).await;
    workers.stop().await;
    let notes = world
        .client
        .list_jobs()
        .of_type::<Note>()
        .await
        .expect("jobs can be listed");
    assert_eq!(notes.items.len(), 3, "three were prepared, one was dropped");
}

/// The user's own writes commit together with the completion (I1).
pub async fn user_writes_commit_with_the_completion<F: PairFixture>(fixture: F) {
    if !fixture.capabilities().markers {
        return skip("the fixture writes no markers");
    }
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let gate = Gate::closed();
    let (held, fixture) = (gate.clone(), world.fixture.clone());
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        let (held, fixture) = (held.clone(), fixture.clone());
        async move {
            let mut tx = job.begin().await?;
            fixture.write_marker(&mut tx, "written").await;
            let completion = tx.finish(0).await?;
            held.pass().await;
            Ok(completion)
        }
    }))
    .await;
    gate.arrived(1).await;
    assert!(!world.fixture.read_marker(world.state.inner(), "written").await);
    gate.open();
    world.output(&chain).await;
    assert!(world.fixture.read_marker(world.state.inner(), "written").await);
    workers.stop().await;
}

/// The user's own writes are undone when the attempt fails after its completion; what `prepare` committed stays (I1).
pub async fn user_writes_roll_back_with_the_completion<F: PairFixture>(fixture: F) {
    if !fixture.capabilities().markers {
        return skip("the fixture writes no markers");
    }
    let world = World::new(fixture).await;
    let chain = world
        .client
        .start(Work { n: 0 })
        .max_attempts(1)
        .await
        .expect("the chain starts");
    let fixture = world.fixture.clone();
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        let fixture = fixture.clone();
        async move {
            job.prepare(async |tx| {
                fixture.write_marker(tx, "prepared").await;
                Ok::<_, Error>(())
            })
            .await?;
            let failed = job
                .prepare(async |tx| {
                    fixture.write_marker(tx, "half").await;
                    Err::<(), _>("no")
                })
                .await;
            assert!(failed.is_err());
            let mut tx = job.begin().await?;
            fixture.write_marker(&mut tx, "written").await;
            let _completion = tx.finish(0).await?;
            Err("changed its mind".into())
        }
    }))
    .await;
    world.until(&chain, JobStatus::Dead).await;
    workers.stop().await;
    let state = world.state.inner();
    assert!(world.fixture.read_marker(state, "prepared").await);
    assert!(!world.fixture.read_marker(state, "half").await);
    assert!(!world.fixture.read_marker(state, "written").await);
}

/// A savepoint inside the attempt's transaction can fail without failing the attempt.
pub async fn a_savepoint_can_fail_alone<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let workers = start(world.worker().process(|job: Job<F, Work>| async move {
        let client = job.client().clone();
        let mut tx = job.begin().await?;
        client.start(Note { text: "kept".into() }).within(&mut tx).await?;
        let undone = tx
            .savepoint(async |tx| {
                client.start(Note { text: "undone".into() }).within(tx).await?;
                Err::<(), _>(Error::NoProcessor)
            })
            .await;
        assert!(undone.is_err());
        tx.finish(1).await
    }))
    .await;
    world.output(&chain).await;
    workers.stop().await;
    let notes = world
        .client
        .list_jobs()
        .of_type::<Note>()
        .await
        .expect("jobs can be listed");
    assert_eq!(notes.items.len(), 1);
}

/// A completion that belongs to another attempt is a counted failure, and completes nothing (I4, I9).
pub async fn the_completion_of_another_attempt_is_refused<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let kept = std::sync::Arc::new(std::sync::Mutex::new(None));
    let first = world
        .client
        .start(Work { n: 1 })
        .max_attempts(1)
        .await
        .expect("the chain starts");
    let swap = kept.clone();
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        let swap = swap.clone();
        async move {
            let n = job.n;
            let own = job.finish(n)?;
            let other = swap.lock().expect("nobody panics with it").replace(own);
            other.ok_or_else(|| "kept for another job".into())
        }
    }))
    .await;
    world.until(&first, JobStatus::Dead).await;
    let second = world
        .client
        .start(Work { n: 2 })
        .max_attempts(1)
        .await
        .expect("the chain starts");
    let dead = world.until(&second, JobStatus::Dead).await;
    let error = dead.last_error.expect("the error is stored").message;
    assert!(
        error.contains(&first.id().to_string()),
        "the error names the other job: {error}"
    );
    assert_eq!(world.chain(&first).await.status, JobStatus::Dead);
    workers.stop().await;
}
