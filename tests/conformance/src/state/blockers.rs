//! Jobs that wait for other chains.

use queuert::adapter::{Refusal, UnblockedJob};
use queuert::{ChainId, JobStatus};

use crate::bench::{Bench, LONG, TICK};
use crate::draft::{self, draft};
use crate::fixture::StateFixture;
use crate::identity;

fn outputs(chains: &[queuert::ChainRecord]) -> Vec<&str> {
    let output = |chain: &queuert::ChainRecord| chain.output.as_ref().map(|output| output.as_str()).is_some();
    assert!(chains.iter().all(output), "every blocker has completed");
    chains
        .iter()
        .filter_map(|chain| chain.output.as_ref().map(|output| output.as_str()))
        .collect()
}

/// A job with an open blocker is blocked, and nobody claims it. (S38)
pub async fn a_job_with_an_open_blocker_is_blocked<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let created = bench
        .create_one(draft("mail").blocked_by(&[blocker]))
        .await
        .expect("the chain exists");
    assert_eq!(created.status, JobStatus::Blocked);
    assert_eq!(bench.status(created.id).await, JobStatus::Blocked);
    let claimed = bench.claim(&["mail"], 1).await;
    assert!(claimed.jobs.is_empty() && claimed.next_due.is_none());
}

/// A job whose blockers have all completed is pending at once. (S39)
pub async fn a_job_with_completed_blockers_is_pending<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start_completed("blocker", "7").await;
    let created = bench
        .create_one(draft("mail").blocked_by(&[blocker]))
        .await
        .expect("the chain exists");
    assert_eq!(created.status, JobStatus::Pending);
    assert_eq!(outputs(&bench.attempt("mail").await.blockers), ["7"]);
}

/// A job waits as long as one of its blockers is open, and jobs of one call are judged each by itself. (S40, S41)
pub async fn every_job_of_a_batch_has_its_own_blockers<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let done = bench.start_completed("blocker", "1").await;
    let open = bench.start("blocker").await;
    let batch = [vec![done], vec![open], vec![done, open], vec![open], vec![]];
    let chains: Vec<_> = batch
        .iter()
        .map(|blockers| draft("mail").blocked_by(blockers).chain())
        .collect();
    let created = bench.create(&chains).await.expect("the chains exist");
    use JobStatus::{Blocked, Pending};
    let statuses: Vec<_> = created.iter().map(|chain| chain.status).collect();
    assert_eq!(statuses, [Pending, Blocked, Blocked, Blocked, Pending]);
    assert_eq!(bench.finish(&bench.attempt("blocker").await).await.unblocked.len(), 3);
}

/// A job may wait for an earlier chain of the same call.
pub async fn a_job_may_wait_for_an_earlier_chain_of_the_call<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = draft("blocker");
    let dependant = draft("mail").blocked_by(&[blocker.chain_id()]);
    let created = bench
        .create(&[blocker.chain(), dependant.chain()])
        .await
        .expect("in this order");
    assert_eq!(created[1].status, JobStatus::Blocked);
    assert_eq!(
        bench.finish(&bench.attempt("blocker").await).await.unblocked[0].chain,
        created[1].id
    );
}

/// A job cannot wait for itself, nor for a later chain of the same call: two of them would wait for ever. (H18)
pub async fn a_job_cannot_wait_for_what_comes_after_it<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let selfish = draft("mail");
    let (job, chain) = (selfish.id(), selfish.chain_id());
    let refused = bench.create_one(selfish.blocked_by(&[chain])).await;
    assert_eq!(refused, Err(Refusal::BlockerNotFound { job, chain }));
    let (one, two) = (draft("mail"), draft("mail"));
    let (job, chain) = (one.id(), two.chain_id());
    let two = two.blocked_by(&[one.chain_id()]);
    let refused = bench.create(&[one.blocked_by(&[chain]).chain(), two.chain()]).await;
    assert_eq!(refused, Err(Refusal::BlockerNotFound { job, chain }));
    assert!(bench.list_chains(&super::list_chains::query()).await.is_empty());
}

/// A chain that does not exist is no blocker, nor is a later job of one. (H24)
pub async fn an_unknown_blocker_is_refused<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let known = bench.start("first").await;
    let next = bench.continue_with(&bench.attempt("first").await, "second").await;
    for chain in [identity::chain_id(), next.as_chain()] {
        let mail = draft("mail").blocked_by(&[known, chain]);
        let job = mail.id();
        assert_eq!(
            bench.create_one(mail).await,
            Err(Refusal::BlockerNotFound { job, chain })
        );
        assert!(bench.jobs(&[job]).await.is_empty());
    }
}

