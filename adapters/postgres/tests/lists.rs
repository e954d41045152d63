//! Pages of a store that holds much: each is what a sort of everything would give, and none reads everything.

mod support;

use std::collections::BTreeSet;

use queuert::adapter::{ChainQuery, JobQuery, Order, Position, StateAdapter};
use queuert::{JobId, JobStatus, Timestamp, TypeName};
use queuert_postgres::PostgresState;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use support::Schema;
use uuid::Uuid;

/// How many rows a page has.
const LIMIT: usize = 50;

/// What the adapter walks through before it sorts, and how many rows of small tables it sorts anyway.
const WALK: u64 = 20_500;
const FEW: u64 = 10_000;

/// What a page costs that has nothing to search for, in rows and index entries; a look at everything costs more than
/// 250,000.
const LITTLE: u64 = 1_000;

/// What the first step of a walk may read before it knows whom nobody waits for: 500 rows and index entries of each of
/// the five types, if the planner sorts them and does not merge them.
const FIRST_STEP: u64 = 5_000;

/// Chains of one instant, which only a sort can bring into order.
const INSTANT: u64 = 20_000;

/// The first and the last of the rows that are open or stopped, among 80,000 that are completed.
#[derive(Clone, Copy, Debug)]
enum Layout {
    OpenIsNewest,
    OpenIsOldest,
}

/// Fills the tables by hand: chains of two entry types, some with a second step; a batch that was started in one instant;
/// a type with few chains; and everything that is not completed.
async fn fill(schema: &Schema, connection: &mut PgConnection, layout: Layout) {
    let (completed, open) = match layout {
        Layout::OpenIsNewest => (0, 200_000),
        Layout::OpenIsOldest => (200_000, 0),
    };
    let types = support::add_types(&["entry_a", "entry_b", "step", "batch", "rare"]);
    let text = format!(
        "{types}; \
         CREATE TEMP TABLE new AS SELECT gen_random_uuid() AS id, i, t.id AS type_id, place, at::bigint AS at FROM (\
           SELECT i, CASE WHEN i % 2 = 0 THEN 'entry_a' ELSE 'entry_b' END AS type, 'result' AS place, {completed} + i AS at \
             FROM generate_series(1, 60000) AS i \
           UNION ALL SELECT i, 'batch', 'result', {completed} + 30000 FROM generate_series(1, {INSTANT}) AS i \
           UNION ALL SELECT i, 'rare', 'result', i FROM generate_series(1, 5) AS i \
           UNION ALL SELECT i, 'entry_a', 'ready', {open} + 4 * i FROM generate_series(1, 15000) AS i \
           UNION ALL SELECT i, 'entry_b', 'later', {open} + 5 * i FROM generate_series(1, 5000) AS i \
           UNION ALL SELECT i, 'entry_b', 'waiting', {open} + 6 * i FROM generate_series(1, 12000) AS i \
           UNION ALL SELECT i, 'entry_a', 'running', {open} + 7 * i FROM generate_series(1, 500) AS i \
           UNION ALL SELECT i, 'entry_b', 'stopped', {open} + 8 * i FROM generate_series(1, 4000) AS i\
         ) AS u JOIN {{schema}}.job_type AS t ON t.name = u.type; \
         UPDATE new SET at = 1700000000000000 + at * 1000; \
         INSERT INTO {{schema}}.job (id, chain_id, chain_index, type_id, chain_type_id, chain_created_at, created_at, \
           blockers, priority, keyed, input) SELECT id, id, 0, type_id, type_id, at, at, 0, 0, false, '1' FROM new; \
         CREATE TEMP TABLE step AS SELECT gen_random_uuid() AS id, n.id AS chain_id, n.type_id AS chain_type_id, \
           n.place, n.at, t.id AS type_id FROM new AS n CROSS JOIN {{schema}}.job_type AS t \
           WHERE t.name = 'step' AND n.place IN ('result', 'running') AND n.i % 5 = 0; \
         INSERT INTO {{schema}}.job (id, chain_id, chain_index, type_id, chain_type_id, chain_created_at, created_at, \
           blockers, priority, keyed, input) \
           SELECT id, chain_id, 1, type_id, chain_type_id, at, at + 500, 0, 0, false, '2' FROM step; \
         CREATE TEMP TABLE latest AS SELECT n.id, n.i, n.type_id, n.type_id AS chain_type_id, n.place, n.at, n.place = 'result' AS final \
           FROM new AS n WHERE NOT EXISTS (SELECT 1 FROM step AS s WHERE s.chain_id = n.id) \
           UNION ALL SELECT id, 0, type_id, chain_type_id, place, at, true FROM step \
           UNION ALL SELECT n.id, n.i, n.type_id, n.type_id, 'result', n.at, false FROM new AS n JOIN step AS s ON s.chain_id = n.id; \
         INSERT INTO {{schema}}.result (id, ended_at, chain_created_at, scheduled_at, chain_type_id, attempt, claims, final, output) \
           SELECT id, at, at, at, chain_type_id, 1, 1, final, '1' FROM latest WHERE place = 'result'; \
         INSERT INTO {{schema}}.ready (id, rank, scheduled_at, type_id, attempt, claims, priority, awaited) \
           SELECT id, at, at, type_id, 0, 0, 0, true FROM latest WHERE place = 'ready'; \
         INSERT INTO {{schema}}.later (id, scheduled_at, type_id, attempt, claims, priority, awaited) \
           SELECT id, at, type_id, 0, 0, 0, false FROM latest WHERE place = 'later'; \
         INSERT INTO {{schema}}.waiting (id, scheduled_at, type_id, attempt, claims, remaining, priority, awaited) \
           SELECT id, at, type_id, 0, 0, 1, 0, false FROM latest WHERE place = 'waiting'; \
         INSERT INTO {{schema}}.running (id, leased_until, scheduled_at, started_at, type_id, attempt, claims, priority, \
           awaited, fence, owner, keyed, chain_type_id, chain_created_at) \
           SELECT id, at, at, at, type_id, 1, 1, 0, false, id, 'worker', false, chain_type_id, at FROM latest WHERE place = 'running'; \
         INSERT INTO {{schema}}.stopped (id, ended_at, chain_created_at, scheduled_at, type_id, chain_type_id, attempt, claims, \
           status, awaited) SELECT id, at, at, at, type_id, chain_type_id, 1, 1, 4 + (i % 4 = 0)::integer, false \
           FROM latest WHERE place = 'stopped'; \
         INSERT INTO {{schema}}.blocker (position, job_id, chain_id) \
           SELECT 0, w.id, r.id FROM latest AS w JOIN latest AS r ON r.place = 'ready' AND r.i = 1 + w.i % 100 \
           WHERE w.place = 'waiting'; \
         ANALYZE {{schema}}.job; ANALYZE {{schema}}.result; ANALYZE {{schema}}.ready; ANALYZE {{schema}}.waiting"
    );
    schema.run(connection, &text).await;
}

