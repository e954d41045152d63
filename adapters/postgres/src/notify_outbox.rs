//! What this process has to announce, and the task that does so.
//!
//! The first announcement goes at once; those that come while it is on its way, or within a few milliseconds, share the
//! next one. So a busy process sends some hundreds a second at most, whatever it commits, and nobody waits for them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use queuert::NotifyError;
use sqlx::{PgConnection, PgPool};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::lanes::Lanes;
use crate::notify_backoff::Backoff;
use crate::notify_payload::{Batch, NOBODY};

/// Announcements within this time of the last one share the next one.
const GAP: Duration = Duration::from_millis(4);

/// How long an announcement may take, a connection of the pool included.
const DEADLINE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Outbox {
    /// One at a time, and the next when the last one's connection can be had again: never a second one.
    lane: Lanes,
    channel: String,
    sender: u64,
    pending: Mutex<Pending>,
    /// How many announcements went out; for whoever waits until all are out.
    sent: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Pending {
    batch: Batch,
    /// Whether the task that sends is there.
    busy: bool,
    /// Why an announcement failed that nobody waited for; told once.
    failure: Option<Arc<str>>,
    number: u64,
}

impl Outbox {
    pub(crate) fn new(pool: PgPool, channel: String, sender: u64) -> Self {
        let pending = Pending {
            // Numbers order the fleet, so processes should not all count from the same one.
            number: fastrand::u64(..),
            ..Pending::default()
        };
        Self {
            lane: Lanes::new(pool, 1),
            channel,
            sender,
            pending: Mutex::new(pending),
            sent: watch::channel(0).0,
        }
    }

    pub(crate) const fn sender(&self) -> u64 {
        self.sender
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds something to announce. Returns when it is out, if nothing was under way, and at once otherwise.
    pub(crate) async fn post(self: &Arc<Self>, add: impl FnOnce(&mut Batch)) -> Result<(), NotifyError> {
        let first = self.put(add);
        let Some(answer) = first else {
            return self.take_failure();
        };
        match answer.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(NotifyError::new(&*error)),
            Err(_) => Err(NotifyError::new("the runtime that sent an announcement has ended")),
        }
    }

    /// The same, without waiting for anything. Failures are told to whoever announces next.
    pub(crate) fn post_quietly(self: &Arc<Self>, add: impl FnOnce(&mut Batch)) {
        drop(self.put(add));
    }

    /// Why an earlier announcement failed, if nobody was told.
    pub(crate) fn take_failure(&self) -> Result<(), NotifyError> {
        let failure = self.lock().failure.take();
        failure.map_or(Ok(()), |error| Err(NotifyError::new(&*error)))
    }

    /// Adds something and starts the task if it is not there: then there is an answer.
    fn put(self: &Arc<Self>, add: impl FnOnce(&mut Batch)) -> Option<oneshot::Receiver<Result<(), Arc<str>>>> {
        let mut pending = self.lock();
        add(&mut pending.batch);
        if pending.busy || pending.batch.is_empty() {
            return None;
        }
        pending.busy = true;
        drop(pending);
        let (reply, answer) = oneshot::channel();
        let running = Running {
            outbox: Arc::downgrade(self),
            done: false,
        };
        tokio::spawn(run(running, reply));
        Some(answer)
    }

    /// Waits until all that was announced so far is out.
    pub(crate) async fn flush(&self) -> Result<(), NotifyError> {
        let mut sent = self.sent.subscribe();
        loop {
            sent.borrow_and_update();
            {
                let mut pending = self.lock();
                if let Some(error) = pending.failure.take() {
                    return Err(NotifyError::new(&*error));
                }
                if !pending.busy && pending.batch.is_empty() {
                    return Ok(());
                }
            }
            if sent.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    /// The server's session that an announcement would have gone through.
    pub(crate) async fn session(&self) -> Option<i32> {
        let session = sqlx::query_scalar("SELECT pg_backend_pid()").persistent(false);
        session.fetch_one(&mut *self.lane.enter().await.ok()?).await.ok()
    }

    /// Announces inside the caller's transaction: told at its commit, to this process too.
    pub(crate) async fn post_within(&self, connection: &mut PgConnection, batch: &Batch) -> Result<(), NotifyError> {
        // Nobody knows yet whether it commits, so nobody here has been told: it is sent in nobody's name.
        let payloads = batch.encode(NOBODY, || fastrand::u64(..));
        if payloads.is_empty() {
            return Ok(());
        }
        notify(&self.channel, payloads)
            .execute(connection)
            .await
            .map_err(|error| {
                NotifyError::new("the announcement inside the transaction failed; roll it back").with_source(error)
            })?;
        Ok(())
    }

    async fn send(&self, batch: &Batch) -> Result<(), Failure> {
        let payloads = batch.encode(self.sender, || {
            let mut pending = self.lock();
            pending.number = pending.number.wrapping_add(1);
            pending.number
        });
        if payloads.is_empty() {
            return Ok(());
        }
        let sending = async {
            let mut connection = self.lane.enter().await?;
            notify(&self.channel, payloads).execute(&mut *connection).await?;
            connection.leave();
            Ok(())
        };
        match tokio::time::timeout(DEADLINE, sending).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Failure {
                may_pass: may_pass(&error),
                error: format!("an announcement failed: {error}").into(),
            }),
            Err(_) => Err(Failure {
                may_pass: true,
                error: format!("an announcement did not go out within {DEADLINE:?}").into(),
            }),
        }
    }
}

/// One statement for all payloads, and none that a pooler in transaction mode would have to remember.
fn notify(
    channel: &str,
    payloads: Vec<String>,
) -> sqlx::query::Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments> {
    sqlx::query("SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload")
        .persistent(false)
        .bind(channel.to_owned())
        .bind(payloads)
}

struct Failure {
    error: Arc<str>,
    /// Whether trying again may help.
    may_pass: bool,
}

/// A payload that the server refuses would be refused for ever, and with it all that waits behind it.
fn may_pass(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::PoolClosed => false,
        sqlx::Error::Database(error) => error.code().is_some_and(|code| {
            // Connections, resources, operators at work, and a server that is only a copy for now.
            ["08", "53", "57", "25", "40"]
                .iter()
                .any(|class| code.starts_with(class))
        }),
        _ => true,
    }
}

