//! Blockers: fan-in, what processors read of it, and what happens when a blocker does not complete.

use queuert::{JobError, JobStatus, JobType, Step};

use super::types::{After, Assemble, First, Gather, Note, Pair, Plan, Second, Third, Work};
use super::world::{Gate, Job, Log, World, eager, ms, start};
use crate::behaviour::PairFixture;

/// A dependant runs after the last step of its blocker chain, not after the first, and reads its output (B1).
pub async fn a_dependant_runs_after_the_last_step<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let blocker = world.client.start(First { n: 1 }).await.expect("the chain starts");
    let dependant = world
        .client
        .start(After { n: 100 }.blocked_by(&blocker))
        .await
        .expect("the chain starts");
    assert_eq!(dependant.status(), JobStatus::Blocked);
    let order = Log::new();
    let (one, two, three, four) = (order.clone(), order.clone(), order.clone(), order.clone());
    let workers = start(
        world
            .worker()
            .concurrency(4)
            .process(move |job: Job<F, First>| {
                one.add("first");
                async move { job.continue_with(Second { n: 2 }) }
            })
            .process(move |job: Job<F, Second>| {
                two.add("second");
                async move { job.continue_with(Third { n: 3 }) }
            })
            .process(move |job: Job<F, Third>| {
                three.add("third");
                async move { job.finish(33) }
            })
            .process(move |job: Job<F, After>| {
                four.add("after");
                let sum = job.n + *job.blockers();
                async move { job.finish(sum) }
            }),
    )
    .await;
    assert_eq!(world.output(&dependant).await, 133);
    assert_eq!(order.all(), ["first", "second", "third", "after"]);
    workers.stop().await;
}

/// A dependant of a blocker that completed before is pending at once and reads its output (B2).
pub async fn a_blocker_that_completed_before_blocks_nothing<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, Work>| async move { job.finish(5) })
            .process(|job: Job<F, Gather>| async move {
                let outputs = job.blockers().clone();
                job.finish(outputs)
            }),
    )
    .await;
    let blocker = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.output(&blocker).await;
    let dependant = world
        .client
        .start(Gather { n: 0 }.blocked_by([&blocker]))
        .await
        .expect("the chain starts");
    assert_eq!(dependant.status(), JobStatus::Pending);
    assert_eq!(world.output(&dependant).await, [5]);
    workers.stop().await;
}

/// Chains that are started in `prepare`, between the phases and in the completing transaction are independent of the
/// attempt's chain, and complete (B3).
pub async fn chains_started_in_any_phase_complete<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world
        .client
        .start(Note { text: String::new() })
        .await
        .expect("the chain starts");
    let side = Log::new();
    let started = side.clone();
    let workers = start(
        world
            .worker()
            .process(move |job: Job<F, Note>| {
                let started = started.clone();
                async move {
                    let client = job.client().clone();
                    let prepared = job
                        .prepare(async |tx| client.start(Work { n: 1 }).within(tx).await)
                        .await?;
                    let between = client.start(Work { n: 2 }).await?;
                    let mut tx = job.begin().await?;
                    let last = client.start(Work { n: 3 }).within(&mut tx).await?;
                    for chain in [prepared, between, last] {
                        started.add(chain.chain());
                    }
                    tx.finish(String::new()).await
                }
            })
            .process(|job: Job<F, Work>| async move { job.finish(job.n) }),
    )
    .await;
    world.output(&chain).await;
    let mut outputs = Vec::new();
    for chain in side.all() {
        outputs.push(world.output(chain).await);
    }
    assert_eq!(outputs, [1, 2, 3]);
    workers.stop().await;
}

/// The outputs of many blockers come in the declared order, whatever order they complete in (B5, B7).
pub async fn outputs_come_in_the_declared_order<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let blockers = world
        .client
        .start_many((0..5).map(|n| Work { n }))
        .await
        .expect("the chains start");
    let declared: Vec<_> = [3, 0, 4, 1, 2].map(|place: usize| blockers[place].chain()).to_vec();
    let dependant = world
        .client
        .start(Gather { n: 0 }.blocked_by(&declared))
        .await
        .expect("the chain starts");
    let workers = start(
        world
            .worker()
            .concurrency(3)
            .process(|job: Job<F, Work>| async move {
                let n = job.n;
                job.finish(n * 10)
            })
            .process(|job: Job<F, Gather>| async move {
                let outputs = job.blockers().clone();
                assert_eq!(job.outputs_of::<Work>(), outputs.iter().collect::<Vec<_>>());
                job.finish(outputs)
            }),
    )
    .await;
    assert_eq!(world.output(&dependant).await, [30, 0, 40, 10, 20]);
    workers.stop().await;
}

