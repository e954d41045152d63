use super::super::Sabotage;
use super::*;

#[tokio::test]
async fn without_fencing_a_zombie_settles_the_job_of_its_successor() {
    let state = state();
    start(&state, &[new_chain(1)]).await;
    claim(&state, "task", 1, 1).await;
    state.clock().advance(LEASE * 2);
    let types = vec![ReapType::new("task", RetryPolicy::new().max_attempts(5), LEASE)];
    state.reap_leases(&ReapLeases::new(types, 1, Vec::new())).await.unwrap();
    claim(&state, "task", 1, 2).await;
    assert!(matches!(settle(&state, &[finish(1, 1)]).await[0], Settled::Lost(_)));
    state.sabotage(Sabotage::NoFencing);
    assert!(matches!(settle(&state, &[finish(1, 1)]).await[0], Settled::Applied(_)));
}

async fn both_in_flight(state: &MemoryState) {
    start(state, &[new_chain(1), new_chain(2), dependant(3, &[1, 2])]).await;
    claim(state, "task", 2, 1).await;
    state.sabotage(Sabotage::UnblockRace);
}

#[tokio::test]
async fn with_the_unblock_race_two_overlapping_batches_miss_each_other() {
    let state = state();
    both_in_flight(&state).await;
    let (one, two) = ([finish(1, 1)], [finish(2, 1)]);
    let (one, two) = tokio::join!(state.settle_jobs(None, &one), state.settle_jobs(None, &two));
    assert!(unblocked(&one.unwrap()[0]).is_empty());
    assert!(unblocked(&two.unwrap()[0]).is_empty());
    assert_eq!(status(&state, 3).await, JobStatus::Blocked);
}

#[tokio::test]
async fn with_the_unblock_race_two_overlapping_transactions_miss_each_other() {
    let state = state();
    both_in_flight(&state).await;
    let mut one = state.begin().await.unwrap();
    let mut two = state.begin().await.unwrap();
    state.settle_jobs(Some(&mut one), &[finish(1, 1)]).await.unwrap();
    state.settle_jobs(Some(&mut two), &[finish(2, 1)]).await.unwrap();
    state.commit(one).await.unwrap();
    state.commit(two).await.unwrap();
    assert_eq!(status(&state, 3).await, JobStatus::Blocked);
}

#[tokio::test]
async fn the_unblock_race_spares_completions_that_do_not_overlap() {
    let state = state();
    both_in_flight(&state).await;
    settle(&state, &[finish(1, 1)]).await;
    assert_eq!(unblocked(&settle(&state, &[finish(2, 1)]).await[0]), [job_id(3)]);
}
