//! Starting chains.

use std::marker::PhantomData;
use std::time::Duration;

use super::Client;
use super::lost_answer::created_before;
use super::request::{CallRequest, Operation, Request, RequestContext, Sealed};
use crate::adapter::{Commit, Continued, CreatedChain, Creation, NewChain, NewJob, Refusal, StateAdapter};
use crate::chain::Started;
use crate::deduplication::Deduplication;
use crate::effects::Effects;
use crate::error::Error;
use crate::event::{Event, JobInfo};
use crate::event_hub::HeldSpan;
use crate::id::JobId;
use crate::job::{JobStatus, TypeName};
use crate::job_type::{Entry, JobType};
use crate::step::{IntoStep, Step, StepSettings, setters};
use crate::time::Timestamp;

impl<S: StateAdapter> Client<S> {
    /// Starts a chain. Configure the returned request, then await it or run it `within` a transaction.
    ///
    /// Takes the input of an entry job type, or a [`Step`]. Blockers are given with the input: `client.start(Summarise
    /// { .. }.blocked_by((&a, &b)))`.
    ///
    /// # Errors
    ///
    /// [`Error::IdTaken`], [`Error::BlockerNotFound`], [`Error::Unencodable`], [`Error::Invalid`] for an empty or
    /// over-long key, [`Error::State`]. No chain is started then.
    ///
    /// # Cancel safety
    ///
    /// The chain of a dropped future may or may not have been started. A deduplication key or an id of your own makes a
    /// repetition safe.
    pub fn start<T>(&self, step: T) -> Request<'_, S, Start<T::Job>>
    where
        T: IntoStep,
        T::Job: Entry,
    {
        let operation = Start {
            step: step.into_step(),
            make: new_chain::<T::Job>,
        };
        Request::new(self, operation)
    }

    /// Starts any number of chains of one type with one statement: all of them, or none.
    ///
    /// # Errors
    ///
    /// [`Error::InBatch`] with the item that was refused and the error that [`start`](Self::start) would return for it.
    /// [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// A dropped future has started all of the chains or none.
    pub fn start_many<I>(&self, steps: I) -> CallRequest<'_, S, Vec<Started<<I::Item as IntoStep>::Job>>>
    where
        I: IntoIterator,
        I::Item: IntoStep,
        <I::Item as IntoStep>::Job: Entry,
    {
        let steps: Vec<_> = steps.into_iter().map(IntoStep::into_step).collect();
        Request::write(self, "start_many", move |context| Box::pin(start_many(context, steps)))
    }

    /// Starts chains of different types, given as a tuple, with one statement: all of them, or none.
    ///
    /// # Errors
    ///
    /// As [`start_many`](Self::start_many); the item is counted from zero in the order of the tuple.
    ///
    /// # Cancel safety
    ///
    /// A dropped future has started all of the chains or none.
    pub fn start_each<T: StepTuple>(&self, steps: T) -> CallRequest<'_, S, T::Started> {
        Request::write(self, "start_each", move |context| Box::pin(start_each(context, steps)))
    }
}

/// Makes a chain of a step. Picked where `J` is known to be an entry, so that the operations need not be bounded: for a
/// job that is none, the compiler would say on top that the request is no future, and propose to remove the `.await`.
type MakeChain<J> = fn(JobId, Step<J>) -> Result<NewChain, Error>;

/// Starts one chain.
#[derive(Debug)]
pub struct Start<J> {
    step: Step<J>,
    make: MakeChain<J>,
}

impl<S: StateAdapter, J> Request<'_, S, Start<J>> {
    setters!(self => self.operation.step.settings);
}

impl<J> Sealed for Start<J> {}

impl<S: StateAdapter, J: Send + 'static> Operation<S> for Start<J> {
    type Output = Started<J>;

    fn writes(&self) -> bool {
        true
    }

    async fn run(self, mut context: RequestContext<'_, S>) -> Result<Started<J>, Error> {
        let (id, own_id) = match self.step.settings.id {
            Some(id) => (id, false),
            None => {
                let mut ids = context.client.entropy().job_ids(1);
                (ids.next().ok_or_else(short_answer)?, true)
            }
        };
        let chain = (self.make)(id, self.step)?;
        let made_here = own_id.then_some(id);
        let created = create(&mut context, vec![chain], made_here.as_slice())
            .await
            .map_err(Error::alone)?;
        match created.into_iter().next() {
            Some(created) => Ok(started(created)),
            None => Err(short_answer()),
        }
    }
}