/// Blockers of different types are read by place and by type, and the same chain may be given twice (I6).
pub async fn blockers_of_different_types_are_read_by_type<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let work = world.client.start(Work { n: 4 }).await.expect("the chain starts");
    let note = world
        .client
        .start(Note { text: "x".into() })
        .await
        .expect("the chain starts");
    let pair = world
        .client
        .start(Pair { n: 0 }.blocked_by((&work, &note)))
        .await
        .expect("the chain starts");
    let twice = world
        .client
        .start(Gather { n: 0 }.blocked_by([&work, &work]))
        .await
        .expect("the chain starts");
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, Work>| async move { job.finish(4) })
            .process(|job: Job<F, Note>| async move { job.finish("note".to_owned()) })
            .process(|job: Job<F, Pair>| async move {
                assert_eq!(job.outputs_of::<Note>(), ["note"]);
                let (n, text) = job.blockers();
                let both = format!("{n} {text}");
                job.finish(both)
            })
            .process(|job: Job<F, Gather>| async move {
                let outputs = job.blockers().clone();
                job.finish(outputs)
            }),
    )
    .await;
    assert_eq!(world.output(&pair).await, "4 note");
    assert_eq!(world.output(&twice).await, [4, 4]);
    workers.stop().await;
}

/// A continuation may wait for chains that were started in the same transaction (B6).
pub async fn a_continuation_waits_for_chains_of_its_own_transaction<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Plan { n: 3 }).await.expect("the chain starts");
    let workers = start(
        world
            .worker()
            .concurrency(2)
            .process(|job: Job<F, Plan>| async move {
                let client = job.client().clone();
                let parts = (0..job.n).map(|n| Work { n });
                let mut tx = job.begin().await?;
                let parts = client.start_many(parts).within(&mut tx).await?;
                tx.continue_with(Assemble { n: 0 }.blocked_by(&parts)).await
            })
            .process(|job: Job<F, Work>| async move {
                let n = job.n;
                job.finish(n + 1)
            })
            .process(|job: Job<F, Assemble>| async move {
                let outputs = job.blockers().clone();
                job.finish(outputs)
            }),
    )
    .await;
    assert_eq!(world.output(&chain).await, [1, 2, 3]);
    workers.stop().await;
}

/// Two dependants of one blocker are both blocked, and both run when it completes (B8).
pub async fn two_dependants_of_one_blocker_both_run<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let blocker = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let steps = (0..2).map(|n| Gather { n }.blocked_by([&blocker]));
    let dependants = world.client.start_many(steps).await.expect("the chains start");
    assert!(
        dependants
            .iter()
            .all(|dependant| dependant.status() == JobStatus::Blocked)
    );
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, Work>| async move { job.finish(9) })
            .process(|job: Job<F, Gather>| async move {
                let outputs = job.blockers().clone();
                job.finish(outputs)
            }),
    )
    .await;
    for dependant in &dependants {
        assert_eq!(world.output(dependant).await, [9]);
    }
    workers.stop().await;
}

/// A job that was blocked for long is scheduled for the moment of its unblocking, so that it does not overtake (B9).
pub async fn unblocking_moves_the_schedule_to_now<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let blocker = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let dependant = world
        .client
        .start(Gather { n: 0 }.blocked_by([&blocker]))
        .await
        .expect("the chain starts");
    let before = world.latest(&dependant).await.scheduled_at;
    world.elapse(ms(30)).await;
    let workers = start(world.worker().process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    let unblocked = world.until(&dependant, JobStatus::Pending).await;
    workers.stop().await;
    let ended = world.latest(&blocker).await.ended_at.expect("the blocker has ended");
    assert!(unblocked.scheduled_at > before);
    assert!(unblocked.scheduled_at >= ended);
}

