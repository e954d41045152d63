use sqlx::{AssertSqlSafe, Connection, Executor, Row, SqlStr, SqliteConnection};

use super::json_rows::JsonRows;
use super::*;
use crate::row::SettleColumn;

/// Statements that read a table or an index from its beginning: one changes nothing, one is a pragma, one counts up to a
/// limit.
const NOT_CHECKED: [&str; 3] = ["take_write_lock", "data_version", "count_pending"];

async fn database() -> SqliteConnection {
    let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
    for step in crate::migrate::migrations("t_").unwrap() {
        connection.execute(AssertSqlSafe(step.sql)).await.unwrap();
    }
    connection
}

fn all(statements: &Statements) -> Vec<SqlStr> {
    let (fixed, batches) = statements.all();
    let fixed = fixed.into_iter().filter(|(name, _)| !NOT_CHECKED.contains(name));
    let fixed = fixed.map(|(_, text)| text.clone());
    let claims = [1, 2, 50, 512, 1_000].map(|types| statements.claim(types));
    let singles = batches.iter().filter_map(|batch| batch.single().cloned());
    let sizes = batches
        .iter()
        .flat_map(|batch| [1, 100, 1_000].map(|rows| batch.text(rows)));
    fixed.chain(claims).chain(singles).chain(sizes).collect()
}

/// No statement may read a table of jobs from one end to the other.
#[tokio::test]
async fn every_statement_compiles_and_none_scans_the_jobs() {
    let mut connection = database().await;
    for statement in all(&Statements::new("t_")) {
        let statement = statement.as_str();
        let explain = format!("EXPLAIN QUERY PLAN {statement}");
        let plan = sqlx::query(AssertSqlSafe(explain)).fetch_all(&mut connection).await;
        let plan = plan.unwrap_or_else(|error| panic!("{error}\n{statement}"));
        for step in plan {
            let detail: String = step.get(3);
            let tables = ["t_job", "job", "first_job", "latest_job", "next_job", "unblocked"];
            let scan = tables.iter().any(|table| {
                let scanned = detail.strip_prefix("SCAN ").and_then(|rest| rest.strip_prefix(table));
                scanned.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
            });
            assert!(!scan, "{detail}\n{statement}");
        }
    }
}

#[test]
fn texts_have_no_placeholders_and_no_comments_left() {
    for statement in all(&Statements::new("t_")) {
        let text = statement.as_str();
        assert!(!text.contains(['{', '}', '\n']) && !text.contains("--"), "{text}");
    }
}

/// The position of a column in the text is its place in the list of `row.rs`.
#[test]
fn the_columns_of_settlements_are_those_that_are_read() {
    let connection = counting();
    let text = Statements::new("t_").jobs_to_settle.text(1);
    let statement = connection.prepare(text.as_str()).unwrap();
    assert_eq!(statement.column_names(), SettleColumn::EXPRESSIONS);
}

/// A database on a connection that counts what its statements do.
fn counting() -> rusqlite::Connection {
    let connection = rusqlite::Connection::open_in_memory().unwrap();
    for step in crate::migrate::migrations("t_").unwrap() {
        connection.execute_batch(&step.sql).unwrap();
    }
    connection
}

fn id(number: usize) -> String {
    format!("{number:032x}")
}

/// Adds a chain with one job, in this status and of this type, that waits for others.
fn add(connection: &rusqlite::Connection, number: usize, status: i64, type_name: &str, blockers: &[usize]) {
    let insert = "INSERT INTO t_job (id, chain_id, chain_index, latest, status, type, chain_type, chain_created_at, \
         chain_keyed, created_at, scheduled_at, priority, rank, due, attempt, claims, blockers, input) \
         VALUES (unhex(?1), unhex(?1), 0, 1, ?2, ?3, ?3, 0, 0, 0, 0, 0, ?4, 1, 0, 0, 0, '1')";
    let values = rusqlite::params![id(number), status, type_name, i64::try_from(number).unwrap()];
    connection.prepare_cached(insert).unwrap().execute(values).unwrap();
    let insert = "INSERT INTO t_blocker (job_id, position, chain_id, done) VALUES (unhex(?1), ?2, unhex(?3), 0)";
    for (position, blocker) in blockers.iter().enumerate() {
        let values = rusqlite::params![id(number), i64::try_from(position).unwrap(), id(*blocker)];
        connection.prepare_cached(insert).unwrap().execute(values).unwrap();
    }
}

/// Runs a statement to its end: how many rows it had, and how many steps of SQLite's own machine it took.
fn steps(connection: &rusqlite::Connection, text: &SqlStr, values: impl rusqlite::Params) -> (usize, i32) {
    let mut statement = connection.prepare(text.as_str()).unwrap();
    let mut rows = statement.query(values).unwrap();
    let mut count = 0;
    while rows.next().unwrap().is_some() {
        count += 1;
    }
    drop(rows);
    (count, statement.get_status(rusqlite::StatementStatus::VmStep))
}

/// Twice the size may take twice the steps, and no more.
fn assert_linear(small: i32, large: i32, what: &str) {
    assert!(small > 0, "{what}: nothing was counted");
    assert!(
        large <= small / 2 * 5,
        "{what}: {small} steps, {large} for twice the size"
    );
}

/// One search for all blockers, whether they share what they wait for, or each waits for the next.
#[test]
fn the_search_for_a_circle_takes_steps_by_the_edges() {
    let statements = Statements::new("t_");
    let search = |chains: usize, blockers: &dyn Fn(usize) -> Vec<usize>| {
        let connection = counting();
        for number in 0..10 {
            add(&connection, chains + number, 1, "shared", &[]);
        }
        for number in 0..chains {
            add(&connection, number, 0, "waiting", &blockers(number));
        }
        let all = JsonRows::of_ids((0..chains).map(|number| uuid::Uuid::from_u128(number as u128)));
        let (found, search) = steps(&connection, &statements.chains_waited_for, [&all]);
        let (edges, lookup) = steps(&connection, &statements.blocker_edges, [&all]);
        (found, edges, search + lookup)
    };
    for (wide, edges_each) in [(true, 10), (false, 1)] {
        let [small, large] = [400, 800].map(|chains| {
            let shared = |_: usize| (chains..chains + 10).collect();
            let next = |number: usize| vec![number + 1];
            let (found, edges, steps) = search(chains, if wide { &shared } else { &next });
            assert_eq!(
                (found, edges),
                (chains + if wide { 10 } else { 1 }, chains * edges_each)
            );
            steps
        });
        assert_linear(small, large, "the search for a circle");
    }
}

/// Whatever the backlog of each is.
#[test]
fn the_heads_of_many_types_take_steps_by_the_types() {
    let statements = Statements::new("t_");
    let search = |types: usize, backlog: usize| {
        let connection = counting();
        for number in 0..types * backlog {
            add(&connection, number, 1, &format!("type-{}", number % types), &[]);
        }
        let names: Vec<String> = (0..types).map(|number| format!("type-{number}")).collect();
        let names = JsonRows::of_texts(names.iter().map(String::as_str));
        let (found, steps) = steps(&connection, &statements.first_types, rusqlite::params![names, 100]);
        assert_eq!(found, 100);
        steps
    };
    let small = search(500, 1);
    assert_linear(small, search(1_000, 1), "the heads of many types");
    let deep = search(500, 20);
    assert!(
        deep <= small + small / 10,
        "{small} steps, {deep} with twenty times the backlog"
    );
}
