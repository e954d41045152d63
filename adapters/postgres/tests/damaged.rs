//! What the database has lost under a live process, and rows that something else has damaged. What every store does about a
//! damaged row is in the conformance suite.
#![expect(
    clippy::unwrap_used,
    reason = "the helpers of a test fail by panicking, as the test does"
)]

mod support;

use std::time::Duration;

use queuert::adapter::{
    Authority, ChainQuery, ClaimJobs, ClaimType, ClaimedJob, JobQuery, NewChain, NewJob, Outcome, Settled, Settlement,
    StateAdapter,
};
use queuert::{Deduplication, Fence, JobId, JobStatus, Payload, Schedule, StateErrorKind, WorkerId};
use queuert_postgres::PostgresState;
use sqlx::{AssertSqlSafe, Row};
use support::Schema;
use uuid::Uuid;

fn new_id() -> JobId {
    JobId::from_uuid(Uuid::from_u128(fastrand::u128(..)))
}

fn job(type_name: &str) -> NewJob {
    NewJob::new(new_id(), type_name.to_owned(), Payload::from_text("1"))
}

fn chain(type_name: &str) -> NewChain {
    NewChain::new(job(type_name))
}

async fn start(state: &PostgresState, chains: &[NewChain]) {
    let created = state.create_chains(None, chains).await.unwrap().unwrap();
    assert_eq!(created.len(), chains.len());
}

async fn claim(state: &PostgresState, types: &[&str], limit: usize) -> Vec<ClaimedJob> {
    let types = types.iter().map(|name| ClaimType {
        name: (*name).to_owned().into(),
        lease: Duration::from_secs(60),
    });
    let fence = Fence::from_uuid(Uuid::from_u128(fastrand::u128(..)));
    let claim = ClaimJobs::new(types.collect(), limit, WorkerId::new("tester"), fence);
    state.claim_jobs(&claim).await.unwrap().jobs
}

async fn run(schema: &Schema, statement: &str) {
    schema.run(&mut schema.connection().await, statement).await;
}

/// The table of types: name and number, in order of name.
async fn types(schema: &Schema) -> Vec<(String, i32)> {
    let text = format!("SELECT name, id FROM {}.job_type ORDER BY name", schema.name());
    let mut connection = schema.connection().await;
    sqlx::query_as(AssertSqlSafe(text))
        .fetch_all(&mut connection)
        .await
        .unwrap()
}

/// How many jobs have a number that the table of types does not have.
async fn nameless(schema: &Schema) -> i64 {
    let text = format!(
        "SELECT count(*) FROM {0}.job AS j WHERE NOT EXISTS (SELECT FROM {0}.job_type AS t WHERE t.id = j.type_id)",
        schema.name()
    );
    let mut connection = schema.connection().await;
    let row = sqlx::query(AssertSqlSafe(text))
        .fetch_one(&mut connection)
        .await
        .unwrap();
    row.get(0)
}

/// What a replica that lagged behind, or a crash without a flush, loses of a type: its row, and all of its jobs.
const LOSE_TYPES: &str = "DELETE FROM {schema}.job_type; TRUNCATE {schema}.job, {schema}.ready, {schema}.later";

#[tokio::test]
async fn every_way_to_start_a_chain_gives_a_lost_type_its_number_again() {
    let schema = Schema::new();
    let state = schema.state().await;
    start(&state, &[chain("small"), chain("large")]).await;
    let before = types(&schema).await;
    let keyed = || {
        let mut chain = chain("small");
        chain.deduplication = Some(Deduplication::while_open("key"));
        chain
    };
    let late = || {
        let mut job = job("small");
        job.schedule = Schedule::After(Duration::from_secs(3_600));
        NewChain::new(job)
    };
    let ways: [(&str, Vec<NewChain>); 4] = [
        ("alike", vec![chain("small"), chain("small")]),
        ("of two types", vec![chain("small"), chain("large")]),
        ("due later", vec![late(), late()]),
        ("with a key", vec![keyed()]),
    ];
    for (way, chains) in ways {
        run(&schema, LOSE_TYPES).await;
        start(&state, &chains).await;
        assert_eq!(nameless(&schema).await, 0, "{way}");
        let found = types(&schema).await;
        assert!(
            !found.is_empty() && found.iter().all(|one| before.contains(one)),
            "{way}: {found:?}"
        );
        run(&schema, "DELETE FROM {schema}.open_key").await;
        // In a transaction of the user's, whose snapshot is older than what puts it right.
        for isolation in ["READ COMMITTED", "REPEATABLE READ"] {
            run(&schema, LOSE_TYPES).await;
            let chains: Vec<NewChain> = chains
                .iter()
                .map(|chain| {
                    let mut chain = chain.clone();
                    chain.job.id = new_id();
                    chain
                })
                .collect();
            let mut tx = state.begin().await.unwrap();
            sqlx::raw_sql(AssertSqlSafe(format!("SET TRANSACTION ISOLATION LEVEL {isolation}")))
                .execute(&mut *tx)
                .await
                .unwrap();
            state.create_chains(Some(&mut tx), &chains).await.unwrap().unwrap();
            state.commit(tx).await.unwrap();
            assert_eq!(nameless(&schema).await, 0, "{way}, {isolation}");
            run(&schema, "DELETE FROM {schema}.open_key").await;
        }
    }
}

