//! Wrappers around a state adapter: all verbs are passed on, except those that the wrapper implements itself.

/// Passes the verbs of a [`StateAdapter`](crate::adapter::StateAdapter) on to another one, inside the `impl` block of a
/// wrapper. A verb that the trait gains later is passed on too, also if it has a default body: no wrapper forgets one.
///
/// Verbs that the wrapper implements itself are named after `except`. After `via` comes a method of the wrapper: every verb
/// that answers with a `Result` goes through it. It is given the name of the verb, how many items the call has (the limit of
/// claims and sweeps, one where a verb takes no list), and the call.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// use queuert::adapter::StateAdapter;
/// use queuert::memory::MemoryState;
/// use queuert::{StateError, Timestamp};
///
/// struct Counted<S> {
///     inner: S,
///     calls: AtomicUsize,
/// }
///
/// impl<S> Counted<S> {
///     async fn count<T>(
///         &self,
///         _verb: &'static str,
///         _items: usize,
///         call: impl Future<Output = Result<T, StateError>>,
///     ) -> Result<T, StateError> {
///         self.calls.fetch_add(1, Ordering::Relaxed);
///         call.await
///     }
/// }
///
/// impl<S: StateAdapter> StateAdapter for Counted<S> {
///     type Connection = S::Connection;
///     type Transaction = S::Transaction;
///
///     queuert::forward_state! { self => self.inner, via count; except watermark }
///
///     async fn watermark(&self) -> Result<Timestamp, StateError> {
///         self.inner.watermark().await // not counted
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), StateError> {
/// let counted = Counted { inner: MemoryState::new(), calls: AtomicUsize::new(0) };
/// counted.get_jobs(None, &[]).await?;
/// counted.watermark().await?;
/// assert_eq!(counted.calls.load(Ordering::Relaxed), 1);
/// # Ok(()) }
/// ```
#[macro_export]
macro_rules! forward_state {
    ($self:ident => $inner:expr $(; except $($verb:ident),+ $(,)?)?) => {
        $crate::__forward_verbs! { $self [$inner] [] [$($($verb)+)?] }
    };
    ($self:ident => $inner:expr, via $call:ident $(; except $($verb:ident),+ $(,)?)?) => {
        $crate::__forward_verbs! { $self [$inner] [$call] [$($($verb)+)?] }
    };
}

/// Every verb, with the number of its items.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward_verbs {
    ($self:ident $inner:tt $via:tt $except:tt) => {
        $crate::__unless_listed! { has_ended $except {
            fn has_ended(&$self, transaction: &Self::Transaction) -> bool {
                $crate::__inner!($inner).has_ended(transaction)
            }
        } }
        $crate::__unless_listed! { undo_shielded $except {
            fn undo_shielded(&$self, connection: &mut Self::Connection) {
                $crate::__inner!($inner).undo_shielded(connection);
            }
        } }
        $crate::__unless_listed! { owner_died $except {
            async fn owner_died(&$self, since: $crate::__private::Instant) {
                $crate::__inner!($inner).owner_died(since).await;
            }
        } }
        $crate::__forward_rows! { $self $inner $via $except
            begin(), 1 => Self::Transaction;
            commit(transaction: Self::Transaction), 1 => ();
            rollback(transaction: Self::Transaction), 1 => ();
            savepoint(connection: &mut Self::Connection, depth: u32), 1 => ();
            release_savepoint(connection: &mut Self::Connection, depth: u32), 1 => ();
            rollback_to_savepoint(connection: &mut Self::Connection, depth: u32), 1 => ();
            catch_up(transaction: &mut Self::Transaction), 1 => ();
            shield(connection: &mut Self::Connection), 1 => ();
            unshield(connection: &mut Self::Connection), 1 => ();
            create_chains(within: Option<&mut Self::Connection>, chains: &[$crate::adapter::NewChain]), chains.len()
                => ::core::result::Result<Vec<$crate::adapter::CreatedChain>, $crate::adapter::Refusal>;
            claim_jobs(claim: &$crate::adapter::ClaimJobs), claim.limit => $crate::adapter::Claimed;
            claimed_jobs(fence: $crate::Fence), 1 => Vec<$crate::adapter::ClaimedJob>;
            renew_leases(within: Option<&mut Self::Connection>, renewals: &[$crate::adapter::RenewLease]), renewals.len()
                => Vec<$crate::adapter::Renewal>;
            settle_jobs(within: Option<&mut Self::Connection>, settlements: &[$crate::adapter::Settlement]), settlements.len()
                => Vec<$crate::adapter::Settled>;
            settle_in(transaction: &mut Self::Transaction, settlements: &[$crate::adapter::Settlement]), settlements.len()
                => Vec<$crate::adapter::Settled>;
            reap_leases(reap: &$crate::adapter::ReapLeases), reap.limit => Vec<$crate::adapter::ReapedJob>;
            hold_lease(connection: &mut Self::Connection, job: $crate::JobId, fence: $crate::Fence), 1
                => ::core::result::Result<(), $crate::AbortReason>;
            lock_chain(connection: &mut Self::Connection, chain: $crate::ChainId), 1 => Option<$crate::JobRecord>;
            trigger_jobs(within: Option<&mut Self::Connection>, jobs: &[$crate::JobId]), jobs.len()
                => ::core::result::Result<Vec<$crate::JobRecord>, $crate::adapter::Refusal>;
            cancel_chains(within: Option<&mut Self::Connection>, chains: &[$crate::ChainId]), chains.len()
                => ::core::result::Result<Vec<$crate::adapter::StoppedChain>, $crate::adapter::Refusal>;
            retry_chains(within: Option<&mut Self::Connection>, chains: &[$crate::ChainId]), chains.len()
                => ::core::result::Result<Vec<$crate::JobRecord>, $crate::adapter::Refusal>;
            delete_chains(within: Option<&mut Self::Connection>, delete: &$crate::adapter::DeleteChains), delete.chains.len()
                => ::core::result::Result<Vec<$crate::adapter::StoppedChain>, $crate::adapter::Refusal>;
            get_jobs(within: Option<&mut Self::Connection>, jobs: &[$crate::JobId]), jobs.len()
                => Vec<$crate::JobRecord>;
            get_chains(within: Option<&mut Self::Connection>, chains: &[$crate::ChainId]), chains.len()
                => Vec<$crate::ChainRecord>;
            list_jobs(within: Option<&mut Self::Connection>, query: &$crate::adapter::JobQuery), 1
                => Vec<$crate::JobRecord>;
            list_chains(within: Option<&mut Self::Connection>, query: &$crate::adapter::ChainQuery), 1
                => Vec<$crate::ChainRecord>;
            list_blockers(within: Option<&mut Self::Connection>, job: $crate::JobId), 1 => Vec<$crate::ChainRecord>;
            list_pauses(within: Option<&mut Self::Connection>), 1 => $crate::adapter::Pauses;
            put_pause(within: Option<&mut Self::Connection>, pause: &$crate::Pause), 1 => ();
            delete_pause(within: Option<&mut Self::Connection>, type_name: &$crate::TypeName), 1 => bool;
            watermark(), 1 => $crate::Timestamp;
            maintain(maintain: &$crate::adapter::Maintain), 1 => $crate::adapter::Maintained;
            sample_queues(sample: &$crate::adapter::SampleQueues), sample.types.len()
                => Vec<$crate::adapter::QueueSample>;
        }
    };
}