async fn start_many<S: StateAdapter, J: Entry>(
    mut context: RequestContext<'_, S>,
    steps: Vec<Step<J>>,
) -> Result<Vec<Started<J>>, Error> {
    if steps.is_empty() {
        return Ok(Vec::new());
    }
    let missing = steps.iter().filter(|step| step.settings.id.is_none()).count();
    let mut ids = context.client.entropy().job_ids(missing);
    let mut chains = Vec::with_capacity(steps.len());
    let mut made_here = Vec::with_capacity(missing);
    for (index, step) in steps.into_iter().enumerate() {
        let own_id = step.settings.id.is_none();
        let id = step.settings.id.or_else(|| ids.next()).ok_or_else(short_answer)?;
        if own_id {
            made_here.push(id);
        }
        chains.push(new_chain(id, step).map_err(|error| error.in_batch(index, id))?);
    }
    let created = create(&mut context, chains, &made_here).await?;
    Ok(created.into_iter().map(started).collect())
}

async fn start_each<S: StateAdapter, T: StepTuple>(
    mut context: RequestContext<'_, S>,
    steps: T,
) -> Result<T::Started, Error> {
    let mut maker = NewChains {
        entropy: context.client.entropy().clone(),
        made_here: Vec::new(),
    };
    let chains = steps.into_chains(&mut maker)?;
    let created = create(&mut context, chains, &maker.made_here).await?;
    T::started(created).ok_or_else(short_answer)
}

/// A tuple of two to eight jobs that chains can start with.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tuple of jobs that chains can start with",
    note = "pass a tuple of two to eight inputs or steps of entry job types; for many of one type use `start_many`"
)]
pub trait StepTuple: Send + 'static {
    /// The started chains.
    type Started: Send;

    #[doc(hidden)]
    fn into_chains(self, maker: &mut NewChains) -> Result<Vec<NewChain>, Error>;

    #[doc(hidden)]
    fn started(created: Vec<CreatedChain>) -> Option<Self::Started>;
}

/// What chains of a tuple share.
#[expect(missing_debug_implementations, reason = "nobody outside this crate can name it")]
pub struct NewChains {
    entropy: crate::id::Entropy,
    /// The ids that were made here, in the order of the chains.
    made_here: Vec<JobId>,
}

impl NewChains {
    /// The id of a chain.
    fn id(&mut self, settings: &StepSettings) -> Result<JobId, Error> {
        if let Some(id) = settings.id {
            return Ok(id);
        }
        let id = self.entropy.job_ids(1).next().ok_or_else(short_answer)?;
        self.made_here.push(id);
        Ok(id)
    }
}

