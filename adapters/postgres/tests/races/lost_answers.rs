//! Ends whose answers were lost: asked again, the store says whom they unblocked, and of two that raced only one says it.

use std::sync::Arc;

use queuert::JobId;
use queuert::adapter::{Settled, StateAdapter};

use crate::arena::{Arena, Attempt, applied, continue_with, finish, well};

async fn unblocked_by(arena: &Arena, attempt: &Attempt) -> Vec<JobId> {
    match arena.settle_at_once(attempt, finish()).await {
        Settled::Repeated(repeated) => repeated.unblocked.into_iter().map(|unblocked| unblocked.job).collect(),
        other => panic!("not repeated: {other:?}"),
    }
}

/// The first part of a batch commits, and a later one has a row that can never be written: the whole is an error. Tried
/// one by one then, the ends of the first part say whom they unblocked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_fails_after_its_first_part_can_be_told_of() {
    let arena = Arena::new().await;
    let blocker = arena.running("blocker").await;
    let dependant = arena.start("dependant", &[blocker.job.chain_id]).await;
    let open = arena.start("open", &[]).await;
    let bad = arena.running("bad").await;
    let mut connection = arena.schema.connection().await;
    let refuse = "CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN RAISE EXCEPTION ''this row is bad'' USING ERRCODE = ''22000''; END'; \
         CREATE TRIGGER refuse BEFORE INSERT ON {schema}.job FOR EACH ROW WHEN (NEW.chain_index > 0) \
         EXECUTE FUNCTION {schema}.refuse()";
    arena.schema.run(&mut connection, refuse).await;

    let ends = [
        blocker.settlement(finish()),
        bad.settlement(continue_with("next", &[open])),
    ];
    let error = arena.state.settle_jobs(None, &ends).await.expect_err("a row is bad");
    assert!(error.kind().concerns_one_row(), "{error:?}");
    assert_eq!(unblocked_by(&arena, &blocker).await, [dependant.first_job()]);
    arena.assert_claimable_once("dependant", dependant.first_job()).await;
    arena.assert_sound().await;
}

/// Two blockers end in transactions that overlap: the second waits for the row of the job that waits, and is the one that
/// unblocked it, although it began first or wrote an earlier time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_ends_that_overlap_the_last_one_names_the_job() {
    for swapped in [false, true] {
        let arena = Arc::new(Arena::new().await);
        let (left, right) = (arena.running("left").await, arena.running("right").await);
        let blockers = [left.job.chain_id, right.job.chain_id];
        let dependant = arena.start("dependant", &blockers).await;
        let (first, second) = if swapped { (right, left) } else { (left, right) };
        let mut holder = arena.begin().await;
        assert!(holder.apply(&first, finish()).await.unblocked.is_empty());
        let waiting = {
            let (arena, end) = (Arc::clone(&arena), second.settlement(finish()));
            tokio::spawn(async move {
                let mut transaction = well(arena.state.begin().await);
                let settled = well(arena.state.settle_jobs(Some(&mut transaction), &[end]).await);
                well(arena.state.commit(transaction).await);
                settled
            })
        };
        arena.until_blocked(&waiting, holder.backend).await;
        holder.commit().await;
        let mut settled = waiting.await.expect("it ends");
        assert_eq!(applied(settled.remove(0)).unblocked.len(), 1);
        assert!(unblocked_by(&arena, &first).await.is_empty());
        assert_eq!(unblocked_by(&arena, &second).await, [dependant.first_job()]);
        arena.assert_sound().await;
    }
}
