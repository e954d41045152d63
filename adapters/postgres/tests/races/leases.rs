//! The reaper against those whose leases it takes. Renewals and sweeps are transactions of their own, which nobody can
//! hold from outside: a trigger in the test's schema stops them half way.

use std::time::Duration;

use queuert::adapter::{Renewal, Settled};
use queuert::{AbortReason, JobStatus};
use sqlx::{Connection, PgConnection};

use crate::arena::{Arena, LONG, finish};

/// Stops everyone who writes to a table, while it is closed.
struct Gate {
    connection: PgConnection,
    key: i64,
    backend: i32,
}

impl Gate {
    async fn close(arena: &Arena, event: &str, table: &str) -> Self {
        let mut connection = arena.schema.connection().await;
        let key = fastrand::i64(1..);
        let trigger = format!(
            "CREATE FUNCTION {{schema}}.gate() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN PERFORM pg_advisory_xact_lock_shared({key}); RETURN NEW; END'; \
             CREATE TRIGGER gate BEFORE {event} ON {{schema}}.{table} FOR EACH ROW EXECUTE FUNCTION {{schema}}.gate()"
        );
        arena.schema.run(&mut connection, &trigger).await;
        sqlx::query("SELECT pg_advisory_lock($1)")
            .bind(key)
            .execute(&mut connection)
            .await
            .expect("the gate can be closed");
        let backend = sqlx::query_scalar("SELECT pg_backend_pid()")
            .fetch_one(&mut connection)
            .await;
        Self {
            backend: backend.expect("the server answers"),
            connection,
            key,
        }
    }

    async fn open(mut self) {
        sqlx::query("SELECT pg_advisory_unlock($1)")
            .bind(self.key)
            .execute(&mut self.connection)
            .await
            .expect("the gate can be opened");
        self.connection.close().await.expect("the connection ends well");
    }
}

/// The reaper has taken an expired lease and not committed: the renewal does not wait, is told to ask again, and then
/// that it came too late. So is an end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_while_the_reaper_is_at_it() {
    let arena = Arena::new().await;
    arena.start("entry", &[]).await;
    let attempt = arena.claim("entry", Duration::ZERO).await;
    let gate = Gate::close(&arena, "INSERT", "ready").await;
    let state = arena.state.clone();
    let reaper = tokio::spawn(async move {
        use queuert::adapter::{ReapLeases, ReapType, StateAdapter};
        let types = vec![ReapType::new(
            "entry",
            queuert::RetryPolicy::new(),
            Duration::from_secs(60),
        )];
        state.reap_leases(&ReapLeases::new(types, 10, Vec::new())).await
    });
    arena.until_blocked(&reaper, gate.backend).await;
    assert_eq!(arena.renew(&attempt).await, Renewal::Busy);
    assert_eq!(arena.settle_at_once(&attempt, finish()).await, Settled::Busy);
    assert_eq!(
        arena.reap("entry", 25).await.len(),
        0,
        "another sweep does not wait either"
    );
    gate.open().await;
    let reaped = reaper.await.expect("no panic").expect("the store is well");
    assert_eq!(reaped.len(), 1);
    let taken = AbortReason::TakenByAnotherWorker;
    assert_eq!(arena.renew(&attempt).await, Renewal::Lost(taken));
    assert_eq!(arena.settle_at_once(&attempt, finish()).await, Settled::Lost(taken));
    let job = arena.latest(attempt.job.chain_id).await;
    assert_eq!((job.status, job.attempt, job.claims), (JobStatus::Pending, 1, 1));
    arena.assert_claimable_once("entry", attempt.id()).await;
    arena.assert_sound().await;
}

/// A renewal has a lease in hand that had expired: the reaper passes it by, then and afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reaper_while_a_renewal_is_at_it() {
    let arena = Arena::new().await;
    arena.start("entry", &[]).await;
    let attempt = arena.claim("entry", Duration::ZERO).await;
    let gate = Gate::close(&arena, "UPDATE", "running").await;
    let (state, renewal) = (arena.state.clone(), attempt.renewal());
    let renewing = tokio::spawn(async move {
        use queuert::adapter::StateAdapter;
        state.renew_leases(None, &[renewal]).await
    });
    arena.until_blocked(&renewing, gate.backend).await;
    assert_eq!(arena.reap("entry", 25).await.len(), 0);
    gate.open().await;
    let renewed = renewing.await.expect("no panic").expect("the store is well").remove(0);
    assert!(matches!(renewed, Renewal::Renewed(_)), "{renewed:?}");
    assert_eq!(
        arena.reap("entry", 25).await.len(),
        0,
        "it does not expire for a long time"
    );
    assert!(arena.try_claim("entry", LONG).await.is_none());
    arena.apply(&attempt, finish()).await;
    assert_eq!(arena.status(attempt.job.chain_id).await, Some(JobStatus::Completed));
    arena.assert_sound().await;
}

/// An attempt whose lease has expired holds its job in a transaction: the reaper passes it by, and its end counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reaper_while_an_expired_attempt_holds_its_job() {
    let arena = Arena::new().await;
    arena.start("entry", &[]).await;
    let attempt = arena.claim("entry", Duration::ZERO).await;
    let mut first = arena.begin().await;
    first.hold(&attempt).await.expect("nobody has taken it");
    assert_eq!(arena.reap("entry", 25).await.len(), 0);
    first.apply(&attempt, finish()).await;
    assert_eq!(arena.reap("entry", 25).await.len(), 0);
    first.commit().await;
    assert_eq!(arena.reap("entry", 25).await.len(), 0);
    assert_eq!(arena.status(attempt.job.chain_id).await, Some(JobStatus::Completed));
    arena.assert_sound().await;
}
