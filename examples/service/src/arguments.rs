//! The command line.

use std::net::SocketAddr;
use std::time::Duration;

pub(crate) const USAGE: &str = "\
usage: service serve [options]     the web server, with workers of its own
       service work [options]      workers only, in as many processes as you like

  --postgres URL    the database; default: what DATABASE_URL says
  --schema NAME     the Postgres schema of the queue's tables; default: queuert
  --sqlite FILE     a file in place of Postgres
  --listen ADDRESS  default: 127.0.0.1:8080
  --workers NUMBER  jobs at once in this process; default: 4, and 0 is for a server that leaves them to others
  --patience-ms N   how long a request waits for its order; default: 2000
  --print-ms N      how long a copy takes to print; default: 500
  --lease-ms N      how long a job is a silent process's before another one takes it; default: 60000
  --paper SHEETS    what a new shop has; default: 10000
";

pub(crate) enum Role {
    Serve,
    Work,
}

pub(crate) enum Database {
    Postgres { url: String, schema: String },
    Sqlite { file: String },
}

pub(crate) struct Arguments {
    pub(crate) role: Role,
    pub(crate) database: Database,
    pub(crate) listen: SocketAddr,
    pub(crate) workers: usize,
    pub(crate) patience: Duration,
    pub(crate) print_time: Duration,
    pub(crate) lease: Duration,
    pub(crate) paper: i64,
}

impl Arguments {
    /// Reads the arguments behind the name of the program.
    pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let role = match arguments.next().as_deref() {
            Some("serve") => Role::Serve,
            Some("work") => Role::Work,
            _ => return Err("say whether to serve or to work".to_owned()),
        };
        let mut url = std::env::var("DATABASE_URL").ok();
        let mut schema = "queuert".to_owned();
        let mut file = None;
        let mut read = Self {
            role,
            database: Database::Sqlite { file: String::new() },
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            workers: 4,
            patience: Duration::from_millis(2_000),
            print_time: Duration::from_millis(500),
            lease: Duration::from_millis(60_000),
            paper: 10_000,
        };
        while let Some(option) = arguments.next() {
            let value = arguments.next().ok_or(format!("{option} needs a value"))?;
            match option.as_str() {
                "--postgres" => url = Some(value),
                "--schema" => schema = value,
                "--sqlite" => file = Some(value),
                "--listen" => read.listen = parsed(&option, &value)?,
                "--workers" => read.workers = parsed(&option, &value)?,
                "--patience-ms" => read.patience = Duration::from_millis(parsed(&option, &value)?),
                "--print-ms" => read.print_time = Duration::from_millis(parsed(&option, &value)?),
                "--lease-ms" => read.lease = Duration::from_millis(parsed(&option, &value)?),
                "--paper" => read.paper = parsed(&option, &value)?,
                _ => return Err(format!("{option} is no option")),
            }
        }
        read.database = match (file, url) {
            (Some(file), _) => Database::Sqlite { file },
            (None, Some(url)) => Database::Postgres { url, schema },
            (None, None) => return Err("say which database: --postgres URL, --sqlite FILE, or DATABASE_URL".to_owned()),
        };
        Ok(read)
    }
}

fn parsed<T: std::str::FromStr>(option: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{option} cannot be `{value}`"))
}
