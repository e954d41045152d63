//! A print shop: orders come in through a web form or a JSON API, and chains of jobs work on them.
//!
//! ```sh
//! cargo run -p service -- serve --sqlite shop.db                  # http://127.0.0.1:8080
//! cargo run -p service -- work --sqlite shop.db                   # more workers, in a second process
//! cargo run -p service -- serve --postgres postgres://app@localhost/app
//! curl -i -H 'content-type: application/json' -d '{"customer": "Ada", "copies": 2}' 127.0.0.1:8080/api/orders
//! ```
//!
//! - `web`: a request handler commits the order and its chain in one transaction, and waits for the chain with a timeout.
//! - `jobs`: the chain, and the worker that runs it.
//! - `store`: the application's own tables, on Postgres or SQLite.
//! - `trace`: spans around requests and attempts, tied together across processes.
//!
//! Kill any of the processes at any moment: no order is lost, and none is printed twice. SIGTERM is answered gracefully.
//! `tests/end_to_end` does all of it to the real processes, over HTTP.

mod arguments;
mod jobs;
mod page;
mod store;
mod trace;
mod web;

use std::process::ExitCode;

use arguments::{Arguments, Database, Role, USAGE};
use jobs::PrintTime;
use queuert::{Client, ClientBuilder, WorkerBuilder};
use queuert_postgres::{PostgresNotify, PostgresState};
use queuert_sqlite::{SqliteNotify, SqliteState};
use store::Store;
use tokio::net::TcpListener;
use trace::Tracing;
use tracing::{error, info};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use web::App;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match Arguments::read(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprintln!("{problem}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    // This service has spans and lines of its own in place of the library's.
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_target(false)
        .finish()
        .with(filter_fn(|metadata| metadata.target() != "queuert"))
        .init();
    match open(&arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!(error = &*error, "cannot go on");
            ExitCode::FAILURE
        }
    }
}

/// The two databases differ only in how they are opened, and in the statements of `store`.
async fn open(arguments: &Arguments) -> Result<()> {
    match &arguments.database {
        Database::Postgres { url, schema } => {
            let state = PostgresState::options().schema(schema).connect(url).await?;
            let notify = PostgresNotify::new(&state);
            run(Client::builder(state).notify(notify), arguments).await
        }
        Database::Sqlite { file } => {
            let state = SqliteState::open(file).await?;
            let notify = SqliteNotify::new(&state);
            run(Client::builder(state).notify(notify), arguments).await
        }
    }
}

async fn run<S: Store>(client: ClientBuilder<S>, arguments: &Arguments) -> Result<()> {
    let client = client.observability(Tracing).build();
    let mut tx = client.begin().await?;
    S::create_tables(&mut tx, arguments.paper).await?;
    tx.commit().await?;
    match arguments.role {
        Role::Serve => serve(&client, arguments).await?,
        Role::Work => {
            let signal = told_to_stop()?;
            worker(&client, "work", arguments).run_until(signal).await?;
        }
    }
    client.state().close().await;
    info!("stopped");
    Ok(())
}

async fn serve<S: Store>(client: &Client<S>, arguments: &Arguments) -> Result<()> {
    let signal = told_to_stop()?;
    let workers = match arguments.workers {
        0 => None,
        _ => Some(worker(client, "serve", arguments).start().await?),
    };
    let listener = TcpListener::bind(arguments.listen).await?;
    info!("listens on http://{}", listener.local_addr()?);
    let app = App {
        client: client.clone(),
        patience: arguments.patience,
    };
    // Requests end first: those that wait for their orders need workers.
    axum::serve(listener, web::routes(app))
        .with_graceful_shutdown(signal)
        .await?;
    if let Some(workers) = workers {
        workers.stop().await;
    }
    Ok(())
}

fn worker<S: Store>(client: &Client<S>, name: &str, arguments: &Arguments) -> WorkerBuilder<S> {
    info!("works as `{name}`, on {} jobs at once", arguments.workers);
    let print_time = PrintTime(arguments.print_time);
    jobs::worker(client, name, print_time, arguments.lease).concurrency(arguments.workers)
}

/// SIGTERM is what service managers send; Ctrl-C is for people. Both are listened for from the call on, not only from the
/// first poll: a signal that came before that would end the process in the middle of its first job.
fn told_to_stop() -> Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    let (mut terminate, mut interrupt) = {
        use tokio::signal::unix::{SignalKind, signal};
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    #[cfg(windows)]
    let (mut terminate, mut interrupt) = (
        tokio::signal::windows::ctrl_shutdown()?,
        tokio::signal::windows::ctrl_c()?,
    );
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        info!("told to stop");
    })
}
