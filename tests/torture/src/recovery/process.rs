//! A worker process, from outside.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::Role;

/// How long a process may take to print an expected line; far below the lease.
const PATIENCE: Duration = Duration::from_secs(120);

/// A worker process. Dropped, it is killed.
#[derive(Debug)]
pub struct Process {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts a process on a store, from the program of this crate, and waits until its workers have started.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves no process.
    pub async fn start(program: &str, store: &str, role: Role) -> Self {
        let mut process = Self::spawn(program, store, role);
        process.says("started").await;
        process
    }

    /// The same without waiting: the process may print that it runs a job before it prints that it has started.
    pub fn spawn(program: &str, store: &str, role: Role) -> Self {
        let mut child = Command::new(program)
            .args(["recover", store, role.name()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the program can be started");
        let input = child.stdin.take().expect("it has an input");
        let output = child.stdout.take().expect("it has an output");
        Self {
            child,
            input,
            output: BufReader::new(output).lines(),
        }
    }

    /// The operating system's number.
    pub fn id(&self) -> u32 {
        self.child.id().expect("it has not been waited for")
    }

    /// Waits for a line that the process prints and that starts like this, and returns the line.
    ///
    /// # Cancel safety
    ///
    /// A dropped future has read some of the lines.
    pub async fn says(&mut self, start: &str) -> String {
        let said = async {
            loop {
                let line = self.output.next_line().await.expect("its output can be read");
                let line = line.unwrap_or_else(|| panic!("it ended without saying `{start}`"));
                if line.starts_with(start) {
                    return line;
                }
            }
        };
        tokio::time::timeout(PATIENCE, said)
            .await
            .unwrap_or_else(|_| panic!("it did not say `{start}`"))
    }

    /// Tells the process to finish the job that it hangs on.
    ///
    /// # Cancel safety
    ///
    /// A dropped future has told it or not.
    pub async fn finish(&mut self) {
        self.input.write_all(b"finish\n").await.expect("it listens");
    }

    /// SIGKILL.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves no process.
    pub async fn kill(mut self) {
        self.child.kill().await.expect("it can be killed");
    }

    /// Waits until the process has died of its job.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves no process.
    pub async fn dies(mut self) {
        let status = tokio::time::timeout(PATIENCE, self.child.wait())
            .await
            .expect("it dies of its job");
        assert!(!status.expect("it can be waited for").success(), "it ended well");
    }

    /// Any other signal, such as `STOP`.
    ///
    /// # Cancel safety
    ///
    /// A dropped future has sent it or not.
    pub async fn signal(&self, name: &str) {
        let mut command = Command::new("kill");
        command.arg(format!("-{name}")).arg(self.id().to_string());
        let status = command.status().await.expect("there is a program to send signals");
        assert!(status.success(), "the signal could not be sent");
    }
}
