//! The watermark of followers, and what the server can know of it: locks, sessions of other roles, prepared transactions, standbys.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use postgres_support::{Cluster, ClusterOptions};
use queuert::adapter::{Authority, ClaimJobs, ClaimType, NewChain, NewJob, Outcome, Settled, Settlement, StateAdapter};
use queuert::{
    ChainId, Client, Cursor, Deduplication, Fence, JobId, Payload, StateError, StateErrorKind, Timestamp, WorkerId,
};
use queuert_postgres::PostgresState;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use support::Schema;
use uuid::Uuid;

/// Until here something must have happened; it only counts if it does not.
const PATIENCE: Duration = Duration::from_secs(60);

/// An id that no other test of this process has; each has a schema of its own.
fn id() -> Uuid {
    static LAST: AtomicU64 = AtomicU64::new(0);
    Uuid::from_u128(u128::from(LAST.fetch_add(1, Ordering::Relaxed) + 1))
}

fn job(type_name: &'static str) -> NewJob {
    NewJob::new(JobId::from_uuid(id()), type_name, Payload::from_text("{}"))
}

async fn start(state: &PostgresState, chain: NewChain) -> ChainId {
    let created = state.create_chains(None, &[chain]).await;
    created.expect("the store answers").expect("the chain starts")[0].id
}

async fn created_at(state: &PostgresState, job: JobId) -> Timestamp {
    let found = state.get_jobs(None, &[job]).await.expect("the store answers");
    found.first().expect("the job exists").created_at
}

async fn watermark(state: &PostgresState) -> Result<Timestamp, StateError> {
    state.watermark().await
}

/// Waits until the watermark has passed this time: statements may still be under way.
async fn passes(state: &PostgresState, time: Timestamp) {
    let later = async {
        while watermark(state).await.expect("the store knows") <= time {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, later)
        .await
        .expect("the watermark passes");
}

/// The ways in which jobs are written, each with a statement of its own.
#[derive(Clone, Copy, Debug)]
enum Way {
    Start,
    StartLater,
    StartInTransaction,
    StartWithKey,
    StartBlocked,
    Continue,
    ContinueInTransaction,
    ContinueBlocked,
}

const WAYS: [Way; 8] = [
    Way::Start,
    Way::StartLater,
    Way::StartInTransaction,
    Way::StartWithKey,
    Way::StartBlocked,
    Way::Continue,
    Way::ContinueInTransaction,
    Way::ContinueBlocked,
];

/// Writes a job, beside the chain of type `blocker` and the claimed one of type `first`.
async fn write(state: &PostgresState, way: Way, blocker: ChainId, first: (JobId, Fence)) -> JobId {
    let mut new = job("second");
    let id = new.id;
    if matches!(way, Way::StartBlocked | Way::ContinueBlocked) {
        new.blockers = vec![blocker];
    }
    if matches!(way, Way::StartLater) {
        new.schedule = queuert::Schedule::After(Duration::from_secs(60));
    }
    let within = matches!(way, Way::StartInTransaction | Way::ContinueInTransaction);
    let mut transaction = match within {
        true => Some(state.begin().await.expect("a transaction can be begun")),
        false => None,
    };
    let connection = transaction.as_deref_mut();
    if matches!(way, Way::Continue | Way::ContinueInTransaction | Way::ContinueBlocked) {
        let settlement = Settlement {
            job: first.0,
            authority: Authority::Fence {
                fence: first.1,
                worker: WorkerId::new("worker"),
            },
            outcome: Outcome::Continue { next: Box::new(new) },
        };
        let answers = state.settle_jobs(connection, &[settlement]).await;
        let answers = answers.expect("the store answers");
        assert!(matches!(answers[..], [Settled::Applied(_)]), "{way:?}: {answers:?}");
    } else {
        let mut chain = NewChain::new(new);
        if matches!(way, Way::StartWithKey) {
            chain.deduplication = Some(Deduplication::from("key"));
        }
        let created = state.create_chains(connection, &[chain]).await;
        created.expect("the store answers").expect("the chain starts");
    }
    if let Some(transaction) = transaction {
        state.commit(transaction).await.expect("it commits");
    }
    id
}

/// However a job is written, its time is read when the table is locked for that, and not before. Each way is stopped at the
/// lock; the watermark of that moment must not be later than the job, which has not been written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_of_a_job_is_read_under_the_lock_of_the_table() {
    for isolation in ["read committed", "repeatable read"] {
        let schema = Schema::new();
        let options = schema.connect_options();
        let options = options.options([("default_transaction_isolation", isolation)]);
        let state = schema.options().connect_with(options).await;
        let state = state.expect("the test server can be used");
        let mut rival = schema.connection().await;
        for way in WAYS {
            let blocker = start(&state, NewChain::new(job("blocker"))).await;
            start(&state, NewChain::new(job("first"))).await;
            let types = vec![ClaimType {
                name: "first".into(),
                lease: PATIENCE,
            }];
            let fence = Fence::from_uuid(id());
            let claim = ClaimJobs::new(types, 1, WorkerId::new("worker"), fence);
            let claimed = state.claim_jobs(&claim).await.expect("the store answers");
            let first = (claimed.jobs[0].job.id, fence);
            // The type is known from here on, so that nothing but the job is left to be written.
            start(&state, NewChain::new(job("second"))).await;

            schema
                .run(&mut rival, "BEGIN; LOCK TABLE {schema}.job IN SHARE MODE")
                .await;
            let writer = tokio::spawn({
                let state = state.clone();
                async move { write(&state, way, blocker, first).await }
            });
            let waits = format!(
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'RowExclusiveLock' \
                 AND relation = '{}.job'::regclass",
                schema.name()
            );
            let waiting = async {
                while sqlx::query_scalar::<_, i64>(AssertSqlSafe(waits.clone()))
                    .fetch_one(&mut rival)
                    .await
                    .expect("the server answers")
                    == 0
                {
                    assert!(!writer.is_finished(), "{way:?} does not wait for the lock");
                }
            };
            tokio::time::timeout(PATIENCE, waiting)
                .await
                .unwrap_or_else(|_| panic!("{way:?} does not come to the lock"));
            let time = watermark(&state).await.expect("the store knows");
            schema.run(&mut rival, "ROLLBACK").await;
            let written = writer.await.expect("the writer does not fail");
            let created = created_at(&state, written).await;
            assert!(
                created >= time,
                "{way:?}, {isolation}: created at {created}, before the watermark {time}"
            );
        }
    }
}