#[tokio::test]
async fn a_continuation_gives_a_lost_type_its_number_again() {
    let schema = Schema::new();
    let state = schema.state().await;
    start(&state, &[chain("next")]).await;
    let before = types(&schema).await;
    for within in [false, true] {
        for blocked in [false, true] {
            start(&state, &[chain("first"), chain("blocker")]).await;
            let blocker = claim(&state, &["blocker"], 1).await.remove(0).job.chain_id;
            let first = claim(&state, &["first"], 1).await.remove(0).job;
            run(&schema, "DELETE FROM {schema}.job_type WHERE name = 'next'").await;
            let mut next = job("next");
            next.blockers = blocked.then_some(blocker).into_iter().collect();
            let settlement = Settlement {
                job: first.id,
                authority: Authority::Fence {
                    fence: first.lease.unwrap().fence,
                    worker: WorkerId::new("tester"),
                },
                outcome: Outcome::Continue { next: Box::new(next) },
            };
            let settled = match within {
                false => state.settle_jobs(None, &[settlement]).await.unwrap(),
                true => {
                    let mut tx = state.begin().await.unwrap();
                    let settled = state.settle_in(&mut tx, &[settlement]).await.unwrap();
                    state.commit(tx).await.unwrap();
                    settled
                }
            };
            assert!(matches!(&settled[..], [Settled::Applied(_)]), "{settled:?}");
            assert_eq!(nameless(&schema).await, 0);
            let found = types(&schema).await;
            assert!(before.iter().all(|one| found.contains(one)), "{found:?}");
        }
    }
}

#[tokio::test]
async fn a_lost_number_is_never_that_of_another_type() {
    let schema = Schema::new();
    let (one, other) = (schema.state().await, schema.state().await);
    start(&one, &[chain("small")]).await;
    assert!(claim(&other, &["refund"], 10).await.is_empty());
    run(&schema, LOSE_TYPES).await;
    // Types come back in another order than they came first.
    for name in ["refund", "letter", "small"] {
        start(&schema.state().await, &[chain(name)]).await;
    }
    start(&one, &[chain("small")]).await;
    start(&other, &[chain("refund")]).await;
    for state in [&one, &other] {
        for name in ["refund", "small", "letter"] {
            for claimed in claim(state, &[name], 10).await {
                assert_eq!(claimed.job.type_name.as_str(), name);
                let stored = state.get_jobs(None, &[claimed.job.id]).await.unwrap();
                assert_eq!(stored[0].type_name.as_str(), name);
            }
        }
    }
    let listed = other.list_jobs(None, &page(|_| {})).await.unwrap();
    let mut names: Vec<&str> = listed.iter().map(|job| job.type_name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["letter", "refund", "refund", "small", "small"]);
}

fn page(set: impl FnOnce(&mut JobQuery)) -> JobQuery {
    let mut query = JobQuery::default();
    query.limit = 100;
    set(&mut query);
    query
}

