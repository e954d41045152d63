//! One server, several processes, and what becomes of the jobs of those that die, stop, or lose their connections.
#![cfg(unix)]
#![expect(clippy::print_stdout, reason = "the times are what it measures")]

use std::time::Duration;

use postgres_support::{Cluster, Proxy, Shutdown};
use queuert::{JobStatus, Started};
use queuert_postgres::{Client, PostgresState};
use queuert_recovery::{Ended, Process, Role, Task};
use tokio::time::Instant;

const PROGRAM: &str = env!("CARGO_BIN_EXE_recovery");

/// Far below the lease of ten minutes: whoever gets there in time knew that the owner had died.
const PATIENCE: Duration = Duration::from_secs(120);

struct Queue {
    cluster: Cluster,
    client: Client,
}

impl Queue {
    async fn new() -> Self {
        let cluster = Cluster::launch().await;
        let state = PostgresState::connect(&cluster.url())
            .await
            .expect("the private server can be used");
        Self {
            client: Client::new(state),
            cluster,
        }
    }

    async fn process(&self, role: Role) -> Process {
        Process::start(PROGRAM, &self.cluster.url(), role).await
    }

    /// A chain. A connection that a restart has cut may be noticed by its failure only.
    async fn start(&self, n: u32) -> Started<Task> {
        let started = async {
            loop {
                match self.client.start(Task { n }).await {
                    Err(error) if error.is_transient() => tokio::time::sleep(Duration::from_millis(50)).await,
                    started => return started.expect("the chain starts"),
                }
            }
        };
        tokio::time::timeout(PATIENCE, started)
            .await
            .expect("the server is back")
    }

