//! Listing chains and jobs in pages.

use super::Client;
use super::request::{Operation, Request, RequestContext, Sealed};
use super::start::check_type_name;
use crate::adapter::{ChainQuery, JobQuery, JobSort, Order, Position, StateAdapter};
use crate::chain::ChainRecord;
use crate::error::Error;
use crate::id::{ChainId, JobId};
use crate::job::{JobRecord, JobStatus, TypeName};
use crate::job_type::JobType;
use crate::pagination::{Cursor, Page, check_limit, fingerprint};
use crate::time::Timestamp;

const DEFAULT_LIMIT: usize = 50;

impl<S: StateAdapter> Client<S> {
    /// Lists chains, newest first, 50 per page, unless the request is configured otherwise.
    ///
    /// ```
    /// # use queuert::{Client, Error, JobStatus, memory::MemoryState};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// # let client = Client::new(MemoryState::new());
    /// let mut page = client.list_chains().statuses([JobStatus::Dead]).limit(20).await?;
    /// while let Some(cursor) = page.next {
    ///     page = client.list_chains().statuses([JobStatus::Dead]).limit(20).after(cursor).await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// A program that reads new chains for ever, from where it stopped, uses [`follow`](Request::follow): a chain whose
    /// transaction commits late may lie before the [cursor](Cursor) of a list.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidCursor`], [`Error::Invalid`] for a limit out of range, [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// Reading changes nothing.
    pub fn list_chains(&self) -> Request<'_, S, ListChains> {
        let query = ChainQuery {
            limit: DEFAULT_LIMIT,
            ..ChainQuery::default()
        };
        Request::new(self, ListChains { query, after: None })
    }

    /// Lists jobs of all chains, newest first, 50 per page, unless the request is configured otherwise.
    ///
    /// # Errors
    ///
    /// As [`list_chains`](Self::list_chains).
    ///
    /// # Cancel safety
    ///
    /// Reading changes nothing.
    pub fn list_jobs(&self) -> Request<'_, S, ListJobs> {
        Request::new(self, ListJobs(PagedJobs::new(JobQuery::default())))
    }

    /// Lists the jobs of a chain in their order, 50 per page, unless the request is configured otherwise.
    ///
    /// # Errors
    ///
    /// As [`list_chains`](Self::list_chains). A chain that does not exist has no jobs.
    ///
    /// # Cancel safety
    ///
    /// Reading changes nothing.
    pub fn list_chain_jobs(&self, chain: impl Into<ChainId>) -> Request<'_, S, ListChainJobs> {
        let query = JobQuery {
            chains: Some(vec![chain.into()]),
            sort: JobSort::ChainIndex,
            order: Order::OldestFirst,
            ..JobQuery::default()
        };
        Request::new(self, ListChainJobs(PagedJobs::new(query)))
    }

    /// Lists the jobs that have a chain as blocker, newest first, whether they still wait for it or not.
    ///
    /// # Errors
    ///
    /// As [`list_chains`](Self::list_chains).
    ///
    /// # Cancel safety
    ///
    /// Reading changes nothing.
    pub fn list_blocked_jobs(&self, chain: impl Into<ChainId>) -> Request<'_, S, ListBlockedJobs> {
        let query = JobQuery {
            blocked_by: Some(chain.into()),
            ..JobQuery::default()
        };
        Request::new(self, ListBlockedJobs(PagedJobs::new(query)))
    }
}

/// Lists chains.
#[derive(Debug)]
pub struct ListChains {
    pub(super) query: ChainQuery,
    pub(super) after: Option<Cursor>,
}

/// Lists jobs.
#[derive(Debug)]
pub struct ListJobs(pub(super) PagedJobs);

/// Lists the jobs of a chain.
#[derive(Debug)]
pub struct ListChainJobs(PagedJobs);

/// Lists the jobs that have a chain as blocker.
#[derive(Debug)]
pub struct ListBlockedJobs(pub(super) PagedJobs);

#[derive(Debug)]
pub(super) struct PagedJobs {
    pub(super) query: JobQuery,
    pub(super) after: Option<Cursor>,
}

impl PagedJobs {
    fn new(mut query: JobQuery) -> Self {
        query.limit = DEFAULT_LIMIT;
        Self { query, after: None }
    }

    async fn page<S: StateAdapter>(
        mut self,
        client: &Client<S>,
        within: Option<&mut S::Connection>,
    ) -> Result<Page<JobRecord>, Error> {
        let limit = self.query.limit;
        check_limit(limit)?;
        keep_possible(&mut self.query.types);
        keep_possible(&mut self.query.chain_types);
        self.query.limit = 0;
        let print = fingerprint(&("jobs", &self.query));
        self.query.after = self.after.map(|cursor| cursor.position(print)).transpose()?;
        self.query.limit = limit + 1;
        let sort = self.query.sort;
        let rows = client.state().list_jobs(within, &self.query).await?;
        Ok(Page::from_surplus(rows, limit, print, |job| Position {
            value: match sort {
                JobSort::CreatedAt => job.created_at.as_micros(),
                JobSort::ChainIndex => i64::from(job.chain_index),
            },
            id: job.id,
        }))
    }
}

/// Leaves only names in a filter that a job type can have. The others match nothing, and not every store could be asked for
/// them.
pub(super) fn keep_possible(types: &mut Option<Vec<TypeName>>) {
    if let Some(types) = types {
        types.retain(|name| check_type_name(name.as_str()).is_ok());
    }
}

