//! Tasks, and locks under which none is spawned. Not public API: for this library and its adapters.
//!
//! A runtime that is ending drops a task in the very call that spawns it, and what goes with the task may take a lock that
//! the caller holds: the runtime would never end. So tasks are spawned with [`spawn`], [`spawn_on`] and [`spawn_in`] only, and
//! all locks are a [`Lock`] or a [`SharedLock`]; debug builds, and with them all tests, panic where the one is called under the
//! other. They panic as well where a thread takes a lock that it holds already, as the drop of a value does that is replaced
//! under the lock: a release build would wait forever. In release builds the locks are those of the standard library.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

/// A mutex that is never poisoned, and under which no task is spawned.
#[derive(Default)]
pub struct Lock<T>(Mutex<T>);

/// The same with many readers at a time: for what is read all the time and hardly ever written.
#[derive(Default)]
pub struct SharedLock<T>(RwLock<T>);

/// Holds a [`Lock`] until it is dropped.
pub type LockGuard<'l, T> = Guard<MutexGuard<'l, T>>;

/// Holds a lock until it is dropped.
pub struct Guard<G> {
    // Dropped first: the lock is free before it counts as free.
    guard: G,
    _held: held::Held,
}

impl<T> Lock<T> {
    /// A lock around a value.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits for the lock.
    ///
    /// # Panics
    ///
    /// In debug builds, if this thread holds it.
    #[track_caller]
    pub fn lock(&self) -> LockGuard<'_, T> {
        let _held = held::Held::new(&self.0);
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Guard { guard, _held }
    }
}

impl<T> SharedLock<T> {
    /// A lock around a value.
    pub const fn new(value: T) -> Self {
        Self(RwLock::new(value))
    }

    /// Waits until nobody writes.
    ///
    /// # Panics
    ///
    /// In debug builds, if this thread holds it: also for reading, as a writer may wait in between.
    #[track_caller]
    pub fn read(&self) -> Guard<RwLockReadGuard<'_, T>> {
        let _held = held::Held::new(&self.0);
        let guard = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Guard { guard, _held }
    }

    /// Waits until nobody reads or writes.
    ///
    /// # Panics
    ///
    /// In debug builds, if this thread holds it.
    #[track_caller]
    pub fn write(&self) -> Guard<RwLockWriteGuard<'_, T>> {
        let _held = held::Held::new(&self.0);
        let guard = self.0.write().unwrap_or_else(PoisonError::into_inner);
        Guard { guard, _held }
    }
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

impl<T: fmt::Debug> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: fmt::Debug> fmt::Debug for SharedLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<G: fmt::Debug> fmt::Debug for Guard<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

/// Spawns a task on the current runtime.
///
/// # Panics
///
/// Outside of a runtime, as `tokio::spawn` does; in debug builds, under a [`Lock`].
#[track_caller]
pub fn spawn<F>(task: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    held::refuse();
    tokio::spawn(task)
}

/// Spawns a task on a runtime.
///
/// # Panics
///
/// In debug builds, under a [`Lock`].
#[track_caller]
pub fn spawn_on<F>(runtime: &Handle, task: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    held::refuse();
    runtime.spawn(task)
}

/// Spawns a task into a set, on the current runtime.
///
/// # Panics
///
/// Outside of a runtime, as `JoinSet::spawn` does; in debug builds, under a [`Lock`].
#[track_caller]
pub fn spawn_in<F>(tasks: &mut JoinSet<F::Output>, task: F) -> AbortHandle
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    held::refuse();
    tasks.spawn(task)
}

#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    thread_local! {
        /// The addresses of the locks that this thread holds.
        static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }

    /// One lock that this thread holds.
    pub(super) struct Held(usize);

    impl Held {
        #[track_caller]
        pub(super) fn new<L>(lock: &L) -> Self {
            let address = std::ptr::from_ref(lock).addr();
            let known = with(|held| {
                let known = held.contains(&address);
                held.push(address);
                known
            });
            // Made before the panic, which forgets the second time.
            let held = Self(address);
            assert!(
                known != Some(true),
                "a thread takes a lock that it holds: it would wait for itself forever"
            );
            held
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            with(|held| {
                if let Some(index) = held.iter().rposition(|address| *address == self.0) {
                    held.swap_remove(index);
                }
            });
        }
    }

    /// `None` in a thread that is ending, whose list has gone.
    fn with<T>(look: impl FnOnce(&mut Vec<usize>) -> T) -> Option<T> {
        HELD.try_with(|held| look(&mut held.borrow_mut())).ok()
    }

    #[track_caller]
    pub(super) fn refuse() {
        assert!(
            with(|held| held.is_empty()) != Some(false),
            "a task is spawned under a lock: a runtime that is ending drops it right here, and it may take the lock"
        );
    }
}

#[cfg(not(debug_assertions))]
mod held {
    pub(super) struct Held;

    impl Held {
        pub(super) const fn new<L>(_: &L) -> Self {
            Self
        }
    }

    pub(super) const fn refuse() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_is_spawned_without_a_lock() {
        let lock = Lock::new(1);
        *lock.lock() += 1;
        assert_eq!(spawn(async { 3 }).await.unwrap(), 3);
        let mut tasks = JoinSet::new();
        spawn_in(&mut tasks, async { 4 });
        assert_eq!(tasks.join_next().await.unwrap().unwrap(), 4);
        assert_eq!(*lock.lock(), 2);
    }

    #[tokio::test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a task is spawned under a lock")]
    async fn a_task_under_a_lock_is_refused() {
        let lock = Lock::new(());
        let _guard = lock.lock();
        drop(spawn(async {}));
    }

    #[tokio::test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a task is spawned under a lock")]
    async fn a_task_of_a_set_under_a_lock_is_refused() {
        let (lock, mut tasks) = (Lock::new(()), JoinSet::new());
        let _guard = lock.lock();
        spawn_in(&mut tasks, async {});
    }

    #[test]
    fn different_locks_nest_and_a_lock_is_taken_again_once_it_is_free() {
        let (first, second) = (Lock::new(1), SharedLock::new(2));
        for _ in 0..2 {
            let outer = first.lock();
            let sum = *outer + *second.read();
            *second.write() = sum;
            drop(outer);
        }
        assert_eq!(*second.read(), 4);
        // Other threads only wait.
        let guard = first.lock();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| *first.lock());
            drop(guard);
            assert_eq!(other.join().unwrap(), 1);
        });
    }

    /// Takes the lock in which it lies when it is dropped.
    #[cfg(debug_assertions)]
    struct Relocks(std::sync::Weak<Lock<Option<Relocks>>>);

    #[cfg(debug_assertions)]
    impl Drop for Relocks {
        fn drop(&mut self) {
            if let Some(lock) = self.0.upgrade() {
                drop(lock.lock());
            }
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a thread takes a lock that it holds")]
    fn a_drop_that_takes_the_lock_again_is_refused() {
        let lock = std::sync::Arc::new(Lock::new(None));
        *lock.lock() = Some(Relocks(std::sync::Arc::downgrade(&lock)));
        *lock.lock() = None;
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_thread_that_was_refused_can_go_on() {
        let lock = SharedLock::new(7);
        let guard = lock.read();
        for take in [
            |lock: &SharedLock<i32>| drop(lock.read()),
            |lock: &SharedLock<i32>| drop(lock.write()),
        ] {
            let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| take(&lock)));
            assert!(refused.is_err());
        }
        drop(guard);
        *lock.write() += 1;
        assert_eq!(*lock.read(), 8);
    }
}
