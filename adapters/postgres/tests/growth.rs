//! What statements do for large calls, by the counts of the server: every node of a plan says how often it ran and how many
//! rows it had. Twice as large a call may cost twice as much, and no more. How long it takes is measured by
//! `scripts/bench growth`.

mod support;

use std::time::Duration;

use queuert::adapter::{
    Authority, ClaimJobs, ClaimType, NewChain, NewJob, Outcome, Refusal, Settled, Settlement, StateAdapter,
};
use queuert::{ChainId, Deduplication, Fence, JobId, Payload, WorkerId};
use queuert_postgres::PostgresState;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use support::Schema;
use uuid::Uuid;

fn uuid() -> Uuid {
    Uuid::from_u128(fastrand::u128(..))
}

fn chain(type_name: &str) -> NewChain {
    NewChain::new(NewJob::new(
        JobId::from_uuid(uuid()),
        type_name.to_owned(),
        Payload::from_text("1"),
    ))
}

/// A store with one connection, on which its statements stay prepared.
async fn store(schema: &Schema) -> PostgresState {
    let options = schema.options().max_connections(1);
    let state = options.connect_with(schema.connect_options()).await;
    state.expect("the test server can be used")
}

async fn start(state: &PostgresState, chains: &[NewChain]) -> Vec<ChainId> {
    let created = state.create_chains(None, chains).await.expect("the store is well");
    let created = created.expect("nothing is wrong with them");
    created.into_iter().map(|chain| chain.id).collect()
}

fn claim_of(types: &[String], limit: usize) -> ClaimJobs {
    let types = types.iter().map(|name| ClaimType {
        name: name.clone().into(),
        lease: Duration::from_secs(600),
    });
    ClaimJobs::new(
        types.collect(),
        limit,
        WorkerId::new("worker"),
        Fence::from_uuid(uuid()),
    )
}

/// Runs the only statement that the store has prepared with this text in it, with these arguments, and undoes it. Returns its
/// plan with what each node did.
async fn explain(state: &PostgresState, text: &str, arguments: &[String]) -> serde_json::Value {
    let mut connection = state.pool().acquire().await.expect("the only connection is free");
    let search = "SELECT name FROM pg_prepared_statements WHERE position($1 in statement) > 0";
    let names: Vec<String> = sqlx::query_scalar(search)
        .bind(text)
        .persistent(false)
        .fetch_all(&mut *connection)
        .await
        .expect("the connection knows its statements");
    let [name] = &names[..] else {
        panic!("one statement has `{text}`: {names:?}");
    };
    let text = format!(
        "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE {name}({})",
        arguments.join(", ")
    );
    run(&mut connection, "BEGIN").await;
    let plan = sqlx::raw_sql(AssertSqlSafe(text)).fetch_one(&mut *connection).await;
    run(&mut connection, "ROLLBACK").await;
    let plan: String = plan
        .expect("a statement can be explained")
        .try_get_unchecked(0)
        .expect("a plan");
    let mut plans: Vec<serde_json::Value> = serde_json::from_str(&plan).expect("JSON");
    plans.pop().expect("one plan")["Plan"].take()
}

async fn run(connection: &mut PgConnection, text: &'static str) {
    let done = sqlx::raw_sql(text).execute(connection).await;
    done.expect("the connection is well");
}

/// All nodes of a plan.
fn nodes(node: &serde_json::Value) -> Vec<&serde_json::Value> {
    let below = node["Plans"].as_array().into_iter().flatten().flat_map(nodes);
    std::iter::once(node).chain(below).collect()
}

/// What a node did: its runs, and the rows that it had or threw away.
fn work(node: &serde_json::Value) -> f64 {
    let number = |name: &str| node[name].as_f64().unwrap_or_default();
    let removed = number("Rows Removed by Filter") + number("Rows Removed by Join Filter");
    (1.0 + number("Actual Rows") + removed) * number("Actual Loops")
}

fn total_work(plan: &serde_json::Value) -> f64 {
    nodes(plan).into_iter().map(work).sum()
}

/// How many rows were read of a table.
fn rows_of(plan: &serde_json::Value, table: &str) -> f64 {
    let nodes = nodes(plan).into_iter().filter(|node| node["Relation Name"] == table);
    let number = |node: &serde_json::Value, name: &str| node[name].as_f64().unwrap_or_default();
    nodes
        .map(|node| {
            (number(node, "Actual Rows") + number(node, "Rows Removed by Filter")) * number(node, "Actual Loops")
        })
        .sum()
}

fn list<T: ToString>(items: impl IntoIterator<Item = T>, of: &str) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    format!("'{{{}}}'::{of}[]", items.join(","))
}

fn assert_linear(small: f64, large: f64, what: &str) {
    assert!(small > 0.0, "{what}: nothing was counted");
    assert!(
        large <= small * 2.5,
        "{what}: {small} for one size, {large} for twice the size"
    );
}