/// Sessions that have the table locked in other ways, or have only read it, hold up nobody.
#[tokio::test]
async fn a_session_that_writes_no_jobs_holds_up_nobody() {
    let schema = Schema::new();
    let state = schema.state().await;
    let seed = start(&state, NewChain::new(job("mail"))).await;
    let mut idle = schema.connection().await;
    for begin in [
        "BEGIN; SELECT * FROM {schema}.job",
        "BEGIN; SELECT * FROM {schema}.job FOR UPDATE",
        "BEGIN; LOCK TABLE {schema}.job IN SHARE UPDATE EXCLUSIVE MODE",
        "BEGIN; CREATE TABLE {schema}.other (n integer); INSERT INTO {schema}.other VALUES (1)",
        "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT * FROM {schema}.job",
    ] {
        schema.run(&mut idle, begin).await;
        let chain = start(&state, NewChain::new(job("mail"))).await;
        passes(&state, created_at(&state, chain.first_job()).await).await;
        schema.run(&mut idle, "ROLLBACK").await;
    }
    // One that writes jobs does, and not longer than its transaction.
    schema
        .run(&mut idle, "BEGIN; DELETE FROM {schema}.job WHERE false")
        .await;
    let chain = start(&state, NewChain::new(job("mail"))).await;
    let created = created_at(&state, chain.first_job()).await;
    assert!(watermark(&state).await.expect("the store knows") <= created);
    assert!(watermark(&state).await.expect("the store knows") > created_at(&state, seed.first_job()).await);
    schema.run(&mut idle, "ROLLBACK").await;
    passes(&state, created).await;
}

