//! A store in a schema of its own, and transactions in it that tests hold at chosen points.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use queuert::adapter::{
    Applied, Authority, ClaimJobs, ClaimType, CreatedChain, DeleteChains, NewChain, NewJob, Outcome, ReapLeases,
    ReapType, ReapedJob, Refusal, RenewLease, Renewal, Settled, Settlement, StateAdapter, StoppedChain,
};
use queuert::{
    AbortReason, ChainId, Deduplication, Fence, JobId, JobRecord, JobStatus, Payload, Schedule, StateError, WorkerId,
};
use queuert_postgres::{PostgresState, PostgresTransaction};
use sqlx::{AssertSqlSafe, PgConnection, Row};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::support::Schema;

/// After this a test that waits for another connection to wait has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// A lease that does not expire during a test.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Ids go up, so that tests know the order in which they are locked.
pub(crate) fn id() -> JobId {
    static LAST: AtomicU64 = AtomicU64::new(1);
    JobId::from_uuid(Uuid::from_u128(u128::from(LAST.fetch_add(1, Ordering::SeqCst))))
}

pub(crate) fn well<T>(answer: Result<T, StateError>) -> T {
    answer.unwrap_or_else(|error| panic!("the store failed ({:?}): {error:?}", error.kind()))
}

pub(crate) fn finish() -> Outcome {
    Outcome::Finish {
        output: Payload::from_text("\"done\""),
    }
}

pub(crate) fn bury() -> Outcome {
    Outcome::Bury {
        error: "fatal".to_owned(),
    }
}

pub(crate) fn retry() -> Outcome {
    Outcome::Retry {
        schedule: Schedule::Now,
        error: "once more".to_owned(),
    }
}

pub(crate) fn snooze() -> Outcome {
    Outcome::Snooze {
        schedule: Schedule::After(Duration::from_millis(1)),
    }
}

pub(crate) fn continue_with(type_name: &str, blockers: &[ChainId]) -> Outcome {
    let mut next = NewJob::new(id(), type_name.to_owned(), Payload::from_text("2"));
    next.blockers = blockers.to_vec();
    Outcome::Continue { next: Box::new(next) }
}

pub(crate) fn chain(type_name: &str, blockers: &[ChainId]) -> NewChain {
    let mut job = NewJob::new(id(), type_name.to_owned(), Payload::from_text("1"));
    job.blockers = blockers.to_vec();
    NewChain::new(job)
}

pub(crate) fn keyed(type_name: &str, key: &str) -> NewChain {
    let mut chain = chain(type_name, &[]);
    chain.deduplication = Some(Deduplication::while_open(key));
    chain
}

/// A job as a worker holds it.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) job: JobRecord,
    pub(crate) fence: Fence,
}

impl Attempt {
    pub(crate) fn id(&self) -> JobId {
        self.job.id
    }

    pub(crate) fn settlement(&self, outcome: Outcome) -> Settlement {
        Settlement {
            job: self.job.id,
            authority: Authority::Fence {
                fence: self.fence,
                worker: WorkerId::new("worker"),
            },
            outcome,
        }
    }

    pub(crate) fn renewal(&self) -> RenewLease {
        RenewLease {
            job: self.job.id,
            fence: self.fence,
            lease: LONG,
        }
    }
}

pub(crate) struct Arena {
    pub(crate) schema: Schema,
    pub(crate) state: PostgresState,
}

/// A transaction that a test holds.
pub(crate) struct Held {
    state: PostgresState,
    transaction: PostgresTransaction,
    /// The server process behind it.
    pub(crate) backend: i32,
}

impl Arena {
    pub(crate) async fn new() -> Self {
        let schema = Schema::new();
        let state = schema.state().await;
        Self { schema, state }
    }

    pub(crate) async fn begin(&self) -> Held {
        let mut transaction = well(self.state.begin().await);
        let backend = backend(&mut transaction).await;
        Held {
            state: self.state.clone(),
            transaction,
            backend,
        }
    }

