//! How many statements the server is sent, by its own count.

use std::time::Duration;

use postgres_support::{Cluster, ClusterOptions};
use queuert::adapter::{
    Authority, ClaimJobs, ClaimType, ClaimedJob, NewChain, NewJob, Outcome, Settled, Settlement, StateAdapter,
};
use queuert::{ChainId, Fence, JobId, JobTypes, Payload, WorkerId};
use queuert_postgres::{Attempt, Client, PostgresState};
use serde::{Deserialize, Serialize};
use sqlx::{Executor, PgConnection};
use tokio::sync::mpsc;
use uuid::Uuid;

const BLOCKERS: usize = 1_000;

/// What a worker at this concurrency takes and ends at once.
const BATCH: usize = 100;

/// A server that counts, with a store in it.
struct Counted {
    _cluster: Cluster,
    watch: PgConnection,
    state: PostgresState,
}

impl Counted {
    async fn launch() -> Self {
        let cluster = ClusterOptions::default()
            .setting("shared_preload_libraries", "pg_stat_statements")
            .start()
            .await;
        let mut watch = cluster.connect().await;
        watch
            .execute("CREATE EXTENSION pg_stat_statements")
            .await
            .expect("the extension is there");
        let state = PostgresState::options().connect(&cluster.url()).await;
        Self {
            state: state.expect("the private server can be used"),
            watch,
            _cluster: cluster,
        }
    }

    async fn reset(&mut self) {
        self.watch
            .execute("SELECT pg_stat_statements_reset()")
            .await
            .expect("the server counts");
    }

    /// All but what a new connection is asked once.
    async fn count(&mut self) -> i64 {
        let text = "SELECT coalesce(sum(calls), 0)::int8 FROM pg_stat_statements WHERE query !~ 'pg_stat_statements' \
                    AND query !~ 'queuert.session_lock'";
        sqlx::query_scalar(text)
            .fetch_one(&mut self.watch)
            .await
            .expect("the server counts")
    }

    async fn start(&self, chains: Vec<NewChain>) -> Vec<ChainId> {
        let created = self.state.create_chains(None, &chains).await;
        let created = created.expect("the store is well").expect("nothing is wrong with them");
        created.into_iter().map(|chain| chain.id).collect()
    }

    async fn claim(&self, type_name: &str, limit: usize) -> (Fence, Vec<ClaimedJob>) {
        let types = vec![ClaimType {
            name: type_name.to_owned().into(),
            lease: Duration::from_secs(600),
        }];
        let fence = Fence::from_uuid(Uuid::from_u128(fastrand::u128(..)));
        let claim = ClaimJobs::new(types, limit, WorkerId::new("worker"), fence);
        let claimed = self.state.claim_jobs(&claim).await.expect("the store is well");
        (fence, claimed.jobs)
    }

    /// Starts chains, and one that waits for all of them if so wished, and runs them to the end.
    async fn run(&self, parts: usize, joined: bool) {
        let chains = self.start((0..parts).map(|_| chain("part", &[])).collect()).await;
        if joined {
            self.start(vec![chain("sum", &chains)]).await;
        }
        for batch in 0..parts.div_ceil(BATCH) {
            let (fence, jobs) = self.claim("part", BATCH).await;
            let ends: Vec<Settlement> = jobs.iter().map(|job| finish(job, fence)).collect();
            let settled = self.state.settle_jobs(None, &ends).await.expect("the store is well");
            let mut unblocked = 0;
            for settled in settled {
                match settled {
                    Settled::Applied(applied) => unblocked += applied.unblocked.len(),
                    other => panic!("the end of a chain: {other:?}"),
                }
            }
            let last = (batch + 1) * BATCH >= parts;
            assert_eq!(unblocked, usize::from(last && joined));
        }
        let (fence, jobs) = self.claim("sum", BATCH).await;
        assert_eq!(jobs.len(), usize::from(joined));
        for job in &jobs {
            assert_eq!(job.blockers.len(), parts);
            let settled = self.state.settle_jobs(None, &[finish(job, fence)]).await;
            assert!(matches!(settled.expect("the store is well")[..], [Settled::Applied(_)]));
        }
    }

    async fn cost(&mut self, parts: usize, joined: bool) -> i64 {
        self.reset().await;
        self.run(parts, joined).await;
        self.count().await
    }
}

fn chain(type_name: &str, blockers: &[ChainId]) -> NewChain {
    let id = JobId::from_uuid(Uuid::from_u128(fastrand::u128(..)));
    let mut job = NewJob::new(id, type_name.to_owned(), Payload::from_text("1"));
    job.blockers = blockers.to_vec();
    NewChain::new(job)
}

fn finish(job: &ClaimedJob, fence: Fence) -> Settlement {
    Settlement {
        job: job.job.id,
        authority: Authority::Fence {
            fence,
            worker: WorkerId::new("worker"),
        },
        outcome: Outcome::Finish {
            output: Payload::from_text("\"done\""),
        },
    }
}

