//! What all parts of one run share: the seed's randomness, the model, the history, the memory store.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use queuert::memory::{InProcessNotify, MemoryState};
use queuert::{StateError, StateErrorKind, Timestamp};
use tokio::time::Instant;

use crate::faults::{Coverage, Delay, Weather, hits};
use crate::history::History;
use crate::invariants::{Checked, Violation, broken};
use crate::model::Model;
use crate::run::Breakage;

/// One run.
#[derive(Clone, Debug)]
pub struct World(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    memory: MemoryState,
    hub: InProcessNotify,
    start: Instant,
    breakage: Option<Breakage>,
    state: Mutex<State>,
}

/// What changes during a run.
#[derive(Debug)]
pub struct State {
    /// All randomness.
    pub rng: Rng,
    /// What may happen now.
    pub weather: Weather,
    /// The rules.
    pub model: Model,
    /// The log.
    pub history: History,
    /// What happened how often.
    pub coverage: Coverage,
    outage_until: Option<Instant>,
    violation: Option<Violation>,
    /// Calls to the store in all, and at the same instant.
    calls: (u64, Instant, u64),
}

/// Calls that a whole run may take, and that may follow one another while the clock stands still. Far above what any
/// seed needs; a loop that never pauses gets there at once.
const MOST_CALLS: u64 = 400_000;
const MOST_CALLS_AT_ONCE: u64 = 5_000;

impl World {
    /// A new run. Must be called on the runtime whose clock is paused.
    pub fn new(memory: MemoryState, mut rng: Rng, breakage: Option<Breakage>) -> Self {
        let weather = Weather::draw(&mut rng);
        let start = Instant::now();
        Self(Arc::new(Inner {
            memory,
            hub: InProcessNotify::new(),
            start,
            breakage,
            state: Mutex::new(State {
                rng,
                weather,
                model: Model::default(),
                history: History::default(),
                coverage: Coverage::new(),
                outage_until: None,
                violation: None,
                calls: (0, start, 0),
            }),
        }))
    }

    /// The real store.
    pub fn memory(&self) -> &MemoryState {
        &self.0.memory
    }

    /// The real carrier of hints, shared by all processes of the run.
    pub fn hub(&self) -> &InProcessNotify {
        &self.0.hub
    }

    /// Whether the wrapper is broken on purpose in this way.
    pub fn is_broken(&self, breakage: Breakage) -> bool {
        self.0.breakage == Some(breakage)
    }

    /// The shared state. Never held across an await.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store's time.
    pub fn now(&self) -> Timestamp {
        self.memory().clock().now()
    }

    /// Something random.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.lock().rng)
    }

    /// Whether something with a chance in a thousand, given by the weather, happens; counted if so.
    pub fn chance(&self, name: &'static str, chance: impl FnOnce(&Weather) -> u32) -> bool {
        let mut state = self.lock();
        let permille = chance(&state.weather);
        let hit = hits(&mut state.rng, permille);
        if hit {
            state.count(name);
        }
        hit
    }

    /// Adds a line to the history.
    pub fn log(&self, what: fmt::Arguments<'_>) {
        let millis = self.0.start.elapsed().as_secs_f64() * 1_000.0;
        self.lock().history.push(millis, what);
    }

    /// Counts something.
    pub fn count(&self, name: &'static str) {
        self.lock().count(name);
    }

    /// Runs a check or a change of the model; the first violation ends the run.
    pub fn check(&self, check: impl FnOnce(&mut State, Timestamp) -> Checked) {
        let now = self.now();
        let mut state = self.lock();
        if state.violation.is_some() {
            return;
        }
        let result = check(&mut state, now);
        drop(state);
        if let Err(violation) = result {
            self.log(format_args!("VIOLATION {violation}"));
            self.lock().violation = Some(violation);
        }
    }

    /// The first violation.
    pub fn violation(&self) -> Option<Violation> {
        self.lock().violation.clone()
    }

    /// Fails everything for a while.
    pub fn begin_outage(&self, length: Duration) {
        self.log(format_args!("outage for {length:?}"));
        self.lock().outage_until = Some(Instant::now() + length);
    }

    /// Ends all faults.
    pub fn clear_up(&self) {
        self.log(format_args!("the storm is over"));
        let mut state = self.lock();
        state.weather = state.weather.cleared();
        state.outage_until = None;
    }

    /// Whether nothing answers now.
    pub fn is_out(&self) -> bool {
        let mut state = self.lock();
        let out = state.outage_until.is_some_and(|until| Instant::now() < until);
        if out {
            state.count("call during an outage");
        }
        out
    }

    /// Takes the time that the weather says.
    pub async fn linger(&self) {
        let delay = {
            let State { rng, weather, .. } = &mut *self.lock();
            weather.delay(rng)
        };
        match delay {
            Delay::None => {}
            Delay::Yield(times) => {
                self.count("call that lets others run");
                for _ in 0..times {
                    tokio::task::yield_now().await;
                }
            }
            Delay::Sleep(time) => {
                self.count("slow call");
                tokio::time::sleep(time).await;
            }
            Delay::Stall(time) => {
                self.count("call that stalls past the lease");
                tokio::time::sleep(time).await;
            }
        }
    }

    /// Before a call to the store takes effect.
    ///
    /// # Errors
    ///
    /// As the weather says.
    pub async fn before(&self, verb: &'static str) -> Result<(), StateError> {
        self.count_call(verb);
        self.linger().await;
        // After a violation nothing goes on: the run is over, and its history should end here.
        if self.violation().is_some() {
            std::future::pending::<()>().await;
        }
        if self.is_out() {
            return Err(StateError::new(StateErrorKind::Transient, "the store is down"));
        }
        if self.chance("store error before the effect", |weather| weather.error_before) {
            self.log(format_args!("{verb} fails before"));
            return Err(StateError::new(StateErrorKind::Transient, "connection refused"));
        }
        if self.chance("store error of a permanent kind", |weather| weather.error_permanent) {
            self.log(format_args!("{verb} fails for good"));
            return Err(StateError::new(StateErrorKind::Misconfigured, "permission denied"));
        }
        Ok(())
    }

    /// After a call to the store took effect.
    ///
    /// # Errors
    ///
    /// As the weather says: the answer is lost then.
    pub async fn after(&self, verb: &'static str) -> Result<(), StateError> {
        self.linger().await;
        if self.chance("store error after the effect", |weather| weather.error_after) {
            self.log(format_args!("{verb} loses its answer"));
            return Err(StateError::new(StateErrorKind::Transient, "connection reset"));
        }
        Ok(())
    }

    fn count_call(&self, verb: &'static str) {
        let now = Instant::now();
        self.check(|state, _| {
            let (all, at, at_once) = state.calls;
            let at_once = if at == now { at_once + 1 } else { 1 };
            state.calls = (all + 1, now, at_once);
            if at_once > MOST_CALLS_AT_ONCE {
                return broken!(HotLoop, "{at_once} calls without a pause, the last one {verb}");
            }
            if all > MOST_CALLS {
                return broken!(HotLoop, "{all} calls in one run, the last one {verb}");
            }
            Ok(())
        });
    }
}

impl State {
    /// Counts something.
    pub fn count(&mut self, name: &'static str) {
        *self.coverage.entry(name).or_default() += 1;
    }

    /// The first violation.
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// How many calls to the store there were.
    pub fn calls(&self) -> u64 {
        self.calls.0
    }
}