    pub(crate) async fn start(&self, type_name: &str, blockers: &[ChainId]) -> ChainId {
        self.start_as(chain(type_name, blockers)).await
    }

    pub(crate) async fn start_as(&self, chain: NewChain) -> ChainId {
        let created = well(self.state.create_chains(None, &[chain]).await).expect("nothing is wrong with the chain");
        assert!(!created[0].deduplicated, "the chain is new");
        created[0].id
    }

    /// Claims the next job of a type.
    pub(crate) async fn claim(&self, type_name: &str, lease: Duration) -> Attempt {
        self.try_claim(type_name, lease).await.expect("there is a job to claim")
    }

    pub(crate) async fn try_claim(&self, type_name: &str, lease: Duration) -> Option<Attempt> {
        let types = vec![ClaimType {
            name: type_name.to_owned().into(),
            lease,
        }];
        let fence = Fence::from_uuid(Uuid::from_u128(fastrand::u128(..)));
        let claim = ClaimJobs::new(types, 1, WorkerId::new("worker"), fence);
        let mut claimed = well(self.state.claim_jobs(&claim).await).jobs;
        claimed.pop().map(|claimed| Attempt {
            job: claimed.job,
            fence,
        })
    }

    /// Starts a chain and claims its job.
    pub(crate) async fn running(&self, type_name: &str) -> Attempt {
        self.start(type_name, &[]).await;
        self.claim(type_name, LONG).await
    }

    /// Ends an attempt without a transaction, as a worker does.
    pub(crate) async fn settle_at_once(&self, attempt: &Attempt, outcome: Outcome) -> Settled {
        well(self.state.settle_jobs(None, &[attempt.settlement(outcome)]).await).remove(0)
    }

    pub(crate) async fn apply(&self, attempt: &Attempt, outcome: Outcome) -> Applied {
        applied(self.settle_at_once(attempt, outcome).await)
    }

    pub(crate) async fn renew(&self, attempt: &Attempt) -> Renewal {
        well(self.state.renew_leases(None, &[attempt.renewal()]).await).remove(0)
    }

    /// Sweeps a type, whose jobs are dead after so many attempts. The lease is longer than any backoff, so that expired ones
    /// are due at once.
    pub(crate) async fn reap(&self, type_name: &str, max_attempts: u32) -> Vec<ReapedJob> {
        let types = vec![ReapType::new(
            type_name.to_owned(),
            queuert::RetryPolicy::new().max_attempts(max_attempts),
            LONG,
        )];
        well(self.state.reap_leases(&ReapLeases::new(types, 10, Vec::new())).await)
    }

    pub(crate) async fn retry(&self, chain: ChainId) -> JobRecord {
        let retried = well(self.state.retry_chains(None, &[chain]).await);
        retried.expect("the chain can be retried").remove(0)
    }

    pub(crate) async fn cancel(&self, chain: ChainId) {
        well(self.state.cancel_chains(None, &[chain]).await).expect("the chain can be cancelled");
    }

    pub(crate) async fn cancel_if_open(&self, chain: ChainId) {
        if self.status(chain).await.is_some_and(JobStatus::is_open) {
            self.cancel(chain).await;
        }
    }

    /// The chain's status; `None` if it does not exist.
    pub(crate) async fn status(&self, chain: ChainId) -> Option<JobStatus> {
        let chains = well(self.state.get_chains(None, &[chain]).await);
        chains.first().map(|chain| chain.status)
    }

    pub(crate) async fn latest(&self, chain: ChainId) -> JobRecord {
        let chains = well(self.state.get_chains(None, &[chain]).await);
        let latest = chains.first().expect("the chain exists").latest_job;
        well(self.state.get_jobs(None, &[latest]).await).remove(0)
    }

    /// The job can be claimed, once.
    pub(crate) async fn assert_claimable_once(&self, type_name: &str, job: JobId) {
        let attempt = self.claim(type_name, LONG).await;
        assert_eq!(attempt.id(), job);
        assert!(self.try_claim(type_name, LONG).await.is_none(), "it is there once");
    }

