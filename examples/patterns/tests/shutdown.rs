//! Tells the example to stop while it works, and lets the next run go on.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// Nothing here takes that long; a hang should say where.
const LONG: Duration = Duration::from_secs(90);

struct Run {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
    lines: Vec<String>,
}

impl Run {
    fn start(file: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_shutdown"))
            .arg(file)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let lines = Vec::new();
        Self { child, output, lines }
    }

    async fn prints(&mut self, words: &str) {
        while !self.lines.iter().any(|line| line.contains(words)) {
            let line = timeout(LONG, self.output.next_line()).await.unwrap().unwrap();
            self.lines
                .push(line.unwrap_or_else(|| panic!("no `{words}`: {:#?}", self.lines)));
        }
    }

    /// As a service manager does, or Ctrl-C. The shell's own `kill` is there on every machine.
    async fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id().unwrap());
        assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
    }

    async fn ends(mut self) -> Vec<String> {
        while let Some(line) = timeout(LONG, self.output.next_line()).await.unwrap().unwrap() {
            self.lines.push(line);
        }
        let status = timeout(LONG, self.child.wait()).await.unwrap().unwrap();
        assert!(status.success(), "{:#?}", self.lines);
        self.lines
    }
}

/// The row in a line such as `  export  stops at row 14: …`.
fn row(lines: &[String], start: &str) -> u32 {
    let found = lines.iter().find_map(|line| line.trim().strip_prefix(start));
    let found = found.unwrap_or_else(|| panic!("no `{start}`: {lines:#?}"));
    let digits = found.split(|character: char| !character.is_ascii_digit()).next();
    digits.unwrap().parse().unwrap()
}

#[tokio::test]
async fn what_is_told_to_stop_goes_on_later() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("shutdown.db");
    let last = format!(
        "All workers have stopped. Run it again to go on, or delete {} to start afresh.",
        file.display()
    );
    let mut run = Run::start(&file);
    run.prints("mail    begins, attempt 1").await;
    run.prints("export  begins at row 0, attempt 1").await;
    run.signal("TERM").await;
    let lines = run.ends().await;
    let told = lines.iter().position(|line| line.starts_with("Told to stop")).unwrap();
    let mailed = lines.iter().position(|line| line.ends_with("mail    is sent")).unwrap();
    assert!(told < mailed, "it had its grace: {lines:#?}");
    assert!(
        lines.iter().any(|line| line.ends_with(": the worker is stopping")),
        "{lines:#?}"
    );
    assert_eq!(*lines.last().unwrap(), last);
    let stopped_at = row(&lines, "export  stops at row ");

    // Ctrl-C does the same. Nothing was spent: it is the first attempt again, and it goes on where it was.
    let mut run = Run::start(&file);
    run.prints("export  begins").await;
    run.signal("INT").await;
    let lines = run.ends().await;
    assert_eq!(lines[0], format!("  export  begins at row {stopped_at}, attempt 1"));
    assert!(
        !lines.iter().any(|line| line.contains("mail")),
        "it is done: {lines:#?}"
    );
    let stopped_at = row(&lines, "export  stops at row ");

    let lines = Run::start(&file).ends().await;
    let expected = [
        format!("  export  begins at row {stopped_at}, attempt 1"),
        "  export  is done".to_owned(),
        "All is done, 60 rows.".to_owned(),
        last,
    ];
    assert_eq!(lines, expected);
}
