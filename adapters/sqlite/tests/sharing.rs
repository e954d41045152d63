//! One file, several hands: groups of operations, transactions of the caller's, other handles and other processes.
#![expect(
    clippy::unwrap_used,
    reason = "the helpers of a test fail by panicking, as the test does"
)]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use futures_util::FutureExt;
use queuert::adapter::{
    ClaimJobs, ClaimType, Demand, NewChain, NewJob, Notice, NotifyAdapter, RenewLease, Renewal, StateAdapter, Topic,
    Wake,
};
use queuert::{ChainId, Fence, JobId, Payload, StateErrorKind, WorkerId};
use queuert_sqlite::{SqliteNotify, SqliteState};
use sqlx::{Connection, Executor, SqliteConnection};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;
use uuid::Uuid;

const LONG: Duration = Duration::from_secs(20);

async fn file() -> (TempDir, PathBuf, SqliteState) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("app.db");
    let state = SqliteState::open(&path).await.unwrap();
    (directory, path, state)
}

/// The same with little patience. On a file of its own: a handle that was dropped before may still be closing it.
async fn impatient_file(patience: Duration) -> (TempDir, PathBuf, SqliteState) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("app.db");
    let state = SqliteState::options().lock_timeout(patience).open(&path).await.unwrap();
    (directory, path, state)
}

fn id(number: u128) -> JobId {
    JobId::from_uuid(Uuid::from_u128(number))
}

fn chain(number: u128) -> NewChain {
    NewChain::new(NewJob::new(id(number), "task", Payload::from_text("{}")))
}

async fn raw(path: &Path) -> SqliteConnection {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
    SqliteConnection::connect_with(&options).await.unwrap()
}

async fn start(state: &SqliteState, number: u128) {
    state.create_chains(None, &[chain(number)]).await.unwrap().unwrap();
}

async fn exists(state: &SqliteState, number: u128) -> bool {
    !state.get_jobs(None, &[id(number)]).await.unwrap().is_empty()
}

/// Lets everything that was spawned get into the line. The runtime of a test has one thread, so each task that is ready
/// runs before this one goes on.
async fn all_have_lined_up() {
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
}

/// What waits while the writer is busy goes into one transaction.
#[tokio::test]
async fn operations_that_wait_share_a_transaction() {
    let (_directory, _, state) = file().await;
    let transaction = state.begin().await.unwrap();
    let waiting: Vec<_> = (1..=50)
        .map(|number| {
            let state = state.clone();
            tokio::spawn(async move { start(&state, number).await })
        })
        .collect();
    all_have_lined_up().await;
    let before = state.commits();
    state.commit(transaction).await.unwrap();
    for one in waiting {
        one.await.unwrap();
    }
    assert_eq!(state.commits() - before, 2, "the transaction, and one group of fifty");
}

/// In a group, each gets its own answer, wherever in the group the one is that is refused.
#[tokio::test]
async fn one_that_is_refused_does_not_disturb_its_group() {
    for taken in [1, 7, 9, 10] {
        let (_directory, _, state) = file().await;
        start(&state, taken).await;
        let transaction = state.begin().await.unwrap();
        let waiting: Vec<_> = (1..=10)
            .map(|number| {
                let state = state.clone();
                tokio::spawn(async move { state.create_chains(None, &[chain(number)]).await.unwrap().is_ok() })
            })
            .collect();
        all_have_lined_up().await;
        state.rollback(transaction).await.unwrap();
        for (number, one) in (1..).zip(waiting) {
            assert_eq!(one.await.unwrap(), number != taken, "{number}, where {taken} is taken");
            assert!(exists(&state, number).await, "{number}, where {taken} is taken");
        }
    }
}

