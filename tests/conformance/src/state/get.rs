//! Reading by id.

use queuert::JobStatus;

use crate::bench::Bench;
use crate::fixture::StateFixture;
use crate::identity;

/// Jobs come in the order of the request; those that do not exist are left out. (S89)
pub async fn jobs_come_in_the_order_of_the_request<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = bench.start_at_once("mail", 3).await;
    let request = [chains[2], identity::chain_id(), chains[0], chains[1]].map(|chain| chain.first_job());
    let jobs = bench.jobs(&request).await;
    assert_eq!(
        jobs.iter().map(|job| job.id).collect::<Vec<_>>(),
        [request[0], request[2], request[3]]
    );
    assert!(bench.jobs(&[]).await.is_empty());
}

/// Chains come in the order of the request; those that do not exist are left out. (S36)
pub async fn chains_come_in_the_order_of_the_request<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = bench.start_at_once("mail", 3).await;
    let request = [chains[1], identity::chain_id(), chains[2], chains[0]];
    let records = bench.chains(&request).await;
    let expected = [chains[1], chains[2], chains[0]];
    assert_eq!(records.iter().map(|chain| chain.id).collect::<Vec<_>>(), expected);
    assert!(bench.chains(&[]).await.is_empty());
}

/// The id of a later job is not a chain's id.
pub async fn a_later_job_is_no_chain<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("first").await;
    let next = bench.continue_with(&bench.attempt("first").await, "second").await;
    assert!(bench.chains(&[next.as_chain()]).await.is_empty());
    assert_eq!(bench.job(next).await.chain_index, 1);
}

/// A chain has the status of its latest job at every step of its life. (S102)
pub async fn a_chain_has_the_status_of_its_latest_job<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let chain = bench.start_blocked("first", &[blocker]).await;
    assert_eq!(bench.status(chain).await, JobStatus::Blocked);
    bench.finish(&bench.attempt("blocker").await).await;
    assert_eq!(bench.status(chain).await, JobStatus::Pending);
    let attempt = bench.attempt("first").await;
    assert_eq!(bench.status(chain).await, JobStatus::Running);
    bench.continue_with(&attempt, "second").await;
    assert_eq!(bench.status(chain).await, JobStatus::Pending);
    let attempt = bench.attempt("second").await;
    assert_eq!(bench.status(chain).await, JobStatus::Running);
    bench.finish(&attempt).await;
    assert_eq!(bench.status(chain).await, JobStatus::Completed);
}

/// A transaction reads what it wrote.
pub async fn a_transaction_reads_what_it_wrote<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let attempt = bench.attempt("blocker").await;
    let mut open = bench.begin().await;
    let chain = open.start_blocked("mail", &[blocker]).await;
    assert_eq!(open.status(chain).await, JobStatus::Blocked);
    assert_eq!(open.blockers(chain.first_job()).await[0].id, blocker);
    assert_eq!(open.list_chains(&super::list_chains::query()).await.len(), 2);
    assert_eq!(open.list_jobs(&super::list_jobs::query()).await.len(), 2);
    assert_eq!(open.finish(&attempt).await.unblocked.len(), 1);
    assert_eq!(open.status(chain).await, JobStatus::Pending);
    assert_eq!(open.status(blocker).await, JobStatus::Completed);
    open.commit().await;
    assert_eq!(bench.status(chain).await, JobStatus::Pending);
}
