//! Where the queue is: a file, or a private server behind networks that can be made bad. Either may lie on a small disk.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use postgres_support::{Cluster, ClusterOptions, Proxy};
use tokio::process::Command;

use crate::Result;
use crate::plan::Database;

pub(crate) struct Server {
    kind: Kind,
    // After the server: it ends before its disk.
    pub(crate) disk: Option<SmallDisk>,
}

enum Kind {
    File(PathBuf),
    Cluster(Box<Private>),
}

/// A private server.
pub(crate) struct Private {
    pub(crate) cluster: Cluster,
    /// What the processes go through, except for their listeners.
    pub(crate) network: Proxy,
    /// What the listeners go through.
    pub(crate) ears: Proxy,
}

impl Server {
    pub(crate) async fn start(database: Database, directory: &Path, disk: Option<SmallDisk>) -> Self {
        let place = disk.as_ref().map_or(directory, |disk| &disk.place).to_owned();
        let kind = match database {
            Database::Sqlite => Kind::File(place.join("queue.db")),
            Database::Postgres => {
                let mut options = ClusterOptions::default()
                    .setting("max_connections", "300")
                    // Whoever vanishes in the middle of a transaction keeps its locks until the server gives it up.
                    .setting("idle_in_transaction_session_timeout", "6s");
                if disk.is_some() {
                    options = options
                        .below(&place)
                        .setting("max_wal_size", "64MB")
                        .setting("min_wal_size", "32MB");
                }
                let cluster = options.start().await;
                let network = Proxy::to(cluster.port()).await;
                let ears = Proxy::to(cluster.port()).await;
                Kind::Cluster(Box::new(Private { cluster, network, ears }))
            }
        };
        Self { kind, disk }
    }

    pub(crate) fn private(&self) -> Result<&Private> {
        match &self.kind {
            Kind::Cluster(private) => Ok(private),
            Kind::File(_) => Err("a file has no server".into()),
        }
    }

    /// Another server has taken the place of the private one, at its port.
    pub(crate) fn replace(&mut self, cluster: Cluster) -> Result<()> {
        match &mut self.kind {
            Kind::Cluster(private) => {
                private.cluster = cluster;
                Ok(())
            }
            Kind::File(_) => Err("a file has no server".into()),
        }
    }

    /// The way there that is always good.
    pub(crate) fn url(&self) -> String {
        match &self.kind {
            Kind::File(path) => format!("sqlite:{}", path.display()),
            Kind::Cluster(private) => private.cluster.url(),
        }
    }

    /// The way of the processes.
    pub(crate) fn network_url(&self) -> String {
        match &self.kind {
            Kind::File(_) => self.url(),
            Kind::Cluster(private) => through(&private.network),
        }
    }

    /// The way of their listeners.
    pub(crate) fn ears_url(&self) -> String {
        match &self.kind {
            Kind::File(_) => self.url(),
            Kind::Cluster(private) => through(&private.ears),
        }
    }
}

fn through(proxy: &Proxy) -> String {
    format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port())
}

/// A disk in memory that is soon full. Dropped, it is gone.
#[derive(Debug)]
pub(crate) struct SmallDisk {
    place: PathBuf,
    /// Takes it away also if this process is killed: its input ends then.
    guard: Child,
}

impl SmallDisk {
    /// Mounts one with room for what a run of this length leaves, or says why that cannot be done.
    pub(crate) async fn mount(directory: &Path, database: Database, run: Duration) -> Result<Self, String> {
        let place = directory.join("disk");
        std::fs::create_dir_all(&place).map_err(|error| error.to_string())?;
        let minutes = run.as_secs().div_ceil(60);
        let megabytes = match database {
            Database::Sqlite => 96 + 16 * minutes,
            Database::Postgres => 400 + 32 * minutes,
        };
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m,mode=1777"), "tmpfs"])
            .arg(&place)
            .stdin(Stdio::null());
        match mount.output().await {
            Ok(output) if output.status.success() => {
                let guard = std::process::Command::new("sh")
                    // Lazily: a process that is about to end may still have a file open.
                    .args(["-c", r#"cat >/dev/null; umount -l "$1""#, "guard"])
                    .arg(&place)
                    .process_group(0)
                    .stdin(Stdio::piped())
                    .spawn()
                    .map_err(|error| error.to_string())?;
                Ok(Self { place, guard })
            }
            Ok(output) => Err(format!(
                "a small disk cannot be mounted, which needs root: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            )),
            Err(error) => Err(format!("there is no `mount`: {error}")),
        }
    }

    /// Fills it to the last byte.
    pub(crate) fn fill(&self) -> std::io::Result<()> {
        use std::io::Write;
        let mut file = std::fs::File::create(self.ballast())?;
        for size in [1 << 20, 1 << 12, 1] {
            let piece = vec![0; size];
            while file.write_all(&piece).is_ok() {}
        }
        Ok(())
    }

    /// Makes room again.
    pub(crate) fn free(&self) -> std::io::Result<()> {
        match std::fs::remove_file(self.ballast()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    fn ballast(&self) -> PathBuf {
        self.place.join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        // Nothing can be done about a failure.
        let _ = self.guard.wait();
    }
}
