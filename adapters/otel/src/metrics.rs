//! Metrics: a counter for every event, histograms of durations, gauges. No attribute holds an id.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use opentelemetry::metrics::{Counter, Histogram, Meter};
use opentelemetry::{KeyValue, StringValue};
use queuert::{AttemptInfo, AttemptOutcome, Event, TypeName};

use crate::attributes as names;
use crate::queues::Gauges;
pub(crate) use crate::queues::Running;

/// From a millisecond to a day: jobs may take either.
const BOUNDARIES: [f64; 18] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 10_800.0,
    86_400.0,
];

macro_rules! instruments {
    ($($field:ident: $name:literal, $unit:literal, $description:literal;)+) => {
        struct Counters { $($field: Counter<u64>,)+ }

        impl Counters {
            fn new(meter: &Meter) -> Self {
                Self {
                    $($field: meter.u64_counter($name).with_unit($unit).with_description($description).build(),)+
                }
            }
        }
    };
}

instruments! {
    worker_started: "queuert.worker.started", "{worker}", "Sets of workers that started.";
    worker_degraded: "queuert.worker.degraded", "{worker}", "Times that workers found their store failing.";
    worker_recovered: "queuert.worker.recovered", "{worker}", "Times that the store answered again.";
    worker_stopping: "queuert.worker.stopping", "{worker}", "Sets of workers that were asked to stop.";
    worker_stopped: "queuert.worker.stopped", "{worker}", "Sets of workers that stopped.";
    chain_created: "queuert.chain.created", "{chain}", "Chains that were started.";
    chain_deduplicated: "queuert.chain.deduplicated", "{chain}", "Starts that found their key taken.";
    chain_completed: "queuert.chain.completed", "{chain}", "Chains that completed.";
    chain_dead: "queuert.chain.dead", "{chain}", "Chains that died.";
    chain_cancelled: "queuert.chain.cancelled", "{chain}", "Chains that were cancelled.";
    chain_retried: "queuert.chain.retried", "{chain}", "Chains that were sent on their way again.";
    chain_deleted: "queuert.chain.deleted", "{chain}", "Chains that were deleted.";
    job_created: "queuert.job.created", "{job}", "Jobs that were created.";
    job_blocked: "queuert.job.blocked", "{job}", "Jobs that were created to wait for other chains.";
    job_unblocked: "queuert.job.unblocked", "{job}", "Jobs whose last blocker completed.";
    job_triggered: "queuert.job.triggered", "{job}", "Jobs that were made due by hand.";
    job_completed: "queuert.job.completed", "{job}", "Jobs that were completed.";
    job_dead: "queuert.job.dead", "{job}", "Jobs that died.";
    job_cancelled: "queuert.job.cancelled", "{job}", "Jobs that were cancelled.";
    job_reaped: "queuert.job.reaped", "{job}", "Jobs whose lease expired and was taken.";
    attempt_started: "queuert.attempt.started", "{attempt}", "Attempts that began.";
    attempt_finished: "queuert.attempt.finished", "{attempt}", "Attempts that finished their chain.";
    attempt_continued: "queuert.attempt.continued", "{attempt}", "Attempts that continued their chain.";
    attempt_failed: "queuert.attempt.failed", "{attempt}", "Attempts that failed and will be retried.";
    attempt_died: "queuert.attempt.died", "{attempt}", "Attempts that failed for good.";
    attempt_snoozed: "queuert.attempt.snoozed", "{attempt}", "Attempts that asked to run later.";
    attempt_timed_out: "queuert.attempt.timed_out", "{attempt}", "Attempts that ran too long; they also fail.";
    attempt_aborted: "queuert.attempt.aborted", "{attempt}", "Attempts that lost their job.";
    lease_renewed: "queuert.lease.renewed", "{lease}", "Leases that were extended.";
    lease_lost: "queuert.lease.lost", "{lease}", "Leases that were lost while their attempt ran.";
    state_failed: "queuert.state.failed", "{call}", "Calls to the store that failed.";
    notify_failed: "queuert.notify.failed", "{call}", "Calls to the notify adapter that failed.";
    maintenance_finding: "queuert.maintenance.findings", "{finding}", "What the store's upkeep found.";
}

struct Histograms {
    attempt: Histogram<f64>,
    job: Histogram<f64>,
    chain: Histogram<f64>,
    wait: Histogram<f64>,
}

