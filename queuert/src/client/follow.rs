//! Following a list: every row once, in pages that may be read years apart.

use std::fmt;
use std::future::IntoFuture;

use super::Client;
use super::list::{ListBlockedJobs, ListChains, ListJobs, PagedJobs, chain_position, keep_possible};
use super::request::Request;
use crate::adapter::{BoxFuture, ChainQuery, JobQuery, Order, Position, StateAdapter};
use crate::chain::ChainRecord;
use crate::error::Error;
use crate::job::JobRecord;
use crate::pagination::{Cursor, FollowRange, FollowedPage, check_limit, fingerprint};
use crate::time::Timestamp;

/// A request to follow a list, made by [`Request::follow`]. Await it.
///
/// It has no `within`, because a transaction may read a snapshot that is older than the watermark.
#[must_use = "a list is not read until it is awaited"]
pub struct Follow<'c, S: StateAdapter, O> {
    client: &'c Client<S>,
    operation: O,
    from: Option<Cursor>,
}

impl<S: StateAdapter, O: fmt::Debug> fmt::Debug for Follow<'_, S, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Follow")
            .field(&self.operation)
            .field(&self.from)
            .finish()
    }
}

impl<'c, S: StateAdapter> Request<'c, S, ListChains> {
    /// Follows the list: returns every chain that matches the filters exactly once, oldest first, to a program that
    /// continues from its last cursor for ever, across restarts. `None` begins with the oldest chain.
    ///
    /// ```
    /// # use queuert::{ChainRecord, Client, Cursor, Error, memory::MemoryState};
    /// # fn export(_: &ChainRecord) {}
    /// # async fn follow(client: &Client<MemoryState>, stored: Option<Cursor>) -> Result<(), Error> {
    /// let mut cursor: Option<Cursor> = stored;
    /// loop {
    ///     let page = client.list_chains().limit(500).follow(cursor).await?;
    ///     page.items.iter().for_each(export);
    ///     cursor = Some(page.next); // store it with what was exported, in one transaction if you can
    ///     if page.items.is_empty() {
    ///         tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// A page ends at the store's [`watermark`](FollowedPage::watermark), a time before which no more chains can
    /// appear. So a transaction that has started chains and stays open holds up all followers until it ends.
    ///
    /// A chain is returned in its state at that time, and not again when it changes. A chain that is deleted before the
    /// follower reads it is not returned. The program handles every chain exactly once if it stores the cursor in the
    /// transaction in which it handles the page, and at least once if it stores the cursor afterwards.
    ///
    /// All of this relies on the store's clock. If the clock is set back, chains that are created before it has caught
    /// up lie behind a cursor that has passed their time. A follower that must survive this lists again from an earlier
    /// time, with [`created_from`](Self::created_from), and skips the ids that it knows.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] with a filter on a property that may change ([`statuses`](Self::statuses),
    /// [`containing`](Self::containing), [`roots_only`](Self::roots_only)): a chain that comes to match after the
    /// cursor has passed it would be missed. Check the items instead. The same with [`after`](Self::after), and for a
    /// limit out of range. [`Error::InvalidCursor`] for a cursor of a follower with other filters, or of a plain list.
    /// [`Error::State`], also if the store cannot determine its watermark: the message says what it lacks.
    ///
    /// # Cancel safety
    ///
    /// Reading changes nothing.
    pub fn follow(self, from: Option<Cursor>) -> Follow<'c, S, ListChains> {
        Follow::new(self, from)
    }
}

impl<'c, S: StateAdapter> Request<'c, S, ListJobs> {
    /// Follows the list: returns every job that matches the filters exactly once, oldest first; see
    /// [`follow`](Request::follow) of chains.
    ///
    /// # Errors
    ///
    /// As for chains.
    ///
    /// # Cancel safety
    ///
    /// Reading changes nothing.
    pub fn follow(self, from: Option<Cursor>) -> Follow<'c, S, ListJobs> {
        Follow::new(self, from)
    }
}

impl<'c, S: StateAdapter> Request<'c, S, ListBlockedJobs> {
    /// Follows the list: returns every job that has the chain as blocker exactly once, oldest first; see
    /// [`follow`](Request::follow) of chains.
    ///
    /// # Errors
    ///
    /// As for chains.
    ///
    /// # Cancel safety
    ///
    /// Reading changes nothing.
    pub fn follow(self, from: Option<Cursor>) -> Follow<'c, S, ListBlockedJobs> {
        Follow::new(self, from)
    }
}

impl<'c, S: StateAdapter, O> Follow<'c, S, O> {
    fn new(request: Request<'c, S, O>, from: Option<Cursor>) -> Self {
        Self {
            client: request.client,
            operation: request.operation,
            from,
        }
    }
}

macro_rules! followed {
    ($($operation:ident, $item:ty, $follow:ident => $page:expr;)+) => {$(
        impl<'c, S: StateAdapter> IntoFuture for Follow<'c, S, $operation> {
            type Output = Result<FollowedPage<$item>, Error>;
            type IntoFuture = BoxFuture<'c, Self::Output>;

            fn into_future(self) -> Self::IntoFuture {
                let $follow = self;
                Box::pin($page)
            }
        }
    )+};
}

followed! {
    ListChains, ChainRecord, follow => chains(follow.client, follow.operation, follow.from);
    ListJobs, JobRecord, follow => jobs(follow.client, follow.operation.0, follow.from);
    ListBlockedJobs, JobRecord, follow => jobs(follow.client, follow.operation.0, follow.from);
}

/// The filters that are set, as text. Written out and not derived: a follower keeps its cursor for years, and it must fit a
/// version of this library that knows more filters.
#[derive(Debug)]
struct Filters(String);