    /// Returns when some connection of this test waits for `holder`, by the server's own books. The verb that is to
    /// wait must not have come back.
    pub(crate) async fn until_blocked<T>(&self, verb: &JoinHandle<T>, holder: i32) {
        self.until(verb, "$2 = ANY (pg_blocking_pids(pid))", holder).await;
    }

    /// The same for a verb that waits a moment only: returns also when it has come back. The watcher is a connection to
    /// look with, made before.
    pub(crate) async fn until_blocked_or_over<T>(&self, watcher: &mut PgConnection, verb: &JoinHandle<T>, holder: i32) {
        let waits = "$2 = ANY (pg_blocking_pids(pid))";
        while !verb.is_finished() && !self.is_waiting(watcher, waits, holder).await {}
    }

    /// Returns when this connection waits for somebody.
    pub(crate) async fn until_waiting<T>(&self, verb: &JoinHandle<T>, waiter: i32) {
        self.until(verb, "pid = $2", waiter).await;
    }

    async fn until<T>(&self, verb: &JoinHandle<T>, condition: &'static str, backend: i32) {
        let mut watcher = self.schema.connection().await;
        let wait = async {
            while !self.is_waiting(&mut watcher, condition, backend).await {
                assert!(
                    !verb.is_finished(),
                    "the verb did not wait for the transaction that it meets"
                );
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, wait).await;
        waited.expect("the verb came to the point where it waits");
    }

    async fn is_waiting(&self, watcher: &mut PgConnection, condition: &'static str, backend: i32) -> bool {
        let text = format!(
            "SELECT 1 FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock' AND {condition}"
        );
        let waiting = sqlx::query(AssertSqlSafe(text))
            .bind(self.schema.name())
            .bind(backend)
            .fetch_optional(watcher)
            .await
            .expect("the server's books can be read");
        waiting.is_some()
    }

    /// What must be true of the tables whenever nothing is under way.
    pub(crate) async fn assert_sound(&self) {
        let mut connection = self.schema.connection().await;
        for (rule, breach) in RULES {
            let text = format!("{STATES} {breach}").replace("{schema}", self.schema.name());
            let found = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&mut connection).await;
            let found = found.unwrap_or_else(|error| panic!("{rule}: {error}"));
            assert_eq!(found.len(), 0, "broken: {rule}");
        }
    }
}

const STATES: &str = "WITH state AS (\
     SELECT id, 'ready' AS place, awaited, NULL::integer AS remaining FROM {schema}.ready \
     UNION ALL SELECT id, 'later', awaited, NULL FROM {schema}.later \
     UNION ALL SELECT id, 'waiting', awaited, remaining FROM {schema}.waiting \
     UNION ALL SELECT id, 'running', awaited, NULL FROM {schema}.running \
     UNION ALL SELECT id, 'stopped', awaited, NULL FROM {schema}.stopped \
     UNION ALL SELECT id, CASE WHEN final THEN 'completed' ELSE 'continued' END, NULL, NULL FROM {schema}.result), \
     latest AS (SELECT DISTINCT ON (chain_id) chain_id, id FROM {schema}.job ORDER BY chain_id, chain_index DESC), \
     chain AS (SELECT l.chain_id AS id, s.place, s.awaited FROM latest AS l JOIN state AS s ON s.id = l.id)";

