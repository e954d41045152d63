//! A chain exists if and only if the transaction that started it was committed, and nobody deleted it.

use std::collections::HashMap;

use queuert::ChainId;

use super::Audit;

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
}