/// Waiting for a thousand chains costs what it takes to say so, and to find out that they are awaited: not a statement
/// per batch of ends, and far from one per chain.
#[tokio::test]
async fn a_fan_in_of_a_thousand_costs_a_handful() {
    let mut counted = Counted::launch().await;
    // Types are numbered by then.
    counted.run(1, true).await;
    for _ in 0..20 {
        counted.run(1, false).await;
    }
    // About fifteen, and a few more if a lock has to be waited for. One more per batch would be ten.
    let alone = counted.cost(BLOCKERS, false).await;
    let joined = counted.cost(BLOCKERS, true).await;
    assert!(
        joined - alone <= 24,
        "{alone} statements without, {joined} with a fan-in"
    );
    let few = counted.cost(BATCH, true).await - counted.cost(BATCH, false).await;
    assert!(
        joined - alone <= few + 8,
        "{few} more for {BATCH}, {} for {BLOCKERS}",
        joined - alone
    );
}

/// An attempt with a transaction of its own: the begin, what the caller does, the end, and the commit.
#[tokio::test]
async fn an_end_in_a_transaction_is_one_statement() {
    let mut counted = Counted::launch().await;
    counted.start((0..BATCH).map(|_| chain("part", &[])).collect()).await;
    let (fence, jobs) = counted.claim("part", BATCH).await;
    // The planner knows the tables as small, and would read them as a whole under the caller's settings.
    counted
        .watch
        .execute("ANALYZE; SELECT pg_stat_reset()")
        .await
        .expect("the server is well");
    counted.reset().await;
    for job in &jobs {
        let mut tx = counted.state.begin().await.expect("a transaction begins");
        tx.execute("SELECT 'mine'").await.expect("the server answers");
        let settled = counted.state.settle_in(&mut tx, &[finish(job, fence)]).await;
        assert!(matches!(settled.expect("the store is well")[..], [Settled::Applied(_)]));
        counted.state.commit(tx).await.expect("it commits");
    }
    let own = "SELECT calls FROM pg_stat_statements WHERE query ~ 'finish_one'";
    let calls: Vec<i64> = sqlx::query_scalar(own)
        .fetch_all(&mut counted.watch)
        .await
        .expect("the server counts");
    assert_eq!(calls, [BATCH as i64]);
    // Now and then the process says that it lives, which is no statement of a transaction. The session gets the settings of the
    // caller once.
    assert_eq!(counted.count().await / BATCH as i64, 4);
    // What a connection has read is known at the latest when it is closed.
    counted.state.close().await;
    let read = "SELECT sum(idx_scan)::int8, sum(seq_scan)::int8 FROM pg_stat_user_tables \
                WHERE relname IN ('job', 'running', 'result', 'open_key')";
    loop {
        let (by_index, whole): (i64, i64) = sqlx::query_as(read)
            .fetch_one(&mut counted.watch)
            .await
            .expect("the server counts");
        assert_eq!(whole, 0, "tables that were read as a whole");
        if by_index >= 2 * BATCH as i64 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The last look before the commit is left out after an end, and only then: what fails after it is not missed.
#[tokio::test]
async fn what_fails_after_the_end_is_not_committed() {
    let counted = Counted::launch().await;
    counted.start(vec![chain("part", &[])]).await;
    let (fence, jobs) = counted.claim("part", 1).await;
    let end = [finish(&jobs[0], fence)];
    let mut tx = counted.state.begin().await.expect("a transaction begins");
    let settled = counted.state.settle_in(&mut tx, &end).await.expect("the store is well");
    assert!(matches!(settled[..], [Settled::Applied(_)]));
    tx.execute("SELECT 1 / 0").await.expect_err("a division by zero");
    counted.state.commit(tx).await.expect_err("it is rolled back");
    // The attempt has its job still.
    let settled = counted.state.settle_jobs(None, &end).await.expect("the store is well");
    assert!(matches!(settled[..], [Settled::Applied(_)]));
}

#[derive(Serialize, Deserialize)]
struct Letter(usize);

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = usize)]
    Letter(Letter),
}

/// All that the server is sent for jobs whose processors have transactions of their own, from the start of the workers to
/// their stop: claims, renewals and upkeep too.
#[tokio::test]
async fn a_job_with_a_transaction_of_its_own_costs_at_most_five() {
    const JOBS: usize = 500;
    let mut counted = Counted::launch().await;
    let client = Client::new(counted.state.clone());
    client
        .start_many((0..JOBS).map(Letter))
        .await
        .expect("the store is well");
    counted.reset().await;
    let (ended, mut ends) = mpsc::unbounded_channel();
    let workers = client
        .worker()
        .process(move |job: Attempt<Letter>| {
            let ended = ended.clone();
            async move {
                let number = job.0;
                let mut tx = job.begin().await?;
                sqlx::raw_sql("SELECT 'mine'").execute(&mut *tx).await?;
                let end = tx.finish(number).await;
                ended.send(number).expect("the test waits");
                end
            }
        })
        .concurrency(10)
        .start()
        .await
        .expect("workers start");
    for _ in 0..JOBS {
        ends.recv().await.expect("workers run");
    }
    workers.stop().await;
    let sent = counted.count().await;
    assert!(sent <= 5 * JOBS as i64, "{sent} statements for {JOBS} jobs");
}
