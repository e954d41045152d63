//! A pooler.

use std::path::PathBuf;
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

use crate::guard::{Guard, ServerUser, must};
use crate::{PATIENCE, free_port, script};

/// How PgBouncer lends its connections.
#[derive(Clone, Debug)]
pub struct PgBouncerOptions {
    mode: &'static str,
    connections: usize,
    ignored: &'static str,
    prepared_statements: Option<u32>,
}

impl PgBouncerOptions {
    /// `transaction`, `session` or `statement`, with this many connections to the server.
    pub const fn new(mode: &'static str, connections: usize) -> Self {
        Self {
            mode,
            connections,
            ignored: "extra_float_digits",
            prepared_statements: None,
        }
    }

    /// Ignores the settings that clients ask for when they connect. Default: refuses such clients.
    #[must_use]
    pub const fn ignoring_options(mut self) -> Self {
        self.ignored = "extra_float_digits,options";
        self
    }

    /// Keeps track of this many prepared statements, which PgBouncer does from 1.21 on. Default: what it does by itself.
    #[must_use]
    pub const fn prepared_statements(mut self, prepared_statements: u32) -> Self {
        self.prepared_statements = Some(prepared_statements);
        self
    }

    /// Starts one in front of the server at this port. What `scripts/postgres pooler` finds or installs.
    ///
    /// # Panics
    ///
    /// If PgBouncer is not to be had or does not start.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves no pooler behind.
    pub async fn start(&self, server: u16) -> PgBouncer {
        PgBouncer::start(server, self).await
    }
}

/// PgBouncer in front of a server on this machine. Dropped, it ends.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    // In this order: the pooler ends before its directory.
    _guard: Guard,
    _directory: TempDir,
}

impl PgBouncer {
    /// A pooler in transaction mode with this many connections to the server at this port. What `scripts/postgres pooler` finds or installs.
    ///
    /// # Panics
    ///
    /// If PgBouncer is not to be had or does not start.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves no pooler behind.
    pub async fn in_transaction_mode(server: u16, connections: usize) -> Self {
        Self::start(server, &PgBouncerOptions::new("transaction", connections)).await
    }

    /// The version that there is, such as (1, 18).
    ///
    /// # Panics
    ///
    /// If PgBouncer is not to be had.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves nothing behind.
    pub async fn version() -> (u32, u32) {
        let program = script("pooler").await;
        let output = tokio::process::Command::new(program).arg("--version").output().await;
        let output = output.expect("it can be started");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = text.split_whitespace().nth(1).unwrap_or_default();
        let mut numbers = version.split('.').map(|number| number.parse().expect("a number"));
        (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default())
    }

    async fn start(server: u16, options: &PgBouncerOptions) -> Self {
        let PgBouncerOptions {
            mode,
            connections,
            ignored,
            prepared_statements,
        } = options;
        let program = PathBuf::from(script("pooler").await);
        let user = ServerUser::find().await;
        let directory = user.directory(&std::env::temp_dir()).await;
        let port = free_port().await;
        let prepared = prepared_statements.map(|number| format!("max_prepared_statements = {number}\n"));
        let prepared = prepared.unwrap_or_default();
        let configuration = format!(
            // With `auth_type = any` whoever connects does so as the user of this line.
            "[databases]\n* = host=127.0.0.1 port={server} user=postgres\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = {mode}\nmax_client_conn = 1000\ndefault_pool_size = {connections}\n\
             ignore_startup_parameters = {ignored}\nadmin_users = postgres\n{prepared}"
        );
        let file = directory.path().join("pgbouncer.ini");
        let mut write = user.command("sh");
        write
            .args(["-c", r#"printf %s "$2" > "$1""#, "write"])
            .arg(&file)
            .arg(configuration);
        must(write, "the pooler's configuration cannot be written").await;
        let log = directory.path().join("pgbouncer.log");
        let guard = user.running(
            r#"exec "$4" "$1" >"$2" 2>&1"#,
            r#"rm -rf "$3""#,
            &[&file, &log, directory.path(), &program],
        );
        let bouncer = Self {
            port,
            _guard: guard,
            _directory: directory,
        };
        let answers = async {
            while PgConnection::connect(&bouncer.url()).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, answers).await.is_err() {
            panic!(
                "pgbouncer does not answer: {}",
                std::fs::read_to_string(log).unwrap_or_default()
            );
        }
        bouncer
    }

    /// The pooler's port on 127.0.0.1.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }
}
