//! The chain: its stored record, its typed views, and the handles that name one.

use std::fmt;
use std::marker::PhantomData;

use crate::error::Error;
use crate::id::{ChainId, JobId};
use crate::job::{AttemptError, JobStatus, TypeName};
use crate::job_type::Entry;
use crate::payload::Payload;
use crate::time::Timestamp;

/// A chain as it is stored. [`Chain`] is its typed view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainRecord {
    /// The chain's id: the id of its first job.
    pub id: ChainId,
    /// The type of its first job.
    pub type_name: TypeName,
    /// The input of its first job.
    pub input: Payload,
    /// The status of its latest job.
    pub status: JobStatus,
    /// The output; `None` until the chain has completed.
    pub output: Option<Payload>,
    /// The id of the latest job.
    pub latest_job: JobId,
    /// The type of the latest job. Once the chain has completed, this is the job that wrote the output.
    pub latest_type: TypeName,
    /// The number of jobs in the chain.
    pub length: u32,
    /// When the chain was started, by the store's clock.
    pub created_at: Timestamp,
    /// When the chain completed, died or was cancelled, by the store's clock; `None` while it is open.
    pub ended_at: Option<Timestamp>,
    /// The latest failure of the latest job.
    pub last_error: Option<AttemptError>,
    /// The deduplication key with which the chain was started.
    pub deduplication_key: Option<String>,
    /// The W3C trace context of the caller that started the chain.
    pub trace_context: Option<String>,
    /// The columns of the first and the latest job that cannot be read, and why; see
    /// [`JobRecord::unreadable`](crate::JobRecord::unreadable). `None` if both rows can be read.
    pub unreadable: Option<String>,
}

impl ChainRecord {
    /// Reads the record as a chain that starts with a `J`.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`] if a stored row is damaged, [`Error::TypeMismatch`] if it starts with another type,
    /// [`Error::Undecodable`] if its input or output is not what the type says.
    pub fn typed<J: Entry>(self) -> Result<Chain<J>, Error> {
        self.check_readable()?;
        if self.type_name.as_str() != J::NAME {
            return Err(Error::TypeMismatch {
                id: self.id.first_job(),
                expected: J::NAME.into(),
                actual: self.type_name,
            });
        }
        let input = J::decode(&self.input).map_err(|error| Error::Undecodable {
            id: self.id.first_job(),
            type_name: self.type_name.clone(),
            part: "input",
            message: error.to_string(),
        })?;
        let output = self.decode_output::<J>()?;
        Ok(Chain {
            input,
            output,
            record: self,
        })
    }

    /// Refuses a chain of which a row is damaged.
    pub(crate) fn check_readable(&self) -> Result<(), Error> {
        match &self.unreadable {
            Some(problem) => Err(Error::Unreadable {
                id: self.id.first_job(),
                problem: problem.clone(),
            }),
            None => Ok(()),
        }
    }

    pub(crate) fn decode_output<J: Entry>(&self) -> Result<Option<J::Output>, Error> {
        let Some(output) = &self.output else {
            return Ok(None);
        };
        match J::decode_output(self.latest_type.as_str(), output) {
            Ok(output) => Ok(Some(output)),
            Err(error) => Err(Error::Undecodable {
                id: self.latest_job,
                type_name: self.latest_type.clone(),
                part: "output",
                message: error.to_string(),
            }),
        }
    }
}

/// A chain that starts with a `J`, as it was when it was read. Dereferences to its [`ChainRecord`].
#[derive(Clone, Debug)]
pub struct Chain<J: Entry> {
    /// The input of its first job.
    pub input: J,
    /// The output; `None` until the chain has completed.
    pub output: Option<J::Output>,
    record: ChainRecord,
}

impl<J: Entry> Chain<J> {
    /// The stored record, with its input as JSON.
    pub fn as_record(&self) -> &ChainRecord {
        &self.record
    }

    /// The stored record.
    pub fn into_record(self) -> ChainRecord {
        self.record
    }
}

impl<J: Entry> std::ops::Deref for Chain<J> {
    type Target = ChainRecord;

    fn deref(&self) -> &ChainRecord {
        &self.record
    }
}

