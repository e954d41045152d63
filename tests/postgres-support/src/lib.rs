//! Servers, poolers and bad networks for tests on Postgres.
//!
//! - [`server_url`]: the server that all tests share, each in a schema of its own.
//! - [`Cluster`]: a private server, to be restarted, crashed, made read-only.
//! - [`Proxy`]: a network in between that is slow, breaks, or only seems to be there.
//! - [`PgBouncer`]: a pooler, in transaction mode or any other.
//!
//! All of it ends with the value that stands for it, and also when the test process is killed. Failures to set something
//! up are panics that say what to do: a test cannot go on without it.

mod bouncer;
mod cluster;
mod guard;
mod proxy;

pub use bouncer::{PgBouncer, PgBouncerOptions};
pub use cluster::{Cluster, ClusterOptions, Shutdown};
pub use proxy::Proxy;

use std::path::PathBuf;
use std::time::Duration;

/// How long anything here may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// The URL of the server that tests share: that of `QUEUERT_TEST_POSTGRES_URL`, else what `scripts/postgres url` finds or
/// starts.
///
/// # Panics
///
/// If there is none to be had.
pub async fn server_url() -> String {
    match std::env::var("QUEUERT_TEST_POSTGRES_URL") {
        Ok(url) if !url.is_empty() => url,
        _ => script("url").await,
    }
}

/// What `scripts/postgres` prints.
async fn script(argument: &str) -> String {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/postgres");
    let output = tokio::process::Command::new("bash")
        .arg(script)
        .arg(argument)
        .stderr(std::process::Stdio::inherit())
        .output()
        .await
        .expect("bash is there");
    assert!(
        output.status.success(),
        "`scripts/postgres {argument}` failed; set QUEUERT_TEST_POSTGRES_URL"
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A name that no other test uses, for a schema or an application.
pub fn unique_name(prefix: &str) -> String {
    format!("{prefix}_{:016x}", fastrand::u64(..))
}

/// A port of this machine that is free at this moment. Below those that the system gives to connections: while a server
/// is down, one of the clients that look for it could otherwise be given its port, or even be connected to itself.
async fn free_port() -> u16 {
    for _ in 0..1_000 {
        let port = fastrand::u16(10_000..32_000);
        if tokio::net::TcpListener::bind(("127.0.0.1", port)).await.is_ok() {
            return port;
        }
    }
    panic!("this machine has no free port");
}
