//! Passwords and payloads are in nothing that the library prints: no `Debug`, no error, no event, no line of `tracing`.
//!
//! Every public type is named in one of the lists below; `tests/documents/tests/structure.rs` finds those that are not.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::error::Error;
use std::fmt::{self, Debug};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry::global::BoxedTracer;
use postgres_support::Cluster;
use queuert::adapter::{
    Authority, ClaimJobs, ClaimType, Claimed, JobQuery, NewChain, NewJob, NotifyAdapter, Outcome, Settlement,
    StateAdapter,
};
use queuert::memory::{InProcessNotify, MemoryState};
use queuert::middleware::{LogAttempts, TraceAttempts};
use queuert::{
    Attempt, AttemptContext, ChainRef, Client, Fence, IntoStep, JobId, JobTypes, Middleware, Next, NotifyError,
    Payload, RetryPolicy, WorkerId,
};
use queuert_otel::Otel;
use queuert_postgres::{PostgresNotify, PostgresState};
use queuert_sqlite::{SqliteNotify, SqliteState};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// Every password, key and payload of this test.
const SECRET: &str = "correct-horse-battery-staple";

#[derive(Serialize, Deserialize)]
struct Login {
    password: String,
}

#[derive(Serialize, Deserialize)]
struct Token(String);

/// The application's own types are its own affair: what holds one prints it as the application wants it printed.
impl Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(..)")
    }
}

impl Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = Token, retry(initial = "1ms", max_attempts = 2))]
    Login(Login),
}

/// What is printed below with a secret inside, or with one where a secret would be: the test fails for a name that it does
/// not come across.
const PRINTED: &[&str] = &[
    "Attempt",
    "AttemptContext",
    "AttemptInfo",
    "AttemptTransaction",
    "Chain",
    "ChainRecord",
    "Claimed",
    "ClaimedJob",
    "Client",
    "ClientBuilder",
    "Completion",
    "CreatedChain",
    "Drained",
    "DrainedAttempt",
    "Error",
    "Event",
    "Follow",
    "FollowedPage",
    "InProcessNotify",
    "Job",
    "JobError",
    "JobRecord",
    "ListBlockedJobs",
    "ListChainJobs",
    "ListChains",
    "ListJobs",
    "MemoryConnection",
    "MemoryState",
    "MemoryTransaction",
    "NewChain",
    "NewJob",
    "Next",
    "NotifyError",
    "Open",
    "OpenJob",
    "Otel",
    "Outcome",
    "Page",
    "Payload",
    "PayloadError",
    "PostgresNotify",
    "PostgresNotifyOptions",
    "PostgresOptions",
    "PostgresState",
    "PostgresTransaction",
    "Request",
    "Settled",
    "Settlement",
    "SqliteNotify",
    "SqliteOptions",
    "SqliteState",
    "SqliteTransaction",
    "Start",
    "Started",
    "StateError",
    "Step",
    "Transaction",
    "Wait",
    "WorkerBuilder",
    "Workers",
];

