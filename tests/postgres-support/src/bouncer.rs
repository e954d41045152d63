//! A pooler.

use std::path::PathBuf;
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

use crate::guard::{Guard, ServerUser, must};
use crate::{PATIENCE, free_port, script};

/// PgBouncer in transaction mode in front of a server on this machine. Dropped, it ends.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    // In this order: the pooler ends before its directory.
    _guard: Guard,
    _directory: TempDir,
}

impl PgBouncer {
    /// A pooler with this many connections to the server at this port. What `scripts/postgres pooler` finds or installs.
    ///
    /// # Panics
    ///
    /// If PgBouncer is not to be had or does not start.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves no pooler behind.
    pub async fn in_transaction_mode(server: u16, connections: usize) -> Self {
        let program = PathBuf::from(script("pooler").await);
        let user = ServerUser::find().await;
        let directory = user.directory().await;
        let port = free_port().await;
        let configuration = format!(
            // With `auth_type = any` whoever connects does so as the user of this line.
            "[databases]\n* = host=127.0.0.1 port={server} user=postgres\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\nmax_client_conn = 1000\ndefault_pool_size = {connections}\n\
             ignore_startup_parameters = extra_float_digits\nadmin_users = postgres\n"
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
