use super::*;
use crate::Schedule;

fn scheduled(number: u128, type_name: &'static str, schedule: Schedule, priority: i16) -> NewChain {
    let mut job = new_job(number, type_name, &[]);
    job.schedule = schedule;
    job.priority = priority;
    NewChain::new(job)
}

#[tokio::test]
async fn jobs_are_claimed_by_rank_across_types_and_then_by_id() {
    let state = state();
    start(
        &state,
        &[scheduled(2, "a", Schedule::Now, 0), scheduled(1, "b", Schedule::Now, 0)],
    )
    .await;
    state.clock().advance(Duration::from_secs(90));
    start(
        &state,
        &[
            scheduled(3, "a", Schedule::Now, 1),
            scheduled(4, "b", Schedule::Now, 2),
            scheduled(5, "c", Schedule::Now, 9),
        ],
    )
    .await;
    // One step of priority is worth a minute: 4 is two minutes ahead of its time, 3 is one.
    let claimed = claim_types(&state, &["a", "b", "a"], 10, 1).await;
    assert_eq!(claimed_ids(&claimed), [4, 1, 2, 3].map(job_id));
}

#[tokio::test]
async fn the_ageing_step_can_be_changed_while_jobs_wait() {
    let state = state();
    start(&state, &[new_chain(1)]).await;
    state.clock().advance(Duration::from_secs(90));
    start(&state, &[scheduled(2, "task", Schedule::Now, 1)]).await;
    let state = state.ageing_step(Duration::from_secs(120));
    assert_eq!(claimed_ids(&claim(&state, "task", 1, 1).await), [job_id(2)]);
}

#[tokio::test]
async fn jobs_due_later_are_promoted_when_their_time_comes_and_demoted_when_the_clock_goes_back() {
    let state = state();
    let later = |number, seconds| scheduled(number, "task", Schedule::After(Duration::from_secs(seconds)), 0);
    start(&state, &[later(1, 20), later(2, 10), later(3, 30)]).await;
    let claimed = claim(&state, "task", 5, 1).await;
    assert!(claimed.jobs.is_empty());
    assert_eq!(claimed.next_due, Some(Duration::from_secs(10)));
    state.clock().advance(Duration::from_secs(20));
    let claimed = claim(&state, "task", 1, 2).await;
    assert_eq!(claimed_ids(&claimed), [job_id(2)]);
    assert_eq!(claimed.next_due, None, "only asked for when there was room");
    // Job 1 is among the due ones now; a clock that jumps back makes it wait again.
    state.clock().set(job(&state, 1).await.created_at);
    let claimed = claim(&state, "task", 5, 3).await;
    assert!(claimed.jobs.is_empty());
    assert_eq!(claimed.next_due, Some(Duration::from_secs(20)));
    state.clock().advance(Duration::from_secs(60));
    let claimed = claim(&state, "task", 5, 4).await;
    assert_eq!(claimed_ids(&claimed), [job_id(1), job_id(3)]);
    assert_eq!(claimed.next_due, None);
}

#[tokio::test]
async fn a_locked_job_is_skipped_and_keeps_its_place() {
    let state = state();
    start(&state, &[new_chain(1), new_chain(2)]).await;
    let mut transaction = state.begin().await.unwrap();
    state.lock_chain(&mut transaction, chain_id(1)).await.unwrap();
    let claimed = claim(&state, "task", 2, 1).await;
    assert_eq!(claimed_ids(&claimed), [job_id(2)]);
    let soon = claimed.next_due.unwrap();
    assert!(soon > Duration::ZERO && soon < Duration::from_secs(1));
    drop(transaction);
    assert_eq!(claimed_ids(&claim(&state, "task", 2, 2).await), [job_id(1)]);
}

#[tokio::test]
async fn expired_leases_are_taken_oldest_first_without_those_of_the_caller() {
    let state = state();
    for number in 1..=4 {
        start(
            &state,
            &[scheduled(
                number,
                if number % 2 == 0 { "a" } else { "b" },
                Schedule::Now,
                0,
            )],
        )
        .await;
        claim_types(&state, &["a", "b"], 1, number).await;
        state.clock().advance(Duration::from_secs(1));
    }
    let types = ["a", "b"].map(|name| ReapType::new(name, RetryPolicy::new().max_attempts(1), LEASE));
    let mut reap = ReapLeases::new(types.to_vec(), 2, vec![job_id(1)]);
    assert!(state.reap_leases(&reap).await.unwrap().is_empty());
    state.clock().advance(LEASE);
    let reaped = state.reap_leases(&reap).await.unwrap();
    let ids: Vec<_> = reaped.iter().map(|reaped| reaped.job.id).collect();
    assert_eq!(ids, [job_id(2), job_id(3)]);
    assert!(reaped.iter().all(|reaped| reaped.job.status == JobStatus::Dead));
    assert!(
        reaped
            .iter()
            .all(|reaped| reaped.job.lease.is_none() && reaped.expired_at <= state.clock().now())
    );
    reap.except.clear();
    assert_eq!(state.reap_leases(&reap).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_triggered_job_that_is_due_keeps_its_place() {
    let state = state();
    start(&state, &[new_chain(1), scheduled(2, "task", Schedule::After(LEASE), 0)]).await;
    let before = state.clock().now();
    state.clock().advance(Duration::from_secs(1));
    let twice = [job_id(2), job_id(1), job_id(2)];
    let triggered = state.trigger_jobs(None, &twice).await.unwrap().unwrap();
    let times: Vec<_> = triggered.iter().map(|job| job.scheduled_at).collect();
    let now = state.clock().now();
    assert_eq!(times, [now, before, now]);
    assert_eq!(claimed_ids(&claim(&state, "task", 2, 1).await), [job_id(1), job_id(2)]);
}

#[tokio::test]
async fn attempts_that_are_given_back_are_not_spent() {
    let state = state();
    start(&state, &[new_chain(1)]).await;
    let placed = job(&state, 1).await.scheduled_at;
    state.clock().advance(Duration::from_secs(5));
    claim(&state, "task", 1, 1).await;
    settle(&state, &[settlement(1, 1, Outcome::Release)]).await;
    let released = job(&state, 1).await;
    assert_eq!(
        (released.attempt, released.claims, released.scheduled_at),
        (0, 1, placed)
    );
    claim(&state, "task", 1, 2).await;
    let error = "no".to_owned();
    let schedule = Schedule::Now;
    settle(&state, &[settlement(1, 2, Outcome::Retry { schedule, error })]).await;
    let failed = job(&state, 1).await;
    assert_eq!((failed.attempt, failed.claims), (1, 2));
    assert_eq!(failed.last_error.unwrap().attempt, 1);
    // Repeated under its own fence, also while another attempt runs; anything else is lost.
    claim(&state, "task", 1, 3).await;
    let settled = settle(&state, &[finish(1, 2)]).await;
    assert_eq!(settled, [Settled::Repeated(Repeated::new(JobStatus::Running))]);
    let settled = settle(&state, &[finish(1, 1)]).await;
    assert_eq!(settled, [Settled::Lost(crate::AbortReason::TakenByAnotherWorker)]);
}