/// What can hold none, and why.
const HOLDS_NONE: &[(&str, &[&str])] = &[
    (
        "a name or a number that identifies",
        &[
            "ChainRef",
            "Cursor",
            "Deduplication",
            "Fence",
            "JobInfo",
            "Position",
            "Timestamp",
            "TypeName",
            "WorkerId",
        ],
    ),
    (
        "one of a few words, or numbers",
        &[
            "AbortReason",
            "AbortSignal",
            "Commit",
            "CompletionKind",
            "DeduplicationScope",
            "Delivery",
            "Demand",
            "JobSort",
            "JobStatus",
            "Order",
            "RankChange",
            "ReapCause",
            "Renewal",
            "Sabotage",
            "Schedule",
            "StateErrorKind",
            "Synchronous",
            "TransactionFault",
            "Wake",
        ],
    ),
    (
        "settings: times, counts, names of types",
        &[
            "Backoff",
            "HandOver",
            "JobSettings",
            "LeaseSettings",
            "LimitConcurrency",
            "LogAttempts",
            "MemoryClock",
            "ReapLeases",
            "ReapType",
            "Retention",
            "RetryPolicy",
            "Timeout",
            "TraceAttempts",
        ],
    ),
    (
        "ids, times and names of types, which go to the store or come from it",
        &[
            "Applied",
            "Authority",
            "BlockerReference",
            "ChainQuery",
            "ClaimJobs",
            "BlockerOutputs",
            "ClaimType",
            "DeleteChains",
            "ExpiredChain",
            "JobHead",
            "JobQuery",
            "KeysOfCall",
            "KeysOfRetry",
            "Lease",
            "Maintain",
            "QueueSample",
            "Refusal",
            "RenewLease",
            "Repeated",
            "SampleQueues",
            "UnblockedJob",
        ],
    ),
    (
        "parts of sealed traits: not exported, and without `Debug`",
        &["NewChains", "RequestContext", "Scope"],
    ),
    (
        "requests with ids only, and calls, which print their names",
        &["Call", "Delete"],
    ),
    (
        "the texts of errors and findings, which are looked at where they are made",
        &[
            "AttemptError",
            "AttemptOutcome",
            "ErrorChange",
            "Health",
            "Maintained",
            "PanicReport",
            "TakenBack",
        ],
    ),
    (
        "nothing but types of `PRINTED`, by their own `Debug`",
        &[
            "AttemptFailure",
            "AttemptRequest",
            "AttemptStart",
            "Change",
            "ChainFilter",
            "Continued",
            "Creation",
            "Find",
            "General",
            "JobFilter",
            "LockKey",
            "OutsideCompletion",
            "PlannedStart",
            "ReapedJob",
            "StartPlan",
            "StoppedChain",
            "StoredJob",
        ],
    ),
    (
        "the types of wake-ups: names, ids and channels",
        &[
            "EventStream",
            "Notice",
            "NoticeSender",
            "NoNotify",
            "Subscriber",
            "Subscribers",
            "Subscription",
            "Topic",
        ],
    ),
    (
        "prints no field that the application or the store has filled",
        &[
            "AttemptService",
            "Committed",
            "ForeignTransaction",
            "HeldEffects",
            "RawAttempt",
            "ReportPanics",
            "StartedChains",
            "TowerMiddleware",
        ],
    ),
    (
        "the declared types of a graph, known to the compiler",
        &["Graph", "GraphBlockers", "GraphType", "Many", "One"],
    ),
    ("the text of a migration, which is published", &["Migration"]),
    (
        "for this library and its adapters: a lock around what is theirs",
        &["Guard", "Lock", "SharedLock"],
    ),
    ("for the derive macro: a probe for a trait", &["Probe"]),
];

/// All that was printed, with what it was.
#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<(String, String)>>>);

impl Printed {
    fn add(&self, what: &str, text: impl Into<String>) {
        self.0.lock().unwrap().push((what.to_owned(), text.into()));
    }

    fn debug<T: Debug + ?Sized>(&self, what: &str, value: &T) {
        self.add(what, std::any::type_name::<T>());
        self.add(what, format!("{value:?}"));
        self.add(what, format!("{value:#?}"));
    }

    /// An error with the messages of all its sources. The `Debug` of those is their own.
    fn error<E: Error + 'static>(&self, what: &str, error: &E) {
        self.debug(what, error);
        let mut next: Option<&dyn Error> = Some(error);
        while let Some(error) = next {
            self.add(what, error.to_string());
            next = error.source();
        }
    }

    /// Everything that the lists promise was printed.
    fn check_lists(&self) {
        let mut words = HashSet::new();
        for (_, text) in self.0.lock().unwrap().iter() {
            let split = text.split(|character: char| !character.is_alphanumeric() && character != '_');
            words.extend(split.map(str::to_owned));
        }
        let missing: Vec<_> = PRINTED.iter().filter(|name| !words.contains(**name)).collect();
        assert!(missing.is_empty(), "{missing:?} are not printed by this test");
        for (reason, names) in HOLDS_NONE {
            let twice: Vec<_> = names.iter().filter(|name| PRINTED.contains(name)).collect();
            assert!(!reason.is_empty() && twice.is_empty(), "{twice:?} are in both lists");
        }
    }

    fn check(&self) {
        let printed = self.0.lock().unwrap();
        for (what, text) in printed.iter() {
            assert!(!text.contains(SECRET), "{what} has the secret: {text}");
        }
    }
}

/// Every line and every span of every crate, with all its fields.
impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Printed {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        attributes.record(&mut Reader(self, attributes.metadata().target()));
    }

    fn on_record(&self, _: &Id, values: &Record<'_>, _: Context<'_, S>) {
        values.record(&mut Reader(self, "a span"));
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut Reader(self, event.metadata().target()));
    }
}

