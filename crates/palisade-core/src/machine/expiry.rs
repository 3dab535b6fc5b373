//! Expiry in bounded steps.
//!
//! ```text
//!   wheel ──fired, sorted──► line ──at most so many for each entry──► ended
//! ```
//!
//! However many leases and waits end together, one entry ends a bounded number of them. The rest waits in line,
//! [`Machine::next_due`] reports it, and the next entry goes on. Nobody sees the difference: an operation compares its
//! own lock's and lease's deadline exactly, whether or not the line has got that far.
//!
//! The order is that of the deadlines, then of the lease ids or arrivals. It does not depend on the wheel's lists, which
//! differ in a machine that was restored. Timers that fire later have later deadlines, so appending keeps the line
//! sorted.

use alloc::vec::Vec;

use super::Machine;
use super::record::WaiterRole;
use super::slab::{LeaseSlot, LockSlot, WaiterSlot};
use super::tables::Tables;
use super::wheel::is_due;
use crate::limits;
use crate::outcome::{Effect, Ending};
use crate::time::Timestamp;

/// How many grants and requests that are over, and that nobody asked about, one entry ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// In an entry that is there for the time alone: [`Expire`](crate::Command::Expire) and
    /// [`Grace`](crate::Command::Grace).
    pub alone: u32,
    /// In any other entry. At least 1: an entry with something due at its instant then changes something, and so is
    /// logged.
    pub beside: u32,
}

impl Expiry {
    /// The rule of the format.
    pub const CURRENT: Expiry = Expiry {
        alone: limits::EXPIRE_ALONE,
        beside: limits::EXPIRE_BESIDE,
    };
}

/// Something that is due.
enum Due {
    Lease(LeaseSlot),
    Opening(LockSlot),
    Wait(WaiterSlot),
}

impl Tables {
    /// After a restore: lines up everything that is due and has not ended yet.
    pub(super) fn line_up_again(&mut self, now: Timestamp) {
        let waits = self.waiters.iter();
        let waits = waits.filter(|(_, wait)| wait.role != WaiterRole::Other);
        let waits = waits.map(|(slot, wait)| (wait.ends(), wait.arrival, slot));
        let leases = self.leases.iter();
        let leases = leases.map(|(slot, lease)| (lease.expires, lease.id.0.get(), slot));
        self.wait_timers
            .line_up_again(waits.filter(|due| is_due(due.0, now)));
        self.lease_timers
            .line_up_again(leases.filter(|due| is_due(due.0, now)));
    }

    fn line_up(&mut self, now: Timestamp) {
        let (waiters, leases) = (&self.waiters, &self.leases);
        self.wait_timers.line_up(now, |slot| {
            let wait = &waiters[slot];
            (wait.ends(), wait.arrival)
        });
        self.lease_timers.line_up(now, |slot| {
            let lease = &leases[slot];
            (lease.expires, lease.id.0.get())
        });
    }

    fn first_due_wait(&mut self) -> Option<WaiterSlot> {
        let waiters = &self.waiters;
        self.wait_timers.first(|slot| {
            let wait = waiters.get(slot)?;
            Some((wait.ends(), wait.arrival))
        })
    }

    fn first_due_lease(&mut self) -> Option<LeaseSlot> {
        let leases = &self.leases;
        self.lease_timers.first(|slot| {
            let lease = leases.get(slot)?;
            Some((lease.expires, lease.id.0.get()))
        })
    }
}

impl Machine {
    /// Sets other bounds for the entries to come, for tests: a log is replayed under [`Expiry::CURRENT`].
    pub fn set_expiry(&mut self, expiry: Expiry) {
        self.expiry = expiry;
    }

    /// Ends due leases and waits and opens due locks in the order of their instants, as many as one entry may. A lock
    /// that came free before a wait was over is granted to that wait. At equal instants leases come first and waits
    /// last. `alone`: the entry does nothing else.
    #[inline]
    pub(super) fn expire_due(&mut self, alone: bool, effects: &mut Vec<Effect>) {
        let (waits, leases) = (&mut self.tables.wait_timers, &mut self.tables.lease_timers);
        let pass = waits.pass(self.now) & leases.pass(self.now);
        let opens = self.tables.first_opening();
        if pass && opens.is_none_or(|opens| opens > self.now) {
            return;
        }
        self.end_due(alone, effects);
    }

    fn end_due(&mut self, alone: bool, effects: &mut Vec<Effect>) {
        self.tables.line_up(self.now);
        let most = if alone {
            self.expiry.alone
        } else {
            self.expiry.beside
        };
        while self.ended < most
            && let Some((_, first)) = self.first_due()
        {
            match first {
                Due::Lease(lease) => {
                    let grant = self.tables.first_grant(lease);
                    self.end_and_wake(grant, Ending::Expired, None, effects);
                }
                Due::Opening(lock) => self.open_due(lock, effects),
                Due::Wait(wait) => self.time_out(wait, effects),
            }
        }
    }

