//! Per type: what is due by rank, what is due later by time, and what runs by the end of its lease.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::time::Duration;

use super::store::{Row, Rows};
use crate::adapter::rank;
use crate::id::JobId;
use crate::job::{JobStatus, TypeName};
use crate::time::Timestamp;

/// The queues of all types. Types are interned, so that only the creation of a job looks at a name.
#[derive(Debug)]
pub(super) struct Queues {
    ageing_step: Duration,
    names: HashMap<TypeName, usize>,
    types: Vec<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// By rank. A job may be here before its time if the clock was set back: `take_due` checks the time.
    due: BTreeSet<(i64, JobId)>,
    /// By time. Kept apart, so that jobs due later never lie in the way of a claim.
    later: BTreeSet<(Timestamp, JobId)>,
    /// Running jobs by the end of their lease.
    leases: BTreeSet<(Timestamp, JobId)>,
}

impl Queues {
    pub(super) fn new(ageing_step: Duration) -> Self {
        Self {
            ageing_step,
            names: HashMap::new(),
            types: Vec::new(),
        }
    }

    pub(super) fn intern(&mut self, name: &TypeName) -> usize {
        if let Some(index) = self.names.get(name) {
            return *index;
        }
        let index = self.types.len();
        self.names.insert(name.clone(), index);
        self.types.push(Queue::default());
        index
    }