/// The task that sends; when its runtime ends before it, the next announcement starts another one.
struct Running {
    outbox: Weak<Outbox>,
    done: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(outbox) = self.outbox.upgrade() {
            if !self.done {
                outbox.lock().busy = false;
            }
            outbox.sent.send_modify(|sent| *sent += 1);
        }
    }
}

async fn run(mut running: Running, reply: oneshot::Sender<Result<(), Arc<str>>>) {
    let mut reply = Some(reply);
    let mut backoff = Backoff::default();
    // The adapter may be gone at the next turn; what it wanted to say is then said by nobody, as when a process ends.
    while let Some(outbox) = running.outbox.upgrade() {
        let begun = Instant::now();
        let batch = {
            let mut pending = outbox.lock();
            if pending.batch.is_empty() {
                // Under the lock: whoever adds something from now on starts another task.
                pending.busy = false;
                running.done = true;
                return;
            }
            std::mem::take(&mut pending.batch)
        };
        let pause = match outbox.send(&batch).await {
            Ok(()) => {
                backoff.reset();
                if let Some(reply) = reply.take() {
                    // Nobody may wait any more.
                    let _ = reply.send(Ok(()));
                }
                GAP.saturating_sub(begun.elapsed())
            }
            Err(failure) => {
                let told = reply
                    .take()
                    .is_some_and(|reply| reply.send(Err(Arc::clone(&failure.error))).is_ok());
                let mut pending = outbox.lock();
                if !told {
                    pending.failure = Some(failure.error);
                }
                if failure.may_pass {
                    pending.batch.merge(batch);
                }
                backoff.next_pause()
            }
        };
        outbox.sent.send_modify(|sent| *sent += 1);
        drop(outbox);
        tokio::time::sleep(pause).await;
    }
}
