//! Processes that are killed or frozen.

use std::time::Duration;

use tokio::process::Command;
use tokio::time::Instant;

use crate::Result;
use crate::plan::Fault;
use crate::store::Store;
use crate::torture::{Process, Role, Torture};

impl Process {
    /// Sends a signal for which tokio has no method, with the `kill` of the shell.
    async fn signal(&self, name: &str) -> Result<()> {
        if let Some(id) = self.child.id() {
            let kill = format!("kill -{name} {id}");
            Command::new("sh").args(["-c", &kill]).status().await?;
        }
        Ok(())
    }

    fn is_mortal(&self) -> bool {
        // A frozen process lives on: what it does when it thaws is what it was frozen for.
        matches!(self.role, Role::Working | Role::Enqueuing) && self.thaws_at.is_none()
    }
}

impl<S: Store> Torture<S> {
    /// Kills one process, two, or all of them, as when a container is stopped, and starts others.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        let mut victims: Vec<usize> = (0..self.processes.len())
            .filter(|place| self.processes[*place].is_mortal())
            .collect();
        self.random.shuffle(&mut victims);
        let many = match self.random.u8(0..20) {
            0 => victims.len(),
            1..4 => 2,
            _ => 1,
        };
        victims.truncate(many);
        for victim in &victims {
            let process = &mut self.processes[*victim];
            // Noted before: whoever is killed has an excuse for what is missing in its log.
            self.log.note(format!("killed {}", process.name))?;
            process.child.start_kill()?;
        }
        for victim in victims {
            self.count(Fault::Kill, "kills");
            self.processes[victim].child.wait().await?;
            let role = self.processes[victim].role;
            self.processes[victim] = self.give_birth(role)?;
        }
        Ok(())
    }

    /// Freezes a process for longer than its leases last: it goes on with attempts that others have taken over, and none
    /// of what it writes then may count.
    pub(crate) async fn freeze(&mut self) -> Result<()> {
        // Mostly those that have leases.
        let any = self.random.u8(0..4) == 0;
        let candidates: Vec<usize> = (0..self.processes.len())
            .filter(|place| self.processes[*place].is_mortal())
            .filter(|place| any || self.processes[*place].role == Role::Working)
            .collect();
        let frozen = self
            .processes
            .iter()
            .filter(|process| process.thaws_at.is_some())
            .count();
        // Somebody has to take the jobs over.
        if candidates.is_empty() || frozen * 2 >= self.plan.processes {
            return Ok(());
        }
        let place = candidates[self.random.usize(0..candidates.len())];
        let lease = self.plan.lease;
        let longer = Duration::from_millis(self.random.u64(300..1_500));
        let process = &mut self.processes[place];
        self.log.note(format!("froze {}", process.name))?;
        process.signal("STOP").await?;
        process.thaws_at = Some(Instant::now() + lease + longer);
        self.count(Fault::Freeze, "freezes");
        Ok(())
    }

    /// Lets frozen processes go on whose time has come.
    pub(crate) async fn thaw(&mut self, now: Instant) -> Result<()> {
        for process in &mut self.processes {
            if process.thaws_at.is_some_and(|time| time <= now) {
                process.thaws_at = None;
                self.log.note(format!("thawed {}", process.name))?;
                process.signal("CONT").await?;
            }
        }
        Ok(())
    }
}
