//! Jobs that are due and that no announcement tells of run while any process has an idle worker for them.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use queuert::adapter::{Notice, NotifyAdapter};
use queuert::{AttemptOutcome, Entry, Event, EventStream, JobType, JobTypes, LeaseSettings, RetryPolicy, Workers};
use queuert_postgres::{Attempt, Client, JobResult, PostgresNotify, PostgresState};
use serde::{Deserialize, Serialize};
use support::Schema;
use tokio::sync::{Barrier, Semaphore};
use tokio::time::Instant;

/// Longer than any test: what runs was not found by polling.
const NEVER: Duration = Duration::from_secs(3_600);

/// Longer than anything takes.
const SOON: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize)]
struct Task {
    /// Whether the first attempt fails.
    fails: bool,
}

#[derive(Serialize, Deserialize)]
struct Occupy;

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = u32)]
    Task(Task),
    #[job(entry, output = ())]
    Occupy(Occupy),
}

/// A process with wake-ups.
async fn listening(schema: &Schema) -> Client {
    let state = schema.state().await;
    let notify = PostgresNotify::new(&state);
    Client::builder(state).notify(notify).build()
}

/// A process that dies after its commits: it announces nothing.
async fn silent(schema: &Schema) -> Client {
    Client::new(schema.state().await)
}

async fn try_task(job: Attempt<Task>) -> JobResult {
    if job.fails && job.number() == 1 {
        return Err("not yet".into());
    }
    let attempt = job.number();
    job.finish(attempt)
}

async fn work(client: &Client) -> Workers<PostgresState> {
    client
        .worker()
        .process(try_task)
        .retry(RetryPolicy::new().initial(Duration::from_secs(1)))
        .poll_interval(NEVER)
        .start()
        .await
        .expect("the worker starts")
}

/// The output of a chain, once it has ended.
async fn output<J: Entry>(client: &Client, chain: &queuert::Started<J>) -> J::Output {
    let wait = client.wait(chain).poll_interval(Duration::from_millis(20));
    let output = tokio::time::timeout(SOON, std::future::IntoFuture::into_future(wait)).await;
    output.expect("it runs, though nobody polls").expect("it ends well")
}

/// Waits until the workers of a process have run a job: they have looked for jobs once, and none is left.
async fn is_idle(client: &Client) {
    let chain = client.start(Task { fails: false }).await.expect("it starts");
    output(client, &chain).await;
}

#[tokio::test]
async fn a_job_whose_starter_dies_before_its_announcement_runs() {
    let schema = Schema::new();
    let (starter, process) = (silent(&schema).await, listening(&schema).await);
    let workers = work(&process).await;
    is_idle(&process).await;
    for _ in 0..3 {
        let chain = starter.start(Task { fails: false }).await.expect("it starts");
        assert_eq!(output(&starter, &chain).await, 1);
    }
    workers.stop().await;
}

#[tokio::test]
async fn a_delayed_start_of_a_process_that_does_not_work_runs_when_it_is_due() {
    let schema = Schema::new();
    let (starter, process) = (silent(&schema).await, listening(&schema).await);
    let workers = work(&process).await;
    is_idle(&process).await;
    let delay = Duration::from_millis(300);
    let chain = starter.start(Task { fails: false }).delay(delay).await;
    assert_eq!(output(&starter, &chain.expect("it starts")).await, 1);
    workers.stop().await;
}

/// Returns when an attempt has failed.
async fn fails(events: &mut EventStream) {
    let failed = |event: &Event| {
        let Event::AttemptEnded { outcome, .. } = event else {
            return false;
        };
        matches!(outcome, AttemptOutcome::Failed { .. })
    };
    while !events.next().await.as_ref().is_some_and(failed) {}
}

/// Returns a chain whose first attempt has failed in this process, so that only this process knows when the retry is due.
async fn fails_in(process: &Client) -> queuert::Started<Task> {
    loop {
        let mut events = process.events();
        let chain = process.start(Task { fails: true }).await.expect("it starts");
        // Almost always it is taken here, because there is an idle worker here. If another process looked in that moment, another
        // one is tried.
        tokio::select! {
            () = fails(&mut events) => return chain,
            _ = output(process, &chain) => {}
        }
    }
}

#[tokio::test]
async fn a_retry_of_a_process_that_has_stopped_is_run_by_another() {
    let schema = Schema::new();
    let (first, second) = (listening(&schema).await, listening(&schema).await);
    let workers = [work(&first).await, work(&second).await];
    is_idle(&first).await;
    is_idle(&second).await;
    let chain = fails_in(&first).await;
    workers[0].stop().await;
    assert_eq!(output(&second, &chain).await, 2);
    workers[1].stop().await;
}