struct Reader<'a>(&'a Printed, &'a str);

impl Visit for Reader<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let what = format!("a line of {}, {}", self.1, field.name());
        self.0.add(&what, format!("{value:?}"));
    }
}

/// Prints what a middleware sees.
struct Printing(Printed);

impl<S: StateAdapter> Middleware<S> for Printing {
    async fn attempt(&self, job: &mut AttemptContext<S>, next: Next<'_, S>) -> queuert::JobResult<S> {
        self.0.debug("the context of an attempt", job);
        self.0.debug("the layers inside", &next);
        let result = next.run(job).await;
        match &result {
            Ok(completion) => self.0.debug("a completion", completion),
            Err(error) => self.0.debug("an error of a processor", error),
        }
        result
    }
}

/// Requests that are not sent, and those that read.
async fn requests<S: StateAdapter>(printed: &Printed, client: &Client<S>, chain: &ChainRef<Login>) {
    let login = || Login {
        password: SECRET.to_owned(),
    };
    printed.debug("a step", &login().into_step());
    printed.debug("a start", &client.start(login()));
    printed.debug("a start of many", &client.start_many([login(), login()]));
    printed.debug("a start of each", &client.start_each((login(), login())));
    printed.debug("a wait", &client.wait(chain));
    let first = chain.id().first_job();
    printed.debug("a look at a chain", &client.get_chain(chain));
    printed.debug("a look at its record", &client.get_chain_record(chain));
    printed.debug("a look at a job", &client.get_job::<Login>(first));
    printed.debug("a look at its record", &client.get_job_record(first));
    printed.debug("a look at blockers", &client.get_blockers(first));
    printed.debug("a typed chain", &client.get_chain(chain).await.unwrap());
    printed.debug("a typed job", &client.get_job::<Login>(first).await.unwrap());
    printed.debug("a list", &client.list_chains());
    printed.debug("a page", &client.list_chains().await.unwrap());
    printed.debug("a list of jobs", &client.list_jobs());
    printed.debug("a page of jobs", &client.list_jobs().await.unwrap());
    printed.debug("a list of a chain's jobs", &client.list_chain_jobs(chain));
    printed.debug("a list of blocked jobs", &client.list_blocked_jobs(chain));
    let follow = client.list_jobs().follow(None);
    printed.debug("a list that goes on", &follow);
    printed.debug("a page of it", &follow.await.unwrap());
    let open = client.start(login()).await.unwrap();
    printed.debug("an opening", &client.open::<Login>(&open));
    let mut transaction = client.begin().await.unwrap();
    let job = client.open::<Login>(&open).within(&mut transaction).await.unwrap();
    printed.debug("an open job", &job);
    job.finish(Token(SECRET.to_owned())).await.unwrap();
    transaction.commit().await.unwrap();
}

