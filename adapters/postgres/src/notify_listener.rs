//! The one task of a process that listens.
//!
//! sqlx hands notifications out through its `PgListener` only. That one can connect again by itself, which would hide
//! the gap: so it is told not to, and a new one is made for every connection.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use queuert::adapter::{BoxFuture, Notice};
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, Executor};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::lifeline::Hold;
use crate::notify::{Phase, Shared};
use crate::notify_backoff::Backoff;
use crate::notify_fleet::{Asked, Fleet};
use crate::notify_look::Looked;
use crate::notify_payload::{Batch, Item, NOBODY, decode};
use crate::sabotage::Bug;

/// How long a connection may take to be made, and its first notification to arrive.
const DEADLINE: Duration = Duration::from_secs(5);

/// Who does not have a connection after this time asks why.
const AT_ONCE: Duration = Duration::from_millis(300);

/// A connection that has lived this long was a good one: the next try after its loss is made at once.
const GOOD: Duration = Duration::from_secs(5);

/// However often the server is asked for an answer, it has this long to give one.
const LEAST_PATIENCE: Duration = Duration::from_secs(2);

/// Processes that are asked who they are answer within this time, not all at once.
const ANSWER_WITHIN: Duration = Duration::from_millis(200);

/// The server is to notice a process that has vanished, and not to end a session for being quiet.
pub(crate) const SESSION: &str = "SELECT set_config('idle_session_timeout', '0', false), \
     set_config('tcp_keepalives_idle', '15', false), set_config('tcp_keepalives_interval', '5', false), \
     set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '30000', false)";

const POOLER: &str = "nothing of what is announced would be heard: the listener goes through a pooler in transaction mode, \
     or to another database; give it the server's own address with `PostgresNotifyOptions::listen_with`";

pub(crate) struct Listener {
    shared: Weak<Shared>,
    alive: watch::Receiver<()>,
    changed: Arc<Notify>,
    fleet: Fleet,
    /// Types that the others have been told this process runs.
    told: BTreeSet<u32>,
    /// When to say next that this process is there.
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
    /// Nobody needs it any more.
    Needless,
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

    /// Listens until nobody needs it any more, whatever happens to its connection.
    pub(crate) async fn run(mut self) {
        let mut backoff = Backoff::default();
        loop {
            let (mut listener, lifeline) = match self.connect().await {
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
                End::Needless => break,
                End::Lost(error) => {
                    drop((listener, lifeline));
                    self.fleet.forget();
                    // Also if the next one is made at once: what was announced meanwhile was not heard.
                    if self.failed(&error) {
                        break;
                    }
                    if since.elapsed() >= GOOD {
                        backoff.reset();
                        continue;
                    }
                    // Connections that do not last are as bad as none.
                    tokio::time::sleep(backoff.next_pause()).await;
                }
            }
        }
        self.done = true;
    }

