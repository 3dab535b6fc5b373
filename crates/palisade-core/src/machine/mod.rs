//! The lock machine, which decides who holds each lock.
//!
//! [`Machine::apply`] is the only way in which anything changes. It is total, synchronous and
//! deterministic: equal entries in equal order end in equal states and equal outcomes.
//!
//! ```text
//!              acquire (free, expired, or the same client)           release · expire · revoke
//!   free ───────────────────────────────────────────────► held ───────────────────────────────► free
//!                                                          │ ▲                                    or
//!                              acquire with wait: queued   │ │ first waiter that is still alive   held by
//!                                                          ▼ │                                    the next
//!                                                         queue (FIFO)
//! ```
//!
//! After a change of leader an orphan may be first in the queue. Then nobody is granted until its caller is back or its window
//! is over, and a lock that nobody holds is *kept* for it until then. A lock is also kept for a set that is first in its queue
//! and waits for its other locks (`sets`).
//!
//! A lock that is free has no record, so idle locks cost nothing; the token counter is one for all
//! locks (rule A2) and is never reset.

#[cfg(test)]
mod corruptions;
mod delays;
mod expiry;
mod extensions;
pub(crate) mod grant;
mod grants;
mod index;
mod listening;
mod memory;
mod permits;
mod query;
pub(crate) mod record;
mod restore;
mod sets;
mod share;
mod shared;
mod short;
pub(crate) mod slab;
mod snapshot;
pub(crate) mod tables;
mod timers;
mod upgrade;
mod waiting;
pub(crate) mod wheel;

pub use expiry::Expiry;
pub use extensions::Extension;
pub use memory::{Answered, Over};
pub use query::Held;
pub use record::Closing;
pub use restore::{Corrupt, Grants, Leases, Part, Past};
pub use snapshot::{Head, KeptRecord, LeaseRecord, LiveGrant, Record, ShareRecord, WaiterRecord};

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::num::NonZero;

use grant::{GrantAt, GrantSlot};
use memory::{Answers, Endings};
use record::Lease;
use slab::LockSlot;
use tables::Tables;
use wheel::is_due;

use crate::command::{Away, Command, Entry, Others};
use crate::id::{Principal, RequestId};
use crate::limits::{self, Limits};
use crate::name::LockName;
use crate::options::GrantOptions;
use crate::outcome::{Change, Detail, Effect, Ending, Event, Outcome};
use crate::permits::Slots;
use crate::time::{Span, Timestamp, WallTime};
use crate::token::Token;

/// Everything an authority knows.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(crate) now: Timestamp,
    wall: WallTime,
    /// The principal that asked for the entry being applied.
    by: Principal,
    /// `None` once the last token of the range is out.
    pub(crate) next_token: Option<Token>,
    /// After a restore: lower tokens were drawn before it.
    restored: Option<Token>,
    revision: u64,
    arrivals: u64,
    limits: Limits,
    pub(crate) tables: Tables,
    answers: Answers,
    over: Endings,
    /// Locks that a set has just left, to be handed on, each with the answer to the request just before. Empty between entries.
    to_wake: VecDeque<(LockSlot, Outcome)>,
    /// Whether the entry being applied changed anything that must be logged.
    changed: bool,
    /// Whether nobody wants to hear of events.
    silent: bool,
    /// Grants ended and requests settled by the entry being applied.
    ended: u32,
    /// How often leases were extended since this machine was built. Not part of the state.
    extended: u64,
    expiry: Expiry,
}

/// The result of [`Machine::apply`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The caller's answer.
    pub outcome: Outcome,
    /// Whether the state changed. An entry that changed nothing need not be logged.
    pub changed: bool,
}

impl Machine {
    /// A new authority: no locks, and the first grant gets [`Token::FIRST`].
    ///
    /// `seed` decides where entries lie in hash tables and nothing else; draw it at random, so that
    /// nobody can choose names that collide.
    #[must_use]
    pub fn new(seed: u64) -> Machine {
        Machine {
            now: Timestamp::ZERO,
            wall: WallTime::default(),
            by: Principal::ANONYMOUS,
            next_token: Some(Token::FIRST),
            restored: None,
            revision: 0,
            arrivals: 0,
            limits: Limits::DEFAULT,
            tables: Tables::new(seed, Timestamp::ZERO),
            answers: Answers::new(seed),
            over: Endings::new(seed),
            to_wake: VecDeque::new(),
            changed: false,
            silent: false,
            ended: 0,
            extended: 0,
            expiry: Expiry::CURRENT,
        }
    }

    /// Plants a state that no entries lead to: the next token is [`Token::FIRST`], whatever was drawn before. The assertion
    /// of A2 fails when a lock that has had a grant is granted again.
    #[cfg(feature = "testing")]
    pub fn plant_used_token(&mut self) {
        self.next_token = Some(Token::FIRST);
    }

