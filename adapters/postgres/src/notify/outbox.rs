//! What this process has to announce, and the tasks that send it: one on each runtime that announces.
//!
//! The first announcement goes at once; announcements that come while it is under way, or within a few milliseconds, share the
//! next one. So a busy process sends some hundreds a second at most, whatever it commits, and no worker waits for them.
//!
//! A runtime may stand still in the middle of a send, with its connection. So each runtime sends what was announced on it, with
//! a permit of its own for a connection. Another runtime sends after a moment what it has not begun to send.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use queuert::__task::{Lock, LockGuard, spawn};
use queuert::NotifyError;
use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use tokio::runtime::{Handle, Id};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::connection::budget::Budget;
use crate::connection::retry_pauses;
use crate::notify::look::{Look, Looked};
use crate::notify::payload::{Batch, NOBODY, Ticket};
use crate::statements::{Filling, escape, fill, plain, text};

/// Announcements within this time of the last one share the next one.
const GAP: Duration = Duration::from_millis(4);

/// After how long a runtime sends what another one has not begun to send.
const ABANDONED: Duration = Duration::from_secs(1);

/// How long an announcement may take, a connection of the pool included.
const DEADLINE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Outbox {
    /// For announcements. One connection at a time on each runtime.
    budget: Budget,
    /// For looks at the store, which may take long and must not hold up announcements.
    looks: Budget,
    channel: String,
    sender: u64,
    pending: Lock<Pending>,
    /// How many announcements went out, for callers that wait until all are out.
    sent: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Pending {
    by_runtime: HashMap<Id, Queue>,
    /// Why an announcement failed for which no caller waited. Reported once.
    failure: Option<Arc<str>>,
    number: u64,
}

/// What was announced on a runtime, or could not be sent there.
#[derive(Debug)]
struct Queue {
    batch: Batch,
    /// Since when there is something in it.
    since: Instant,
    /// Whether the runtime has a task that sends.
    has_task: bool,
}

impl Pending {
    fn queue(&mut self, runtime: Id) -> &mut Queue {
        self.by_runtime.entry(runtime).or_insert_with(|| Queue {
            batch: Batch::default(),
            since: Instant::now(),
            has_task: false,
        })
    }

    fn add(&mut self, runtime: Id, add: impl FnOnce(&mut Batch)) {
        let queue = self.queue(runtime);
        if queue.batch.is_empty() {
            queue.since = Instant::now();
        }
        add(&mut queue.batch);
    }

    /// What this runtime is to send: its own, and what others have left behind.
    fn take(&mut self, runtime: Id) -> Batch {
        let own = self.by_runtime.get_mut(&runtime);
        let mut batch = own.map(|queue| std::mem::take(&mut queue.batch)).unwrap_or_default();
        for queue in self.by_runtime.values_mut() {
            if queue.is_left_behind() {
                batch.merge(std::mem::take(&mut queue.batch));
            }
        }
        self.by_runtime
            .retain(|_, queue| queue.has_task || !queue.batch.is_empty());
        batch
    }

    fn has_something_for(&self, runtime: Id) -> bool {
        let queues = &mut self.by_runtime.iter();
        queues.any(|(id, queue)| !queue.batch.is_empty() && (*id == runtime || queue.is_left_behind()))
    }

    /// Moves everything that no runtime has begun to send to this runtime.
    fn take_over(&mut self, runtime: Id) {
        let mut others = Batch::default();
        for (id, queue) in &mut self.by_runtime {
            if *id != runtime {
                others.merge(std::mem::take(&mut queue.batch));
            }
        }
        self.add(runtime, |own| own.merge(others));
    }

    fn has_task(&self, runtime: Id) -> bool {
        self.by_runtime.get(&runtime).is_some_and(|queue| queue.has_task)
    }

    /// The task of a runtime has ended.
    fn end(&mut self, runtime: Id) {
        if let Some(queue) = self.by_runtime.get_mut(&runtime) {
            queue.has_task = false;
        }
        self.by_runtime
            .retain(|_, queue| queue.has_task || !queue.batch.is_empty());
    }
}

impl Queue {
    fn is_left_behind(&self) -> bool {
        !self.batch.is_empty() && (!self.has_task || self.since.elapsed() >= ABANDONED)
    }
}

impl Outbox {
    /// A connection on which it announces.
    #[cfg(test)]
    pub(crate) async fn connection(&self) -> crate::connection::borrowed::Borrowed {
        self.budget.for_worker().await.unwrap()
    }

    /// `store` is the budget of the store's connections, if the store is at hand.
    pub(crate) fn new(pool: PgPool, store: Option<&Budget>, channel: String, sender: u64) -> Self {
        let pending = Pending {
            // Numbers order the fleet, so processes should not all count from the same one.
            number: fastrand::u64(..),
            ..Pending::default()
        };
        Self {
            looks: store.cloned().unwrap_or_else(|| Budget::single(pool.clone(), None)),
            budget: Budget::single(pool, store.and_then(|store| store.shared.kept.clone())),
            channel,
            sender,
            pending: Lock::new(pending),
            sent: watch::channel(0).0,
        }
    }

    pub(crate) const fn sender(&self) -> u64 {
        self.sender
    }

    fn lock(&self) -> LockGuard<'_, Pending> {
        self.pending.lock()
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
            Err(_) => Err(NotifyError::new(
                "the runtime that sent an announcement has ended; the jobs are found by polling, keep that runtime alive while others use \
                 the client",
            )),
        }
    }

    /// The same, without waiting for anything. The next announcement reports a failure.
    pub(crate) fn post_quietly(self: &Arc<Self>, add: impl FnOnce(&mut Batch)) {
        drop(self.put(add));
    }

    /// Why an earlier announcement failed, if that was not reported.
    pub(crate) fn take_failure(&self) -> Result<(), NotifyError> {
        let failure = self.lock().failure.take();
        failure.map_or(Ok(()), |error| Err(NotifyError::new(&*error)))
    }

    /// Adds something and starts the task of this runtime if it is not there: then there is an answer.
    fn put(self: &Arc<Self>, add: impl FnOnce(&mut Batch)) -> Option<oneshot::Receiver<Result<(), Arc<str>>>> {
        let runtime = Handle::current().id();
        let mut pending = self.lock();
        pending.add(runtime, add);
        if !pending.has_something_for(runtime) {
            // Nothing was added: an empty queue must not stay behind.
            pending
                .by_runtime
                .retain(|_, queue| queue.has_task || !queue.batch.is_empty());
            return None;
        }
        if std::mem::replace(&mut pending.queue(runtime).has_task, true) {
            return None;
        }
        drop(pending);
        let (reply, answer) = oneshot::channel();
        let running = Running {
            outbox: Arc::downgrade(self),
            runtime,
            done: false,
        };
        spawn(run(running, reply));
        Some(answer)
    }

    /// Waits until all that was announced so far is out, also what another runtime has not begun to send. What another
    /// runtime is sending is not waited for: that runtime may stand still.
    pub(crate) async fn flush(self: &Arc<Self>) -> Result<(), NotifyError> {
        self.lock().take_over(Handle::current().id());
        self.flush_own().await
    }

    /// The same of what was announced on this runtime, and of what others have left behind.
    pub(crate) async fn flush_own(self: &Arc<Self>) -> Result<(), NotifyError> {
        let runtime = Handle::current().id();
        let mut sent = self.sent.subscribe();
        loop {
            sent.borrow_and_update();
            drop(self.put(|_| {}));
            {
                let mut pending = self.lock();
                if let Some(error) = pending.failure.take() {
                    return Err(NotifyError::new(&*error));
                }
                if !pending.has_task(runtime) && !pending.has_something_for(runtime) {
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
        let session = sqlx::query_scalar(plain(text::SESSION)).persistent(false);
        session.fetch_one(&mut *self.budget.for_worker().await.ok()?).await.ok()
    }

    /// Announces inside the caller's transaction: delivered at its commit, to this process too.
    pub(crate) async fn post_within(&self, connection: &mut PgConnection, batch: &Batch) -> Result<(), NotifyError> {
        // The subscribers of this process have not been told, because the transaction may not commit: so the sender is nobody,
        // and this process does not ignore the notification as its own.
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

    /// Looks at the store for due jobs and dead processes, and has the server announce it if others are to know.
    /// `more` goes out with the announcement. `takes_long` has the server limit the time: a statement goes on when no caller
    /// waits for it any more.
    pub(crate) async fn look(
        &self,
        look: &Look,
        announces: bool,
        process: Option<i64>,
        more: &str,
        takes_long: bool,
    ) -> Result<Looked, sqlx::Error> {
        let ticket = Ticket {
            sender: self.sender,
            number: self.next_number(),
        };
        let channel = announces.then(|| self.channel.clone());
        let mut connection = self.looks.for_upkeep().await?;
        if takes_long {
            connection.begin(plain(text::BEGIN_LOOK)).await?;
        }
        let looked = look.run(&mut connection, channel, ticket, process, more).await?;
        connection.commit().await?;
        connection.release();
        Ok(looked)
    }

    fn next_number(&self) -> u64 {
        let mut pending = self.lock();
        pending.number = pending.number.wrapping_add(1);
        pending.number
    }

    async fn send(&self, batch: &Batch) -> Result<(), Failure> {
        let payloads = batch.encode(self.sender, || self.next_number());
        if payloads.is_empty() {
            return Ok(());
        }
        let sending = async {
            let mut connection = self.budget.for_worker().await?;
            let text = AssertSqlSafe(announcement(&self.channel, &payloads));
            sqlx::raw_sql(text).execute(&mut *connection).await?;
            connection.release();
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

/// One statement for all payloads inside the caller's transaction, and none that a pooler in transaction mode would have
/// to remember.
fn notify(
    channel: &str,
    payloads: Vec<String>,
) -> sqlx::query::Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments> {
    sqlx::query(plain(text::ANNOUNCE_WITHIN))
        .persistent(false)
        .bind(channel.to_owned())
        .bind(payloads)
}

/// The same by itself.
fn announcement(channel: &str, payloads: &[String]) -> String {
    let literal = |text: &str| format!("E'{}'", escape(text));
    let payloads: Vec<String> = payloads.iter().map(|payload| literal(payload)).collect();
    let filling = Filling::none()
        .with("channel", literal(channel))
        .with("payloads", payloads.join(", "));
    fill(text::ANNOUNCE, &filling)
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
    runtime: Id,
    done: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(outbox) = self.outbox.upgrade() {
            if !self.done {
                outbox.lock().end(self.runtime);
            }
            outbox.sent.send_modify(|sent| *sent += 1);
        }
    }
}

async fn run(mut running: Running, reply: oneshot::Sender<Result<(), Arc<str>>>) {
    let mut reply = Some(reply);
    let mut backoff = retry_pauses();
    // The adapter may be dropped meanwhile; its last announcements are then lost, as when a process ends.
    while let Some(outbox) = running.outbox.upgrade() {
        let begun = Instant::now();
        let batch = {
            let mut pending = outbox.lock();
            let batch = pending.take(running.runtime);
            if batch.is_empty() {
                // Under the lock: the next announcement starts another task.
                pending.end(running.runtime);
                running.done = true;
                return;
            }
            batch
        };
        let pause = match outbox.send(&batch).await {
            Ok(()) => {
                backoff.reset();
                if let Some(reply) = reply.take() {
                    // The caller may not wait any more.
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
                    pending.add(running.runtime, |waiting| waiting.merge(batch));
                }
                backoff.next_pause()
            }
        };
        outbox.sent.send_modify(|sent| *sent += 1);
        drop(outbox);
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use queuert::JobId;
    use queuert::adapter::Notice;
    use tokio::runtime::Builder;

    use super::*;

    fn runtime() -> Id {
        let runtime = Builder::new_current_thread().build().expect("a runtime can be built");
        runtime.handle().id()
    }

    fn lost(batch: &mut Batch) {
        let job = JobId::from_uuid(uuid::Uuid::from_u128(7));
        batch.notice(&Notice::LeaseLost(job));
    }

    #[test]
    fn a_runtime_sends_its_own_and_what_others_have_left_behind() {
        let (own, other) = (runtime(), runtime());
        let mut pending = Pending::default();
        pending.queue(own).has_task = true;
        pending.queue(other).has_task = true;
        pending.add(other, lost);
        assert!(!pending.has_something_for(own), "the other one is about to send it");
        assert!(pending.take(own).is_empty());

        pending.queue(other).since -= ABANDONED;
        assert!(pending.has_something_for(own), "the other one stands still");
        assert!(!pending.take(own).is_empty());
        assert!(pending.take(other).is_empty());

        pending.add(other, lost);
        pending.end(other);
        assert!(!pending.take(own).is_empty(), "the other one has ended");

        pending.add(other, lost);
        pending.queue(other).has_task = true;
        pending.take_over(own);
        assert!(!pending.take(own).is_empty(), "everything is to go out now");
        assert_eq!(pending.by_runtime.len(), 2);
        pending.end(own);
        pending.end(other);
        assert!(pending.by_runtime.is_empty());
    }

    #[tokio::test]
    async fn nothing_to_send_leaves_nothing_behind() {
        let pool = sqlx::postgres::PgPoolOptions::new().connect_lazy("postgres://nobody@localhost/nowhere");
        let outbox = Outbox::new(pool.expect("the URL is one"), None, "queuert".to_owned(), 1);
        let outbox = Arc::new(outbox);
        outbox.post_quietly(|_| {});
        outbox.flush().await.expect("there is nothing to send");
        assert!(outbox.lock().by_runtime.is_empty());
    }

    #[test]
    fn an_announcement_is_one_text_in_which_nothing_breaks_out_of_its_quotes() {
        let text = announcement("it's", &["a\\'b".to_owned(), "c".to_owned()]);
        assert_eq!(
            text,
            "SELECT set_config('synchronous_commit', 'off', true), pg_notify(E'it''s', payload)\n\
             FROM unnest(ARRAY[E'a\\\\''b', E'c']) AS payload"
        );
    }
}
