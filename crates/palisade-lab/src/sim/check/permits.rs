//! The slots of a semaphore (P2, P4): no slot has two holders, and there are never more than its permits; a request gets
//! as many as it wants, or none; and the tokens of each slot rise from holder to holder.

use std::collections::BTreeMap;

use super::Check;
use super::slot_table::SlotTable;
use crate::sim::fact::{ChangeKind, Fact, LockChange};
use crate::sim::plan::Plan;

/// See the module.
pub(crate) struct Permits {
    slots: SlotTable,
    /// How many permits each request wants.
    wanted: BTreeMap<u32, u8>,
    /// The highest token of a durable grant of each slot: lock, bit.
    highest: BTreeMap<(u8, u32), u64>,
}

impl Permits {
    pub(crate) fn new(plan: &Plan) -> Permits {
        Permits {
            slots: SlotTable::new(plan),
            wanted: BTreeMap::new(),
            highest: BTreeMap::new(),
        }
    }

    fn decided(&self, request: u32, token: u64, slots: u64) -> Result<(), String> {
        let wanted = self.wanted.get(&request).copied().unwrap_or(0);
        let got = slots.count_ones();
        if got == u32::from(wanted) {
            return Ok(());
        }
        Err(format!(
            "request {request} wanted {wanted} permits, and token {token} has {got} (P4)"
        ))
    }

    fn turn(&mut self, turn: &LockChange) -> Result<(), String> {
        let LockChange {
            lock, token, slots, ..
        } = *turn;
        if let ChangeKind::Ended(_) = turn.what {
            self.slots.ended(lock, token);
            return Ok(());
        }
        if slots & !self.slots.all(lock) != 0 {
            return Err(format!(
                "lock {lock}: token {token} has slots {slots:#b}, and the semaphore {:#b}",
                self.slots.all(lock)
            ));
        }
        if let Some(other) = self.slots.holder(lock, slots) {
            return Err(format!(
                "lock {lock}: token {token} has slots {slots:#b}, one of which token {other} holds (P2)"
            ));
        }
        self.slots.granted(lock, token, slots);
        Ok(())
    }

    fn published(&mut self, turn: &LockChange) -> Result<(), String> {
        let LockChange {
            lock, token, slots, ..
        } = *turn;
        let ChangeKind::Granted(_) = turn.what else {
            return Ok(());
        };
        for bit in (0..u64::BITS).filter(|bit| slots & 1 << bit != 0) {
            let before = self.highest.insert((lock, bit), token);
            if let Some(before) = before
                && before >= token
            {
                return Err(format!(
                    "lock {lock}: slot {} went to token {token} after token {before} (P2)",
                    bit + 1
                ));
            }
        }
        Ok(())
    }
}

impl Check for Permits {
    fn name(&self) -> &'static str {
        super::PERMITS
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::AcquireTaken {
                request: Some(request),
                wanted,
                ..
            } => drop(self.wanted.insert(*request, *wanted)),
            Fact::Decided {
                request,
                token: Some(token),
                slots,
                ..
            } => return self.decided(*request, *token, *slots),
            Fact::Applied(turn) => return self.turn(turn),
            Fact::Published(turn) => return self.published(turn),
            Fact::Recovered { live, .. } => self.slots.recovered(live),
            _ => {}
        }
        Ok(())
    }
}