    /// Applies one entry of the log: first everything due at its instant, then its command. [`Expiry`] bounds how much ends
    /// beside the command.
    ///
    /// An instant before the last one counts as the last one: time does not go back. Effects are
    /// appended in the order in which they happened.
    pub fn apply(&mut self, entry: Entry, effects: &mut Vec<Effect>) -> Applied {
        let before = self.now;
        self.now = before.max(entry.at);
        (self.wall, self.by) = (entry.wall, entry.by);
        (self.changed, self.ended) = (false, 0);
        match entry.command {
            // An authority that was away gives its clients their time back before it expires any of them.
            Command::Grace(away) => self.give_back(before, away),
            Command::Expire => {}
            _ => {
                self.expire_due(false, effects);
                // So far only due leases and waits can have left requests and sets to look at.
                if self.ended > 0 {
                    self.settle_rest(effects);
                }
            }
        }
        let asked = match &entry.command {
            Command::Acquire(acquire) => acquire.request,
            _ => None,
        };
        let before = effects.len();
        // Made in its place: an outcome is large.
        let mut applied = Applied {
            outcome: self.command(entry.command, effects),
            changed: false,
        };
        if self.settle_rest(effects)
            && applied.outcome == Outcome::Queued
            && let Some(request) = asked
        {
            // A set that this very entry went on to grant.
            applied.outcome = self.own_answer(request, before, effects);
        }
        assert!(
            self.to_wake.is_empty(),
            "a lock that a set left was not handed on (M2)"
        );
        applied.changed = self.changed;
        applied
    }

    /// Applies an entry when its effects were already delivered.
    pub fn replay(&mut self, entry: Entry) {
        self.silent = true;
        self.apply(entry, &mut Vec::new());
        self.silent = false;
    }

    /// Reads the data that some coming entries will need, and changes nothing. The processor then waits for all of it at once,
    /// and not for one piece after the other when the entries are applied.
    pub fn look_ahead(&self, entries: &[Entry]) {
        let live = entries.iter().filter_map(|entry| match &entry.command {
            Command::Renew { grant, .. }
            | Command::Proclaim { grant, .. }
            | Command::Release(grant) => self.live_grant(grant),
            _ => None,
        });
        core::hint::black_box(live.count());
    }

    /// Makes room for this many more locks at once, where it is known that they come.
    pub fn reserve(&mut self, locks: usize) {
        self.tables.reserve_locks(locks);
        self.tables.reserve_leases(locks);
    }

    /// Gives back room that [`Machine::reserve`] made in vain.
    pub fn fit(&mut self) {
        self.tables.fit();
    }

    fn command(&mut self, command: Command, effects: &mut Vec<Effect>) -> Outcome {
        match command {
            Command::Acquire(acquire) => self.acquire(acquire, effects),
            Command::Renew { grant, ttl } => self.renew(&grant, ttl, effects),
            Command::Proclaim { grant, value } => self.proclaim(&grant, value, effects),
            Command::Release(grant) => self.release(&grant, effects),
            Command::Revoke {
                lock,
                token,
                reason,
            } => self.revoke(&lock, token, reason, effects),
            Command::Open { lock, reason } => self.reopen(&lock, &reason, effects),
            Command::Resize { lock, permits } => self.resize(&lock, permits, effects),
            Command::Withdraw(request) => self.withdraw(&request, effects),
            Command::Orphan(request) => self.orphan(&request),
            Command::Abandon(request) => self.abandon(request, effects),
            Command::Expire | Command::Grace(_) => {
                self.expire_due(true, effects);
                Outcome::Done
            }
            Command::Leap { by } => self.leap(by),
            Command::Configure(limits) => self.configure(limits),
        }
    }

