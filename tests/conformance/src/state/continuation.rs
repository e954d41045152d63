//! Continuing a chain.

use queuert::adapter::{JobSort, Order, Refusal, Repeated, Settled};
use queuert::{JobRecord, JobStatus};

use crate::bench::{Bench, LONG, SHORT};
use crate::draft::{self, draft};
use crate::fixture::StateFixture;
use crate::identity;

async fn jobs_of<F: StateFixture>(bench: &Bench<F>, chain: queuert::ChainId) -> Vec<JobRecord> {
    let mut query = super::list_jobs::query();
    query.chains = Some(vec![chain]);
    (query.sort, query.order) = (JobSort::ChainIndex, Order::OldestFirst);
    bench.list_jobs(&query).await
}

/// A continuation is the next job of the same chain; the job before it is completed without output. (S2, S33)
pub async fn a_continuation_is_the_next_job_of_its_chain<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start_as(draft("first").input("1").trace("start")).await;
    let attempt = bench.attempt("first").await;
    let next = draft("second").input("2").priority(9).max_attempts(4).trace("step");
    let id = next.id();
    let applied = bench.apply(&attempt, next.next()).await;
    assert_eq!(
        (applied.next, applied.unblocked, applied.interrupted),
        (Some(JobStatus::Pending), Vec::new(), false)
    );

    let previous = bench.job(attempt.id()).await;
    assert_eq!(
        (previous.status, previous.output, previous.lease),
        (JobStatus::Completed, None, None)
    );
    assert_eq!(previous.completed_by, Some(attempt.worker));
    assert!(previous.ended_at.is_some());

    let job = bench.job(id).await;
    assert_eq!((job.chain_id, job.chain_index), (chain, 1));
    assert_eq!((job.type_name.as_str(), job.chain_type.as_str()), ("second", "first"));
    assert_eq!((job.input.as_str(), job.trace_context.as_deref()), ("2", Some("step")));
    assert_eq!(
        (job.status, job.priority, job.max_attempts),
        (JobStatus::Pending, 9, Some(4))
    );
    assert_eq!((job.attempt, job.claims, job.deduplication_key), (0, 0, None));

    let record = bench.chain(chain).await;
    assert_eq!(
        (record.status, record.output, record.ended_at),
        (JobStatus::Pending, None, None)
    );
    assert_eq!(
        (record.latest_job, record.latest_type.as_str(), record.length),
        (id, "second", 2)
    );
    assert_eq!((record.type_name.as_str(), record.input.as_str()), ("first", "1"));
    assert_eq!(record.trace_context.as_deref(), Some("start"));
    assert_eq!(record.created_at, previous.created_at);
}

/// Indexes go up by one along a chain, also in one that repeats a type. (S10)
pub async fn indexes_go_up_by_one<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("loop").await;
    for _ in 0..3 {
        bench.continue_with(&bench.attempt("loop").await, "loop").await;
    }
    bench.apply(&bench.attempt("loop").await, draft::finish("7")).await;
    let jobs = jobs_of(&bench, chain).await;
    assert_eq!(jobs.iter().map(|job| job.chain_index).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(jobs.iter().all(|job| job.status == JobStatus::Completed));
    let outputs: Vec<_> = jobs.iter().map(|job| job.output.is_some()).collect();
    assert_eq!(outputs, [false, false, false, true], "only the last job has the output");
    let chain = bench.chain(chain).await;
    assert_eq!((chain.length, chain.output.expect("completed").as_str()), (4, "7"));
}

/// A chain has one successor per job: a second continuation under the same fence is repeated and its job is not
/// created. (S8, S19, I5)
pub async fn a_job_has_one_successor<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let attempt = bench.attempt("first").await;
    let id = bench.continue_with(&attempt, "second").await;
    let other = draft("second").input("other");
    let other_id = other.id();
    assert_eq!(
        bench.settle(&attempt, other.next()).await,
        Settled::Repeated(Repeated::new(JobStatus::Completed))
    );
    assert!(bench.jobs(&[other_id]).await.is_empty());
    let jobs = jobs_of(&bench, chain).await;
    assert_eq!(
        jobs.iter().map(|job| job.id).collect::<Vec<_>>(),
        [chain.first_job(), id]
    );
}

/// Of many settlements at the same moment under one fence exactly one is applied. (S9, I5)
pub async fn of_many_continuations_at_once_one_is_applied<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let attempt = bench.attempt("first").await;
    let settling: Vec<_> = (0..8)
        .map(|_| {
            let (bench, attempt) = (bench.clone(), attempt.clone());
            tokio::spawn(async move { bench.settle(&attempt, draft("second").next()).await })
        })
        .collect();
    let (mut applied, mut repeated) = (0, 0);
    for settled in settling {
        match settled.await.expect("no settlement fails") {
            Settled::Applied(_) => applied += 1,
            Settled::Repeated(again) if again.status == JobStatus::Completed => repeated += 1,
            other => panic!("neither applied nor repeated: {other:?}"),
        }
    }
    assert_eq!((applied, repeated), (1, 7));
    assert_eq!(jobs_of(&bench, chain).await.len(), 2);
}

