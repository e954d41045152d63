//! The one task of a process that listens.
//!
//! sqlx delivers notifications through its `PgListener` only. A `PgListener` can connect again by itself, which would hide the
//! gap: so that is switched off, and every connection has a new `PgListener`.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use queuert::adapter::{BoxFuture, Notice, Subscribers};
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, Executor};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::connection::retry_pauses;
use crate::liveness::session_lock::Hold;
use crate::notify::fleet::{Asked, Fleet};
use crate::notify::look::Looked;
use crate::notify::payload::{Batch, Item, NOBODY, decode, type_hash};
use crate::notify::{Phase, Shared};
use crate::sabotage::Bug;
use crate::statements::{plain, text};

/// How long a connection may take to be made, and its first notification to arrive.
const DEADLINE: Duration = Duration::from_secs(5);

/// After this time without a connection, the listener finds out why there is none.
const AT_ONCE: Duration = Duration::from_millis(300);

/// A connection that has lived this long was a good one: the next try after its loss is made at once.
const GOOD: Duration = Duration::from_secs(5);

/// However often the server is asked for an answer, it has this long to give one.
const LEAST_PATIENCE: Duration = Duration::from_secs(2);

/// Within this time processes answer the question which types they run, not all at once.
const ANSWER_WITHIN: Duration = Duration::from_millis(200);

const POOLER: &str = "nothing of what is announced would be heard: the listener goes through a pooler in transaction mode, \
     or to another database; give it the server's own address with `PostgresNotifyOptions::listen_with`";

pub(crate) struct Listener {
    shared: Weak<Shared>,
    alive: watch::Receiver<()>,
    changed: Arc<Notify>,
    fleet: Fleet,
    /// The types that this process runs, as it has last announced them.
    told: BTreeSet<u32>,
    /// When to announce next that this process is there.
    presence: Instant,
    /// When the last look of this process began.
    looking_since: Instant,
    /// Whether it ended as it should.
    done: bool,
}

/// A look at the store that is under way; nothing if it fails.
type Looking = BoxFuture<'static, Option<Looked>>;

/// Why a connection ended.
enum End {
    /// There are no subscribers any more.
    NoSubscribers,
    Lost(Arc<str>),
}

