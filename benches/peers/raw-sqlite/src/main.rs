//! Bare statements, prepared once and run row by row, on the tables and indexes of queuert-sqlite: what SQLite itself
//! gives. No types, no decoding, no worker, no other connection.

mod layout;

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use layout::Layout;
use queuert_measured::{Arguments, BoxError, Figure, Letter, Receipt, Report, Stopwatch};
use rusqlite::{CachedStatement, Connection, TransactionBehavior, params};

const WORKER: &str = "the raw worker";
const LEASE_MICROS: i64 = 60_000_000;

const INSERT: &str = "INSERT INTO queuert_job (id, chain_id, chain_index, latest, status, type, chain_type, \
     chain_created_at, chain_keyed, created_at, scheduled_at, priority, rank, due, attempt, claims, blockers, input) \
     VALUES (?1, ?1, 0, 1, 1, ?2, ?2, ?3, 0, ?3, ?3, 0, ?3, 1, 0, 0, 0, ?4)";

const CLAIM: &str = "UPDATE queuert_job SET status = 2, attempt = attempt + 1, claims = claims + 1, started_at = ?1, \
     lease_owner = ?2, fence = ?3, lease_until = ?4 WHERE seq IN (SELECT seq FROM queuert_job \
     INDEXED BY queuert_job_queue WHERE status = 1 AND due = 1 AND type = ?5 ORDER BY rank, id LIMIT ?6) \
     RETURNING seq, id, input";

const COMPLETE: &str = "UPDATE queuert_job SET status = 3, ended_at = ?1, completed_by = ?2, settled_fence = fence, \
     output = ?3, error_attempt = NULL, error_at = NULL, error = NULL, lease_owner = NULL, lease_until = NULL, \
     fence = NULL WHERE seq = ?4 AND status = 2 AND fence = ?5";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("raw-sqlite: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), BoxError> {
    let arguments = Arguments::of_process()?;
    let mut connection = Connection::open(arguments.text("file")?)?;
    let pragmas = arguments.text("pragmas")?;
    for pragma in pragmas.split(',') {
        let (name, value) = pragma.split_once('=').ok_or("a pragma is name=value")?;
        connection.pragma_update(None, name, value.parse::<i64>()?)?;
    }
    let journal: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    if journal != "wal" {
        return Err(format!("the journal mode of the file is `{journal}`").into());
    }
    let layout = Layout::take_from(&connection)?;
    let backlog: usize = arguments.value("backlog")?;
    let jobs: usize = arguments.value("jobs")?;
    let batch: usize = arguments.value("batch")?;
    let name = arguments.text("name")?;
    let kind = arguments.text("type")?;
    fill(&mut connection, &Rows::new(0, backlog)?, kind, 1_000)?;
    layout.check_pending(&connection)?;
    let figure = match arguments.text("work")? {
        "enqueue" => enqueue(&mut connection, name, kind, backlog, jobs, batch)?,
        "single" => enqueue(&mut connection, name, kind, backlog, jobs, 1)?,
        "drain" => drain(&mut connection, &layout, name, kind, jobs, batch)?,
        other => return Err(format!("there is no work `{other}`").into()),
    };
    let version = rusqlite::version();
    let report = Report::from(vec![figure]);
    let report = report.fact(
        "raw rusqlite",
        format!("SQLite {version}, journal {journal}, {pragmas}"),
    );
    Ok(report.print()?)
}

/// New jobs, made before the clock runs: only statements are measured.
struct Rows(Vec<([u8; 16], String)>);