    /// A chain whose job runs in this process, which the others know of.
    async fn start_in(&self, n: u32, process: &mut Process) -> Started<Task> {
        let chain = self.start(n).await;
        process.says(&format!("running {n}")).await;
        let known = async {
            let mut watch = self.cluster.connect().await;
            let query = "SELECT EXISTS (SELECT 1 FROM queuert.running AS r JOIN queuert.process AS p \
                         ON r.owner = ANY (p.workers) WHERE r.id::text = $1)";
            loop {
                let known: bool = sqlx::query_scalar(query)
                    .bind(chain.id().to_string())
                    .fetch_one(&mut watch)
                    .await
                    .expect("the table can be read");
                if known {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, known)
            .await
            .expect("a process that claims jobs is known");
        chain
    }

    async fn end(&self, chain: &Started<Task>) -> Ended {
        let end = self
            .client
            .wait(chain)
            .poll_interval(Duration::from_millis(10))
            .timeout(PATIENCE);
        end.await.expect("it ends long before its lease")
    }

    /// Another process dies and its job runs again: whoever found out about that has looked at everybody else too.
    async fn somebody_else_dies(&self, n: u32) {
        let mut victim = self.process(Role::Hangs).await;
        let lost = self.start_in(n, &mut victim).await;
        let survivor = self.process(Role::Finishes).await;
        victim.kill().await;
        assert_eq!(self.end(&lost).await.attempt, 2);
        survivor.kill().await;
    }

    async fn assert_running(&self, chain: &Started<Task>) {
        let chain = self.client.get_chain_record(chain).await.expect("the store is well");
        assert_eq!(chain.expect("it is there").status, JobStatus::Running);
    }
}

/// The time is printed and not asserted on: passing at all takes a store that knows.
async fn killed(store: impl Fn(&Cluster) -> String, name: &str) {
    let queue = Queue::new().await;
    let survivor = Process::start(PROGRAM, &store(&queue.cluster), Role::Finishes).await;
    survivor.signal("STOP").await;
    for n in 0..5 {
        let mut victim = Process::start(PROGRAM, &store(&queue.cluster), Role::Hangs).await;
        let chain = queue.start_in(n, &mut victim).await;
        survivor.signal("CONT").await;
        // It has seen the other one, and does not look for it for the first time.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let killed_at = Instant::now();
        victim.kill().await;
        let end = queue.end(&chain).await;
        println!("postgres{name}: run again {:?} after the kill", killed_at.elapsed());
        assert_eq!((end.attempt, end.process), (2, survivor.id()));
        let error = end.error.expect("the death is stored");
        assert!(error.contains("died"), "{error}");
        survivor.signal("STOP").await;
    }
}

#[tokio::test]
async fn the_jobs_of_a_killed_process_run_again_at_once() {
    killed(Cluster::url, "").await;
}

/// Without a listener, the lifeline is a session of its own.
#[tokio::test]
async fn the_jobs_of_a_killed_process_without_a_listener_run_again_at_once() {
    killed(|cluster| format!("quiet+{}", cluster.url()), " without wake-ups").await;
}

/// The usual end of a process: it is killed, and started again some time later.
#[tokio::test]
async fn a_process_that_is_started_again_finds_what_it_had() {
    let queue = Queue::new().await;
    let mut victim = queue.process(Role::Hangs).await;
    let chain = queue.start_in(1, &mut victim).await;
    victim.kill().await;
    let started_at = Instant::now();
    let again = queue.process(Role::Finishes).await;
    let end = queue.end(&chain).await;
    println!("postgres: run again {:?} after the start", started_at.elapsed());
    assert_eq!((end.attempt, end.process), (2, again.id()));
}

/// A process that is stopped keeps its sessions, and its jobs for as long as its leases last.
#[tokio::test]
async fn a_stopped_process_keeps_its_jobs() {
    let queue = Queue::new().await;
    let mut stopped = queue.process(Role::Hangs).await;
    let kept = queue.start_in(1, &mut stopped).await;
    stopped.signal("STOP").await;
    queue.somebody_else_dies(2).await;
    queue.assert_running(&kept).await;
    stopped.signal("CONT").await;
    stopped.finish().await;
    let end = queue.end(&kept).await;
    assert_eq!((end.attempt, end.process), (1, stopped.id()));
}

/// Connections that are cut are made anew within the grace.
#[tokio::test]
async fn a_process_whose_connections_are_cut_keeps_its_jobs() {
    let queue = Queue::new().await;
    let proxy = Proxy::to(queue.cluster.port()).await;
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port());
    for (n, store) in [url.clone(), format!("quiet+{url}")].iter().enumerate() {
        let n = u32::try_from(n).expect("a small number") * 2;
        let mut process = Process::start(PROGRAM, store, Role::Hangs).await;
        let kept = queue.start_in(n, &mut process).await;
        proxy.cut();
        queue.somebody_else_dies(n + 1).await;
        queue.assert_running(&kept).await;
        process.finish().await;
        let end = queue.end(&kept).await;
        assert_eq!((end.attempt, end.process), (1, process.id()));
    }
}

/// Who cannot come back within the grace is taken for dead; what it writes later is refused.
#[tokio::test]
async fn a_process_that_is_cut_off_loses_its_jobs_and_its_result() {
    let queue = Queue::new().await;
    let proxy = Proxy::to(queue.cluster.port()).await;
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port());
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

/// A restart ends the sessions of the living too: nobody is taken for dead who has not come back yet.
async fn restarted(how: Shutdown) {
    let queue = Queue::new().await;
    let mut one = queue.process(Role::Hangs).await;
    let kept = queue.start_in(1, &mut one).await;
    let mut other = queue.process(Role::Hangs).await;
    let also_kept = queue.start_in(2, &mut other).await;
    // Claims do not wait for the disk, and a crash may forget those of its last moments: these are to be remembered.
    sqlx::raw_sql("CHECKPOINT")
        .execute(&mut queue.cluster.connect().await)
        .await
        .expect("a superuser may");
    // It comes back late.
    other.signal("STOP").await;
    queue.cluster.restart(how).await;
    let mut victim = queue.process(Role::Hangs).await;
    let lost = queue.start_in(3, &mut victim).await;
    let _survivor = queue.process(Role::Finishes).await;
    victim.kill().await;
    assert_eq!(queue.end(&lost).await.attempt, 2);
    queue.assert_running(&kept).await;
    queue.assert_running(&also_kept).await;
    other.signal("CONT").await;
    for (process, chain) in [(&mut one, &kept), (&mut other, &also_kept)] {
        process.finish().await;
        let end = queue.end(chain).await;
        assert_eq!((end.attempt, end.process), (1, process.id()));
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
