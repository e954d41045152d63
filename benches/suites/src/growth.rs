//! What the size of one call does to its price: keyed starts, blockers of one job, job types of one claim. On all stores,
//! through the adapter's verbs.

use std::time::Duration;

use queuert::adapter::{Authority, ClaimJobs, ClaimType, NewChain, NewJob, Outcome, Settled, Settlement, StateAdapter};
use queuert::memory::MemoryState;
use queuert::{ChainId, Fence, JobId, Payload, WorkerId};
use queuert_measured::{CORES, Figure};
use queuert_sqlite::SqliteState;
use uuid::Uuid;

use crate::Options;
use crate::measure::{BoxError, Case, Ratio, Report, Stopwatch, Suite, quantile, sorted};
use crate::postgres::server::Server;

const STORES: [&str; 3] = ["memory", "sqlite", "postgres"];
const KEYED: [usize; 2] = [6_000, 60_000];
const BLOCKERS: [usize; 2] = [150, 1_500];
const TYPES: [usize; 3] = [50, 1_000, 10_000];

/// Claims per number of types, and jobs per claim.
const CLAIMS: usize = 30;
const CLAIMED: usize = 100;

pub(crate) fn suite(options: &Options) -> Suite {
    let divide = options.divide;
    let mut cases = Vec::new();
    for store in STORES {
        cases.push(Case::new(format!("keyed starts, {store}"), move || {
            on(store, move |state| Box::pin(keyed_starts(store, state, divide)))
        }));
        cases.push(Case::new(format!("blockers, {store}"), move || {
            on(store, move |state| Box::pin(blockers(store, state, divide)))
        }));
        cases.push(Case::new(format!("types, {store}"), move || {
            on(store, move |state| Box::pin(types(store, state)))
        }));
    }
    Suite {
        name: "growth",
        rounds: 3,
        settings: vec![
            (
                "runtime",
                format!("multi-thread, {CORES} threads, the server on the same machine"),
            ),
            (
                "keyed starts",
                "distinct keys in one call, and the same one by one in one transaction".into(),
            ),
            (
                "blockers",
                "a job that continues with as many blockers, each of which waits for the one before it".into(),
            ),
            (
                "types",
                format!("median of {CLAIMS} claims of {CLAIMED}, every type has jobs"),
            ),
            ("divided by", divide.to_string()),
        ],
        cases,
        ratios: ratios(),
        limits: Vec::new(),
        plots: Vec::new(),
    }
}

fn ratios() -> Vec<Ratio> {
    let mut ratios = Vec::new();
    for store in STORES {
        let [few, many] = KEYED.map(|count| keyed_name(store, count));
        ratios.push(Ratio::new(&format!("{many} / {few}"), &many, &[&few], Some(0.5)));
        let single = single_name(store);
        ratios.push(Ratio::new(
            &format!("{many} / one by one"),
            &many,
            &[&single],
            Some(1.0),
        ));
        let [few, many] = BLOCKERS.map(|count| blockers_name(store, count));
        ratios.push(Ratio::new(&format!("{many} / {few}"), &many, &[&few], Some(0.5)));
        let [_, few, many] = TYPES.map(|count| types_name(store, count));
        // Ten times the types.
        ratios.push(Ratio::at_most(&format!("{many} / {few}"), &many, &few, Some(15.0)));
    }
    ratios
}

fn keyed_name(store: &str, count: usize) -> String {
    format!("keyed starts, {store}: {count} in a call")
}

fn single_name(store: &str) -> String {
    format!("keyed starts, {store}: one by one")
}

fn blockers_name(store: &str, count: usize) -> String {
    format!("blockers, {store}: {count}")
}

fn types_name(store: &str, count: usize) -> String {
    format!("claim, {store}: {count} types")
}

type Measuring<'a> = std::pin::Pin<Box<dyn Future<Output = Result<Vec<Figure>, BoxError>> + Send + 'a>>;

/// What is measured, whichever store it is: an object, because the stores have different types.
enum State {
    Memory(MemoryState),
    Sqlite(SqliteState),
    Postgres(queuert_postgres::PostgresState),
}

/// Runs the expression with the store of whatever type it is.
macro_rules! with {
    ($state:expr, $name:ident => $run:expr) => {
        match $state {
            State::Memory($name) => $run,
            State::Sqlite($name) => $run,
            State::Postgres($name) => $run,
        }
    };
}

async fn on(
    store: &str,
    measure: impl FnOnce(State) -> Measuring<'static> + Send + 'static,
) -> Result<Report, BoxError> {
    let program = std::env::current_exe()?;
    let place = program.parent().ok_or("a program has a directory")?;
    let directory = tempfile::tempdir_in(place)?;
    let figures = match store {
        "memory" => measure(State::Memory(MemoryState::new())).await?,
        "sqlite" => {
            let state = SqliteState::open(directory.path().join("queue.db")).await?;
            measure(State::Sqlite(state)).await?
        }
        _ => {
            let server = Server::clean().await?;
            measure(State::Postgres(server.state(None).await?)).await?
        }
    };
    Ok(figures.into())
}

fn uuid() -> Uuid {
    Uuid::from_u128(fastrand::u128(..))
}

