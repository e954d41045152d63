//! Starts: which chains are created, which repeat another, and when all are refused.

use std::collections::{HashMap, HashSet};

use crate::adapter::{CreatedChain, NewChain, NewJob, Refusal};
use crate::deduplication::DeduplicationScope;
use crate::id::{ChainId, JobId};
use crate::job::{JobRecord, JobStatus, TypeName};
use crate::time::Timestamp;

/// What a call of [`create_chains`](crate::adapter::StateAdapter::create_chains) creates.
#[derive(Debug, Default)]
pub struct StartPlan<'a> {
    /// The answer, in the order of the call. It ends before the item that is refused.
    pub created: Vec<CreatedChain>,
    /// The chains to be written, in the order of the call.
    pub starts: Vec<PlannedStart<'a>>,
    /// The ids that must be free, in the order of the call: those of all starts, and of the item that is refused.
    ids: Vec<JobId>,
    /// Why an item is refused, if its id is free.
    refusal: Option<Refusal>,
}

/// A chain to be written.
#[derive(Debug)]
#[non_exhaustive]
pub struct PlannedStart<'a> {
    /// The chain.
    pub chain: &'a NewChain,
    /// The status of its first job.
    pub status: JobStatus,
    /// How many of its blockers have not completed. A chain that is given twice counts twice.
    pub open_blockers: usize,
    /// Whether a later chain of the call has it as blocker.
    pub awaited: bool,
}

impl StartPlan<'_> {
    /// Whether the plan is refused for a reason that needs no look at stored ids. [`refusal`](Self::refusal) has the reason
    /// that the caller is told.
    pub fn is_refused(&self) -> bool {
        self.refusal.is_some()
    }

    /// The ids that must be free.
    pub fn ids(&self) -> &[JobId] {
        &self.ids
    }

    /// Why the plan is refused, given which ids exist in the store; `None` if it may be written. The first item that is
    /// refused counts, and of one item the id.
    pub fn refusal(&self, exists: impl Fn(JobId) -> bool) -> Option<Refusal> {
        let mut seen = HashSet::with_capacity(self.ids.len());
        let taken = self.ids.iter().find(|id| exists(**id) || !seen.insert(**id));
        taken.map(|id| Refusal::IdTaken(*id)).or_else(|| self.refusal.clone())
    }
}

/// Plans a call. `duplicate` gives for the item at this place the newest chain in the store that [`counts`]; `status_of` the
/// status of a chain in the store, for chains that the call names as blockers. An earlier item of the call counts as
/// stored, for keys and for blockers.
pub fn plan_starts<'a>(
    chains: &'a [NewChain],
    duplicate: impl Fn(usize) -> Option<CreatedChain>,
    status_of: impl Fn(ChainId) -> Option<JobStatus>,
) -> StartPlan<'a> {
    let mut plan = StartPlan::default();
    let mut keys = KeysOfCall::new();
    // Only a call with blockers has to find its own chains again.
    let linked = chains.iter().any(|chain| !chain.job.blockers.is_empty());
    let mut own: HashMap<ChainId, usize> = HashMap::new();
    for (place, chain) in chains.iter().enumerate() {
        if let Some(found) = keys.find(chain).or_else(|| duplicate(place)) {
            plan.created.push(found);
            continue;
        }
        let (job, id) = (&chain.job, chain.job.id.as_chain());
        plan.ids.push(job.id);
        let status = |blocker: ChainId| match own.get(&blocker) {
            Some(start) => plan.starts.get(*start).map(|start| start.status),
            None => status_of(blocker),
        };
        if let Some(refusal) = missing_blocker(job, |blocker| status(blocker).is_some()) {
            plan.refusal = Some(refusal);
            break;
        }
        let is_open = |blocker: &&ChainId| status(**blocker) != Some(JobStatus::Completed);
        let open_blockers = job.blockers.iter().filter(is_open).count();
        for blocker in &job.blockers {
            if let Some(start) = own.get(blocker).and_then(|start| plan.starts.get_mut(*start)) {
                start.awaited = true;
            }
        }
        let status = if open_blockers == 0 {
            JobStatus::Pending
        } else {
            JobStatus::Blocked
        };
        if linked {
            own.insert(id, plan.starts.len());
        }
        keys.created(chain, status);
        plan.created.push(CreatedChain {
            id,
            status,
            deduplicated: false,
        });
        plan.starts.push(PlannedStart {
            chain,
            status,
            open_blockers,
            awaited: false,
        });
    }
    plan
}

