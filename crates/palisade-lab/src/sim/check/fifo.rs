//! First come, first served (A10): a lock goes to the longest waiting request whose caller is still there and whose
//! wait is not over. After a change of leader (R15, R16) every caller is away; nobody is served before one that may still
//! come back, and nobody waits for one that may not. A reader joins other readers unless somebody waits, and one release
//! admits the whole run of readers at the head (S6). A request for more permits than are free is not overtaken by one for
//! fewer (P6).

use std::collections::{BTreeMap, BTreeSet};

use super::Check;
use super::slot_table::SlotTable;
use crate::sim::fact::{ChangeKind, Fact};
use crate::sim::plan::Plan;

/// See the module.
pub(crate) struct Fifo {
    queues: BTreeMap<u8, Vec<Waiter>>,
    /// Requests whose callers left, until they return.
    gone: BTreeSet<u32>,
    /// Those among them that left while the disk was full, and when leases got their time for that. Open defect: the
    /// withdrawals are recorded after that, and a closed lock that opens with it may go to one of them (docs/lab.md, bugs
    /// found on the way).
    owed: BTreeSet<u32>,
    graced: Option<u64>,
    full: bool,
    /// Each lock's writer, the number of its readers, and every grant so far.
    holders: BTreeMap<u8, u8>,
    readers: BTreeMap<u8, BTreeSet<u64>>,
    granted: BTreeSet<u64>,
    shared: BTreeSet<u64>,
    /// The slots of semaphores; such a lock has neither writer nor readers.
    slots: SlotTable,
    /// Locks that nobody has and that are not closed, although requests wait for them.
    free: BTreeSet<u8>,
}

struct Waiter {
    request: u32,
    until: u64,
    shared: bool,
    /// How many permits it wants of a semaphore.
    wanted: u8,
    /// Until when its caller may come back.
    orphan: Option<u64>,
}

/// How long a caller may take to come back, in nanoseconds.
const WINDOW: u64 = 2_000_000_000;

impl Fifo {
    pub(crate) fn new(plan: &Plan) -> Fifo {
        Fifo {
            queues: BTreeMap::new(),
            gone: BTreeSet::new(),
            owed: BTreeSet::new(),
            graced: None,
            full: false,
            holders: BTreeMap::new(),
            readers: BTreeMap::new(),
            granted: BTreeSet::new(),
            shared: BTreeSet::new(),
            slots: SlotTable::new(plan),
            free: BTreeSet::new(),
        }
    }

    fn queued(&mut self, lock: u8, at: u64, waiter: Waiter) -> Result<(), String> {
        let request = waiter.request;
        if self.is_open(lock, &waiter) && self.waiting(lock, usize::MAX, at) == 0 {
            return Err(format!(
                "request {request} has to wait for lock {lock}, which is open to it and nobody else waits for"
            ));
        }
        let queue = self.queues.entry(lock).or_default();
        let back = self.gone.remove(&request);
        match queue.iter().position(|waiter| waiter.request == request) {
            // It left and returned, or returned too late: at the end of the queue.
            Some(place) if back || queue[place].is_lost(at) => {
                queue.remove(place);
            }
            // Another attempt keeps its place and its deadline.
            Some(place) => {
                queue[place].orphan = None;
                return Ok(());
            }
            None => {}
        }
        queue.push(waiter);
        Ok(())
    }

    /// Whether a request would be granted the lock if nobody waited.
    fn is_open(&self, lock: u8, waiter: &Waiter) -> bool {
        (waiter.wanted == 0 && self.free.contains(&lock)) || self.joins(lock, waiter)
    }

    /// Whether a request may hold the lock together with those that do.
    fn joins(&self, lock: u8, waiter: &Waiter) -> bool {
        match waiter.wanted {
            0 => waiter.shared && self.is_shared(lock),
            wanted => self.slots.free(lock) >= wanted.into(),
        }
    }

