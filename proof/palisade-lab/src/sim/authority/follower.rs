//! Follows the log with its own machine and reports the contents as facts: the checkers see the decisions in the bytes
//! that become durable, not those of the orderer.

use std::collections::BTreeMap;

use palisade_core::machine::Record;
use palisade_core::{
    Away, Change, Command, Effect, Entry, Event, LockMode, Machine, Outcome, RequestId, Timestamp,
    Token, invariants,
};
use palisade_pipeline::codec::decode_batch;
use palisade_pipeline::orderer::Orderer;

use super::caller::{Caller, ReplyTo, index, locks_of, session, wanted};
use super::id_map::IdMap;
use crate::sim::fact::{ChangeKind, Fact, LockChange};
use crate::sim::locks::Locks;
use crate::sim::mutants::Mutant;

/// See the module.
pub(super) struct Follower {
    mutant: Option<Mutant>,
    machine: Machine,
    effects: Vec<Effect>,
    /// How many commands of the orderer's batch were followed, and how many of all batches.
    seen: usize,
    followed: u64,
    /// The callers of waiting requests, by the request's number.
    waiting: BTreeMap<u32, ReplyTo>,
    /// The requests whose callers were away when the leader changed, and until when their places are reserved.
    orphans: BTreeMap<RequestId, Timestamp>,
}

/// An acquire in the log.
struct Asked {
    request: RequestId,
    locks: Locks,
    client: u8,
    mode: LockMode,
    wanted: u8,
}

/// The caller of the followed request, and how long it is willing to wait in nanoseconds.
pub(super) type CallerAndWait = (ReplyTo, u64);

impl Follower {
    pub(super) fn new(machine: Machine, mutant: Option<Mutant>) -> Follower {
        Follower {
            mutant,
            machine,
            effects: Vec::new(),
            seen: 0,
            followed: 0,
            waiting: BTreeMap::new(),
            orphans: BTreeMap::new(),
        }
    }

    /// The batch is over.
    pub(super) fn end_batch(&mut self) {
        self.seen = 0;
    }

    /// The session through which a request waits.
    pub(super) fn session_of(&self, request: u32) -> Option<u64> {
        let to = self.waiting.get(&request)?;
        Some(session(to.client, to.incarnation))
    }

    /// A single caller is gone. Returns whether its request waits.
    pub(super) fn leaves(&mut self, request: u32) -> bool {
        self.waiting.remove(&request).is_some()
    }

    /// Removes the requests that wait through a client's connection, and returns their numbers in the order of the
    /// requests.
    pub(super) fn hang_up(&mut self, client: u8, incarnation: u32) -> Vec<u32> {
        let of_it = |to: &ReplyTo| (to.client, to.incarnation) == (client, incarnation);
        let waiting = self.waiting.iter().filter(|(_, to)| of_it(to));
        let mut gone: Vec<(u32, u32)> = waiting
            .map(|(number, to)| (to.operation, *number))
            .collect();
        gone.sort_unstable();
        self.waiting.retain(|_, to| !of_it(to));
        gone.into_iter().map(|(_, number)| number).collect()
    }

    /// Follows the commands added to the orderer's batch since the last call.
    pub(super) fn follow(
        &mut self,
        orderer: &Orderer<Caller>,
        asked: Option<CallerAndWait>,
        ids: &mut IdMap,
        facts: &mut Vec<Fact>,
    ) {
        let mut entries = Vec::new();
        // Well-formed, because it was just encoded; otherwise nothing.
        let _ = decode_batch(orderer.entry().unwrap_or_default(), |entry| {
            entries.push(entry);
        });
        for entry in entries.split_off(self.seen.min(entries.len())) {
            self.seen += 1;
            let withdraws = matches!(entry.command, Command::Withdraw(_));
            if withdraws && self.mutant == Some(Mutant::WithdrawalNotLogged) {
                continue;
            }
            self.apply(entry, asked, ids, facts);
            self.followed += 1;
            if self.followed.is_multiple_of(CHECK_EVERY) {
                check("the machine that follows", &self.machine);
            }
        }
        if self.followed.is_multiple_of(CHECK_EVERY) {
            check("the machine that serves", orderer.machine());
        }
    }

