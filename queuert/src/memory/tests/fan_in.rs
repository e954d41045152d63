use super::*;

/// Two running chains, and a job that waits for both.
async fn diamond(state: &MemoryState) {
    start(state, &[new_chain(1), new_chain(2), dependant(3, &[1, 2])]).await;
    assert_eq!(claim(state, "task", 2, 1).await.jobs.len(), 2);
}

#[tokio::test]
async fn two_blockers_that_end_in_overlapping_transactions_do_not_miss_each_other() {
    let state = state();
    diamond(&state).await;
    let mut one = state.begin().await.unwrap();
    let mut two = state.begin().await.unwrap();
    let first = state.settle_jobs(Some(&mut one), &[finish(1, 1)]).await.unwrap();
    assert!(unblocked(&first[0]).is_empty());
    {
        let second = [finish(2, 1)];
        let mut second = pin!(state.settle_jobs(Some(&mut two), &second));
        assert!(poll(second.as_mut()).is_pending(), "the dependant is locked");
        state.commit(one).await.unwrap();
        let second = second.await.unwrap();
        assert_eq!(unblocked(&second[0]), [job_id(3)]);
    }
    state.commit(two).await.unwrap();
    assert_eq!(status(&state, 3).await, JobStatus::Pending);
}

#[tokio::test]
async fn a_blocker_whose_end_is_rolled_back_unblocks_nothing() {
    let state = state();
    diamond(&state).await;
    let mut one = state.begin().await.unwrap();
    state.settle_jobs(Some(&mut one), &[finish(1, 1)]).await.unwrap();
    assert_eq!(
        settle(&state, &[finish(2, 1)]).await,
        [Settled::Busy],
        "the dependant is locked"
    );
    drop(one);
    assert!(unblocked(&settle(&state, &[finish(2, 1)]).await[0]).is_empty());
    assert_eq!(status(&state, 3).await, JobStatus::Blocked);
    assert_eq!(unblocked(&settle(&state, &[finish(1, 1)]).await[0]), [job_id(3)]);
}

#[tokio::test]
async fn a_dependant_that_is_created_while_its_blocker_ends_sees_the_end() {
    let state = state();
    start(&state, &[new_chain(1)]).await;
    claim(&state, "task", 1, 1).await;
    let mut ending = state.begin().await.unwrap();
    state.settle_jobs(Some(&mut ending), &[finish(1, 1)]).await.unwrap();
    let chains = [dependant(2, &[1])];
    let mut create = pin!(state.create_chains(None, &chains));
    assert!(poll(create.as_mut()).is_pending());
    state.commit(ending).await.unwrap();
    assert_eq!(create.await.unwrap().unwrap()[0].status, JobStatus::Pending);
}

#[tokio::test]
async fn the_end_of_a_blocker_sees_a_dependant_that_is_being_created() {
    let state = state();
    start(&state, &[new_chain(1)]).await;
    claim(&state, "task", 1, 1).await;
    let mut creating = state.begin().await.unwrap();
    let within = Some(&mut *creating);
    state
        .create_chains(within, &[dependant(2, &[1])])
        .await
        .unwrap()
        .unwrap();
    assert_eq!(settle(&state, &[finish(1, 1)]).await, [Settled::Busy]);
    state.commit(creating).await.unwrap();
    assert_eq!(unblocked(&settle(&state, &[finish(1, 1)]).await[0]), [job_id(2)]);
}

#[tokio::test]
async fn a_blocker_that_continues_still_blocks() {
    let state = state();
    start(&state, &[new_chain(1), dependant(2, &[1, 1])]).await;
    claim(&state, "task", 1, 1).await;
    let next = new_job(3, "task", &[]);
    let settled = settle(&state, &[continue_with(1, 1, next)]).await;
    assert_eq!(unblocked(&settled[0]), []);
    assert_eq!(status(&state, 2).await, JobStatus::Blocked);
    claim(&state, "task", 1, 2).await;
    let settled = settle(&state, &[finish(3, 2)]).await;
    assert_eq!(unblocked(&settled[0]), [job_id(2)]);
    let claimed = claim(&state, "dependant", 1, 3).await;
    let blockers = &claimed.jobs[0].blockers;
    assert_eq!(blockers.len(), 2);
    assert!(
        blockers
            .iter()
            .all(|chain| chain.output == Some(Payload::from_text("null")))
    );
}