/// A constraint that is only checked at the commit is the fault of one, and only that one is told.
#[tokio::test]
async fn one_that_fails_at_the_commit_does_not_disturb_its_group() {
    let directory = TempDir::new().unwrap();
    let with_options = SqliteState::options().connect_options(sqlx::sqlite::SqliteConnectOptions::new());
    let states = [
        SqliteState::open(directory.path().join("one.db")).await.unwrap(),
        with_options.open(directory.path().join("other.db")).await.unwrap(),
    ];
    for state in states {
        let mut transaction = state.begin().await.unwrap();
        for statement in [
            "CREATE TABLE note (job BLOB REFERENCES queuert_job (id) DEFERRABLE INITIALLY DEFERRED)",
            "CREATE TRIGGER poison AFTER INSERT ON queuert_job WHEN NEW.id = X'00000000000000000000000000000007' \
             BEGIN INSERT INTO note VALUES (X'FF'); END",
        ] {
            transaction.execute(statement).await.unwrap();
        }
        let waiting: Vec<_> = (1..=10)
            .map(|number| {
                let state = state.clone();
                tokio::spawn(async move { state.create_chains(None, &[chain(number)]).await.is_ok() })
            })
            .collect();
        all_have_lined_up().await;
        state.commit(transaction).await.unwrap();
        for (number, one) in (1..).zip(waiting) {
            assert_eq!(one.await.unwrap(), number != 7, "chain {number}");
            assert_eq!(exists(&state, number).await, number != 7, "chain {number}");
        }
    }
}

/// A call whose future was dropped before its turn came leaves nothing behind.
#[tokio::test]
async fn what_nobody_waits_for_is_not_done() {
    let (_directory, _, state) = file().await;
    let transaction = state.begin().await.unwrap();
    let dropped = tokio::spawn({
        let state = state.clone();
        async move { start(&state, 1).await }
    });
    all_have_lined_up().await;
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    state.commit(transaction).await.unwrap();
    start(&state, 2).await;
    assert!(!exists(&state, 1).await);
}

/// What was asked for before the file is closed is done, however long a transaction keeps it waiting.
#[tokio::test]
async fn what_is_in_the_line_is_done_before_the_file_is_closed() {
    let (_directory, path, state) = file().await;
    let transaction = state.begin().await.unwrap();
    let waiting: Vec<_> = (1..=5)
        .map(|number| {
            let state = state.clone();
            tokio::spawn(async move { start(&state, number).await })
        })
        .collect();
    all_have_lined_up().await;
    let closing = tokio::spawn({
        let state = state.clone();
        async move { state.close().await }
    });
    all_have_lined_up().await;
    state.commit(transaction).await.unwrap();
    for one in waiting {
        one.await.unwrap();
    }
    closing.await.unwrap().unwrap();
    let error = state.create_chains(None, &[chain(6)]).await.unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
    let again = SqliteState::open(&path).await.unwrap();
    assert!(exists(&again, 5).await && !exists(&again, 6).await);
}

/// A statement that fails undoes the group, whose other operations then run again.
#[tokio::test]
async fn one_that_fails_does_not_disturb_its_group() {
    let (_directory, path, state) = file().await;
    let mut own = raw(&path).await;
    own.execute(
        "CREATE TRIGGER poison BEFORE INSERT ON queuert_job WHEN NEW.id = X'00000000000000000000000000000007' \
         BEGIN SELECT RAISE(ABORT, 'poison'); END",
    )
    .await
    .unwrap();
    let transaction = state.begin().await.unwrap();
    let waiting: Vec<_> = (1..=10)
        .map(|number| {
            let state = state.clone();
            tokio::spawn(async move { state.create_chains(None, &[chain(number)]).await.is_ok() })
        })
        .collect();
    all_have_lined_up().await;
    state.rollback(transaction).await.unwrap();
    for (number, one) in (1..).zip(waiting) {
        assert_eq!(one.await.unwrap(), number != 7, "chain {number}");
        assert_eq!(exists(&state, number).await, number != 7, "chain {number}");
    }
}

