//! Names that become part of statements, and names that must not.

use std::time::Duration;

use proptest::prelude::*;
use queuert::adapter::{ChainQuery, ClaimJobs, ClaimType, NewChain, NewJob, ReapLeases, ReapType, StateAdapter};
use queuert::{Deduplication, Fence, JobId, Payload, RetryPolicy, StateErrorKind, TypeName, WorkerId};
use queuert_fuzzing::{Stores, Watched, fuzz, lines, text};
use queuert_postgres::PostgresState;
use queuert_sqlite::SqliteState;
use sqlx::{AssertSqlSafe, Row};
use tokio::runtime::Runtime;
use uuid::Uuid;

const CORPUS: &str = include_str!("../../corpus/identifiers.txt");
const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/regressions/identifiers.txt");

fn chain(type_name: &str) -> NewChain {
    let id = JobId::from_uuid(Uuid::new_v4());
    NewChain::new(NewJob::new(id, type_name.to_owned(), Payload::from_text("1")))
}

/// A prefix is refused, or it is part of names and of nothing else.
async fn prefix(watched: &Watched, prefix: &str) {
    let plain = prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    match SqliteState::options().prefix(prefix).open(watched.file()).await {
        Ok(state) => {
            assert!(plain, "{prefix:?} was taken");
            let created = state.create_chains(None, &[chain("task")]).await;
            created.expect("well").expect("not refused");
            state.close().await.expect("closed");
        }
        Err(error) => assert_eq!(error.kind(), StateErrorKind::Misconfigured, "{prefix:?}: {error}"),
    }
    watched.assert_untouched().await;
}

#[test]
fn any_prefix_is_refused_or_harmless() {
    let runtime = Runtime::new().expect("a runtime can be built");
    let watched = runtime.block_on(Watched::new());
    let check = |text: String| runtime.block_on(prefix(&watched, &text));
    lines(CORPUS).into_iter().for_each(check);
    let check = |text: String| runtime.block_on(prefix(&watched, &text));
    fuzz(REGRESSIONS, 100, &text(CORPUS), check);
}

/// The statements that are handed out to be run by hand are as safe.
#[test]
fn exported_migrations_have_no_name_that_breaks_out() {
    fuzz(REGRESSIONS, 500, &text(CORPUS), |name| {
        if let Ok(steps) = SqliteState::migrations(&name) {
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'));
            assert!(steps.iter().all(|step| !step.sql.contains("{prefix}")));
        }
        if let Ok(steps) = PostgresState::migrations(&name) {
            let quoted = format!("\"{}\"", name.replace('"', "\"\""));
            assert!(!name.contains('\0') && steps[0].sql.contains(&quoted));
        }
    });
}

/// A schema is refused, or it has exactly that name and the tables are in it.
async fn schema(watched: &Watched, name: &str) {
    let mut server = watched.server_connection().await;
    let exists = "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)";
    let storable = !name.contains('\0');
    let before: bool = match storable {
        true => sqlx::query_scalar(exists)
            .bind(name)
            .fetch_one(&mut server)
            .await
            .expect("well"),
        false => false,
    };
    // What is there already belongs to somebody.
    if before {
        return;
    }
    match PostgresState::options()
        .schema(name)
        .max_connections(2)
        .connect(&watched.url)
        .await
    {
        Ok(state) => {
            let created = state.create_chains(None, &[chain("task")]).await;
            created.expect("well").expect("not refused");
            state.close().await;
            let tables =
                "SELECT count(*) FROM pg_tables WHERE schemaname = $1 AND tablename IN ('job', 'ready', 'running')";
            let tables: i64 = sqlx::query_scalar(tables)
                .bind(name)
                .fetch_one(&mut server)
                .await
                .expect("well");
            assert_eq!(tables, 3, "{name:?}");
            let quoted = name.replace('"', "\"\"");
            let drop = format!("SET client_min_messages = warning; DROP SCHEMA \"{quoted}\" CASCADE");
            watched.on_server(&drop).await;
        }
        Err(error) => {
            assert_eq!(error.kind(), StateErrorKind::Misconfigured, "{name:?}: {error}");
            if storable {
                let after: bool = sqlx::query_scalar(exists)
                    .bind(name)
                    .fetch_one(&mut server)
                    .await
                    .expect("well");
                assert!(!after, "{name:?} was refused and is there");
            }
        }
    }
    watched.assert_untouched().await;
}

