//! What an adapter's author supplies.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use queuert::JobId;
use queuert::adapter::{AGEING_STEP, NotifyAdapter, StateAdapter};

/// Makes state adapters for the cases, and does with their store what only its author knows how to do.
///
/// Implement the methods as plain `async fn`. Abilities that are optional are declared in
/// [`capabilities`](Self::capabilities): without them the cases that need them say that they were left out.
pub trait StateFixture: Send + Sync + 'static {
    /// The adapter under test.
    type State: StateAdapter;

    /// A new adapter with an empty store that no other test sees. Called once per case.
    fn state(&self) -> impl Future<Output = Self::State> + Send;

    /// Makes at least this much time pass by the store's clock: moves it, or sleeps. The cases ask for less than two
    /// seconds each unless [`Capabilities::free_time`] is declared.
    fn elapse(&self, state: &Self::State, time: Duration) -> impl Future<Output = ()> + Send;

    /// What the store and this fixture can do. Default: nothing optional.
    fn capabilities(&self) -> Capabilities {
        Capabilities::none()
    }

    /// The ageing step with which [`state`](Self::state) sets its adapters up. Where time is not free, a short one lets
    /// the cases about ageing run. Default: [`AGEING_STEP`].
    fn ageing_step(&self) -> Duration {
        AGEING_STEP
    }

    /// How long something is watched before the cases believe that it waits. Default: 100 ms.
    fn patience(&self) -> Duration {
        Duration::from_millis(100)
    }

    /// Makes the transaction fail as a broken statement of the user's would ([`Capabilities::poison`]).
    fn poison(&self, connection: &mut <Self::State as StateAdapter>::Connection) -> impl Future<Output = ()> + Send {
        let _ = connection;
        async { panic!("the fixture declares `poison` and does not implement it") }
    }

    /// The names of the ways in which [`damage`](Self::damage) can damage the row of a job, each of a kind that a program
    /// other than this library could do. Default: none, and the cases about damaged rows are left out.
    fn damages(&self) -> &'static [&'static str] {
        &[]
    }

    /// The same for ways that concern a running job only: its lease, or what else a sweep finds it by. Default: none, and the
    /// case about them is left out.
    fn lease_damages(&self) -> &'static [&'static str] {
        &[]
    }

    /// The same of damages that take the state of a job away and leave the job, where a store keeps the two apart.
    fn state_damages(&self) -> &'static [&'static str] {
        &[]
    }

    /// Damages the row of a job, pending or running, in this way.
    fn damage(&self, state: &Self::State, job: JobId, how: &str) -> impl Future<Output = ()> + Send {
        let _ = (state, job);
        let how = how.to_owned();
        async move { panic!("the fixture declares the damage `{how}` and does not implement it") }
    }

    /// Ends the transaction on the connection without the library, in one of the ways that there are: as the store does by
    /// itself after an error, or as a statement of the user's does ([`Capabilities::ends`]).
    fn end_transaction(
        &self,
        connection: &mut <Self::State as StateAdapter>::Connection,
        way: usize,
    ) -> impl Future<Output = ()> + Send {
        let _ = (connection, way);
        async { panic!("the fixture declares `ends` and does not implement `end_transaction`") }
    }

    /// The same with statements whose futures are dropped when they have been polled once, as a timeout does. Where a driver
    /// runs them all the same, they have not run when this returns.
    fn abandon_end(
        &self,
        connection: &mut <Self::State as StateAdapter>::Connection,
        way: usize,
    ) -> impl Future<Output = ()> + Send {
        async move {
            let _ = self.end_transaction(connection, way).now_or_never();
        }
    }

    /// Another adapter on the store of this one, as another process has it ([`Capabilities::owners`]).
    fn twin(&self, state: &Self::State) -> impl Future<Output = Self::State> + Send {
        let _ = state;
        async { panic!("the fixture declares `owners` and does not implement `twin`") }
    }

    /// Does to a twin, and to nothing else, what the death of its process does, once the store knows what there is to
    /// know about it ([`Capabilities::owners`]).
    fn kill(&self, twin: Self::State) -> impl Future<Output = ()> + Send {
        let _ = twin;
        async { panic!("the fixture declares `owners` and does not implement `kill`") }
    }

    /// Writes a row of the user's own in the transaction ([`Capabilities::markers`]).
    fn write_marker(
        &self,
        connection: &mut <Self::State as StateAdapter>::Connection,
        marker: &str,
    ) -> impl Future<Output = ()> + Send {
        let _ = (connection, marker);
        async { panic!("the fixture declares `markers` and does not implement `write_marker`") }
    }

    /// Whether that row was committed ([`Capabilities::markers`]).
    fn read_marker(&self, state: &Self::State, marker: &str) -> impl Future<Output = bool> + Send {
        let _ = (state, marker);
        async { panic!("the fixture declares `markers` and does not implement `read_marker`") }
    }
}

