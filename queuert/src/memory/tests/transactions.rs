use super::*;
use crate::error::StateErrorKind;

#[tokio::test]
async fn nobody_sees_a_transaction_before_it_commits() {
    let state = state();
    start(&state, &[new_chain(1)]).await;
    let mut transaction = state.begin().await.unwrap();
    let within = Some(&mut *transaction);
    state
        .create_chains(within, &[new_chain(2), dependant(3, &[2])])
        .await
        .unwrap()
        .unwrap();
    let within = Some(&mut *transaction);
    state.cancel_chains(within, &[chain_id(1)]).await.unwrap().unwrap();

    let all = ChainQuery {
        limit: 10,
        ..ChainQuery::default()
    };
    assert_eq!(state.list_chains(None, &all).await.unwrap().len(), 1);
    assert_eq!(status(&state, 1).await, JobStatus::Pending);
    assert!(state.get_jobs(None, &[job_id(2)]).await.unwrap().is_empty());
    assert!(state.list_blockers(None, job_id(3)).await.unwrap().is_empty());
    let inside = state.list_chains(Some(&mut transaction), &all).await.unwrap();
    assert_eq!(inside.len(), 3);

    state.commit(transaction).await.unwrap();
    assert_eq!(state.list_chains(None, &all).await.unwrap(), inside);
    assert_eq!(status(&state, 1).await, JobStatus::Cancelled);
    assert_eq!(state.list_blockers(None, job_id(3)).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_dropped_transaction_rolls_back_at_once_and_frees_its_locks() {
    let state = state();
    start(&state, &[new_chain(1)]).await;
    {
        let mut transaction = state.begin().await.unwrap();
        let within = Some(&mut *transaction);
        state.create_chains(within, &[new_chain(2)]).await.unwrap().unwrap();
        state.lock_chain(&mut transaction, chain_id(1)).await.unwrap();
        transaction.put("entry", 1).await.unwrap();
        assert!(claim(&state, "task", 10, 1).await.jobs.is_empty());
    }
    assert_eq!(claimed_ids(&claim(&state, "task", 10, 1).await), [job_id(1)]);
    assert_eq!(state.get::<u32>("entry").unwrap(), None);
    assert!(state.lock().locks.is_empty());
    start(&state, &[new_chain(2)]).await;
}

#[tokio::test]
async fn savepoints_nest_and_undo_everything_since() {
    let state = state();
    start(&state, &[new_chain(1)]).await;
    let mut transaction = state.begin().await.unwrap();
    transaction.put("entry", "outer").await.unwrap();
    state.savepoint(&mut transaction, 1).await.unwrap();
    transaction.put("entry", "middle").await.unwrap();
    state.savepoint(&mut transaction, 2).await.unwrap();
    transaction.put("entry", "inner").await.unwrap();
    let within = Some(&mut *transaction);
    state
        .delete_chains(within, &DeleteChains::new(vec![chain_id(1)], false))
        .await
        .unwrap()
        .unwrap();
    state.rollback_to_savepoint(&mut transaction, 2).await.unwrap();
    assert_eq!(transaction.get::<String>("entry").await.unwrap().unwrap(), "middle");
    assert_eq!(
        state
            .get_jobs(Some(&mut transaction), &[job_id(1)])
            .await
            .unwrap()
            .len(),
        1
    );
    state.release_savepoint(&mut transaction, 1).await.unwrap();
    let error = state.rollback_to_savepoint(&mut transaction, 1).await.unwrap_err();
    assert_eq!(error.kind(), StateErrorKind::Misconfigured);
    state.commit(transaction).await.unwrap();
    assert_eq!(state.get::<String>("entry").unwrap().unwrap(), "middle");
    assert_eq!(status(&state, 1).await, JobStatus::Pending);
}

#[tokio::test]
async fn a_refused_batch_leaves_nothing_behind() {
    let state = state();
    start(&state, &[new_chain(1)]).await;
    let batch = [new_chain(2), dependant(3, &[2]), dependant(4, &[77])];
    let refusal = Refusal::BlockerNotFound {
        job: job_id(4),
        chain: chain_id(77),
    };
    assert_eq!(state.create_chains(None, &batch).await.unwrap(), Err(refusal.clone()));
    let mut transaction = state.begin().await.unwrap();
    assert_eq!(
        state.create_chains(Some(&mut transaction), &batch).await.unwrap(),
        Err(refusal)
    );
    state.commit(transaction).await.unwrap();
    assert_eq!(state.lock().store.rows.len(), 1);
    assert!(state.lock().store.edges.is_empty());
    assert_eq!(claimed_ids(&claim(&state, "task", 10, 1).await), [job_id(1)]);
}

#[tokio::test]
async fn a_transaction_of_another_store_is_refused() {
    let (one, other) = (state(), state());
    let mut transaction = one.begin().await.unwrap();
    let error = other.get_jobs(Some(&mut transaction), &[]).await.unwrap_err();
    assert_eq!(error.kind(), StateErrorKind::Misconfigured);
    let error = other.commit(transaction).await.unwrap_err();
    assert_eq!(error.kind(), StateErrorKind::Misconfigured);
}

#[tokio::test]
async fn application_data_is_text_and_says_when_it_is_not_what_was_asked_for() {
    let state = state();
    let mut transaction = state.begin().await.unwrap();
    let refused = transaction.put("entry", f64::NAN).await.unwrap_err();
    assert_eq!(refused.kind(), StateErrorKind::Misconfigured);
    transaction.put("entry", None::<f64>).await.unwrap();
    state.commit(transaction).await.unwrap();
    assert_eq!(state.get::<f64>("entry").unwrap_err().kind(), StateErrorKind::Corrupt);
    assert_eq!(state.get::<Option<f64>>("entry").unwrap(), Some(None));
}