impl Rows {
    fn new(from: usize, count: usize) -> Result<Self, BoxError> {
        let one = |number: usize| {
            // Ascending, as our ids are, with a random half.
            let number = number as u64;
            let mixed = (number ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let id = (u128::from(number) << 64 | u128::from(mixed ^ mixed >> 31)).to_be_bytes();
            Ok((id, serde_json::to_string(&Letter::new(number))?))
        };
        (from..from + count).map(one).collect::<Result<_, _>>().map(Self)
    }
}

fn now() -> i64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or(Duration::ZERO);
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

fn fill(connection: &mut Connection, rows: &Rows, kind: &str, batch: usize) -> Result<(), BoxError> {
    for rows in rows.0.chunks(batch) {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut insert = transaction.prepare_cached(INSERT)?;
            let now = now();
            for (id, input) in rows {
                insert.execute(params![id, kind, now, input])?;
            }
        }
        transaction.commit()?;
    }
    Ok(())
}

fn enqueue(
    connection: &mut Connection,
    name: &str,
    kind: &str,
    backlog: usize,
    jobs: usize,
    batch: usize,
) -> Result<Figure, BoxError> {
    let rows = Rows::new(backlog, jobs)?;
    let stopwatch = Stopwatch::start();
    fill(connection, &rows, kind, batch)?;
    let figure = stopwatch.rate(name, "chains/s", jobs);
    let count: i64 = connection.query_row("SELECT count(*) FROM queuert_job", [], |row| row.get(0))?;
    if usize::try_from(count)? != backlog + jobs {
        return Err(format!("{count} jobs were written instead of {}", backlog + jobs).into());
    }
    Ok(with_transactions(figure, 1.0 / batch as f64))
}

/// Completes what the last turn has claimed, and claims as many again, in one transaction.
fn drain(
    connection: &mut Connection,
    layout: &Layout,
    name: &str,
    kind: &str,
    jobs: usize,
    batch: usize,
) -> Result<Figure, BoxError> {
    let output = serde_json::to_string(&Receipt::of(&Letter::new(1)))?;
    let limit = i64::try_from(batch)?;
    let stopwatch = Stopwatch::start();
    let mut claimed: Vec<Claimed> = Vec::with_capacity(batch);
    let mut fence = 0_u128;
    let mut turns = 0;
    loop {
        let now = now();
        let held = fence.to_be_bytes();
        fence += 1;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut complete = transaction.prepare_cached(COMPLETE)?;
            for job in &claimed {
                let changed = complete.execute(params![now, WORKER, output, job.seq, held])?;
                if changed != 1 || job.input.is_empty() || job.id == [0; 16] {
                    return Err("a claimed job could not be completed".into());
                }
            }
            let claim = transaction.prepare_cached(CLAIM)?;
            claimed = take(claim, now, fence, kind, limit)?;
        }
        transaction.commit()?;
        turns += 1;
        if turns == 1 {
            layout.check_running(connection)?;
        }
        if claimed.is_empty() {
            break;
        }
    }
    let figure = stopwatch.rate(name, "jobs/s", jobs);
    let done = "SELECT count(*) FROM queuert_job WHERE status = 3 AND output IS NOT NULL";
    let done: i64 = connection.query_row(done, [], |row| row.get(0))?;
    if usize::try_from(done)? != jobs {
        return Err(format!("{done} of {jobs} jobs were completed").into());
    }
    layout.check_completed(connection)?;
    Ok(with_transactions(figure, f64::from(turns) / jobs as f64))
}

struct Claimed {
    seq: i64,
    id: [u8; 16],
    input: String,
}

fn take(
    mut claim: CachedStatement<'_>,
    now: i64,
    fence: u128,
    kind: &str,
    limit: i64,
) -> Result<Vec<Claimed>, BoxError> {
    let until = now + LEASE_MICROS;
    let rows = claim.query_map(params![now, WORKER, fence.to_be_bytes(), until, kind, limit], |row| {
        Ok(Claimed {
            seq: row.get(0)?,
            id: row.get(1)?,
            input: row.get(2)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn with_transactions(mut figure: Figure, transactions: f64) -> Figure {
    if let Some(cost) = &mut figure.cost {
        cost.transactions = Some(transactions);
    }
    figure
}
