//! Spans by the conventions for messaging.

use opentelemetry::trace::{Link, Span, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use queuert::adapter::{AttemptSpan, AttemptStart, Commit, CommitSpan, Creation, OutsideCompletion};
use queuert::{AbortReason, AttemptOutcome, TypeName};

use crate::attributes::{self as names, Operation};
use crate::context;
use crate::metrics::Running;
use crate::types::Types;

const ROLLED_BACK: &str = "rolled back";

/// What a sampler sees: nothing here costs more than a copy, because most of it may be thrown away.
fn builder(types: &Types, operation: Operation, type_name: &TypeName, kind: SpanKind) -> SpanBuilder {
    let (destination, name) = types.with(type_name, |of_type| of_type.span(operation));
    let attributes = vec![
        KeyValue::new(names::SYSTEM, "queuert"),
        KeyValue::new(names::OPERATION_NAME, operation.as_str()),
        KeyValue::new(names::OPERATION_TYPE, operation.as_str()),
        KeyValue::new(names::DESTINATION, destination),
    ];
    SpanBuilder::from_name(name).with_kind(kind).with_attributes(attributes)
}

/// The current context, or, where nothing is current, one in which the stored context is.
fn current_or(stored: Option<&str>) -> Context {
    let current = Context::current();
    if current.span().span_context().is_valid() {
        return current;
    }
    match stored.and_then(context::read) {
        Some(stored) => current.with_remote_span_context(stored),
        None => current,
    }
}

/// A span about a write that is not committed yet.
pub(crate) struct HeldSpan<S: Span> {
    span: S,
    /// What to store: the span's own context or, from a tracer that makes none, what was current.
    context: Option<String>,
    committed: bool,
}

impl<S: Span> HeldSpan<S> {
    fn begin(span: S, parent: &Context) -> Self {
        let own = context::write(span.span_context());
        Self {
            context: own.or_else(|| context::write(parent.span().span_context())),
            span,
            committed: false,
        }
    }

    pub(crate) fn creation<T: Tracer<Span = S>>(tracer: &T, types: &Types, creation: &Creation<'_>) -> Self {
        let job = creation.job;
        let parent = current_or(creation.continues.and_then(|before| before.trace_context));
        let builder = builder(types, Operation::Create, &job.type_name, SpanKind::Producer);
        let mut span = builder.start_with_context(tracer, &parent);
        if span.is_recording() {
            let chain_type = creation
                .continues
                .map_or(&job.type_name, |before| &before.job.chain_type);
            span.set_attributes([
                KeyValue::new(names::MESSAGE_ID, job.id.to_string()),
                KeyValue::new(names::CONVERSATION_ID, creation.chain().to_string()),
                KeyValue::new(names::CHAIN_TYPE, chain_type.as_str().to_owned()),
            ]);
        }
        Self::begin(span, &parent)
    }

    pub(crate) fn completion<T: Tracer<Span = S>>(
        tracer: &T,
        types: &Types,
        completion: &OutsideCompletion<'_>,
    ) -> Self {
        let job = completion.job;
        let stored = job.trace_context.as_deref();
        let parent = current_or(stored);
        let mut builder = builder(types, Operation::Settle, &job.type_name, SpanKind::Internal);
        // Whoever completes a job within a trace of its own is linked to the job's.
        let creation = stored.and_then(context::read);
        if let Some(creation) = creation.filter(|creation| creation.span_id() != parent.span().span_context().span_id())
        {
            builder = builder.with_links(vec![Link::with_context(creation)]);
        }
        let mut span = builder.start_with_context(tracer, &parent);
        if span.is_recording() {
            span.set_attributes([
                KeyValue::new(names::MESSAGE_ID, job.id.to_string()),
                KeyValue::new(names::CONVERSATION_ID, job.chain_id.to_string()),
                KeyValue::new(names::CHAIN_TYPE, job.chain_type.as_str().to_owned()),
                KeyValue::new(names::CONTINUED, completion.continued),
            ]);
        }
        Self::begin(span, &parent)
    }
}

impl<S: Span + Send + Sync> CommitSpan for HeldSpan<S> {
    fn trace_context(&self) -> Option<String> {
        self.context.clone()
    }

    fn committed(&mut self, commit: Commit) {
        self.committed = true;
        if let Commit::Deduplicated(chain) = commit {
            self.span.set_attribute(KeyValue::new(names::DEDUPLICATED, true));
            self.span
                .set_attribute(KeyValue::new(names::CHAIN_ID, chain.to_string()));
        }
        self.span.end();
    }
}

impl<S: Span> Drop for HeldSpan<S> {
    fn drop(&mut self) {
        if !self.committed {
            // For `Committed`, which passes it over, and for who reads it where there is none.
            self.span.set_attribute(KeyValue::new(names::ROLLED_BACK, true));
            self.span.set_status(Status::error(ROLLED_BACK));
            self.span.end();
        }
    }
}

/// The span of an attempt.
pub(crate) struct RunningSpan {
    context: Context,
    ended: bool,
    /// Counts the attempt as running as long as it is there.
    _running: Running,
}

impl RunningSpan {
    pub(crate) fn new<T>(tracer: &T, types: &Types, start: &AttemptStart<'_>, running: Running) -> Self
    where
        T: Tracer,
        T::Span: Send + Sync + 'static,
    {
        let attempt = start.attempt;
        let mut builder = builder(types, Operation::Process, &attempt.job.type_name, SpanKind::Consumer);
        let links: Vec<Link> = start
            .blockers
            .iter()
            .filter_map(|blocker| {
                let context = context::read(blocker.trace_context.as_deref()?)?;
                let chain = KeyValue::new(names::CHAIN_ID, blocker.id.to_string());
                Some(Link::new(context, vec![chain], 0))
            })
            .collect();
        if !links.is_empty() {
            builder = builder.with_links(links);
        }
        let creation = attempt.trace_context.as_deref().and_then(context::read);
        // Whatever happens to be current in a worker's task has nothing to do with the job.
        let parent = match creation {
            Some(creation) => Context::new().with_remote_span_context(creation),
            None => Context::new(),
        };
        let mut span = builder.start_with_context(tracer, &parent);
        let is_recording = span.is_recording();
        if is_recording {
            span.set_attributes([
                KeyValue::new(names::MESSAGE_ID, attempt.job.id.to_string()),
                KeyValue::new(names::CONVERSATION_ID, attempt.job.chain_id.to_string()),
                KeyValue::new(names::CLIENT_ID, attempt.worker.as_str().to_owned()),
                KeyValue::new(names::CHAIN_TYPE, attempt.job.chain_type.as_str().to_owned()),
                KeyValue::new(names::ATTEMPT, i64::from(attempt.attempt)),
            ]);
        }
        // A tracer that makes no spans must not cut the trace.
        let context = if span.span_context() == &SpanContext::NONE {
            parent
        } else if is_recording {
            parent.with_span(span)
        } else {
            // Of a span that nobody keeps only the context is wanted, for what begins inside.
            parent.with_remote_span_context(span.span_context().clone())
        };
        Self {
            context,
            ended: false,
            _running: running,
        }
    }

    fn fail(&self, error_type: &'static str, message: &str) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new(names::ERROR_TYPE, error_type));
        let message_attribute = KeyValue::new(names::EXCEPTION_MESSAGE, message.to_owned());
        span.add_event("exception", vec![message_attribute]);
        span.set_status(Status::error(message.to_owned()));
    }
}

impl AttemptSpan for RunningSpan {
    fn scope(&mut self, poll: &mut dyn FnMut()) {
        let _guard = self.context.clone().attach();
        poll();
    }

    fn end(&mut self, outcome: &AttemptOutcome) {
        self.ended = true;
        let span = self.context.span();
        if span.is_recording() {
            span.set_attribute(KeyValue::new(names::OUTCOME, names::outcome(outcome)));
            match outcome {
                AttemptOutcome::Continued { next_type, .. } => {
                    span.set_attribute(KeyValue::new(names::NEXT_TYPE, next_type.as_str().to_owned()));
                }
                AttemptOutcome::Failed { error, retry_in, .. } => {
                    if let Some(delay) = retry_in {
                        span.set_attribute(KeyValue::new(names::RETRY_DELAY, delay.as_secs_f64()));
                    }
                    self.fail("failed", error);
                }
                AttemptOutcome::Died { error } => self.fail("died", error),
                AttemptOutcome::Aborted(reason) => {
                    span.set_attribute(KeyValue::new(names::ABORT_REASON, names::reason(*reason)));
                    // A worker that stops gives its jobs back; all others have worked in vain.
                    if *reason != AbortReason::Shutdown {
                        self.fail(names::reason(*reason), reason.as_str());
                    }
                }
                _ => {}
            }
        }
        span.end();
    }
}

impl Drop for RunningSpan {
    fn drop(&mut self) {
        if !self.ended {
            self.fail("abandoned", "the attempt was abandoned");
            self.context.span().end();
        }
    }
}