impl Filters {
    fn new(list: &str) -> Self {
        Self(list.to_owned())
    }

    /// A filter by any of these values, whatever their order.
    fn any<T: fmt::Display>(mut self, name: &str, values: Option<&Vec<T>>) -> Self {
        if let Some(values) = values {
            let mut values: Vec<String> = values.iter().map(T::to_string).collect();
            values.sort_unstable();
            values.dedup();
            self.0.push_str(&format!(" {name}={values:?}"));
        }
        self
    }

    fn one(mut self, name: &str, value: Option<impl fmt::Display>) -> Self {
        if let Some(value) = value {
            self.0.push_str(&format!(" {name}={value}"));
        }
        self
    }
}

fn filters_of_chains(query: &ChainQuery) -> Filters {
    Filters::new("follow chains")
        .any("ids", query.ids.as_ref())
        .any("types", query.types.as_ref())
        .one("from", query.created_from.map(Timestamp::as_micros))
        .one("to", query.created_to.map(Timestamp::as_micros))
}

fn filters_of_jobs(query: &JobQuery) -> Filters {
    Filters::new("follow jobs")
        .any("ids", query.ids.as_ref())
        .any("chains", query.chains.as_ref())
        .any("types", query.types.as_ref())
        .any("chain types", query.chain_types.as_ref())
        .one("blocked by", query.blocked_by)
        .one("from", query.created_from.map(Timestamp::as_micros))
        .one("to", query.created_to.map(Timestamp::as_micros))
}

async fn chains<S: StateAdapter>(
    client: &Client<S>,
    list: ListChains,
    from: Option<Cursor>,
) -> Result<FollowedPage<ChainRecord>, Error> {
    let ListChains { mut query, after } = list;
    check(
        after,
        &[
            (query.statuses.is_some(), "`statuses`"),
            (query.jobs.is_some(), "`containing`"),
            (query.roots_only, "`roots_only`"),
        ],
    )?;
    let limit = std::mem::take(&mut query.limit);
    check_limit(limit)?;
    keep_possible(&mut query.types);
    query.order = Order::OldestFirst;
    let range = range(client, fingerprint(&filters_of_chains(&query)), from).await?;
    let rows = if range.is_empty() {
        Vec::new()
    } else {
        query.after = range.from();
        query.created_to = Some(up_to(query.created_to, &range));
        query.limit = limit + 1;
        client.state().list_chains(None, &query).await?
    };
    Ok(FollowedPage::from_surplus(rows, limit, &range, chain_position))
}

async fn jobs<S: StateAdapter>(
    client: &Client<S>,
    list: PagedJobs,
    from: Option<Cursor>,
) -> Result<FollowedPage<JobRecord>, Error> {
    let PagedJobs { mut query, after } = list;
    check(after, &[(query.statuses.is_some(), "`statuses`")])?;
    let limit = std::mem::take(&mut query.limit);
    check_limit(limit)?;
    keep_possible(&mut query.types);
    keep_possible(&mut query.chain_types);
    query.order = Order::OldestFirst;
    let range = range(client, fingerprint(&filters_of_jobs(&query)), from).await?;
    let rows = if range.is_empty() {
        Vec::new()
    } else {
        query.after = range.from();
        query.created_to = Some(up_to(query.created_to, &range));
        query.limit = limit + 1;
        client.state().list_jobs(None, &query).await?
    };
    Ok(FollowedPage::from_surplus(rows, limit, &range, |job| Position {
        value: job.created_at.as_micros(),
        id: job.id,
    }))
}

/// Asks for the watermark before the rows are read: a read that began earlier might not see all rows before it.
async fn range<S: StateAdapter>(client: &Client<S>, print: u64, from: Option<Cursor>) -> Result<FollowRange, Error> {
    let from = from.map(|cursor| cursor.position(print)).transpose()?;
    let watermark = client.state().watermark().await?;
    Ok(FollowRange::new(print, from, watermark))
}

/// The last time of creation that is asked for.
fn up_to(wanted: Option<Timestamp>, range: &FollowRange) -> Timestamp {
    wanted.map_or(range.last(), |wanted| wanted.min(range.last()))
}

/// Refuses what a follower cannot keep its promise with.
fn check(after: Option<Cursor>, changing: &[(bool, &str)]) -> Result<(), Error> {
    let invalid = |problem| {
        Err(Error::Invalid {
            what: "follow",
            problem,
        })
    };
    if after.is_some() {
        return invalid("a follower goes on from the cursor that is given to `follow`; leave out `after`".to_owned());
    }
    if let Some((_, filter)) = changing.iter().find(|(used, _)| *used) {
        return invalid(format!(
            "{filter} looks at what may change, and a row that comes to match when the cursor has passed it would be missed; \
             leave it out, and look at each item"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cursors that followers have stored must fit every later version: these numbers never change.
    #[test]
    fn fingerprints_stay_as_they_are() {
        let chains = ChainQuery {
            types: Some(vec!["b".into(), "a".into(), "b".into()]),
            created_from: Some(Timestamp::from_micros(7)),
            limit: 5,
            ..ChainQuery::default()
        };
        let text = filters_of_chains(&chains);
        assert_eq!(text.0, r#"follow chains types=["a", "b"] from=7"#);
        assert_eq!(fingerprint(&text), FOLLOWED_CHAINS);
        let jobs = filters_of_jobs(&JobQuery::default());
        assert_eq!(jobs.0, "follow jobs");
        assert_eq!(fingerprint(&jobs), FOLLOWED_JOBS);
    }

    const FOLLOWED_CHAINS: u64 = 0x9c5f_fb6a_7fc8_ef79;
    const FOLLOWED_JOBS: u64 = 0xb298_b905_4493_4f3c;
}