impl<S: StateAdapter> Request<'_, S, ListChains> {
    /// Only these chains. Default: all.
    pub fn ids(mut self, chains: impl IntoIterator<Item = ChainId>) -> Self {
        self.operation.query.ids = Some(chains.into_iter().collect());
        self
    }

    /// Only chains with one of these jobs. Default: all.
    pub fn containing(mut self, jobs: impl IntoIterator<Item = JobId>) -> Self {
        self.operation.query.jobs = Some(jobs.into_iter().collect());
        self
    }

    /// Adds chains that start with a `J` to the list. Default: all types.
    pub fn starting_with<J: JobType>(mut self) -> Self {
        self.operation.query.types.get_or_insert_default().push(J::NAME.into());
        self
    }

    /// Only chains that start with these types. Default: all types.
    pub fn types<T: Into<TypeName>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.operation.query.types = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Only chains that no job has as blocker. Default: all.
    pub fn roots_only(mut self) -> Self {
        self.operation.query.roots_only = true;
        self
    }
}

impl<S: StateAdapter> Request<'_, S, ListJobs> {
    /// Only these jobs. Default: all.
    pub fn ids(mut self, jobs: impl IntoIterator<Item = JobId>) -> Self {
        self.operation.0.query.ids = Some(jobs.into_iter().collect());
        self
    }

    /// Only jobs of these chains. Default: all.
    pub fn chains(mut self, chains: impl IntoIterator<Item = ChainId>) -> Self {
        self.operation.0.query.chains = Some(chains.into_iter().collect());
        self
    }

    /// Adds jobs of type `J` to the list. Default: all types.
    pub fn of_type<J: JobType>(mut self) -> Self {
        self.operation
            .0
            .query
            .types
            .get_or_insert_default()
            .push(J::NAME.into());
        self
    }

    /// Only jobs of these types. Default: all types.
    pub fn types<T: Into<TypeName>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.operation.0.query.types = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Only jobs of chains that start with these types. Default: all types.
    pub fn chain_types<T: Into<TypeName>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.operation.0.query.chain_types = Some(names.into_iter().map(Into::into).collect());
        self
    }
}

macro_rules! paged {
    ($operation:ident, $item:ty, $self:ident => $query:expr, $after:expr) => {
        impl<S: StateAdapter> Request<'_, S, $operation> {
            /// Lists the newest rows first.
            pub fn newest_first(mut $self) -> Self {
                $query.order = Order::NewestFirst;
                $self
            }

            /// Lists the oldest rows first.
            pub fn oldest_first(mut $self) -> Self {
                $query.order = Order::OldestFirst;
                $self
            }

            /// Only rows in these statuses. Default: all.
            pub fn statuses(mut $self, statuses: impl IntoIterator<Item = JobStatus>) -> Self {
                $query.statuses = Some(statuses.into_iter().collect());
                $self
            }

            /// Only rows that were created at this time or later. Default: all.
            pub fn created_from(mut $self, time: impl Into<Timestamp>) -> Self {
                $query.created_from = Some(time.into());
                $self
            }

            /// Only rows that were created at this time or earlier. Default: all.
            pub fn created_to(mut $self, time: impl Into<Timestamp>) -> Self {
                $query.created_to = Some(time.into());
                $self
            }

            /// Sets the number of rows per page, from 1 to 1,000. Default: 50.
            pub fn limit(mut $self, limit: usize) -> Self {
                $query.limit = limit;
                $self
            }

            /// Continues after a page of the same query. Default: the first page.
            pub fn after(mut $self, cursor: Cursor) -> Self {
                $after = Some(cursor);
                $self
            }
        }

        impl Sealed for $operation {}

        impl<S: StateAdapter> Operation<S> for $operation {
            type Output = Page<$item>;

            fn writes(&self) -> bool {
                false
            }

            async fn run(self, context: RequestContext<'_, S>) -> Result<Page<$item>, Error> {
                self.page(context.client, context.within).await
            }
        }
    };
}

paged!(ListChains, ChainRecord, self => self.operation.query, self.operation.after);
paged!(ListJobs, JobRecord, self => self.operation.0.query, self.operation.0.after);
paged!(ListChainJobs, JobRecord, self => self.operation.0.query, self.operation.0.after);
paged!(ListBlockedJobs, JobRecord, self => self.operation.0.query, self.operation.0.after);

macro_rules! page_of_jobs {
    ($($operation:ident)+) => {$(
        impl $operation {
            async fn page<S: StateAdapter>(
                self,
                client: &Client<S>,
                within: Option<&mut S::Connection>,
            ) -> Result<Page<JobRecord>, Error> {
                self.0.page(client, within).await
            }
        }
    )+};
}

page_of_jobs!(ListJobs ListChainJobs ListBlockedJobs);

impl ListChains {
    async fn page<S: StateAdapter>(
        mut self,
        client: &Client<S>,
        within: Option<&mut S::Connection>,
    ) -> Result<Page<ChainRecord>, Error> {
        let limit = self.query.limit;
        check_limit(limit)?;
        keep_possible(&mut self.query.types);
        self.query.limit = 0;
        let print = fingerprint(&("chains", &self.query));
        self.query.after = self.after.map(|cursor| cursor.position(print)).transpose()?;
        self.query.limit = limit + 1;
        let rows = client.state().list_chains(within, &self.query).await?;
        Ok(Page::from_surplus(rows, limit, print, chain_position))
    }
}

/// Where a chain stands in a list.
pub(super) fn chain_position(chain: &ChainRecord) -> Position {
    Position {
        value: chain.created_at.as_micros(),
        id: chain.id.first_job(),
    }
}