/// A blocker that is given twice is waited for once, and handed over in every place. (H24, I6)
pub async fn a_blocker_may_be_given_twice<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let (twice, other) = (bench.start("twice").await, bench.start("other").await);
    let chain = bench.start_blocked("mail", &[twice, twice, other, twice]).await;
    assert_eq!(
        bench
            .apply(&bench.attempt("twice").await, draft::finish("2"))
            .await
            .unblocked,
        Vec::new()
    );
    assert_eq!(
        bench
            .apply(&bench.attempt("other").await, draft::finish("1"))
            .await
            .unblocked
            .len(),
        1
    );
    let attempt = bench.attempt("mail").await;
    assert_eq!(attempt.chain(), chain);
    assert_eq!(outputs(&attempt.blockers), ["2", "2", "1", "2"]);
    assert_eq!(bench.blockers(chain.first_job()).await, attempt.blockers);
}

/// The end of the last open blocker makes the job pending, and says which job. (S42, S43, I6)
pub async fn the_last_blocker_unblocks<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let (left, right) = (bench.start("left").await, bench.start("right").await);
    let chain = bench.start_blocked("mail", &[left, right]).await;
    assert_eq!(bench.finish(&bench.attempt("right").await).await.unblocked, Vec::new());
    assert_eq!(bench.status(chain).await, JobStatus::Blocked);
    let unblocked = bench.finish(&bench.attempt("left").await).await.unblocked;
    let expected = UnblockedJob {
        job: chain.first_job(),
        chain,
        type_name: "mail".into(),
    };
    assert_eq!(unblocked, [expected]);
    assert_eq!(bench.status(chain).await, JobStatus::Pending);
    assert_eq!(bench.attempt("mail").await.chain(), chain);
}

/// A chain without dependants unblocks nobody. (S44)
pub async fn a_chain_without_dependants_unblocks_nobody<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let other = bench.start("other").await;
    bench.start_blocked("mail", &[other]).await;
    bench.start("blocker").await;
    assert_eq!(
        bench.finish(&bench.attempt("blocker").await).await.unblocked,
        Vec::new()
    );
}

/// One end unblocks everyone who waited for it only, in one batch even both blockers of one job at once. (I6)
pub async fn one_call_unblocks_everyone<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let (left, right) = (bench.start("left").await, bench.start("right").await);
    let batch: Vec<_> = (0..20)
        .map(|index| match index % 2 {
            0 => draft("mail").blocked_by(&[left]).chain(),
            _ => draft("mail").blocked_by(&[left, right]).chain(),
        })
        .collect();
    bench.create(&batch).await.expect("the chains exist");
    let (left, right) = (bench.attempt("left").await, bench.attempt("right").await);
    let settled = bench
        .settle_all(&[
            left.settlement(draft::finish("1")),
            right.settlement(draft::finish("2")),
        ])
        .await;
    let mut unblocked = Vec::new();
    for settled in settled {
        let queuert::adapter::Settled::Applied(applied) = settled else {
            panic!("not applied: {settled:?}")
        };
        unblocked.extend(applied.unblocked.iter().map(|unblocked| unblocked.job));
    }
    unblocked.sort();
    unblocked.dedup();
    assert_eq!(unblocked.len(), 20);
    assert_eq!(bench.claim(&["mail"], 50).await.jobs.len(), 20);
}

/// A blocker of several steps blocks until its last one ends. (H2)
pub async fn a_blocker_blocks_until_its_last_step<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("one").await;
    let chain = bench.start_blocked("mail", &[blocker]).await;
    bench.continue_with(&bench.attempt("one").await, "two").await;
    assert_eq!(bench.status(chain).await, JobStatus::Blocked);
    let late = bench
        .create_one(draft("late").blocked_by(&[blocker]))
        .await
        .expect("the chain exists");
    assert_eq!(
        late.status,
        JobStatus::Blocked,
        "a chain that went on has not completed"
    );
    assert_eq!(
        bench
            .apply(&bench.attempt("two").await, draft::finish("9"))
            .await
            .unblocked
            .len(),
        2
    );
    let attempt = bench.attempt("mail").await;
    assert_eq!(outputs(&attempt.blockers), ["9"]);
    assert_eq!(
        (attempt.blockers[0].length, attempt.blockers[0].latest_type.as_str()),
        (2, "two")
    );
}

/// A job that was due while it was blocked is scheduled for the moment of its release. (S47)
pub async fn an_unblocked_job_is_scheduled_for_now<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let chain = bench.start_blocked("mail", &[blocker]).await;
    bench.elapse(TICK).await;
    let before = bench.now().await;
    bench.finish(&bench.attempt("blocker").await).await;
    let job = bench.job(chain.first_job()).await;
    assert!(before <= job.scheduled_at && job.scheduled_at <= bench.now().await);
}

/// A job that is due later keeps its time when it is unblocked. (S48)
pub async fn an_unblocked_job_keeps_a_later_time<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let time = bench.now().await.saturating_add(LONG);
    let chain = bench.start_as(draft("mail").at(time).blocked_by(&[blocker])).await;
    assert_eq!(bench.finish(&bench.attempt("blocker").await).await.unblocked.len(), 1);
    let job = bench.job(chain.first_job()).await;
    assert_eq!((job.scheduled_at, job.status), (time, JobStatus::Pending));
}

