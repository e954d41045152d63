//! Rows whose two numbers for the type of a job differ, and rows of state without a job.
#![expect(
    clippy::unwrap_used,
    reason = "the helpers of a test fail by panicking, as the test does"
)]

mod support;

use std::time::Duration;

use queuert::adapter::{
    ChainQuery, ClaimJobs, ClaimType, ClaimedJob, DeleteChains, JobQuery, Maintain, NewChain, NewJob, ReapLeases,
    ReapType, ReapedJob, StateAdapter,
};
use queuert::{Fence, JobId, JobStatus, Payload, RetryPolicy, Schedule, WorkerId};
use queuert_postgres::PostgresState;
use sqlx::AssertSqlSafe;
use support::Schema;
use uuid::Uuid;

struct Store {
    schema: Schema,
    state: PostgresState,
}

impl Store {
    async fn new() -> Self {
        let schema = Schema::new();
        let state = schema.state().await;
        let mut connection = schema.connection().await;
        schema.run(&mut connection, &support::add_types(&["other"])).await;
        Self { schema, state }
    }

    async fn start(&self, schedule: Schedule) -> JobId {
        let id = JobId::from_uuid(Uuid::from_u128(fastrand::u128(..)));
        let mut job = NewJob::new(id, "mail", Payload::from_text("1"));
        job.schedule = schedule;
        let created = self.state.create_chains(None, &[NewChain::new(job)]).await.unwrap();
        created.unwrap();
        id
    }

    async fn claim(&self, type_name: &str) -> Vec<ClaimedJob> {
        let types = vec![ClaimType {
            name: type_name.to_owned().into(),
            lease: Duration::from_secs(60),
        }];
        let fence = Fence::from_uuid(Uuid::from_u128(fastrand::u128(..)));
        let claim = ClaimJobs::new(types, 10, WorkerId::new("tester"), fence);
        self.state.claim_jobs(&claim).await.unwrap().jobs
    }

    async fn reap(&self, type_name: &str) -> Vec<ReapedJob> {
        self.run("UPDATE {schema}.running SET leased_until = 1").await;
        let types = vec![ReapType::new(
            type_name.to_owned(),
            RetryPolicy::new(),
            Duration::from_secs(60),
        )];
        let reap = ReapLeases::new(types, 10, Vec::new());
        self.state.reap_leases(&reap).await.unwrap()
    }

    async fn run(&self, statement: &str) {
        self.schema.run(&mut self.schema.connection().await, statement).await;
    }

    /// Gives the job the number of another type in one of the tables.
    async fn set_type(&self, table: &str, id: JobId, number: &str) {
        self.run(&format!(
            "UPDATE {{schema}}.{table} SET type_id = {number} WHERE id = '{id}'"
        ))
        .await;
    }

    async fn rows(&self, table: &str) -> i64 {
        let text = format!("SELECT count(*) FROM {}.{table}", self.schema.name());
        let mut connection = self.schema.connection().await;
        let count = sqlx::query_scalar(AssertSqlSafe(text)).fetch_one(&mut connection).await;
        count.unwrap()
    }

    /// What upkeep finds until all rows have been checked.
    async fn findings(&self) -> Vec<String> {
        self.run("UPDATE {schema}.maintainer SET checked_at = 0").await;
        let checked = format!("SELECT checked_at FROM {}.maintainer", self.schema.name());
        let mut connection = self.schema.connection().await;
        let mut findings = Vec::new();
        loop {
            let maintain = Maintain::new(WorkerId::new("maintainer"));
            findings.extend(self.state.maintain(&maintain).await.unwrap().findings);
            let search = sqlx::query_scalar(AssertSqlSafe(checked.clone()));
            if search.fetch_one(&mut connection).await.map(|at: i64| at > 0).unwrap() {
                return findings;
            }
        }
    }
}

const OTHER: &str = "(SELECT id FROM {schema}.job_type WHERE name = 'other')";
const MAIL: &str = "(SELECT id FROM {schema}.job_type WHERE name = 'mail')";

