//! Deleting chains.

use queuert::adapter::{Refusal, Settled, StoppedChain};
use queuert::{AbortReason, BlockerReference, ChainId, JobStatus};

use crate::bench::Bench;
use crate::draft::{self, draft};
use crate::fixture::StateFixture;
use crate::identity;

fn ids(mut deleted: Vec<StoppedChain>) -> Vec<ChainId> {
    deleted.sort_by_key(|stopped| stopped.chain.id);
    deleted.iter().map(|stopped| stopped.chain.id).collect()
}

/// A deleted chain is gone with all its jobs; the answer shows it as it was. (S81)
pub async fn a_deleted_chain_is_gone_with_all_its_jobs<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let next = bench.continue_with(&bench.attempt("first").await, "second").await;
    let before = bench.chain(chain).await;
    let deleted = bench.delete(&[chain]).await.expect("nothing depends on it");
    assert_eq!(deleted.len(), 1);
    assert_eq!((&deleted[0].chain, deleted[0].interrupted), (&before, None));
    assert!(!bench.exists(chain).await);
    assert!(bench.jobs(&[chain.first_job(), next]).await.is_empty());
    assert!(bench.list_jobs(&super::list_jobs::query()).await.is_empty());
    assert!(bench.claim(&["first", "second"], 5).await.jobs.is_empty());
}

/// Another chain is untouched. (S82, S88)
pub async fn other_chains_are_untouched<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let (chain, other) = (bench.start("mail").await, bench.start("mail").await);
    let before = bench.job(other.first_job()).await;
    assert_eq!(
        ids(bench.delete_cascade(&[chain]).await.expect("nothing depends on it")),
        [chain]
    );
    assert_eq!(bench.job(other.first_job()).await, before);
}

/// Ids that do not exist are skipped, and so is the id of a later job.
pub async fn missing_chains_are_skipped<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let next = bench.continue_with(&bench.attempt("first").await, "second").await;
    assert!(
        bench
            .delete(&[next.as_chain(), identity::chain_id()])
            .await
            .expect("skipped")
            .is_empty()
    );
    assert!(bench.exists(chain).await && bench.jobs(&[next]).await.len() == 1);
    let deleted = bench
        .delete(&[identity::chain_id(), chain, chain])
        .await
        .expect("nothing depends on it");
    assert_eq!(ids(deleted), [chain]);
    assert!(bench.delete(&[]).await.expect("nothing to refuse").is_empty());
}

/// A chain in any status can be deleted; a running attempt is to be told, and is lost as not found.
pub async fn a_chain_in_any_status_can_be_deleted<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let completed = bench.start_completed("other", "1").await;
    let dead = bench.start_dead("other").await;
    let cancelled = bench.start("other").await;
    bench.cancel(&[cancelled]).await.expect("the chain is open");
    let running = bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let chains = [completed, dead, cancelled, running];
    let deleted = bench.delete(&chains).await.expect("nothing depends on them");
    let interrupted: Vec<_> = deleted.iter().filter_map(|stopped| stopped.interrupted).collect();
    assert_eq!(interrupted, [attempt.id()]);
    assert_eq!(ids(deleted).len(), 4);
    assert!(bench.chains(&chains).await.is_empty());
    assert_eq!(
        bench.settle(&attempt, draft::finish("1")).await,
        Settled::Lost(AbortReason::NotFound)
    );
}

/// A deleted chain gives its id and its key back.
pub async fn a_deleted_chain_gives_its_id_and_key_back<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start_as(draft("mail").deduplicate("key")).await;
    bench.delete(&[chain]).await.expect("nothing depends on it");
    let again = draft("mail").with_id(chain.first_job()).input("2").deduplicate("key");
    assert_eq!(bench.start_as(again).await, chain);
    assert_eq!(bench.chain(chain).await.input.as_str(), "2");
}

