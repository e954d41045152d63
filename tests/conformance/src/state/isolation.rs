//! Readers outside a transaction never see uncommitted changes, and never wait for them.

use queuert::JobStatus;

use crate::bench::{Bench, LONG};
use crate::draft::draft;
use crate::fixture::StateFixture;

/// An uncommitted chain is invisible to every read. (S133, S135, S138, S142)
pub async fn an_uncommitted_chain_is_invisible<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut open = bench.begin().await;
    let chain = open.start("mail").await;
    assert!(open.exists(chain).await);
    assert!(bench.jobs(&[chain.first_job()]).await.is_empty());
    assert!(bench.chains(&[chain]).await.is_empty());
    assert!(bench.list_jobs(&super::list_jobs::query()).await.is_empty());
    assert!(bench.list_chains(&super::list_chains::query()).await.is_empty());
    open.commit().await;
    assert!(bench.exists(chain).await);
}

/// An uncommitted chain cannot be claimed, and is not due. (S139)
pub async fn an_uncommitted_chain_cannot_be_claimed<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !bench.has_concurrent_writers() {
        return;
    }
    let mut open = bench.begin().await;
    open.start("mail").await;
    open.start_as(draft("mail").after(LONG)).await;
    let claimed = bench.claim(&["mail"], 5).await;
    assert!(claimed.jobs.is_empty());
    assert_eq!(claimed.next_due, None);
    open.rollback().await;
}

/// An uncommitted end is invisible: the job still runs, its chain has no output. (S134, S140)
pub async fn an_uncommitted_end_is_invisible<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let before = bench.chain(attempt.chain()).await;
    let mut open = bench.begin().await;
    open.finish(&attempt).await;
    assert_eq!(bench.job(attempt.id()).await, attempt.job);
    assert_eq!(bench.chain(attempt.chain()).await, before);
    let mut query = super::list_chains::query();
    query.statuses = Some(vec![JobStatus::Completed]);
    assert!(bench.list_chains(&query).await.is_empty());
    open.rollback().await;
    assert_eq!(bench.job(attempt.id()).await, attempt.job);
}

/// An uncommitted continuation is invisible, in its chain and by itself. (S141, S143)
pub async fn an_uncommitted_continuation_is_invisible<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let attempt = bench.attempt("first").await;
    let mut open = bench.begin().await;
    let next = open.continue_with(&attempt, "second").await;
    assert!(bench.jobs(&[next]).await.is_empty());
    let record = bench.chain(chain).await;
    assert_eq!((record.latest_job, record.length), (chain.first_job(), 1));
    let mut query = super::list_jobs::query();
    query.chains = Some(vec![chain]);
    assert_eq!(bench.list_jobs(&query).await.len(), 1);
    let mut query = super::list_chains::query();
    query.jobs = Some(vec![next]);
    assert!(bench.list_chains(&query).await.is_empty());
    open.rollback().await;
}

/// An uncommitted dependant is invisible to who asks for the dependants of a chain. (S136, S144)
pub async fn an_uncommitted_dependant_is_invisible<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let mut open = bench.begin().await;
    let dependant = open.start_blocked("mail", &[blocker]).await;
    assert!(bench.blockers(dependant.first_job()).await.is_empty());
    let mut query = super::list_jobs::query();
    query.blocked_by = Some(blocker);
    assert!(bench.list_jobs(&query).await.is_empty());
    let mut query = super::list_chains::query();
    query.roots_only = true;
    assert_eq!(bench.list_chains(&query).await.len(), 1, "the blocker is still a root");
    assert_eq!(open.blockers(dependant.first_job()).await.len(), 1);
    open.rollback().await;
}

/// An uncommitted release is invisible: the dependant is still blocked.
pub async fn an_uncommitted_release_is_invisible<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let dependant = bench.start_blocked("mail", &[blocker]).await;
    let attempt = bench.attempt("blocker").await;
    let mut open = bench.begin().await;
    assert_eq!(open.finish(&attempt).await.unblocked.len(), 1);
    assert_eq!(bench.status(dependant).await, JobStatus::Blocked);
    open.rollback().await;
    assert_eq!(bench.status(dependant).await, JobStatus::Blocked);
}

/// A chain that is being deleted is still there for others. (S137)
pub async fn a_chain_that_is_being_deleted_is_still_there<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    let mut open = bench.begin().await;
    open.delete(&[chain]).await.expect("nothing depends on it");
    assert!(bench.exists(chain).await);
    assert_eq!(bench.list_jobs(&super::list_jobs::query()).await.len(), 1);
    open.commit().await;
    assert!(!bench.exists(chain).await);
}

/// Uncommitted cancellations, retries and triggers are invisible.
pub async fn uncommitted_orders_of_an_operator_are_invisible<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let cancelled = bench.start("mail").await;
    let dead = bench.start_dead("dead").await;
    let later = bench.start_as(draft("later").after(LONG)).await;
    let chains = [cancelled, dead, later];
    let jobs = chains.map(|chain| chain.first_job());
    let before = (bench.chains(&chains).await, bench.jobs(&jobs).await);
    let mut open = bench.begin().await;
    open.cancel(&[cancelled]).await.expect("open");
    open.retry(&[dead]).await.expect("dead");
    open.trigger(&[later.first_job()]).await.expect("pending");
    assert_eq!((bench.chains(&chains).await, bench.jobs(&jobs).await), before);
    open.commit().await;
    let statuses: Vec<_> = bench.chains(&chains).await.iter().map(|chain| chain.status).collect();
    assert_eq!(statuses, [JobStatus::Cancelled, JobStatus::Pending, JobStatus::Pending]);
}