#[tokio::test]
async fn a_schema_that_is_made_anew_under_a_live_process_goes_on() {
    let schema = Schema::new();
    let (one, other) = (schema.state().await, schema.state().await);
    start(&one, &[chain("small"), chain("large")]).await;
    assert_eq!(claim(&other, &["large", "small"], 10).await.len(), 2);
    run(&schema, "DROP SCHEMA {schema} CASCADE").await;
    let fresh = schema.state().await;
    start(&fresh, &[chain("refund")]).await;
    start(&one, &[chain("small")]).await;
    start(&other, &[chain("large")]).await;
    for (state, name) in [(&other, "small"), (&one, "large"), (&one, "refund")] {
        let claimed = claim(state, &[name], 10).await;
        assert_eq!(claimed.len(), 1, "{name}");
        assert_eq!(claimed[0].job.chain_type.as_str(), name);
        assert_eq!(claimed[0].job.unreadable, None);
    }
    assert_eq!(nameless(&schema).await, 0);
}

#[tokio::test]
async fn a_type_under_another_number_than_its_own_is_refused_and_not_believed() {
    let schema = Schema::new();
    let state = schema.state().await;
    start(&state, &[chain("small")]).await;
    run(
        &schema,
        "INSERT INTO {schema}.job_type (id, name) VALUES (1, 'mail'); \
         UPDATE {schema}.job SET type_id = 1, chain_type_id = 1; UPDATE {schema}.ready SET type_id = 1",
    )
    .await;
    // Nothing is read as the type that the row names.
    let other = schema.state().await;
    let listed = other.list_jobs(None, &page(|_| {})).await.unwrap();
    assert_eq!(listed[0].type_name.as_str(), "unknown type 1");
    assert!(listed[0].unreadable.is_some());
    // And nothing is written or claimed.
    let types = vec![ClaimType {
        name: "mail".into(),
        lease: Duration::from_secs(60),
    }];
    let claim = ClaimJobs::new(types, 10, WorkerId::new("tester"), Fence::from_uuid(Uuid::from_u128(1)));
    for state in [&state, &other] {
        let errors = [
            state.create_chains(None, &[chain("mail")]).await.unwrap_err(),
            state.claim_jobs(&claim).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), StateErrorKind::Misconfigured);
            let text = error.to_string();
            let told = text.contains("`mail` under the number 1") && text.contains("14210033");
            assert!(told && text.contains("correct the number"), "{text}");
        }
    }
}

/// The number is written as it is, though no type has it: otherwise the end of the attempt could never be written.
#[tokio::test]
async fn a_chain_whose_type_is_lost_goes_on() {
    let schema = Schema::new();
    let state = schema.state().await;
    for blocked in [false, true] {
        start(&state, &[chain("first"), chain("blocker")]).await;
        let blocker = claim(&state, &["blocker"], 1).await.remove(0).job.chain_id;
        let first = claim(&state, &["first"], 1).await.remove(0).job;
        run(
            &schema,
            &format!("UPDATE {{schema}}.job SET chain_type_id = 7 WHERE id = '{}'", first.id),
        )
        .await;
        let mut next = job("next");
        next.blockers = blocked.then_some(blocker).into_iter().collect();
        let next_id = next.id;
        let settlement = Settlement {
            job: first.id,
            authority: Authority::Fence {
                fence: first.lease.unwrap().fence,
                worker: WorkerId::new("tester"),
            },
            outcome: Outcome::Continue { next: Box::new(next) },
        };
        let settled = state.settle_jobs(None, &[settlement]).await.unwrap();
        assert!(matches!(&settled[..], [Settled::Applied(_)]), "{settled:?}");
        let next = state.get_jobs(None, &[next_id]).await.unwrap().remove(0);
        assert_eq!(next.type_name.as_str(), "next");
        assert_eq!(next.chain_type.as_str(), "unknown type 7", "it is not another type");
        let problem = next.unreadable.unwrap();
        assert!(problem.contains("`chain_type_id` is 7"), "{problem}");
    }
}

#[tokio::test]
async fn two_names_with_one_number_are_refused() {
    let schema = Schema::new();
    let state = schema.state().await;
    start(&state, &[chain("mail")]).await;
    run(&schema, "UPDATE {schema}.job_type SET name = 'letter'").await;
    let error = schema
        .state()
        .await
        .create_chains(None, &[chain("mail")])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StateErrorKind::Misconfigured);
    let text = error.to_string();
    assert!(
        text.contains("`mail`") && text.contains("`letter`") && text.contains("rename"),
        "{text}"
    );
}

