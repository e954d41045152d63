//! What a settlement did whose answer was lost: asked again under the same fence, the store says it, so that it can be
//! announced.

use std::collections::BTreeSet;

use queuert::JobId;
use queuert::adapter::{Repeated, Settled, UnblockedJob};

use crate::bench::{Attempt, Bench};
use crate::draft::{self, draft};
use crate::fixture::StateFixture;

fn repeated(settled: Settled) -> Repeated {
    match settled {
        Settled::Repeated(repeated) => repeated,
        other => panic!("not repeated: {other:?}"),
    }
}

/// Asks again, with the same end and with the failure that a worker writes when it does not know of the end.
async fn again<F: StateFixture>(bench: &Bench<F>, attempt: &Attempt) -> Repeated {
    let same = repeated(bench.settle(attempt, draft::finish("1")).await);
    let other = repeated(bench.settle(attempt, draft::bury("no answer")).await);
    assert_eq!(same, other);
    same
}

fn jobs(repeated: &Repeated) -> Vec<JobId> {
    repeated.unblocked.iter().map(|unblocked| unblocked.job).collect()
}

/// A repeated end names the jobs that it made pending, and not those that others made pending, whatever became of them
/// since. (I2)
pub async fn a_repeated_end_names_the_jobs_that_it_unblocked<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let (left, right) = (bench.start("left").await, bench.start("right").await);
    let both = bench.start_blocked("both", &[left, right]).await;
    let twice = bench.start_blocked("twice", &[left, left]).await;
    let once = bench.start_blocked("once", &[left]).await;
    let (left, right) = (bench.attempt("left").await, bench.attempt("right").await);
    let by_left = sorted(bench.finish(&left).await.unblocked);
    let by_right = sorted(bench.finish(&right).await.unblocked);
    let named: BTreeSet<JobId> = by_left.iter().map(|unblocked| unblocked.job).collect();
    assert_eq!(named, BTreeSet::from([twice.first_job(), once.first_job()]));
    for phase in ["pending", "running", "completed"] {
        assert_eq!(
            sorted(again(&bench, &left).await.unblocked),
            by_left,
            "while they are {phase}"
        );
        assert_eq!(
            sorted(again(&bench, &right).await.unblocked),
            by_right,
            "while it is {phase}"
        );
        match phase {
            "pending" => assert_eq!(bench.claim_ids(&["both", "twice", "once"], 5).await.len(), 3),
            "running" => {
                for chain in [both, twice, once] {
                    bench.complete_outside(chain, "1").await;
                }
            }
            _ => {}
        }
    }
}

fn sorted(mut unblocked: Vec<UnblockedJob>) -> Vec<UnblockedJob> {
    unblocked.sort_by_key(|unblocked| unblocked.job);
    unblocked
}

/// Ends of one batch that unblocked a job together name it once, and the same one does each time. (I2, I6)
pub async fn ends_of_one_batch_name_each_job_once<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut blockers = Vec::new();
    for _ in 0..3 {
        blockers.push(bench.start("blocker").await);
    }
    let dependant = bench.start_blocked("dependant", &blockers).await;
    let attempts = [
        bench.attempt("blocker").await,
        bench.attempt("blocker").await,
        bench.attempt("blocker").await,
    ];
    let ends: Vec<_> = attempts
        .iter()
        .map(|attempt| attempt.settlement(draft::finish("1")))
        .collect();
    let unblocked = |settled: &Settled| match settled {
        Settled::Applied(applied) => applied.unblocked.clone(),
        Settled::Repeated(repeated) => repeated.unblocked.clone(),
        other => panic!("neither applied nor repeated: {other:?}"),
    };
    let first: Vec<_> = bench.settle_all(&ends).await.iter().map(unblocked).collect();
    let second: Vec<_> = bench.settle_all(&ends).await.iter().map(unblocked).collect();
    assert_eq!(first, second);
    let named: Vec<_> = first.into_iter().flatten().map(|unblocked| unblocked.job).collect();
    assert_eq!(named, [dependant.first_job()]);
}

/// An end after which a job still waited for others names nothing once they have ended too. (I2)
pub async fn the_end_that_others_overtook_names_nothing<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let (left, right) = (bench.start("left").await, bench.start("right").await);
    let dependant = bench.start_blocked("dependant", &[left, right]).await;
    let attempt = bench.attempt("left").await;
    assert_eq!(bench.finish(&attempt).await.unblocked, []);
    assert_eq!(jobs(&again(&bench, &attempt).await), []);
    let applied = bench.complete_outside(right, "1").await;
    assert_eq!(applied.unblocked.len(), 1);
    assert_eq!(jobs(&again(&bench, &attempt).await), []);
    assert!(bench.status(dependant).await.is_open());
}

/// A job that was cancelled before the end, and is pending again since, was not unblocked by it. (I2)
pub async fn a_job_that_was_not_unblocked_is_not_named<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let dependant = bench.start_blocked("dependant", &[blocker]).await;
    let attempt = bench.attempt("blocker").await;
    bench.cancel(&[dependant]).await.expect("it is open");
    assert_eq!(bench.finish(&attempt).await.unblocked, []);
    assert_eq!(jobs(&again(&bench, &attempt).await), []);
    bench.retry(&[dependant]).await.expect("it was cancelled");
    assert_eq!(jobs(&again(&bench, &attempt).await), []);
}

/// A job that was deleted since is left out. (I2)
pub async fn a_job_that_was_deleted_is_not_named<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let (gone, kept) = (
        bench.start_blocked("gone", &[blocker]).await,
        bench.start_blocked("kept", &[blocker]).await,
    );
    let attempt = bench.attempt("blocker").await;
    assert_eq!(bench.finish(&attempt).await.unblocked.len(), 2);
    bench.delete(&[gone]).await.expect("nothing depends on it");
    assert_eq!(jobs(&again(&bench, &attempt).await), [kept.first_job()]);
}

/// A repeated continuation says whether its job was created blocked, also after it was unblocked. (I2)
pub async fn a_repeated_continuation_says_whether_its_job_was_blocked<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let (open, ended) = (bench.start("open").await, bench.start_completed("ended", "1").await);
    let cases = [(vec![], false), (vec![ended], false), (vec![ended, open], true)];
    let mut attempts = Vec::new();
    for (blockers, blocked) in cases {
        bench.start("first").await;
        let attempt = bench.attempt("first").await;
        bench
            .apply(&attempt, draft("second").blocked_by(&blockers).next())
            .await;
        attempts.push((attempt, blocked));
    }
    for phase in ["before", "after", "later"] {
        for (attempt, blocked) in &attempts {
            let told = again(&bench, attempt).await;
            assert_eq!(told.next_blocked, *blocked, "{phase} the blocker has ended");
            assert_eq!(told.unblocked, []);
        }
        match phase {
            "before" => assert_eq!(bench.complete_outside(open, "1").await.unblocked.len(), 1),
            "after" => assert_eq!(bench.claim_ids(&["second"], 5).await.len(), 3),
            _ => {}
        }
    }
}

/// The same is said in a transaction. (I2)
pub async fn a_repetition_in_a_transaction_says_the_same<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let dependant = bench.start_blocked("dependant", &[blocker]).await;
    let attempt = bench.attempt("blocker").await;
    let mut open = bench.begin().await;
    assert_eq!(open.finish(&attempt).await.unblocked.len(), 1);
    open.commit().await;
    let mut open = bench.begin().await;
    let told = repeated(open.settle(&attempt, draft::finish("1")).await);
    open.commit().await;
    assert_eq!(jobs(&told), [dependant.first_job()]);
}
