//! Inputs and outputs as they are stored: JSON text.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use self::exact::{Compact, Exact, Met};

mod exact;
#[cfg(test)]
mod tests;

/// A stored input or output: JSON text. Cloning is cheap.
///
/// Stores keep the text as it is and never read it, so a payload that a newer or older build cannot read affects no
/// other row: decoding it returns a typed error that names the row.
///
/// A value that [`encode`](Self::encode) accepts comes back equal: integers up to 128 bits, every finite float bit by
/// bit, text with any character in it, maps whose keys are numbers. A value that JSON cannot hold is refused by
/// `encode`, and not found out when the job runs. One exception: JSON has one `null`, so `Some(None)` and `Some(())`
/// come back as `None` unless the type tells them apart.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload(Arc<str>);

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The largest buffer that a thread keeps.
const KEPT: usize = 64 * 1024;

impl Payload {
    /// Makes a payload of JSON text, for example from a row. The text is not checked until it is decoded.
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
    /// If the value's `Serialize` implementation fails, or if the value has map keys that cannot be written as text, a
    /// float that is not finite, or more than 127 nested arrays and objects.
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Self, PayloadError> {
        Self::write(value).map(|(payload, _)| payload)
    }

    /// The same for a value that is read as a `T` again. An `i128` or `u128` can be read where the type asks for it, but not
    /// in untagged enums and flattened fields, so a value that has one is read on trial.
    ///
    /// # Errors
    ///
    /// As [`encode`](Self::encode), and when the value cannot be read back.
    pub(crate) fn encode_own<T: Serialize + DeserializeOwned>(value: &T) -> Result<Self, PayloadError> {
        let (payload, met) = Self::write(value)?;
        if met.wide_integer
            && let Err(error) = payload.decode::<T>()
        {
            return Err(PayloadError(format!(
                "it holds an i128 or u128 where it cannot be read back ({error}), such as in an untagged enum or a \
                 flattened field; write it as a text"
            )));
        }
        Ok(payload)
    }

    fn write<T: Serialize + ?Sized>(value: &T) -> Result<(Self, Met), PayloadError> {
        // Encoded next to what was encoded before, so that a payload is one allocation of its own size. A value whose
        // `Serialize` encodes another one on the way finds the buffer taken, and has one of its own.
        let mut buffer = BUFFER.try_with(Cell::take).unwrap_or_default();
        buffer.clear();
        let mut met = Met::default();
        let mut json = serde_json::Serializer::with_formatter(&mut buffer, Compact(&mut met));
        let written = value.serialize(Exact(&mut json));
        let text = written.map_err(|error| error.to_string()).and_then(|()| {
            let text = std::str::from_utf8(&buffer).map_err(|error| error.to_string())?;
            Ok(Self(text.into()))
        });
        if buffer.capacity() <= KEPT {
            let _ = BUFFER.try_with(|kept| kept.set(buffer));
        }
        text.map(|text| (text, met)).map_err(PayloadError)
    }

    /// Reads the JSON as a `T`.
    ///
    /// # Errors
    ///
    /// If the text is not JSON, or not the JSON of a `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, PayloadError> {
        serde_json::from_str(&self.0).map_err(|error| PayloadError(without_texts(&error.to_string())))
    }
}

/// Shows the length only, because a payload may contain secrets that must not be in a log. [`as_str`](Payload::as_str)
/// has the text.
impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.0.len())
    }
}

/// The message of a decoder without the text that it found where it expected something else: the message is stored, sent as
/// an event and logged, and the text may be a secret.
fn without_texts(message: &str) -> String {
    const FOUND: &str = ": string \"";
    const EXPECTED: &str = "\", expected ";
    match (message.find(FOUND), message.rfind(EXPECTED)) {
        (Some(found), Some(expected)) if found < expected => {
            let (before, after) = (&message[..found], &message[expected + 1..]);
            format!("{before}: a string{after}")
        }
        _ => message.to_owned(),
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
