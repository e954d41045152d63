//! The counters and histograms: their names, units and descriptions.

use opentelemetry::metrics::{Counter, Histogram, Meter};

/// From a millisecond to a day: jobs may take either.
const BOUNDARIES: [f64; 18] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 10_800.0,
    86_400.0,
];

macro_rules! counters {
    ($($counter:ident: $name:literal, $unit:literal, $description:literal;)+) => {
        /// One of the counters.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Count { $($counter,)+ }

        /// How many there are.
        pub(crate) const COUNTERS: usize = [$(Count::$counter,)+].len();

        fn counters(meter: &Meter) -> [Counter<u64>; COUNTERS] {
            [$(meter.u64_counter($name).with_unit($unit).with_description($description).build(),)+]
        }
    };
}

counters! {
    WorkerStarted: "queuert.worker.started", "{worker}", "Sets of workers that started.";
    WorkerDegraded: "queuert.worker.degraded", "{worker}", "Times that workers found their store failing.";
    WorkerRecovered: "queuert.worker.recovered", "{worker}", "Times that the store answered again.";
    WorkerStopping: "queuert.worker.stopping", "{worker}", "Sets of workers that were asked to stop.";
    WorkerStopped: "queuert.worker.stopped", "{worker}", "Sets of workers that stopped.";
    ChainCreated: "queuert.chain.created", "{chain}", "Chains that were started.";
    ChainDeduplicated: "queuert.chain.deduplicated", "{chain}", "Starts that found their key taken.";
    ChainCompleted: "queuert.chain.completed", "{chain}", "Chains that completed.";
    ChainDead: "queuert.chain.dead", "{chain}", "Chains that died.";
    ChainCancelled: "queuert.chain.cancelled", "{chain}", "Chains that were cancelled.";
    ChainRetried: "queuert.chain.retried", "{chain}", "Chains that were sent on their way again.";
    ChainDeleted: "queuert.chain.deleted", "{chain}", "Chains that were deleted.";
    JobCreated: "queuert.job.created", "{job}", "Jobs that were created.";
    JobBlocked: "queuert.job.blocked", "{job}", "Jobs that were created to wait for other chains.";
    JobUnblocked: "queuert.job.unblocked", "{job}", "Jobs whose last blocker completed.";
    JobTriggered: "queuert.job.triggered", "{job}", "Jobs that were made due by hand.";
    JobCompleted: "queuert.job.completed", "{job}", "Jobs that were completed.";
    JobDead: "queuert.job.dead", "{job}", "Jobs that died.";
    JobCancelled: "queuert.job.cancelled", "{job}", "Jobs that were cancelled.";
    JobReaped: "queuert.job.reaped", "{job}", "Jobs whose lease expired and was taken.";
    AttemptStarted: "queuert.attempt.started", "{attempt}", "Attempts that began.";
    AttemptFinished: "queuert.attempt.finished", "{attempt}", "Attempts that finished their chain.";
    AttemptContinued: "queuert.attempt.continued", "{attempt}", "Attempts that continued their chain.";
    AttemptFailed: "queuert.attempt.failed", "{attempt}", "Attempts that failed and will be retried.";
    AttemptDied: "queuert.attempt.died", "{attempt}", "Attempts that failed for good.";
    AttemptSnoozed: "queuert.attempt.snoozed", "{attempt}", "Attempts that asked to run later.";
    AttemptTimedOut: "queuert.attempt.timed_out", "{attempt}", "Attempts that ran too long; they also fail.";
    AttemptAborted: "queuert.attempt.aborted", "{attempt}", "Attempts that lost their job.";
    LeaseRenewed: "queuert.lease.renewed", "{lease}", "Leases that were extended.";
    LeaseLost: "queuert.lease.lost", "{lease}", "Leases that were lost while their attempt ran.";
    StateFailed: "queuert.state.failed", "{call}", "Calls to the store that failed.";
    NotifyFailed: "queuert.notify.failed", "{call}", "Calls to the notify adapter that failed.";
    MaintenanceFinding: "queuert.maintenance.findings", "{finding}", "What the store's upkeep found.";
    Advice: "queuert.advice.given", "{advice}", "What the library took for a mistake of the program's, and said.";
    EventsMissed: "queuert.event.missed", "{event}", "Events that were dropped before they could be counted.";
}

/// All of them, not bound to any attributes yet.
pub(crate) struct Instruments {
    counters: [Counter<u64>; COUNTERS],
    pub(crate) attempt: Histogram<f64>,
    pub(crate) job: Histogram<f64>,
    pub(crate) chain: Histogram<f64>,
    pub(crate) wait: Histogram<f64>,
}

impl Instruments {
    pub(crate) fn new(meter: &Meter) -> Self {
        let histogram = |name: &'static str, description: &'static str| {
            meter
                .f64_histogram(name)
                .with_unit("s")
                .with_description(description)
                .with_boundaries(BOUNDARIES.to_vec())
                .build()
        };
        Self {
            counters: counters(meter),
            attempt: histogram("queuert.attempt.duration", "How long attempts ran."),
            job: histogram(
                "queuert.job.duration",
                "How long jobs took from their creation to their end.",
            ),
            chain: histogram(
                "queuert.chain.duration",
                "How long chains took from their start to their end.",
            ),
            wait: histogram("queuert.job.wait", "How long jobs were due before they were claimed."),
        }
    }

    pub(crate) fn counter(&self, count: Count) -> &Counter<u64> {
        &self.counters[count as usize]
    }
}
