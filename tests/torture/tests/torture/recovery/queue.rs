//! A queue that several processes share, on any store.

use std::time::Duration;

use queuert::adapter::StateAdapter;
use queuert::{ChainId, Client, JobStatus, Started};
use queuert_torture::recovery::{Ended, Process, Role, Task};

use crate::PROGRAM;

/// Far below the lease of ten minutes: a job that runs again in time does so because the store knew of a death.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// Where the queue is.
pub(super) trait Place: Sized {
    /// The name of the store.
    const NAME: &str;
    type State: StateAdapter;

    /// A new, empty one, and a client that uses it.
    async fn make() -> (Self, Client<Self::State>);

    /// What a process is told, to find it.
    fn store(&self) -> String;

    /// Waits until other processes know the process that runs the first job of a chain.
    async fn knows_who_runs(&self, chain: ChainId);
}

pub(super) struct Queue<P: Place> {
    pub(super) place: P,
    pub(super) client: Client<P::State>,
}

impl<P: Place> Queue<P> {
    pub(super) async fn new() -> Self {
        let (place, client) = P::make().await;
        Self { place, client }
    }

    pub(super) async fn process(&self, role: Role) -> Process {
        self.process_at("", role).await
    }

    /// A process that is told a prefix in front of the store.
    pub(super) async fn process_at(&self, prefix: &str, role: Role) -> Process {
        Process::start(PROGRAM, &format!("{prefix}{}", self.place.store()), role).await
    }

    pub(super) fn spawn(&self, prefix: &str, role: Role) -> Process {
        Process::spawn(PROGRAM, &format!("{prefix}{}", self.place.store()), role)
    }

    /// Starts a chain. The client may notice that a restart has cut a connection only when a call fails.
    pub(super) async fn start(&self, n: u32) -> Started<Task> {
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
            .expect("the store is back")
    }

    /// Starts a chain whose job runs in this process, which the other processes know.
    pub(super) async fn start_in(&self, n: u32, process: &mut Process) -> Started<Task> {
        let chain = self.start(n).await;
        process.says(&format!("running {n}")).await;
        tokio::time::timeout(PATIENCE, self.place.knows_who_runs(chain.id()))
            .await
            .expect("a process that claims jobs is known");
        chain
    }

    pub(super) async fn end(&self, chain: &Started<Task>) -> Ended {
        let end = self
            .client
            .wait(chain)
            .poll_interval(Duration::from_millis(10))
            .timeout(PATIENCE);
        end.await.expect("it ends long before its lease")
    }

    /// Another process dies and its job runs again: the process that found out has looked at all other processes too.
    pub(super) async fn another_process_dies(&self, n: u32) {
        let mut victim = self.process(Role::Hangs).await;
        let lost = self.start_in(n, &mut victim).await;
        let survivor = self.process(Role::Finishes).await;
        victim.kill().await;
        assert_eq!(self.end(&lost).await.attempt, 2);
        survivor.kill().await;
    }

    pub(super) async fn assert_running(&self, chain: &Started<Task>) {
        let chain = self.client.get_chain_record(chain).await.expect("the store answers");
        assert_eq!(chain.expect("it is there").status, JobStatus::Running);
    }

    /// The process ends the job that it has had from the beginning.
    pub(super) async fn finishes_its_first_attempt(&self, process: &mut Process, chain: &Started<Task>) {
        process.finish().await;
        let end = self.end(chain).await;
        assert_eq!((end.attempt, end.process), (1, process.id()));
    }
}
