//! Ends of many chains in one batch, with locks and dependants in their way.

use std::collections::HashSet;
use std::time::Duration;

use queuert::adapter::{Authority, Repeated, Settled, Settlement, StateAdapter};
use queuert::{AbortReason, ChainId, JobId, JobStatus, WorkerId};
use sqlx::{AssertSqlSafe, Connection, Row};

use crate::arena::{Arena, Attempt, LONG, applied, continue_with, finish};

async fn blockers(arena: &Arena, count: usize) -> Vec<Attempt> {
    let mut attempts = Vec::with_capacity(count);
    for _ in 0..count {
        attempts.push(arena.running("blocker").await);
    }
    attempts
}

/// A store that has met no chain yet that somebody waits for, and one that has, and expects more of them.
async fn arenas() -> [Arena; 2] {
    let expecting = Arena::new().await;
    let first = expecting.running("first").await;
    expecting.start("second", &[first.job.chain_id]).await;
    assert_eq!(expecting.apply(&first, finish()).await.unblocked.len(), 1);
    [Arena::new().await, expecting]
}

fn chains(attempts: &[Attempt]) -> Vec<ChainId> {
    attempts.iter().map(|attempt| attempt.job.chain_id).collect()
}

/// Ends all of them in one call, as a worker does.
async fn finish_all(arena: &Arena, attempts: &[Attempt]) -> Vec<Settled> {
    let settlements: Vec<Settlement> = attempts.iter().map(|attempt| attempt.settlement(finish())).collect();
    let settled = arena.state.settle_jobs(None, &settlements).await;
    settled.expect("the store is well")
}

/// In how many transactions the results were written.
async fn transactions(arena: &Arena, attempts: &[Attempt]) -> usize {
    let text = format!(
        "SELECT DISTINCT xmin::text FROM {}.result WHERE id = ANY ($1)",
        arena.schema.name()
    );
    let ids: Vec<_> = attempts.iter().map(|attempt| attempt.id().as_uuid()).collect();
    let rows = sqlx::query(AssertSqlSafe(text))
        .bind(ids)
        .fetch_all(&mut arena.schema.connection().await)
        .await
        .expect("the table can be read");
    let ids: HashSet<String> = rows.iter().map(|row| row.get(0)).collect();
    ids.len()
}

/// A job that waits for many chains, which end in one batch: one transaction, and it is made pending once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_blockers_of_a_job_end_in_one_transaction() {
    for arena in arenas().await {
        let attempts = blockers(&arena, 20).await;
        let mut wanted = chains(&attempts);
        // One of them twice: it counts twice.
        wanted.push(wanted[7]);
        let dependant = arena.start("dependant", &wanted).await;
        // And a job that waits for one of them, and for another chain that goes on.
        let other = arena.running("other").await;
        let patient = arena.start("patient", &[wanted[3], other.job.chain_id]).await;

        let settled = finish_all(&arena, &attempts).await;
        let unblocked: Vec<_> = settled
            .into_iter()
            .flat_map(|settled| applied(settled).unblocked)
            .collect();
        assert_eq!(unblocked.len(), 1, "{unblocked:?}");
        assert_eq!(unblocked[0].job, dependant.first_job());
        assert_eq!(transactions(&arena, &attempts).await, 1);
        arena.assert_claimable_once("dependant", dependant.first_job()).await;
        assert_eq!(arena.status(patient).await, Some(JobStatus::Blocked));
        arena.assert_sound().await;
        assert_eq!(arena.apply(&other, finish()).await.unblocked.len(), 1);
        arena.assert_sound().await;
    }
}

/// Somebody has one of the chains: its end comes later, the others are not kept by it, and the job waits for the last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_that_is_locked_is_left_out() {
    for arena in arenas().await {
        let attempts = blockers(&arena, 5).await;
        let dependant = arena.start("dependant", &chains(&attempts)).await;
        let mut holder = arena.begin().await;
        holder.lock(attempts[2].job.chain_id).await.expect("it exists");

        for (place, settled) in finish_all(&arena, &attempts).await.into_iter().enumerate() {
            match place {
                2 => assert_eq!(settled, Settled::Busy),
                _ => assert!(applied(settled).unblocked.is_empty()),
            }
        }
        arena.assert_sound().await;
        holder.rollback().await;
        // All of them once more, as after an answer that was lost: only the one counts.
        for (place, settled) in finish_all(&arena, &attempts).await.into_iter().enumerate() {
            match place {
                2 => assert_eq!(applied(settled).unblocked.len(), 1),
                _ => assert!(matches!(settled, Settled::Repeated(_)), "{settled:?}"),
            }
        }
        arena.assert_claimable_once("dependant", dependant.first_job()).await;
        arena.assert_sound().await;
    }
}