#[tokio::test]
async fn both_blockers_in_one_batch_unblock_once() {
    let state = state();
    diamond(&state).await;
    let settled = settle(&state, &[finish(1, 1), finish(2, 1)]).await;
    assert!(unblocked(&settled[0]).is_empty());
    assert_eq!(unblocked(&settled[1]), [job_id(3)]);
    let again = settle(&state, &[finish(2, 1)]).await;
    let [Settled::Repeated(repeated)] = &again[..] else {
        panic!("{again:?}");
    };
    assert_eq!(repeated.status, JobStatus::Completed);
}

#[tokio::test]
async fn unblocking_raises_the_scheduled_time_to_now_but_keeps_a_later_one() {
    let state = state();
    let mut later = dependant(3, &[1]);
    let time = state.clock().now().saturating_add(Duration::from_secs(3_600));
    later.job.schedule = crate::Schedule::At(time);
    start(&state, &[new_chain(1), dependant(2, &[1]), later]).await;
    claim(&state, "task", 1, 1).await;
    state.clock().advance(Duration::from_secs(60));
    settle(&state, &[finish(1, 1)]).await;
    assert_eq!(job(&state, 2).await.scheduled_at, state.clock().now());
    assert_eq!(job(&state, 3).await.scheduled_at, time);
}

#[tokio::test]
async fn circles_of_waiting_are_refused_and_the_rest_of_the_batch_is_settled() {
    let state = state();
    start(
        &state,
        &[new_chain(1), dependant(2, &[1]), dependant(3, &[2]), new_chain(4)],
    )
    .await;
    claim(&state, "task", 2, 1).await;
    let next = new_job(5, "task", &[4, 3]);
    let settled = settle(&state, &[continue_with(1, 1, next), finish(4, 1)]).await;
    let refusal = Refusal::BlockerCycle {
        job: job_id(5),
        chain: chain_id(3),
    };
    assert_eq!(settled[0], Settled::Refused(refusal));
    assert!(matches!(settled[1], Settled::Applied(_)));
    assert_eq!(status(&state, 1).await, JobStatus::Running);
    let next = new_job(5, "task", &[1]);
    let settled = settle(&state, &[continue_with(1, 1, next)]).await;
    assert!(matches!(settled[0], Settled::Refused(Refusal::BlockerCycle { .. })));
}

#[tokio::test]
async fn two_continuations_cannot_close_a_circle_together() {
    // 3 waits for 2 and 4 waits for 1; then 1 wants to wait for 3 and 2 for 4, at the same time.
    let state = state();
    start(
        &state,
        &[new_chain(1), new_chain(2), dependant(3, &[2]), dependant(4, &[1])],
    )
    .await;
    claim(&state, "task", 2, 1).await;
    let mut one = state.begin().await.unwrap();
    let within = Some(&mut *one);
    let first = continue_with(1, 1, new_job(5, "task", &[3]));
    assert!(matches!(
        state.settle_jobs(within, &[first]).await.unwrap()[0],
        Settled::Applied(_)
    ));
    let second = [continue_with(2, 1, new_job(6, "task", &[4]))];
    assert_eq!(settle(&state, &second).await, [Settled::Busy]);
    state.commit(one).await.unwrap();
    let settled = settle(&state, &second).await;
    assert!(matches!(settled[0], Settled::Refused(Refusal::BlockerCycle { .. })));
}

#[tokio::test]
async fn a_retried_dependant_sees_a_blocker_that_ends_meanwhile() {
    let state = state();
    start(&state, &[new_chain(1), dependant(2, &[1])]).await;
    claim(&state, "task", 1, 1).await;
    state.cancel_chains(None, &[chain_id(2)]).await.unwrap().unwrap();
    let mut ending = state.begin().await.unwrap();
    state.settle_jobs(Some(&mut ending), &[finish(1, 1)]).await.unwrap();
    let chains = [chain_id(2)];
    let mut retry = pin!(state.retry_chains(None, &chains));
    assert!(poll(retry.as_mut()).is_pending());
    state.commit(ending).await.unwrap();
    assert_eq!(retry.await.unwrap().unwrap()[0].status, JobStatus::Pending);
}

#[tokio::test]
async fn a_circle_through_a_cancelled_chain_is_refused_before_a_retry_could_close_it() {
    let state = state();
    start(&state, &[new_chain(1), dependant(2, &[1])]).await;
    claim(&state, "task", 1, 1).await;
    state.cancel_chains(None, &[chain_id(2)]).await.unwrap().unwrap();
    let settled = settle(&state, &[continue_with(1, 1, new_job(3, "task", &[2]))]).await;
    assert!(matches!(settled[0], Settled::Refused(Refusal::BlockerCycle { .. })));
}
