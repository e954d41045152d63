//! For your own tests: a store without a server, a clock that the test moves, and assertions on the chains that were
//! started.
//!
//! [`MemoryState`](crate::memory::MemoryState) is a complete store in memory whose clock a test can hold;
//! [`drain`](crate::WorkerBuilder::drain) runs everything that is due, one job after the other, and returns what ran;
//! [`started`] asserts on the chains that your code started.
//!
//! ```
//! use std::time::Duration;
//!
//! use queuert::memory::{Attempt, MemoryClock, MemoryState};
//! use queuert::{Client, JobTypes, Timestamp, testing};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Remind { user: u64 }
//!
//! #[derive(JobTypes)]
//! enum Reminders {
//!     #[job(entry, output = String)]
//!     Remind(Remind),
//! }
//!
//! // The code under test.
//! async fn sign_up(client: &Client<MemoryState>, user: u64) -> Result<(), queuert::Error> {
//!     client.start(Remind { user }).delay(Duration::from_secs(3600)).await?;
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), queuert::Error> {
//! let clock = MemoryClock::manual(Timestamp::from_micros(0));
//! let client = Client::new(MemoryState::with_clock(clock.clone()));
//! let worker = || {
//!     client.worker().process(|job: Attempt<Remind>| async move {
//!         let text = format!("user {}, come back!", job.user);
//!         job.finish(text)
//!     })
//! };
//!
//! sign_up(&client, 7).await?;
//! let chain = testing::started::<Remind, _>(&client).await?.assert_one_with(|remind| remind.user == 7);
//!
//! assert!(worker().drain().await?.is_empty(), "it is not due yet");
//! clock.advance(Duration::from_secs(3600));
//! assert_eq!(worker().drain().await?.types(), ["remind"]);
//! assert_eq!(client.wait(&chain).await?, "user 7, come back!");
//! # Ok(()) }
//! ```

use std::fmt;

use crate::adapter::StateAdapter;
use crate::chain::{Chain, ChainRecord, ChainRef};
use crate::client::Client;
use crate::error::Error;
use crate::job_type::Entry;

/// The chains that start with a `J`, oldest first, to assert on.
///
/// # Errors
///
/// [`Error::Undecodable`], [`Error::State`].
///
/// # Cancel safety
///
/// Reading changes nothing.
pub async fn started<J: Entry, S: StateAdapter>(client: &Client<S>) -> Result<StartedChains<J>, Error> {
    let mut chains = Vec::new();
    let mut cursor = None;
    loop {
        let mut request = client.list_chains().starting_with::<J>().oldest_first().limit(1_000);
        if let Some(cursor) = cursor {
            request = request.after(cursor);
        }
        let page = request.await?;
        for record in page.items {
            chains.push(ChainRecord::typed::<J>(record)?);
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(StartedChains { chains });
        }
    }
}

/// Chains to assert on. An assertion that fails panics with a message that lists the chains that were started.
pub struct StartedChains<J: Entry> {
    /// The chains, oldest first.
    pub chains: Vec<Chain<J>>,
}

impl<J: Entry> StartedChains<J> {
    /// Asserts that exactly `count` chains were started.
    ///
    /// # Panics
    ///
    /// If there is another number of them.
    #[track_caller]
    pub fn assert_count(&self, count: usize) -> &Self {
        assert!(
            self.chains.len() == count,
            "expected {count} chains of `{}`, but {self} were started",
            J::NAME
        );
        self
    }

    /// Asserts that no chain was started.
    ///
    /// # Panics
    ///
    /// If a chain was started.
    #[track_caller]
    pub fn assert_none(&self) {
        self.assert_count(0);
    }

    /// Asserts that exactly one chain was started, and returns it.
    ///
    /// # Panics
    ///
    /// If there is another number of them.
    #[track_caller]
    pub fn assert_one(&self) -> ChainRef<J> {
        self.assert_count(1);
        ChainRef::new(self.chains[0].id)
    }

    /// Asserts that exactly one chain was started whose input satisfies `fits`, and returns it.
    ///
    /// # Panics
    ///
    /// If there is another number of them.
    #[track_caller]
    pub fn assert_one_with(&self, fits: impl Fn(&J) -> bool) -> ChainRef<J> {
        let mut matching = self.chains.iter().filter(|chain| fits(&chain.input));
        match (matching.next(), matching.next()) {
            (Some(chain), None) => ChainRef::new(chain.id),
            (first, _) => panic!(
                "expected one chain of `{}` whose input fits, but {} does; started: {self}",
                J::NAME,
                if first.is_none() { "none" } else { "more than one" }
            ),
        }
    }
}

impl<J: Entry> fmt::Display for StartedChains<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.chains.len())?;
        for chain in &self.chains {
            write!(
                f,
                "\n  {} {} with {:?}",
                chain.id,
                chain.status,
                chain.as_record().input
            )?;
        }
        Ok(())
    }
}

impl<J: Entry> fmt::Debug for StartedChains<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