    /// When something will be due that nobody asks about: the authority should apply
    /// [`Command::Expire`] then. An instant that has passed says that the last entry left something to end.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        let due = [
            self.tables.lease_timers.next(),
            self.tables.wait_timers.next(),
            self.tables.first_opening(),
        ];
        due.into_iter().flatten().min()
    }

    /// The longest pause that every live lease survives: see [`bears`](crate::time::Ttl::bears). Rounded down, to a half at
    /// worst.
    #[must_use]
    pub fn bears(&self) -> Span {
        self.tables.short.bear()
    }

    /// How many live leases were extended since their last renewal.
    #[must_use]
    pub fn extended_now(&self) -> usize {
        self.tables.extensions.count()
    }

    /// How often leases were extended for an absence of the authority, since this machine was built.
    #[must_use]
    pub fn extended(&self) -> u64 {
        self.extended
    }

    /// Every live lease that the authority's absence may have cost its renewal lasts its full time to live
    /// from now (rule A7), but no longer than twice its time to live after its last renewal, not counting absences. Never
    /// less than it would have. Waits that were over meanwhile end: their callers named the instant.
    ///
    /// A lease is not revived (rule A8) if it was due by the entry `before` this one and only stands in line, or if somebody
    /// has heard since that it is over.
    ///
    /// Looks at every lease and waiting request, because it is about all of them; callers cannot ask for it.
    fn give_back(&mut self, before: Timestamp, away: Away) {
        let short = match away {
            Away::Paused(pause) if pause < limits::STALL => Some(pause),
            _ => None,
        };
        let absent = match away {
            Away::Paused(span) | Away::Down(span) => span,
            // The clock stood still meanwhile.
            Away::Restarted | Away::Restored | Away::Led => Span::ZERO,
        };
        self.changed = short.is_none();
        let (now, over) = (self.now, &self.over);
        let told = |lease: &Lease| {
            over.of_lease(&lease.key)
                .any(|over| over.token >= lease.id.0 && over.how == Ending::Expired)
        };
        let extensions = &mut self.tables.extensions;
        for (slot, lease) in self.tables.leases.iter_mut() {
            if short.is_some_and(|pause| pause <= lease.ttl.bears())
                || is_due(lease.expires, before)
                || (lease.is_expired(now) && told(lease))
            {
                continue;
            }
            let known = extensions.get(slot);
            let limit = known.map_or_else(
                || lease.expires.after(lease.ttl.span()),
                |extension| extension.limit,
            );
            let limit = limit.after(absent);
            let until = now.after(lease.ttl.span()).min(limit);
            let mut times = known.map_or(0, |extension| extension.times.get());
            if until > lease.expires {
                lease.expires = until;
                times = times.saturating_add(1);
                self.extended += 1;
                self.changed = true;
            }
            if let Some(times) = NonZero::new(times) {
                extensions.set(slot, Extension { limit, times });
                self.changed |= known.is_some_and(|extension| extension.limit != limit);
            }
        }
        match away {
            Away::Restarted | Away::Down(_) => self.forget_waiters(),
            Away::Restored => {
                self.forget_waiters();
                self.restored = self.next_token;
            }
            Away::Led => self.orphan_waiters(before),
            Away::Paused(_) => {}
        }
        // A lease of a set's own client may live again.
        let sets = self.tables.sets.keys();
        self.tables.sets_to_try.extend(sets);
    }

    /// Neither tokens nor revisions repeat those that were given out after the backup.
    fn leap(&mut self, by: u64) -> Outcome {
        self.changed = true;
        self.revision = self.revision.saturating_add(by);
        self.next_token = self.next_token.and_then(|token| token.leap(by));
        match self.next_token {
            Some(_) => Outcome::Done,
            None => Outcome::TokensExhausted,
        }
    }

    fn configure(&mut self, limits: Limits) -> Outcome {
        self.changed |= self.limits != limits;
        self.limits = limits;
        Outcome::Done
    }

    /// Records the answer to a request that can be asked again.
    fn remember(
        &mut self,
        by: Principal,
        request: RequestId,
        lock: Option<LockName>,
        also: Others,
        outcome: Outcome,
    ) {
        self.changed = true;
        self.answers.remember(Answered {
            by,
            request,
            lock,
            also,
            outcome,
        });
    }

    /// Reports a change of a grant; a new one was asked for `waited` ago.
    fn event(&mut self, grant: GrantSlot, change: Change, waited: Span, effects: &mut Vec<Effect>) {
        self.revision += 1;
        if self.silent {
            return;
        }
        let slot = match grant.at() {
            GrantAt::Share(share) => return self.event_of_share(share, change, waited, effects),
            GrantAt::Lock(lock) => lock,
        };
        let place = grant;
        let lock = &self.tables.locks[slot];
        let (grant, lease) = self.tables.held_by_writer(slot);
        let client = &self.tables.clients[lease.client.slot()];
        effects.push(Effect::Event(Event {
            revision: self.revision,
            at: self.now,
            wall: self.wall,
            token: grant.token(),
            shared: None,
            slots: Slots::NONE,
            lock: lock.name.clone(),
            client: Some(client.id.clone()),
            by: client.by,
            lease: Some(lease.id),
            held: self.wall.since(grant.wall()),
            detail: self.detail(place, lease, &change, waited),
            change,
        }));
    }

    /// The facts of a change of this grant that an event has room for.
    #[inline]
    fn detail(&self, grant: GrantSlot, lease: &Lease, change: &Change, waited: Span) -> Detail {
        let metadata = || self.tables.metadata_of(grant).map(Into::into);
        match change {
            Change::Granted { .. } => Detail {
                waited,
                metadata: metadata(),
                options: match grant.at() {
                    GrantAt::Lock(lock) => self.tables.closing(lock).options,
                    GrantAt::Share(_) => GrantOptions::NONE,
                },
                ..Detail::default()
            },
            Change::Proclaimed => Detail {
                metadata: metadata(),
                ..Detail::default()
            },
            Change::Ended { how, .. } => Detail {
                by: match how {
                    Ending::Revoked => self.by,
                    _ => Principal::ANONYMOUS,
                },
                unrenewed: self.now.since(lease.renewed()),
                ..Detail::default()
            },
            Change::Opened { .. } => Detail::default(),
        }
    }
}