/// Each with what finds a breach of it.
const RULES: [(&str, &str); 8] = [
    (
        "a job is in exactly one place",
        "SELECT j.id FROM {schema}.job AS j LEFT JOIN state AS s ON s.id = j.id GROUP BY j.id HAVING count(s.id) <> 1",
    ),
    (
        "what has a place is a job",
        "SELECT s.id FROM state AS s LEFT JOIN {schema}.job AS j ON j.id = s.id WHERE j.id IS NULL",
    ),
    (
        "a job was continued if and only if it is not the latest of its chain",
        "SELECT j.id FROM {schema}.job AS j JOIN state AS s ON s.id = j.id \
         WHERE (s.place = 'continued') = EXISTS (SELECT 1 FROM latest AS l WHERE l.id = j.id)",
    ),
    (
        "a blocked job counts its edges to chains that have not completed",
        "SELECT s.id FROM state AS s WHERE s.place = 'waiting' AND (s.remaining < 1 OR s.remaining <> \
         (SELECT count(*) FROM {schema}.blocker AS b JOIN chain AS c ON c.id = b.chain_id \
         WHERE b.job_id = s.id AND c.place <> 'completed'))",
    ),
    (
        "a job that is not blocked waits for nothing",
        "SELECT s.id FROM state AS s JOIN {schema}.blocker AS b ON b.job_id = s.id JOIN chain AS c ON c.id = b.chain_id \
         WHERE s.place IN ('ready', 'later', 'running') AND c.place <> 'completed'",
    ),
    (
        "a chain that has not completed knows that a job waits for it",
        "SELECT c.id FROM chain AS c JOIN {schema}.blocker AS b ON b.chain_id = c.id \
         WHERE c.place <> 'completed' AND NOT c.awaited",
    ),
    (
        "a key has one open chain, but for those that were started beside another one",
        "SELECT f.deduplication_key FROM {schema}.job AS f JOIN chain AS c ON c.id = f.id \
         WHERE f.deduplication_key IS NOT NULL AND c.place NOT IN ('completed', 'stopped') \
         AND NOT EXISTS (SELECT 1 FROM {schema}.open_key AS k WHERE k.chain_id = f.id AND k.beside) \
         GROUP BY f.type_id, f.deduplication_key HAVING count(*) > 1",
    ),
    (
        "the keys of open chains are taken, and no others",
        "SELECT f.id FROM {schema}.job AS f JOIN chain AS c ON c.id = f.id WHERE f.deduplication_key IS NOT NULL \
         AND (c.place NOT IN ('completed', 'stopped')) <> EXISTS (SELECT 1 FROM {schema}.open_key AS k WHERE k.chain_id = f.id) \
         UNION ALL SELECT k.chain_id FROM {schema}.open_key AS k LEFT JOIN chain AS c ON c.id = k.chain_id WHERE c.id IS NULL",
    ),
];

async fn backend(connection: &mut PgConnection) -> i32 {
    let row = sqlx::query("SELECT pg_backend_pid()").fetch_one(connection).await;
    row.expect("the server answers").get(0)
}

pub(crate) fn applied(settled: Settled) -> Applied {
    match settled {
        Settled::Applied(applied) => applied,
        other => panic!("the settlement was not applied: {other:?}"),
    }
}

impl Held {
    pub(crate) async fn commit(self) {
        well(self.state.commit(self.transaction).await);
    }

    pub(crate) async fn rollback(self) {
        well(self.state.rollback(self.transaction).await);
    }

    pub(crate) async fn create(&mut self, chain: NewChain) -> Result<CreatedChain, Refusal> {
        let created = well(self.state.create_chains(Some(&mut self.transaction), &[chain]).await);
        created.map(|mut created| created.remove(0))
    }

    pub(crate) async fn settle(&mut self, attempt: &Attempt, outcome: Outcome) -> Settled {
        let settlement = attempt.settlement(outcome);
        well(self.state.settle_jobs(Some(&mut self.transaction), &[settlement]).await).remove(0)
    }

    pub(crate) async fn try_settle(&mut self, attempt: &Attempt, outcome: Outcome) -> Result<Settled, StateError> {
        let settlement = attempt.settlement(outcome);
        let settled = self.state.settle_jobs(Some(&mut self.transaction), &[settlement]).await;
        settled.map(|mut settled| settled.remove(0))
    }

    /// Another transaction on the same connection, that sees for its whole life what there is now. It has the mark of one
    /// that the library has begun: otherwise the adapter refuses to write in it.
    pub(crate) async fn freeze(&mut self) {
        self.freeze_at("REPEATABLE READ").await;
    }

