//! When notices go out: the committed work is there when they arrive.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use queuert::adapter::{BoxFuture, Notice, NotifyAdapter, StateAdapter, Subscription, Topic};
use queuert::{Client, JobStatus, NotifyError};

use super::jobs::{Greet, greet};
use crate::behaviour::PairFixture;

/// Looks at the store whenever something is announced, as a worker that is woken would.
struct Curious<S: StateAdapter> {
    client: OnceLock<Client<S>>,
    found: Mutex<Vec<Vec<JobStatus>>>,
}

impl<S: StateAdapter> Curious<S> {
    async fn watch(state: S) -> (Arc<Self>, Client<S>) {
        let curious = Arc::new(Self {
            client: OnceLock::new(),
            found: Mutex::default(),
        });
        let client = Client::builder(state).notify(Arc::clone(&curious)).build();
        let known = curious.client.set(client.clone());
        assert!(known.is_ok(), "it is set once");
        (curious, client)
    }

    /// The statuses of the chains, oldest first, at each announcement since the last look.
    fn found(&self) -> Vec<Vec<JobStatus>> {
        std::mem::take(&mut self.found.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<S: StateAdapter> NotifyAdapter for Curious<S> {
    fn announce<'a>(&'a self, _: &'a [Notice]) -> BoxFuture<'a, Result<(), NotifyError>> {
        Box::pin(async {
            let client = self.client.get().expect("the client is known");
            let chains = client.list_chains().oldest_first().await.expect("they can be listed");
            let statuses = chains.items.iter().map(|chain| chain.status).collect();
            self.found.lock().unwrap_or_else(PoisonError::into_inner).push(statuses);
            Ok(())
        })
    }

    fn subscribe(&self, _: Topic) -> BoxFuture<'_, Result<Subscription, NotifyError>> {
        Box::pin(async { Err(NotifyError::new("nobody listens")) })
    }
}

/// A transaction announces once, when everything that it did is there for who looks. (9.5 H26)
pub async fn a_transaction_announces_what_is_there<F: PairFixture>(fixture: F) {
    let (curious, client) = Curious::watch(fixture.state().await).await;
    let mut tx = client.begin().await.expect("a transaction opens");
    let started = client
        .start_many(["a", "b"].map(greet))
        .within(&mut tx)
        .await
        .expect("they start");
    tx.commit().await.expect("it commits");
    assert_eq!(curious.found(), [[JobStatus::Pending, JobStatus::Pending]]);
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<Greet>(&started[0])
        .within(&mut tx)
        .await
        .expect("it can be opened");
    open.finish("done".to_owned()).await.expect("it finishes");
    client
        .cancel(&started[1])
        .within(&mut tx)
        .await
        .expect("it can be cancelled");
    tx.commit().await.expect("it commits");
    assert_eq!(curious.found(), [[JobStatus::Completed, JobStatus::Cancelled]]);
}

/// A request that runs by itself announces when its work is there for who looks.
pub async fn a_request_announces_what_is_there<F: PairFixture>(fixture: F) {
    let (curious, client) = Curious::watch(fixture.state().await).await;
    let started = client.start(greet("a")).await.expect("it starts");
    assert_eq!(curious.found(), [[JobStatus::Pending]]);
    client.cancel(&started).await.expect("it can be cancelled");
    assert_eq!(curious.found(), [[JobStatus::Cancelled]]);
    client.retry(&started).await.expect("it can be retried");
    assert_eq!(curious.found(), [[JobStatus::Pending]]);
    client.delete(&started).await.expect("it can be deleted");
    assert_eq!(curious.found(), [[] as [JobStatus; 0]]);
}