/// Whether a stored chain with the wanted type and key counts in this scope: an open one always, an ended one if the scope
/// covers its creation. [`Deduplication::except`](crate::Deduplication::except) leaves it out all the same.
pub fn counts(scope: DeduplicationScope, created_at: Timestamp, open: bool, now: Timestamp) -> bool {
    open || scope.ended_since(now).is_some_and(|since| created_at >= since)
}

/// Whether a new job can be created: its id is free, and its blockers exist.
///
/// # Errors
///
/// [`Refusal::IdTaken`] or [`Refusal::BlockerNotFound`].
pub fn check_new_job(job: &NewJob, id_taken: bool, exists: impl Fn(ChainId) -> bool) -> Result<(), Refusal> {
    if id_taken {
        return Err(Refusal::IdTaken(job.id));
    }
    missing_blocker(job, exists).map_or(Ok(()), Err)
}

fn missing_blocker(job: &NewJob, exists: impl Fn(ChainId) -> bool) -> Option<Refusal> {
    let missing = job.blockers.iter().find(|chain| !exists(**chain))?;
    Some(Refusal::BlockerNotFound {
        job: job.id,
        chain: *missing,
    })
}

/// The status of a job that waits: blocked while one of the blockers has not completed, pending otherwise.
pub fn waiting_status(blockers: &[ChainId], completed: impl Fn(ChainId) -> bool) -> JobStatus {
    if blockers.iter().all(|chain| completed(*chain)) {
        JobStatus::Pending
    } else {
        JobStatus::Blocked
    }
}

/// The record of a new job, at this place of this chain, in this status. The store adds the deduplication key to the first
/// job of a chain, and [`claim`](super::claim)s a job that is handed over.
pub fn new_job(
    job: &NewJob,
    chain_id: ChainId,
    chain_type: TypeName,
    chain_index: u32,
    status: JobStatus,
    now: Timestamp,
) -> JobRecord {
    JobRecord {
        id: job.id,
        type_name: job.type_name.clone(),
        chain_id,
        chain_type,
        chain_index,
        input: job.input.clone(),
        output: None,
        status,
        priority: job.priority,
        attempt: 0,
        claims: 0,
        max_attempts: job.max_attempts,
        created_at: now,
        scheduled_at: job.schedule.resolve(now),
        started_at: None,
        ended_at: None,
        completed_by: None,
        last_error: None,
        lease: None,
        deduplication_key: None,
        trace_context: job.trace_context.clone(),
        unreadable: None,
    }
}

/// The chains with a deduplication key that one call of [`create_chains`](crate::adapter::StateAdapter::create_chains) has created
/// so far. An earlier item of a call counts for a later one in every scope: it is open, and it was created now.
///
/// Asking for one item and noting one item each cost the same, however many items the call has: a store asks for every
/// item before it looks at what it had stored, and notes every chain that it creates.
#[derive(Debug, Default)]
pub struct KeysOfCall<'a> {
    /// By type and key, in order of id.
    chains: HashMap<(&'a str, &'a str), Vec<(ChainId, JobStatus)>>,
}

impl<'a> KeysOfCall<'a> {
    /// Nothing has been created yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The chain of this call that the item repeats: of those that it does not leave out, the one with the largest id.
    /// `None` if it has no key, or repeats none. It wins over whatever the store had before the call, which is older.
    pub fn find(&self, chain: &NewChain) -> Option<CreatedChain> {
        let wanted = chain.deduplication.as_ref()?;
        let earlier = self.chains.get(&(chain.job.type_name.as_str(), wanted.key.as_str()))?;
        let except: HashSet<&ChainId> = wanted.except.iter().collect();
        let (id, status) = earlier.iter().rev().find(|(id, _)| !except.contains(id))?;
        Some(CreatedChain {
            id: *id,
            status: *status,
            deduplicated: true,
        })
    }

