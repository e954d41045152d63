//! Whether a transaction can still be used: the one place that knows whether a request in it is unfinished, whether the
//! store failed in the middle of one, and whether the transaction has ended behind the caller's back.
//!
//! A request that writes marks the transaction before its first statement and takes the mark away when it is complete. So
//! a future that is dropped in between leaves the mark, and the transaction can only be rolled back: entirely, or to a
//! savepoint that was set before the request.

use crate::adapter::StateAdapter;
use crate::effects::{Effects, Mark};
use crate::error::{Error, StateErrorKind, TransactionFault};

/// What is wrong with a transaction, if anything is, and how deep its savepoints are nested.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    /// How many savepoints are open.
    depth: u32,
    fault: Option<Fault>,
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    what: TransactionFault,
    /// How many savepoints were open then. Rolling back to one of them undoes the fault; zero if nothing does.
    depth: u32,
}

impl Standing {
    /// How many savepoints are open.
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// Refuses to go on with a transaction that can only be rolled back.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.fault {
            None => Ok(()),
            Some(fault) => Err(Error::TransactionUnusable(fault.what)),
        }
    }

    /// The transaction has ended, and nothing brings it back.
    pub(crate) fn ended(&mut self) -> Error {
        let what = TransactionFault::Ended;
        self.fault = Some(Fault { what, depth: 0 });
        Error::TransactionUnusable(what)
    }

    /// A change of the transaction begins. Until it is [`complete`](Self::complete), the transaction cannot be used.
    pub(crate) fn begin_change(&mut self) {
        self.set(TransactionFault::Interrupted);
    }

    /// The change has happened, or has been undone.
    pub(crate) fn complete(&mut self) {
        // Unless the transaction has ended meanwhile: that stays.
        if self.fault.is_some_and(|fault| fault.what != TransactionFault::Ended) {
            self.fault = None;
        }
    }

    /// The change has come to this. An error of the store may have left half of it; a refusal has changed nothing.
    pub(crate) fn end_change<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        match &result {
            Err(Error::State(error)) if error.kind() == StateErrorKind::TransactionEnded => {
                return Err(self.ended());
            }
            Err(Error::State(_)) => self.set(TransactionFault::Failed),
            _ => self.complete(),
        }
        result
    }

    fn set(&mut self, what: TransactionFault) {
        if self.fault.is_none_or(|fault| fault.what != TransactionFault::Ended) {
            let depth = self.depth;
            self.fault = Some(Fault { what, depth });
        }
    }

    /// A savepoint has been set.
    pub(crate) fn savepoint_set(&mut self) {
        self.complete();
        self.depth += 1;
    }

    /// The savepoint at this depth, and what was inside of it, is gone without having been rolled back.
    pub(crate) fn savepoint_left(&mut self, depth: u32) {
        self.depth = depth - 1;
        if let Some(fault) = &mut self.fault {
            fault.depth = fault.depth.min(self.depth);
        }
    }

    /// Everything since the savepoint at this depth was undone.
    pub(crate) fn rolled_back_to(&mut self, depth: u32) {
        if self.fault.is_some_and(|fault| fault.depth >= depth) {
            self.fault = None;
        }
        self.depth = depth - 1;
    }
}

/// The parts of a transaction that a request needs.
#[expect(missing_debug_implementations, reason = "nobody outside this crate can name it")]
pub struct Scope<'t, S: StateAdapter> {
    pub(crate) connection: &'t mut S::Connection,
    pub(crate) effects: &'t mut Effects,
    pub(crate) standing: &'t mut Standing,
    /// Whether the caller commits without this library, which could not refuse it then.
    pub(crate) foreign: bool,
}

impl<'t, S: StateAdapter> Scope<'t, S> {
    /// Begins a request that writes. It has happened when [`Change::end`] returns; dropped before, it counts as
    /// unfinished, and where the caller commits without this library it is undone.
    pub(crate) async fn change<'s>(&'s mut self, state: &'s S) -> Result<Change<'s, 't, S>, Error> {
        self.standing.check()?;
        if self.foreign {
            let shielded = state.shield(self.connection).await.map_err(Error::State);
            if let Err(Error::State(error)) = &shielded
                && error.kind() == StateErrorKind::TransactionEnded
            {
                return Err(self.standing.ended());
            }
            shielded?;
        } else {
            self.standing.begin_change();
        }
        let mark = self.effects.mark();
        let scope = self;
        Ok(Change {
            state,
            scope,
            mark,
            ended: false,
        })
    }
}

