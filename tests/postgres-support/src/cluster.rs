//! A private server.

use std::path::PathBuf;
use std::process::Stdio;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tempfile::TempDir;

use crate::guard::{Guard, ServerUser, must};
use crate::{PATIENCE, free_port, script};

/// A private server on a port of its own. Dropped, it is shut down and its data deleted.
#[derive(Debug)]
pub struct Cluster {
    port: u16,
    binaries: PathBuf,
    data: PathBuf,
    user: ServerUser,
    // In this order: the server ends before its directory.
    _guard: Guard,
    directory: TempDir,
}

/// How a server is shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Sessions are ended in good order.
    Fast,
    /// A crash: sessions are cut, and the next start recovers from the log.
    Immediate,
}

/// Settings of a [`Cluster`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ClusterOptions {
    settings: Vec<(String, String)>,
    binaries: Option<PathBuf>,
    below: Option<PathBuf>,
}

impl ClusterOptions {
    /// A line of `postgresql.conf`. Default: 200 connections, and no waiting for the disk (a crash of the server loses
    /// nothing all the same; one of the machine would).
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The directory of the server's binaries. Default: what `scripts/postgres bin` finds.
    pub fn binaries(mut self, directory: impl Into<PathBuf>) -> Self {
        self.binaries = Some(directory.into());
        self
    }

    /// The directory below which the data are kept. Default: that of temporary files.
    pub fn below(mut self, directory: impl Into<PathBuf>) -> Self {
        self.below = Some(directory.into());
        self
    }

    /// Starts the server.
    ///
    /// # Panics
    ///
    /// If it does not start.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves no server behind.
    pub async fn start(self) -> Cluster {
        let binaries = match self.binaries {
            Some(binaries) => binaries,
            None => PathBuf::from(script("bin").await),
        };
        let user = ServerUser::find().await;
        let below = self.below.unwrap_or_else(std::env::temp_dir);
        let directory = user.directory(&below).await;
        let data = directory.path().join("data");
        let guard = ending(&user, &binaries, &data, directory.path());
        let mut initdb = user.command(binaries.join("initdb"));
        initdb
            .arg("-D")
            .arg(&data)
            .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        must(initdb, "initdb fails").await;
        let port = free_port().await;
        let mut configuration = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = ''\nmax_connections = 200\n\
             fsync = off\nfull_page_writes = off\n"
        );
        for (name, value) in &self.settings {
            configuration.push_str(&format!("{name} = '{}'\n", value.replace('\'', "''")));
        }
        let cluster = Cluster {
            port,
            binaries,
            data,
            user,
            _guard: guard,
            directory,
        };
        cluster.append("postgresql.conf", &configuration).await;
        cluster.start().await;
        cluster
    }
}

impl Cluster {
    /// Starts a server with the default settings.
    ///
    /// # Panics
    ///
    /// If it does not start.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves no server behind.
    pub async fn launch() -> Self {
        ClusterOptions::default().start().await
    }