    /// Notes that the item was created as a chain in this status.
    pub fn created(&mut self, chain: &'a NewChain, status: JobStatus) {
        let Some(wanted) = &chain.deduplication else {
            return;
        };
        let key = (chain.job.type_name.as_str(), wanted.key.as_str());
        let id = chain.job.id.as_chain();
        let chains = self.chains.entry(key).or_default();
        let place = chains.partition_point(|(other, _)| *other < id);
        chains.insert(place, (id, status));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::super::tests::NOW;
    use super::*;
    use crate::deduplication::Deduplication;
    use crate::payload::Payload;

    fn chain(id: u128, type_name: &'static str, key: Option<Deduplication>) -> NewChain {
        let id = JobId::from_uuid(Uuid::from_u128(id));
        let mut chain = NewChain::new(NewJob::new(id, type_name, Payload::from_text("1")));
        chain.deduplication = key;
        chain
    }

    fn found(keys: &KeysOfCall<'_>, type_name: &'static str, key: Deduplication) -> Option<u128> {
        let found = keys.find(&chain(99, type_name, Some(key)))?;
        assert!(found.deduplicated);
        Some(found.id.as_uuid().as_u128())
    }

    #[test]
    fn a_key_of_a_type_gives_the_chain_with_the_largest_id() {
        let key = || Some(Deduplication::while_open("key"));
        let chains = [
            chain(2, "mail", key()),
            chain(3, "mail", key()),
            chain(1, "mail", key()),
        ];
        let mut keys = KeysOfCall::new();
        assert_eq!(found(&keys, "mail", "key".into()), None);
        for chain in &chains {
            keys.created(chain, JobStatus::Pending);
        }
        assert_eq!(found(&keys, "mail", "key".into()), Some(3));
        assert_eq!(found(&keys, "mail", Deduplication::forever("key")), Some(3));
        assert_eq!(found(&keys, "mail", "other".into()), None);
        assert_eq!(found(&keys, "other", "key".into()), None);
    }

    #[test]
    fn a_chain_that_is_left_out_does_not_count() {
        let chains = [1, 2, 3].map(|id| chain(id, "mail", Some("key".into())));
        let mut keys = KeysOfCall::new();
        for chain in &chains {
            keys.created(chain, JobStatus::Blocked);
        }
        let ids = chains.each_ref().map(|chain| chain.job.id.as_chain());
        let without = |ids: &[ChainId]| Deduplication::while_open("key").except_ids(ids.iter().copied());
        assert_eq!(found(&keys, "mail", without(&ids[2..])), Some(2));
        assert_eq!(found(&keys, "mail", without(&ids[1..])), Some(1));
        assert_eq!(found(&keys, "mail", without(&ids)), None);
    }

    #[test]
    fn a_chain_without_a_key_is_not_noted_and_finds_nothing() {
        let keyless = chain(1, "mail", None);
        let mut keys = KeysOfCall::new();
        keys.created(&keyless, JobStatus::Pending);
        assert!(keys.chains.is_empty());
        assert_eq!(keys.find(&keyless), None);
    }

    /// A chain with these blockers.
    fn waiting(id: u128, blockers: &[u128]) -> NewChain {
        let mut chain = chain(id, "mail", None);
        let blockers = blockers.iter().map(|id| ChainId::from_uuid(Uuid::from_u128(*id)));
        chain.job.blockers = blockers.collect();
        chain
    }

    /// In the store, chain 100 is open, 101 has completed and 102 is dead.
    fn stored(chain: ChainId) -> Option<JobStatus> {
        match chain.as_uuid().as_u128() {
            100 => Some(JobStatus::Running),
            101 => Some(JobStatus::Completed),
            102 => Some(JobStatus::Dead),
            _ => None,
        }
    }

    #[test]
    fn a_plan_follows_the_blockers_of_its_items() {
        const PENDING: JobStatus = JobStatus::Pending;
        const BLOCKED: JobStatus = JobStatus::Blocked;
        // The blockers of the second of two chains, 1 and 2; its status, its open blockers, whether the first is awaited.
        for (blockers, status, open, awaited) in [
            (&[][..], PENDING, 0, false),
            (&[101], PENDING, 0, false),
            (&[100], BLOCKED, 1, false),
            (&[102, 101], BLOCKED, 1, false),
            (&[100, 100, 101], BLOCKED, 2, false),
            (&[1], BLOCKED, 1, true),
            (&[101, 1, 1], BLOCKED, 2, true),
        ] {
            let chains = [waiting(1, &[]), waiting(2, blockers)];
            let plan = plan_starts(&chains, |_| None, stored);
            assert!(!plan.is_refused() && plan.refusal(|_| false).is_none());
            let [first, second] = &plan.starts[..] else {
                panic!("{plan:?}")
            };
            assert_eq!((first.status, first.awaited), (PENDING, awaited), "{blockers:?}");
            assert_eq!((second.status, second.open_blockers), (status, open), "{blockers:?}");
            assert_eq!(plan.created[1].status, status);
        }
    }

    #[test]
    fn the_first_refusal_of_a_plan_counts_and_of_one_item_the_id() {
        let id = |id: u128| JobId::from_uuid(Uuid::from_u128(id));
        let missing = |job: u128, chain: u128| {
            Some(Refusal::BlockerNotFound {
                job: id(job),
                chain: id(chain).as_chain(),
            })
        };
        let taken = |job: u128| Some(Refusal::IdTaken(id(job)));
        // Ids with their blockers, ids that the store has; the refusal.
        let cases: [(&[(u128, &[u128])], &[u128], Option<Refusal>); 10] = [
            (&[(1, &[]), (2, &[])], &[], None),
            (&[(1, &[]), (2, &[])], &[2], taken(2)),
            (&[(1, &[]), (2, &[])], &[1, 2], taken(1)),
            (&[(1, &[]), (1, &[])], &[], taken(1)),
            (&[(1, &[]), (2, &[7, 8])], &[], missing(2, 7)),
            (&[(1, &[2]), (2, &[])], &[], missing(1, 2)),
            (&[(1, &[1])], &[], missing(1, 1)),
            (&[(1, &[]), (2, &[7])], &[1], taken(1)),
            (&[(1, &[7])], &[1], taken(1)),
            (&[(1, &[7]), (2, &[])], &[2], missing(1, 7)),
        ];
        for (items, existing, expected) in cases {
            let chains: Vec<_> = items.iter().map(|(id, blockers)| waiting(*id, blockers)).collect();
            let plan = plan_starts(&chains, |_| None, stored);
            let exists = |id: JobId| existing.contains(&id.as_uuid().as_u128());
            assert_eq!(plan.refusal(exists), expected, "{items:?} {existing:?}");
        }
    }

    #[test]
    fn a_key_wins_over_an_id() {
        let key = || Some(Deduplication::while_open("key"));
        let chains = [
            chain(1, "mail", key()),
            chain(1, "mail", key()),
            chain(3, "page", key()),
        ];
        let old = CreatedChain {
            id: ChainId::from_uuid(Uuid::from_u128(9)),
            status: JobStatus::Running,
            deduplicated: true,
        };
        let plan = plan_starts(&chains, |place| (place == 2).then(|| old.clone()), stored);
        assert_eq!(plan.refusal(|_| false), None);
        assert_eq!(plan.starts.len(), 1);
        let answers: Vec<_> = plan
            .created
            .iter()
            .map(|one| (one.id.as_uuid().as_u128(), one.deduplicated))
            .collect();
        assert_eq!(answers, [(1, false), (1, true), (9, true)]);
    }

    #[test]
    fn an_open_chain_counts_in_every_scope_and_an_ended_one_by_its_age() {
        let minute = Duration::from_secs(60);
        let (old, young) = (NOW.saturating_sub(minute * 2), NOW.saturating_sub(minute / 2));
        let (open, within, any) = (
            DeduplicationScope::Open,
            DeduplicationScope::Within(minute),
            DeduplicationScope::Any,
        );
        for (scope, created_at, is_open, expected) in [
            (open, old, true, true),
            (within, old, true, true),
            (any, old, true, true),
            (open, young, false, false),
            (within, young, false, true),
            (within, NOW.saturating_sub(minute), false, true),
            (within, old, false, false),
            (any, old, false, true),
        ] {
            assert_eq!(
                counts(scope, created_at, is_open, NOW),
                expected,
                "{scope:?} {created_at}"
            );
        }
    }

    #[test]
    fn a_job_waits_until_all_of_its_blockers_have_completed() {
        let ids = [100, 101, 102].map(|id| ChainId::from_uuid(Uuid::from_u128(id)));
        let completed = |chain| stored(chain) == Some(JobStatus::Completed);
        for (blockers, expected) in [
            (&ids[..0], JobStatus::Pending),
            (&ids[1..2], JobStatus::Pending),
            (&ids[..2], JobStatus::Blocked),
            (&ids[2..], JobStatus::Blocked),
        ] {
            assert_eq!(waiting_status(blockers, completed), expected, "{blockers:?}");
        }
    }

    #[test]
    fn a_new_job_needs_a_free_id_and_blockers_that_exist() {
        let job = waiting(1, &[100, 7]).job;
        let exists = |chain| stored(chain).is_some();
        assert_eq!(check_new_job(&job, true, exists), Err(Refusal::IdTaken(job.id)));
        let missing = check_new_job(&job, false, exists);
        let chain = job.blockers[1];
        assert_eq!(missing, Err(Refusal::BlockerNotFound { job: job.id, chain }));
        assert_eq!(check_new_job(&waiting(1, &[100, 102]).job, false, exists), Ok(()));
    }
}