/// Somebody has a job that waits: the ends of what it waits for come later, the others do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dependant_that_is_locked_keeps_only_what_it_waits_for() {
    for arena in arenas().await {
        let attempts = blockers(&arena, 4).await;
        let wanted = chains(&attempts);
        let held = arena.start("held", &wanted[..2]).await;
        let free = arena.start("free", &wanted[2..]).await;
        let mut holder = arena.begin().await;
        holder.lock(held).await.expect("it exists");

        let settled = finish_all(&arena, &attempts).await;
        assert_eq!(settled[..2], [Settled::Busy, Settled::Busy]);
        let unblocked = settled[2..]
            .iter()
            .cloned()
            .flat_map(|settled| applied(settled).unblocked);
        assert_eq!(unblocked.map(|job| job.chain).collect::<Vec<_>>(), [free]);
        arena.assert_sound().await;
        holder.cancel(&[held]).await.expect("it can be cancelled");
        holder.commit().await;

        let settled = finish_all(&arena, &attempts[..2]).await;
        assert!(settled.into_iter().all(|settled| applied(settled).unblocked.is_empty()));
        assert_eq!(arena.status(held).await, Some(JobStatus::Cancelled));
        arena.assert_sound().await;
    }
}

/// A batch in which there is every reason to refuse an end, and one that is fine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_the_callers_any_more_does_not_spoil_the_batch() {
    for arena in arenas().await {
        let attempts = blockers(&arena, 3).await;
        let [fine, cancelled, twice] = &attempts[..] else {
            unreachable!("there are three")
        };
        arena.start("blocker", &[]).await;
        let zombie = &arena.claim("blocker", Duration::ZERO).await;
        let mut wanted = chains(&attempts);
        wanted.push(zombie.job.chain_id);
        let dependant = arena.start("dependant", &wanted).await;
        assert_eq!(arena.reap("blocker", 25).await.len(), 1);
        let successor = arena.claim("blocker", LONG).await;
        assert_eq!(successor.id(), zombie.id());
        arena.cancel(cancelled.job.chain_id).await;

        let batch = [fine, zombie, cancelled, twice, twice].map(|attempt| attempt.settlement(finish()));
        let settled = arena.state.settle_jobs(None, &batch).await.expect("the store is well");
        assert!(applied(settled[0].clone()).unblocked.is_empty());
        assert!(matches!(settled[1], Settled::Lost(_)), "{:?}", settled[1]);
        assert!(matches!(settled[2], Settled::Lost(_)), "{:?}", settled[2]);
        assert!(applied(settled[3].clone()).unblocked.is_empty());
        assert_eq!(settled[4], Settled::Repeated(Repeated::new(JobStatus::Completed)));
        assert_eq!(arena.status(dependant).await, Some(JobStatus::Blocked));
        arena.assert_sound().await;
    }
}

/// A batch is written in parts, and one that has to be tried again takes nothing from those that were written: whom they
/// unblocked is said once, and nobody could find it out later. What will never be written is told at once, or it would
/// keep the others of its part waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_is_answered_though_the_rest_has_to_be_tried_again() {
    for (code, may_pass) in [("40001", true), ("P0001", false), ("22012", false), ("23505", false)] {
        let [_, arena] = arenas().await;
        let blocker = arena.running("blocker").await;
        let dependant = arena.start("dependant", &[blocker.job.chain_id]).await;
        let held_up = arena.running("held up").await;
        let schema = arena.schema.name();
        let refuse = format!(
            "CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE 'no more jobs' USING ERRCODE = '{code}'; END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON {schema}.job FOR EACH ROW EXECUTE FUNCTION {schema}.refuse()"
        );
        let mut connection = arena.schema.connection().await;
        let refuse = sqlx::raw_sql(AssertSqlSafe(refuse)).execute(&mut connection).await;
        refuse.expect("the schema is ours");

        let ends = [
            blocker.settlement(finish()),
            held_up.settlement(continue_with("never", &[])),
        ];
        let settled = arena.state.settle_jobs(None, &ends).await;
        if may_pass {
            let settled = settled.expect("the first part is written");
            let [first, second]: [Settled; 2] = settled.try_into().expect("one answer each");
            assert_eq!(applied(first).unblocked[0].job, dependant.first_job());
            assert_eq!(second, Settled::Busy);
        } else {
            let error = settled.expect_err("it is refused");
            assert!(format!("{error:?}").contains("no more jobs"), "{error:?}");
        }

        let error = arena
            .state
            .settle_jobs(None, &ends[1..])
            .await
            .expect_err("it is refused");
        assert!(format!("{error:?}").contains("no more jobs"), "{error:?}");
        let away = format!("DROP FUNCTION {schema}.refuse() CASCADE");
        let away = sqlx::raw_sql(AssertSqlSafe(away)).execute(&mut connection).await;
        away.expect("the schema is ours");
        arena.apply(&held_up, continue_with("never", &[])).await;
        arena.assert_claimable_once("dependant", dependant.first_job()).await;
        arena.assert_sound().await;
    }
}

