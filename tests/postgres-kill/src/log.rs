//! A log beside the database, one for each process: which attempts it began, how they ended, what it reaped. Written
//! without a buffer, so that a kill loses nothing that was noted before it.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

const ENDING: &str = "log";

#[derive(Clone)]
pub(crate) struct Log(Arc<Mutex<File>>);

impl Log {
    /// A new log; `name` is used once only.
    pub(crate) fn create(directory: &Path, name: &str) -> std::io::Result<Self> {
        let path = directory.join(name).with_extension(ENDING);
        Ok(Self(Arc::new(Mutex::new(File::create_new(path)?))))
    }

    pub(crate) fn note(&self, line: &str) -> std::io::Result<()> {
        // One write per line: the end of the process cannot leave half of it.
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(format!("{line}\n").as_bytes())
    }
}

/// Every line of every process: its name, and the words.
pub(crate) fn read(directory: &Path) -> std::io::Result<Vec<(String, Vec<String>)>> {
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != ENDING) {
            continue;
        }
        let process = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for line in std::fs::read_to_string(&path)?.lines() {
            let words = line.split(' ').map(str::to_owned).collect();
            lines.push((process.clone(), words));
        }
    }
    Ok(lines)
}
