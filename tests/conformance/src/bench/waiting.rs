//! Watching something that should wait, without hoping that a sleep was long enough: the negative side is bounded by
//! the fixture's patience, the positive side is awaited.

use std::future::Future;
use std::pin::Pin;

use super::{Bench, Open};
use crate::fixture::StateFixture;

impl<F: StateFixture> Bench<F> {
    /// What comes of it within the fixture's patience; `None` while it waits.
    pub(crate) async fn watch<T>(&self, future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        tokio::time::timeout(self.fixture().patience(), future).await.ok()
    }

    /// It must not go on yet.
    pub(crate) async fn assert_waits<T>(&self, future: Pin<&mut impl Future<Output = T>>) {
        assert!(
            self.watch(future).await.is_none(),
            "it did not wait for the transaction that holds the lock"
        );
    }

    /// Lets `second` run into what `first` holds, ends `first`, and returns what came of `second`. Whether `second`
    /// waits is the store's affair here: the case asserts on the result.
    pub(crate) async fn overlap<T>(
        &self,
        first: Open<F>,
        end: End,
        mut second: Pin<&mut impl Future<Output = T>>,
    ) -> T {
        let early = self.watch(second.as_mut()).await;
        match end {
            End::Commit => first.commit().await,
            End::Rollback => first.rollback().await,
        }
        match early {
            Some(result) => result,
            None => second.await,
        }
    }

    /// Like [`overlap`](Self::overlap), for something that has to wait for `first`.
    pub(crate) async fn overlap_waiting<T>(
        &self,
        first: Open<F>,
        end: End,
        mut second: Pin<&mut impl Future<Output = T>>,
    ) -> T {
        self.assert_waits(second.as_mut()).await;
        match end {
            End::Commit => first.commit().await,
            End::Rollback => first.rollback().await,
        }
        second.await
    }
}

/// How a case ends the transaction that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Commit,
    Rollback,
}
