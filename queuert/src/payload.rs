//! Inputs and outputs as they are stored: JSON text.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A stored input or output: JSON text. Cloning is cheap.
///
/// Stores keep the text as it is and never look inside, so a payload that a newer or older build cannot read is
/// contained: whoever decodes it gets a typed error that names the row.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload(Arc<str>);

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The largest buffer that a thread keeps.
const KEPT: usize = 64 * 1024;

impl Payload {
    /// Takes JSON text as it is, for example from a row. The text is not checked until it is decoded.
    pub fn from_text(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Writes a value as JSON.
    ///
    /// # Errors
    ///
    /// When the value's `Serialize` implementation fails, or it has map keys that are not strings.
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Self, PayloadError> {
        // Encoded next to what was encoded before, so that a payload is one allocation of its own size. A value whose
        // `Serialize` encodes another one on the way finds the buffer taken, and has one of its own.
        let mut buffer = BUFFER.try_with(Cell::take).unwrap_or_default();
        buffer.clear();
        let written = serde_json::to_writer(&mut buffer, value);
        let text = written.map_err(|error| error.to_string()).and_then(|()| {
            let text = std::str::from_utf8(&buffer).map_err(|error| error.to_string())?;
            Ok(Self(text.into()))
        });
        if buffer.capacity() <= KEPT {
            let _ = BUFFER.try_with(|kept| kept.set(buffer));
        }
        text.map_err(PayloadError)
    }

    /// Reads the JSON as a `T`.
    ///
    /// # Errors
    ///
    /// When the text is not JSON, or not the JSON of a `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, PayloadError> {
        serde_json::from_str(&self.0).map_err(|error| PayloadError(error.to_string()))
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A value that could not be written as JSON, or JSON that is not the expected type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PayloadError(pub(crate) String);

impl PayloadError {
    /// An error with a message of the caller's, for hand-written [`Entry`](crate::Entry) implementations.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}