/// A role that may not see when the transactions of another role began is told which right it lacks, as long as there is such
/// a transaction.
#[tokio::test]
async fn a_role_that_may_not_look_is_told_what_it_lacks() {
    let schema = Schema::new();
    let state = schema.state().await;
    let role = postgres_support::unique_name("queuert_follower");
    let mut admin = schema.connection().await;
    let grants = format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {{schema}} TO {role}; \
         GRANT ALL ON ALL TABLES IN SCHEMA {{schema}} TO {role}"
    );
    schema.run(&mut admin, &grants).await;
    let options = schema.connect_options().username(&role);
    let follower = schema.options().connect_with(options).await;
    let follower = follower.expect("the role may use the schema");
    start(&state, NewChain::new(job("mail"))).await;
    watermark(&follower).await.expect("nobody writes");

    let mut open = state.begin().await.expect("a transaction can be begun");
    let late = job("mail");
    let late_id = late.id;
    let created = state.create_chains(Some(&mut open), &[NewChain::new(late)]).await;
    created.expect("the store answers").expect("the chain starts");
    let error = watermark(&follower).await.expect_err("it cannot know");
    assert_eq!(error.kind(), StateErrorKind::Misconfigured);
    let grant = format!("GRANT pg_read_all_stats TO \"{role}\"");
    assert!(error.to_string().contains(&grant), "{error}");

    schema.run(&mut admin, &grant).await;
    let time = watermark(&follower).await.expect("it may know now");
    state.commit(open).await.expect("it commits");
    assert!(time <= created_at(&state, late_id).await);
    passes(&follower, created_at(&state, late_id).await).await;

    follower.close().await;
    schema
        .run(&mut admin, &format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await;
}

/// The watermark passes nothing while a transaction is prepared, because nothing says when it began. What it wrote is not missed.
#[tokio::test]
async fn a_prepared_transaction_holds_up_followers() {
    let cluster = ClusterOptions::default()
        .setting("max_prepared_transactions", "4")
        .start()
        .await;
    let state = PostgresState::connect(&cluster.url())
        .await
        .expect("the server can be used");
    let client = Client::new(state.clone());
    let early = start(&state, NewChain::new(job("mail"))).await;
    passes(&state, created_at(&state, early.first_job()).await).await;
    let mut seen = Vec::new();
    let mut cursor = read(&client, None, &mut seen).await;
    assert_eq!(seen, [early]);

    let mut open = state.begin().await.expect("a transaction can be begun");
    let late = job("mail");
    let late_id = late.id.as_chain();
    let created = state.create_chains(Some(&mut open), &[NewChain::new(late)]).await;
    created.expect("the store answers").expect("the chain starts");
    run(&mut open, "PREPARE TRANSACTION 'late'").await;
    drop(open);
    let meanwhile = start(&state, NewChain::new(job("mail"))).await;
    let before = cursor;
    cursor = read(&client, Some(cursor), &mut seen).await;
    assert_eq!(
        (seen.len(), cursor),
        (1, before),
        "nothing new is given, and the cursor stays"
    );

    let mut connection = PgConnection::connect(&cluster.url())
        .await
        .expect("the server can be reached");
    run(&mut connection, "COMMIT PREPARED 'late'").await;
    passes(&state, created_at(&state, meanwhile.first_job()).await).await;
    read(&client, Some(cursor), &mut seen).await;
    assert_eq!(seen, [early, late_id, meanwhile]);
}

async fn read(client: &Client<PostgresState>, cursor: Option<Cursor>, seen: &mut Vec<ChainId>) -> Cursor {
    let page = client
        .list_chains()
        .follow(cursor)
        .await
        .expect("chains can be followed");
    seen.extend(page.items.iter().map(|chain| chain.id));
    page.next
}

async fn run(connection: &mut PgConnection, sql: &'static str) {
    let done = sqlx::raw_sql(sql).execute(connection).await;
    done.unwrap_or_else(|error| panic!("{error}: {sql}"));
}

/// A standby does not know the transactions of its primary, and says so.
#[tokio::test]
async fn a_standby_cannot_be_followed() {
    let primary = Cluster::launch().await;
    let state = PostgresState::connect(&primary.url())
        .await
        .expect("the server can be used");
    start(&state, NewChain::new(job("mail"))).await;
    let standby = primary.standby(primary.port(), true).await;
    let replica = PostgresState::connect(&standby.url())
        .await
        .expect("the standby has the schema");
    let listed = Client::new(replica.clone())
        .list_chains()
        .await
        .expect("it can be read");
    assert_eq!(listed.items.len(), 1);
    let error = watermark(&replica).await.expect_err("it cannot know");
    assert_eq!(error.kind(), StateErrorKind::Misconfigured);
    assert!(error.to_string().contains("follow on the primary"), "{error}");
}