/// Whichever way a damaged job takes back into a queue, that is the queue that it was in, and it says that it is damaged.
/// Once it is mended it runs.
#[tokio::test]
async fn a_job_stays_in_its_queue_whatever_its_row_says() {
    let store = Store::new().await;
    let id = store.start(Schedule::Now).await;
    let chain = [id.as_chain()];
    assert_eq!(store.claim("mail").await.len(), 1);
    store.set_type("job", id, OTHER).await;
    let reaped = store.reap("mail").await.remove(0).job;
    assert_eq!((reaped.type_name.as_str(), reaped.status), ("mail", JobStatus::Dead));
    store.state.retry_chains(None, &chain).await.unwrap().unwrap();
    store.state.cancel_chains(None, &chain).await.unwrap().unwrap();
    store.state.retry_chains(None, &chain).await.unwrap().unwrap();
    assert!(store.claim("other").await.is_empty(), "it is of another type now");
    let claimed = store.claim("mail").await.remove(0).job;
    let problem = claimed.unreadable.unwrap();
    assert!(
        problem.contains("in `job`") && problem.contains("in `ready`"),
        "{problem}"
    );
    store.set_type("job", id, MAIL).await;
    assert_eq!(store.reap("mail").await[0].job.unreadable, None);
    store.run("UPDATE {schema}.later SET scheduled_at = 1").await;
    let claimed = store.claim("mail").await.remove(0).job;
    assert_eq!((claimed.type_name.as_str(), claimed.unreadable), ("mail", None));
}

/// No claim finds it, so lists say what is wrong with it, and the check of all rows tells of it and what to do.
#[tokio::test]
async fn a_job_in_a_queue_that_nobody_has_is_seen_and_told_of() {
    let store = Store::new().await;
    let later = Schedule::After(Duration::from_secs(3_600));
    for (table, schedule) in [("ready", Schedule::Now), ("later", later)] {
        for number in ["7", OTHER] {
            let (id, sound) = (store.start(schedule).await, store.start(schedule).await);
            store.set_type(table, id, number).await;
            let mut query = JobQuery::default();
            (query.statuses, query.limit) = (Some(vec![JobStatus::Pending]), 10);
            let jobs = store.state.list_jobs(None, &query).await.unwrap();
            let mut query = ChainQuery::default();
            query.limit = 10;
            let chains = store.state.list_chains(None, &query).await.unwrap();
            let found = |id: JobId| {
                let job = jobs.iter().find(|job| job.id == id).unwrap();
                let chain = chains.iter().find(|chain| chain.latest_job == id).unwrap();
                (job.unreadable.clone(), chain.unreadable.clone())
            };
            assert_eq!(found(sound), (None, None));
            let (job, chain) = found(id);
            let place = format!("in `{table}`");
            assert!(job.as_ref().is_some_and(|problem| problem.contains(&place)), "{job:?}");
            assert!(chain.is_some(), "{table} {number}");
            let findings = store.findings().await;
            let place = format!("in the table `{table}`");
            assert!(
                findings.len() == 1 && findings[0].contains(&id.to_string()) && findings[0].contains(&place),
                "{findings:?}"
            );
            let delete = DeleteChains::new(vec![id.as_chain(), sound.as_chain()], false);
            store.state.delete_chains(None, &delete).await.unwrap().unwrap();
        }
    }
    // A number that the table of types does not have, wherever it stands.
    let id = store.start(Schedule::Now).await;
    let nameless = "UPDATE {schema}.job SET type_id = 7, chain_type_id = 7; UPDATE {schema}.ready SET type_id = 7";
    store.run(nameless).await;
    let findings = store.findings().await;
    assert!(
        findings.len() == 1 && findings[0].contains(&id.to_string()) && findings[0].contains("`job_type`"),
        "{findings:?}"
    );
}

/// A claim takes them away, because to leave them would cost every claim, and says so; a sweep leaves them where they are.
#[tokio::test]
async fn rows_without_a_job_are_told_of() {
    let store = Store::new().await;
    let (lost, sound) = (store.start(Schedule::Now).await, store.start(Schedule::Now).await);
    let delete = |id| format!("DELETE FROM {{schema}}.job WHERE id = '{id}'");
    store.run(&delete(lost)).await;
    let claimed: Vec<JobId> = store.claim("mail").await.iter().map(|claimed| claimed.job.id).collect();
    assert_eq!(claimed, [sound]);
    assert_eq!(store.rows("ready").await, 0);
    let findings = store.findings().await;
    assert!(
        findings.len() == 1 && findings[0].contains(&lost.to_string()) && findings[0].contains("`ready` had no job"),
        "{findings:?}"
    );
    assert_eq!(store.findings().await, Vec::<String>::new(), "it is told once");
    store.run(&delete(sound)).await;
    assert!(store.reap("mail").await.is_empty());
    assert_eq!(store.rows("running").await, 1);
    let findings = store.findings().await;
    assert!(
        findings.len() == 1
            && findings[0].contains(&sound.to_string())
            && findings[0].contains("`running` have no job"),
        "{findings:?}"
    );
}