    pub(crate) async fn freeze_at(&mut self, level: &str) {
        let text = format!("ROLLBACK; BEGIN ISOLATION LEVEL {level}; SET LOCAL queuert.transaction = 'open'; SELECT 1");
        let frozen = sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut *self.transaction).await;
        frozen.expect("the server is well");
    }

    /// The store and the connection, for verbs whose errors a test looks at.
    pub(crate) fn parts(&mut self) -> (&PostgresState, &mut PgConnection) {
        (&self.state, &mut self.transaction)
    }

    pub(crate) async fn try_create(&mut self, chain: NewChain) -> Result<Result<CreatedChain, Refusal>, StateError> {
        let created = self.state.create_chains(Some(&mut self.transaction), &[chain]).await;
        created.map(|created| created.map(|mut created| created.remove(0)))
    }

    pub(crate) async fn savepoint(&mut self) {
        well(self.state.savepoint(&mut self.transaction, 1).await);
    }

    pub(crate) async fn rollback_to_savepoint(&mut self) {
        well(self.state.rollback_to_savepoint(&mut self.transaction, 1).await);
    }

    pub(crate) async fn apply(&mut self, attempt: &Attempt, outcome: Outcome) -> Applied {
        applied(self.settle(attempt, outcome).await)
    }

    pub(crate) async fn lock(&mut self, chain: ChainId) -> Option<JobRecord> {
        well(self.state.lock_chain(&mut self.transaction, chain).await)
    }

    /// Ends the latest job of a chain from outside.
    pub(crate) async fn settle_outside(&mut self, chain: ChainId, outcome: Outcome) -> Settled {
        let job = self.lock(chain).await.expect("the chain exists").id;
        let settlement = Settlement {
            job,
            authority: Authority::Outside,
            outcome,
        };
        well(self.state.settle_jobs(Some(&mut self.transaction), &[settlement]).await).remove(0)
    }

    pub(crate) async fn hold(&mut self, attempt: &Attempt) -> Result<(), AbortReason> {
        well(
            self.state
                .hold_lease(&mut self.transaction, attempt.job.id, attempt.fence)
                .await,
        )
    }

    pub(crate) async fn cancel(&mut self, chains: &[ChainId]) -> Result<Vec<StoppedChain>, Refusal> {
        well(self.state.cancel_chains(Some(&mut self.transaction), chains).await)
    }

    pub(crate) async fn retry(&mut self, chains: &[ChainId]) -> Result<Vec<JobRecord>, Refusal> {
        well(self.state.retry_chains(Some(&mut self.transaction), chains).await)
    }

    pub(crate) async fn trigger(&mut self, jobs: &[JobId]) -> Result<Vec<JobRecord>, Refusal> {
        well(self.state.trigger_jobs(Some(&mut self.transaction), jobs).await)
    }

    pub(crate) async fn delete(&mut self, chains: &[ChainId], cascade: bool) -> Result<Vec<ChainId>, Refusal> {
        let delete = DeleteChains::new(chains.to_vec(), cascade);
        let deleted = well(self.state.delete_chains(Some(&mut self.transaction), &delete).await);
        deleted.map(|deleted| deleted.into_iter().map(|stopped| stopped.chain.id).collect())
    }
}

/// How a test ends the transaction that the other one waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Commit,
    Rollback,
}

pub(crate) const ENDS: [End; 2] = [End::Commit, End::Rollback];

impl Held {
    pub(crate) async fn end(self, end: End) {
        match end {
            End::Commit => self.commit().await,
            End::Rollback => self.rollback().await,
        }
    }
}

/// Runs a verb in a second transaction, proves that it waits for the first one, ends the first one, and commits the
/// second. What is left is what the verb answered.
macro_rules! collide {
    ($arena:expr, $first:expr, $end:expr, |$second:ident| $verb:expr) => {{
        let (first, mut held) = ($first, $arena.begin().await);
        let verb = tokio::spawn(async move {
            let $second = &mut held;
            let answer = $verb.await;
            held.commit().await;
            answer
        });
        $arena.until_blocked(&verb, first.backend).await;
        first.end($end).await;
        verb.await.expect("the verb came to its end")
    }};
}

pub(crate) use collide;
