//! What befalls the processes and their store, one fault after the other, as the seed says.

pub(crate) mod clock;
mod failover;
mod process;
mod server;

use std::time::Duration;

use tokio::time::Instant;

use crate::Result;
use crate::plan::Fault;
use crate::store::Store;
use crate::torture::Torture;

impl<S: Store> Torture<S> {
    /// Each fault of the plan once, and then at random until the time is over.
    pub(crate) async fn disturb(&mut self) -> Result<()> {
        // Whoever starts chains has to have started some.
        tokio::time::sleep(Duration::from_millis(700)).await;
        let end = Instant::now() + self.plan.duration;
        let mut first: Vec<Fault> = self.plan.faults.iter().copied().collect();
        self.random.shuffle(&mut first);
        // These last as long as the run does.
        first.retain(|fault| !matches!(fault, Fault::Clock | Fault::WakeUps));
        let all = first.clone();
        while Instant::now() < end || !first.is_empty() {
            let pause = self.random.u64(30..300);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            if self.ended_by_themselves()? {
                return Ok(());
            }
            self.thaw(Instant::now()).await?;
            let fault = match first.pop() {
                Some(fault) => fault,
                None if all.is_empty() => continue,
                None => self.choose(&all),
            };
            self.befall(fault).await?;
        }
        Ok(())
    }

    /// What takes long, or stops everything, is rarer.
    fn choose(&mut self, all: &[Fault]) -> Fault {
        let often = |fault: Fault| match fault {
            Fault::Kill => 12,
            Fault::Freeze | Fault::Connections => 6,
            Fault::Network => 4,
            Fault::Deaf | Fault::Snapshot | Fault::Login => 2,
            _ => 1,
        };
        let total: u32 = all.iter().map(|fault| often(*fault)).sum();
        let mut left = self.random.u32(0..total);
        for fault in all {
            match left.checked_sub(often(*fault)) {
                Some(less) => left = less,
                None => return *fault,
            }
        }
        Fault::Kill
    }

    async fn befall(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Kill => self.kill().await,
            Fault::Freeze => self.freeze().await,
            Fault::Restart | Fault::Crash => self.restart(fault == Fault::Crash).await,
            Fault::Connections => self.end_sessions().await,
            Fault::Login => self.refuse_logins().await,
            Fault::Network => self.spoil_network().await,
            Fault::Deaf => self.deafen().await,
            Fault::Snapshot => self.hold_snapshot().await,
            Fault::Disk => self.fill_disk().await,
            Fault::Failover | Fault::LossyFailover => self.fail_over(fault).await,
            Fault::Clock | Fault::WakeUps => Ok(()),
        }
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Everything is well from now on.
    pub(crate) async fn heal(&mut self) -> Result<()> {
        let last = self.processes.iter().filter_map(|process| process.thaws_at).max();
        if let Some(last) = last {
            tokio::time::sleep_until(last).await;
            self.thaw(last).await?;
        }
        if let Some(disk) = &self.server.disk {
            disk.free()?;
        }
        Ok(())
    }
}