    fn is_shared(&self, lock: u8) -> bool {
        self.readers
            .get(&lock)
            .is_some_and(|readers| !readers.is_empty())
    }

    /// After each entry: no reader is first in the queue of a lock that has readers, and no request for permits in the
    /// queue of one that has as many free.
    fn runs_are_whole(&self, lock: u8, at: u64) -> Result<(), String> {
        let queue = self.queues.get(&lock).into_iter().flatten();
        let there = |waiter: &&Waiter| !self.gone.contains(&waiter.request) && !waiter.is_lost(at);
        let mut there = queue.filter(there);
        match there.next() {
            Some(first)
                if first.orphan.is_none() && first.until > at && self.joins(lock, first) =>
            {
                Err(format!(
                    "request {} waits first for lock {lock}, which it may hold with those that do (S6, P6)",
                    first.request
                ))
            }
            _ => Ok(()),
        }
    }

    fn decided(
        &mut self,
        request: u32,
        who: Option<(u8, u8)>,
        at: u64,
        token: Option<u64>,
        slots: u64,
    ) -> Result<(), String> {
        let waited = self.queues.iter().find_map(|(lock, queue)| {
            let place = queue.iter().position(|waiter| waiter.request == request)?;
            Some((*lock, place))
        });
        let Some(token) = token else {
            if let Some((lock, place)) = waited {
                self.leave(lock, place);
            }
            return Ok(());
        };
        if self.granted.contains(&token) {
            // The answer to a repeated request.
            return Ok(());
        }
        let lock = waited.map(|(lock, _)| lock);
        if let Some(lock) = lock.or(who.map(|(lock, _)| lock))
            && slots != 0
        {
            // Who had them before ended with this very entry.
            self.slots.vacate(lock, slots);
            self.slots.granted(lock, token, slots);
        }
        let Some((lock, place)) = waited else {
            return self.at_once(who, at, token);
        };
        self.free.remove(&lock);
        let waiter = &self.queues[&lock][place];
        if !waiter.shared {
            // The readers before it ended with this very entry.
            self.readers.remove(&lock);
        }
        let (orphan, lost) = (waiter.orphan.is_some(), waiter.is_lost(at));
        if who.is_some() && (self.gone.remove(&request) || lost) {
            // It left or was lost, and returns as a new request.
            self.leave(lock, place);
            return self.at_once(who, at, token);
        }
        let before = self.waiting(lock, place, at);
        let until = self.leave(lock, place);
        if orphan && who.is_none() {
            return Err(format!(
                "token {token} went to request {request}, whose caller has not come back"
            ));
        }
        let owed = self.owed.contains(&request) && self.graced == Some(at);
        if self.gone.contains(&request) && !owed {
            return Err(format!(
                "token {token} went to request {request}, whose caller had left"
            ));
        }
        if before != 0 {
            return Err(format!(
                "token {token} went to request {request}, with {before} ahead of it"
            ));
        }
        if at >= until {
            let late = (at - until) / 1_000_000;
            return Err(format!(
                "token {token} went to request {request} {late} ms after its wait was over"
            ));
        }
        Ok(())
    }

    /// Only the holder itself, taking its own lock over, may pass the queue.
    fn at_once(&self, who: Option<(u8, u8)>, at: u64, token: u64) -> Result<(), String> {
        let Some((lock, client)) = who else {
            return Err(format!(
                "token {token} went to a request that no longer waited"
            ));
        };
        let waiting = self.waiting(lock, usize::MAX, at);
        if waiting == 0 || self.holders.get(&lock) == Some(&client) {
            return Ok(());
        }
        Err(format!(
            "token {token} went to client {client} at once, with {waiting} waiting"
        ))
    }

