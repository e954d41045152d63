//! A log beside the database: what a process intended, and what it was told. It is written without a buffer, so that a
//! kill loses nothing that was noted before it.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use queuert::JobId;

const ENDING: &str = "log";

pub(crate) struct Log(File);

impl Log {
    /// A new log; `name` is used once only.
    pub(crate) fn create(directory: &Path, name: &str) -> std::io::Result<Self> {
        let path = directory.join(name).with_extension(ENDING);
        File::create_new(path).map(Self)
    }

    pub(crate) fn note(&mut self, what: &str, id: JobId) -> std::io::Result<()> {
        // One write per line: the end of the process cannot leave half of it.
        self.0.write_all(format!("{what} {id}\n").as_bytes())
    }
}

/// What all processes have noted: for each id, in the order of each process.
pub(crate) fn read(directory: &Path) -> std::io::Result<HashMap<JobId, Vec<String>>> {
    let mut noted: HashMap<JobId, Vec<String>> = HashMap::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != ENDING) {
            continue;
        }
        for line in std::fs::read_to_string(path)?.lines() {
            let (what, id) = line.split_once(' ').unwrap_or((line, ""));
            let id = id
                .parse()
                .map_err(|_| std::io::Error::other(format!("a torn line: {line:?}")))?;
            noted.entry(id).or_default().push(what.to_owned());
        }
    }
    Ok(noted)
}