#[tokio::test]
async fn a_retry_of_a_process_that_is_busy_is_run_by_another() {
    let schema = Schema::new();
    let (first, second) = (listening(&schema).await, listening(&schema).await);
    let (busy, free) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (begins, ends) = (Arc::clone(&busy), Arc::clone(&free));
    let occupied = first
        .worker()
        .process(try_task)
        .process(move |job: Attempt<Occupy>| {
            begins.add_permits(1);
            let ends = Arc::clone(&ends);
            async move {
                let _ = ends.acquire().await;
                job.finish(())
            }
        })
        .retry(RetryPolicy::new().initial(Duration::from_secs(1)))
        .poll_interval(NEVER)
        .concurrency(1)
        .start()
        .await
        .expect("the worker starts");
    let idle = work(&second).await;
    is_idle(&first).await;
    is_idle(&second).await;
    let chain = fails_in(&first).await;
    let occupation = first.start(Occupy).await.expect("it starts");
    let _ = busy.acquire().await.expect("nothing closes it");
    assert_eq!(output(&second, &chain).await, 2);
    free.add_permits(1);
    output(&first, &occupation).await;
    occupied.stop().await;
    idle.stop().await;
}

#[tokio::test]
async fn a_retry_of_a_process_that_has_died_is_run_by_another() {
    let schema = Arc::new(Schema::new());
    let survivor = listening(&schema).await;
    let workers = work(&survivor).await;
    let process = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime can be built");
    let of_process = Arc::clone(&schema);
    let failing = process.spawn(async move {
        let client = listening(&of_process).await;
        let workers = work(&client).await;
        is_idle(&client).await;
        let chain = fails_in(&client).await;
        // Neither is dropped, which would stop the workers.
        std::mem::forget((client, workers));
        chain
    });
    is_idle(&survivor).await;
    let chain = failing.await.expect("it runs");
    // All of its tasks end where they are, and nothing is passed on.
    process.shutdown_background();
    assert_eq!(output(&survivor, &chain).await, 2);
    workers.stop().await;
}

/// Processes look for each other: this one's own look would come in an hour.
#[tokio::test]
async fn a_process_that_runs_other_types_finds_the_job_of_another() {
    let schema = Schema::new();
    let state = schema.state().await;
    let notify = PostgresNotify::options().look_interval(NEVER).build(&state);
    let process = Client::builder(state).notify(notify.clone()).build();
    let workers = work(&process).await;
    let other = listening(&schema).await;
    let looker = other
        .worker()
        .process(|job: Attempt<Occupy>| async move { job.finish(()) })
        .poll_interval(NEVER)
        .start()
        .await
        .expect("the worker starts");
    is_idle(&process).await;
    let starter = silent(&schema).await;
    for _ in 0..3 {
        let chain = starter.start(Task { fails: false }).await.expect("it starts");
        assert_eq!(output(&starter, &chain).await, 1);
    }
    looker.stop().await;
    workers.stop().await;
}

/// Two processes with one worker each, and two jobs that nothing tells of: each job waits until both run.
#[tokio::test]
async fn as_many_workers_are_woken_as_there_are_jobs() {
    let schema = Schema::new();
    let together = Arc::new(Barrier::new(2));
    let mut fleet = Vec::new();
    for _ in 0..2 {
        let client = listening(&schema).await;
        let together = Arc::clone(&together);
        let worker = client.worker().process(move |job: Attempt<Occupy>| {
            let together = Arc::clone(&together);
            async move {
                together.wait().await;
                job.finish(())
            }
        });
        let workers = worker.concurrency(1).poll_interval(NEVER).start().await;
        fleet.push(workers.expect("the worker starts"));
    }
    let starter = silent(&schema).await;
    for _ in 0..3 {
        let chains = [starter.start(Occupy).await, starter.start(Occupy).await];
        for chain in chains {
            let chain = chain.expect("it starts");
            output(&starter, &chain).await;
        }
    }
    for workers in fleet {
        workers.stop().await;
    }
}

/// One process says that it takes a job, and then cannot.
#[tokio::test]
async fn a_job_that_a_process_speaks_for_and_never_claims_is_run_by_another() {
    let schema = Schema::new();
    let starter = listening(&schema).await;
    let process = listening(&schema).await;
    let workers = work(&process).await;
    is_idle(&process).await;
    // Many ghosts, so that the process is hardly ever the first to be asked; and one of them says of every announcement that it
    // takes the job.
    let mut ears = sqlx::postgres::PgListener::connect_with(&sqlx::PgPool::connect_lazy_with(schema.connect_options()))
        .await
        .expect("it connects");
    let channel = format!("queuert:{}", schema.name());
    ears.listen(&channel).await.expect("it listens");
    let said = Arc::new(AtomicBool::new(false));
    let (told, mut voice) = (Arc::clone(&said), schema.connection().await);
    let ghost = tokio::spawn(async move {
        let notify = |payload: String| {
            sqlx::query("SELECT pg_notify($1, $2)")
                .bind(channel.clone())
                .bind(payload)
        };
        for ghost in 1..=30 {
            notify(format!("q1{ghost:016x}1.P*:"))
                .execute(&mut voice)
                .await
                .expect("it speaks");
        }
        while let Ok(heard) = ears.recv().await {
            let Some((ticket, job)) = heard
                .payload()
                .strip_prefix("q1")
                .and_then(|text| text.split_once(".J1:"))
            else {
                continue;
            };
            let taken = format!("q1{:016x}2.T{ticket}.1:{job}", 1);
            notify(taken).execute(&mut voice).await.expect("it speaks");
            told.store(true, Ordering::SeqCst);
        }
    });
    for _ in 0..5 {
        let chain = starter.start(Task { fails: false }).await.expect("it starts");
        assert_eq!(output(&starter, &chain).await, 1);
    }
    ghost.abort();
    assert!(said.load(Ordering::SeqCst), "the ghost spoke");
    workers.stop().await;
}