/// One function per row, unless its verb is listed.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward_rows {
    ($self:ident $inner:tt $via:tt $except:tt
        $($verb:ident($($argument:ident: $type:ty),*), $items:expr => $answer:ty;)*
    ) => {$(
        $crate::__unless_listed! { $verb $except {
            async fn $verb(&$self, $($argument: $type),*) -> ::core::result::Result<$answer, $crate::StateError> {
                $crate::__forward_call!($self $inner $via $verb ($($argument),*) $items)
            }
        } }
    )*};
}

#[doc(hidden)]
#[macro_export]
macro_rules! __forward_call {
    ($self:ident $inner:tt [] $verb:ident ($($argument:ident),*) $items:expr) => {
        $crate::__inner!($inner).$verb($($argument),*).await
    };
    ($self:ident $inner:tt [$call:ident] $verb:ident ($($argument:ident),*) $items:expr) => {{
        let items = $items;
        $self.$call(stringify!($verb), items, $crate::__inner!($inner).$verb($($argument),*)).await
    }};
}

#[doc(hidden)]
#[macro_export]
macro_rules! __inner {
    ([$inner:expr]) => {
        $inner
    };
}

/// The item, unless its verb is among those that the wrapper implements itself.
#[doc(hidden)]
#[macro_export]
macro_rules! __unless_listed {
    ($verb:ident [] { $($item:tt)* }) => {
        $($item)*
    };
    (begin [begin $($rest:ident)*] $item:tt) => {};
    (commit [commit $($rest:ident)*] $item:tt) => {};
    (rollback [rollback $($rest:ident)*] $item:tt) => {};
    (savepoint [savepoint $($rest:ident)*] $item:tt) => {};
    (release_savepoint [release_savepoint $($rest:ident)*] $item:tt) => {};
    (rollback_to_savepoint [rollback_to_savepoint $($rest:ident)*] $item:tt) => {};
    (catch_up [catch_up $($rest:ident)*] $item:tt) => {};
    (shield [shield $($rest:ident)*] $item:tt) => {};
    (unshield [unshield $($rest:ident)*] $item:tt) => {};
    (create_chains [create_chains $($rest:ident)*] $item:tt) => {};
    (claim_jobs [claim_jobs $($rest:ident)*] $item:tt) => {};
    (claimed_jobs [claimed_jobs $($rest:ident)*] $item:tt) => {};
    (renew_leases [renew_leases $($rest:ident)*] $item:tt) => {};
    (settle_jobs [settle_jobs $($rest:ident)*] $item:tt) => {};
    (settle_in [settle_in $($rest:ident)*] $item:tt) => {};
    (reap_leases [reap_leases $($rest:ident)*] $item:tt) => {};
    (hold_lease [hold_lease $($rest:ident)*] $item:tt) => {};
    (lock_chain [lock_chain $($rest:ident)*] $item:tt) => {};
    (trigger_jobs [trigger_jobs $($rest:ident)*] $item:tt) => {};
    (cancel_chains [cancel_chains $($rest:ident)*] $item:tt) => {};
    (retry_chains [retry_chains $($rest:ident)*] $item:tt) => {};
    (delete_chains [delete_chains $($rest:ident)*] $item:tt) => {};
    (get_jobs [get_jobs $($rest:ident)*] $item:tt) => {};
    (get_chains [get_chains $($rest:ident)*] $item:tt) => {};
    (list_jobs [list_jobs $($rest:ident)*] $item:tt) => {};
    (list_chains [list_chains $($rest:ident)*] $item:tt) => {};
    (list_blockers [list_blockers $($rest:ident)*] $item:tt) => {};
    (list_pauses [list_pauses $($rest:ident)*] $item:tt) => {};
    (put_pause [put_pause $($rest:ident)*] $item:tt) => {};
    (delete_pause [delete_pause $($rest:ident)*] $item:tt) => {};
    (watermark [watermark $($rest:ident)*] $item:tt) => {};
    (maintain [maintain $($rest:ident)*] $item:tt) => {};
    (sample_queues [sample_queues $($rest:ident)*] $item:tt) => {};
    (has_ended [has_ended $($rest:ident)*] $item:tt) => {};
    (undo_shielded [undo_shielded $($rest:ident)*] $item:tt) => {};
    (owner_died [owner_died $($rest:ident)*] $item:tt) => {};
    ($verb:ident [$listed:ident $($rest:ident)*] $item:tt) => {
        $crate::__unless_listed! { $verb [$($rest)*] $item }
    };
}

#[cfg(test)]
mod tests {
    /// The names of the functions of the trait, which stand one level deep in its source.
    fn verbs(source: &str) -> Vec<&str> {
        let trait_body = source.split("pub trait StateAdapter").nth(1).unwrap();
        let lines = trait_body.lines().filter_map(|line| line.strip_prefix("    fn "));
        lines.filter_map(|line| line.split('(').next()).collect()
    }

    #[test]
    fn every_verb_is_passed_on_and_can_be_left_out() {
        let verbs = verbs(include_str!("state/mod.rs"));
        assert!(verbs.len() > 30 && verbs.contains(&"begin"), "{verbs:?}");
        let source = include_str!("forward.rs");
        for verb in verbs {
            let row = source.contains(&format!("\n            {verb}("));
            let function = source.contains(&format!("fn {verb}(&$self"));
            assert!(row || function, "`forward_state!` does not pass `{verb}` on");
            let skip = format!("({verb} [{verb} ");
            assert!(source.contains(&skip), "`forward_state!` cannot leave `{verb}` out");
        }
    }
}