/// A chain that a job waits for cannot be deleted, and the job is named; both together can. (S83)
pub async fn a_chain_that_a_job_waits_for_cannot_be_deleted<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let dependant = bench.start_blocked("dependant", &[blocker]).await;
    let other = bench.start("other").await;
    let refused = bench.delete(&[other, blocker]).await.expect_err("a job waits for it");
    let reference = BlockerReference {
        chain: blocker,
        job: dependant.first_job(),
    };
    assert_eq!(refused, Refusal::Referenced(vec![reference]));
    assert!(
        bench.exists(blocker).await && bench.exists(other).await,
        "nothing was deleted"
    );
    let deleted = bench.delete(&[blocker, dependant]).await.expect("both together");
    assert_eq!(ids(deleted), [blocker, dependant]);
}

/// A job that is not completed may have to read its blocker again, also when the blocker has completed: pending,
/// running, dead and cancelled jobs keep it.
pub async fn every_job_that_is_not_completed_keeps_its_blockers<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let dependant = bench.start_blocked("dependant", &[blocker]).await;
    bench.finish(&bench.attempt("blocker").await).await;
    assert!(bench.delete(&[blocker]).await.is_err(), "pending");
    let attempt = bench.attempt("dependant").await;
    assert!(bench.delete(&[blocker]).await.is_err(), "running");
    bench.apply(&attempt, draft::bury("fatal")).await;
    assert!(bench.delete(&[blocker]).await.is_err(), "dead");
    bench.retry(&[dependant]).await.expect("the chain is dead");
    bench.cancel(&[dependant]).await.expect("the chain is open");
    assert!(bench.delete(&[blocker]).await.is_err(), "cancelled");
    assert!(bench.exists(blocker).await);
    bench.retry(&[dependant]).await.expect("the chain was cancelled");
    bench.finish(&bench.attempt("dependant").await).await;
    assert_eq!(ids(bench.delete(&[blocker]).await.expect("completed")), [blocker]);
    assert!(
        bench.blockers(dependant.first_job()).await.is_empty(),
        "deleted blockers are left out"
    );
}

/// What counts is the job that had the blocker, not its chain: once it is completed the blocker may go.
pub async fn a_completed_job_of_an_open_chain_keeps_nothing<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start_completed("blocker", "1").await;
    let dependant = bench.start_blocked("dependant", &[blocker]).await;
    bench.continue_with(&bench.attempt("dependant").await, "second").await;
    assert_eq!(
        ids(bench.delete(&[blocker]).await.expect("the job is completed")),
        [blocker]
    );
    assert_eq!(bench.status(dependant).await, JobStatus::Pending);
}

/// A continuation keeps its blockers like any other job. (H17)
pub async fn a_continuation_keeps_its_blockers<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    bench.start("first").await;
    let next = draft("second").blocked_by(&[blocker]);
    let job = next.id();
    bench.apply(&bench.attempt("first").await, next.next()).await;
    let refused = bench.delete(&[blocker]).await.expect_err("a job waits for it");
    assert_eq!(
        refused,
        Refusal::Referenced(vec![BlockerReference { chain: blocker, job }])
    );
}

/// Every job that keeps a chain is named.
pub async fn every_reference_is_named<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let (left, right) = (bench.start("blocker").await, bench.start("blocker").await);
    let one = bench.start_blocked("dependant", &[left, right]).await.first_job();
    let two = bench.start_blocked("dependant", &[right]).await.first_job();
    let Err(Refusal::Referenced(mut references)) = bench.delete(&[left, right]).await else {
        panic!("not refused")
    };
    references.sort_by_key(|reference| (reference.chain, reference.job));
    let expected = [(left, one), (right, one), (right, two)].map(|(chain, job)| BlockerReference { chain, job });
    assert_eq!(references, expected);
}

/// A cascade takes the blockers too, and theirs. (S84, S86)
pub async fn a_cascade_takes_the_blockers_too<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let lowest = bench.start("mail").await;
    let middle = bench.start_blocked("mail", &[lowest]).await;
    let highest = bench.start_blocked("mail", &[middle]).await;
    let deleted = bench
        .delete_cascade(&[highest])
        .await
        .expect("nothing else depends on them");
    assert_eq!(ids(deleted), [lowest, middle, highest]);
    assert!(bench.list_chains(&super::list_chains::query()).await.is_empty());
}