    /// A connection that listens, as was seen from a notification that came through it, and that is the lifeline of the
    /// state whose pool this is.
    async fn connect(&mut self) -> Result<(PgListener, Option<Hold>), Arc<str>> {
        let Some(shared) = self.shared.upgrade() else {
            return Err("the adapter has gone".into());
        };
        // A pool, because `PgListener` wants one; of one connection that nobody else uses.
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
            // First of all: a `LISTEN` that went to a shared session would disturb whoever gets that next.
            if is_shared(&shared, &mut listener).await {
                return Err(POOLER.into());
            }
            // Settings that a server does not know, or a pooler does not take, are done without.
            let _ = listener.execute(SESSION).await;
            listener
                .listen(&shared.channel)
                .await
                .map_err(|error| cannot_listen(&error))
        };
        tokio::time::timeout(DEADLINE, listening)
            .await
            .map_err(|_| silent())??;
        self.prove(&shared, &mut listener).await?;
        let hold = match &shared.lifeline {
            // Should it fail, the connection is lost, which is noticed below.
            Some(lifeline) => {
                let taken = tokio::time::timeout(DEADLINE, lifeline.take(&mut listener)).await;
                taken.map_err(|_| silent())?.ok()
            }
            None => None,
        };
        Ok((listener, hold))
    }

    /// Announces itself and waits until that has come around: a pooler in transaction mode takes `LISTEN`, and never
    /// delivers anything.
    async fn prove(&mut self, shared: &Shared, listener: &mut PgListener) -> Result<(), Arc<str>> {
        let types = shared.lock().hub.type_hashes();
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
                // What the listener should have heard came to the announcer: they share a session.
                Err(error) if error.to_string().contains("NotificationResponse") => Err(POOLER.into()),
                // Whoever announces is told of this; it proves nothing about the listener.
                Err(_) => Ok(()),
            },
        }
    }

    /// Everybody is told why nothing is heard. `true` if there is no reason to go on: after the first try who asked for
    /// it is told, and may ask again; and nobody may need it any more.
    fn failed(&mut self, error: &Arc<str>) -> bool {
        let Some(shared) = self.shared.upgrade() else {
            return true;
        };
        let mut state = shared.lock();
        match std::mem::take(&mut state.phase) {
            Phase::Starting(waiting) => {
                for reply in waiting {
                    // Who does not wait any more need not know.
                    let _ = reply.send(Err(Arc::clone(error)));
                }
                true
            }
            _ if state.hub.is_empty() => true,
            _ => {
                state.hub.fail(error);
                state.phase = Phase::Failing(Arc::clone(error));
                false
            }
        }
    }

    /// It listens: who waits for that goes on, and the others look for what they have missed.
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
            _ => state.hub.resync(),
        }
        true
    }

    /// Hears what comes, until the connection or the last subscriber has gone.
    async fn hear(&mut self, listener: &mut PgListener) -> End {
        let (check_interval, mut needless_since) = match self.shared.upgrade() {
            Some(shared) => (shared.options.check_interval, None),
            None => return End::Needless,
        };
        let mut check = Instant::now() + check_interval;
        let mut types_may_differ = true;
        let mut look: Option<Looking> = None;
        loop {
            let Some(shared) = self.shared.upgrade() else {
                return End::Needless;
            };
            let now = Instant::now();
            self.act(&shared, now, std::mem::take(&mut types_may_differ));
            if self.is_needless(&shared, now, &mut needless_since) {
                return End::Needless;
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
            let linger = needless_since.map_or(now + Duration::from_secs(3600), |since| since + shared.options.linger);
            let mut wake = check.min(self.presence).min(linger).min(next_look);
            if let Some(due) = self.fleet.next_due() {
                wake = wake.min(due);
            }
            // Not held while nothing happens: the last handle that is dropped ends the task.
            drop(shared);
            tokio::select! {
                biased;
                _ = self.alive.changed() => return End::Needless,
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

    /// Whether nobody has listened for long enough. The phase is left under the lock, so that the next subscriber
    /// starts another listener.
    fn is_needless(&mut self, shared: &Shared, now: Instant, since: &mut Option<Instant>) -> bool {
        let mut state = shared.lock();
        if !state.hub.is_empty() {
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

    /// Does what is due: jobs that nobody else took, and the word that this process is there.
    fn act(&mut self, shared: &Shared, now: Instant, types_may_differ: bool) {
        for asked in self.fleet.overdue(now) {
            self.take(shared, &asked);
        }
        let due = now >= self.presence;
        if !due && !types_may_differ {
            return;
        }
        let types = shared.lock().hub.type_hashes();
        // Who runs nothing says so once.
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
        let hub = &shared.lock().hub;
        !Bug::Listener.is_on() && hub.has_workers() && (!self.fleet.is_alone() || hub.is_idle())
    }

    fn begin_look(&mut self, shared: &Shared, now: Instant, proves: bool) -> Looking {
        let takes_long = self.fleet.looks_take_long();
        let announces = self.fleet.looks(now) || proves;
        self.looking_since = now;
        let process = shared.presence.upgrade().and_then(|presence| presence.may_judge());
        let more = if announces { self.say_present(shared, now) } else { None };
        let (outbox, look) = (Arc::clone(&shared.outbox), Arc::clone(&shared.look));
        Box::pin(async move {
            let more = more.unwrap_or_default();
            let looked = outbox.look(&look, announces, process, &more, takes_long);
            tokio::time::timeout(DEADLINE, looked).await.ok()?.ok()
        })
    }

    /// The word that this process is there, for an announcement that goes out anyway, unless it was said lately.
    fn say_present(&mut self, shared: &Shared, now: Instant) -> Option<String> {
        let interval = self.fleet.presence_interval();
        if self.presence.saturating_duration_since(now) > interval / 2 {
            return None;
        }
        let types = shared.lock().hub.type_hashes();
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
            shared.lock().hub.wake_idle();
            return;
        };
        let Looked {
            due,
            others,
            took,
            expired,
        } = looked;
        self.fleet.look_took(took);
        if let Some(presence) = shared.presence.upgrade() {
            presence.note_leases(expired);
            if let Some(others) = others {
                presence.note(&others);
            }
        }
        for (type_name, count) in due {
            let notice = Notice::JobsAvailable {
                type_name: type_name.clone(),
                count,
            };
            let left = shared.lock().hub.tell(&notice);
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
                    if let Some(presence) = shared.presence.upgrade() {
                        presence.others_looked();
                    }
                }
                // The sender takes back the jobs of its own types only.
                Item::Missed(key) => {
                    if !self.fleet.covers(ticket.sender, &self.told)
                        && let Some(presence) = shared.presence.upgrade()
                    {
                        presence.others_miss(key);
                    }
                }
                Item::Resync => shared.lock().hub.resync(),
                Item::Taken {
                    ticket,
                    type_name,
                    count,
                } => self.fleet.taken(ticket, &type_name, count),
                Item::Notice(Notice::JobsAvailable { type_name, count }) => {
                    if !shared.lock().hub.runs(&type_name) {
                        continue;
                    }
                    if let Some(asked) = self.fleet.announced(ticket, &type_name, count, now) {
                        self.take(shared, &asked);
                    }
                }
                Item::Notice(notice) => {
                    shared.lock().hub.tell(&notice);
                }
            }
        }
    }

    /// Offers jobs to the workers here, and tells the others what is spoken for.
    fn take(&mut self, shared: &Shared, asked: &Asked) {
        let Asked {
            ticket,
            type_name,
            count,
        } = asked;
        let taken = shared.lock().hub.offer(type_name, *count);
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
        // The runtime ends, and nobody would be told anything any more: whoever reads a subscription elsewhere gets to
        // know, and subscribes again, which starts another listener.
        let mut state = shared.lock();
        state.phase = Phase::Idle;
        state.hub.end();
    }
}

/// What the look under way has found; for ever, if there is none.
async fn answer(look: &mut Option<Looking>) -> Option<Looked> {
    match look {
        Some(look) => look.await,
        None => std::future::pending().await,
    }
}

/// Why no connection is to be had, from a try that waits for nothing; for ever, if there is no reason.
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

/// Whether a pooler hands the session of this connection to others between its statements: seen from the session being
/// another one after the next statement of somebody else, or from his being the same.
async fn is_shared(shared: &Shared, listener: &mut PgListener) -> bool {
    let session = || sqlx::query_scalar::<_, i32>("SELECT pg_backend_pid()").persistent(false);
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