/// Transactions and operations take their turn in the order in which they came.
#[tokio::test]
async fn a_transaction_is_neither_overtaken_nor_overtakes() {
    let (_directory, _, state) = file().await;
    let held = state.begin().await.unwrap();
    let spawn_start = |number| {
        let state = state.clone();
        tokio::spawn(async move { start(&state, number).await })
    };
    let before = spawn_start(1);
    all_have_lined_up().await;
    let begun = tokio::spawn({
        let state = state.clone();
        async move { state.begin().await.unwrap() }
    });
    all_have_lined_up().await;
    let after = spawn_start(2);
    all_have_lined_up().await;
    state.rollback(held).await.unwrap();
    let transaction = begun.await.unwrap();
    before.await.unwrap();
    assert!(exists(&state, 1).await);
    assert!(!exists(&state, 2).await && !after.is_finished());
    state.commit(transaction).await.unwrap();
    after.await.unwrap();
    assert!(exists(&state, 2).await);
}

#[tokio::test]
async fn a_dropped_transaction_does_not_wedge_the_writer() {
    let (_directory, _, state) = file().await;
    let mut cut_off = 0;
    for round in 0..20 {
        let mut transaction = state.begin().await.unwrap();
        state
            .create_chains(Some(&mut transaction), &[chain(round + 1)])
            .await
            .unwrap()
            .unwrap();
        if round % 2 == 0 {
            // Dropped in the middle of a statement.
            let slow = sqlx::query(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000) SELECT count(*) FROM n",
            );
            let first_poll = slow.execute(&mut *transaction).now_or_never();
            cut_off += u32::from(first_poll.is_none());
        }
        drop(transaction);
    }
    assert!(
        cut_off > 0,
        "not all of them are done at once, whatever the machine does"
    );
    timeout(LONG, start(&state, 100)).await.unwrap();
    assert!(exists(&state, 100).await);
    assert!(!exists(&state, 1).await && !exists(&state, 20).await);
}

