//! Both ends transactional: what is done in a transaction exists if and only if it commits.

use futures_util::FutureExt;
use queuert::adapter::{Settled, StateAdapter};
use queuert::{AbortReason, JobStatus};

use crate::bench::{Bench, LONG, has};
use crate::draft::{self, draft};
use crate::fixture::StateFixture;

/// A chain exists if and only if its transaction commits. (S26, I1)
pub async fn a_chain_exists_if_its_transaction_commits<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut open = bench.begin().await;
    let kept = open.start("mail").await;
    open.commit().await;
    let mut open = bench.begin().await;
    let lost = open.start("mail").await;
    open.rollback().await;
    assert!(bench.exists(kept).await && !bench.exists(lost).await);
    assert!(bench.jobs(&[lost.first_job()]).await.is_empty());
    assert_eq!(bench.claim_ids(&["mail"], 5).await, [kept.first_job()]);
}

/// A dropped transaction rolls back. (I1)
pub async fn a_dropped_transaction_rolls_back<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let mut open = bench.begin().await;
    let lost = open.start("mail").await;
    open.finish(&attempt).await;
    drop(open);
    // The next one proves that the locks of the dropped one are gone as well.
    let mut next = bench.begin().await;
    assert_eq!(
        next.lock(chain).await.expect("the chain is there").status,
        JobStatus::Running
    );
    next.commit().await;
    assert!(!bench.exists(lost).await);
}

/// What is done outside a transaction while one is open survives the rollback of that one. (S30)
pub async fn work_outside_survives_a_rollback<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !bench.has_concurrent_writers() {
        return;
    }
    let mut open = bench.begin().await;
    let lost = open.start("mail").await;
    let kept = bench.start("mail").await;
    open.rollback().await;
    assert!(bench.exists(kept).await && !bench.exists(lost).await);
}

/// All effects of an end are committed together: output, next job, unblocked dependants, started chains. (I1)
pub async fn all_effects_of_an_end_commit_together<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let (finished, continued) = (bench.start("finished").await, bench.start("continued").await);
    let dependant = bench.start_blocked("dependant", &[finished]).await;
    let (finishing, continuing) = (bench.attempt("finished").await, bench.attempt("continued").await);
    for commit in [false, true] {
        let mut open = bench.begin().await;
        let side = open.start_blocked("side", &[dependant]).await;
        assert_eq!(open.apply(&finishing, draft::finish("1")).await.unblocked.len(), 1);
        let next = open.continue_with(&continuing, "next").await;
        match commit {
            true => open.commit().await,
            false => open.rollback().await,
        }
        assert_eq!(bench.exists(side).await, commit);
        assert_eq!(bench.jobs(&[next]).await.len(), usize::from(commit));
        let statuses = [
            bench.status(finished).await,
            bench.status(continued).await,
            bench.status(dependant).await,
        ];
        use JobStatus::{Blocked, Completed, Pending, Running};
        let expected = if commit {
            [Completed, Pending, Pending]
        } else {
            [Running, Running, Blocked]
        };
        assert_eq!(statuses, expected);
        assert_eq!(bench.chain(finished).await.output.is_some(), commit);
    }
}

/// A blocked chain whose transaction rolls back leaves no trace with its blocker. (S29)
pub async fn a_rolled_back_dependant_leaves_no_trace<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let mut open = bench.begin().await;
    let lost = open.start_blocked("mail", &[blocker]).await;
    open.rollback().await;
    let mut query = super::list_jobs::query();
    query.blocked_by = Some(blocker);
    assert!(bench.list_jobs(&query).await.is_empty());
    assert!(bench.blockers(lost.first_job()).await.is_empty());
    assert_eq!(
        bench.finish(&bench.attempt("blocker").await).await.unblocked,
        Vec::new()
    );
    bench.delete(&[blocker]).await.expect("nothing depends on it");
}

/// Settle, start, trigger, cancel, retry and delete in one transaction that rolls back: everything is as it was. (S31)
pub async fn a_rollback_undoes_everything<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let running = bench.start("running").await;
    let attempt = bench.attempt("running").await;
    let later = bench.start_as(draft("later").after(LONG)).await;
    let open_chain = bench.start("open").await;
    let dead = bench.start_dead("dead").await;
    let gone = bench.start("gone").await;
    let all = [running, later, open_chain, dead, gone];
    let jobs = all.map(|chain| chain.first_job());
    let before = (bench.chains(&all).await, bench.jobs(&jobs).await);
    let mut open = bench.begin().await;
    open.finish(&attempt).await;
    open.trigger(&[later.first_job()]).await.expect("pending");
    open.cancel(&[open_chain]).await.expect("open");
    open.retry(&[dead]).await.expect("dead");
    open.delete(&[gone]).await.expect("nothing depends on it");
    open.start("new").await;
    open.rollback().await;
    assert_eq!((bench.chains(&all).await, bench.jobs(&jobs).await), before);
    let claimed = bench
        .claim(&["running", "later", "open", "dead", "gone", "new"], 10)
        .await;
    let mut claimed: Vec<_> = claimed.jobs.iter().map(|claimed| claimed.job.chain_id).collect();
    claimed.sort();
    assert_eq!(claimed, [open_chain, gone]);
}