fn chain(type_name: &str, key: Option<String>) -> NewChain {
    let id = JobId::from_uuid(uuid());
    let mut chain = NewChain::new(NewJob::new(id, type_name.to_owned(), Payload::from_text("1")));
    chain.deduplication = key.map(Into::into);
    chain
}

async fn start<S: StateAdapter>(state: &S, chains: &[NewChain]) -> Result<Vec<ChainId>, BoxError> {
    let created = state.create_chains(None, chains).await?;
    let created = created.map_err(|refusal| format!("refused: {refusal:?}"))?;
    Ok(created.iter().map(|chain| chain.id).collect())
}

fn claim(types: &[String], limit: usize) -> ClaimJobs {
    let types = types.iter().map(|name| ClaimType {
        name: name.clone().into(),
        lease: Duration::from_secs(600),
    });
    ClaimJobs::new(types.collect(), limit, WorkerId::new("bench"), Fence::from_uuid(uuid()))
}

async fn keyed_starts(store: &'static str, state: State, divide: usize) -> Result<Vec<Figure>, BoxError> {
    with!(state, state => {
        let mut figures = Vec::new();
        // Types, plans and pages that the first call of all would make.
        start(&state, &[chain("letter", Some("before".to_owned()))]).await?;
        for (place, count) in KEYED.into_iter().enumerate() {
            let units = (count / divide).max(100);
            let keys = (0..units).map(|number| chain("letter", Some(format!("key-{place}-{number}"))));
            let chains: Vec<NewChain> = keys.collect();
            let stopwatch = Stopwatch::start();
            start(&state, &chains).await?;
            figures.push(stopwatch.rate(keyed_name(store, count), "chains/s", units));
        }
        let units = (KEYED[0] / divide).max(100);
        let chains: Vec<NewChain> = (0..units).map(|number| chain("letter", Some(format!("single-{number}")))).collect();
        let stopwatch = Stopwatch::start();
        let mut transaction = state.begin().await?;
        for one in &chains {
            let created = state.create_chains(Some(&mut transaction), std::slice::from_ref(one)).await?;
            created.map_err(|refusal| format!("refused: {refusal:?}"))?;
        }
        state.commit(transaction).await?;
        figures.push(stopwatch.rate(single_name(store), "chains/s", units));
        Ok(figures)
    })
}

async fn blockers(store: &'static str, state: State, divide: usize) -> Result<Vec<Figure>, BoxError> {
    with!(state, state => {
        let mut figures = Vec::new();
        for count in BLOCKERS {
            let units = (count / divide).max(10);
            let mut chains = vec![chain("waiting", None)];
            while chains.len() < units {
                let mut next = chain("waiting", None);
                next.job.blockers = vec![chains[chains.len() - 1].job.id.as_chain()];
                chains.push(next);
            }
            let blockers = start(&state, &chains).await?;
            start(&state, &[chain("first", None)]).await?;
            let claim = claim(&["first".to_owned()], 1);
            let claimed = state.claim_jobs(&claim).await?.jobs;
            let mut next = NewJob::new(JobId::from_uuid(uuid()), "next", Payload::from_text("1"));
            next.blockers = blockers;
            let settlement = Settlement {
                job: claimed.first().ok_or("nothing was claimed")?.job.id,
                authority: Authority::Fence { fence: claim.fence, worker: WorkerId::new("bench") },
                outcome: Outcome::Continue { next: Box::new(next) },
            };
            let stopwatch = Stopwatch::start();
            let settled = state.settle_jobs(None, &[settlement]).await?;
            figures.push(stopwatch.rate(blockers_name(store, count), "blockers/s", units));
            if !matches!(settled[..], [Settled::Applied(_)]) {
                return Err(format!("not applied: {settled:?}").into());
            }
        }
        Ok(figures)
    })
}

async fn types(store: &'static str, state: State) -> Result<Vec<Figure>, BoxError> {
    with!(state, state => {
        let mut figures = Vec::new();
        for count in TYPES {
            let names: Vec<String> = (0..count).map(|number| format!("of-{count}-{number}")).collect();
            let jobs = CLAIMS * CLAIMED + CLAIMED;
            let chains: Vec<NewChain> = names.iter().cycle().take(jobs.max(count)).map(|name| chain(name, None)).collect();
            start(&state, &chains).await?;
            state.claim_jobs(&claim(&names, CLAIMED)).await?;
            let mut times = Vec::with_capacity(CLAIMS);
            for _ in 0..CLAIMS {
                let claim = claim(&names, CLAIMED);
                let stopwatch = Stopwatch::start();
                let claimed = state.claim_jobs(&claim).await?;
                times.push(stopwatch.elapsed().as_secs_f64() * 1e3);
                if claimed.jobs.len() != CLAIMED {
                    return Err(format!("{} jobs of {CLAIMED}", claimed.jobs.len()).into());
                }
            }
            let times = sorted(times);
            figures.push(Figure {
                name: types_name(store, count),
                unit: "ms".to_owned(),
                value: quantile(&times, 0.5),
                cost: None,
            });
        }
        Ok(figures)
    })
}
