//! A chain exists if and only if the transaction that started it was committed, and nobody deleted it.

use std::collections::HashMap;

use queuert::ChainId;

use super::{Audit, number_of};
use crate::backlog;

impl Audit<'_> {
    pub(super) fn starts(&mut self) {
        let facts = self.facts;
        let mut rows: HashMap<ChainId, usize> = HashMap::new();
        for row in facts.started.iter().filter(|row| !row.existing) {
            *rows.entry(row.chain).or_default() += 1;
        }
        for (chain, count) in &rows {
            if !self.chains.contains_key(chain) && !facts.has_noted(*chain, "deleting") {
                self.broken(
                    "no chain is lost",
                    *chain,
                    "the row of its transaction is there, the chain is not",
                );
            }
            if *count > 1 {
                self.broken("started once", *chain, format!("{count} rows of its transaction"));
            }
        }
        let found: Vec<ChainId> = self.chains.keys().copied().collect();
        for chain in found {
            if !rows.contains_key(&chain) && !facts.has_noted(chain, "intended") {
                self.broken(
                    "nothing comes from nowhere",
                    chain,
                    "the chain is there, the row of its transaction is not",
                );
            }
            if !facts.chains.contains_key(&chain) {
                self.broken(
                    "chains are listed",
                    chain,
                    "its jobs are there, the list of chains lacks it",
                );
            }
            if facts.has_noted(chain, "deleted") && !facts.forgets() {
                self.broken("deleted is gone", chain, "it is there");
            }
        }
        for chain in facts.noted.keys() {
            let there = self.chains.contains_key(chain);
            let may_be_gone = facts.has_noted(*chain, "deleting") || facts.forgets();
            if facts.has_noted(*chain, "acknowledged") && !there && !may_be_gone {
                self.broken("no chain is lost", *chain, "its starter was told that it is there");
            }
            if facts.has_noted(*chain, "rolled-back") && (there || rows.contains_key(chain)) {
                self.broken("rolled back is gone", *chain, "something of it is there");
            }
        }
    }

    /// Every chain of a backlog is there once, also if its row is gone with it.
    pub(super) fn backlog(&mut self) {
        let facts = self.facts;
        let Some(units) = facts.backlog.filter(|_| !facts.forgets()) else {
            return;
        };
        let mut wanted: HashMap<(&str, u64), usize> = backlog::planned(units);
        let mut surplus = Vec::new();
        for (chain, jobs) in &self.chains {
            let type_name = jobs[0].type_name.as_str();
            if !backlog::TYPES.contains(&type_name) {
                continue;
            }
            let count = number_of(jobs[0]).and_then(|n| wanted.get_mut(&(type_name, n)));
            match count.filter(|count| **count > 0) {
                Some(count) => *count -= 1,
                None => surplus.push(*chain),
            }
        }
        for chain in surplus {
            self.broken(
                "started as planned",
                chain,
                "no such chain, or no other one, was to be started",
            );
        }
        for ((type_name, n), count) in wanted.into_iter().filter(|(_, count)| *count > 0) {
            let what = format!("{count} chains of {type_name} with {n} are missing");
            self.broken_everywhere("started as planned", what);
        }
    }
}