    /// The types that have ever been stored, each once, in the order given and with its place there.
    pub(super) fn known<'a>(&self, names: impl Iterator<Item = &'a TypeName>) -> Vec<(usize, usize)> {
        let mut seen = BTreeSet::new();
        names
            .enumerate()
            .filter_map(|(place, name)| self.names.get(name).map(|index| (*index, place)))
            .filter(|(index, _)| seen.insert(*index))
            .collect()
    }

    fn rank(&self, row: &Row) -> i64 {
        rank(
            row.place.unwrap_or(row.job.scheduled_at),
            row.job.priority,
            self.ageing_step,
        )
    }

    pub(super) fn insert(&mut self, row: &Row, now: Timestamp) {
        let job = &row.job;
        match (job.status, &job.lease) {
            (JobStatus::Pending, _) if job.scheduled_at <= now => {
                let rank = self.rank(row);
                self.types[row.type_index].due.insert((rank, job.id));
            }
            (JobStatus::Pending, _) => {
                self.types[row.type_index].later.insert((job.scheduled_at, job.id));
            }
            (JobStatus::Running, Some(lease)) => {
                self.types[row.type_index].leases.insert((lease.until, job.id));
            }
            _ => {}
        }
    }

    pub(super) fn remove(&mut self, row: &Row) {
        let job = &row.job;
        match (job.status, &job.lease) {
            (JobStatus::Pending, _) => {
                let rank = self.rank(row);
                let queue = &mut self.types[row.type_index];
                if !queue.due.remove(&(rank, job.id)) {
                    queue.later.remove(&(job.scheduled_at, job.id));
                }
            }
            (JobStatus::Running, Some(lease)) => {
                self.types[row.type_index].leases.remove(&(lease.until, job.id));
            }
            _ => {}
        }
    }

    /// Moves what has become due. Each job is moved once, so the cost is that of the jobs, not of the claims.
    fn promote(&mut self, index: usize, rows: &Rows, now: Timestamp) {
        while let Some((time, id)) = self.types[index].later.first().copied()
            && time <= now
        {
            self.types[index].later.pop_first();
            if let Some(row) = rows.get(&id) {
                let rank = self.rank(row);
                self.types[index].due.insert((rank, id));
            }
        }
    }

    /// Takes up to `limit` due jobs of the types out of their queues, in order of rank over all of them. What `skip`
    /// refuses stays; before the first that `admit` refuses, the taking ends. Each comes with the place of its type in the
    /// request.
    pub(super) fn take_due(
        &mut self,
        types: &[(usize, usize)],
        rows: &Rows,
        limit: usize,
        now: Timestamp,
        skip: impl Fn(&Row) -> bool,
        mut admit: impl FnMut(&Row) -> bool,
    ) -> Vec<(JobId, usize)> {
        for (index, _) in types {
            self.promote(*index, rows, now);
        }
        let mut heads: BinaryHeap<_> = types
            .iter()
            .filter_map(|(index, place)| {
                let head = self.types[*index].due.first()?;
                Some(Reverse((*head, *index, *place)))
            })
            .collect();
        let mut taken = Vec::new();
        let mut skipped = Vec::new();
        while taken.len() < limit
            && let Some(Reverse((head, index, place))) = heads.pop()
        {
            let queue = &mut self.types[index];
            queue.due.pop_first();
            if let Some(next) = queue.due.first() {
                heads.push(Reverse((*next, index, place)));
            }
            match rows.get(&head.1) {
                Some(row) if row.job.scheduled_at > now => {
                    queue.later.insert((row.job.scheduled_at, head.1));
                }
                Some(row) if skip(row) => skipped.push((index, head)),
                Some(row) if !admit(row) => {
                    queue.due.insert(head);
                    break;
                }
                Some(_) => taken.push((head.1, place)),
                None => {}
            }
        }
        for (index, head) in skipped {
            self.types[index].due.insert(head);
        }
        taken
    }

    /// The time until the next pending job of the types is due: `busy` if it is due already and was skipped.
    pub(super) fn next_due(&self, types: &[(usize, usize)], now: Timestamp, busy: Duration) -> Option<Duration> {
        let wait = |(index, _): &(usize, usize)| {
            let queue = &self.types[*index];
            let later = queue.later.first().map(|(time, _)| time.saturating_duration_since(now));
            let due = queue.due.first().map(|_| busy);
            due.into_iter().chain(later).min()
        };
        types.iter().filter_map(wait).min()
    }

    /// How many jobs of a type are due, counted up to `limit`, and the earliest time of those that were looked at.
    pub(super) fn ready(
        &self,
        name: &TypeName,
        rows: &Rows,
        limit: usize,
        now: Timestamp,
    ) -> (usize, Option<Timestamp>) {
        let Some(queue) = self.names.get(name).map(|index| &self.types[*index]) else {
            return (0, None);
        };
        let due = queue.due.iter().filter_map(|(_, id)| rows.get(id));
        let due = due.map(|row| row.job.scheduled_at).filter(|time| *time <= now);
        let promoted_next = queue.later.range(..=(now, LAST)).map(|(time, _)| *time);
        let seen = due.chain(promoted_next).take(limit);
        seen.fold((0, None), |(count, earliest), time| {
            (
                count + 1,
                Some(earliest.map_or(time, |earliest: Timestamp| earliest.min(time))),
            )
        })
    }

    /// Up to `limit` jobs of the types whose lease has expired, oldest expiry first, without those that `skip` refuses.
    pub(super) fn expired(
        &self,
        types: &[(usize, usize)],
        limit: usize,
        now: Timestamp,
        skip: impl Fn(JobId) -> bool,
    ) -> Vec<(JobId, usize)> {
        let mut leases: Vec<_> = types
            .iter()
            .map(|(index, place)| (self.types[*index].leases.range(..=(now, LAST)), *place))
            .collect();
        let mut heads: BinaryHeap<_> = leases
            .iter_mut()
            .enumerate()
            .filter_map(|(source, (leases, _))| leases.next().map(|head| Reverse((*head, source))))
            .collect();
        let mut expired = Vec::new();
        while expired.len() < limit
            && let Some(Reverse(((_, id), source))) = heads.pop()
        {
            let (leases, place) = &mut leases[source];
            if let Some(next) = leases.next() {
                heads.push(Reverse((*next, source)));
            }
            if !skip(id) {
                expired.push((id, *place));
            }
        }
        expired
    }

    /// How many entries there are, and how many of them are this row's.
    #[cfg(test)]
    pub(super) fn count(&self, row: &Row) -> (usize, usize) {
        let rank = self.rank(row);
        let total = |queue: &Queue| queue.due.len() + queue.later.len() + queue.leases.len();
        let queue = &self.types[row.type_index];
        let until = row.job.lease.as_ref().map(|lease| lease.until);
        let places = [
            queue.due.contains(&(rank, row.job.id)),
            queue.later.contains(&(row.job.scheduled_at, row.job.id)),
            until.is_some_and(|until| queue.leases.contains(&(until, row.job.id))),
        ];
        let own = places.into_iter().filter(|present| *present).count();
        (self.types.iter().map(total).sum(), own)
    }

    pub(super) fn set_ageing_step(&mut self, step: Duration, rows: &Rows) {
        self.ageing_step = step;
        for index in 0..self.types.len() {
            let due = std::mem::take(&mut self.types[index].due);
            let ranked: BTreeSet<_> = due
                .into_iter()
                .filter_map(|(_, id)| rows.get(&id).map(|row| (self.rank(row), id)))
                .collect();
            self.types[index].due = ranked;
        }
    }
}

pub(super) const FIRST: JobId = JobId::from_uuid(uuid::Uuid::nil());
pub(super) const LAST: JobId = JobId::from_uuid(uuid::Uuid::max());
