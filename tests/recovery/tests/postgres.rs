//! One server, several processes, and what becomes of the jobs of those that die, stop, or lose their connections.
#![cfg(unix)]
#![expect(clippy::print_stdout, reason = "the times are what it measures")]

use std::time::Duration;

use postgres_support::{Cluster, Proxy, Shutdown};
use queuert::{JobStatus, Started};
use queuert_postgres::{Client, PostgresState};
use queuert_recovery::{Ended, Process, RETRY, Role, Task};
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
async fn the_jobs_of_a_killed_process_run_again_after_their_backoff() {
    killed(Cluster::url, "").await;
}

/// Without a listener, the lifeline is a session of its own.
#[tokio::test]
async fn the_jobs_of_a_killed_process_without_a_listener_do_too() {
    killed(|cluster| format!("quiet+{}", cluster.url()), " without wake-ups").await;
}

/// The first thing that it does is the last: nobody has heard of it before.
#[tokio::test]
async fn the_job_of_a_process_that_dies_with_its_first_one_runs_again_after_its_backoff() {
    let queue = Queue::new().await;
    let survivor = queue.process(Role::Finishes).await;
    for (n, prefix) in [(1, ""), (2, "quiet+")] {
        survivor.signal("STOP").await;
        // The job is there first, so it is begun in the first moment of the process.
        let chain = queue.start(n).await;
        let store = format!("{prefix}{}", queue.cluster.url());
        let mut victim = Process::spawn(PROGRAM, &store, Role::Hangs);
        victim.says(&format!("running {n}")).await;
        victim.kill().await;
        survivor.signal("CONT").await;
        let end = queue.end(&chain).await;
        assert_eq!((end.attempt, end.process), (2, survivor.id()));
        let error = end.error.expect("the death is stored");
        assert!(error.contains("died"), "{error}");
    }
}

/// A job that kills its process, and a supervisor that starts it again at once: the attempts are as far apart as after any
/// other failure.
#[tokio::test]
async fn a_job_that_kills_its_process_backs_off() {
    let queue = Queue::new().await;
    let chain = queue.start(1).await;
    let mut died_at = None;
    for attempt in 1..=4_u32 {
        Process::spawn(PROGRAM, &queue.cluster.url(), Role::Aborts).dies().await;
        let jobs = queue.client.list_jobs().await.expect("the store is well").items;
        let job = jobs.first().expect("there is one");
        assert_eq!(job.attempt, attempt, "one attempt for each process");
        let started_at = job.started_at.expect("it was claimed");
        let error = job.last_error.as_ref();
        if let Some(delay) = attempt.checked_sub(1).filter(|before| *before > 0) {
            let error = error.expect("the death is stored");
            assert!(error.message.contains("died"), "{}", error.message);
            let waited = started_at.saturating_duration_since(error.at);
            assert!(
                waited >= RETRY.delay_after(delay),
                "attempt {attempt} came after {waited:?}"
            );
            assert!(Some(error.at) > died_at, "each death is told once");
        }
        died_at = Some(started_at);
    }
    let survivor = queue.process(Role::Finishes).await;
    let end = queue.end(&chain).await;
    assert_eq!((end.attempt, end.process), (5, survivor.id()));
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

/// Its lifeline is cut, and the server has no other connection for it: it says over those it has that it lives.
#[tokio::test]
async fn a_process_that_gets_no_other_lifeline_keeps_its_jobs() {
    let queue = Queue::new().await;
    let mut watch = queue.cluster.connect().await;
    let run = "CREATE ROLE limited LOGIN; GRANT ALL ON SCHEMA queuert TO limited; \
               GRANT ALL ON ALL TABLES IN SCHEMA queuert TO limited; GRANT ALL ON ALL SEQUENCES IN SCHEMA queuert TO limited";
    sqlx::raw_sql(run).execute(&mut watch).await.expect("a superuser may");
    let url = format!("postgres://limited@127.0.0.1:{}/postgres", queue.cluster.port());
    for (n, store) in [url.clone(), format!("quiet+{url}")].iter().enumerate() {
        let n = u32::try_from(n).expect("a small number") * 2;
        let mut process = Process::start(PROGRAM, store, Role::Hangs).await;
        let kept = queue.start_in(n, &mut process).await;
        let cut = "ALTER ROLE limited CONNECTION LIMIT 0; SELECT pg_terminate_backend(l.pid) FROM pg_locks AS l \
                   JOIN pg_stat_activity AS a USING (pid) WHERE l.locktype = 'advisory' AND a.usename = 'limited'";
        sqlx::raw_sql(cut).execute(&mut watch).await.expect("a superuser may");
        queue.somebody_else_dies(n + 1).await;
        queue.assert_running(&kept).await;
        process.finish().await;
        let end = queue.end(&kept).await;
        assert_eq!((end.attempt, end.process), (1, process.id()));
        let free = "ALTER ROLE limited CONNECTION LIMIT -1";
        sqlx::raw_sql(free).execute(&mut watch).await.expect("a superuser may");
    }
}

/// Between the end of its job, which it has written, and the commit.
#[tokio::test]
async fn a_process_that_is_frozen_before_it_commits_loses_its_job_with_its_lease() {
    let queue = Queue::new().await;
    let mut frozen = queue.process(Role::Writes).await;
    let chain = queue.start(1).await;
    frozen.says("written 1").await;
    frozen.signal("STOP").await;
    let mut survivor = queue.process(Role::Finishes).await;
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
    let queue = Queue::new().await;
    let proxy = Proxy::to(queue.cluster.port()).await;
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port());
    let mut vanished = Process::start(PROGRAM, &url, Role::Writes).await;
    let chain = queue.start(1).await;
    vanished.says("written 1").await;
    proxy.freeze(true);
    let survivor = queue.process(Role::Finishes).await;
    let end = queue.end(&chain).await;
    assert_eq!((end.attempt, end.process), (2, survivor.id()));
    vanished.finish().await;
    proxy.freeze(false);
    let said = vanished.says("ended").await;
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