#[tokio::test]
async fn jobs_whose_types_are_lost_are_listed_claimed_and_deleted() {
    let schema = Schema::new();
    let state = schema.state().await;
    let chains = [chain("small"), chain("large")];
    start(&state, &chains).await;
    run(&schema, "DELETE FROM {schema}.job_type WHERE name = 'small'").await;
    // A process that has never heard of it.
    let other = schema.state().await;
    for statuses in [None, Some(vec![JobStatus::Pending])] {
        let listed = other
            .list_jobs(None, &page(|query| query.statuses = statuses.clone()))
            .await
            .unwrap();
        assert_eq!(listed.len(), 2);
        let lost = listed.iter().find(|job| job.id == chains[0].job.id).unwrap();
        let problem = lost.unreadable.as_deref().unwrap();
        assert!(problem.contains("no job type has that number"), "{problem}");
        assert!(
            lost.type_name.as_str().starts_with("unknown type"),
            "{}",
            lost.type_name
        );
        let mut query = ChainQuery::default();
        (query.limit, query.statuses) = (10, statuses);
        assert_eq!(other.list_chains(None, &query).await.unwrap().len(), 2);
    }
    // The processes that run it know its name, and it is there again.
    let claimed = claim(&other, &["small"], 10).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(
        (claimed[0].job.type_name.as_str(), &claimed[0].job.unreadable),
        ("small", &None)
    );
    assert_eq!(nameless(&schema).await, 0);
}

#[tokio::test]
async fn numbers_at_their_limits_do_not_make_a_statement_fail() {
    let schema = Schema::new();
    let state = schema.state().await;
    let late = |delay| {
        let mut job = job("mail");
        job.schedule = Schedule::After(delay);
        NewChain::new(job)
    };
    let chains = [
        chain("mail"),
        chain("mail"),
        late(Duration::from_millis(1)),
        late(Duration::from_millis(1)),
    ];
    start(&state, &chains).await;
    let ids: Vec<JobId> = chains.iter().map(|chain| chain.job.id).collect();
    let largest = format!(
        "UPDATE {{schema}}.ready SET attempt = 2147483647, claims = 2147483647 WHERE id = '{}'; \
         UPDATE {{schema}}.later SET scheduled_at = -9223372036854775808, priority = 32767 WHERE id = '{}'",
        ids[0], ids[2]
    );
    run(&schema, &largest).await;
    tokio::time::sleep(Duration::from_millis(2)).await;
    let mut claimed = Vec::new();
    while claimed.len() < 4 {
        claimed.extend(claim(&state, &["mail"], 10).await);
    }
    // Each end of an attempt that calculates with them.
    for (claimed, outcome) in claimed.iter().zip([
        Outcome::Release,
        Outcome::Continue {
            next: Box::new(job("mail")),
        },
        Outcome::Release,
        Outcome::Continue {
            next: Box::new(job("mail")),
        },
    ]) {
        let settlement = Settlement {
            job: claimed.job.id,
            authority: Authority::Fence {
                fence: claimed.job.lease.as_ref().unwrap().fence,
                worker: WorkerId::new("tester"),
            },
            outcome,
        };
        let settled = state.settle_jobs(None, &[settlement]).await.unwrap();
        assert!(
            matches!(&settled[..], [Settled::Applied(_) | Settled::Refused(_)]),
            "{settled:?}"
        );
    }
}

#[tokio::test]
async fn a_job_with_an_unknown_status_is_listed_and_can_be_retried() {
    let schema = Schema::new();
    let state = schema.state().await;
    let chains = [chain("mail"), chain("mail")];
    start(&state, &chains).await;
    let ids = chains.each_ref().map(|chain| chain.job.id.as_chain());
    state.cancel_chains(None, &ids).await.unwrap().unwrap();
    run(
        &schema,
        &format!("UPDATE {{schema}}.stopped SET status = 9 WHERE id = '{}'", ids[0]),
    )
    .await;
    let listed = state.list_jobs(None, &page(|_| {})).await.unwrap();
    assert_eq!(listed.len(), 2);
    let bad = listed.iter().find(|job| job.chain_id == ids[0]).unwrap();
    assert!(bad.unreadable.as_deref().unwrap().contains("`status` is 9"), "{bad:?}");
    state.retry_chains(None, &ids).await.unwrap().unwrap();
    assert_eq!(claim(&state, &["mail"], 10).await.len(), 2);
}
