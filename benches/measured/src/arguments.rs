//! The command line of a peer.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::BoxError;

/// `--name value` pairs, as a suite gives them to a peer.
#[derive(Debug)]
pub struct Arguments(BTreeMap<String, String>);

impl Arguments {
    /// Those of this process.
    ///
    /// # Errors
    ///
    /// If they are not pairs.
    pub fn of_process() -> Result<Self, BoxError> {
        let mut pairs = BTreeMap::new();
        let mut arguments = std::env::args().skip(1);
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("`{name}` needs a value"))?;
            let name = name.strip_prefix("--").ok_or_else(|| format!("what is `{name}`?"))?;
            pairs.insert(name.to_owned(), value);
        }
        Ok(Self(pairs))
    }

    /// A value.
    ///
    /// # Errors
    ///
    /// If it was not given.
    pub fn text(&self, name: &str) -> Result<&str, BoxError> {
        let value = self.0.get(name).map(String::as_str);
        value.ok_or_else(|| format!("`--{name}` is missing").into())
    }

    /// A value of another type.
    ///
    /// # Errors
    ///
    /// If it was not given, or is none of that type.
    pub fn value<T: FromStr>(&self, name: &str) -> Result<T, BoxError> {
        let text = self.text(name)?;
        let value = text.parse();
        value.map_err(|_| format!("`{text}` cannot be the value of `--{name}`").into())
    }
}
