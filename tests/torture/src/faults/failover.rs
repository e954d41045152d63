//! The server dies under load, and a standby takes its place.

use std::time::Duration;

use postgres_support::{Proxy, Shutdown};
use queuert::{ChainId, ChainRecord, Client, JobType};
use tokio::time::Instant;

use crate::Result;
use crate::jobs::{Newer, Recent, result_of};
use crate::plan::Fault;
use crate::store::{self, PATIENCE, Store};
use crate::torture::{Role, Torture};
use crate::{clock, log};

/// A fleet that runs this many jobs between two moments is at work.
const AT_WORK: usize = 20;

/// Processes that know the type that a standby lacks: one of them is killed, and another one takes over what it ran.
const RECENT: usize = 2;

impl<S: Store> Torture<S> {
    /// Makes a standby, lets it follow for a while, kills the server and promotes the standby, while all processes go on.
    /// They find it where the server was.
    pub(crate) async fn fail_over(&mut self, fault: Fault) -> Result<()> {
        let lossy = fault.forgets();
        let private = self.server.private()?;
        let port = private.cluster.port();
        // What the standby is sent goes through here.
        let link = Proxy::to(port).await;
        let mut standby = private.cluster.standby(link.port(), !lossy).await;
        if lossy {
            link.freeze(true);
        }
        let since = clock::now();
        self.give_births_of(Role::Recent, RECENT)?;
        // The first chain of its type in this run: with it the number of the type is lost.
        let recent = self.start(|| Recent { n: 0 }).await?;
        self.until_begun(recent.id()).await?;
        self.until_at_work(since).await?;
        let running = self.start(|| Recent { n: 1 }).await?;
        self.until_begun(running.id()).await?;
        // Claims do not wait for the standby any more than for the disk: that is noted first.
        self.log.note("crashed")?;
        self.log.note(match lossy {
            true => "failed-over lossy",
            false => "failed-over synchronous",
        })?;
        self.server.private()?.cluster.stop(Shutdown::Immediate).await;
        standby.take_over(port).await;
        self.server.replace(standby)?;
        self.log.note("accepting")?;
        let what = match lossy {
            true => "failovers under load that lost what was acknowledged",
            false => "failovers under load",
        };
        self.count(fault, what);
        let before = [recent.id(), running.id()];
        for chain in before {
            if self.record(&self.client, chain).await?.is_some() == lossy {
                let what = match lossy {
                    true => "the standby lags behind: it has what it was not sent",
                    false => "no chain is lost: a chain that was acknowledged is gone after a failover",
                };
                self.broken.push(format!("{what}, chain {chain}"));
            }
        }
        let survivors = if lossy { &[][..] } else { &before[..] };
        self.bring_another_type(survivors).await
    }

    /// A type that nobody has heard of before, and the one that may have been lost again: each is run as what it is. Whoever
    /// knows the number of the lost one has not been told that the store lacks it: this process, and those that run it.
    async fn bring_another_type(&mut self, survivors: &[ChainId]) -> Result<()> {
        // As another process, which was not there before: it believes the store, and nothing else.
        let stranger = store::look::<S>(&self.server.url()).await?;
        let newer = self.start_by(&stranger, || Newer { n: 2 }).await?.id();
        let recent = self.start(|| Recent { n: 2 }).await?.id();
        let killed = self.start(|| Recent { n: 3 }).await?.id();
        let started = [
            (newer, Newer::NAME, 2),
            (recent, Recent::NAME, 2),
            (killed, Recent::NAME, 3),
        ];
        let mut well = true;
        for (chain, name, _) in started {
            let found = self.record(&stranger, chain).await?;
            if !found.as_ref().is_some_and(|found| is_of(found, name)) {
                well = false;
                let what = format!("a row is of its type: chain {chain} was started as {name}: {found:?}");
                self.broken.push(what);
            }
        }
        if !well {
            // What runs it as what cannot be known.
            return Ok(());
        }
        self.give_births_of(Role::Newer, 1)?;
        let runner = self.until_begun(killed).await?;
        let place = self.processes.iter().position(|process| process.name == runner);
        let place = place.ok_or_else(|| format!("{runner} runs a job, and is not there"))?;
        let mut runner = self.processes.swap_remove(place);
        self.log.note(format!("killed {}", runner.name))?;
        runner.child.kill().await?;
        let survivors = survivors.iter().zip(0..).map(|(chain, n)| (*chain, Recent::NAME, n));
        for (chain, name, n) in started.into_iter().chain(survivors) {
            let deadline = Instant::now() + PATIENCE;
            let found = loop {
                match self.record(&stranger, chain).await? {
                    Some(found) if found.status.is_open() && Instant::now() < deadline => {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    found => break found,
                }
            };
            let well = found.as_ref().is_some_and(|found| {
                let output = found.output.as_ref().and_then(|output| output.decode::<u64>().ok());
                is_of(found, name) && output == Some(result_of(name, n))
            });
            if !well {
                let what = format!("a row is run as its type: chain {chain} was started as {name}: {found:?}");
                self.broken.push(what);
            }
        }
        stranger.state().close().await;
        Ok(())
    }

    /// Lets there be so many processes of a role.
    fn give_births_of(&mut self, role: Role, count: usize) -> Result<()> {
        let there = self.processes.iter().filter(|process| process.role == role).count();
        for _ in there..count {
            let process = self.give_birth(role)?;
            self.processes.push(process);
        }
        Ok(())
    }

    /// Waits until the first job of a chain is run, and says by which process.
    async fn until_begun(&mut self, chain: ChainId) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        let chain = chain.to_string();
        loop {
            let lines = log::read(&self.directory)?;
            let begun = |line: &&log::Line| matches!(&*line.words, [word, job, ..] if word == "begun" && *job == chain);
            if let Some(line) = lines.iter().rfind(begun) {
                return Ok(line.process.clone());
            }
            if Instant::now() > deadline || self.ended_by_themselves()? {
                return Err(format!("nobody runs chain {chain}, so nothing can befall whoever does").into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until chains have been started and jobs been run since then.
    async fn until_at_work(&mut self, since: i64) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let lines = log::read(&self.directory)?;
            let count = |word: &str| {
                let lines = lines.iter().filter(|line| line.at > since);
                lines
                    .filter(|line| line.words.first().is_some_and(|first| first == word))
                    .count()
            };
            if count("begun") >= AT_WORK && count("ended") >= AT_WORK && count("acknowledged") > 0 {
                return Ok(());
            }
            if Instant::now() > deadline || self.ended_by_themselves()? {
                return Err("the processes do not work, so there is no load for a failover".into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A pool that nobody used during a restart learns of its dead connections one by one.
    async fn record(&self, client: &Client<S>, chain: ChainId) -> Result<Option<ChainRecord>, queuert::Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match client.get_chain_record(chain).await {
                Err(_) if Instant::now() < deadline => tokio::time::sleep(Duration::from_millis(50)).await,
                done => return done,
            }
        }
    }
}

/// Whether the store says that a chain began with this type.
fn is_of(found: &ChainRecord, type_name: &str) -> bool {
    found.type_name.as_str() == type_name && found.unreadable.is_none()
}