#[tokio::test]
async fn transactions_of_sqlx_nest_inside() {
    let (_directory, _, state) = file().await;
    let mut transaction = state.begin().await.unwrap();
    transaction.execute("CREATE TABLE own (x INTEGER)").await.unwrap();
    let mut nested = transaction.begin().await.unwrap();
    nested.execute("INSERT INTO own VALUES (1)").await.unwrap();
    nested.commit().await.unwrap();
    let mut nested = transaction.begin().await.unwrap();
    nested.execute("INSERT INTO own VALUES (2)").await.unwrap();
    drop(nested);
    state.commit(transaction).await.unwrap();
    let mut transaction = state.begin().await.unwrap();
    let rows: Vec<i64> = sqlx::query_scalar("SELECT x FROM own")
        .fetch_all(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(rows, [1]);
}

#[tokio::test]
async fn who_waits_for_its_own_transaction_is_told() {
    let (_directory, _, state) = impatient_file(Duration::from_millis(200)).await;
    let transaction = state.begin().await.unwrap();
    let error = timeout(LONG, state.create_chains(None, &[chain(1)]))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(error.kind(), StateErrorKind::Transient);
    assert!(error.to_string().contains("within(&mut tx)"), "{error}");
    state.commit(transaction).await.unwrap();
    start(&state, 1).await;
}

async fn locked(path: &Path) -> SqliteConnection {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
    let mut other = SqliteConnection::connect_with(&options).await.unwrap();
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    other
}

#[tokio::test]
async fn a_lock_of_somebody_else_is_waited_for() {
    let (_directory, path, state) = file().await;
    let mut other = locked(&path).await;
    let waiting = tokio::spawn({
        let state = state.clone();
        async move { start(&state, 1).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    assert!(!exists(&state, 1).await, "readers do not wait");
    other.execute("COMMIT").await.unwrap();
    timeout(LONG, waiting).await.unwrap().unwrap();
    assert!(exists(&state, 1).await);
}

#[tokio::test]
async fn a_lock_that_stays_is_told() {
    let (_directory, path, state) = impatient_file(Duration::from_millis(200)).await;
    let mut other = locked(&path).await;
    let error = state.create_chains(None, &[chain(1)]).await.unwrap_err();
    assert_eq!(error.kind(), StateErrorKind::Transient);
    assert!(error.to_string().contains("look for a process"), "{error}");
    assert!(state.begin().await.is_err());
    other.execute("COMMIT").await.unwrap();
    start(&state, 1).await;
}

/// The worker learns that its leases cannot be lost meanwhile, and they are extended when the lock is free.
#[tokio::test]
async fn a_renewal_is_put_off_while_another_process_has_the_lock() {
    let lease = Duration::from_secs(60);
    let connect = sqlx::sqlite::SqliteConnectOptions::new();
    for options in [SqliteState::options(), SqliteState::options().connect_options(connect)] {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("app.db");
        let state = options.lock_timeout(LONG).open(&path).await.unwrap();
        start(&state, 1).await;
        let types = vec![ClaimType {
            name: "task".into(),
            lease,
        }];
        let fence = Fence::from_uuid(Uuid::from_u128(1));
        let claim = ClaimJobs::new(types, 1, WorkerId::new("w"), fence);
        assert_eq!(state.claim_jobs(&claim).await.unwrap().jobs.len(), 1);
        let before = state.get_jobs(None, &[id(1)]).await.unwrap();
        let mut other = locked(&path).await;
        let renewal = RenewLease {
            job: id(1),
            fence,
            lease: lease * 2,
        };
        assert_eq!(state.renew_leases(None, &[renewal]).await.unwrap(), [Renewal::Busy]);
        other.execute("COMMIT").await.unwrap();
        let renewed = async {
            while state.get_jobs(None, &[id(1)]).await.unwrap() == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LONG, renewed).await.expect("the lease is extended");
    }
}

/// Each waits for as long as it may, also behind one whose time has come.
#[tokio::test]
async fn who_comes_later_waits_for_longer() {
    let patience = Duration::from_secs(3);
    let (_directory, path, state) = impatient_file(patience).await;
    let mut other = locked(&path).await;
    let spawn_start = |number| {
        let state = state.clone();
        tokio::spawn(async move { state.create_chains(None, &[chain(number)]).await })
    };
    let early = spawn_start(1);
    tokio::time::sleep(patience / 2).await;
    let late = spawn_start(2);
    assert!(early.await.unwrap().is_err());
    other.execute("COMMIT").await.unwrap();
    late.await.unwrap().unwrap().unwrap();
    assert!(!exists(&state, 1).await && exists(&state, 2).await);
}

#[tokio::test]
async fn two_handles_on_one_file_see_each_other() {
    let (_directory, path, one) = file().await;
    let two = SqliteState::open(&path).await.unwrap();
    let writers = (0..2_u128).flat_map(|place| (0..25_u128).map(move |number| (place, number)));
    let writers: Vec<_> = writers
        .map(|(place, number)| {
            let state = if place == 0 { one.clone() } else { two.clone() };
            tokio::spawn(async move { start(&state, 1 + place * 25 + number).await })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    for number in 1..=50 {
        assert!(exists(&one, number).await && exists(&two, number).await);
    }
}

fn jobs(demand: usize) -> Topic {
    Topic::Jobs {
        types: vec!["task".into()],
        demand: Demand::new(demand),
    }
}

/// What is started through one handle wakes the listeners of another, who were told nothing.
#[tokio::test]
async fn a_change_of_another_handle_wakes() {
    let (_directory, path, one) = file().await;
    let two = SqliteState::open(&path).await.unwrap();
    let notify = SqliteNotify::new(&two);
    let mut for_jobs = notify.subscribe(jobs(5)).await.unwrap();
    start(&one, 1).await;
    let wake = timeout(LONG, for_jobs.recv()).await.unwrap();
    assert!(
        matches!(wake, Some(Wake::Notice(Notice::JobsAvailable { .. }))),
        "{wake:?}"
    );

    let chain: ChainId = id(1).as_chain();
    let mut for_end = notify.subscribe(Topic::Chain(chain)).await.unwrap();
    let silent = timeout(Duration::from_millis(100), for_end.recv()).await;
    assert!(silent.is_err(), "it has not ended");
    one.cancel_chains(None, &[chain]).await.unwrap().unwrap();
    let wake = timeout(LONG, for_end.recv()).await.unwrap();
    assert_eq!(wake, Some(Wake::Notice(Notice::ChainEnded(chain))));
}

const CHILD_FILE: &str = "QUEUERT_TEST_CHILD_FILE";
const CHILD_NUMBER: &str = "QUEUERT_TEST_CHILD_NUMBER";

/// This very program again, as another process: when told to, it opens the file; when told again, it starts a chain.
#[tokio::test]
async fn child() {
    let (Ok(path), Ok(number)) = (std::env::var(CHILD_FILE), std::env::var(CHILD_NUMBER)) else {
        return;
    };
    let mut input = BufReader::new(tokio::io::stdin());
    let mut line = String::new();
    println!("\nready");
    input.read_line(&mut line).await.unwrap();
    let state = SqliteState::open(path).await.unwrap();
    println!("\nopened");
    input.read_line(&mut line).await.unwrap();
    start(&state, number.parse().unwrap()).await;
    println!("\nstarted");
    input.read_line(&mut line).await.unwrap();
}

/// That process, from here.
struct Other {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Other {
    async fn new(path: &Path, number: u128) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(CHILD_FILE, path)
            .env(CHILD_NUMBER, number.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut other = Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()).lines(),
            _child: child,
        };
        other.says("ready").await;
        other
    }

    async fn go_on(&mut self) {
        self.input.write_all(b"go\n").await.unwrap();
    }

    async fn says(&mut self, word: &str) {
        while let Some(line) = timeout(LONG, self.output.next_line()).await.unwrap().unwrap() {
            if line == word {
                return;
            }
        }
        panic!("the other process said no `{word}`");
    }
}

#[tokio::test]
async fn another_process_is_heard() {
    let (_directory, path, state) = file().await;
    let notify = SqliteNotify::new(&state);
    let mut for_jobs = notify.subscribe(jobs(1)).await.unwrap();
    let mut other = Other::new(&path, 1_000).await;
    other.go_on().await;
    other.says("opened").await;
    other.go_on().await;
    other.says("started").await;
    // How soon is a figure of the benchmarks.
    let wake = timeout(LONG, for_jobs.recv()).await.unwrap();
    assert!(matches!(wake, Some(Wake::Notice(Notice::JobsAvailable { .. }))));
    assert!(exists(&state, 1_000).await);
}

/// Processes that open a new file at the same moment: one of them makes the schema, and all of them can use it.
#[tokio::test]
async fn many_processes_make_a_file_at_once() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("app.db");
    let mut others = Vec::new();
    for number in 1..=6 {
        others.push(Other::new(&path, number).await);
    }
    for word in ["opened", "started"] {
        for other in &mut others {
            other.go_on().await;
        }
        for other in &mut others {
            other.says(word).await;
        }
    }
    let state = SqliteState::open(&path).await.unwrap();
    for number in 1..=6 {
        assert!(exists(&state, number).await, "{number}");
    }
    let versions: i64 = sqlx::query_scalar("SELECT count(*) FROM queuert_migration")
        .fetch_one(&mut raw(&path).await)
        .await
        .unwrap();
    assert_eq!(versions, 1);
}

/// A closed store lets go of the file, also where somebody still listens.
#[tokio::test]
async fn who_listens_does_not_keep_a_closed_file_open() {
    let (_directory, path, state) = file().await;
    start(&state, 1).await;
    let notify = SqliteNotify::new(&state);
    let _subscription = notify.subscribe(jobs(1)).await.unwrap();
    // As a future that is dropped at its first await.
    assert!(state.close().now_or_never().is_none());
    // The last connection folds the log into the file.
    let log = path.with_extension("db-wal");
    let closed = async {
        while log.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, closed).await.unwrap();
    let error = state.get_jobs(None, &[id(1)]).await.unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
    let error = notify.subscribe(jobs(1)).await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap();
    assert!(source.to_string().contains("closed"), "{source}");
    assert!(!log.exists());
}

/// Jobs of a better rank that are due later do not lie in the way. That a claim reads an index and no more is a test of
/// the plans, beside the statements.
#[tokio::test]
async fn claims_are_in_order_past_fifty_thousand_jobs_due_later() {
    use queuert::Schedule;
    use queuert::adapter::{ClaimJobs, ClaimType};
    let (_directory, _, state) = file().await;
    for batch in 0..100_u128 {
        let chains: Vec<NewChain> = (0..1_000_u128)
            .map(|number| {
                let mut one = chain(1 + batch * 1_000 + number);
                if batch % 2 == 0 {
                    one.job.schedule = Schedule::After(Duration::from_secs(3_600));
                    one.job.priority = 30_000;
                }
                one
            })
            .collect();
        state.create_chains(None, &chains).await.unwrap().unwrap();
    }
    let types: Vec<ClaimType> = ["other", "task", "third"]
        .map(|name| ClaimType {
            name: name.into(),
            lease: LONG,
        })
        .into();
    for round in 0..20_u128 {
        let fence = queuert::Fence::from_uuid(Uuid::from_u128(round + 1));
        let claim = ClaimJobs::new(types.clone(), 10, queuert::WorkerId::new("w"), fence);
        let claimed = state.claim_jobs(&claim).await.unwrap();
        let ids: Vec<JobId> = claimed.jobs.iter().map(|claimed| claimed.job.id).collect();
        let expected: Vec<JobId> = (0..10).map(|number| id(1_001 + round * 10 + number)).collect();
        assert_eq!(ids, expected);
    }
}

/// A connection that is adopted without a transaction is refused, and nothing is begun on it: what its owner writes after
/// that would never be committed.
#[tokio::test]
async fn a_connection_without_a_transaction_is_refused_and_left_alone() {
    let (_directory, path, state) = file().await;
    let mut own = raw(&path).await;
    own.execute("CREATE TABLE orders (id INTEGER)").await.unwrap();
    let refused = state.shield(&mut own).now_or_never();
    own.execute("INSERT INTO orders VALUES (1)").await.unwrap();
    let mut other = raw(&path).await;
    let orders: i64 = sqlx::query_scalar("SELECT count(*) FROM orders")
        .fetch_one(&mut other)
        .await
        .unwrap();
    assert_eq!(orders, 1, "the order is committed");
    let error = refused.expect("it is refused at once").unwrap_err();
    assert_eq!(error.kind(), StateErrorKind::Misconfigured);
    assert!(error.to_string().contains("begin_with"), "{error}");
}

/// A transaction of the caller's that was begun without the write lock has it before a job is given its time, so jobs that
/// another connection creates are older, or newer, but not behind a follower.
#[tokio::test]
async fn a_deferred_transaction_locks_before_the_time_is_read() {
    let (_directory, path, state) = file().await;
    let mut connection = raw(&path).await;
    let mut deferred = connection.begin().await.unwrap();
    let mut rival = raw(&path).await;
    rival.execute("PRAGMA busy_timeout = 0").await.unwrap();
    rival.execute("BEGIN IMMEDIATE; ROLLBACK").await.unwrap();
    state.shield(&mut deferred).await.unwrap();
    let refused = rival.execute("BEGIN IMMEDIATE").await.unwrap_err();
    assert!(refused.to_string().contains("locked"), "{refused}");
    state.unshield(&mut deferred).await.unwrap();
    deferred.rollback().await.unwrap();
    rival.execute("BEGIN IMMEDIATE; ROLLBACK").await.unwrap();
}

/// The watermark does not pass a transaction that another process has open, and does not wait for it.
#[tokio::test]
async fn the_watermark_does_not_pass_what_another_handle_writes_late() {
    let (_directory, path, state) = file().await;
    let other = SqliteState::open(&path).await.unwrap();
    start(&state, 1).await;
    let mut open = other.begin().await.unwrap();
    other
        .create_chains(Some(&mut open), &[chain(2)])
        .await
        .unwrap()
        .unwrap();
    let time = timeout(LONG, state.watermark()).await.unwrap().unwrap();
    other.commit(open).await.unwrap();
    let jobs = state.get_jobs(None, &[id(1), id(2)]).await.unwrap();
    assert!(
        jobs[0].created_at < time && time <= jobs[1].created_at,
        "{time}: {jobs:?}"
    );
    assert!(state.watermark().await.unwrap() > jobs[1].created_at);
}
