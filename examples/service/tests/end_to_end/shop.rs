//! A database for one test, and the real processes on it.

use std::process::Stdio;
use std::time::Duration;

use reqwest::Url;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::timeout;

/// Nothing here takes that long; a hang should say where.
pub(crate) const LONG: Duration = Duration::from_secs(90);

/// A database that no other test uses.
pub(crate) enum Shop {
    Sqlite(TempDir),
    Postgres(Schema),
}

impl Shop {
    pub(crate) fn on_sqlite() -> Self {
        Self::Sqlite(TempDir::new().unwrap())
    }

    pub(crate) async fn on_postgres() -> Self {
        Self::Postgres(Schema {
            url: postgres_support::server_url().await,
            name: postgres_support::unique_name("service_test"),
        })
    }

    fn arguments(&self) -> Vec<String> {
        match self {
            Self::Sqlite(directory) => {
                let file = directory.path().join("shop.db");
                vec!["--sqlite".to_owned(), file.to_str().unwrap().to_owned()]
            }
            Self::Postgres(Schema { url, name }) => {
                // The application's own tables are where the connections look for them.
                let mut url = Url::parse(url).unwrap();
                url.query_pairs_mut().append_pair("options[search_path]", name);
                ["--postgres", url.as_str(), "--schema", name].map(str::to_owned).into()
            }
        }
    }

    /// Starts a server, and waits until it listens.
    pub(crate) async fn serve(&self, options: &str) -> Server {
        let process = self.start("serve", &format!("--listen 127.0.0.1:0 {options}"));
        let line = process.logs("listens on ").await;
        let (_, url) = line.split_once("listens on ").unwrap();
        Server {
            url: url.to_owned(),
            process,
        }
    }

    /// Starts a process that only works.
    pub(crate) fn work(&self, options: &str) -> Process {
        self.start("work", options)
    }

    fn start(&self, role: &str, options: &str) -> Process {
        let mut child = Command::new(env!("CARGO_BIN_EXE_service"))
            .arg(role)
            .args(self.arguments())
            .args(options.split_whitespace())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, lines) = watch::channel(Vec::new());
        tokio::spawn(async move {
            while let Ok(Some(line)) = output.next_line().await {
                sender.send_modify(|lines| lines.push(line));
            }
        });
        Process { child, lines }
    }
}

pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) process: Process,
}

impl Server {
    pub(crate) fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }
}

pub(crate) struct Process {
    child: Child,
    lines: watch::Receiver<Vec<String>>,
}

impl Process {
    /// Waits for a line of the log with these words, and returns the first.
    pub(crate) async fn logs(&self, words: &str) -> String {
        let find = |lines: &Vec<String>| lines.iter().find(|line| line.contains(words)).cloned();
        let mut lines = self.lines.clone();
        match timeout(LONG, lines.wait_for(|lines| find(lines).is_some())).await {
            Ok(Ok(lines)) => find(&lines).unwrap(),
            _ => panic!("no `{words}` in {:#?}", self.log()),
        }
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.lines.borrow().clone()
    }

    /// As `kill -9`.
    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// As a service manager does. The shell's own `kill` is there on every machine.
    pub(crate) async fn terminate(&self) {
        let kill = format!("kill -TERM {}", self.child.id().unwrap());
        assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
    }

    /// Waits for the end, which must be a good one.
    pub(crate) async fn ends_well(&mut self) {
        let status = timeout(LONG, self.child.wait()).await.unwrap().unwrap();
        assert!(status.success(), "{status}: {:#?}", self.log());
        self.logs("stopped").await;
    }
}

/// A schema on the server that the tests share. Dropped with this value.
pub(crate) struct Schema {
    url: String,
    name: String,
}

impl Drop for Schema {
    fn drop(&mut self) {
        let (url, name) = (self.url.clone(), self.name.clone());
        // A thread of its own: a runtime cannot be waited for on a runtime.
        let cleaner = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let mut connection = PgConnection::connect(&url).await?;
                let sql = format!("SET client_min_messages = warning; DROP SCHEMA IF EXISTS {name} CASCADE");
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await
            })
        });
        if !matches!(cleaner.join(), Ok(Ok(_))) {
            eprintln!("the schema {} stays behind on the test server", self.name);
        }
    }
}