/// A request that writes, under way in a transaction.
pub(crate) struct Change<'s, 't, S: StateAdapter> {
    state: &'s S,
    scope: &'s mut Scope<'t, S>,
    mark: Mark,
    ended: bool,
}

impl<S: StateAdapter> Change<'_, '_, S> {
    /// Where it writes, and what it will have caused.
    pub(crate) fn parts(&mut self) -> (&mut S::Connection, &mut Effects) {
        (self.scope.connection, self.scope.effects)
    }

    /// Ends the request with its result.
    pub(crate) async fn end<T>(mut self, result: Result<T, Error>) -> Result<T, Error> {
        if !self.scope.foreign {
            self.ended = true;
            return self.scope.standing.end_change(result);
        }
        if matches!(result, Err(Error::State(_))) {
            // Dropped with the change: what it has left is undone.
            return result;
        }
        self.state.unshield(self.scope.connection).await?;
        self.ended = true;
        result
    }
}

impl<S: StateAdapter> Drop for Change<'_, '_, S> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        self.scope.effects.roll_back_to(self.mark);
        if self.scope.foreign {
            self.state.undo_shielded(self.scope.connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::StateError;

    fn fault(standing: &Standing) -> Option<TransactionFault> {
        match standing.check() {
            Err(Error::TransactionUnusable(fault)) => Some(fault),
            _ => None,
        }
    }

    fn failed(kind: StateErrorKind) -> Result<(), Error> {
        Err(Error::State(StateError::new(kind, "failed")))
    }

    #[test]
    fn an_unfinished_change_makes_a_transaction_unusable() {
        let mut standing = Standing::default();
        standing.begin_change();
        assert_eq!(fault(&standing), Some(TransactionFault::Interrupted));
        assert!(standing.end_change(Ok(())).is_ok());
        assert_eq!(fault(&standing), None);
    }

    #[test]
    fn a_refusal_leaves_it_usable_and_a_failure_does_not() {
        let mut standing = Standing::default();
        standing.begin_change();
        let refused: Result<(), Error> = Err(Error::NoProcessor);
        assert!(standing.end_change(refused).is_err());
        assert_eq!(fault(&standing), None);
        standing.begin_change();
        assert!(standing.end_change(failed(StateErrorKind::Transient)).is_err());
        assert_eq!(fault(&standing), Some(TransactionFault::Failed));
    }

    #[test]
    fn a_rollback_to_a_savepoint_undoes_what_came_after_it() {
        let mut standing = Standing::default();
        standing.savepoint_set();
        standing.savepoint_set();
        standing.begin_change();
        standing.rolled_back_to(2);
        assert_eq!((fault(&standing), standing.depth()), (None, 1));
        standing.begin_change();
        standing.rolled_back_to(1);
        assert_eq!((fault(&standing), standing.depth()), (None, 0));
    }

    #[test]
    fn a_savepoint_that_was_set_later_does_not_undo_a_fault() {
        let mut standing = Standing::default();
        standing.savepoint_set();
        standing.savepoint_set();
        standing.begin_change();
        // The inner one is left, as its future was dropped: what it did belongs to the outer one now.
        standing.savepoint_left(2);
        assert_eq!(fault(&standing), Some(TransactionFault::Interrupted));
        standing.rolled_back_to(1);
        assert_eq!(fault(&standing), None);
        standing.begin_change();
        standing.savepoint_set();
        assert_eq!(fault(&standing), None, "the change was the savepoint");
    }

    #[test]
    fn nothing_brings_back_a_transaction_that_has_ended() {
        let mut standing = Standing::default();
        standing.savepoint_set();
        standing.begin_change();
        let ended = standing.end_change(failed(StateErrorKind::TransactionEnded));
        assert!(matches!(
            ended,
            Err(Error::TransactionUnusable(TransactionFault::Ended))
        ));
        standing.rolled_back_to(1);
        standing.complete();
        assert_eq!(fault(&standing), Some(TransactionFault::Ended));
    }
}