/// A job or a chain as the tables have it.
struct Known {
    id: Uuid,
    created_at: i64,
    type_name: String,
    status: JobStatus,
    is_blocker: bool,
}

/// All jobs, or all chains, oldest first.
async fn known(schema: &Schema, connection: &mut PgConnection, chains: bool) -> Vec<Known> {
    let rows = match chains {
        false => {
            "SELECT j.id, j.created_at, t.name, s.status, false FROM {schema}.job AS j JOIN state AS s ON s.id = j.id \
                  JOIN {schema}.job_type AS t ON t.id = j.type_id ORDER BY j.created_at, j.id"
        }
        true => {
            "SELECT f.id, f.created_at, t.name, s.status, EXISTS (SELECT 1 FROM {schema}.blocker AS b WHERE b.chain_id = f.id) \
                 FROM (SELECT DISTINCT ON (chain_id) id, chain_id FROM {schema}.job ORDER BY chain_id, chain_index DESC) AS l \
                 JOIN {schema}.job AS f ON f.id = l.chain_id JOIN state AS s ON s.id = l.id \
                 JOIN {schema}.job_type AS t ON t.id = f.type_id ORDER BY f.created_at, f.id"
        }
    };
    let text = format!(
        "WITH state AS (SELECT id, 1 AS status FROM {{schema}}.ready UNION ALL SELECT id, 1 FROM {{schema}}.later \
         UNION ALL SELECT id, 0 FROM {{schema}}.waiting UNION ALL SELECT id, 2 FROM {{schema}}.running \
         UNION ALL SELECT id, 3 FROM {{schema}}.result UNION ALL SELECT id, status FROM {{schema}}.stopped) {rows}"
    );
    let text = text.replace("{schema}", schema.name());
    let rows = sqlx::query(AssertSqlSafe(text)).fetch_all(connection).await;
    let rows = rows.expect("the tables can be read");
    let statuses = [
        JobStatus::Blocked,
        JobStatus::Pending,
        JobStatus::Running,
        JobStatus::Completed,
        JobStatus::Dead,
        JobStatus::Cancelled,
    ];
    rows.iter()
        .map(|row| Known {
            id: row.get(0),
            created_at: row.get(1),
            type_name: row.get(2),
            status: statuses[usize::try_from(row.get::<i32, _>(3)).expect("a status")],
            is_blocker: row.get(4),
        })
        .collect()
}