    /// The server's port on 127.0.0.1.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// A new connection as its superuser.
    ///
    /// # Panics
    ///
    /// If it does not answer.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves no connection behind.
    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url())
            .await
            .expect("the private server answers")
    }

    /// Shuts the server down and returns when it is down.
    ///
    /// # Panics
    ///
    /// If it does not end within a minute.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves the server running or not.
    pub async fn stop(&self, how: Shutdown) {
        let mut command = self.control();
        let mode = match how {
            Shutdown::Fast => "fast",
            Shutdown::Immediate => "immediate",
        };
        command.args(["-m", mode, "-w", "stop"]);
        must(command, "the server does not stop").await;
    }

    /// Starts a server that was stopped, and returns when it answers.
    ///
    /// # Panics
    ///
    /// If it does not start within a minute.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves the server running or not.
    pub async fn start(&self) {
        let mut command = self.control();
        command
            .arg("-l")
            .arg(self.data.join("server.log"))
            .args(["-w", "start"]);
        // Not piped: the server would inherit the pipe, and its end be waited for.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let status = command.status().await.expect("pg_ctl can be run");
        if !status.success() {
            let log = std::fs::read_to_string(self.data.join("server.log")).unwrap_or_default();
            panic!("the server does not start: {log}");
        }
    }

    /// Stops and starts it, on the same port with the same data.
    ///
    /// # Panics
    ///
    /// If it does not come back.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves the server running or not.
    pub async fn restart(&self, how: Shutdown) {
        self.stop(how).await;
        self.start().await;
    }

    /// Waits until the server answers again after something that it may not have survived, and starts it if it did not.
    ///
    /// # Panics
    ///
    /// If it does not come back within a minute.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves the server running or not.
    pub async fn revive(&self) {
        let answers = async {
            while PgConnection::connect(&self.url()).await.is_err() {
                let mut status = self.control();
                status.arg("status").stdout(Stdio::null());
                if !status.status().await.is_ok_and(|status| status.success()) {
                    self.start().await;
                }
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, answers)
            .await
            .expect("the server comes back");
    }

    /// Refuses writes from now on, or takes them again, in the sessions that are there too: as between two steps of a
    /// failover. Returns when it does.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves the server in either mode.
    pub async fn set_read_only(&self, read_only: bool) {
        let mut connection = self.connect().await;
        let value = if read_only { "on" } else { "off" };
        let set = format!("ALTER SYSTEM SET default_transaction_read_only = {value}");
        for statement in [set.as_str(), "SELECT pg_reload_conf()"] {
            connection
                .execute(AssertSqlSafe(statement.to_owned()))
                .await
                .expect("a superuser can change the configuration");
        }
        let changed = async {
            loop {
                // A new session each time: what this one sees, every new one does.
                let mut connection = self.connect().await;
                let now: String = sqlx::query_scalar("SHOW default_transaction_read_only")
                    .fetch_one(&mut connection)
                    .await
                    .expect("the private server answers");
                if now == value {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, changed)
            .await
            .expect("the server reads its configuration again");
    }

    /// Starts a hot standby: a copy of this server that follows it through this port. Returns when it answers and receives
    /// what this server writes. With `synchronous` this server waits, from now on, for the standby to have written a commit
    /// before it acknowledges the commit.
    ///
    /// # Panics
    ///
    /// If it does not start, or does not follow within a minute.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves no standby behind; this server may wait for one.
    pub async fn standby(&self, through: u16, synchronous: bool) -> Self {
        let below = self.directory.path().parent().expect("it lies below another one");
        let directory = self.user.directory(below).await;
        let data = directory.path().join("data");
        let guard = ending(&self.user, &self.binaries, &data, directory.path());
        let mut backup = self.user.command(self.binaries.join("pg_basebackup"));
        backup
            .args([
                "-h",
                "127.0.0.1",
                "-U",
                "postgres",
                "-X",
                "stream",
                "-c",
                "fast",
                "--no-sync",
            ])
            .args(["-p", &self.port.to_string()])
            .arg("-D")
            .arg(&data);
        must(backup, "the server cannot be copied").await;
        let standby = Self {
            port: free_port().await,
            binaries: self.binaries.clone(),
            data,
            user: self.user.clone(),
            _guard: guard,
            directory,
        };
        let configuration = format!(
            "port = {}\nhot_standby = on\n\
             primary_conninfo = 'host=127.0.0.1 port={through} user=postgres application_name=standby'\n",
            standby.port
        );
        standby.append("postgresql.conf", &configuration).await;
        standby.append("standby.signal", "").await;
        standby.start().await;
        let mut connection = self.connect().await;
        if synchronous {
            for statement in [
                "ALTER SYSTEM SET synchronous_standby_names = 'standby'",
                "SELECT pg_reload_conf()",
            ] {
                connection
                    .execute(statement)
                    .await
                    .expect("a superuser can change the configuration");
            }
        }
        let follows = "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming' \
                       AND (sync_state = 'sync') = $1)";
        let following = async {
            while !sqlx::query_scalar::<_, bool>(follows)
                .bind(synchronous)
                .fetch_one(&mut connection)
                .await
                .expect("the private server answers")
            {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, following)
            .await
            .expect("the standby follows");
        standby
    }

    /// Promotes a standby, at the port of the server that it has followed, which must be down: its clients come here when
    /// they connect again. Returns when it accepts writes.
    ///
    /// # Panics
    ///
    /// If it does not within a minute.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves the standby running or not, promoted or not.
    pub async fn take_over(&mut self, port: u16) {
        self.stop(Shutdown::Fast).await;
        self.port = port;
        self.append("postgresql.conf", &format!("port = {port}\n")).await;
        self.start().await;
        let mut promote = self.control();
        promote.args(["-w", "promote"]);
        must(promote, "the standby cannot be promoted").await;
    }

    /// Appends to a file of the server, as its user, to whom the file belongs.
    async fn append(&self, file: &str, text: &str) {
        let mut append = self.user.command("sh");
        append
            .args(["-c", r#"printf %s "$2" >> "$1""#, "append"])
            .arg(self.data.join(file))
            .arg(text);
        must(append, "the configuration cannot be written").await;
    }

    fn control(&self) -> tokio::process::Command {
        let mut command = self.user.command(self.binaries.join("pg_ctl"));
        command
            .arg("-D")
            .arg(&self.data)
            .args(["-t", &PATIENCE.as_secs().to_string()]);
        command
    }
}

/// Ends a server and removes its directory when this process ends, or the guard is dropped.
fn ending(user: &ServerUser, binaries: &std::path::Path, data: &std::path::Path, directory: &std::path::Path) -> Guard {
    user.at_the_end(
        r#""$1" -D "$2" -m immediate stop; rm -rf "$3""#,
        &[&binaries.join("pg_ctl"), data, directory],
    )
}
