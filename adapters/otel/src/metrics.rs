//! Metrics: a counter for every event, histograms of durations, gauges. No attribute holds an id.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use queuert::{AbortReason, AttemptOutcome, Event, TypeName};

use crate::attributes as names;
use crate::instruments::{Count, Instruments};
use crate::queues::Gauges;
pub(crate) use crate::queues::Running;
use crate::types::{ChainEnd, Types};

pub(crate) struct Metrics {
    instruments: Instruments,
    gauges: Gauges,
    types: Types,
}

impl Metrics {
    pub(crate) fn new(meter: &Meter) -> Self {
        let gauges = Gauges::default();
        observe(meter, &gauges);
        Self {
            instruments: Instruments::new(meter),
            gauges,
            types: Types::default(),
        }
    }

    /// Counts an attempt as running.
    pub(crate) fn running(&self) -> Running {
        self.gauges.run()
    }

    pub(crate) fn types(&self) -> &Types {
        &self.types
    }

    pub(crate) fn record(&self, event: &Event) {
        let count = |count, attributes: &[KeyValue]| self.instruments.counter(count).add(1, attributes);
        match event {
            Event::WorkerStarted { worker, concurrency } => {
                self.gauges.started(worker, *concurrency);
                count(Count::WorkerStarted, &[]);
            }
            Event::WorkerDegraded { .. } => count(Count::WorkerDegraded, &[]),
            Event::WorkerRecovered { .. } => count(Count::WorkerRecovered, &[]),
            Event::WorkerStopping { .. } => count(Count::WorkerStopping, &[]),
            Event::WorkerStopped { worker } => {
                self.gauges.stopped(worker);
                count(Count::WorkerStopped, &[]);
            }
            Event::ChainCreated { type_name, .. } => self.chain(Count::ChainCreated, type_name),
            Event::ChainDeduplicated { type_name, .. } => self.chain(Count::ChainDeduplicated, type_name),
            Event::ChainCompleted {
                type_name, duration, ..
            } => self.chain_ended(Count::ChainCompleted, ChainEnd::Completed, type_name, *duration),
            Event::ChainDead {
                type_name, duration, ..
            } => self.chain_ended(Count::ChainDead, ChainEnd::Dead, type_name, *duration),
            Event::ChainCancelled {
                type_name, duration, ..
            } => self.chain_ended(Count::ChainCancelled, ChainEnd::Cancelled, type_name, *duration),
            Event::ChainRetried { type_name, .. } => self.chain(Count::ChainRetried, type_name),
            Event::ChainDeleted { type_name, .. } => self.chain(Count::ChainDeleted, type_name),
            Event::JobCreated(job) => self.job(Count::JobCreated, &job.type_name),
            Event::JobBlocked(job) => self.job(Count::JobBlocked, &job.type_name),
            Event::JobUnblocked { type_name, .. } => self.job(Count::JobUnblocked, type_name),
            Event::JobTriggered(job) => self.job(Count::JobTriggered, &job.type_name),
            Event::JobCompleted {
                job, worker, duration, ..
            } => self.types.with(&job.type_name, |of_type| {
                of_type.count_completed(&self.instruments, worker.is_some());
                of_type.job_took(&self.instruments, *duration);
            }),
            Event::JobDead { job, duration, .. } => self.types.with(&job.type_name, |of_type| {
                of_type.count_job(&self.instruments, Count::JobDead);
                of_type.job_took(&self.instruments, *duration);
            }),
            Event::JobCancelled(job) => self.job(Count::JobCancelled, &job.type_name),
            Event::JobReaped { job, .. } => self.job(Count::JobReaped, &job.type_name),
            Event::AttemptStarted(attempt) => self.types.with(&attempt.job.type_name, |of_type| {
                of_type.count_job(&self.instruments, Count::AttemptStarted);
                let wait = attempt.started_at.saturating_duration_since(attempt.scheduled_at);
                of_type.waited(&self.instruments, wait);
            }),
            Event::AttemptTimedOut { attempt, .. } => self.job(Count::AttemptTimedOut, &attempt.job.type_name),
            Event::AttemptEnded {
                attempt,
                outcome,
                duration,
            } => self.attempt_ended(&attempt.job.type_name, outcome, *duration),
            Event::LeaseRenewed { attempt, .. } => self.job(Count::LeaseRenewed, &attempt.job.type_name),
            Event::LeaseLost { attempt, reason } => {
                self.lost(Count::LeaseLost, &attempt.job.type_name, *reason);
            }
            Event::StateFailed { operation, .. } => {
                count(Count::StateFailed, &[KeyValue::new(names::OPERATION, *operation)]);
            }
            Event::NotifyFailed { operation, .. } => {
                count(Count::NotifyFailed, &[KeyValue::new(names::OPERATION, *operation)]);
            }
            Event::MaintenanceFinding { .. } => count(Count::MaintenanceFinding, &[]),
            Event::Advice { .. } => count(Count::Advice, &[]),
            Event::QueuesSampled { samples, .. } => self.gauges.sampled(samples),
            // The library tells this adapter everything at once; another that hands events on to it may not.
            Event::EventsMissed { count } => self.instruments.counter(Count::EventsMissed).add(*count, &[]),
            _ => {}
        }
    }

    fn job(&self, count: Count, type_name: &TypeName) {
        self.types
            .with(type_name, |of_type| of_type.count_job(&self.instruments, count));
    }

    fn chain(&self, count: Count, type_name: &TypeName) {
        self.types
            .with(type_name, |of_type| of_type.count_chain(&self.instruments, count));
    }

    fn chain_ended(&self, count: Count, end: ChainEnd, type_name: &TypeName, duration: Option<Duration>) {
        self.types.with(type_name, |of_type| {
            of_type.count_chain(&self.instruments, count);
            of_type.chain_took(&self.instruments, end, duration);
        });
    }

    fn attempt_ended(&self, type_name: &TypeName, outcome: &AttemptOutcome, duration: Duration) {
        let count = match outcome {
            AttemptOutcome::Finished => Count::AttemptFinished,
            AttemptOutcome::Continued { .. } => Count::AttemptContinued,
            AttemptOutcome::Failed { .. } => Count::AttemptFailed,
            AttemptOutcome::Died { .. } => Count::AttemptDied,
            AttemptOutcome::Snoozed => Count::AttemptSnoozed,
            AttemptOutcome::Aborted(_) => Count::AttemptAborted,
            _ => return,
        };
        if let AttemptOutcome::Aborted(reason) = outcome {
            self.lost(count, type_name, *reason);
        }
        self.types.with(type_name, |of_type| {
            if !matches!(outcome, AttemptOutcome::Aborted(_)) {
                of_type.count_job(&self.instruments, count);
            }
            of_type.attempt_took(&self.instruments, outcome, duration);
        });
    }

    /// Counts a loss by its reason. It is rare, so its series is looked up.
    fn lost(&self, count: Count, type_name: &TypeName, reason: AbortReason) {
        let job_type = self.types.with(type_name, |of_type| of_type.job().clone());
        let reason = KeyValue::new(names::ABORT_REASON, names::reason(reason));
        self.instruments.counter(count).add(1, &[job_type, reason]);
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