/// An attempt that lost its job has no next one, whether the job runs again or has gone on since, and it keeps nobody
/// from going on who is in the same batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chains_go_on_beside_one_that_is_somebody_elses() {
    for has_gone_on in [false, true] {
        let arena = Arena::new().await;
        arena.start("entry", &[]).await;
        let stale = arena.claim("entry", Duration::from_millis(1)).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(arena.reap("entry", 25).await.len(), 1);
        let other = arena.claim("entry", LONG).await;
        assert_eq!(stale.id(), other.id());
        let reason = match has_gone_on {
            true => {
                arena.apply(&other, continue_with("step", &[])).await;
                AbortReason::AlreadyCompleted
            }
            false => AbortReason::TakenByAnotherWorker,
        };
        let mut ends = vec![stale.settlement(continue_with("step", &[]))];
        let mut attempts = Vec::new();
        for _ in 0..3 {
            let attempt = arena.running("entry").await;
            ends.push(attempt.settlement(continue_with("step", &[])));
            attempts.push(attempt);
        }
        // The first time as a batch that meets them; then they are known, and the answers are repeated.
        let mut settled = arena.state.settle_jobs(None, &ends).await.expect("the store is well");
        assert_eq!(settled.remove(0), Settled::Lost(reason));
        for (attempt, settled) in attempts.iter().zip(settled) {
            assert_eq!(applied(settled).next, Some(JobStatus::Pending));
            assert_eq!(arena.latest(attempt.job.chain_id).await.chain_index, 1);
        }
        let again = arena.state.settle_jobs(None, &ends).await.expect("the store is well");
        assert_eq!(again[0], Settled::Lost(reason));
        assert!(again[1..].iter().all(|one| matches!(one, Settled::Repeated(_))));
        assert_eq!(
            arena.latest(stale.job.chain_id).await.chain_index,
            u32::from(has_gone_on)
        );
        arena.assert_sound().await;
    }
}

/// Chains go on while their leases are renewed: the rows that the ends are about to take are changed under their hands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chains_go_on_while_their_rows_change() {
    let arena = Arena::new().await;
    let mut connection = arena.schema.connection().await;
    let mut watch = arena.schema.connection().await;
    let holder: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut connection)
        .await
        .expect("the server is well");
    let mut met = 0;
    // A batch waits ten milliseconds: not every change is over in time.
    while met < 5 {
        let attempts = blockers(&arena, 5).await;
        let text = format!(
            "UPDATE {}.running SET leased_until = leased_until + 1 WHERE id = $1",
            arena.schema.name()
        );
        let mut change = connection.begin().await.expect("the server is well");
        let changed = sqlx::query(AssertSqlSafe(text))
            .bind(attempts[2].id().as_uuid())
            .execute(&mut *change)
            .await;
        assert_eq!(changed.expect("the table can be written").rows_affected(), 1);
        let ends: Vec<_> = attempts
            .iter()
            .map(|attempt| attempt.settlement(continue_with("step", &[])))
            .collect();
        let state = arena.state.clone();
        let ending = tokio::spawn(async move { state.settle_jobs(None, &ends).await });
        let mut waited = false;
        while !waited && !ending.is_finished() {
            let waits = "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))";
            let waits = sqlx::query_scalar(waits).bind(holder).fetch_one(&mut watch).await;
            waited = waits.expect("the server is well");
        }
        change.commit().await.expect("the server is well");
        let settled = ending.await.expect("no panic").expect("the store is well");
        for (attempt, settled) in attempts.iter().zip(settled) {
            match settled {
                Settled::Busy => drop(arena.apply(attempt, continue_with("step", &[])).await),
                settled => {
                    met += usize::from(waited && attempt.id() == attempts[2].id());
                    assert_eq!(applied(settled).next, Some(JobStatus::Pending));
                }
            }
            assert_eq!(arena.latest(attempt.job.chain_id).await.chain_index, 1);
        }
    }
    arena.assert_sound().await;
}

/// One call may end attempts of several workers, each under its name.
#[tokio::test]
async fn each_end_keeps_the_name_of_its_worker() {
    let arena = Arena::new().await;
    let mut settlements = Vec::new();
    for worker in ["left", "right"] {
        let mut settlement = arena.running("entry").await.settlement(finish());
        let Authority::Fence { fence, .. } = settlement.authority else {
            panic!("an attempt ends its own job");
        };
        settlement.authority = Authority::Fence {
            fence,
            worker: WorkerId::new(worker),
        };
        settlements.push(settlement);
    }
    let settled = arena.state.settle_jobs(None, &settlements).await;
    for settled in settled.expect("the store is well") {
        applied(settled);
    }
    let ids: Vec<JobId> = settlements.iter().map(|settlement| settlement.job).collect();
    let jobs = arena.state.get_jobs(None, &ids).await.expect("the store is well");
    let by: Vec<_> = jobs.iter().map(|job| job.completed_by.clone()).collect();
    assert_eq!(by, [Some(WorkerId::new("left")), Some(WorkerId::new("right"))]);
}
