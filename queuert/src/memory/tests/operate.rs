use super::*;

fn ids(stopped: &[StoppedChain]) -> Vec<ChainId> {
    stopped.iter().map(|stopped| stopped.chain.id).collect()
}

#[tokio::test]
async fn a_cascade_follows_the_blockers_of_continuations_too() {
    let state = state();
    start(&state, &[new_chain(1), new_chain(2), dependant(3, &[2])]).await;
    claim(&state, "task", 1, 1).await;
    // Chain 1 goes on with a job that waits for 3, which waits for 2.
    settle(&state, &[continue_with(1, 1, new_job(4, "task", &[3]))]).await;
    let alone = DeleteChains::new(vec![chain_id(3)], false);
    let refused = state.delete_chains(None, &alone).await.unwrap().unwrap_err();
    let reference = crate::BlockerReference {
        chain: chain_id(3),
        job: job_id(4),
    };
    assert_eq!(refused, Refusal::Referenced(vec![reference]));
    // The id of a later job is not a chain's id, and an unknown one is skipped.
    let cascade = DeleteChains::new(vec![chain_id(4), chain_id(1), chain_id(99), chain_id(1)], true);
    let stopped = state.delete_chains(None, &cascade).await.unwrap().unwrap();
    assert_eq!(ids(&stopped), [1, 3, 2].map(chain_id));
    assert_eq!(stopped[0].chain.length, 2);
    let inner = state.lock();
    assert!(inner.store.rows.is_empty() && inner.store.edges.is_empty());
    inner.store.check();
}

#[tokio::test]
async fn a_blocker_can_be_deleted_once_its_dependants_have_completed() {
    let state = state();
    start(&state, &[new_chain(1), dependant(2, &[1])]).await;
    claim(&state, "task", 1, 1).await;
    settle(&state, &[finish(1, 1)]).await;
    claim(&state, "dependant", 1, 2).await;
    let delete = DeleteChains::new(vec![chain_id(1)], false);
    assert!(
        state.delete_chains(None, &delete).await.unwrap().is_err(),
        "it may have to be read again"
    );
    settle(&state, &[finish(2, 2)]).await;
    assert_eq!(state.list_blockers(None, job_id(2)).await.unwrap().len(), 1);
    state.delete_chains(None, &delete).await.unwrap().unwrap();
    assert!(state.list_blockers(None, job_id(2)).await.unwrap().is_empty());
    // A new chain under the old id is not the blocker that was.
    start(&state, &[new_chain(1)]).await;
    assert!(state.list_blockers(None, job_id(2)).await.unwrap().is_empty());
    let blocked = JobQuery {
        blocked_by: Some(chain_id(1)),
        limit: 10,
        ..JobQuery::default()
    };
    assert!(state.list_jobs(None, &blocked).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_deletion_tells_which_attempt_it_interrupted() {
    let state = state();
    start(&state, &[new_chain(1), new_chain(2)]).await;
    claim(&state, "task", 1, 1).await;
    let delete = DeleteChains::new(vec![chain_id(2), chain_id(1)], false);
    let stopped = state.delete_chains(None, &delete).await.unwrap().unwrap();
    assert_eq!(ids(&stopped), [chain_id(2), chain_id(1)]);
    assert_eq!(stopped[0].interrupted, None);
    assert_eq!(stopped[1].interrupted, Some(job_id(1)));
    let settled = settle(&state, &[finish(1, 1)]).await;
    assert_eq!(settled, [Settled::Lost(crate::AbortReason::NotFound)]);
}

#[tokio::test]
async fn cancelled_and_retried_chains_keep_their_history() {
    let state = state();
    start(&state, &[new_chain(1)]).await;
    claim(&state, "task", 1, 1).await;
    let error = "no".to_owned();
    settle(&state, &[settlement(1, 1, Outcome::Bury { error })]).await;
    let dead = job(&state, 1).await;
    assert_eq!((dead.status, dead.ended_at.is_some()), (JobStatus::Dead, true));
    state.clock().advance(LEASE);
    let chain = [chain_id(1)];
    let retried = state.retry_chains(None, &chain).await.unwrap().unwrap().remove(0);
    assert_eq!(
        (retried.status, retried.attempt, retried.claims),
        (JobStatus::Pending, 0, 1)
    );
    assert_eq!((retried.scheduled_at, retried.ended_at), (state.clock().now(), None));
    assert_eq!(retried.last_error, dead.last_error);
    let refused = state.retry_chains(None, &chain).await.unwrap().unwrap_err();
    assert_eq!(refused, Refusal::NotRetryable(chain_id(1), JobStatus::Pending));
}

#[tokio::test]
async fn a_settlement_from_outside_interrupts_and_leaves_blocked_jobs_blocked() {
    let state = state();
    start(&state, &[new_chain(1), dependant(2, &[1])]).await;
    claim(&state, "task", 1, 1).await;
    let outside = |number, outcome| Settlement {
        job: job_id(number),
        authority: Authority::Outside,
        outcome,
    };
    let snoozed = outside(
        2,
        Outcome::Snooze {
            schedule: crate::Schedule::After(LEASE),
        },
    );
    settle(&state, &[snoozed]).await;
    assert_eq!(status(&state, 2).await, JobStatus::Blocked);
    let output = Payload::from_text("1");
    let settled = settle(&state, &[outside(1, Outcome::Finish { output })]).await;
    let Settled::Applied(applied) = &settled[0] else {
        panic!("not applied: {settled:?}");
    };
    assert!(applied.interrupted);
    assert_eq!(applied.unblocked.len(), 1);
    assert_eq!(job(&state, 1).await.completed_by, None);
    let settled = settle(&state, &[finish(1, 1)]).await;
    assert_eq!(settled, [Settled::Lost(crate::AbortReason::AlreadyCompleted)]);
}
