//! One server, several processes, and connections that are lost.

use std::time::Duration;

use postgres_support::{Cluster, Proxy, Shutdown};
use queuert::ChainId;
use queuert_postgres::{Client, PostgresState};
use queuert_torture::recovery::{Process, Role};

use super::on;
use super::queue::{Place, Queue};
use crate::PROGRAM;

struct Server(Cluster);

impl Place for Server {
    const NAME: &str = "postgres";
    type State = PostgresState;

    async fn make() -> (Self, Client) {
        let cluster = Cluster::launch().await;
        let state = PostgresState::connect(&cluster.url())
            .await
            .expect("the private server can be used");
        (Self(cluster), Client::new(state))
    }

    fn store(&self) -> String {
        self.0.url()
    }

    async fn knows_who_runs(&self, chain: ChainId) {
        let mut watch = self.0.connect().await;
        let query = "SELECT EXISTS (SELECT 1 FROM queuert.running AS r JOIN queuert.process AS p \
                     ON r.owner = ANY (p.workers) WHERE r.id::text = $1)";
        loop {
            let known: bool = sqlx::query_scalar(query)
                .bind(chain.to_string())
                .fetch_one(&mut watch)
                .await
                .expect("the table can be read");
            if known {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// The URL of the server through a proxy.
fn through(proxy: &Proxy) -> String {
    format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port())
}

on!(Server);

#[tokio::test]
async fn the_jobs_of_a_killed_process_run_again_after_their_backoff() {
    super::killed::<Server>("").await;
}

/// A process without a listener has a session of its own that shows that it lives.
#[tokio::test]
async fn the_jobs_of_a_killed_process_without_a_listener_do_too() {
    super::killed::<Server>("quiet+").await;
}

/// The process dies in its first moment, before any other process has heard of it.
#[tokio::test]
async fn the_job_of_a_process_that_dies_with_its_first_one_runs_again_after_its_backoff() {
    let queue = Queue::<Server>::new().await;
    let survivor = queue.process(Role::Finishes).await;
    for (n, prefix) in [(1, ""), (2, "quiet+")] {
        survivor.signal("STOP").await;
        // The job is there first, so it is begun in the first moment of the process.
        let chain = queue.start(n).await;
        let mut victim = queue.spawn(prefix, Role::Hangs);
        victim.says(&format!("running {n}")).await;
        victim.kill().await;
        survivor.signal("CONT").await;
        let end = queue.end(&chain).await;
        assert_eq!((end.attempt, end.process), (2, survivor.id()));
        let error = end.error.expect("the death is stored");
        assert!(error.contains("died"), "{error}");
    }
}

/// The process makes connections that are cut anew within the grace.
#[tokio::test]
async fn a_process_whose_connections_are_cut_keeps_its_jobs() {
    let queue = Queue::<Server>::new().await;
    let proxy = Proxy::to(queue.place.0.port()).await;
    let url = through(&proxy);
    for (n, store) in [url.clone(), format!("quiet+{url}")].iter().enumerate() {
        let n = u32::try_from(n).expect("a small number") * 2;
        let mut process = Process::start(PROGRAM, store, Role::Hangs).await;
        let kept = queue.start_in(n, &mut process).await;
        proxy.cut();
        queue.another_process_dies(n + 1).await;
        queue.assert_running(&kept).await;
        queue.finishes_its_first_attempt(&mut process, &kept).await;
    }
}

/// A process that cannot connect again within the grace is taken for dead; what it writes later is refused.
#[tokio::test]
async fn a_process_that_is_cut_off_loses_its_jobs_and_its_result() {
    let queue = Queue::<Server>::new().await;
    let proxy = Proxy::to(queue.place.0.port()).await;
    let url = through(&proxy);
    let mut cut_off = Process::start(PROGRAM, &url, Role::Hangs).await;
    let chain = queue.start_in(1, &mut cut_off).await;
    let mut survivor = queue.process(Role::Finishes).await;
    proxy.refuse(true);
    let said = survivor.says("reaped").await;
    assert!(said.ends_with("OwnerDied"), "{said}");
    let end = queue.end(&chain).await;
    assert_eq!((end.attempt, end.process), (2, survivor.id()));
    cut_off.finish().await;
    proxy.refuse(false);
    // The processor had returned, or was told before it could.
    let said = cut_off.says("ended").await;
    assert!(!said.contains("Finished"), "{said}");
    assert_eq!(queue.end(&chain).await, end);
}

/// The session that shows that the process lives is cut, and the server accepts no other: the process says over the
/// connections that it has that it lives.
#[tokio::test]
async fn a_process_that_gets_no_other_session_lock_keeps_its_jobs() {
    let queue = Queue::<Server>::new().await;
    let mut watch = queue.place.0.connect().await;
    let run = "CREATE ROLE limited LOGIN; GRANT ALL ON SCHEMA queuert TO limited; \
               GRANT ALL ON ALL TABLES IN SCHEMA queuert TO limited; GRANT ALL ON ALL SEQUENCES IN SCHEMA queuert TO limited";
    sqlx::raw_sql(run).execute(&mut watch).await.expect("a superuser may");
    let url = format!("postgres://limited@127.0.0.1:{}/postgres", queue.place.0.port());
    for (n, store) in [url.clone(), format!("quiet+{url}")].iter().enumerate() {
        let n = u32::try_from(n).expect("a small number") * 2;
        let mut process = Process::start(PROGRAM, store, Role::Hangs).await;
        let kept = queue.start_in(n, &mut process).await;
        let cut = "ALTER ROLE limited CONNECTION LIMIT 0; SELECT pg_terminate_backend(l.pid) FROM pg_locks AS l \
                   JOIN pg_stat_activity AS a USING (pid) WHERE l.locktype = 'advisory' AND a.usename = 'limited'";
        sqlx::raw_sql(cut).execute(&mut watch).await.expect("a superuser may");
        queue.another_process_dies(n + 1).await;
        queue.assert_running(&kept).await;
        queue.finishes_its_first_attempt(&mut process, &kept).await;
        let free = "ALTER ROLE limited CONNECTION LIMIT -1";
        sqlx::raw_sql(free).execute(&mut watch).await.expect("a superuser may");
    }
}

/// Between the end of its job, which it has written, and the commit.
#[tokio::test]
async fn a_process_that_is_frozen_before_it_commits_loses_its_job_with_its_lease() {
    let queue = Queue::<Server>::new().await;
    let mut frozen = queue.process(Role::Writes).await;
    let chain = queue.start(1).await;
    frozen.says("written 1").await;
    frozen.signal("STOP").await;
    let mut survivor = queue.process(Role::Sweeps).await;
    let said = survivor.says("reaped").await;
    assert!(said.ends_with("LeaseExpired"), "{said}");
    let end = queue.end(&chain).await;
    assert_eq!((end.attempt, end.process), (2, survivor.id()));
    frozen.signal("CONT").await;
    frozen.finish().await;
    let said = frozen.says("ended").await;
    assert!(!said.contains("Finished"), "{said}");
    assert_eq!(queue.end(&chain).await, end);
}

/// The same when its machine has vanished, or the network passes nothing on and closes nothing.
#[tokio::test]
async fn a_process_that_vanishes_before_it_commits_loses_its_job_with_its_lease() {
    let queue = Queue::<Server>::new().await;
    let proxy = Proxy::to(queue.place.0.port()).await;
    let url = through(&proxy);
    let mut vanished = Process::start(PROGRAM, &url, Role::Writes).await;
    let chain = queue.start(1).await;
    vanished.says("written 1").await;
    proxy.freeze(true);
    let survivor = queue.process(Role::Sweeps).await;
    let end = queue.end(&chain).await;
    assert_eq!((end.attempt, end.process), (2, survivor.id()));
    vanished.finish().await;
    proxy.freeze(false);
    let said = vanished.says("ended").await;
    assert!(!said.contains("Finished"), "{said}");
    assert_eq!(queue.end(&chain).await, end);
}

/// A restart ends the sessions of the living too: no process is taken for dead that has not connected again yet.
async fn restarted(how: Shutdown) {
    let queue = Queue::<Server>::new().await;
    let mut one = queue.process(Role::Hangs).await;
    let kept = queue.start_in(1, &mut one).await;
    let mut other = queue.process(Role::Hangs).await;
    let also_kept = queue.start_in(2, &mut other).await;
    // Claims do not wait for the disk, and a crash may forget those of its last moments: these are to be remembered.
    sqlx::raw_sql("CHECKPOINT")
        .execute(&mut queue.place.0.connect().await)
        .await
        .expect("a superuser may");
    // It comes back late.
    other.signal("STOP").await;
    queue.place.0.restart(how).await;
    queue.another_process_dies(3).await;
    queue.assert_running(&kept).await;
    queue.assert_running(&also_kept).await;
    other.signal("CONT").await;
    for (process, chain) in [(&mut one, &kept), (&mut other, &also_kept)] {
        queue.finishes_its_first_attempt(process, chain).await;
    }
}

#[tokio::test]
async fn a_restart_of_the_server_kills_nobody() {
    restarted(Shutdown::Fast).await;
}

#[tokio::test]
async fn a_crash_of_the_server_kills_nobody() {
    restarted(Shutdown::Immediate).await;
}