    /// How many of the first `places` of a queue are still there, or may come back.
    fn waiting(&self, lock: u8, places: usize, at: u64) -> usize {
        let queue = self.queues.get(&lock).into_iter().flatten();
        queue
            .take(places)
            .filter(|waiter| !self.gone.contains(&waiter.request) && !waiter.is_lost(at))
            .count()
    }

    fn leave(&mut self, lock: u8, place: usize) -> u64 {
        let queue = self.queues.entry(lock).or_default();
        queue.remove(place).until
    }
}

impl Waiter {
    /// Its caller did not come back in time.
    fn is_lost(&self, at: u64) -> bool {
        self.orphan.is_some_and(|until| until <= at)
    }
}

impl Check for Fifo {
    fn name(&self) -> &'static str {
        super::FIFO
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Queued {
                request,
                lock,
                at,
                wait,
                shared,
                wanted,
                ..
            } => {
                let waiter = Waiter {
                    request: *request,
                    until: at.saturating_add(*wait),
                    shared: *shared,
                    wanted: *wanted,
                    orphan: None,
                };
                return self.queued(*lock, *at, waiter);
            }
            Fact::Decided {
                request,
                who,
                at,
                token,
                slots,
                ..
            } => return self.decided(*request, *who, *at, *token, *slots),
            Fact::Published(turn) => return self.runs_are_whole(turn.lock, turn.at),
            Fact::Gone { request } => {
                self.gone.insert(*request);
                if self.full {
                    self.owed.insert(*request);
                }
            }
            Fact::DiskFull => self.full = true,
            Fact::Graced { at } => (self.graced, self.full) = (Some(*at), false),
            Fact::Applied(turn) => match turn.what {
                ChangeKind::Granted(_) => {
                    self.granted.insert(turn.token);
                    self.free.remove(&turn.lock);
                    self.slots.granted(turn.lock, turn.token, turn.slots);
                    if turn.phase.is_some() {
                        self.shared.insert(turn.token);
                        self.readers
                            .entry(turn.lock)
                            .or_default()
                            .insert(turn.token);
                    } else {
                        // A crash may have undone a shared grant with this number.
                        self.shared.remove(&turn.token);
                        if turn.slots == 0 {
                            self.holders.insert(turn.lock, turn.client);
                        }
                    }
                }
                ChangeKind::Ended(_) => {
                    self.slots.ended(turn.lock, turn.token);
                    if self.shared.contains(&turn.token) {
                        let readers = self.readers.entry(turn.lock).or_default();
                        readers.remove(&turn.token);
                    } else {
                        self.holders.remove(&turn.lock);
                    }
                    if !self.is_shared(turn.lock) && turn.closed.is_none() {
                        self.free.insert(turn.lock);
                    }
                }
            },
            // All connections are gone, so all waits are over, or those of orphans.
            Fact::Recovered {
                at,
                live,
                closed,
                next,
                orphans,
                ..
            } => {
                // Decisions that the crash lost are made again.
                self.granted.retain(|token| token < next);
                self.queues.clear();
                self.gone.clear();
                self.owed.clear();
                self.full = false;
                for waiter in orphans {
                    let orphan = Some(waiter.until.min(at + WINDOW));
                    let queue = self.queues.entry(waiter.lock).or_default();
                    queue.push(Waiter {
                        request: waiter.request,
                        until: waiter.until,
                        shared: waiter.shared,
                        wanted: waiter.wanted,
                        orphan,
                    });
                }
                self.free = orphans.iter().map(|waiter| waiter.lock).collect();
                let live_locks = live.iter().map(|(lock, ..)| lock);
                for lock in live_locks.chain(closed.iter().map(|(lock, ..)| lock)) {
                    self.free.remove(lock);
                }
                self.slots.recovered(live);
                self.holders.clear();
                self.readers.clear();
                for (lock, token, client) in live {
                    if self.shared.contains(token) {
                        self.readers.entry(*lock).or_default().insert(*token);
                    } else if !self.slots.has(*token) {
                        self.holders.insert(*lock, *client);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}
