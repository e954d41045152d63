//! What befalls the processes and their store, one fault after the other, as the seed says.

pub(crate) mod clock;
mod failover;
mod process;
mod server;

use std::time::Duration;

use tokio::time::Instant;

use crate::plan::Fault;
use crate::store::Store;
use crate::torture::{Process, Role, STUCK, Torture};
use crate::{Result, backlog, log};

/// How often a fault is tried again that could not happen: a process to freeze is there a moment later.
const TRIES: usize = 50;

impl<S: Store> Torture<S> {
    /// Each fault of the plan at least once, as many kills as it wants, and then faults at random until the time is over.
    pub(crate) async fn disturb(&mut self) -> Result<()> {
        self.until_all_are_at_work().await?;
        let end = Instant::now() + self.plan.duration;
        // The others last as long as the run does.
        let lasts = |fault: &Fault| matches!(fault, Fault::Clock | Fault::WakeUps);
        let all: Vec<Fault> = self.plan.faults.iter().copied().filter(|fault| !lasts(fault)).collect();
        let mut planned = self.planned(&all);
        let (count, mut tries) = (planned.len() as u64, TRIES);
        while Instant::now() < end || !planned.is_empty() {
            let pause = self.random.u64(30..300);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            if !planned.is_empty() {
                self.until_completed(count.saturating_sub(planned.len() as u64), count)
                    .await?;
            }
            if self.ended_by_themselves()? {
                return Ok(());
            }
            self.thaw(Instant::now()).await?;
            let (fault, first) = match planned.pop() {
                Some(fault) => (fault, true),
                None if all.is_empty() => continue,
                None => (self.choose(&all), false),
            };
            self.befall(fault).await?;
            if first && !self.happened.contains(&fault) && tries > 0 {
                tries -= 1;
                planned.insert(0, fault);
            }
        }
        Ok(())
    }

    /// Each fault once, or so many kills with the others in proportion, in the order that the seed says.
    fn planned(&mut self, all: &[Fault]) -> Vec<Fault> {
        let times = |fault: Fault| match self.plan.kills {
            Some(kills) if fault == Fault::Kill => kills,
            // Kills are named with each other fault, and are much more frequent than it.
            Some(kills) => (kills * often(fault) / (10 * often(Fault::Kill))).max(1),
            None => 1,
        };
        let mut planned: Vec<Fault> = all
            .iter()
            .flat_map(|fault| std::iter::repeat_n(*fault, times(*fault) as usize))
            .collect();
        self.random.shuffle(&mut planned);
        planned
    }

    /// With a backlog, waits until its part has completed that is due before the next fault: the faults are spread over the
    /// whole run, so that each finds something to disturb.
    async fn until_completed(&mut self, before: u64, count: u64) -> Result<()> {
        let wanted = backlog::effects(self.plan.jobs * 9 / 10 * before / (count + 1));
        let deadline = Instant::now() + STUCK;
        while wanted > 0 && Instant::now() < deadline && !self.ended_by_themselves()? {
            // A store that is away is asked again.
            if self.effects().await.is_ok_and(|effects| effects >= wanted) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Rows that jobs have written when they completed.
    async fn effects(&self) -> Result<u64> {
        let mut tx = self.client.begin().await?;
        let rows = S::fetch(&mut tx, "SELECT CAST(count(*) AS TEXT) FROM effect").await?;
        tx.rollback().await?;
        Ok(rows.iter().flatten().next().map_or(Ok(0), |count| count.parse())?)
    }

    /// Waits until every process has noted something: it runs jobs, or starts chains.
    async fn until_all_are_at_work(&mut self) -> Result<()> {
        let deadline = Instant::now() + STUCK;
        loop {
            let lines = log::read(&self.directory)?;
            let quiet = |process: &Process| lines.iter().all(|line| line.process != process.name);
            let working = |process: &&Process| matches!(process.role, Role::Working | Role::Enqueuing);
            if !self.processes.iter().filter(working).any(quiet)
                || Instant::now() > deadline
                || self.ended_by_themselves()?
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A fault at random. Faults that take long, or stop everything, are rarer.
    fn choose(&mut self, all: &[Fault]) -> Fault {
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

    /// A fault has happened.
    pub(crate) fn count(&mut self, fault: Fault, what: &'static str) {
        self.happened.insert(fault);
        *self.counts.entry(what).or_default() += 1;
    }

    /// A plan whose fault never happened proves nothing about it.
    pub(crate) fn check_that_all_happened(&mut self) -> Result<()> {
        let lines = log::read(&self.directory)?;
        for _ in lines.iter().filter(|line| line.words[0] == "spoiled") {
            self.count(Fault::WakeUps, "announcements with lost or doubled wake-ups");
        }
        for fault in self.plan.faults.difference(&self.happened) {
            let what = format!("every fault of the plan happens: `{}` never did", fault.name());
            self.broken.push(what);
        }
        Ok(())
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

/// How often a fault is chosen, in relation to others.
const fn often(fault: Fault) -> u32 {
    match fault {
        Fault::Kill => 12,
        Fault::Freeze | Fault::Connections => 6,
        Fault::Network => 4,
        Fault::Deaf | Fault::Snapshot | Fault::Login => 2,
        _ => 1,
    }
}