#[test]
fn any_schema_is_refused_or_exactly_that() {
    let runtime = Runtime::new().expect("a runtime can be built");
    let watched = runtime.block_on(Watched::new());
    // Tests that run at the same time must not meet: of names that they could share, everybody has its own.
    let own = |text: String| match text.len() {
        0..6 => text,
        _ => {
            let mark = watched.schema.rsplit('_').next().unwrap_or_default();
            format!("{text}{mark}")
        }
    };
    let check = |text: String| runtime.block_on(schema(&watched, &text));
    // Each takes all migrations, so plain ones are left out.
    for line in lines(CORPUS) {
        if line
            .chars()
            .any(|character| !character.is_ascii_alphanumeric() && character != '_')
        {
            check(own(line));
        }
    }
    let texts = text(CORPUS).prop_filter("short ones are shared", |text| text.len() >= 6);
    fuzz(REGRESSIONS, 8, &texts, |text| check(own(text)));
}

/// Type names, keys and names of workers are values, whatever is in them.
async fn values<S: StateAdapter>(state: &S, text: &str) {
    let name = TypeName::from(text.to_owned());
    let mut keyed = chain(text);
    keyed.deduplication = Some(Deduplication::while_open(text.to_owned()));
    let mut again = chain(text);
    again.deduplication = keyed.deduplication.clone();
    let created = state
        .create_chains(None, &[keyed])
        .await
        .expect("well")
        .expect("not refused");
    let duplicate = state
        .create_chains(None, &[again])
        .await
        .expect("well")
        .expect("not refused");
    assert_eq!((duplicate[0].id, duplicate[0].deduplicated), (created[0].id, true));
    let worker = WorkerId::new(text.to_owned());
    let types = vec![ClaimType {
        name: name.clone(),
        lease: Duration::from_secs(60),
    }];
    let claim = ClaimJobs::new(types, 10, worker.clone(), Fence::from_uuid(Uuid::new_v4()));
    let claimed = state.claim_jobs(&claim).await.expect("well");
    assert_eq!(claimed.jobs.len(), 1);
    let job = &claimed.jobs[0].job;
    assert_eq!((&job.type_name, job.chain_id), (&name, created[0].id));
    assert_eq!(job.lease.as_ref().map(|lease| &lease.owner), Some(&worker));
    let types = vec![ReapType::new(name.clone(), RetryPolicy::new(), Duration::from_secs(60))];
    let reaped = state.reap_leases(&ReapLeases::new(types, 10, Vec::new())).await;
    assert!(reaped.expect("well").is_empty());
    let mut query = ChainQuery::default();
    (query.types, query.limit) = (Some(vec![name]), 10);
    assert_eq!(state.list_chains(None, &query).await.expect("well").len(), 1);
    let delete = queuert::adapter::DeleteChains::new(vec![created[0].id], false);
    state
        .delete_chains(None, &delete)
        .await
        .expect("well")
        .expect("not refused");
}

#[test]
fn any_name_is_a_value() {
    let stores = Stores::open();
    let usable = |text: &String| !text.is_empty() && !text.contains('\0') && text.len() <= TypeName::MAX_LENGTH;
    let check = |text: String| {
        stores.runtime.block_on(async {
            values(&stores.memory, &text).await;
            values(&stores.sqlite, &text).await;
            values(&stores.postgres, &text).await;
        });
    };
    lines(CORPUS).into_iter().filter(usable).for_each(&check);
    fuzz(REGRESSIONS, 60, &text(CORPUS).prop_filter("no name", usable), check);
    stores.runtime.block_on(stores.watched.assert_untouched());
    // Whatever was done, the tables are there.
    let text = format!("SELECT count(*) FROM {}.job", stores.watched.schema);
    let rows = stores.runtime.block_on(async {
        let mut server = stores.watched.server_connection().await;
        sqlx::query(AssertSqlSafe(text)).fetch_one(&mut server).await
    });
    assert_eq!(rows.expect("well").get::<i64, _>(0), 0);
}