/// What a store and its fixture can do beyond the contract.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    pub(crate) concurrent_writers: bool,
    pub(crate) free_time: bool,
    pub(crate) poison: bool,
    pub(crate) markers: bool,
    pub(crate) owners: bool,
    pub(crate) ends: usize,
}

impl Capabilities {
    /// Nothing optional.
    pub const fn none() -> Self {
        Self {
            concurrent_writers: false,
            free_time: false,
            poison: false,
            markers: false,
            owners: false,
            ends: 0,
        }
    }

    /// Transactions can end without the library, in so many ways, and the fixture implements
    /// [`StateFixture::end_transaction`].
    #[must_use]
    pub const fn ends(mut self, ways: usize) -> Self {
        self.ends = ways;
        self
    }

    /// A transaction that has written may stay open while others write to something else.
    #[must_use]
    pub const fn concurrent_writers(mut self) -> Self {
        self.concurrent_writers = true;
        self
    }

    /// [`StateFixture::elapse`] moves a clock and does not wait, so that cases may let hours pass.
    #[must_use]
    pub const fn free_time(mut self) -> Self {
        self.free_time = true;
        self
    }

    /// The fixture implements [`StateFixture::poison`].
    #[must_use]
    pub const fn poison(mut self) -> Self {
        self.poison = true;
        self
    }

    /// The fixture implements [`StateFixture::write_marker`] and [`StateFixture::read_marker`].
    #[must_use]
    pub const fn markers(mut self) -> Self {
        self.markers = true;
        self
    }

    /// The store finds out that a process has died, and the fixture implements [`StateFixture::twin`] and
    /// [`StateFixture::kill`].
    #[must_use]
    pub const fn owners(mut self) -> Self {
        self.owners = true;
        self
    }
}

/// Makes notify adapters for the cases. One fixture value is one isolated network.
pub trait NotifyFixture: Send + Sync + 'static {
    /// Another participant of the network of this fixture value, as another process would be.
    fn connect(&self) -> impl Future<Output = Arc<dyn NotifyAdapter>> + Send;

    /// What the adapter and this fixture can do. Default: nothing optional.
    fn capabilities(&self) -> NotifyCapabilities {
        NotifyCapabilities::none()
    }

    /// How long a subscription is watched before the cases believe that nothing comes. Default: 200 ms.
    fn patience(&self) -> Duration {
        Duration::from_millis(200)
    }

    /// Cuts the participant's connection so that it has to listen again ([`NotifyCapabilities::interrupt`]).
    fn interrupt(&self, adapter: &Arc<dyn NotifyAdapter>) -> impl Future<Output = ()> + Send {
        let _ = adapter;
        async { panic!("the fixture declares `interrupt` and does not implement it") }
    }
}

/// What a notify adapter and its fixture can do beyond the contract.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotifyCapabilities {
    pub(crate) hints: bool,
    pub(crate) interrupt: bool,
}

impl NotifyCapabilities {
    /// Nothing optional.
    pub const fn none() -> Self {
        Self {
            hints: false,
            interrupt: false,
        }
    }

    /// The adapter reads the demand of its subscribers, so that `n` jobs wake about `n` workers.
    #[must_use]
    pub const fn hints(mut self) -> Self {
        self.hints = true;
        self
    }

    /// The fixture implements [`NotifyFixture::interrupt`].
    #[must_use]
    pub const fn interrupt(mut self) -> Self {
        self.interrupt = true;
        self
    }
}
