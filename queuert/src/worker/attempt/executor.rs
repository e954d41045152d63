//! Runs one attempt: its processor inside the middlewares, then the first step of its end.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::adapter::StateAdapter;
use crate::client::report;
use crate::error::{Error, JobError, StateError, StateErrorKind};
use crate::event::AttemptOutcome;
use crate::worker::attempt::attempts::Attempts;
use crate::worker::attempt::claim_next;
use crate::worker::attempt::claimed::ClaimedAttempt;
use crate::worker::attempt::end::{Begun, CommitAnswer, Facts, NextStep, ProcessorEnd, begin, committed};
use crate::worker::attempt::run_report::RunReport;
use crate::worker::attempt::settle_queue::EndingAttempt;
use crate::worker::attempt::settler::{Advanced, advance, queue};
use crate::worker::contained::{contained, panic_message};
use crate::worker::context::Context;
use crate::worker::user::attempt::RawAttempt;
use crate::worker::user::completion::{CompletionKind, How, WrittenTransaction};
use crate::worker::user::middleware::{AttemptContext, Next};

/// Runs a claimed job, and posts its end to the settler; only the commit of the processor's own transaction is waited for.
/// `reply` is told how the attempt ended. Returns whether another task was woken, possibly to run on this thread.
pub(crate) async fn execute<S: StateAdapter>(
    attempts: &Attempts<S>,
    attempt: ClaimedAttempt<S>,
    started: Instant,
    reply: Option<oneshot::Sender<AttemptOutcome>>,
) -> bool {
    let context = &*attempts.context;
    let mut report = RunReport::start(&attempt.shared, started);
    let end = run_processor(context, &attempt, &mut report).await;
    report_dropped_transaction(&attempt, &end);
    let begun = begin(&Facts::of(&attempt), end);
    let next = match begun {
        Begun::Next(mut next) => {
            if let NextStep::Write(outcome, _) = &mut next {
                claim_next::request(context, &attempt, outcome);
            }
            next
        }
        Begun::Commit(kind, transaction) => {
            // Boxed: few attempts need it, and the futures of all would be larger.
            let answer = Box::pin(commit(context, *transaction)).await;
            committed(&Facts::of(&attempt), kind, answer)
        }
    };
    let ending = EndingAttempt {
        attempt,
        report: Some(report),
        reply,
        unwritten: None,
    };
    match advance(attempts, ending, next) {
        Advanced::Posted { woke } => woke,
        Advanced::Over(next) => {
            queue(attempts, next.into_iter().collect());
            // A commit may have woken the claimer.
            true
        }
    }
}

async fn run_processor<S: StateAdapter>(
    context: &Context<S>,
    attempt: &ClaimedAttempt<S>,
    report: &mut RunReport,
) -> ProcessorEnd<S> {
    // The values that a processor leaves are the user's, and their drop may panic too.
    let run = AssertUnwindSafe(process(context, attempt, report)).catch_unwind().await;
    let end = run.unwrap_or_else(|panic| ProcessorEnd::Panicked(panic_message(&*panic).to_owned()));
    attempt.shared.settling.store(true, Ordering::SeqCst);
    end
}

async fn process<S: StateAdapter>(
    context: &Context<S>,
    attempt: &ClaimedAttempt<S>,
    report: &mut RunReport,
) -> ProcessorEnd<S> {
    // No processor runs a row that is damaged: the type and the input in it may be wrong.
    let record = &attempt.shared.record;
    if let Some(problem) = &record.unreadable {
        let (id, problem) = (record.id, problem.clone());
        return ProcessorEnd::Returned(Err(JobError::fatal(Error::Unreadable { id, problem })));
    }
    let job_type = &*attempt.job_type;
    let shared = Arc::clone(&attempt.shared);
    let extensions = context.extensions.clone();
    let body = async {
        if context.middlewares.is_empty() {
            return job_type.processor.process(RawAttempt { shared, extensions }).await;
        }
        let mut attempt_context = AttemptContext { shared, extensions };
        let next = Next::new(&context.middlewares, &job_type.processor);
        let mut result = next.run(&mut attempt_context).await;
        // The last hooks of the middlewares belong to the attempt: its timeout, its abort and its panics cover them.
        if let Ok(completion) = &mut result
            && let How::Written(written) = &mut completion.how
        {
            let hooks = &context.environment.hooks;
            hooks.closing(&attempt.shared.info, &mut written.transaction).await?;
        }
        result
    };
    let mut body = pin!(AssertUnwindSafe(body).catch_unwind());
    let hub = context.client.hub();
    let type_name = &attempt.shared.info.job.type_name;
    let RunReport { span, log, .. } = report;
    let body = std::future::poll_fn(|cx| {
        job_type.diagnostics.watch(hub, type_name, || {
            span.scope(|| {
                let _entered = log.enter();
                body.as_mut().poll(cx)
            })
        })
    });
    let timeout = async {
        match job_type.timeout {
            Some(timeout) => {
                tokio::time::sleep(timeout).await;
                timeout
            }
            None => std::future::pending().await,
        }
    };
    let dropped = async {
        if context.settings.drop_on_abort {
            attempt.shared.abort.signal().aborted().await
        } else {
            std::future::pending().await
        }
    };
    // In this order: the timers and signals that stop a processor are not polled unless the processor waits for something.
    tokio::select! {
        biased;
        result = body => match result {
            Ok(result) => ProcessorEnd::Returned(result),
            Err(panic) => ProcessorEnd::Panicked(panic_message(&*panic).to_owned()),
        },
        timeout = timeout => {
            attempt.shared.timed_out(timeout);
            ProcessorEnd::TimedOut(timeout)
        }
        reason = dropped => ProcessorEnd::Dropped(reason),
        () = context.kill.cancelled() => ProcessorEnd::Killed,
    }
}

/// Reports a processor that completed its job and dropped its transaction. Snoozing may well follow a look at the database
/// that was not worth keeping.
fn report_dropped_transaction<S: StateAdapter>(attempt: &ClaimedAttempt<S>, end: &ProcessorEnd<S>) {
    let shared = &attempt.shared;
    if let ProcessorEnd::Returned(Ok(completion)) = end
        && matches!(completion.how, How::Grouped(..))
        && completion.kind != CompletionKind::Snooze
        && completion.fence == shared.fence
        && shared.abandoned.load(Ordering::Relaxed)
    {
        let diagnostics = &attempt.job_type.diagnostics;
        diagnostics.dropped_transaction(shared.client().hub(), &shared.info.job.type_name);
    }
}

/// Commits the transaction in which the processor has completed its job.
async fn commit<S: StateAdapter>(context: &Context<S>, written: WrittenTransaction<S>) -> CommitAnswer {
    let (transaction, _open) = written.into_parts();
    let (inner, effects, usable) = transaction.into_parts().await;
    let state = context.client.state();
    if let Err(unusable) = usable {
        // The write of the failure would otherwise meet the locks of the transaction before its rollback.
        let _ = contained(state.rollback(inner)).await;
        return CommitAnswer::RolledBack(unusable.into());
    }
    let error = match contained(state.commit(inner)).await {
        Ok(()) => {
            context.flush(effects).await;
            return CommitAnswer::Committed;
        }
        Err(error) => error,
    };
    let message = format!("the transaction could not be committed: {}", report(&error));
    let failure = JobError::from(StateError::new(error.kind(), message));
    if error.kind() == StateErrorKind::TransactionEnded {
        // The transaction had ended before, so this call has not committed it.
        return CommitAnswer::RolledBack(failure);
    }
    CommitAnswer::Unknown(failure, effects)
}