/// Every item leaves out a chain that has its key: the search for what is left out must not be through those of all items.
#[tokio::test]
async fn keyed_starts_cost_what_they_are_however_many_a_call_has() {
    let schema = Schema::new();
    let state = store(&schema).await;
    let keyed = |number: usize, except: Option<ChainId>| {
        let mut chain = chain("mail");
        chain.deduplication = Some(Deduplication::while_open(format!("key-{number}")).except_ids(except));
        chain
    };
    let first: Vec<NewChain> = (0..1_000).map(|number| keyed(number, None)).collect();
    let open = start(&state, &first).await;
    let beside: Vec<NewChain> = open
        .iter()
        .enumerate()
        .map(|(number, open)| keyed(number, Some(*open)))
        .collect();
    assert_eq!(start(&state, &beside[..10]).await.len(), 10);
    let type_id: i32 = {
        let mut connection = schema.connection().await;
        let text = format!("SELECT id FROM {}.job_type WHERE name = 'mail'", schema.name());
        let id = sqlx::query_scalar(AssertSqlSafe(text)).fetch_one(&mut connection).await;
        id.expect("the type has a number")
    };
    let arguments = |items: usize| {
        let types = list(std::iter::repeat_n(type_id, items), "integer");
        let keys = list((0..items).map(|number| format!("key-{number}")), "text");
        let left_out = list(open[..items].iter().map(|chain| chain.as_uuid()), "uuid");
        let places = list(1..=items, "integer");
        (types, keys, left_out, places)
    };
    let (mut searches, mut takes) = (Vec::new(), Vec::new());
    for items in [500, 1_000] {
        let (types, keys, left_out, places) = arguments(items);
        let since = list(std::iter::repeat_n("NULL", items), "bigint");
        let search = [&types, &keys, &since, &left_out, &places, &places].map(Clone::clone);
        searches.push(total_work(
            &explain(&state, "AS item(type_id, key, since", &search).await,
        ));
        let new = list((0..items).map(|_| uuid()), "uuid");
        let (known, beside) = (list(vec!["t"; items], "boolean"), list(vec!["f"; items], "boolean"));
        let take = [
            "1".to_owned(),
            types,
            new,
            keys,
            known,
            beside,
            left_out,
            places.clone(),
            places,
        ];
        takes.push(total_work(
            &explain(&state, "AS given(type_id, chain_id, key, existed", &take).await,
        ));
    }
    assert_linear(searches[0], searches[1], "the search for chains with the keys");
    assert_linear(takes[0], takes[1], "taking the keys");
}

/// Chains that all wait for the same ones, and the ones for which the last of them wait.
async fn graph(state: &PostgresState, wide: usize, shared: usize) -> Vec<ChainId> {
    let bottom: Vec<NewChain> = (0..shared).map(|_| chain("shared")).collect();
    let bottom = start(state, &bottom).await;
    let top: Vec<NewChain> = (0..wide)
        .map(|_| {
            let mut chain = chain("wide");
            chain.job.blockers.clone_from(&bottom);
            chain
        })
        .collect();
    start(state, &top).await
}

async fn continue_with(state: &PostgresState, blockers: &[ChainId]) -> (ChainId, Settled) {
    let first = start(state, &[chain("first")]).await[0];
    let claim = claim_of(&["first".to_owned()], 1);
    let claimed = state.claim_jobs(&claim).await.expect("the store is well").jobs;
    let mut next = NewJob::new(JobId::from_uuid(uuid()), "next", Payload::from_text("1"));
    next.blockers = blockers.to_vec();
    let settlement = Settlement {
        job: claimed[0].job.id,
        authority: Authority::Fence {
            fence: claim.fence,
            worker: WorkerId::new("worker"),
        },
        outcome: Outcome::Continue { next: Box::new(next) },
    };
    let mut settled = state.settle_jobs(None, &[settlement]).await.expect("the store is well");
    (first, settled.remove(0))
}

/// One search for all blockers: every chain on the way is looked at once, and every edge read once.
#[tokio::test]
async fn the_search_for_a_circle_reads_every_edge_once() {
    const SHARED: usize = 20;
    let schema = Schema::new();
    let state = store(&schema).await;
    let mut costs = Vec::new();
    for wide in [200, 400] {
        let top = graph(&state, wide, SHARED).await;
        let (_, settled) = continue_with(&state, &top).await;
        assert!(matches!(settled, Settled::Applied(_)), "{settled:?}");
        let blockers = list(top.iter().map(|chain| chain.as_uuid()), "uuid");
        let plan = explain(&state, "WITH RECURSIVE ahead(id)", &[blockers]).await;
        assert_eq!(rows_of(&plan, "blocker"), (wide * SHARED) as f64, "{plan:#}");
        // Its row in the table of jobs and the one in the table of what waits, for each chain.
        assert!(rows_of(&plan, "job") <= (2 * (wide + SHARED)) as f64, "{plan:#}");
        assert!(rows_of(&plan, "waiting") <= (wide + SHARED) as f64, "{plan:#}");
        costs.push(total_work(&plan));
    }
    assert_linear(costs[0], costs[1], "the search for a circle");
}