macro_rules! step_tuples {
    ($(($($step:ident $index:tt),+))+) => {$(
        impl<$($step: IntoStep + Send + 'static),+> StepTuple for ($($step,)+)
        where
            $($step::Job: Entry,)+
        {
            type Started = ($(Started<$step::Job>,)+);

            fn into_chains(self, maker: &mut NewChains) -> Result<Vec<NewChain>, Error> {
                Ok(vec![$({
                    let step = self.$index.into_step();
                    let id = maker.id(&step.settings)?;
                    new_chain(id, step).map_err(|error| error.in_batch($index, id))?
                }),+])
            }

            fn started(created: Vec<CreatedChain>) -> Option<Self::Started> {
                let mut created = created.into_iter();
                Some(($({
                    let chain: Started<$step::Job> = started(created.next()?);
                    chain
                },)+))
            }
        }
    )+};
}

step_tuples! {
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}

fn started<J>(created: CreatedChain) -> Started<J> {
    Started::new(created.id, created.status, created.deduplicated)
}

fn short_answer() -> Error {
    Error::State(crate::StateError::new(
        crate::StateErrorKind::Corrupt,
        "the state adapter answered for fewer chains than it was asked to create",
    ))
}

fn new_chain<J: Entry>(id: JobId, step: Step<J>) -> Result<NewChain, Error> {
    let Step { input, settings } = step;
    if let Some(deduplication) = &settings.deduplication {
        check_key(&deduplication.key)?;
    }
    let deduplication = settings.deduplication.clone();
    let job = new_job_with(id, &input, settings)?;
    let mut chain = NewChain::new(job);
    chain.deduplication = deduplication;
    Ok(chain)
}

/// The job that a chain continues with after `before`, and the span of its creation, to be ended with the commit.
pub(crate) fn new_job<S: StateAdapter, J: JobType>(
    client: &Client<S>,
    step: Step<J>,
    before: Continued<'_>,
) -> Result<(NewJob, Option<HeldSpan>), Error> {
    let Step { input, settings } = step;
    let id = match settings.id {
        Some(id) => id,
        None => client.entropy().job_ids(1).next().ok_or_else(short_answer)?,
    };
    let mut job = new_job_with(id, &input, settings)?;
    let span = begin_creation(client, &mut job, Some(before));
    Ok((job, span))
}

/// Begins the span of a creation, and gives its context to the job.
fn begin_creation<S: StateAdapter>(
    client: &Client<S>,
    job: &mut NewJob,
    continues: Option<Continued<'_>>,
) -> Option<HeldSpan> {
    let span = client
        .hub()
        .hold(|adapter| adapter.creation_span(&Creation::new(job, continues)))?;
    job.trace_context = span.trace_context();
    Some(span)
}

fn new_job_with<J: JobType>(id: JobId, input: &J, settings: StepSettings) -> Result<NewJob, Error> {
    check_type_name(J::NAME)?;
    if settings.max_attempts == Some(0) {
        return Err(Error::Invalid {
            what: "max_attempts",
            problem: "0 attempts would never run the job; leave it out or give at least 1".into(),
        });
    }
    let input = input.encode().map_err(|error| Error::Unencodable {
        type_name: J::NAME.into(),
        part: "input",
        message: error.to_string(),
    })?;
    let mut job = NewJob::new(id, J::NAME, input);
    job.schedule = settings.schedule;
    job.priority = settings.priority.or(J::SETTINGS.priority).unwrap_or(0);
    job.max_attempts = settings.max_attempts;
    job.blockers = settings.blockers;
    Ok(job)
}

const NUL: &str = "it holds a NUL character, which not every store can keep";

/// The derive checks names too; this is for hand-written job types.
pub(crate) fn check_type_name(name: &str) -> Result<(), Error> {
    let problem = if name.is_empty() {
        "it is empty".to_owned()
    } else if name.contains('\0') {
        NUL.to_owned()
    } else if name.len() > TypeName::MAX_LENGTH {
        format!("it has {} bytes, more than {}", name.len(), TypeName::MAX_LENGTH)
    } else {
        return Ok(());
    };
    Err(Error::Invalid {
        what: "job type name",
        problem,
    })
}

fn check_key(key: &str) -> Result<(), Error> {
    let problem = if key.is_empty() {
        "it is empty; leave `deduplicate` out to start the chain in any case".to_owned()
    } else if key.contains('\0') {
        NUL.to_owned()
    } else if key.len() > Deduplication::MAX_KEY_LENGTH {
        format!(
            "it has {} bytes, more than {}; hash what it is made of",
            key.len(),
            Deduplication::MAX_KEY_LENGTH
        )
    } else {
        return Ok(());
    };
    Err(Error::Invalid {
        what: "deduplication key",
        problem,
    })
}

/// Starts chains. `witness` is one of them that exists if and only if the call has had its effect: its id is new, and it
/// has no key.
async fn create<S: StateAdapter>(
    context: &mut RequestContext<'_, S>,
    mut chains: Vec<NewChain>,
    made_here: &[JobId],
) -> Result<Vec<CreatedChain>, Error> {
    let RequestContext {
        client,
        within,
        effects,
    } = context;
    let client = *client;
    let mut spans = Vec::new();
    if client.hub().has_adapter() {
        spans.extend(
            chains
                .iter_mut()
                .map(|chain| begin_creation(client, &mut chain.job, None)),
        );
    }
    let mut spans = spans.into_iter();
    let alone = within.is_none();
    let created = match client.state().create_chains(within.as_deref_mut(), &chains).await {
        Ok(created) => created.map_err(|refusal| refused(refusal, chains.iter().map(|chain| chain.job.id)))?,
        Err(error) if alone => created_before(client, made_here, &chains).await.ok_or(error)?,
        Err(error) => return Err(error.into()),
    };
    let mut made_here = made_here.iter().peekable();
    for (chain, created) in chains.iter().zip(&created) {
        // A chain whose key another one has does not exist under its id.
        if made_here.next_if_eq(&&chain.job.id).is_some() && !created.deduplicated {
            effects.witnessed_by(chain.job.id);
        }
        let commit = match created.deduplicated {
            true => Commit::Deduplicated(created.id),
            false => Commit::Created,
        };
        effects.span(spans.next().flatten(), commit);
        if !created.deduplicated && created.status == JobStatus::Pending {
            effects.jobs_available(&chain.job.type_name, 1);
        }
        events_of(chain, created, effects);
    }
    Ok(created)
}

fn events_of(chain: &NewChain, created: &CreatedChain, effects: &mut Effects) {
    let type_name = || chain.job.type_name.clone();
    if created.deduplicated {
        effects.often(|| Event::ChainDeduplicated {
            chain: created.id,
            type_name: type_name(),
        });
        return;
    }
    let job = || JobInfo {
        id: chain.job.id,
        type_name: type_name(),
        chain_id: created.id,
        chain_type: type_name(),
    };
    effects.often(|| Event::ChainCreated {
        chain: created.id,
        type_name: type_name(),
    });
    effects.often(|| Event::JobCreated(job()));
    if created.status == JobStatus::Blocked {
        effects.often(|| Event::JobBlocked(job()));
    }
}

/// The error for a batch, with the item that the store refused. The last one of these: of two items with the same id, the
/// second is too many.
pub(crate) fn refused(refusal: Refusal, items: impl DoubleEndedIterator<Item = JobId> + ExactSizeIterator) -> Error {
    let item = match &refusal {
        Refusal::IdTaken(job) | Refusal::JobNotFound(job) | Refusal::NotPending(job, _) => Some(*job),
        Refusal::BlockerNotFound { job, .. } | Refusal::BlockerCycle { job, .. } => Some(*job),
        Refusal::ChainNotFound(chain) | Refusal::NotOpen(chain, _) | Refusal::Damaged(chain) => Some(chain.first_job()),
        Refusal::NotRetryable(chain, _) | Refusal::KeyTaken { chain, .. } => Some(chain.first_job()),
        // It names every chain and job itself.
        Refusal::Referenced(_) => None,
    };
    let place = item.and_then(|id| {
        let mut items = items;
        items.rposition(|item| item == id).map(|index| (index, id))
    });
    match place {
        Some((index, id)) => Error::from(refusal).in_batch(index, id),
        None => refusal.into(),
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::IdTaken(job) => Self::IdTaken(job),
            Refusal::BlockerNotFound { job, chain } => Self::BlockerNotFound { job, chain },
            Refusal::BlockerCycle { job, chain } => Self::BlockerCycle { job, chain },
            Refusal::JobNotFound(job) => Self::JobNotFound(job),
            Refusal::ChainNotFound(chain) => Self::ChainNotFound(chain),
            Refusal::NotPending(job, status) => Self::NotTriggerable { job, status },
            Refusal::NotOpen(chain, status) => Self::ChainEnded { chain, status },
            Refusal::NotRetryable(chain, status) => Self::NotRetryable { chain, status },
            Refusal::KeyTaken { chain, holder } => Self::KeyTaken { chain, holder },
            Refusal::Damaged(chain) => Self::ChainDamaged(chain),
            Refusal::Referenced(references) => Self::BlockerReference(references),
        }
    }
}

/// Keeps the type of a chain that is not held.
pub(crate) type Of<J> = PhantomData<fn() -> J>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_names_that_a_store_could_not_keep_are_refused() {
        let long_key = "k".repeat(Deduplication::MAX_KEY_LENGTH + 1);
        for key in ["", "a\0b", &long_key] {
            assert!(matches!(check_key(key), Err(Error::Invalid { .. })), "{key:?}");
        }
        assert!(check_key(&long_key[1..]).is_ok());
        let long_name = "n".repeat(TypeName::MAX_LENGTH + 1);
        for name in ["", "a\0b", &long_name] {
            assert!(matches!(check_type_name(name), Err(Error::Invalid { .. })), "{name:?}");
        }
        assert!(check_type_name(&long_name[1..]).is_ok());
    }
}