/// Two stores in one database, each with a worker of the same type: neither takes the announcements of the other.
#[tokio::test]
async fn stores_in_two_schemas_of_one_database_do_not_hear_each_other() {
    let schemas = [Schema::new(), Schema::new()];
    let mut fleet = Vec::new();
    for schema in &schemas {
        let worker = schema.state().await;
        // Announcements are all that wakes it.
        let notify = PostgresNotify::options().look_interval(NEVER).build(&worker);
        let worker = Client::builder(worker).notify(notify).build();
        let workers = work(&worker).await;
        fleet.push((listening(schema).await, workers));
    }
    for _ in 0..10 {
        for (starter, _) in &fleet {
            let chain = starter.start(Task { fails: false }).await.expect("it starts");
            assert_eq!(output(starter, &chain).await, 1);
        }
    }
    for (_, workers) in fleet {
        workers.stop().await;
    }
}

/// The process that looks does not run the type of the dead one, and the process that does run it never looks by itself: it is
/// told.
#[tokio::test]
async fn a_process_that_runs_the_type_of_a_dead_one_is_told_by_one_that_looks() {
    let schema = Arc::new(Schema::new());
    let begun = Arc::new(Semaphore::new(0));
    let process = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime can be built");
    let (of_process, begins) = (Arc::clone(&schema), Arc::clone(&begun));
    let dying = process.spawn(async move {
        let client = listening(&of_process).await;
        let worker = client.worker().process(move |job: Attempt<Occupy>| {
            begins.add_permits(1);
            async move {
                std::future::pending::<()>().await;
                job.finish(())
            }
        });
        let workers = worker.lease(LeaseSettings::new(NEVER)).start().await;
        // Neither is dropped, which would stop the workers.
        std::mem::forget((client, workers.expect("the worker starts")));
    });
    dying.await.expect("it starts");
    let starter = silent(&schema).await;
    starter.start(Occupy).await.expect("it starts");
    let _ = begun.acquire().await.expect("nothing closes it");

    let looker = listening(&schema).await;
    let looking = work(&looker).await;
    let state = schema.state().await;
    let notify = PostgresNotify::options().look_interval(NEVER).build(&state);
    let survivor = Client::builder(state).notify(notify.clone()).build();
    let mut events = survivor.events();
    let surviving = survivor
        .worker()
        .process(|job: Attempt<Occupy>| async move { job.finish(()) })
        .poll_interval(NEVER)
        .start()
        .await
        .expect("the worker starts");
    while notify.peers() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // All of its tasks end where they are, and its sessions with them.
    process.shutdown_background();
    let died = Instant::now();
    let reaped = async { while !matches!(events.next().await, Some(Event::JobReaped { .. })) {} };
    tokio::time::timeout(SOON, reaped).await.expect("the job is taken back");
    // A second to be sure that it is dead, less than another one until a look; and time for a busy machine.
    assert!(died.elapsed() < Duration::from_secs(10), "{:?}", died.elapsed());
    surviving.stop().await;
    looking.stop().await;
}

/// A look that waits for a lock, or takes long, does not hold up announcements.
#[tokio::test]
async fn announcements_go_out_while_a_look_takes_long() {
    let schema = Schema::new();
    let state = schema.state().await;
    let notify = PostgresNotify::new(&state);
    let client = Client::builder(state).notify(notify.clone()).build();
    let workers = work(&client).await;
    is_idle(&client).await;
    let mut blocker = schema.connection().await;
    let lock = "BEGIN; LOCK TABLE {schema}.later IN ACCESS EXCLUSIVE MODE";
    schema.run(&mut blocker, lock).await;
    // Not the connection that blocks: in a transaction the server shows the statements of the first time that it was asked.
    let mut watch = schema.connection().await;
    // The beginning of the look: the server shows no more than the first 1,024 bytes of a statement.
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock' \
                   AND query LIKE 'WITH due AS MATERIALIZED%'";
    loop {
        let waiting = sqlx::query_scalar::<_, i64>(waiting).bind(schema.name().to_owned());
        if waiting.fetch_one(&mut watch).await.expect("the server tells") > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let notice = Notice::JobsAvailable {
        type_name: Occupy::NAME.into(),
        count: 1,
    };
    let told = async {
        notify.announce(&[notice]).await?;
        notify.flush().await
    };
    let told = tokio::time::timeout(Duration::from_secs(3), told).await;
    told.expect("it does not wait for the look").expect("it goes out");
    schema.run(&mut blocker, "ROLLBACK").await;
    workers.stop().await;
}
