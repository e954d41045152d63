//! Commands that run as the user who may run servers, and servers that end with this process however it ends.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};

use tempfile::TempDir;
use tokio::process::Command;

use crate::script;

/// Who runs servers: Postgres and PgBouncer refuse root.
#[derive(Clone, Debug)]
pub(crate) struct ServerUser(Option<String>);

impl ServerUser {
    pub(crate) async fn find() -> Self {
        let name = script("user").await;
        Self((!name.is_empty()).then_some(name))
    }

    /// A command of this user.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match &self.0 {
            None => Command::new(program),
            Some(user) => {
                let mut command = Command::new("runuser");
                command.args(["-u", user, "--"]).arg(program);
                command
            }
        };
        // Below a directory that this user can enter.
        command.current_dir("/").stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// A directory of this user.
    pub(crate) async fn directory(&self, below: &Path) -> TempDir {
        let directory = tempfile::Builder::new()
            .prefix("queuert-postgres-")
            .tempdir_in(below)
            .expect("a temporary directory can be made");
        if let Some(user) = &self.0 {
            let status = Command::new("chown").arg(user).arg(directory.path()).status().await;
            assert!(
                status.is_ok_and(|status| status.success()),
                "root can give a directory away"
            );
        }
        directory
    }

    /// Runs a line of shell until this process ends or the guard is dropped, and another one after it.
    pub(crate) fn running(&self, line: &str, after: &str, arguments: &[&Path]) -> Guard {
        // Asynchronous commands have no standard input, so the one of the shell is left to wait for its end.
        let waiting = format!("({line}) & server=$!; cat >/dev/null; kill -INT $server; wait $server; {after}");
        self.shell(&waiting, arguments)
    }

    /// Runs a line of shell, with `arguments` as `$1` and so on, when this process ends or the guard is dropped.
    pub(crate) fn at_the_end(&self, line: &str, arguments: &[&Path]) -> Guard {
        self.shell(&format!("cat >/dev/null; {line}"), arguments)
    }

    fn shell(&self, line: &str, arguments: &[&Path]) -> Guard {
        let mut command = self.command("sh").into_std();
        command
            .args(["-c", line, "guard"])
            .args(arguments)
            // Whoever ends this process with all of its group, as a terminal does, needs it all the more.
            .process_group(0)
            // Its end is the end of this process, whatever the reason.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Guard(command.spawn().expect("a shell can be started"))
    }
}

/// Does something when it is dropped, and when this process dies.
#[derive(Debug)]
pub(crate) struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // Nothing can be done about a failure, and nothing depends on it.
        let _ = self.0.wait();
    }
}

/// Runs a command that must succeed.
pub(crate) async fn must(mut command: Command, what: &str) {
    let output = command.output().await.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(
        output.status.success(),
        "{what}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