/// What is there for every store: the client, its workers, requests, records, events, and a job that fails.
async fn run<S, N>(printed: &Printed, state: S, notify: N)
where
    S: StateAdapter + Clone + Debug,
    S::Transaction: Debug,
    N: NotifyAdapter + Debug,
{
    printed.debug("the state", &state);
    printed.debug("the wake-ups", &notify);
    printed.debug("the telemetry", &Otel::<BoxedTracer>::global());
    let builder = Client::builder(state.clone()).notify(notify);
    printed.debug("the client's builder", &builder);
    let client = builder.build();
    printed.debug("the client", &client);
    let mut events = client.events();
    let password = || SECRET.to_owned();
    let chain = client.start(Login { password: password() }).await.unwrap();
    printed.debug("a started chain", &chain);
    let mut transaction = client.begin().await.unwrap();
    client
        .start(Login { password: password() })
        .within(&mut transaction)
        .await
        .unwrap();
    printed.debug("a transaction", &transaction);
    transaction.rollback().await.unwrap();
    let transaction = state.begin().await.unwrap();
    printed.debug("a transaction of the store", &transaction);
    state.rollback(transaction).await.unwrap();
    let worker = client
        .worker()
        .middleware(TraceAttempts::new())
        .middleware(LogAttempts::new())
        .middleware(Printing(printed.clone()))
        .poll_interval(Duration::from_millis(10));
    let printing = printed.clone();
    let worker = worker.process(move |job: Attempt<Login, S>| {
        printing.debug("an attempt", &job);
        let printing = printing.clone();
        async move {
            if job.number() == 1 {
                return Err("the password is wrong".into());
            }
            let transaction = job.begin().await?;
            printing.debug("the transaction of an attempt", &transaction);
            transaction.finish(Token(SECRET.to_owned())).await
        }
    });
    printed.debug("the workers' builder", &worker);
    let workers = worker.start().await.unwrap();
    printed.debug("the workers", &workers);
    client
        .wait(&chain)
        .poll_interval(Duration::from_millis(10))
        .await
        .unwrap();
    workers.stop().await;
    printed.debug("a chain", &client.get_chain_record(&chain).await.unwrap());
    printed.debug("a job", &client.get_job_record(chain.id().first_job()).await.unwrap());
    requests(printed, &client, &chain.chain()).await;
    raw(printed, &state).await;
    // A payload that cannot be read is dead, with an error that is stored, sent and logged.
    let odd = JobId::from_uuid(uuid::Uuid::from_u128(77));
    let odd = NewJob::new(odd, "login", Payload::from_text(format!("{SECRET:?}")));
    state.create_chains(None, &[NewChain::new(odd)]).await.unwrap().unwrap();
    let worker = client
        .worker()
        .process(|job: Attempt<Login, S>| async move { job.finish(Token(String::new())) });
    printed.debug("what a drain did", &worker.drain().await.unwrap());
    let mut query = JobQuery::default();
    query.limit = 10;
    printed.debug("all jobs", &state.list_jobs(None, &query).await.unwrap());
    while let Some(event) = events.try_next() {
        printed.debug("an event", &event);
    }
    printed.debug("the state at the end", &state);
}

/// What goes over the seam to the store.
async fn raw<S: StateAdapter>(printed: &Printed, state: &S) {
    let id = JobId::from_uuid(uuid::Uuid::from_u128(78));
    let secret = || Payload::from_text(format!("{SECRET:?}"));
    let chain = NewChain::new(NewJob::new(id, "raw", secret()));
    printed.debug("a new chain", &chain);
    let created = state.create_chains(None, &[chain]).await.unwrap().unwrap();
    printed.debug("what came of it", &created);
    let types = vec![ClaimType {
        name: "raw".into(),
        lease: Duration::from_secs(60),
    }];
    let fence = Fence::from_uuid(uuid::Uuid::from_u128(79));
    let worker = WorkerId::new("worker");
    let claim = ClaimJobs::new(types, 1, worker.clone(), fence);
    let claimed: Claimed = state.claim_jobs(&claim).await.unwrap();
    printed.debug("a claim", &claimed);
    printed.debug("a claimed job", &claimed.jobs);
    let settlement = Settlement {
        job: id,
        authority: Authority::Fence { fence, worker },
        outcome: Outcome::Finish { output: secret() },
    };
    printed.debug("an end", &settlement);
    printed.debug("its outcome", &settlement.outcome);
    let settled = state.settle_jobs(None, &[settlement]).await.unwrap();
    printed.debug("what came of it", &settled);
    printed.error("a payload of the wrong shape", &secret().decode::<u32>().unwrap_err());
}

/// A row that the database refuses: the driver's error has it, with all its columns, and prints it.
async fn refused_row(printed: &Printed, state: &PostgresState, mut connection: sqlx::PgConnection) {
    let short = "ALTER TABLE queuert.job ADD CONSTRAINT short CHECK (octet_length(input::text) < 10) NOT VALID";
    sqlx::query(short).execute(&mut connection).await.unwrap();
    let client = Client::new(state.clone());
    let mut events = client.events();
    let login = || Login {
        password: SECRET.to_owned(),
    };
    let refused = client.start(login()).await.unwrap_err();
    let driver = refused.source().unwrap().source().unwrap();
    assert!(
        format!("{driver:?}").contains(SECRET),
        "the driver has the row: {driver:?}"
    );
    printed.error("a refused row", &refused);
    match refused {
        queuert::Error::State(error) => {
            printed.debug("the store's error", &error);
            printed.debug("as that of a processor", &queuert::JobError::from(error));
        }
        error => panic!("{error}"),
    }
    let notify = NotifyError::new("refused").with_source(client.start(login()).await.unwrap_err());
    printed.error("a refused row, elsewhere", &notify);
    // A processor that runs into it.
    let normal = "ALTER TABLE queuert.job DROP CONSTRAINT short";
    sqlx::query(normal).execute(&mut connection).await.unwrap();
    client.start(login()).await.unwrap();
    sqlx::query(short).execute(&mut connection).await.unwrap();
    let worker = client
        .worker()
        .process(move |job: Attempt<Login, PostgresState>| async move {
            job.client().start(login()).await?;
            job.finish(Token(String::new()))
        });
    printed.debug("a drain", &worker.drain().await.unwrap());
    while let Some(event) = events.try_next() {
        printed.debug("an event about it", &event);
    }
    sqlx::query(normal).execute(&mut connection).await.unwrap();
}