/// A cascade never goes upwards: from a blocker it is refused. (S85)
pub async fn a_cascade_never_goes_upwards<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let job = bench.start_blocked("dependant", &[blocker]).await.first_job();
    let refused = bench.delete_cascade(&[blocker]).await.expect_err("a job waits for it");
    assert_eq!(
        refused,
        Refusal::Referenced(vec![BlockerReference { chain: blocker, job }])
    );
    assert!(bench.exists(blocker).await);
}

/// A cascade over a diamond takes each chain once. (S87)
pub async fn a_cascade_over_a_diamond_takes_each_chain_once<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let bottom = bench.start("mail").await;
    let left = bench.start_blocked("mail", &[bottom]).await;
    let right = bench.start_blocked("mail", &[bottom]).await;
    let top = bench.start_blocked("mail", &[left, right]).await;
    let deleted = bench
        .delete_cascade(&[top])
        .await
        .expect("nothing else depends on them");
    assert_eq!(ids(deleted), [bottom, left, right, top]);
}

/// A cascade follows the blockers of all jobs of a chain, not only of the first. (H17)
pub async fn a_cascade_follows_the_blockers_of_continuations<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let early = bench.start_completed("early", "1").await;
    let late = bench.start("late").await;
    let chain = bench.start_blocked("first", &[early]).await;
    let next = draft("second").blocked_by(&[late]);
    bench.apply(&bench.attempt("first").await, next.next()).await;
    let deleted = bench
        .delete_cascade(&[chain])
        .await
        .expect("nothing else depends on them");
    assert_eq!(ids(deleted), [early, late, chain]);
}

/// A cascade is refused as a whole when a job elsewhere keeps one of the blockers.
pub async fn a_cascade_is_refused_when_others_need_a_blocker<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let shared = bench.start("blocker").await;
    let chain = bench.start_blocked("dependant", &[shared]).await;
    let other = bench.start_blocked("dependant", &[shared]).await;
    let refused = bench
        .delete_cascade(&[chain])
        .await
        .expect_err("another job waits for it");
    let reference = BlockerReference {
        chain: shared,
        job: other.first_job(),
    };
    assert_eq!(refused, Refusal::Referenced(vec![reference]));
    assert_eq!(bench.chains(&[shared, chain, other]).await.len(), 3);
}

/// A deletion in a transaction that rolls back never was: the job can be claimed. (S28)
pub async fn a_rolled_back_deletion_never_was<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start_completed("blocker", "1").await;
    let chain = bench
        .start_as(draft("mail").blocked_by(&[blocker]).deduplicate("key"))
        .await;
    let before = (bench.job(chain.first_job()).await, bench.chain(chain).await);
    let mut open = bench.begin().await;
    assert_eq!(
        open.delete(&[chain, blocker])
            .await
            .expect("nothing else depends on them")
            .len(),
        2
    );
    assert!(!open.exists(chain).await);
    open.rollback().await;
    assert_eq!((bench.job(chain.first_job()).await, bench.chain(chain).await), before);
    assert!(
        bench
            .create_one(draft("mail").deduplicate("key"))
            .await
            .expect("no refusal")
            .deduplicated
    );
    assert_eq!(bench.attempt("mail").await.blockers.len(), 1);
}

/// A chain that is started under the id of a deleted one is another chain: nobody ever waited for it.
pub async fn a_chain_under_a_reused_id_is_another_chain<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start_completed("blocker", "1").await;
    let dependant = bench.start_blocked("dependant", &[blocker]).await.first_job();
    bench.finish(&bench.attempt("dependant").await).await;
    bench.delete(&[blocker]).await.expect("the dependant is completed");
    bench.start_as(draft("blocker").with_id(blocker.first_job())).await;
    assert!(bench.blockers(dependant).await.is_empty());
    let mut query = super::list_jobs::query();
    query.blocked_by = Some(blocker);
    assert!(bench.list_jobs(&query).await.is_empty());
    assert_eq!(
        bench.finish(&bench.attempt("blocker").await).await.unblocked,
        Vec::new()
    );
}