/// A continuation may be scheduled, and is claimed when it is due.
pub async fn a_continuation_may_be_due_later<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("first").await;
    let next = draft("second").after(SHORT);
    let id = next.id();
    bench.apply(&bench.attempt("first").await, next.next()).await;
    let job = bench.job(id).await;
    assert!(job.scheduled_at >= job.created_at.saturating_add(SHORT));
    bench.elapse(SHORT * 2).await;
    assert_eq!(bench.attempt("second").await.id(), id);
}

/// A continuation waits for its blockers.
pub async fn a_continuation_may_be_blocked<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let chain = bench.start("first").await;
    let next = draft("second").blocked_by(&[blocker]);
    let id = next.id();
    let applied = bench.apply(&bench.attempt("first").await, next.next()).await;
    assert_eq!(applied.next, Some(JobStatus::Blocked));
    assert_eq!(bench.status(chain).await, JobStatus::Blocked);
    let applied = bench.finish(&bench.attempt("blocker").await).await;
    assert_eq!(
        applied
            .unblocked
            .iter()
            .map(|unblocked| unblocked.job)
            .collect::<Vec<_>>(),
        [id]
    );
    assert_eq!(applied.unblocked[0].chain, chain);
    assert_eq!(bench.attempt("second").await.id(), id);
}

/// A continuation whose blockers have all completed is pending.
pub async fn a_continuation_with_completed_blockers_is_pending<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start_completed("blocker", "1").await;
    bench.start("first").await;
    let next = draft("second").blocked_by(&[blocker]);
    let applied = bench.apply(&bench.attempt("first").await, next.next()).await;
    assert_eq!(applied.next, Some(JobStatus::Pending));
    assert_eq!(bench.attempt("second").await.blockers.len(), 1);
}

/// A continuation whose id exists is refused; the attempt still holds its job and may end otherwise. (H21)
pub async fn a_continuation_whose_id_exists_is_refused<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let taken = bench.start_as(draft("other").input("mine")).await.first_job();
    bench.start("first").await;
    let attempt = bench.attempt("first").await;
    let settled = bench.settle(&attempt, draft("second").with_id(taken).next()).await;
    assert_eq!(settled, Settled::Refused(Refusal::IdTaken(taken)));
    assert_eq!(bench.job(attempt.id()).await, attempt.job);
    assert_eq!(bench.job(taken).await.input.as_str(), "mine");
    bench.finish(&attempt).await;
}

/// A continuation that would wait for a chain that does not exist is refused.
pub async fn a_continuation_with_an_unknown_blocker_is_refused<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let attempt = bench.attempt("first").await;
    let unknown = identity::chain_id();
    let next = draft("second").blocked_by(&[unknown]);
    let job = next.id();
    let settled = bench.settle(&attempt, next.next()).await;
    assert_eq!(
        settled,
        Settled::Refused(Refusal::BlockerNotFound { job, chain: unknown })
    );
    assert!(bench.jobs(&[job]).await.is_empty());
    assert_eq!(bench.chain(chain).await.length, 1);
    bench.finish(&attempt).await;
}

/// A refused continuation leaves its transaction usable.
pub async fn a_refused_continuation_leaves_the_transaction_usable<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("first").await;
    let attempt = bench.attempt("first").await;
    let mut open = bench.begin().await;
    let side = open.start("side").await;
    let settled = open
        .settle(&attempt, draft("second").with_id(side.first_job()).next())
        .await;
    assert_eq!(settled, Settled::Refused(Refusal::IdTaken(side.first_job())));
    open.finish(&attempt).await;
    open.commit().await;
    assert!(bench.exists(side).await);
    assert_eq!(bench.status(attempt.chain()).await, JobStatus::Completed);
}

/// The error of the job before it stays with nobody: the chain shows that of its latest job.
pub async fn a_chain_shows_the_error_of_its_latest_job<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    bench
        .apply(
            &bench.attempt("first").await,
            draft::retry(queuert::Schedule::Now, "one"),
        )
        .await;
    assert_eq!(bench.chain(chain).await.last_error.expect("failed").message, "one");
    bench.continue_with(&bench.attempt("first").await, "second").await;
    assert_eq!(bench.chain(chain).await.last_error, None);
    let delay = queuert::Schedule::After(LONG);
    bench
        .apply(&bench.attempt("second").await, draft::retry(delay, "two"))
        .await;
    assert_eq!(bench.chain(chain).await.last_error.expect("failed").message, "two");
}
