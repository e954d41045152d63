//! A job that this process has claimed, and the attempt that it is for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use tokio::time::Instant;

use crate::__task::Lock;
use crate::adapter::{ClaimedJob, StateAdapter};
use crate::chain::ChainRecord;
use crate::event::{AttemptInfo, JobInfo};
use crate::job::JobRecord;
use crate::settings::LeaseSettings;
use crate::worker::attempt::in_flight::InFlight;
use crate::worker::context::{Context, RegisteredType};
use crate::worker::user::abort::{AbortHandle, AbortReason};
use crate::worker::user::shared::{HeldLease, SharedAttempt};

/// How many jobs of a chain may run one after the other before the chain is claimed like any other job again. A larger number
/// ends the chain sooner and makes other jobs wait longer: at most this many steps of each chain that was claimed before
/// them.
pub(crate) const STEPS_IN_A_ROW: u32 = 8;

/// An attempt that this process has claimed. While it exists, the renewer renews its lease.
///
/// Dropped without an end, it leaves its job to the expiry of the lease.
pub(crate) struct ClaimedAttempt<S: StateAdapter> {
    pub(crate) job_type: Arc<RegisteredType<S>>,
    pub(crate) shared: Arc<SharedAttempt<S>>,
    /// How many more jobs of the chain may be claimed with the end of the job before.
    pub(crate) steps_left: u32,
    in_flight: Arc<InFlight<S>>,
}

impl<S: StateAdapter> ClaimedAttempt<S> {
    /// Takes charge of claimed jobs: from here on the renewer renews their leases. `claimed_at` is the moment before the
    /// claim was sent: a lease cannot end before it plus the lease's duration.
    ///
    /// `steps` is how many jobs of a chain may run in a row, including this one.
    pub(crate) fn take_charge(
        context: &Context<S>,
        in_flight: &Arc<InFlight<S>>,
        jobs: Vec<ClaimedJob>,
        claimed_at: Instant,
        steps: u32,
    ) -> Vec<Self> {
        let attempts: Vec<Self> = jobs
            .into_iter()
            .filter_map(|claimed| Self::new(context, in_flight, claimed, claimed_at, steps))
            .collect();
        let earlier = in_flight.add(attempts.iter().map(|attempt| &attempt.shared));
        // This process has claimed a job again: its earlier attempt has lost the job, and nothing would renew that lease any
        // more. An earlier attempt that is settling has ended in good order, and the answer to its end is on its way.
        for earlier in earlier {
            if !earlier.settling.load(Ordering::SeqCst) {
                earlier.lost(AbortReason::TakenByAnotherWorker);
            }
        }
        attempts
    }

    /// `None` for a job without a lease or of a type that has no processor here: an adapter that breaks its contract leaves
    /// a job that cannot be settled, and its lease will expire.
    fn new(
        context: &Context<S>,
        in_flight: &Arc<InFlight<S>>,
        claimed: ClaimedJob,
        claimed_at: Instant,
        steps: u32,
    ) -> Option<Self> {
        let ClaimedJob { mut job, blockers } = claimed;
        let fence = job.lease.as_ref()?.fence;
        let (name, job_type) = context.types.get_key_value(&job.type_name)?;
        // The worker's own copies of the names: most are known at compile time, and cost nothing to clone.
        if let Some((name, _)) = context.types.get_key_value(&job.chain_type) {
            job.chain_type = name.clone();
        }
        job.type_name = name.clone();
        let info = AttemptInfo {
            job: JobInfo::of(&job),
            attempt: job.attempt,
            worker: context.worker.clone(),
            trace_context: job.trace_context.clone(),
            created_at: job.created_at,
            scheduled_at: job.scheduled_at,
            started_at: job.started_at.unwrap_or(job.created_at),
        };
        let LeaseSettings {
            duration, renew_every, ..
        } = job_type.lease;
        let shared = SharedAttempt {
            environment: Arc::clone(&context.environment),
            record: job,
            blockers,
            info: Arc::new(info),
            fence,
            lease: job_type.lease,
            max_attempts: job_type.retry.max_attempts,
            claimed_at,
            abort: AbortHandle::new(),
            held: Lock::new(HeldLease {
                renew_at: claimed_at + renew_every,
                expires_at: claimed_at + duration,
                doubted: false,
            }),
            settling: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            transaction: AtomicU8::new(0),
        };
        Some(Self {
            job_type: Arc::clone(job_type),
            shared: Arc::new(shared),
            steps_left: steps.saturating_sub(1),
            in_flight: Arc::clone(in_flight),
        })
    }

    /// Whether the abort signal has fired.
    pub(crate) fn is_aborted(&self) -> bool {
        self.shared.abort.reason().is_some()
    }

    /// The size of the payloads that came with the claim.
    pub(crate) fn payload_bytes(&self) -> usize {
        payload_bytes(&self.shared.record, &self.shared.blockers)
    }
}

impl<S: StateAdapter> Drop for ClaimedAttempt<S> {
    fn drop(&mut self) {
        self.in_flight.remove(&self.shared);
    }
}

/// The size of a claimed job's payloads: its input, and the outputs of the chains that it waited for.
pub(crate) fn payload_bytes(job: &JobRecord, blockers: &[ChainRecord]) -> usize {
    job.input.as_str().len() + output_bytes(blockers)
}

/// The size of the outputs of chains.
pub(crate) fn output_bytes(chains: &[ChainRecord]) -> usize {
    let outputs = chains.iter().filter_map(|chain| chain.output.as_ref());
    outputs.map(|output| output.as_str().len()).sum()
}