impl Listener {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::downgrade(shared),
            alive: shared.alive.subscribe(),
            changed: Arc::clone(&shared.changed),
            fleet: Fleet::new(
                shared.outbox.sender(),
                shared.options.stagger,
                shared.options.look_interval,
            ),
            told: BTreeSet::new(),
            presence: Instant::now(),
            looking_since: Instant::now(),
            done: false,
        }
    }

    /// Listens until there are no subscribers any more, whatever happens to its connection.
    pub(crate) async fn run(mut self) {
        let mut backoff = retry_pauses();
        loop {
            let (mut listener, session_lock) = match self.connect().await {
                Ok(connected) => connected,
                Err(error) => {
                    if self.failed(&error) {
                        break;
                    }
                    tokio::time::sleep(backoff.next_pause()).await;
                    continue;
                }
            };
            let since = Instant::now();
            if !self.listening() {
                break;
            }
            match self.hear(&mut listener).await {
                End::NoSubscribers => break,
                End::Lost(error) => {
                    drop((listener, session_lock));
                    self.fleet.forget();
                    // Also if the next connection is made at once: announcements may have been missed meanwhile.
                    if self.failed(&error) {
                        break;
                    }
                    if since.elapsed() >= GOOD {
                        backoff.reset();
                        continue;
                    }
                    // Connections that do not last count as failures.
                    tokio::time::sleep(backoff.next_pause()).await;
                }
            }
        }
        self.done = true;
    }

    /// A connection that listens, as was seen from a notification that came through it, and that is the session lock of the
    /// state whose pool this is.
    async fn connect(&mut self) -> Result<(PgListener, Option<Hold>), Arc<str>> {
        let Some(shared) = self.shared.upgrade() else {
            return Err("the adapter has gone".into());
        };
        // `PgListener` needs a pool: one of a single connection.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_timeout(DEADLINE)
            .connect_lazy_with((*shared.connect).clone());
        let mut listener = tokio::select! {
            biased;
            listener = PgListener::connect_with(&pool) => listener.map_err(|error| cannot_connect(&error))?,
            // The pool waits for a server that refuses connections, and does not say what it waits for.
            error = reason(&shared) => return Err(error),
        };
        listener.eager_reconnect(false);
        let listening = async {
            // First of all: a `LISTEN` on a shared session would disturb the client that the pooler lends it to next.
            if is_shared(&shared, &mut listener).await {
                return Err(POOLER.into());
            }
            // Settings that a server does not know, or a pooler does not take, are done without.
            let _ = listener.execute(plain(text::LISTENER_SETTINGS)).await;
            listener
                .listen(&shared.channel)
                .await
                .map_err(|error| cannot_listen(&error))
        };
        tokio::time::timeout(DEADLINE, listening)
            .await
            .map_err(|_| silent())??;
        self.prove(&shared, &mut listener).await?;
        let hold = match &shared.session_lock {
            // Should it fail, the connection is lost, which is noticed below.
            Some(session_lock) => {
                let taken = tokio::time::timeout(DEADLINE, session_lock.take(&mut listener)).await;
                taken.map_err(|_| silent())?.ok()
            }
            None => None,
        };
        Ok((listener, hold))
    }

    /// Announces itself and waits until that has come around: a pooler in transaction mode takes `LISTEN`, and never
    /// delivers anything.
    async fn prove(&mut self, shared: &Shared, listener: &mut PgListener) -> Result<(), Arc<str>> {
        let types = type_hashes(&shared.lock().subscribers);
        self.told.clone_from(&types);
        self.presence = Instant::now() + self.fleet.presence_interval();
        let posted = async {
            let say = |batch: &mut Batch| {
                batch.hello();
                batch.present(Some(types));
            };
            shared.outbox.post(say).await?;
            shared.outbox.flush_own().await
        };
        let heard = async {
            loop {
                match listener.try_recv().await {
                    Ok(Some(notification)) => {
                        let read = decode(notification.payload());
                        self.heard(shared, notification.payload());
                        if read.is_some_and(|(ticket, _)| ticket.sender == shared.outbox.sender()) {
                            return Ok(());
                        }
                    }
                    Ok(None) => return Err("the connection was lost as soon as it listened".into()),
                    Err(error) => return Err(cannot_listen(&error)),
                }
            }
        };
        tokio::select! {
            biased;
            heard = heard => heard,
            unheard = async {
                let posted = posted.await;
                tokio::time::sleep(DEADLINE).await;
                posted
            } => match unheard {
                Ok(()) => Err(POOLER.into()),
                // The announcer received the notification that was meant for the listener: they share a session.
                Err(error) if error.to_string().contains("NotificationResponse") => Err(POOLER.into()),
                // The announcer reports this failure; it proves nothing about the listener.
                Err(_) => Ok(()),
            },
        }
    }

    /// Tells all subscribers why nothing is received. `true` if the task is to end: after a failed first try, because the
    /// subscriber that asked for it gets the error and may subscribe again; or because there are no subscribers any more.
    fn failed(&mut self, error: &Arc<str>) -> bool {
        let Some(shared) = self.shared.upgrade() else {
            return true;
        };
        let mut state = shared.lock();
        match std::mem::take(&mut state.phase) {
            Phase::Starting(waiting) => {
                for reply in waiting {
                    // A subscriber that does not wait any more need not know.
                    let _ = reply.send(Err(Arc::clone(error)));
                }
                true
            }
            _ if state.subscribers.is_empty() => true,
            _ => {
                state.subscribers.fail(error);
                state.phase = Phase::Failing(Arc::clone(error));
                false
            }
        }
    }

    /// Takes note that the task listens: new subscribers go on, and the others look at the store for what they have missed.
    fn listening(&mut self) -> bool {
        let Some(shared) = self.shared.upgrade() else {
            return false;
        };
        let mut state = shared.lock();
        match std::mem::replace(&mut state.phase, Phase::Listening) {
            Phase::Starting(waiting) => {
                for reply in waiting {
                    let _ = reply.send(Ok(()));
                }
            }
            _ if Bug::Listener.is_on() => {}
            _ => state.subscribers.resync(),
        }
        true
    }

    /// Receives notifications, until the connection or the last subscriber is gone.
    async fn hear(&mut self, listener: &mut PgListener) -> End {
        let (check_interval, mut unused_since) = match self.shared.upgrade() {
            Some(shared) => (shared.options.check_interval, None),
            None => return End::NoSubscribers,
        };
        let mut check = Instant::now() + check_interval;
        let mut types_may_differ = true;
        let mut look: Option<Looking> = None;
        loop {
            let Some(shared) = self.shared.upgrade() else {
                return End::NoSubscribers;
            };
            let now = Instant::now();
            self.act(&shared, now, std::mem::take(&mut types_may_differ));
            if self.has_no_subscribers(&shared, now, &mut unused_since) {
                return End::NoSubscribers;
            }
            let mut next_look = now + shared.options.look_interval;
            if look.is_none() && self.may_look(&shared) {
                next_look = self.fleet.look_due(now);
                if next_look <= now {
                    // An announcement that comes round proves the connection, too.
                    let proves = check <= now + shared.options.look_interval;
                    look = Some(self.begin_look(&shared, now, proves));
                    next_look = now + shared.options.look_interval;
                }
            }
            let linger = unused_since.map_or(now + Duration::from_secs(3600), |since| since + shared.options.linger);
            let mut wake = check.min(self.presence).min(linger).min(next_look);
            if let Some(due) = self.fleet.next_due() {
                wake = wake.min(due);
            }
            // Not held while nothing happens: the last handle that is dropped ends the task.
            drop(shared);
            tokio::select! {
                biased;
                _ = self.alive.changed() => return End::NoSubscribers,
                notification = listener.try_recv() => match notification {
                    Ok(Some(notification)) => {
                        // The connection is there, so there is no need to ask.
                        check = Instant::now() + check_interval;
                        if let Some(shared) = self.shared.upgrade() {
                            self.heard(&shared, notification.payload());
                        }
                    }
                    Ok(None) => return End::Lost("the server ended the listener's connection".into()),
                    Err(error) => return End::Lost(cannot_listen(&error)),
                },
                looked = answer(&mut look) => {
                    look = None;
                    if let Some(shared) = self.shared.upgrade() {
                        self.has_looked(&shared, looked);
                    }
                }
                () = self.changed.notified() => types_may_differ = true,
                () = tokio::time::sleep_until(wake) => {}
            }
            if Instant::now() >= check {
                if let Err(error) = is_there(listener, LEAST_PATIENCE.max(check_interval / 2)).await {
                    return End::Lost(error);
                }
                check = Instant::now() + check_interval;
            }
        }
    }

    /// Whether there have been no subscribers for long enough. The phase is changed under the lock, so that the next subscriber
    /// starts another listener.
    fn has_no_subscribers(&mut self, shared: &Shared, now: Instant, since: &mut Option<Instant>) -> bool {
        let mut state = shared.lock();
        if !state.subscribers.is_empty() {
            *since = None;
            return false;
        }
        let begun = *since.get_or_insert(now);
        if now.saturating_duration_since(begun) < shared.options.linger {
            return false;
        }
        state.phase = Phase::Idle;
        true
    }

    /// Does what is due: takes jobs that no other process took, and announces that this process is there.
    fn act(&mut self, shared: &Shared, now: Instant, types_may_differ: bool) {
        for asked in self.fleet.overdue(now) {
            self.take(shared, &asked);
        }
        let due = now >= self.presence;
        if !due && !types_may_differ {
            return;
        }
        let types = type_hashes(&shared.lock().subscribers);
        // A process that runs no types announces that once.
        if types != self.told || (due && !types.is_empty()) {
            self.told.clone_from(&types);
            shared.outbox.post_quietly(|batch| batch.present(Some(types)));
        }
        if due {
            self.presence = now + self.fleet.presence_interval().mul_f64(0.9 + fastrand::f64() / 10.0);
        }
    }

    /// Whether this process takes part in the looks of the fleet. A busy one does: it announces what it finds. If it is alone,
    /// its workers look by themselves when they become idle.
    fn may_look(&self, shared: &Shared) -> bool {
        let subscribers = &shared.lock().subscribers;
        !Bug::Listener.is_on()
            && subscribers.has_workers()
            && (!self.fleet.is_alone() || subscribers.has_idle_workers())
    }

    fn begin_look(&mut self, shared: &Shared, now: Instant, proves: bool) -> Looking {
        let takes_long = self.fleet.looks_take_long();
        let announces = self.fleet.looks(now) || proves;
        self.looking_since = now;
        let process = shared.liveness.upgrade().and_then(|liveness| liveness.may_judge());
        let more = if announces { self.say_present(shared, now) } else { None };
        let (outbox, look) = (Arc::clone(&shared.outbox), Arc::clone(&shared.look));
        Box::pin(async move {
            let more = more.unwrap_or_default();
            let looked = outbox.look(&look, announces, process, &more, takes_long);
            tokio::time::timeout(DEADLINE, looked).await.ok()?.ok()
        })
    }

    /// The item that says that this process is there, for an announcement that goes out anyway, unless the process said so lately.
    fn say_present(&mut self, shared: &Shared, now: Instant) -> Option<String> {
        let interval = self.fleet.presence_interval();
        if self.presence.saturating_duration_since(now) > interval / 2 {
            return None;
        }
        let types = type_hashes(&shared.lock().subscribers);
        self.told.clone_from(&types);
        self.presence = now + interval.mul_f64(0.9 + fastrand::f64() / 10.0);
        let mut batch = Batch::default();
        batch.present(Some(types));
        // Without the head: the announcement has one.
        let payload = batch.encode(NOBODY, || 0).pop()?;
        payload.split_once('.').map(|(_, item)| item.to_owned())
    }

    /// Passes on what a look has found: due jobs to idle workers, of this process or else of others, and the state of the
    /// other processes.
    fn has_looked(&mut self, shared: &Arc<Shared>, looked: Option<Looked>) {
        let Some(looked) = looked else {
            // There may be no store in the schema, if it is another adapter's. Workers know where to look. Or the server took too
            // long, and is not to be asked again soon.
            self.fleet.look_took(self.looking_since.elapsed());
            shared.lock().subscribers.resync_idle();
            return;
        };
        let Looked {
            due,
            others,
            took,
            expired,
        } = looked;
        self.fleet.look_took(took);
        if let Some(liveness) = shared.liveness.upgrade() {
            liveness.note_leases(expired);
            if let Some(others) = others {
                liveness.note(&others);
            }
        }
        for (type_name, count) in due {
            let notice = Notice::JobsAvailable {
                type_name: type_name.clone(),
                count,
            };
            let left = shared.lock().subscribers.tell(&notice);
            if let Some(left) = left
                && self.fleet.is_shared(&type_name)
            {
                shared.outbox.post_quietly(|batch| batch.notice(&left));
            }
        }
    }

    fn heard(&mut self, shared: &Shared, payload: &str) {
        let Some((ticket, items)) = decode(payload) else {
            return;
        };
        let own = ticket.sender == shared.outbox.sender();
        let now = Instant::now();
        for item in items {
            match item {
                Item::Present(types) => {
                    self.fleet.present(ticket.sender, types, now);
                    shared.peers.store(self.fleet.peers(), Ordering::SeqCst);
                }
                Item::Looked(took) => self.fleet.looked(ticket, took, now),
                // Everything else that this process said it knows.
                _ if own => {}
                Item::Hello => {
                    let answer = now + ANSWER_WITHIN.mul_f64(fastrand::f64());
                    self.presence = self.presence.min(answer);
                }
                Item::Watched => {
                    if let Some(liveness) = shared.liveness.upgrade() {
                        liveness.others_looked();
                    }
                }
                // The sender takes back the jobs of its own types only.
                Item::Missed(key) => {
                    if !self.fleet.covers(ticket.sender, &self.told)
                        && let Some(liveness) = shared.liveness.upgrade()
                    {
                        liveness.others_miss(key);
                    }
                }
                Item::Resync => shared.lock().subscribers.resync(),
                Item::Taken {
                    ticket,
                    type_name,
                    count,
                } => self.fleet.taken(ticket, &type_name, count),
                Item::Notice(Notice::JobsAvailable { type_name, count }) => {
                    if !shared.lock().subscribers.runs(&type_name) {
                        continue;
                    }
                    if let Some(asked) = self.fleet.announced(ticket, &type_name, count, now) {
                        self.take(shared, &asked);
                    }
                }
                Item::Notice(notice) => {
                    shared.lock().subscribers.tell(&notice);
                }
            }
        }
    }

    /// Offers jobs to the workers of this process, and announces how many they take.
    fn take(&mut self, shared: &Shared, asked: &Asked) {
        let Asked {
            ticket,
            type_name,
            count,
        } = asked;
        let taken = shared.lock().subscribers.offer(type_name, *count);
        if taken > 0 {
            self.fleet.taken(*ticket, type_name, taken);
            if self.fleet.is_shared(type_name) {
                let type_name = type_name.clone();
                let say = |batch: &mut Batch| batch.taken(*ticket, type_name, taken);
                shared.outbox.post_quietly(say);
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        if self.done {
            return;
        }
        // The runtime ends. Subscribers on other runtimes are told that their subscription is over, and subscribe again, which
        // starts another listener.
        let mut state = shared.lock();
        state.phase = Phase::Idle;
        state.subscribers.clear();
    }
}

/// The types that this process runs, as the other processes are told.
fn type_hashes(subscribers: &Subscribers) -> BTreeSet<u32> {
    subscribers.types().map(type_hash).collect()
}

/// What the look that is under way has found. Never returns if there is none.
async fn answer(look: &mut Option<Looking>) -> Option<Looked> {
    match look {
        Some(look) => look.await,
        None => std::future::pending().await,
    }
}

/// Why there is no connection, from a try that waits for nothing. Never returns if the try succeeds.
async fn reason(shared: &Shared) -> Arc<str> {
    tokio::time::sleep(AT_ONCE).await;
    match shared.connect.connect().await {
        Err(error) => cannot_connect(&error),
        Ok(connection) => {
            // Nothing depends on how it ends.
            let _ = connection.close().await;
            std::future::pending().await
        }
    }
}

/// Whether a pooler lends the session of this connection to other clients between its statements: the session is another one
/// after a statement of the announcer, or the announcer has the same session.
async fn is_shared(shared: &Shared, listener: &mut PgListener) -> bool {
    let session = || sqlx::query_scalar::<_, i32>(plain(text::SESSION)).persistent(false);
    let Ok(before) = session().fetch_one(&mut *listener).await else {
        return false;
    };
    let others = tokio::time::timeout(AT_ONCE, shared.outbox.session()).await;
    let after = session().fetch_one(&mut *listener).await;
    let other = others.ok().flatten();
    other == Some(before) || after.is_ok_and(|after| after != before)
}

/// Whether the server still answers on this connection.
async fn is_there(listener: &mut PgListener, patience: Duration) -> Result<(), Arc<str>> {
    match tokio::time::timeout(patience, listener.execute("SELECT 1")).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(cannot_listen(&error)),
        Err(_) => Err(format!("the server has not answered on the listener's connection for {patience:?}").into()),
    }
}

fn silent() -> Arc<str> {
    format!("the server did not take a listener within {DEADLINE:?}").into()
}

fn cannot_connect(error: &sqlx::Error) -> Arc<str> {
    format!("the listener cannot connect to the server: {error}").into()
}

fn cannot_listen(error: &sqlx::Error) -> Arc<str> {
    format!("the listener's connection failed: {error}").into()
}