/// Fan-in of many blockers that complete at the same time on several workers unblocks the dependant exactly once
/// (I6, H1).
pub async fn fan_in_of_many_is_exact<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let (other, _) = world.other_process();
    for _ in 0..5 {
        let blockers = world
            .client
            .start_many((0..20).map(|n| Work { n }))
            .await
            .expect("the chains start");
        let dependant = world
            .client
            .start(Gather { n: 0 }.blocked_by(&blockers))
            .await
            .expect("the chain starts");
        let gate = Gate::closed();
        let runs = Log::new();
        let mut sets = Vec::new();
        for client in [&world.client, &other] {
            let (held, ran) = (gate.clone(), runs.clone());
            let worker = eager(client)
                .concurrency(11)
                .process(move |job: Job<F, Work>| {
                    let held = held.clone();
                    async move {
                        held.pass().await;
                        let n = job.n;
                        // Half of them in transactions of their own, which really do overlap.
                        if n.is_multiple_of(2) {
                            return job.finish(n);
                        }
                        job.begin().await?.finish(n).await
                    }
                })
                .process(move |job: Job<F, Gather>| {
                    ran.add(job.number());
                    let outputs = job.blockers().clone();
                    async move { job.finish(outputs) }
                });
            sets.push(start(worker).await);
        }
        gate.arrived(20).await;
        gate.open();
        assert_eq!(world.output(&dependant).await, (0..20).collect::<Vec<_>>());
        for workers in sets {
            workers.stop().await;
        }
        assert_eq!(runs.all(), [1], "the dependant runs once");
    }
}

/// A dependant that is attached while its blocker continues waits for the end of the chain (H2).
pub async fn a_dependant_attached_while_its_blocker_continues_waits<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let blocker = world.client.start(First { n: 1 }).await.expect("the chain starts");
    let gate = Gate::closed();
    let held = gate.clone();
    let workers = start(
        world
            .worker()
            .concurrency(2)
            .process(|job: Job<F, First>| async move {
                let tx = job.begin().await?;
                tx.continue_with(Second { n: 2 }).await
            })
            .process(|job: Job<F, Second>| async move { job.continue_with(Third { n: 3 }) })
            .process(move |job: Job<F, Third>| {
                let held = held.clone();
                async move {
                    held.pass().await;
                    job.finish(7)
                }
            })
            .process(|job: Job<F, After>| async move {
                let output = *job.blockers();
                job.finish(output)
            }),
    )
    .await;
    let mut dependants = Vec::new();
    while gate.arrivals() == 0 {
        let step = After { n: 0 }.blocked_by(&blocker);
        dependants.push(world.client.start(step).await.expect("the chain starts"));
        tokio::task::yield_now().await;
    }
    let late = world
        .client
        .start(After { n: 0 }.blocked_by(&blocker))
        .await
        .expect("the chain starts");
    dependants.push(late);
    for dependant in &dependants {
        assert_eq!(world.chain(dependant).await.status, JobStatus::Blocked);
    }
    gate.open();
    for dependant in &dependants {
        assert_eq!(world.output(dependant).await, 7);
    }
    workers.stop().await;
}

/// The dependants of a chain that died stay blocked, visibly, until it is retried; then they run.
pub async fn dependants_of_a_dead_chain_wait_for_its_retry<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let blocker = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let dependant = world
        .client
        .start(Gather { n: 0 }.blocked_by([&blocker]))
        .await
        .expect("the chain starts");
    let fatal = Log::new();
    let failed = fatal.clone();
    let workers = start(
        world
            .worker()
            .process(move |job: Job<F, Work>| {
                let first = failed.len() == 0;
                failed.add(());
                async move {
                    if first {
                        return Err(JobError::fatal("cannot be done"));
                    }
                    job.finish(6)
                }
            })
            .process(|job: Job<F, Gather>| async move {
                let outputs = job.blockers().clone();
                job.finish(outputs)
            }),
    )
    .await;
    world.until(&blocker, JobStatus::Dead).await;
    // Other work goes on meanwhile, so the worker has had its chance to run the dependant.
    let other = world.client.start(Work { n: 1 }).await.expect("the chain starts");
    world.output(&other).await;
    assert_eq!(world.latest(&dependant).await.status, JobStatus::Blocked);
    let waiting = world
        .client
        .list_blocked_jobs(&blocker)
        .await
        .expect("jobs can be listed");
    assert_eq!(waiting.items.len(), 1);
    world.client.retry(&blocker).await.expect("a dead chain can be retried");
    assert_eq!(world.output(&dependant).await, [6]);
    workers.stop().await;
}

