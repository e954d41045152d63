//! The application's own data: what the transactions of callers and processors wrote beside their jobs.

use queuert::memory::MemoryState;
use queuert::{ChainId, JobId, JobType, WorkerId};

use super::Model;
use crate::invariants::{Checked, broken, ensure};
use crate::jobs::Transfer;
use crate::workload::{ACCOUNTS, OPENING_BALANCE, account};

/// What the data should say.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    moves: u64,
    orders: Vec<(ChainId, u64)>,
    transfers: Vec<(JobId, Transfer)>,
    pub(super) stopped: Vec<WorkerId>,
}

impl Model {
    /// A number for the next move of money by a caller.
    pub fn next_move(&mut self) -> u64 {
        self.ledger.moves += 1;
        self.ledger.moves
    }

    /// The chain was started in the transaction of this move.
    pub fn ordered(&mut self, chain: ChainId, number: u64) {
        self.ledger.orders.push((chain, number));
    }

    /// These workers have stopped: nothing more may come from them.
    pub fn stopped(&mut self, worker: WorkerId) {
        self.ledger.stopped.push(worker);
    }

    /// A transfer was completed by an attempt.
    pub(super) fn transferred(&mut self, job: JobId) {
        if let Some(state) = self.jobs.get(&job)
            && state.type_name.as_str() == Transfer::NAME
            && let Ok(transfer) = state.input.decode()
        {
            self.ledger.transfers.push((job, transfer));
        }
    }

    /// What the chain was finished with, also if it was deleted since.
    pub fn finished_with(&self, chain: ChainId) -> Option<u64> {
        self.finished.get(&chain).and_then(|output| output.decode().ok())
    }

    /// Every account holds what the committed moves say; every transactional attempt has written once.
    ///
    /// # Errors
    ///
    /// At the first difference.
    pub fn check_money(&self, memory: &MemoryState) -> Checked {
        let mut balances = [OPENING_BALANCE; ACCOUNTS as usize];
        let mut shift = |from: u8, to: u8, amount: i64| {
            balances[usize::from(from)] -= amount;
            balances[usize::from(to)] += amount;
        };
        for number in 1..=self.ledger.moves {
            if let Ok(Some((from, to, amount))) = memory.get::<(u8, u8, i64)>(&format!("move:{number}")) {
                shift(from, to, amount);
            }
        }
        for (_, transfer) in &self.ledger.transfers {
            shift(transfer.from, transfer.to, transfer.amount);
        }
        for (number, wanted) in (0..ACCOUNTS).zip(balances) {
            let balance = memory.get::<i64>(&account(number));
            ensure!(
                matches!(balance, Ok(Some(balance)) if balance == wanted),
                Money,
                "account {number} holds {balance:?}, not {wanted}"
            );
        }
        for (chain, number) in &self.ledger.orders {
            let moved = matches!(memory.get::<(u8, u8, i64)>(&format!("move:{number}")), Ok(Some(_)));
            ensure!(
                moved == self.knows(*chain),
                Transactional,
                "chain {chain} and the move {number} of its transaction were separated"
            );
        }
        for job in &self.known {
            let visits: u32 = memory.get(&format!("visits:{job}")).ok().flatten().unwrap_or(0);
            let by_attempt = matches!(self.completed.get(job), Some(Some(_)));
            if visits > u32::from(by_attempt) {
                return broken!(Transactional, "job {job} has written {visits} times");
            }
            let transfer = self.ledger.transfers.iter().any(|(id, _)| id == job);
            ensure!(
                visits == 1 || !transfer,
                Transactional,
                "job {job} was completed without what it wrote"
            );
        }
        Ok(())
    }
}