    /// Decisions first, then the changes in the order of the log. A caller that comes back is decided on before the
    /// requests behind it, any other caller after those that its entry woke.
    fn apply(
        &mut self,
        entry: Entry,
        asked: Option<CallerAndWait>,
        ids: &mut IdMap,
        facts: &mut Vec<Fact>,
    ) {
        let (at, instant) = (entry.at.as_nanos(), entry.at);
        let changes_leader = entry.command == Command::Grace(Away::Led);
        if let Command::Grace(Away::Paused(_)) = &entry.command {
            facts.push(Fact::Graced { at });
        }
        let acquires = match &entry.command {
            Command::Acquire(acquire) => acquire.request.map(|request| Asked {
                request,
                locks: locks_of(acquire),
                client: index(&acquire.client),
                mode: acquire.mode,
                wanted: wanted(acquire.mode),
            }),
            _ => None,
        };
        let renews = match &entry.command {
            Command::Renew { grant, .. } => grant.token,
            _ => None,
        };
        let resizes = match &entry.command {
            Command::Resize { lock, permits } => Some((index(lock), *permits as u8)),
            _ => None,
        };
        let orphaned = match &entry.command {
            Command::Orphan(request) => Some(*request),
            _ => None,
        };
        let outcome = self.machine.apply(entry, &mut self.effects).outcome;
        if let Some(request) = orphaned {
            facts.extend(self.orphaned(request, ids));
        }
        if let (Some((lock, permits)), Outcome::Done) = (resizes, &outcome) {
            facts.push(Fact::Resized { lock, permits });
        }
        let effects = std::mem::take(&mut self.effects);
        if changes_leader {
            self.orphans = orphans(&self.machine);
        }
        let until = acquires
            .as_ref()
            .and_then(|asked| self.orphans.remove(&asked.request));
        let comes_back = until.is_some_and(|until| until > instant);
        let settle =
            |granted: bool, follower: &mut Follower, ids: &mut IdMap, facts: &mut Vec<Fact>| {
                for effect in &effects {
                    if let Effect::Settled {
                        request, outcome, ..
                    } = effect
                        && matches!(outcome, Outcome::Granted(_)) == granted
                    {
                        let decided = (outcome, &*effects);
                        facts.push(follower.decided(at, *request, None, decided, ids));
                    }
                }
            };
        // A wait that ends with its lease is over before anybody is granted anything by the same entry.
        settle(false, self, ids, facts);
        let mut acquires = acquires;
        if comes_back && let Some(acquires) = acquires.take() {
            facts.extend(self.acquired(at, acquires, (&outcome, &effects), asked, ids));
        }
        settle(true, self, ids, facts);
        match acquires {
            Some(acquires) => {
                facts.extend(self.acquired(at, acquires, (&outcome, &effects), asked, ids));
            }
            None => facts.extend(renewed(at, &outcome, renews, ids)),
        }
        for effect in &effects {
            if let Effect::Event(event) = effect {
                let update = self.is_update(event);
                facts.extend(
                    turn(event, ids).map(|turn| Fact::Applied(LockChange { update, ..turn })),
                );
            }
        }
    }

    /// Whether an event is of the grant that has its lock in mode update now.
    fn is_update(&self, event: &Event) -> bool {
        let view = self.machine.view(&event.lock, self.machine.now());
        let mut readers = view.iter().flat_map(|view| &view.readers);
        readers.any(|reader| reader.update && Some(reader.id) == event.shared)
    }

    /// The place of a request is reserved, because its caller is gone for now.
    fn orphaned(&mut self, request: RequestId, ids: &mut IdMap) -> Option<Fact> {
        let mut records = self.machine.records();
        let until = records.find_map(|record| match record {
            Record::Waiter(waiter) if waiter.request == request => {
                Some(waiter.orphan?.min(waiter.deadline))
            }
            _ => None,
        })?;
        self.orphans.insert(request, until);
        let request = ids.number(request);
        let until = until.as_nanos();
        Some(Fact::Orphaned { request, until })
    }

