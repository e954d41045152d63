use super::*;
use crate::error::StateErrorKind;
use crate::worker::AbortReason;

#[tokio::test]
async fn a_verb_waits_for_the_transaction_that_holds_its_chain() {
    let state = state();
    start(&state, &[new_chain(1)]).await;
    claim(&state, "task", 1, 1).await;
    let mut transaction = state.begin().await.unwrap();
    let held = state.hold_lease(&mut transaction, job_id(1), fence(1)).await.unwrap();
    assert_eq!(held, Ok(()));

    assert_waits(state.cancel_chains(None, &[chain_id(1)]));
    let deletion = DeleteChains::new(vec![chain_id(1)], false);
    assert_waits(state.delete_chains(None, &deletion));
    let ids = [chain_id(1)];
    let mut cancel = pin!(state.cancel_chains(None, &ids));
    assert!(poll(cancel.as_mut()).is_pending());

    // Settling by oneself, renewing and reaping never wait; what is locked does not hold up the rest.
    start(&state, &[new_chain(2)]).await;
    claim(&state, "task", 1, 2).await;
    let settled = settle(&state, &[finish(1, 1), finish(2, 2)]).await;
    assert!(matches!(settled[..], [Settled::Busy, Settled::Applied(_)]));
    let renewal = RenewLease {
        job: job_id(1),
        fence: fence(1),
        lease: LEASE,
    };
    assert_eq!(state.renew_leases(None, &[renewal]).await.unwrap(), [Renewal::Busy]);
    state.clock().advance(LEASE * 2);
    let types = vec![ReapType::new("task", RetryPolicy::new().max_attempts(5), LEASE)];
    let reap = ReapLeases::new(types, 10, Vec::new());
    assert!(state.reap_leases(&reap).await.unwrap().is_empty());

    let within = Some(&mut *transaction);
    let settled = state.settle_jobs(within, &[finish(1, 1)]).await.unwrap();
    assert!(matches!(settled[..], [Settled::Applied(_)]));
    state.commit(transaction).await.unwrap();
    let refused = cancel.await.unwrap().unwrap_err();
    assert_eq!(refused, Refusal::NotOpen(chain_id(1), JobStatus::Completed));
    let lost = [Renewal::Lost(AbortReason::AlreadyCompleted)];
    assert_eq!(state.renew_leases(None, &[renewal]).await.unwrap(), lost);
}

#[tokio::test]
async fn a_deadlock_is_a_conflict_and_the_other_transaction_goes_on() {
    let state = state();
    start(&state, &[new_chain(1), new_chain(2)]).await;
    let mut one = state.begin().await.unwrap();
    let mut two = state.begin().await.unwrap();
    state.lock_chain(&mut one, chain_id(1)).await.unwrap();
    state.lock_chain(&mut two, chain_id(2)).await.unwrap();
    {
        let mut waiting = pin!(state.lock_chain(&mut one, chain_id(2)));
        assert!(poll(waiting.as_mut()).is_pending());
        let error = state.lock_chain(&mut two, chain_id(1)).await.unwrap_err();
        assert_eq!(error.kind(), StateErrorKind::Conflict);
        drop(two);
        assert!(waiting.await.unwrap().is_some());
    }
    state.commit(one).await.unwrap();
}

#[tokio::test]
async fn a_deadlock_through_three_transactions_is_found() {
    let state = state();
    start(&state, &[new_chain(1), new_chain(2), new_chain(3)]).await;
    let mut transactions = Vec::new();
    for number in 1..=3 {
        let mut transaction = state.begin().await.unwrap();
        state.lock_chain(&mut transaction, chain_id(number)).await.unwrap();
        transactions.push(transaction);
    }
    let [one, two, three] = &mut transactions[..] else {
        unreachable!()
    };
    let mut first = pin!(state.lock_chain(one, chain_id(2)));
    let mut second = pin!(state.lock_chain(two, chain_id(3)));
    assert!(poll(first.as_mut()).is_pending());
    assert!(poll(second.as_mut()).is_pending());
    let error = state.lock_chain(three, chain_id(1)).await.unwrap_err();
    assert_eq!(error.kind(), StateErrorKind::Conflict);
}

#[tokio::test]
async fn a_dropped_wait_leaves_no_trace() {
    let state = state();
    start(&state, &[new_chain(1), new_chain(2)]).await;
    let mut one = state.begin().await.unwrap();
    let mut two = state.begin().await.unwrap();
    state.lock_chain(&mut one, chain_id(1)).await.unwrap();
    state.lock_chain(&mut two, chain_id(2)).await.unwrap();
    assert_waits(state.lock_chain(&mut one, chain_id(2)));
    assert_eq!(state.lock().locks.waiting(), 0);
    // Had the dropped wait stayed in the graph, this would be taken for a deadlock.
    assert_waits(state.lock_chain(&mut two, chain_id(1)));
    drop(one);
    assert!(state.lock_chain(&mut two, chain_id(1)).await.unwrap().is_some());
}

#[tokio::test]
async fn two_transactions_that_count_in_one_entry_take_turns() {
    let state = state();
    let count = |state: MemoryState| async move {
        let mut transaction = state.begin().await.unwrap();
        let before = transaction.get::<u32>("count").await.unwrap().unwrap_or(0);
        tokio::task::yield_now().await;
        transaction.put("count", before + 1).await.unwrap();
        state.commit(transaction).await.unwrap();
    };
    let tasks: Vec<_> = (0..20).map(|_| tokio::spawn(count(state.clone()))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(state.get::<u32>("count").unwrap(), Some(20));
}

#[tokio::test]
async fn what_is_not_committed_is_not_waited_for() {
    let state = state();
    let mut one = state.begin().await.unwrap();
    state
        .create_chains(Some(&mut one), &[new_chain(1)])
        .await
        .unwrap()
        .unwrap();
    let mut two = state.begin().await.unwrap();
    assert_eq!(state.lock_chain(&mut two, chain_id(1)).await.unwrap(), None);
    let blocked = state.create_chains(None, &[dependant(2, &[1])]).await.unwrap();
    assert!(matches!(blocked, Err(Refusal::BlockerNotFound { .. })));
    let cancelled = state.cancel_chains(None, &[chain_id(1)]).await.unwrap();
    assert_eq!(cancelled.unwrap_err(), Refusal::ChainNotFound(chain_id(1)));
    state.commit(one).await.unwrap();
    assert!(state.lock_chain(&mut two, chain_id(1)).await.unwrap().is_some());
}

#[tokio::test]
async fn two_creators_of_one_id_wait_for_each_other() {
    let state = state();
    start(&state, &[new_chain(1)]).await;
    claim(&state, "task", 1, 1).await;
    let mut transaction = state.begin().await.unwrap();
    let next = new_job(9, "task", &[]);
    let continued = continue_with(1, 1, next);
    let within = Some(&mut *transaction);
    state.settle_jobs(within, &[continued]).await.unwrap();
    let chains = [new_chain(9)];
    let mut create = pin!(state.create_chains(None, &chains));
    assert!(poll(create.as_mut()).is_pending());
    state.commit(transaction).await.unwrap();
    assert_eq!(create.await.unwrap(), Err(Refusal::IdTaken(job_id(9))));
}