/// A long way is followed chain by chain, and its chains are locked without comparing each with each.
#[tokio::test]
async fn a_long_way_is_locked_chain_by_chain() {
    let schema = Schema::new();
    let state = store(&schema).await;
    let mut chains = vec![chain("deep")];
    for _ in 0..2_000 {
        let mut next = chain("deep");
        next.job.blockers = vec![chains[chains.len() - 1].job.id.as_chain()];
        chains.push(next);
    }
    let chains = start(&state, &chains).await;
    let (_, settled) = continue_with(&state, &chains[2_000..]).await;
    assert!(matches!(settled, Settled::Applied(_)), "{settled:?}");
    let mut costs = Vec::new();
    for length in [1_000, 2_000] {
        let ids = list(chains[..length].iter().map(|chain| chain.as_uuid()), "uuid");
        let locked = explain(&state, "SKIP LOCKED\n), in_", &[ids]).await;
        costs.push(total_work(&locked));
    }
    assert_linear(costs[0], costs[1], "the locks of a long way");
    // The last of them leads to all others, so a job of the first cannot wait for it.
    let claim = claim_of(&["deep".to_owned()], 1);
    let claimed = state.claim_jobs(&claim).await.expect("the store is well").jobs;
    assert_eq!(claimed[0].job.chain_id, chains[0]);
    let mut next = NewJob::new(JobId::from_uuid(uuid()), "next", Payload::from_text("1"));
    next.blockers = vec![chains[2_000]];
    let refusal = Refusal::BlockerCycle {
        job: next.id,
        chain: chains[2_000],
    };
    let settlement = Settlement {
        job: claimed[0].job.id,
        authority: Authority::Fence {
            fence: claim.fence,
            worker: WorkerId::new("worker"),
        },
        outcome: Outcome::Continue { next: Box::new(next) },
    };
    let settled = state.settle_jobs(None, &[settlement]).await.expect("the store is well");
    assert_eq!(settled, [Settled::Refused(refusal)]);
}

/// A claim of many types looks once at each, and at few jobs of few of them, however many there are of each.
#[tokio::test]
async fn a_claim_of_many_types_looks_once_at_each() {
    const LIMIT: usize = 10;
    /// Rows that a claim of ten jobs looks past at most, and the square root of that.
    const REACH: f64 = 140.0;
    const FEW: f64 = 11.0;
    let schema = Schema::new();
    let state = store(&schema).await;
    let names: Vec<String> = (0..4_000).map(|number| format!("type-{number}")).collect();
    // The first ones have many jobs, most have one, the last ones none.
    let busy = names[..40].iter().flat_map(|name| std::iter::repeat_n(name, 500));
    let all: Vec<NewChain> = busy.chain(&names[40..3_000]).map(|name| chain(name)).collect();
    start(&state, &all).await;
    state
        .claim_jobs(&claim_of(&names, LIMIT))
        .await
        .expect("the store is well");
    let numbers: Vec<i32> = {
        let mut connection = schema.connection().await;
        let text = format!("SELECT id FROM {}.job_type ORDER BY id", schema.name());
        let numbers = sqlx::query_scalar(AssertSqlSafe(text)).fetch_all(&mut connection).await;
        numbers.expect("the types have numbers")
    };
    assert_eq!(numbers.len(), names.len());
    let earliest = "-9223372036854775808".to_owned();
    let mut costs = Vec::new();
    for types in [2_000, 4_000] {
        let arguments = [
            list(&numbers[..types], "integer"),
            LIMIT.to_string(),
            list(vec![60_000_000; types], "bigint"),
            "'planner'".to_owned(),
            "gen_random_uuid()".to_owned(),
            "false".to_owned(),
            earliest.clone(),
            earliest.clone(),
        ];
        let plan = explain(&state, "synchronous_commit", &arguments).await;
        let text = plan.to_string();
        assert_eq!(text.matches("\"Index Name\":\"ready_claim\"").count(), 3, "{plan:#}");
        for forbidden in ["Seq Scan", "Bitmap", "Hash Join"] {
            assert!(!text.contains(forbidden), "{forbidden}\n{plan:#}");
        }
        let read = rows_of(&plan, "ready");
        assert!(
            read <= types as f64 + 2.0 * REACH * FEW + 50.0,
            "{read} rows of `ready`\n{plan:#}"
        );
        costs.push(total_work(&plan));
    }
    assert_linear(costs[0], costs[1], "a claim of many types");
}

/// The statement for any number of types is one, whatever their number is.
#[tokio::test]
async fn claims_of_many_types_share_a_statement() {
    let schema = Schema::new();
    let state = store(&schema).await;
    let names: Vec<String> = (0..300).map(|number| format!("type-{number}")).collect();
    for types in [64, 65, 100, 300] {
        state
            .claim_jobs(&claim_of(&names[..types], 1))
            .await
            .expect("the store is well");
    }
    let mut connection = state.pool().acquire().await.expect("the only connection is free");
    let search = "SELECT count(*) FROM pg_prepared_statements WHERE statement ~ 'synchronous_commit'";
    let claims: i64 = sqlx::query_scalar(search)
        .persistent(false)
        .fetch_one(&mut *connection)
        .await
        .expect("the connection knows its statements");
    assert_eq!(
        claims, 2,
        "one with a branch for each of 64 types, and one for all the others"
    );
}