    fn acquired(
        &mut self,
        at: u64,
        of: Asked,
        decision: (&Outcome, &[Effect]),
        asked: Option<CallerAndWait>,
        ids: &mut IdMap,
    ) -> Option<Fact> {
        if !matches!(decision.0, Outcome::Queued) {
            let who = Some((of.locks, of.client));
            return Some(self.decided(at, of.request, who, decision, ids));
        }
        let (to, wait) = asked?;
        let request = ids.number(of.request);
        self.waiting.insert(request, to);
        Some(Fact::Queued {
            request,
            locks: of.locks,
            client: of.client,
            at,
            wait,
            mode: of.mode,
            wanted: of.wanted,
        })
    }

    fn decided(
        &mut self,
        at: u64,
        request: RequestId,
        who: Option<(Locks, u8)>,
        (outcome, effects): (&Outcome, &[Effect]),
        ids: &mut IdMap,
    ) -> Fact {
        let (token, granted, slots, left) = match outcome {
            Outcome::Granted(granted) => {
                ids.granted(Some(request), granted);
                let left = granted.valid_for.as_nanos() - granted.waited.as_nanos();
                let token = ids.outward(granted.number()).get();
                let now = granted_now(granted.number(), effects);
                (Some(token), now, granted.slots.bits(), left)
            }
            _ => (None, 0, 0, 0),
        };
        let request = ids.number(request);
        self.waiting.remove(&request);
        let shared = matches!(outcome, Outcome::Granted(granted) if granted.shared.is_some());
        Fact::Decided {
            request,
            who,
            at,
            token,
            shared,
            granted,
            slots,
            left,
        }
    }
}

/// All invariants of a machine are checked after so many entries.
const CHECK_EVERY: u64 = 8;

fn check(which: &str, machine: &Machine) {
    let broken = invariants::check(machine).err();
    assert_eq!(broken, None, "{which}");
}

/// How many locks an entry granted with this number.
fn granted_now(number: Token, effects: &[Effect]) -> u8 {
    let grants = effects.iter().filter(|effect| {
        let Effect::Event(event) = effect else {
            return false;
        };
        let granted = matches!(event.change, Change::Granted { .. });
        granted && event.shared.map_or(event.token, |id| id.0) == number
    });
    grants.count() as u8
}

fn orphans(machine: &Machine) -> BTreeMap<RequestId, Timestamp> {
    let orphans = machine.records().filter_map(|record| match record {
        Record::Waiter(waiter) => Some((waiter.request, waiter.orphan?)),
        _ => None,
    });
    orphans.collect()
}

fn renewed(at: u64, outcome: &Outcome, grant: Option<Token>, ids: &IdMap) -> Option<Fact> {
    let Outcome::Renewed(renewed) = outcome else {
        return None;
    };
    Some(Fact::Renewed {
        token: ids.outward(grant?).get(),
        at,
        ttl: renewed.ttl.span().as_nanos(),
    })
}

/// An event as a checker sees it; `None` for a value that is proclaimed.
pub(super) fn turn(event: &palisade_core::Event, ids: &IdMap) -> Option<LockChange> {
    use palisade_core::Change;
    let (client, lease) = (event.client.as_ref()?, event.lease?);
    let outward = |token| ids.outward(token).get();
    let number = event.shared.map_or(event.token, |id| id.0);
    Some(LockChange {
        lock: index(&event.lock),
        client: index(client),
        token: outward(number),
        lease: lease.0.get(),
        phase: event.shared.map(|_| outward(event.token)),
        update: false,
        slots: ids.slots(number),
        at: event.at.as_nanos(),
        closed: match &event.change {
            Change::Ended { delayed, .. } => {
                delayed.map(|delayed| event.at.after(delayed).as_nanos())
            }
            _ => None,
        },
        what: match &event.change {
            Change::Granted { ttl } => ChangeKind::Granted(ttl.span().as_nanos()),
            Change::Ended { how, .. } => ChangeKind::Ended(*how),
            Change::Proclaimed | Change::Opened { .. } => return None,
        },
    })
}
