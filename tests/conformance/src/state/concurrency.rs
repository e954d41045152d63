//! Many at once.

use std::pin::pin;

use queuert::StateErrorKind;
use queuert::{JobStatus, Schedule};

use crate::bench::{Attempt, Bench, End, LONG};
use crate::draft::{self, draft};
use crate::fixture::StateFixture;

/// Transactions at the same moment all commit. (S128)
pub async fn transactions_at_once_all_commit<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let bench = bench.clone();
            tokio::spawn(async move {
                let mut open = bench.begin().await;
                let chains = [open.start("mail").await, open.start("mail").await];
                open.commit().await;
                chains
            })
        })
        .collect();
    let mut chains = Vec::new();
    for task in tasks {
        chains.extend(task.await.expect("no transaction fails"));
    }
    assert_eq!(bench.chains(&chains).await.len(), 16);
}

/// Reads at the same moment find what they ask for. (S129)
pub async fn reads_at_once_find_their_rows<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = bench.start_at_once("mail", 10).await;
    let tasks: Vec<_> = chains
        .iter()
        .map(|chain| {
            let (bench, chain) = (bench.clone(), *chain);
            tokio::spawn(async move { (chain, bench.job(chain.first_job()).await) })
        })
        .collect();
    for task in tasks {
        let (chain, job) = task.await.expect("no read fails");
        assert_eq!(job.chain_id, chain);
    }
}

/// Transactions and plain reads at the same moment do not block each other for ever. (S130)
pub async fn transactions_and_reads_do_not_deadlock<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let seed = bench.start("mail").await;
    let tasks: Vec<_> = (0..12)
        .map(|index| {
            let bench = bench.clone();
            tokio::spawn(async move {
                if index % 2 == 0 {
                    let mut open = bench.begin().await;
                    open.start("mail").await;
                    assert!(
                        bench.exists(seed).await,
                        "a plain read while this transaction has written"
                    );
                    open.commit().await;
                }
                bench.list_chains(&super::list_chains::query()).await.len()
            })
        })
        .collect();
    for task in tasks {
        assert!(task.await.expect("nothing fails") >= 1);
    }
    assert_eq!(bench.list_chains(&super::list_chains::query()).await.len(), 7);
}

/// Claims at the same moment take different jobs. (S131)
pub async fn claims_at_once_take_different_jobs<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start_at_once("mail", 60).await;
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let bench = bench.clone();
            tokio::spawn(async move {
                let mut taken = Vec::new();
                loop {
                    let claimed = bench.claim_ids(&["mail"], 7).await;
                    if claimed.is_empty() {
                        return taken;
                    }
                    taken.extend(claimed);
                }
            })
        })
        .collect();
    let mut taken = Vec::new();
    for task in tasks {
        taken.extend(task.await.expect("no claim fails"));
    }
    // Claimers skip what another has locked, so the last ones may be left by all of them.
    taken.extend(bench.claim_ids(&["mail"], 60).await);
    taken.sort();
    let count = taken.len();
    taken.dedup();
    assert_eq!((taken.len(), count), (60, 60), "every job is taken once");
}

/// Workers at the same moment run every job of every chain once, whatever the chains do.
pub async fn workers_at_once_run_every_job_once<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = bench.start_at_once("loop", 12).await;
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let bench = bench.clone();
            tokio::spawn(async move {
                let mut idle = 0;
                while idle < 3 {
                    let claimed = bench.claim(&["loop"], 3).await;
                    idle = if claimed.jobs.is_empty() { idle + 1 } else { 0 };
                    for attempt in claimed.jobs.into_iter().map(Attempt::new) {
                        let outcome = match (attempt.job.chain_index, attempt.job.attempt) {
                            (_, 1) => draft::retry(Schedule::Now, "once"),
                            (2, _) => draft::finish("1"),
                            _ => draft("loop").next(),
                        };
                        bench.apply(&attempt, outcome).await;
                    }
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no worker fails");
    }
    // Workers that saw nothing three times in a row have gone; the rest is done here.
    while let Some(claimed) = bench.claim(&["loop"], 1).await.jobs.pop().map(Attempt::new) {
        let outcome = match (claimed.job.chain_index, claimed.job.attempt) {
            (_, 1) => draft::retry(Schedule::Now, "once"),
            (2, _) => draft::finish("1"),
            _ => draft("loop").next(),
        };
        bench.apply(&claimed, outcome).await;
    }
    let records = bench.chains(&chains).await;
    assert!(
        records
            .iter()
            .all(|chain| chain.status == JobStatus::Completed && chain.length == 3)
    );
    let jobs = bench.list_jobs(&super::list_jobs::query()).await;
    assert_eq!(jobs.len(), 36);
    assert!(jobs.iter().all(|job| (job.attempt, job.claims) == (2, 2)));
}

/// Two transactions that lock two chains in opposite order: one of them gets a conflict, the other goes on, nobody
/// hangs.
pub async fn a_deadlock_is_a_conflict<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !bench.has_concurrent_writers() {
        return;
    }
    let (a, b) = (bench.start("a").await, bench.start("b").await);
    let (mut first, mut second) = (bench.begin().await, bench.begin().await);
    first.lock(a).await.expect("the chain is there");
    second.lock(b).await.expect("the chain is there");
    let one = async {
        let locked = first.try_lock(b).await;
        first.rollback().await;
        locked
    };
    let two = async {
        let locked = second.try_lock(a).await;
        second.rollback().await;
        locked
    };
    let (one, two) = futures_util::future::join(one, two).await;
    let results = [one, two];
    let conflicts: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(!conflicts.is_empty(), "somebody must give way");
    assert!(
        conflicts.iter().all(|error| error.kind() == StateErrorKind::Conflict),
        "{conflicts:?}"
    );
    // Both transactions are over, so both chains are free.
    assert_eq!(bench.claim(&["a", "b"], 5).await.jobs.len(), 2);
}