/// A job that was blocked for long does not overtake one that was ready before. (S49)
pub async fn a_long_blocked_job_does_not_overtake<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let blocked = bench.start_blocked("mail", &[blocker]).await;
    bench.elapse(TICK).await;
    let ready = bench.start("mail").await;
    bench.elapse(TICK).await;
    bench.finish(&bench.attempt("blocker").await).await;
    assert_eq!(
        bench.claim_ids(&["mail"], 5).await,
        [ready.first_job(), blocked.first_job()]
    );
}

/// A claim brings the blockers with their outputs and traces, in the order in which they were given. (S45, S51, S52, S53)
pub async fn a_claim_brings_the_blockers_in_order<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut blockers = Vec::new();
    for index in 0..4 {
        let trace = format!("trace-{index}");
        let blocker = bench
            .start_as(draft("blocker").input(&index.to_string()).trace(&trace))
            .await;
        bench.complete_outside(blocker, &format!("{index}{index}")).await;
        blockers.push(blocker);
    }
    let order = [blockers[2], blockers[0], blockers[3], blockers[1]];
    let chain = bench.start_blocked("mail", &order).await;
    let attempt = bench.attempt("mail").await;
    assert_eq!(
        attempt.blockers.iter().map(|blocker| blocker.id).collect::<Vec<_>>(),
        order
    );
    assert_eq!(outputs(&attempt.blockers), ["22", "00", "33", "11"]);
    let traces: Vec<_> = attempt
        .blockers
        .iter()
        .filter_map(|blocker| blocker.trace_context.as_deref())
        .collect();
    assert_eq!(traces, ["trace-2", "trace-0", "trace-3", "trace-1"]);
    assert_eq!(attempt.blockers, bench.chains(&order).await);
    assert_eq!(attempt.blockers, bench.blockers(chain.first_job()).await);
}

/// Jobs of one claim get each its own blockers; one without blockers has none. (S46, S50, S55)
pub async fn every_job_of_a_claim_has_its_own_blockers<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let (one, two) = (
        bench.start_completed("b", "1").await,
        bench.start_completed("b", "2").await,
    );
    let mut expected: Vec<(ChainId, Vec<ChainId>)> = Vec::new();
    for blockers in [vec![one], vec![], vec![two, one], vec![two]] {
        let chain = bench.start_blocked("mail", &blockers).await;
        bench.elapse(TICK).await;
        expected.push((chain, blockers));
    }
    let claimed = bench.claim(&["mail"], 10).await;
    let got: Vec<(ChainId, Vec<ChainId>)> = claimed
        .jobs
        .iter()
        .map(|claimed| {
            (
                claimed.job.chain_id,
                claimed.blockers.iter().map(|blocker| blocker.id).collect(),
            )
        })
        .collect();
    assert_eq!(got, expected);
}

/// Blockers can be listed while the job waits, whatever became of them. (S53, S54)
pub async fn blockers_are_listed_as_they_are<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let steps = bench.start("one").await;
    let dead = bench.start("dead").await;
    let job = bench.start_blocked("mail", &[dead, steps]).await.first_job();
    bench.continue_with(&bench.attempt("one").await, "two").await;
    bench.apply(&bench.attempt("dead").await, draft::bury("fatal")).await;
    let listed = bench.blockers(job).await;
    assert_eq!(listed, bench.chains(&[dead, steps]).await);
    assert_eq!(
        (listed[0].status, listed[1].status),
        (JobStatus::Dead, JobStatus::Pending)
    );
    assert_eq!((listed[1].length, listed[1].latest_type.as_str()), (2, "two"));
    assert!(bench.blockers(identity::job_id()).await.is_empty());
    assert!(bench.blockers(steps.first_job()).await.is_empty());
}

/// A job that ended while it was blocked is not brought back by its blocker.
pub async fn a_job_that_ended_while_blocked_stays_ended<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let cancelled = bench.start_blocked("mail", &[blocker]).await;
    let completed = bench.start_blocked("mail", &[blocker]).await;
    bench.cancel(&[cancelled]).await.expect("the chain is open");
    bench.complete_outside(completed, "1").await;
    assert_eq!(
        bench.finish(&bench.attempt("blocker").await).await.unblocked,
        Vec::new()
    );
    assert_eq!(bench.status(cancelled).await, JobStatus::Cancelled);
    assert_eq!(bench.status(completed).await, JobStatus::Completed);
}

/// A dead or cancelled chain has not completed: a job that is created to wait for it is blocked.
pub async fn a_stopped_chain_still_blocks<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let dead = bench.start_dead("blocker").await;
    let created = bench
        .create_one(draft("mail").blocked_by(&[dead]))
        .await
        .expect("the chain exists");
    assert_eq!(created.status, JobStatus::Blocked);
    bench.retry(&[dead]).await.expect("the chain is dead");
    assert_eq!(bench.finish(&bench.attempt("blocker").await).await.unblocked.len(), 1);
    assert_eq!(bench.status(created.id).await, JobStatus::Pending);
}