/// The same in one that commits: everything is done.
pub async fn a_commit_keeps_everything<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let running = bench.start("running").await;
    let attempt = bench.attempt("running").await;
    let later = bench.start_as(draft("later").after(LONG)).await;
    let cancelled = bench.start("cancelled").await;
    let dead = bench.start_dead("dead").await;
    let gone = bench.start("gone").await;
    let mut open = bench.begin().await;
    open.finish(&attempt).await;
    open.trigger(&[later.first_job()]).await.expect("pending");
    open.cancel(&[cancelled]).await.expect("open");
    open.retry(&[dead]).await.expect("dead");
    open.delete(&[gone]).await.expect("nothing depends on it");
    let new = open.start("new").await;
    open.commit().await;
    assert_eq!(bench.status(running).await, JobStatus::Completed);
    assert_eq!(bench.status(cancelled).await, JobStatus::Cancelled);
    assert!(!bench.exists(gone).await);
    let mut claimed = bench
        .claim_ids(&["running", "later", "cancelled", "dead", "gone", "new"], 10)
        .await;
    claimed.sort();
    assert_eq!(claimed, [later.first_job(), dead.first_job(), new.first_job()]);
}

/// The user's own rows and ours commit together, or not at all. (I1)
pub async fn the_users_rows_and_ours_commit_together<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !has(
        bench.capabilities().markers,
        "the fixture cannot write rows of the user's own",
    ) {
        return;
    }
    for (marker, commit) in [("kept", true), ("lost", false)] {
        bench.start("mail").await;
        let attempt = bench.attempt("mail").await;
        let mut open = bench.begin().await;
        open.write_marker(marker).await;
        let side = open.start("side").await;
        open.finish(&attempt).await;
        match commit {
            true => open.commit().await,
            false => open.rollback().await,
        }
        let written = bench.fixture().read_marker(bench.state(), marker).await;
        let completed = bench.status(attempt.chain()).await == JobStatus::Completed;
        assert_eq!((written, completed, bench.exists(side).await), (commit, commit, commit));
    }
}

/// A transaction in which a statement failed does not pretend to have committed. (I1)
pub async fn a_poisoned_transaction_does_not_commit<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !has(bench.capabilities().poison, "the fixture cannot poison a transaction") {
        return;
    }
    bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let mut open = bench.begin().await;
    let side = open.start("side").await;
    open.finish(&attempt).await;
    open.poison().await;
    assert!(
        open.try_commit().await.is_err(),
        "a commit that did nothing is an error"
    );
    assert!(!bench.exists(side).await);
    assert_eq!(bench.job(attempt.id()).await, attempt.job);
    bench.finish(&attempt).await;
}

/// A transaction of many calls is as good as one of few, and an empty one commits and rolls back.
pub async fn transactions_may_be_empty_or_long<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.begin().await.commit().await;
    bench.begin().await.rollback().await;
    let mut open = bench.begin().await;
    let mut chains = Vec::new();
    for _ in 0..50 {
        chains.push(open.start("mail").await);
    }
    open.commit().await;
    assert_eq!(bench.chains(&chains).await.len(), 50);
}

/// A settlement that is lost within a transaction leaves the transaction usable, so that its owner decides.
pub async fn a_lost_settlement_leaves_the_transaction_usable<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    bench.cancel(&[attempt.chain()]).await.expect("the chain is open");
    let mut open = bench.begin().await;
    assert_eq!(
        open.settle(&attempt, draft::finish("1")).await,
        Settled::Lost(AbortReason::Cancelled)
    );
    let chain = open.start("mail").await;
    open.commit().await;
    assert!(bench.exists(chain).await);
}

/// A verb whose future is dropped has happened entirely or not at all, and the store goes on.
pub async fn a_dropped_verb_has_happened_entirely_or_not_at_all<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for polls in 0..6 {
        let batch: Vec<_> = (0..20).map(|_| draft("mail").chain()).collect();
        let ids: Vec<_> = batch.iter().map(|chain| chain.job.id.as_chain()).collect();
        {
            let mut creating = std::pin::pin!(bench.state().create_chains(None, &batch));
            for _ in 0..polls {
                if creating.as_mut().now_or_never().is_some() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        // Started after the dropped call, so whatever that one still does is done when this one returns.
        bench.start("other").await;
        let found = bench.chains(&ids).await.len();
        assert!(found == 0 || found == 20, "{found} of 20 chains exist");
    }
}
