//! Questions about the graph of continuations. Variants are named by their index.

use std::collections::VecDeque;

/// Which variants can follow each variant at once.
pub(crate) struct Graph {
    pub(crate) next: Vec<Vec<usize>>,
}

impl Graph {
    /// The variants that a chain can get to from any of these, which are included, by index.
    pub(crate) fn reachable(&self, from: impl IntoIterator<Item = usize>) -> Vec<bool> {
        let mut reached = vec![false; self.next.len()];
        let mut open: Vec<_> = from.into_iter().collect();
        while let Some(index) = open.pop() {
            if !std::mem::replace(&mut reached[index], true) {
                open.extend(&self.next[index]);
            }
        }
        reached
    }

    /// The variants from which one of `targets` can be reached, targets included.
    pub(crate) fn can_reach(&self, targets: impl IntoIterator<Item = usize>) -> Vec<bool> {
        let mut previous = vec![Vec::new(); self.next.len()];
        for (from, next) in self.next.iter().enumerate() {
            for &to in next {
                previous[to].push(from);
            }
        }
        Self { next: previous }.reachable(targets)
    }

    /// A shortest way from the variant back to itself, which is named at both ends.
    pub(crate) fn loop_through(&self, start: usize) -> Option<Vec<usize>> {
        let mut came_from = vec![None; self.next.len()];
        let mut open = VecDeque::from([start]);
        while let Some(index) = open.pop_front() {
            for &next in &self.next[index] {
                if next == start {
                    let mut path = vec![start];
                    let mut at = Some(index);
                    while let Some(index) = at {
                        path.push(index);
                        at = came_from[index];
                    }
                    path.reverse();
                    return Some(path);
                }
                if came_from[next].is_none() {
                    came_from[next] = Some(index);
                    open.push_back(next);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(next: &[&[usize]]) -> Graph {
        Graph {
            next: next.iter().map(|next| next.to_vec()).collect(),
        }
    }

    #[test]
    fn reaching_forwards_and_backwards() {
        let graph = graph(&[&[1], &[2], &[], &[3]]);
        assert_eq!(graph.reachable([0]), [true, true, true, false]);
        assert_eq!(graph.can_reach([1]), [true, true, false, false]);
    }

    #[test]
    fn loops_are_shortest_and_closed() {
        let graph = graph(&[&[1, 2], &[2], &[0], &[3], &[]]);
        assert_eq!(graph.loop_through(0), Some(vec![0, 2, 0]));
        assert_eq!(graph.loop_through(1), Some(vec![1, 2, 0, 1]));
        assert_eq!(graph.loop_through(3), Some(vec![3, 3]));
        assert_eq!(graph.loop_through(4), None);
    }
}