/// What is asked for.
#[derive(Clone, Debug, Default)]
struct Question {
    statuses: Option<Vec<JobStatus>>,
    types: Option<Vec<&'static str>>,
    roots_only: bool,
    from_to: Option<(i64, i64)>,
    order: Order,
}

impl Question {
    fn admits(&self, known: &Known) -> bool {
        self.statuses
            .as_ref()
            .is_none_or(|wanted| wanted.contains(&known.status))
            && self
                .types
                .as_ref()
                .is_none_or(|wanted| wanted.contains(&known.type_name.as_str()))
            && !(self.roots_only && known.is_blocker)
            && self
                .from_to
                .is_none_or(|(from, to)| (from..=to).contains(&known.created_at))
    }

    fn answer<'a>(&self, all: &'a [Known]) -> Vec<&'a Known> {
        let mut answer: Vec<&Known> = all.iter().filter(|known| self.admits(known)).collect();
        if self.order == Order::NewestFirst {
            answer.reverse();
        }
        answer
    }

    fn types(&self) -> Option<Vec<TypeName>> {
        let types = self.types.as_ref()?;
        Some(types.iter().map(|name| TypeName::from((*name).to_owned())).collect())
    }

    async fn jobs(&self, state: &PostgresState, within: &mut PgConnection, after: Option<Position>) -> Vec<Uuid> {
        let mut query = JobQuery::default();
        query.statuses.clone_from(&self.statuses);
        query.types = self.types();
        (query.created_from, query.created_to) = self.bounds();
        (query.order, query.after, query.limit) = (self.order, after, LIMIT);
        let jobs = state.list_jobs(Some(within), &query).await.expect("the store is well");
        jobs.iter().map(|job| job.id.as_uuid()).collect()
    }

    async fn chains(&self, state: &PostgresState, within: &mut PgConnection, after: Option<Position>) -> Vec<Uuid> {
        let mut query = ChainQuery::default();
        query.statuses.clone_from(&self.statuses);
        query.types = self.types();
        query.roots_only = self.roots_only;
        (query.created_from, query.created_to) = self.bounds();
        (query.order, query.after, query.limit) = (self.order, after, LIMIT);
        let chains = state
            .list_chains(Some(within), &query)
            .await
            .expect("the store is well");
        chains.iter().map(|chain| chain.id.as_uuid()).collect()
    }

    fn bounds(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        let bounds = self
            .from_to
            .map(|(from, to)| (Timestamp::from_micros(from), Timestamp::from_micros(to)));
        (bounds.map(|bounds| bounds.0), bounds.map(|bounds| bounds.1))
    }

    /// How many rows and index entries a page may read.
    fn bound(&self, chains: bool, all: &[Known]) -> u64 {
        let Some(statuses) = &self.statuses else {
            return LITTLE + if self.roots_only { FIRST_STEP } else { 0 };
        };
        let count = |wanted: &dyn Fn(JobStatus) -> bool| {
            u64::try_from(all.iter().filter(|known| wanted(known.status)).count()).expect("a count")
        };
        // Those in small tables: chains that ended have indexes of their own, jobs that are dead have not.
        let is_small = |status: JobStatus| match chains {
            true => status.is_open(),
            false => status != JobStatus::Completed,
        };
        let small = count(&|status| statuses.contains(&status) && is_small(status));
        let mut bound = LITTLE
            + match small > FEW {
                true => 2 * FEW + 3 * WALK + 3 * small,
                false => 6 * small,
            };
        if statuses.contains(&JobStatus::Completed) {
            bound += match chains {
                true if self.types.as_ref().is_none_or(|types| types.contains(&"batch")) => 4 * INSTANT,
                true => 0,
                // What is not completed lies in the way.
                false => 3 * count(&|status| status != JobStatus::Completed),
            };
        }
        bound
    }
}

