//! Claims of many jobs, which take rows without locking them first, and others who are at the same rows.

use std::collections::HashSet;
use std::time::Duration;

use queuert::adapter::{ClaimJobs, ClaimType, Claimed, NewChain, StateAdapter};
use queuert::{Fence, JobId, WorkerId};
use queuert_postgres::PostgresState;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use crate::arena::{Arena, LONG, chain, well};

/// Large enough to be taken without locks.
const MANY: usize = 100;

fn claim_of(limit: usize) -> ClaimJobs {
    let types = vec![ClaimType {
        name: "entry".into(),
        lease: LONG,
    }];
    let fence = Fence::from_uuid(Uuid::from_u128(fastrand::u128(..)));
    ClaimJobs::new(types, limit, WorkerId::new("worker"), fence)
}

fn ids(claimed: &Claimed) -> Vec<JobId> {
    claimed.jobs.iter().map(|claimed| claimed.job.id).collect()
}

async fn claim(state: &PostgresState, limit: usize) -> Vec<JobId> {
    ids(&well(state.claim_jobs(&claim_of(limit)).await))
}

async fn start(arena: &Arena, jobs: usize) -> Vec<JobId> {
    let chains: Vec<NewChain> = (0..jobs).map(|_| chain("entry", &[])).collect();
    let created = well(arena.state.create_chains(None, &chains).await);
    created.expect("nothing is wrong with the chains");
    chains.iter().map(|chain| chain.job.id).collect()
}

/// Takes jobs away without committing it, and says by which process of the server.
async fn take_away(arena: &Arena, rival: &mut PgConnection, jobs: &[JobId]) -> i32 {
    let jobs: Vec<Uuid> = jobs.iter().map(|job| job.as_uuid()).collect();
    for table in ["ready", "job"] {
        let text = format!("DELETE FROM {}.{table} WHERE id = ANY ($1)", arena.schema.name());
        let delete = sqlx::query(AssertSqlSafe(text)).bind(&jobs).execute(&mut *rival).await;
        delete.expect("the rows can be deleted");
    }
    let backend = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(rival).await;
    backend.expect("the server knows its process")
}

/// Claims while a rival is about to commit that it has taken some, and says whether the claim was seen to wait for it.
async fn claim_against_rival(arena: &Arena, taken: &[JobId]) -> (Claimed, bool) {
    let mut watcher = arena.schema.connection().await;
    let mut rival = arena.schema.connection().await;
    let mut rival = rival.begin().await.expect("a transaction begins");
    let backend = take_away(arena, &mut rival, taken).await;
    let state = arena.state.clone();
    let claiming = tokio::spawn(async move { well(state.claim_jobs(&claim_of(MANY)).await) });
    arena.until_blocked_or_over(&mut watcher, &claiming, backend).await;
    let waited = !claiming.is_finished();
    rival.commit().await.expect("the rival commits");
    (claiming.await.expect("the claim ends"), waited)
}

fn sorted(mut jobs: Vec<JobId>) -> Vec<JobId> {
    jobs.sort_unstable();
    jobs
}

/// A job that somebody's open transaction has locked is passed over, also by the claim that does not look for locks: it
/// gives up soon and is made again. Those after it know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_job_is_passed_over() {
    let arena = Arena::new().await;
    let started = start(&arena, 3 * MANY).await;
    let locked = started[MANY / 2];
    let mut held = arena.begin().await;
    let dependant = held.create(chain("dependant", &[locked.as_chain()])).await;
    dependant.expect("nothing is wrong with the chain");
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.extend(claim(&arena.state, MANY).await);
    }
    let all_but_one: Vec<JobId> = started.iter().copied().filter(|job| *job != locked).collect();
    assert_eq!(sorted(taken), sorted(all_but_one));
    held.commit().await;
    assert_eq!(claim(&arena.state, MANY).await, [locked]);
    arena.assert_sound().await;
}

/// Another takes what a claim is about to take. If it is done while the claim waits for it, the claim brings what was left
/// of its share, and says that there may be more; if not, the claim gives up waiting and takes what lies behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_takes_meanwhile_is_not_taken() {
    let (mut outrun, mut given_up) = (0, 0);
    for _ in 0..100 {
        let arena = Arena::new().await;
        let started = start(&arena, 3 * MANY).await;
        let (claimed, _) = claim_against_rival(&arena, &started[..MANY / 2]).await;
        let (jobs, left) = (ids(&claimed), &started[MANY / 2..]);
        match jobs.len() < MANY {
            true => {
                assert_eq!(jobs, left[..MANY / 2], "what was left of its share");
                assert_eq!(claimed.next_due, Some(Duration::ZERO), "there is more");
                assert_eq!(claim(&arena.state, MANY).await, left[MANY / 2..][..MANY]);
                outrun += 1;
            }
            false => {
                assert_eq!(jobs, left[..MANY]);
                given_up += 1;
            }
        }
        arena.assert_sound().await;
        if outrun >= 3 {
            return;
        }
    }
    panic!("a claim was outrun {outrun} times, and gave up {given_up} times");
}

/// Others take all that a claim sees: it looks behind that, and does not say that there is nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lies_behind_is_found_though_all_in_front_is_gone() {
    let mut met = 0;
    for _ in 0..100 {
        let arena = Arena::new().await;
        let started = start(&arena, 3 * MANY).await;
        let (claimed, waited) = claim_against_rival(&arena, &started[..MANY]).await;
        assert_eq!(ids(&claimed), started[MANY..][..MANY]);
        met += usize::from(waited);
        if met >= 3 {
            return;
        }
    }
    panic!("no claim has met a rival");
}

/// Two processes drain one queue with large claims: each job is taken once, and none is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rivals_take_each_job_once() {
    let arena = Arena::new().await;
    let started = start(&arena, 40 * MANY).await;
    let drain = |state: PostgresState| async move {
        let mut taken = Vec::new();
        loop {
            let claimed = claim(&state, MANY).await;
            if claimed.is_empty() {
                return taken;
            }
            taken.extend(claimed);
        }
    };
    let other = arena.schema.state().await;
    let both = [arena.state.clone(), other].map(|state| tokio::spawn(drain(state)));
    let mut taken = Vec::new();
    for process in both {
        taken.extend(process.await.expect("the process ends"));
    }
    let once: HashSet<JobId> = taken.iter().copied().collect();
    assert_eq!(once.len(), taken.len(), "a job was taken twice");
    assert_eq!(sorted(taken), sorted(started));
    arena.assert_sound().await;
}
