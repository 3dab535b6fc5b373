//! The slots of a semaphore (P1, P2, P4): no slot has two holders, and nobody is granted one while as many are held as there
//! are permits; a request gets as many as it wants, or none; and the tokens of each slot rise from holder to holder. A number
//! that an operator was told of survives restarts, as long as the semaphore is in use, and a new request with another one is
//! refused.

use std::collections::BTreeMap;

use super::rule::{self, Check};
use super::slot_table::SlotTable;
use crate::sim::fact::{ChangeKind, Fact, LockChange};
use crate::sim::locks::Locks;
use crate::sim::plan::Plan;

/// See the module.
pub(crate) struct Permits {
    slots: SlotTable,
    /// How many permits each request wants, and how many it says that there are.
    wanted: BTreeMap<u32, (u8, u8)>,
    /// The requests that wait: the number that they named may be outdated.
    waiting: BTreeMap<u32, Waiter>,
    /// The numbers that requests granted at once have named, by their grants.
    named: BTreeMap<u64, u8>,
    /// Each semaphore's numbers that may be in force after a restart: the last acknowledged one, and those that the log
    /// received since.
    numbers: BTreeMap<u8, Vec<u8>>,
    /// The highest token of a durable grant of each slot: lock, bit.
    highest: BTreeMap<(u8, u32), u64>,
}

#[derive(Clone, Copy)]
struct Waiter {
    locks: Locks,
    wanted: u8,
    /// When an orphan loses its place. If it comes back later, its request is a new one, and names the number anew.
    lost_at: Option<u64>,
}

impl Permits {
    pub(crate) fn new(plan: &Plan) -> Permits {
        Permits {
            slots: SlotTable::new(plan),
            wanted: BTreeMap::new(),
            waiting: BTreeMap::new(),
            named: BTreeMap::new(),
            numbers: BTreeMap::new(),
            highest: BTreeMap::new(),
        }
    }

    fn decided(
        &mut self,
        request: u32,
        waited: bool,
        token: u64,
        slots: u64,
    ) -> Result<(), String> {
        let (wanted, of) = self.wanted.get(&request).copied().unwrap_or((0, 0));
        self.named.remove(&token);
        if slots != 0 && !waited {
            self.named.insert(token, of);
        }
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
        if slots != 0 {
            self.is_in_number(lock, token, slots)?;
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

    /// A new grant is of the number of permits that is in force, and there is room for it (P1).
    fn is_in_number(&mut self, lock: u8, token: u64, slots: u64) -> Result<(), String> {
        let size = self.slots.size(lock);
        let named = self.named.remove(&token);
        match named.filter(|named| *named != size) {
            Some(named) if self.slots.is_in_use(lock) => {
                return Err(format!(
                    "lock {lock}: token {token} is of {named} permits, and there are {size} (P1)"
                ));
            }
            // The first request says how many there are.
            Some(named) => self.set(lock, named),
            None => {}
        }
        if self.slots.free(lock) < slots.count_ones() {
            return Err(format!(
                "lock {lock}: token {token} has slots {slots:#b}, and of {size} permits there are {} left (P1)",
                self.slots.free(lock)
            ));
        }
        Ok(())
    }

    /// The log has got a number of permits.
    fn set(&mut self, lock: u8, permits: u8) {
        let before = self.slots.size(lock);
        self.slots.resize(lock, permits);
        let numbers = self.numbers.entry(lock).or_default();
        if numbers.is_empty() {
            numbers.push(before);
        }
        numbers.push(permits);
    }

    /// Earlier numbers cannot come back.
    fn acknowledged(&mut self, lock: u8, permits: u8) {
        let numbers = self.numbers.entry(lock).or_default();
        let place = numbers.iter().position(|number| *number == permits);
        numbers.drain(..place.unwrap_or(0));
    }

    fn recovered(&mut self, permits: &[(u8, u8)], restored: bool) -> Result<(), String> {
        for (lock, number) in permits {
            let numbers = self.numbers.entry(*lock).or_default();
            if !restored && !numbers.is_empty() && !numbers.contains(number) {
                return Err(format!(
                    "lock {lock} has {number} permits after a restart, expected one of {numbers:?} (P1)"
                ));
            }
        }
        // A semaphore that is not in use is forgotten at a restart, so only the recovered numbers count from here.
        self.numbers.clear();
        for (lock, number) in permits {
            self.numbers.insert(*lock, vec![*number]);
        }
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
        rule::PERMITS
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::AcquireTaken {
                request: Some(request),
                wanted,
                of,
                ..
            } => drop(self.wanted.insert(*request, (*wanted, *of))),
            Fact::Queued {
                request,
                locks,
                wanted,
                ..
            } => {
                let waiter = Waiter {
                    locks: *locks,
                    wanted: *wanted,
                    lost_at: None,
                };
                self.waiting.insert(*request, waiter);
            }
            Fact::Gone { request, .. } => drop(self.waiting.remove(request)),
            Fact::Orphaned { request, until } => {
                if let Some(waiter) = self.waiting.get_mut(request) {
                    waiter.lost_at = Some(*until);
                }
            }
            Fact::Resized { lock, permits } => {
                // Requests that want more leave the queue.
                let wants = Locks::one(*lock);
                self.waiting
                    .retain(|_, waiter| waiter.locks != wants || waiter.wanted <= *permits);
                self.set(*lock, *permits);
            }
            Fact::ResizeAcknowledged { lock, permits } => self.acknowledged(*lock, *permits),
            Fact::Decided {
                request,
                at,
                token,
                slots,
                ..
            } => {
                let waiter = self.waiting.remove(request);
                let waited =
                    waiter.is_some_and(|waiter| waiter.lost_at.is_none_or(|lost| *at < lost));
                if let Some(token) = token {
                    return self.decided(*request, waited, *token, *slots);
                }
            }
            Fact::Applied(turn) => return self.turn(turn),
            Fact::Published(turn) => return self.published(turn),
            Fact::Recovered {
                at,
                live,
                permits,
                restored,
                orphans,
                ..
            } => {
                self.slots.recovered(live, permits);
                let orphans = orphans.iter().map(|orphan| {
                    let waiter = Waiter {
                        locks: orphan.locks,
                        wanted: orphan.wanted,
                        lost_at: Some(orphan.is_lost_at(*at)),
                    };
                    (orphan.request, waiter)
                });
                self.waiting = orphans.collect();
                return self.recovered(permits, *restored);
            }
            _ => {}
        }
        Ok(())
    }
}
