//! What every measured program shares, ours and the peers': the payloads, the stopwatch, and the line of JSON in which
//! it reports. No program measures itself in a way of its own.

mod arguments;
mod cost;
#[cfg(feature = "postgres")]
mod observer;
mod payload;

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

pub use arguments::Arguments;
pub use cost::{Cost, Stopwatch};
#[cfg(feature = "postgres")]
pub use observer::{Counts, OBSERVER, Observer};
pub use payload::{Letter, Receipt};

/// Any error: a measured program can only say it and stop.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How many threads a runtime has: the figures that we promise are for two cores.
pub const CORES: usize = 2;

/// One measured value of a round.
#[derive(Debug, Serialize, Deserialize)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// The unit of the value.
    pub unit: String,
    /// The value.
    pub value: f64,
    /// What it cost.
    pub cost: Option<Cost>,
}

/// All that a measured program says: one line of JSON on its standard output.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// The values.
    pub figures: Vec<Figure>,
    /// What else should be known about the run, such as versions and settings that it found.
    pub facts: BTreeMap<String, String>,
}

impl Report {
    /// Adds a fact.
    #[must_use]
    pub fn fact(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.facts.insert(name.into(), value.to_string());
        self
    }

    /// Prints it.
    ///
    /// # Errors
    ///
    /// If nobody reads.
    pub fn print(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(self)?)
    }
}

impl From<Vec<Figure>> for Report {
    fn from(figures: Vec<Figure>) -> Self {
        Self {
            figures,
            facts: BTreeMap::new(),
        }
    }
}
