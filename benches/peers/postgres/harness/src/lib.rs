//! What is done with every peer on Postgres, in the same way: a database of its own, filled, drained and looked at
//! through the peer's own tables. A peer says how its jobs are started, worked on and counted; see [`Peer`].

mod calls;
mod chains;
mod checks;
mod database;
mod drain;
mod latency;
mod starts;

use std::future::Future;
use std::process::ExitCode;

pub use queuert_measured::{Arguments, BoxError, Letter, Receipt};
use queuert_measured::{CORES, Figure, Report};

pub use calls::Calls;
pub use checks::Checks;
use database::Database;

/// Connections that a peer's pool may have, unless its fastest settings say otherwise.
pub const CONNECTIONS: u32 = 20;

/// How a peer is set.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `defaults`, or `fastest`: what its documentation or its own benchmarks use.
    pub fastest: bool,
    /// How many jobs may run at once.
    pub concurrency: usize,
    /// In the names of figures.
    pub name: String,
}

/// A queue of somebody else.
pub trait Peer: Clone + Send + Sync + Sized + 'static {
    /// In the names of figures.
    const NAME: &'static str;

    /// An expression in SQL: how many jobs its tables have, done or not.
    const STORED: &'static str;

    /// An expression in SQL: how many jobs are done and have a result, if it keeps them. Else it deletes them.
    const DONE: Option<&'static str>;

    /// Makes its tables in a database that is empty, and connects.
    fn open(url: &str, settings: &Settings) -> impl Future<Output = Result<Self, BoxError>> + Send;

    /// Starts one job.
    fn start_one(&self, letter: Letter) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Starts many jobs with the call that it has for that.
    fn start_many(&self, letters: Vec<Letter>) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Starts to work. Every job decodes its letter, calls [`Calls::call`], and returns a receipt if results exist.
    /// Whoever works goes on in the background until the process ends.
    fn work(&self, calls: Calls) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Jobs that are stored, if that cannot be said in SQL.
    fn stored(&self, checks: &mut Checks) -> impl Future<Output = Result<usize, BoxError>> + Send {
        checks.count(Self::STORED)
    }

    /// Jobs that are done, if that cannot be said in SQL. `all` have been stored.
    fn done(&self, checks: &mut Checks, all: usize) -> impl Future<Output = Result<usize, BoxError>> + Send {
        async move {
            match Self::DONE {
                Some(done) => checks.count(done).await,
                None => Ok(all - checks.count(Self::STORED).await?),
            }
        }
    }

    /// Starts a chain of three steps.
    fn start_chain(&self, _letter: Letter) -> impl Future<Output = Result<(), BoxError>> + Send {
        async { Err(format!("{} has no chains", Self::NAME).into()) }
    }

    /// Starts to work on chains: as [`Peer::work`], with a call for every step.
    fn work_chains(&self, _calls: Calls) -> impl Future<Output = Result<(), BoxError>> + Send {
        async { Err(format!("{} has no chains", Self::NAME).into()) }
    }
}

/// Runs what is not `Send` by the compiler's judgement, such as some libraries' migrations.
///
/// # Errors
///
/// What the work returned, or that it panicked.
pub async fn on_one_thread<F, Fut, T>(work: F) -> Result<T, BoxError>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = Result<T, BoxError>>,
    T: Send + 'static,
{
    let runtime = tokio::runtime::Handle::current();
    tokio::task::spawn_blocking(move || runtime.block_on(work())).await?
}

/// The program of a peer: does what its command line says, and reports.
pub fn main<P: Peer>() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CORES)
        .enable_all()
        .build();
    let ran = runtime.map_err(BoxError::from).and_then(|runtime| {
        let report = runtime.block_on(async { tokio::spawn(run::<P>()).await? })?;
        // Workers go on; they end with the process.
        runtime.shutdown_background();
        Ok(report.print()?)
    });
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", P::NAME);
            ExitCode::FAILURE
        }
    }
}

async fn run<P: Peer>() -> Result<Report, BoxError> {
    let arguments = Arguments::of_process()?;
    let settings = Settings {
        fastest: match arguments.text("settings")? {
            "defaults" => false,
            "fastest" => true,
            other => return Err(format!("there are no settings `{other}`").into()),
        },
        concurrency: arguments.value("concurrency")?,
        name: arguments.text("name")?.to_owned(),
    };
    let mut database = Database::fresh(arguments.text("url")?).await?;
    let peer = P::open(&database.url, &settings).await?;
    let report = match arguments.text("work")? {
        "starts" => starts::run(&peer, &mut database, &settings, &arguments).await?,
        "drain" => drain::run(&peer, &mut database, &settings, &arguments).await?,
        "latency" => latency::run(&peer, &mut database, &settings, &arguments).await?,
        "chains" => chains::run(&peer, &mut database, &settings, &arguments).await?,
        other => return Err(format!("what is `{other}`?").into()),
    };
    database.observer.described(report).await
}

/// A figure without costs.
fn plain(name: String, unit: &str, value: f64) -> Figure {
    Figure {
        name,
        unit: unit.to_owned(),
        value,
        cost: None,
    }
}