/// URLs that cannot be read, or lead nowhere.
fn bad_urls(port: u16) -> Vec<String> {
    vec![
        format!("mysql://user:{SECRET}@127.0.0.1/db"),
        format!("user:{SECRET}@127.0.0.1/db"),
        format!("postgres://user:{SECRET}@127.0.0.1:port/db"),
        format!("postgres://user:{SECRET}@[::/db"),
        format!("postgres://user:{SECRET}@127.0.0.1:1/db?sslmode={SECRET}"),
        format!("postgres://user:{SECRET}@127.0.0.1:1/db?port={SECRET}"),
        format!("postgres://user@127.0.0.1:1/db?password={SECRET}"),
        format!("postgres://user:{SECRET}@127.0.0.1:1/db?sslpassword={SECRET}"),
        format!("postgres://user:{SECRET}@127.0.0.1:{port}/nowhere"),
        format!("postgres://nobody:{SECRET}@127.0.0.1:{port}/postgres"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_printed() {
    let printed = Printed::default();
    let subscriber = tracing_subscriber::registry().with(printed.clone());
    tracing::subscriber::set_global_default(subscriber).unwrap();

    run(&printed, MemoryState::new(), InProcessNotify::new()).await;

    let directory = tempfile::tempdir().unwrap();
    let connect = SqliteConnectOptions::new().pragma("key", format!("'{SECRET}'"));
    let options = SqliteState::options().connect_options(connect);
    printed.debug("the options of SQLite", &options);
    let state = options.open(directory.path().join("app.db")).await.unwrap();
    run(&printed, state.clone(), SqliteNotify::new(&state)).await;
    state.close().await.unwrap();

    let cluster = Cluster::launch().await;
    let url = format!(
        "postgres://postgres:{SECRET}@127.0.0.1:{}/postgres?sslpassword={SECRET}",
        cluster.port()
    );
    let options = PostgresState::options();
    printed.debug("the options of Postgres", &options);
    let state = options.connect(&url).await.unwrap();
    let notify =
        PostgresNotify::options().listen_with(PgConnectOptions::from_str(&cluster.url()).unwrap().password(SECRET));
    printed.debug("the options of its wake-ups", &notify);
    printed.debug(
        "its wake-ups by URL",
        &PostgresNotify::connect_lazy(&url, "queuert").unwrap(),
    );
    run(&printed, state.clone(), notify.build(&state)).await;
    refused_row(&printed, &state, cluster.connect().await).await;
    state.close().await;

    for url in bad_urls(cluster.port()) {
        match PostgresState::options()
            .acquire_timeout(Duration::from_secs(1))
            .connect(&url)
            .await
        {
            Ok(state) => panic!("{state:?} is connected"),
            Err(error) => printed.error("an error of the state", &error),
        }
        match PostgresNotify::connect_lazy(&url, "queuert") {
            Ok(notify) => {
                printed.debug("wake-ups", &notify);
                let client = Client::builder(MemoryState::new()).notify(notify).build();
                let mut events = client.events();
                client
                    .start(Login {
                        password: SECRET.to_owned(),
                    })
                    .await
                    .unwrap();
                while let Some(event) = events.try_next() {
                    printed.debug("an event of an outage", &event);
                }
            }
            Err(error) => printed.error("an error of the wake-ups", &error),
        }
    }

    printed.debug("a policy", &RetryPolicy::new());
    let lines = printed.0.lock().unwrap().len();
    assert!(lines > 200, "only {lines} texts were looked at");
    printed.check();
    printed.check_lists();
}