    fn first_due(&mut self) -> Option<(Timestamp, Due)> {
        let tables = &mut self.tables;
        let lease = tables.first_due_lease();
        let lease = lease.map(|slot| (tables.leases[slot].expires, Due::Lease(slot)));
        let opening = tables.first_to_open(self.now).zip(tables.first_opening());
        let opening = opening.map(|(lock, until)| (until, Due::Opening(lock)));
        let wait = tables.first_due_wait();
        let wait = wait.map(|slot| (tables.waiters[slot].ends(), Due::Wait(slot)));
        // The first of the least ones.
        let due = [lease, opening, wait].into_iter().flatten();
        due.min_by_key(|(at, _)| *at)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use alloc::format;

    use super::*;
    use crate::command::{Acquire, Away, Command, Entry, GrantRef, Under};
    use crate::id::{LeaseKey, RequestId};
    use crate::invariants;
    use crate::name::{ClientId, LockName};
    use crate::outcome::Outcome;
    use crate::time::{Span, Ttl, WallTime};
    use crate::token::Token;

    const TTL_MS: u64 = 1_000;
    const END: Timestamp = Timestamp::from_millis(TTL_MS);

    fn apply(machine: &mut Machine, at: Timestamp, command: Command) -> (Outcome, Vec<Effect>) {
        let mut effects = Vec::new();
        let wall = WallTime::default();
        let outcome = machine
            .apply(
                Entry {
                    at,
                    wall,
                    by: crate::id::Principal::ANONYMOUS,
                    command,
                },
                &mut effects,
            )
            .outcome;
        assert_eq!(invariants::check(machine), Ok(()));
        (outcome, effects)
    }

    fn acquire(lock: u64, client: &str, under: Under, wait: Option<Span>) -> Command {
        Command::Acquire(Acquire {
            wait,
            ..Acquire::new(
                LockName::new(&format!("lock/{lock}")).unwrap(),
                ClientId::new(client).unwrap(),
                under,
                wait.map(|_| RequestId::from_bytes(u128::from(lock).to_le_bytes())),
            )
        })
    }

    fn key(number: u64) -> LeaseKey {
        LeaseKey::from_bytes(u128::from(number).to_le_bytes())
    }

    fn new_lease(number: u64, ttl_ms: u64) -> Under {
        let ttl = Ttl::from_millis(ttl_ms).unwrap();
        Under::New {
            key: key(number),
            ttl,
        }
    }

    /// Locks with tokens from 1 on that end at [`END`], each under a lease of its own or all under one.
    fn ending_together(locks: u64, one_lease: bool) -> Machine {
        let mut machine = Machine::new(1);
        for lock in 1..=locks {
            let under = if one_lease && lock > 1 {
                Under::Existing {
                    key: key(1),
                    ttl: None,
                }
            } else {
                new_lease(lock, TTL_MS)
            };
            apply(
                &mut machine,
                Timestamp::ZERO,
                acquire(lock, "a", under, None),
            );
        }
        machine
    }

    fn expired(token: u64) -> Outcome {
        let how = Ending::Expired;
        Outcome::Ended {
            token: Token::new(token).unwrap(),
            how,
        }
    }

    fn tokens(effects: &[Effect]) -> Vec<u64> {
        let events = effects.iter().filter_map(|effect| match effect {
            Effect::Event(event) => Some(event.token.get()),
            Effect::Settled { .. } => None,
        });
        events.collect()
    }

    #[test]
    fn an_entry_ends_a_bounded_number_of_what_nobody_asked_about() {
        for one_lease in [false, true] {
            let mut machine = ending_together(30, one_lease);
            machine.set_expiry(Expiry {
                alone: 7,
                beside: 2,
            });
            let (_, effects) = apply(&mut machine, END, Command::Expire);
            assert_eq!(tokens(&effects), [1, 2, 3, 4, 5, 6, 7]);
            assert!(
                machine.next_due().unwrap() <= END,
                "the rest is due at once"
            );
            let beside = Command::Withdraw(RequestId::from_bytes([9; 16]));
            assert_eq!(tokens(&apply(&mut machine, END, beside).1), [8, 9]);
            let (_, effects) = apply(
                &mut machine,
                END,
                Command::Grace(Away::Paused(crate::limits::STALL)),
            );
            assert_eq!(
                tokens(&effects),
                [10, 11, 12, 13, 14, 15, 16],
                "not revived"
            );
            machine.set_expiry(Expiry::CURRENT);
            assert_eq!(
                tokens(&apply(&mut machine, END, Command::Expire).1).len(),
                14
            );
            assert_eq!(machine.next_due(), None);
        }
    }

    #[test]
    fn what_is_asked_about_is_over_wherever_it_stands_in_line() {
        for one_lease in [false, true] {
            let mut machine = ending_together(30, one_lease);
            machine.set_expiry(Expiry {
                alone: 1,
                beside: 1,
            });
            let (first, lock) = (key(1), LockName::new("lock/30").unwrap());
            assert!(machine.view(&lock, END).is_none());
            let key = if one_lease { key(1) } else { key(30) };
            let renew = Command::Renew {
                grant: GrantRef {
                    lock,
                    key,
                    token: None,
                },
                ttl: None,
            };
            let (outcome, effects) = apply(&mut machine, END, renew);
            assert_eq!((outcome, tokens(&effects)), (expired(30), [1, 30].into()));
            let free = acquire(29, "b", new_lease(99, TTL_MS), None);
            let (outcome, effects) = apply(&mut machine, END, free);
            assert!(matches!(outcome, Outcome::Granted(_)));
            assert_eq!(tokens(&effects), [2, 29, 31]);
            let under = Under::Existing {
                key: first,
                ttl: None,
            };
            let (outcome, _) = apply(&mut machine, END, acquire(50, "a", under, None));
            assert_eq!(outcome, expired(if one_lease { 28 } else { 1 }));
        }
    }

    /// Once somebody has heard that a lease is over, it stays over, even if no timer has fired.
    #[test]
    fn a_lease_that_is_partly_over_is_not_revived() {
        let mut machine = Machine::new(1);
        let start = Timestamp::from_nanos(1);
        for lock in 1..=2 {
            let under = match lock {
                1 => new_lease(1, TTL_MS),
                _ => Under::Existing {
                    key: key(1),
                    ttl: None,
                },
            };
            apply(&mut machine, start, acquire(lock, "a", under, None));
        }
        let end = start.after(Span::from_millis(TTL_MS));
        apply(
            &mut machine,
            end,
            acquire(1, "b", new_lease(2, TTL_MS), None),
        );
        assert_eq!(
            machine.locks(),
            2,
            "lock/2 is the old lease's, until the next tick"
        );
        apply(
            &mut machine,
            end,
            Command::Grace(Away::Paused(crate::limits::STALL)),
        );
        assert!(machine.view("lock/2", end).is_none() && machine.view("lock/1", end).is_some());
    }

    /// Two requests wait, and one of them no longer: its deadline has passed, its turn in the line has not come.
    #[test]
    fn a_wait_that_is_over_is_not_granted_while_it_stands_in_line() {
        let mut machine = ending_together(3, false);
        for lock in 1..=3 {
            let wait = Some(Span::from_millis(TTL_MS - 1));
            let under = new_lease(10 + lock, TTL_MS);
            apply(
                &mut machine,
                Timestamp::ZERO,
                acquire(lock, "b", under, wait),
            );
        }
        machine.set_expiry(Expiry {
            alone: 1,
            beside: 1,
        });
        let grant = GrantRef {
            lock: LockName::new("lock/3").unwrap(),
            key: key(3),
            token: None,
        };
        let early = Timestamp::from_millis(TTL_MS - 1).after(Span::from_nanos(1));
        let (outcome, effects) = apply(&mut machine, early, Command::Release(grant));
        assert!(matches!(outcome, Outcome::Released { .. }));
        let settled = effects.iter().filter(|effect| {
            matches!(
                effect,
                Effect::Settled {
                    outcome: Outcome::Held(_),
                    ..
                }
            )
        });
        assert_eq!((settled.count(), tokens(&effects)), (2, [3].into()));
        assert_eq!((machine.locks(), machine.waiters()), (2, 1));
    }

    /// The order of the line is not that of the wheel's lists, which a restored machine has not.
    #[test]
    fn a_machine_restored_with_a_line_goes_on_alike() {
        let mut machine = Machine::new(1);
        for lock in 1..=60 {
            let ttl_ms = TTL_MS + lock * 7 % 5;
            let asks = acquire(lock, "a", new_lease(lock, ttl_ms), None);
            apply(&mut machine, Timestamp::ZERO, asks);
            let wait = Some(Span::from_millis(TTL_MS - 200 + lock * 3 % 7));
            let waits = acquire(lock, "b", new_lease(100 + lock, TTL_MS), wait);
            apply(&mut machine, Timestamp::ZERO, waits);
        }
        let rule = Expiry {
            alone: 9,
            beside: 1,
        };
        machine.set_expiry(rule);
        let mut copies = [machine.clone(), machine];
        while copies[0].next_due().is_some() {
            let at = copies[0].now().after(Span::from_millis(100));
            let [one, other] = copies
                .each_mut()
                .map(|copy| apply(copy, at, Command::Expire));
            assert_eq!(one, other);
            copies[1] = Machine::restore(2, copies[1].records()).unwrap();
            copies[1].set_expiry(rule);
            assert_eq!(invariants::check(&copies[1]), Ok(()));
            assert!(copies[0].records().eq(copies[1].records()));
        }
        assert_eq!((copies[0].locks(), copies[0].waiters()), (0, 0));
    }
}
