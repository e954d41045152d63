//! Which blocker of a continuation closes a circle.

use std::collections::HashSet;

use crate::adapter::{NewJob, Refusal};
use crate::id::ChainId;
use crate::job::JobStatus;

/// Whether a chain whose latest job is in this status waits for the blockers of that job, as far as they have not
/// completed. A dead or cancelled job counts too: a retry would make it wait.
pub fn waits_for_blockers(status: JobStatus) -> bool {
    status == JobStatus::Blocked || status.is_retryable()
}

/// Whether the next job of a chain may have its blockers; see [`closing_blocker`].
///
/// # Errors
///
/// [`Refusal::BlockerCycle`].
pub fn check_circle<I>(next: &NewJob, chain: ChainId, waits_for: impl FnMut(ChainId) -> I) -> Result<(), Refusal>
where
    I: IntoIterator<Item = ChainId>,
{
    match closing_blocker(&next.blockers, chain, waits_for) {
        Some(blocker) => Err(Refusal::BlockerCycle {
            job: next.id,
            chain: blocker,
        }),
        None => Ok(()),
    }
}

/// The first of the blockers that is the chain `target`, or waits for it directly or through others: the one that
/// [`BlockerCycle`](crate::adapter::Refusal::BlockerCycle) names. `waits_for` gives the chains that a chain waits for, or would wait
/// for if it were retried; it is asked once for every chain on the way.
///
/// One search for all blockers: what an earlier blocker has been through without meeting `target` does not lead there.
pub fn closing_blocker<I>(
    blockers: &[ChainId],
    target: ChainId,
    mut waits_for: impl FnMut(ChainId) -> I,
) -> Option<ChainId>
where
    I: IntoIterator<Item = ChainId>,
{
    let mut seen = HashSet::new();
    let mut ahead = Vec::new();
    for blocker in blockers {
        ahead.push(*blocker);
        while let Some(chain) = ahead.pop() {
            if chain == target {
                return Some(*blocker);
            }
            if seen.insert(chain) {
                ahead.extend(waits_for(chain));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use uuid::Uuid;

    use super::*;

    fn chain(number: u128) -> ChainId {
        ChainId::from_uuid(Uuid::from_u128(number))
    }

    /// Searches a graph, and counts how often it asks what a chain waits for, and how many edges it is told.
    fn search(edges: &[(u128, u128)], blockers: &[u128], target: u128) -> (Option<ChainId>, usize, usize) {
        let mut graph: HashMap<ChainId, Vec<ChainId>> = HashMap::new();
        for (from, to) in edges {
            graph.entry(chain(*from)).or_default().push(chain(*to));
        }
        let blockers: Vec<_> = blockers.iter().copied().map(chain).collect();
        let (mut asked, mut told) = (0, 0);
        let found = closing_blocker(&blockers, chain(target), |chain| {
            let edges = graph.get(&chain).cloned().unwrap_or_default();
            asked += 1;
            told += edges.len();
            edges
        });
        (found, asked, told)
    }

    #[test]
    fn the_first_blocker_that_leads_to_the_target_is_named() {
        let edges = [(1, 2), (2, 3), (4, 3), (5, 6), (6, 9), (7, 9)];
        assert_eq!(search(&edges, &[1, 4], 9).0, None);
        assert_eq!(search(&edges, &[1, 4, 7, 5], 9).0, Some(chain(7)));
        assert_eq!(search(&edges, &[1, 5, 7], 9).0, Some(chain(5)));
        assert_eq!(search(&edges, &[9], 9).0, Some(chain(9)));
        assert_eq!(search(&edges, &[2, 2, 6, 6], 9).0, Some(chain(6)));
    }

    #[test]
    fn every_chain_and_every_edge_is_looked_at_once() {
        // Every blocker waits for every chain of a second row, and each of these for one chain at the bottom.
        let (top, bottom) = (0..300, 1_000..1_100);
        let mut edges: Vec<_> = top
            .clone()
            .flat_map(|from| bottom.clone().map(move |to| (from, to)))
            .collect();
        edges.extend(bottom.map(|from| (from, 2_000)));
        let blockers: Vec<_> = top.collect();
        let (found, asked, told) = search(&edges, &blockers, 9_999);
        assert_eq!((found, asked, told), (None, 300 + 100 + 1, edges.len()));
    }

    #[test]
    fn a_long_way_and_a_circle_in_it_are_searched_to_the_end() {
        let mut edges: Vec<_> = (0..10_000).map(|from| (from, from + 1)).collect();
        edges.push((10_000, 5_000));
        assert_eq!(search(&edges, &[0], 20_000), (None, 10_001, 10_001));
        assert_eq!(search(&edges, &[0], 10_000).0, Some(chain(0)));
    }
}
