//! What a lock that somebody keeps costs the ends of other jobs.

use std::time::Duration;

use postgres_support::Cluster;
use queuert::adapter::{Authority, ClaimJobs, ClaimType, NewChain, NewJob, Outcome, Settled, Settlement, StateAdapter};
use queuert::{Fence, JobId, Payload, WorkerId};
use queuert_postgres::PostgresState;
use sqlx::PgConnection;
use uuid::Uuid;

const FENCE: u128 = 7;

fn finish(job: JobId) -> Settlement {
    Settlement {
        job,
        authority: Authority::Fence {
            fence: Fence::from_uuid(Uuid::from_u128(FENCE)),
            worker: WorkerId::new("worker"),
        },
        outcome: Outcome::Finish {
            output: Payload::from_text("1"),
        },
    }
}

/// How many statements have given up on a lock, by the server's log.
async fn given_up(connection: &mut PgConnection) -> usize {
    let log: String = sqlx::query_scalar("SELECT pg_read_file('server.log')")
        .fetch_one(connection)
        .await
        .expect("the log can be read");
    log.matches("canceling statement due to lock timeout").count()
}

/// The batch that meets the lock waits for it a little, the batches after it do not: the end that is tried again and
/// again keeps nobody waiting.
#[tokio::test]
async fn a_lock_that_is_kept_holds_up_one_batch() {
    let cluster = Cluster::launch().await;
    let mut watch = cluster.connect().await;
    let state = PostgresState::connect(&cluster.url())
        .await
        .expect("the private server can be used");
    let chains: Vec<NewChain> = (1..=9)
        .map(|id| {
            let id = JobId::from_uuid(Uuid::from_u128(id));
            NewChain::new(NewJob::new(id, "entry".to_owned(), Payload::from_text("1")))
        })
        .collect();
    let created = state.create_chains(None, &chains).await.expect("the store is well");
    created.expect("nothing is wrong with the chains");
    let types = vec![ClaimType {
        name: "entry".to_owned().into(),
        lease: Duration::from_secs(600),
    }];
    let fence = Fence::from_uuid(Uuid::from_u128(FENCE));
    let claim = ClaimJobs::new(types, 9, WorkerId::new("worker"), fence);
    let claimed = state.claim_jobs(&claim).await.expect("the store is well");
    let jobs: Vec<JobId> = claimed.jobs.iter().map(|claimed| claimed.job.id).collect();
    let (held, others) = jobs.split_first().expect("nine were claimed");

    let mut holder = state.begin().await.expect("a transaction begins");
    let locked = state.hold_lease(&mut holder, *held, fence).await;
    locked.expect("the store is well").expect("nobody else has it");
    for other in others {
        let settled = state.settle_jobs(None, &[finish(*held), finish(*other)]).await;
        let settled = settled.expect("the store is well");
        assert_eq!(settled[0], Settled::Busy);
        assert!(matches!(settled[1], Settled::Applied(_)), "{:?}", settled[1]);
    }
    assert_eq!(given_up(&mut watch).await, 1);
    state.rollback(holder).await.expect("the transaction ends");
    let settled = state.settle_jobs(None, &[finish(*held)]).await;
    let settled = settled.expect("the store is well");
    assert!(matches!(settled[0], Settled::Applied(_)), "{:?}", settled[0]);
}
