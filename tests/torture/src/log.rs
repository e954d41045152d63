//! A log beside the database, one for each process: what it intended, what it was told, which attempts it ran. Written
//! without a buffer, so that a kill loses nothing that was noted before it.

use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Result, clock};

const ENDING: &str = "log";

#[derive(Clone)]
pub(crate) struct Log(Arc<Mutex<File>>);

impl Log {
    /// A new log; `name` is used once only.
    pub(crate) fn create(directory: &Path, name: &str) -> std::io::Result<Self> {
        let path = directory.join(name).with_extension(ENDING);
        Ok(Self(Arc::new(Mutex::new(File::create_new(path)?))))
    }

    pub(crate) fn note(&self, line: impl Display) -> std::io::Result<()> {
        // One write per line: the end of the process cannot leave half of it.
        let line = format!("{} {line}", clock::now()).replace('\n', " ") + "\n";
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes())
    }
}

/// What a process has noted.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) process: String,
    /// Milliseconds since 1970.
    pub(crate) at: i64,
    pub(crate) words: Vec<String>,
}

/// Every line of every process, in the order of time.
pub(crate) fn read(directory: &Path) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != ENDING) {
            continue;
        }
        let process = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for line in std::fs::read_to_string(&path)?.lines() {
            let mut words = line.split(' ').map(str::to_owned);
            let at = words.next().and_then(|at| at.parse().ok());
            lines.push(Line {
                process: process.clone(),
                at: at.ok_or_else(|| format!("a torn line: {line:?}"))?,
                words: words.collect(),
            });
        }
    }
    lines.sort_by_key(|line| line.at);
    Ok(lines)
}