/// The dependants of a cancelled chain stay blocked until it is retried.
pub async fn dependants_of_a_cancelled_chain_wait_for_its_retry<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let blocker = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let dependant = world
        .client
        .start(Gather { n: 0 }.blocked_by([&blocker]))
        .await
        .expect("the chain starts");
    world
        .client
        .cancel(&blocker)
        .await
        .expect("an open chain can be cancelled");
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, Work>| async move { job.finish(8) })
            .process(|job: Job<F, Gather>| async move {
                let outputs = job.blockers().clone();
                job.finish(outputs)
            }),
    )
    .await;
    let other = world.client.start(Work { n: 1 }).await.expect("the chain starts");
    world.output(&other).await;
    assert_eq!(world.latest(&dependant).await.status, JobStatus::Blocked);
    world
        .client
        .retry(&blocker)
        .await
        .expect("a cancelled chain can be retried");
    assert_eq!(world.output(&dependant).await, [8]);
    workers.stop().await;
}

/// A continuation that would wait for a chain that waits for it is no deadlock: the job is dead at once, as no retry could
/// succeed (H18).
pub async fn a_circle_of_blockers_is_fatal<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let plain = world.client.start(Plan { n: 0 }).await.expect("the chain starts");
    let transactional = world.client.start(Plan { n: 1 }).await.expect("the chain starts");
    let workers = start(world.worker().process(move |job: Job<F, Plan>| async move {
        let own = queuert::ChainRef::<Work>::new(job.chain_id());
        let next = Step::blocked(Assemble { n: 0 }, vec![own]);
        match job.n {
            0 => job.continue_with(next),
            _ => job.begin().await?.continue_with(next).await,
        }
    }))
    .await;
    for chain in [plain, transactional] {
        let dead = world.until(&chain, JobStatus::Dead).await;
        assert_eq!((dead.attempt, dead.max_attempts), (1, None));
        let error = dead.last_error.expect("the error is stored").message;
        assert!(error.contains("cannot wait for chain"), "{error}");
    }
    workers.stop().await;
}

/// A processor that takes a chain for one of another type has no success with a retry: the job is dead at once.
pub async fn a_chain_of_another_type_is_fatal<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let workers = start(world.worker().process(|job: Job<F, Work>| async move {
        let own = queuert::ChainRef::<First>::new(job.chain_id());
        job.client().get_chain(own).await?;
        job.finish(0)
    }))
    .await;
    let dead = world.until(&chain, JobStatus::Dead).await;
    assert_eq!((dead.attempt, dead.max_attempts), (1, None));
    let error = dead.last_error.expect("the error is stored").message;
    assert!(error.contains(First::NAME) && error.contains(Work::NAME), "{error}");
    workers.stop().await;
}

/// A job that waits for a chain under a wrong type is dead at its first attempt, with the reason, however it was created: no
/// retry could read the output of that chain as what it is not.
pub async fn a_blocker_of_another_type_is_fatal<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let text = "no number".to_owned();
    let note = world.client.start(Note { text }).await.expect("the chain starts");
    let wrong = queuert::ChainRef::<Work>::new(note.id());
    let plain = world.client.start(Plan { n: 0 }).await.expect("the chain starts");
    let transactional = world.client.start(Plan { n: 1 }).await.expect("the chain starts");
    let entry = Gather { n: 0 }.blocked_by([&wrong]);
    let entry = world.client.start(entry).await.expect("the chain starts");
    let plan = move |job: Job<F, Plan>| {
        let next = Step::blocked(Assemble { n: 0 }, vec![wrong]);
        async move {
            match job.n {
                0 => job.continue_with(next),
                _ => job.begin().await?.continue_with(next).await,
            }
        }
    };
    let worker = world.worker().process(plan);
    let worker = worker.process(|job: Job<F, Note>| async move { job.finish("still none".to_owned()) });
    let worker = worker.process(|job: Job<F, Assemble>| async move { job.finish(vec![]) });
    let workers = start(worker.process(|job: Job<F, Gather>| async move { job.finish(vec![]) })).await;
    let dead = [
        world.until(&plain, JobStatus::Dead).await,
        world.until(&transactional, JobStatus::Dead).await,
        world.until(&entry, JobStatus::Dead).await,
    ];
    for dead in dead {
        assert_eq!((dead.attempt, dead.max_attempts), (1, None));
        let error = dead.last_error.expect("the error is stored").message;
        assert!(error.contains(Note::NAME) && error.contains(Work::NAME), "{error}");
    }
    workers.stop().await;
}