/// Rows and index entries that this transaction has read, in all tables.
async fn touched(schema: &Schema, connection: &mut PgConnection) -> u64 {
    let text = "SELECT sum(pg_stat_get_xact_tuples_returned(c.oid) \
                + CASE c.relkind WHEN 'r' THEN pg_stat_get_xact_tuples_fetched(c.oid) ELSE 0 END)::bigint \
                FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1";
    let touched: i64 = sqlx::query_scalar(text)
        .bind(schema.name())
        .fetch_one(connection)
        .await
        .expect("the server counts");
    u64::try_from(touched).expect("a count")
}

fn questions(all: &[Known]) -> Vec<Question> {
    use JobStatus::{Blocked, Cancelled, Completed, Dead, Pending, Running};
    let statuses = [
        None,
        Some(vec![Pending]),
        Some(vec![Blocked]),
        Some(vec![Running]),
        Some(vec![Completed]),
        Some(vec![Dead]),
        Some(vec![Cancelled]),
        Some(vec![Dead, Cancelled, Blocked]),
        Some(vec![Running, Completed]),
        Some(vec![]),
    ];
    let types = [
        None,
        Some(vec!["entry_a"]),
        Some(vec!["step", "rare"]),
        Some(vec!["batch"]),
    ];
    let middle = (all[all.len() / 3].created_at, all[all.len() / 2].created_at);
    let mut questions = Vec::new();
    // In one of the two orders each, so that every status and every type has both. What is open comes first in one layout
    // and last in the other.
    for (row, statuses) in statuses.iter().enumerate() {
        for (column, types) in types.iter().enumerate() {
            questions.push(Question {
                statuses: statuses.clone(),
                types: types.clone(),
                order: [Order::NewestFirst, Order::OldestFirst][(row + column) % 2],
                ..Question::default()
            });
        }
    }
    for order in [Order::NewestFirst, Order::OldestFirst] {
        questions.push(Question {
            from_to: Some(middle),
            order,
            ..Question::default()
        });
        questions.push(Question {
            roots_only: true,
            order,
            ..Question::default()
        });
        questions.push(Question {
            statuses: Some(vec![Pending]),
            roots_only: true,
            from_to: Some(middle),
            order,
            ..Question::default()
        });
    }
    questions
}

async fn check(layout: Layout) {
    let schema = Schema::new();
    let state = schema.state().await;
    let mut connection = schema.connection().await;
    fill(&schema, &mut connection, layout).await;
    let mut breaches = Vec::new();
    for chains in [false, true] {
        let all = known(&schema, &mut connection, chains).await;
        for question in questions(&all) {
            if question.roots_only && !chains {
                continue;
            }
            let answer = question.answer(&all);
            // The first page, and one from the middle.
            for begin in BTreeSet::from([0, answer.len() / 2]) {
                let expected: Vec<Uuid> = answer[begin..].iter().take(LIMIT).map(|known| known.id).collect();
                let after = begin.checked_sub(1).map(|last| Position {
                    value: answer[last].created_at,
                    id: JobId::from_uuid(answer[last].id),
                });
                // With the settings of the library's own connections or with those of the caller: every kind of page has
                // both of them, in one layout or the other.
                let newest = question.order == Order::NewestFirst;
                let own = newest ^ matches!(layout, Layout::OpenIsNewest) ^ (begin == 0);
                let mut tx = state.begin().await.expect("a transaction can be begun");
                if own {
                    let settings = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; \
                                    SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL jit = off";
                    schema.run(&mut tx, settings).await;
                }
                let before = touched(&schema, &mut tx).await;
                let page = match chains {
                    true => question.chains(&state, &mut tx, after).await,
                    false => question.jobs(&state, &mut tx, after).await,
                };
                let cost = touched(&schema, &mut tx).await - before;
                let what = format!("{layout:?}, chains: {chains}, own: {own}, from {begin}: {question:?}");
                assert_eq!(page, expected, "{what}");
                let bound = question.bound(chains, &all);
                if cost > bound {
                    breaches.push(format!("{cost} rows instead of {bound}: {what}"));
                }
                state.rollback(tx).await.expect("a transaction can be undone");
            }
        }
    }
    assert!(breaches.is_empty(), "{breaches:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_where_what_is_open_is_newest() {
    check(Layout::OpenIsNewest).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_where_what_is_open_is_oldest() {
    check(Layout::OpenIsOldest).await;
}
