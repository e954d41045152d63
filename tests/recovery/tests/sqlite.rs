//! One file, several processes, and what becomes of the jobs of those that die.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::time::Duration;

use queuert::{JobStatus, Started};
use queuert_recovery::{Ended, Process, RETRY, Role, Task};
use queuert_sqlite::{Client, SqliteNotify, SqliteState};
use tempfile::TempDir;
use tokio::time::Instant;

const PROGRAM: &str = env!("CARGO_BIN_EXE_recovery");

/// Far below the lease of ten minutes: whoever gets there in time knew that the owner had died.
const PATIENCE: Duration = Duration::from_secs(120);

struct Queue {
    directory: TempDir,
    client: Client,
}

impl Queue {
    async fn new() -> Self {
        let directory = TempDir::new().expect("a temporary directory can be made");
        let state = SqliteState::open(directory.path().join("app.db"))
            .await
            .expect("a new file can be opened");
        let client = Client::builder(state.clone()).notify(SqliteNotify::new(&state)).build();
        Self { directory, client }
    }

    fn path(&self) -> String {
        let path = self.directory.path().join("app.db");
        path.to_str().expect("the path is text").to_owned()
    }

    async fn process(&self, role: Role) -> Process {
        Process::start(PROGRAM, &self.path(), role).await
    }

    /// A chain whose job runs in this process.
    async fn start_in(&self, n: u32, process: &mut Process) -> Started<Task> {
        let chain = self.client.start(Task { n }).await.expect("the chain starts");
        process.says(&format!("running {n}")).await;
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

    fn files(&self) -> usize {
        alive_files(self.directory.path())
    }
}

fn alive_files(directory: &Path) -> usize {
    let files = std::fs::read_dir(directory).expect("the directory can be read");
    let names = files.map(|file| file.expect("the directory can be read").file_name());
    names.filter(|name| name.to_string_lossy().contains("-alive-")).count()
}

/// The time is printed and not asserted on: passing at all takes a store that knows, because the lease lasts for ten
/// minutes, and the next sweep would come after fifteen seconds and find nothing.
#[tokio::test]
async fn the_jobs_of_a_killed_process_run_again_after_their_backoff() {
    let queue = Queue::new().await;
    for n in 0..5 {
        let mut victim = queue.process(Role::Hangs).await;
        let chain = queue.start_in(n, &mut victim).await;
        let survivor = queue.process(Role::Finishes).await;
        // At different moments between two looks, for the sake of the figure.
        tokio::time::sleep(Duration::from_millis(u64::from(n) * 57)).await;
        let killed_at = Instant::now();
        victim.kill().await;
        let end = queue.end(&chain).await;
        println!("sqlite: run again {:?} after the kill", killed_at.elapsed());
        assert_eq!((end.attempt, end.process), (2, survivor.id()));
        let error = end.error.expect("the death is stored");
        assert!(error.contains("died"), "{error}");
        survivor.kill().await;
    }
    assert!(queue.files() <= 2, "what the dead have left is cleaned up");
}

/// A job that kills its process, and a supervisor that starts it again at once: the attempts are as far apart as after any
/// other failure.
#[tokio::test]
async fn a_job_that_kills_its_process_backs_off() {
    let queue = Queue::new().await;
    let chain = queue.client.start(Task { n: 1 }).await.expect("the chain starts");
    let mut died_at = None;
    for attempt in 1..=4_u32 {
        Process::spawn(PROGRAM, &queue.path(), Role::Aborts).dies().await;
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
    println!("sqlite: run again {:?} after the start", started_at.elapsed());
    assert_eq!((end.attempt, end.process), (2, again.id()));
}

/// A process that is stopped, as a debugger or a busy machine does it, keeps its jobs for as long as its leases last.
#[tokio::test]
async fn a_stopped_process_keeps_its_jobs() {
    let queue = Queue::new().await;
    let mut stopped = queue.process(Role::Hangs).await;
    let kept = queue.start_in(1, &mut stopped).await;
    stopped.signal("STOP").await;
    let mut victim = queue.process(Role::Hangs).await;
    let lost = queue.start_in(2, &mut victim).await;
    let _survivor = queue.process(Role::Finishes).await;
    victim.kill().await;
    // Whoever found out about the one has looked at the other too.
    assert_eq!(queue.end(&lost).await.attempt, 2);
    let chain = queue.client.get_chain_record(&kept).await.expect("the store is well");
    assert_eq!(chain.expect("it is there").status, JobStatus::Running);
    stopped.signal("CONT").await;
    stopped.finish().await;
    let end = queue.end(&kept).await;
    assert_eq!((end.attempt, end.process), (1, stopped.id()));
}

/// Somebody who tidies up the directory does no harm: a file that is missing says nothing.
#[tokio::test]
async fn a_process_whose_file_was_deleted_keeps_its_jobs() {
    let queue = Queue::new().await;
    let mut robbed = queue.process(Role::Hangs).await;
    let kept = queue.start_in(1, &mut robbed).await;
    let files = std::fs::read_dir(queue.directory.path()).expect("the directory can be read");
    for file in files {
        let path = file.expect("the directory can be read").path();
        if path.to_string_lossy().contains("-alive-") {
            std::fs::remove_file(path).expect("the file can be removed");
        }
    }
    let mut victim = queue.process(Role::Hangs).await;
    let lost = queue.start_in(2, &mut victim).await;
    let _survivor = queue.process(Role::Finishes).await;
    victim.kill().await;
    assert_eq!(queue.end(&lost).await.attempt, 2);
    robbed.finish().await;
    let end = queue.end(&kept).await;
    assert_eq!((end.attempt, end.process), (1, robbed.id()));
}
