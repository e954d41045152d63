//! What is done to chains from outside: approvals, corrections, cancels, retries, deletes. Every deed is noted before it
//! is tried, and again when it is known to be done: in between, both are right.

use std::time::Duration;

use queuert::{ChainId, Error};

use crate::Result;
use crate::enqueue::{Enqueuer, New};
use crate::jobs::{Approval, Contested, Doomed, Failing, LIVES, from_outside};
use crate::store::Store;

/// What an operator may be told: the chain is not as they thought, because others act on it too.
fn too_late(result: Result<(), Error>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(Error::ChainEnded { .. } | Error::NotRetryable { .. } | Error::ChainNotFound(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Chains that nobody but a person ends. Some are forgotten, and stay open.
pub(crate) async fn approve<S: Store>(enqueuer: &mut Enqueuer<S>, n: u64) -> Result<()> {
    let mut tx = enqueuer.client.begin().await?;
    let start = enqueuer.client.start(Approval { n }).delay(Duration::from_secs(86_400));
    let chain = start.within(&mut tx).await?;
    enqueuer.commit(tx, &[New::from(&chain)]).await?;
    if n.is_multiple_of(10) {
        return Ok(());
    }
    enqueuer.log.note(format!("approving {}", chain.id()))?;
    let mut tx = enqueuer.client.begin().await?;
    let open = enqueuer.client.open::<Approval>(&chain).within(&mut tx).await?;
    open.finish(from_outside(n)).await?;
    tx.commit().await?;
    enqueuer.log.note(format!("approved {}", chain.id()))?;
    Ok(())
}

/// Chains that a worker runs and that are completed from outside at the same time: one of them wins.
pub(crate) async fn contest<S: Store>(enqueuer: &mut Enqueuer<S>, n: u64) -> Result<()> {
    let mut tx = enqueuer.client.begin().await?;
    let chain = enqueuer.client.start(Contested { n }).within(&mut tx).await?;
    enqueuer.commit(tx, &[New::from(&chain)]).await?;
    tokio::time::sleep(Duration::from_millis(enqueuer.random.u64(0..30))).await;
    enqueuer.log.note(format!("contesting {}", chain.id()))?;
    let mut tx = enqueuer.client.begin().await?;
    let finished = match enqueuer.client.open::<Contested>(&chain).within(&mut tx).await {
        Ok(open) => open.finish(from_outside(n)).await,
        Err(error) => Err(error),
    };
    match too_late(finished)? {
        true => {
            tx.commit().await?;
            enqueuer.log.note(format!("contested {}", chain.id()))?;
        }
        false => tx.rollback().await?,
    }
    Ok(())
}

/// Chains that are cancelled, retried, deleted, or die by themselves.
pub(crate) async fn doom<S: Store>(enqueuer: &mut Enqueuer<S>, n: u64) -> Result<()> {
    let mut tx = enqueuer.client.begin().await?;
    let failing = enqueuer.client.start(Failing { n }).max_attempts(LIVES);
    let failing = failing.within(&mut tx).await?;
    let delay = Duration::from_millis(enqueuer.random.u64(0..20));
    let first = enqueuer.client.start(Doomed { n }).delay(delay).within(&mut tx).await?;
    let second = enqueuer
        .client
        .start(Doomed { n: n + 1 })
        .delay(delay)
        .within(&mut tx)
        .await?;
    let chains = [New::from(&failing), New::from(&first), New::from(&second)];
    enqueuer.commit(tx, &chains).await?;
    tokio::time::sleep(Duration::from_millis(enqueuer.random.u64(0..40))).await;
    cancel(enqueuer, first.id()).await?;
    if n.is_multiple_of(2) {
        retry(enqueuer, first.id()).await?;
    }
    delete(enqueuer, second.id()).await?;
    if n.is_multiple_of(5) {
        retry(enqueuer, failing.id()).await?;
    }
    Ok(())
}

async fn cancel<S: Store>(enqueuer: &mut Enqueuer<S>, chain: ChainId) -> Result<()> {
    enqueuer.log.note(format!("cancelling {chain}"))?;
    if too_late(enqueuer.client.cancel(chain).await.map(drop))? {
        enqueuer.log.note(format!("cancelled {chain}"))?;
    }
    Ok(())
}

async fn retry<S: Store>(enqueuer: &mut Enqueuer<S>, chain: ChainId) -> Result<()> {
    enqueuer.log.note(format!("retrying {chain}"))?;
    if too_late(enqueuer.client.retry(chain).await.map(drop))? {
        enqueuer.log.note(format!("retried {chain}"))?;
    }
    Ok(())
}

async fn delete<S: Store>(enqueuer: &mut Enqueuer<S>, chain: ChainId) -> Result<()> {
    enqueuer.log.note(format!("deleting {chain}"))?;
    enqueuer.client.delete(chain).await?;
    enqueuer.log.note(format!("deleted {chain}"))?;
    Ok(())
}