impl Histograms {
    fn new(meter: &Meter) -> Self {
        let histogram = |name: &'static str, description: &'static str| {
            meter
                .f64_histogram(name)
                .with_unit("s")
                .with_description(description)
                .with_boundaries(BOUNDARIES.to_vec())
                .build()
        };
        Self {
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
}

pub(crate) struct Metrics {
    counters: Counters,
    histograms: Histograms,
    gauges: Gauges,
    job_types: Types,
    chain_types: Types,
}

impl Metrics {
    pub(crate) fn new(meter: &Meter) -> Self {
        let gauges = Gauges::default();
        observe(meter, &gauges);
        Self {
            counters: Counters::new(meter),
            histograms: Histograms::new(meter),
            gauges,
            job_types: Types::new(names::JOB_TYPE),
            chain_types: Types::new(names::CHAIN_TYPE),
        }
    }

    /// Counts an attempt as running.
    pub(crate) fn running(&self) -> Running {
        self.gauges.run()
    }

    pub(crate) fn record(&self, event: &Event) {
        let counters = &self.counters;
        let job = |counter: &Counter<u64>, name| counter.add(1, &[self.job_types.attribute(name)]);
        let chain = |counter: &Counter<u64>, name| counter.add(1, &[self.chain_types.attribute(name)]);
        match event {
            Event::WorkerStarted { worker, concurrency } => {
                self.gauges.started(worker, *concurrency);
                counters.worker_started.add(1, &[]);
            }
            Event::WorkerDegraded { .. } => counters.worker_degraded.add(1, &[]),
            Event::WorkerRecovered { .. } => counters.worker_recovered.add(1, &[]),
            Event::WorkerStopping { .. } => counters.worker_stopping.add(1, &[]),
            Event::WorkerStopped { worker } => {
                self.gauges.stopped(worker);
                counters.worker_stopped.add(1, &[]);
            }
            Event::ChainCreated { type_name, .. } => chain(&counters.chain_created, type_name),
            Event::ChainDeduplicated { type_name, .. } => chain(&counters.chain_deduplicated, type_name),
            Event::ChainCompleted {
                type_name, duration, ..
            } => {
                chain(&counters.chain_completed, type_name);
                self.chain_took(type_name, *duration, "completed");
            }
            Event::ChainDead {
                type_name, duration, ..
            } => {
                chain(&counters.chain_dead, type_name);
                self.chain_took(type_name, *duration, "dead");
            }
            Event::ChainCancelled {
                type_name, duration, ..
            } => {
                chain(&counters.chain_cancelled, type_name);
                self.chain_took(type_name, *duration, "cancelled");
            }
            Event::ChainRetried { type_name, .. } => chain(&counters.chain_retried, type_name),
            Event::ChainDeleted { type_name, .. } => chain(&counters.chain_deleted, type_name),
            Event::JobCreated(info) => job(&counters.job_created, &info.type_name),
            Event::JobBlocked(info) => job(&counters.job_blocked, &info.type_name),
            Event::JobUnblocked { type_name, .. } => job(&counters.job_unblocked, type_name),
            Event::JobTriggered(info) => job(&counters.job_triggered, &info.type_name),
            Event::JobCompleted {
                job: info,
                worker,
                duration,
                ..
            } => {
                let by = if worker.is_some() { "worker" } else { "outside" };
                let attributes = [
                    self.job_types.attribute(&info.type_name),
                    KeyValue::new(names::COMPLETED_BY, by),
                ];
                counters.job_completed.add(1, &attributes);
                self.job_took(&info.type_name, *duration);
            }
            Event::JobDead {
                job: info, duration, ..
            } => {
                job(&counters.job_dead, &info.type_name);
                self.job_took(&info.type_name, *duration);
            }
            Event::JobCancelled(info) => job(&counters.job_cancelled, &info.type_name),
            Event::JobReaped { job: info, .. } => job(&counters.job_reaped, &info.type_name),
            Event::AttemptStarted(attempt) => {
                let attributes = [self.job_types.attribute(&attempt.job.type_name)];
                counters.attempt_started.add(1, &attributes);
                let wait = attempt.started_at.saturating_duration_since(attempt.scheduled_at);
                self.histograms.wait.record(wait.as_secs_f64(), &attributes);
            }
            Event::AttemptTimedOut { attempt, .. } => job(&counters.attempt_timed_out, &attempt.job.type_name),
            Event::AttemptEnded {
                attempt,
                outcome,
                duration,
            } => self.attempt_ended(attempt, outcome, *duration),
            Event::LeaseRenewed { attempt, .. } => job(&counters.lease_renewed, &attempt.job.type_name),
            Event::LeaseLost { attempt, reason } => {
                let attributes = [
                    self.job_types.attribute(&attempt.job.type_name),
                    KeyValue::new(names::ABORT_REASON, names::reason(*reason)),
                ];
                counters.lease_lost.add(1, &attributes);
            }
            Event::StateFailed { operation, .. } => {
                counters
                    .state_failed
                    .add(1, &[KeyValue::new(names::OPERATION, *operation)]);
            }
            Event::NotifyFailed { operation, .. } => {
                counters
                    .notify_failed
                    .add(1, &[KeyValue::new(names::OPERATION, *operation)]);
            }
            Event::MaintenanceFinding { .. } => counters.maintenance_finding.add(1, &[]),
            Event::QueuesSampled { samples, .. } => self.gauges.sampled(samples),
            _ => {}
        }
    }

    fn attempt_ended(&self, attempt: &AttemptInfo, outcome: &AttemptOutcome, duration: Duration) {
        let counters = &self.counters;
        let job_type = self.job_types.attribute(&attempt.job.type_name);
        let counter = match outcome {
            AttemptOutcome::Finished => &counters.attempt_finished,
            AttemptOutcome::Continued { .. } => &counters.attempt_continued,
            AttemptOutcome::Failed { .. } => &counters.attempt_failed,
            AttemptOutcome::Died { .. } => &counters.attempt_died,
            AttemptOutcome::Snoozed => &counters.attempt_snoozed,
            AttemptOutcome::Aborted(reason) => {
                let reason = KeyValue::new(names::ABORT_REASON, names::reason(*reason));
                counters.attempt_aborted.add(1, &[job_type.clone(), reason]);
                return self.attempt_took(job_type, outcome, duration);
            }
            _ => return,
        };
        counter.add(1, std::slice::from_ref(&job_type));
        self.attempt_took(job_type, outcome, duration);
    }

    fn attempt_took(&self, job_type: KeyValue, outcome: &AttemptOutcome, duration: Duration) {
        let attributes = [job_type, KeyValue::new(names::OUTCOME, names::outcome(outcome))];
        self.histograms.attempt.record(duration.as_secs_f64(), &attributes);
    }

    fn job_took(&self, type_name: &TypeName, duration: Option<Duration>) {
        if let Some(duration) = duration {
            let attributes = [self.job_types.attribute(type_name)];
            self.histograms.job.record(duration.as_secs_f64(), &attributes);
        }
    }

    fn chain_took(&self, type_name: &TypeName, duration: Option<Duration>, status: &'static str) {
        if let Some(duration) = duration {
            let attributes = [
                self.chain_types.attribute(type_name),
                KeyValue::new(names::CHAIN_STATUS, status),
            ];
            self.histograms.chain.record(duration.as_secs_f64(), &attributes);
        }
    }
}

fn observe(meter: &Meter, gauges: &Gauges) {
    let (running, idle, ready, oldest) = (gauges.clone(), gauges.clone(), gauges.clone(), gauges.clone());
    meter
        .u64_observable_gauge("queuert.worker.running")
        .with_unit("{worker}")
        .with_description("Workers of this process that have a job.")
        .with_callback(move |observer| observer.observe(running.running(), &[]))
        .build();
    meter
        .u64_observable_gauge("queuert.worker.idle")
        .with_unit("{worker}")
        .with_description("Workers of this process that have none.")
        .with_callback(move |observer| observer.observe(idle.idle(), &[]))
        .build();
    let of_type = |name: &TypeName| KeyValue::new(names::JOB_TYPE, name.as_str().to_owned());
    meter
        .u64_observable_gauge("queuert.queue.ready")
        .with_unit("{job}")
        .with_description("Jobs that are due and not claimed, counted up to a limit.")
        .with_callback(move |observer| {
            for sample in ready.queues() {
                observer.observe(
                    u64::try_from(sample.ready).unwrap_or(u64::MAX),
                    &[of_type(&sample.type_name)],
                );
            }
        })
        .build();
    meter
        .f64_observable_gauge("queuert.queue.oldest_age")
        .with_unit("s")
        .with_description("How long the job that has been due longest has been so.")
        .with_callback(move |observer| {
            for sample in oldest.queues() {
                let age = sample.oldest.unwrap_or_default().as_secs_f64();
                observer.observe(age, &[of_type(&sample.type_name)]);
            }
        })
        .build();
}

/// The attribute for each type name, made once: an event costs no allocation for it.
struct Types {
    key: &'static str,
    known: RwLock<HashMap<TypeName, StringValue>>,
}

impl Types {
    fn new(key: &'static str) -> Self {
        Self {
            key,
            known: RwLock::default(),
        }
    }

    fn attribute(&self, name: &TypeName) -> KeyValue {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = known.get(name) {
            return KeyValue::new(self.key, value.clone());
        }
        drop(known);
        let value = StringValue::from(Arc::<str>::from(name.as_str()));
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(name.clone(), value.clone());
        KeyValue::new(self.key, value)
    }
}
