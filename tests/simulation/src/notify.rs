//! Hints that get lost, repeated and delayed.

use std::time::Duration;

use queuert::NotifyError;
use queuert::adapter::{BoxFuture, Notice, NotifyAdapter, Subscription, Topic};

use crate::world::World;

/// The notify adapter of the simulation.
#[derive(Clone, Debug)]
pub struct SimulatedNotify(World);

impl SimulatedNotify {
    /// The adapter of a run.
    pub fn new(world: World) -> Self {
        Self(world)
    }

    fn carry(&self, notice: &Notice) -> Vec<Notice> {
        let world = &self.0;
        if world.chance("lost wake-up", |weather| weather.notice_lost) {
            return Vec::new();
        }
        if world.chance("late wake-up", |weather| weather.notice_late) {
            let late = Duration::from_millis(world.draw(|rng| rng.u64(1..3_000)));
            let (hub, notice) = (world.hub().clone(), notice.clone());
            tokio::spawn(async move {
                tokio::time::sleep(late).await;
                let _ = hub.announce(&[notice]).await;
            });
            return Vec::new();
        }
        if world.chance("repeated wake-up", |weather| weather.notice_repeated) {
            return vec![notice.clone(), notice.clone()];
        }
        vec![notice.clone()]
    }
}

impl NotifyAdapter for SimulatedNotify {
    fn announce<'a>(&'a self, notices: &'a [Notice]) -> BoxFuture<'a, Result<(), NotifyError>> {
        let world = &self.0;
        world.log(format_args!("announce {} notices", notices.len()));
        for notice in notices {
            world.check(|state, _| state.model.announced(notice));
        }
        Box::pin(async move {
            world.linger().await;
            if world.is_out() {
                return Err(NotifyError::new("the carrier is down"));
            }
            if world.chance("failed announcement", |weather| weather.error_before) {
                return Err(NotifyError::new("connection refused"));
            }
            let carried: Vec<_> = notices.iter().flat_map(|notice| self.carry(notice)).collect();
            world.hub().announce(&carried).await
        })
    }

    fn subscribe(&self, topic: Topic) -> BoxFuture<'_, Result<Subscription, NotifyError>> {
        let world = &self.0;
        Box::pin(async move {
            world.linger().await;
            if world.is_out() || world.chance("failed subscription", |weather| weather.error_before) {
                return Err(NotifyError::new("connection refused"));
            }
            world.hub().subscribe(topic).await
        })
    }
}
