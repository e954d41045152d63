//! What befalls the store: restarts, ended sessions, bad networks, old snapshots, full disks.

use std::time::Duration;

use postgres_support::Shutdown;
use queuert::Error;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, Executor, PgConnection};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::Result;
use crate::jobs::{Canary, result};
use crate::plan::Fault;
use crate::store::Store;
use crate::torture::Torture;

/// What has lost its listener looks again within this time; its poll would take an hour.
const LOOKS_AGAIN: Duration = Duration::from_secs(10);

impl<S: Store> Torture<S> {
    pub(crate) async fn restart(&mut self, crash: bool) -> Result<()> {
        let how = match crash {
            true => Shutdown::Immediate,
            false => Shutdown::Fast,
        };
        // Claims do not wait for the disk, and a crash may forget them: that is noted first.
        self.log.note(if crash { "crashed" } else { "restarted" })?;
        self.server.private()?.cluster.restart(how).await;
        self.log.note("accepting")?;
        match crash {
            true => self.count(Fault::Crash, "crashes of the server"),
            false => self.count(Fault::Restart, "restarts of the server"),
        }
        Ok(())
    }

    /// As an operator, or a failover, ends sessions: those of the processes, some or all.
    pub(crate) async fn end_sessions(&mut self) -> Result<()> {
        let share = [15, 50, 100][self.random.usize(0..3)];
        let mut connection = self.server.private()?.cluster.connect().await;
        let ended: i64 = sqlx::query_scalar(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() * 100 < $1",
        )
        .bind(f64::from(share))
        .fetch_one(&mut connection)
        .await?;
        self.log.note(format!("ended-sessions {ended}"))?;
        for _ in 0..ended {
            self.count(Fault::Connections, "sessions ended");
        }
        Ok(())
    }

    /// The database accepts no connections for a while, and its sessions end. To the processes this is an error that a person
    /// must put right, and then somebody does.
    pub(crate) async fn refuse_logins(&mut self) -> Result<()> {
        let how_long = Duration::from_millis(self.random.u64(200..1_200));
        // The database of the queue is the one that refuses.
        let options: PgConnectOptions = self.server.private()?.cluster.url().parse()?;
        let mut connection = PgConnection::connect_with(&options.database("template1")).await?;
        for statement in [
            "ALTER DATABASE postgres ALLOW_CONNECTIONS false",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres'",
        ] {
            connection.execute(statement).await?;
        }
        self.log.note("refused")?;
        tokio::time::sleep(how_long).await;
        connection
            .execute("ALTER DATABASE postgres ALLOW_CONNECTIONS true")
            .await?;
        self.log.note("accepting")?;
        self.count(Fault::Login, "refused logins");
        Ok(())
    }

    /// The network of the processes is slow, cuts connections, refuses them, or forgets them.
    pub(crate) async fn spoil_network(&mut self) -> Result<()> {
        let while_long = Duration::from_millis(self.random.u64(200..1_200));
        let kind = self.random.u8(0..5);
        let network = &self.server.private()?.network;
        let what = match kind {
            0 => {
                network.delay(Duration::from_millis(40));
                tokio::time::sleep(while_long).await;
                network.delay(Duration::ZERO);
                "delays"
            }
            1 => {
                network.cut();
                "cuts"
            }
            2 => {
                network.refuse(true);
                tokio::time::sleep(while_long).await;
                network.refuse(false);
                "refusals"
            }
            3 => {
                network.freeze(true);
                tokio::time::sleep(while_long).await;
                network.freeze(false);
                "silences"
            }
            _ => {
                // Nobody is told that these connections lead nowhere, until after a while both ends are.
                network.abandon();
                tokio::time::sleep(while_long * 2).await;
                network.cut();
                "half-open connections"
            }
        };
        self.log.note(format!("network {what}"))?;
        self.count(Fault::Network, what);
        Ok(())
    }

    /// Cuts the listeners off, announces something that they cannot hear, and lets them listen again: who looks again
    /// finds it at once, who does not finds it with its next poll.
    pub(crate) async fn deafen(&mut self) -> Result<()> {
        let n = self.random.u64(0..1_000);
        let client = self.client.clone();
        let ears = &self.server.private()?.ears;
        ears.refuse(true);
        // So that it is seen to be gone before anything is announced.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let chain = self.start(|| Canary { n }).await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
        ears.refuse(false);
        let began = Instant::now();
        self.log.note(format!("deafened {}", chain.id()))?;
        let ended = loop {
            let wait = client.wait(&chain).poll_interval(Duration::from_millis(100));
            match wait.timeout(LOOKS_AGAIN.saturating_sub(began.elapsed())).await {
                Err(error) if error.is_transient() && began.elapsed() < LOOKS_AGAIN => {}
                ended => break ended,
            }
        };
        match ended {
            Ok(output) if output == result(n) => {
                self.woken.push(u64::try_from(began.elapsed().as_millis())?);
            }
            Ok(output) => self
                .broken
                .push(format!("the right output: canary {} gave {output}", chain.id())),
            Err(Error::WaitTimeout { .. }) => self.broken.push(format!(
                "listen again, then look again: job {} was announced while the listener was cut off, and nobody has \
                 looked for it {LOOKS_AGAIN:?} after it could listen again",
                chain.id()
            )),
            Err(error) => return Err(error.into()),
        }
        self.count(Fault::Deaf, "deaf listeners");
        Ok(())
    }

    /// Somebody reads for a long time: what has gone since must still be there for them.
    pub(crate) async fn hold_snapshot(&mut self) -> Result<()> {
        let how_long = Duration::from_millis(self.random.u64(1_000..4_000));
        let url = self.server.url();
        let (sender, held) = oneshot::channel();
        // A reader that fails holds nothing, and does not count.
        tokio::spawn(async move { drop(S::hold_snapshot(&url, how_long, sender).await) });
        if held.await.is_ok() {
            self.log.note("snapshot")?;
            self.count(Fault::Snapshot, "held snapshots");
        }
        Ok(())
    }

    /// The disk is full for a while; what cannot be written fails, and what was written stays.
    pub(crate) async fn fill_disk(&mut self) -> Result<()> {
        let how_long = Duration::from_millis(self.random.u64(300..1_500));
        let Some(disk) = &self.server.disk else {
            return Ok(());
        };
        // A server that cannot write its log ends itself.
        self.log.note("crashed")?;
        disk.fill()?;
        tokio::time::sleep(how_long).await;
        disk.free()?;
        if let Ok(private) = self.server.private() {
            private.cluster.revive().await;
        }
        self.log.note("accepting")?;
        self.count(Fault::Disk, "full disks");
        Ok(())
    }
}