/// Names a chain that starts with a `J`. Plain data: copy it, store its id, rebuild it with [`ChainRef::new`].
///
/// ```
/// # use queuert::{ChainId, ChainRef, Client, Error, memory::MemoryState};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Charge { order: u64 }
/// # #[derive(queuert::JobTypes)] enum Orders { #[job(entry, output = ())] Charge(Charge) }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # let client = Client::new(MemoryState::new());
/// let stored: String = client.start(Charge { order: 7 }).await?.id().to_string(); // in a column of yours, say
///
/// let id: ChainId = stored.parse().expect("it was one");
/// let chain = client.get_chain(ChainRef::<Charge>::new(id)).await?;
/// assert_eq!(chain.expect("it was started").input.order, 7);
/// # Ok(()) }
/// ```
pub struct ChainRef<J> {
    id: ChainId,
    entry: PhantomData<fn() -> J>,
}

impl<J> ChainRef<J> {
    /// Names the chain `id` and says that it starts with a `J`. Calls that read the chain check that.
    pub const fn new(id: ChainId) -> Self {
        Self { id, entry: PhantomData }
    }

    /// The chain's id.
    pub const fn id(&self) -> ChainId {
        self.id
    }
}

impl<J> Clone for ChainRef<J> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<J> Copy for ChainRef<J> {}

impl<J> PartialEq for ChainRef<J> {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl<J> Eq for ChainRef<J> {}

impl<J> fmt::Debug for ChainRef<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChainRef({})", self.id)
    }
}

/// The result of a start: a handle to the new chain, or to the existing chain with the same deduplication key.
pub struct Started<J> {
    chain: ChainRef<J>,
    status: JobStatus,
    deduplicated: bool,
}

impl<J> Started<J> {
    pub(crate) fn new(id: ChainId, status: JobStatus, deduplicated: bool) -> Self {
        Self {
            chain: ChainRef::new(id),
            status,
            deduplicated,
        }
    }

    /// The chain's id.
    pub const fn id(&self) -> ChainId {
        self.chain.id
    }

    /// A handle that is plain data.
    pub const fn chain(&self) -> ChainRef<J> {
        self.chain
    }

    /// The status of the chain when it was started or found: the status of its latest job.
    pub const fn status(&self) -> JobStatus {
        self.status
    }

    /// Whether a chain with the same deduplication key existed, so that none was started.
    pub const fn deduplicated(&self) -> bool {
        self.deduplicated
    }
}

impl<J> Clone for Started<J> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

impl<J> fmt::Debug for Started<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Started")
            .field("id", &self.chain.id)
            .field("status", &self.status)
            .field("deduplicated", &self.deduplicated)
            .finish()
    }
}

/// Anything that names a chain whose type is known: [`ChainRef`], [`Started`], [`Chain`], and references to them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name a chain whose type is known",
    note = "pass what `client.start(..).await?` returned, or `ChainRef::<Entry>::new(id)` if all you have is an id"
)]
pub trait ChainHandle {
    /// The entry job type of the chain.
    type Entry: Entry;

    /// The chain.
    fn chain_ref(&self) -> ChainRef<Self::Entry>;
}

impl<J: Entry> ChainHandle for ChainRef<J> {
    type Entry = J;

    fn chain_ref(&self) -> ChainRef<J> {
        *self
    }
}

impl<J: Entry> ChainHandle for Started<J> {
    type Entry = J;

    fn chain_ref(&self) -> ChainRef<J> {
        self.chain
    }
}

impl<J: Entry> ChainHandle for Chain<J> {
    type Entry = J;

    fn chain_ref(&self) -> ChainRef<J> {
        ChainRef::new(self.record.id)
    }
}

#[diagnostic::do_not_recommend]
impl<H: ChainHandle> ChainHandle for &H {
    type Entry = H::Entry;

    fn chain_ref(&self) -> ChainRef<H::Entry> {
        (**self).chain_ref()
    }
}

macro_rules! named_by {
    ($($handle:ident),+) => {$(
        impl<J> From<$handle<J>> for ChainId {
            fn from(handle: $handle<J>) -> Self {
                handle.id()
            }
        }

        impl<J> From<&$handle<J>> for ChainId {
            fn from(handle: &$handle<J>) -> Self {
                handle.id()
            }
        }
    )+};
}

named_by!(ChainRef, Started);

impl<J: Entry> From<&Chain<J>> for ChainId {
    fn from(chain: &Chain<J>) -> Self {
        chain.record.id
    }
}

impl From<&ChainRecord> for ChainId {
    fn from(chain: &ChainRecord) -> Self {
        chain.id
    }
}