/// Calls that name the same chains in opposite order do not deadlock: locks are taken in id order within a call.
pub async fn calls_in_opposite_order_do_not_deadlock<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut chains = bench.start_at_once("mail", 6).await;
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            chains.reverse();
            let (bench, jobs) = (
                bench.clone(),
                chains.iter().map(|chain| chain.first_job()).collect::<Vec<_>>(),
            );
            tokio::spawn(async move { bench.trigger(&jobs).await.map(|jobs| jobs.len()) })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.expect("no call fails"), Ok(6));
    }
}

/// Batches of settlements with shared dependants, in opposite order, do not deadlock.
pub async fn settlements_with_shared_dependants_do_not_deadlock<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blockers = bench.start_at_once("blocker", 8).await;
    let mut dependants = Vec::new();
    for _ in 0..4 {
        dependants.push(bench.start_blocked("dependant", &blockers).await);
    }
    let attempts: Vec<_> = bench
        .claim(&["blocker"], 8)
        .await
        .jobs
        .into_iter()
        .map(Attempt::new)
        .collect();
    let tasks: Vec<_> = attempts
        .chunks(4)
        .enumerate()
        .map(|(index, attempts)| {
            let mut settlements: Vec<_> = attempts
                .iter()
                .map(|attempt| attempt.settlement(draft::finish("1")))
                .collect();
            if index % 2 == 1 {
                settlements.reverse();
            }
            let bench = bench.clone();
            tokio::spawn(async move { bench.settle_all(&settlements).await })
        })
        .collect();
    let mut unblocked = 0;
    for task in tasks {
        for settled in task.await.expect("no call fails") {
            let queuert::adapter::Settled::Applied(applied) = settled else {
                panic!("not applied: {settled:?}")
            };
            unblocked += applied.unblocked.len();
        }
    }
    assert_eq!(unblocked, 4);
    assert_eq!(bench.claim_as("worker", &[("dependant", LONG)], 10).await.jobs.len(), 4);
}

/// Every verb that changes a job waits for the lock of its chain.
pub async fn every_change_waits_for_the_lock_of_its_chain<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let running = bench.start("running").await;
    let attempt = bench.attempt("running").await;
    let mut holder = bench.begin().await;
    holder.lock(running).await.expect("the chain is there");
    let mut settling = pin!(bench.finish(&attempt));
    bench.overlap_waiting(holder, End::Rollback, settling.as_mut()).await;

    let later = bench.start_as(draft("later").after(LONG)).await;
    let job = [later.first_job()];
    let mut holder = bench.begin().await;
    holder.lock(later).await.expect("the chain is there");
    let mut triggering = pin!(bench.trigger(&job));
    let triggered = bench.overlap_waiting(holder, End::Commit, triggering.as_mut()).await;
    assert_eq!(triggered.expect("pending").len(), 1);

    let dead = [bench.start_dead("dead").await];
    let mut holder = bench.begin().await;
    holder.lock(dead[0]).await.expect("the chain is there");
    let mut retrying = pin!(bench.retry(&dead));
    let retried = bench.overlap_waiting(holder, End::Commit, retrying.as_mut()).await;
    assert_eq!(retried.expect("dead")[0].status, JobStatus::Pending);
}

/// A trigger that waited for a claim's transaction or another change is judged by what it finds then. (H6)
pub async fn who_waited_is_judged_by_what_it_finds<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = [bench.start_as(draft("mail").after(LONG)).await];
    let job = [chain[0].first_job()];
    let mut holder = bench.begin().await;
    holder.cancel(&chain).await.expect("open");
    let mut triggering = pin!(bench.trigger(&job));
    let refused = bench.overlap_waiting(holder, End::Commit, triggering.as_mut()).await;
    use queuert::adapter::Refusal;
    assert_eq!(refused, Err(Refusal::NotPending(job[0], JobStatus::Cancelled)));

    let mut holder = bench.begin().await;
    holder.retry(&chain).await.expect("cancelled");
    let mut retrying = pin!(bench.retry(&chain));
    let refused = bench.overlap_waiting(holder, End::Commit, retrying.as_mut()).await;
    assert_eq!(refused, Err(Refusal::NotRetryable(chain[0], JobStatus::Pending)));

    let mut holder = bench.begin().await;
    holder.complete_outside(chain[0], "1").await;
    let mut cancelling = pin!(bench.cancel(&chain));
    let refused = bench.overlap_waiting(holder, End::Commit, cancelling.as_mut()).await;
    assert_eq!(
        refused.expect_err("completed"),
        Refusal::NotOpen(chain[0], JobStatus::Completed)
    );
}
