//! The machine's answers. A denial is a value like any other.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::command::LockMode;
use crate::id::{GrantId, LeaseId, LeaseKey, Principal, RequestId};
use crate::invalid::Invalid;
use crate::name::{ClientId, LockName};
use crate::options::GrantOptions;
use crate::permits::Slots;
use crate::time::{Span, Timestamp, Ttl, WallTime};
use crate::token::Token;

/// The answer to one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The caller holds the lock.
    Granted(Granted),
    /// The request waits; its answer comes later as an [`Effect::Settled`].
    Queued,
    /// Another client holds the lock.
    Held(Holder),
    /// Another request is ahead in the queue. Even a free lock can be reserved for that request.
    Behind(Ahead),
    /// Nobody holds the lock, and it is closed for a time after its last grant (rules D1 and D4).
    Delayed(Delayed),
    /// The lease was renewed for a full time to live.
    Renewed(Renewed),
    /// The holder's metadata changed.
    Proclaimed {
        /// The token of the grant, which is unchanged.
        token: Token,
        /// The number of this event. Of two announcements, the one with the higher (token, revision) is the later one.
        revision: u64,
    },
    /// The grant was released.
    Released {
        /// The grant's number: its token, or its [`GrantId`] if it was shared.
        token: Token,
        /// How long the lock stays closed, if the grant asked for that (rule D4).
        delayed: Option<Span>,
    },
    /// An operator revoked the grant.
    Revoked {
        /// Its number, as of a release.
        token: Token,
    },
    /// The named grant is over, and the authority remembers how it ended. For a repeated release this is success
    /// (`already released`).
    Ended {
        /// Its number, as of a release.
        token: Token,
        /// How it ended.
        how: Ending,
    },
    /// The caller does not hold the lock, and the authority remembers no earlier grant of it.
    NotHeld,
    /// The lease holds the lock by a grant with another number, and the authority does not remember the named one.
    OtherNumber {
        /// The number of the live grant.
        has: Token,
    },
    /// The caller knows the lease's secret, but the lease belongs to another principal. Nothing changed.
    WrongPrincipal {
        /// The lock asked for.
        lock: LockName,
    },
    /// The lock is held with another token than the named one.
    Stale {
        /// The named token, or number of a shared grant.
        named: Token,
        /// The token with which it is held.
        highest: Token,
    },
    /// Too many requests are waiting.
    QueueFull(QueueBound),
    /// The caller abandoned the request earlier.
    Abandoned,
    /// The authority has issued its last token and never grants again.
    TokensExhausted,
    /// The authority's settings allow no more held locks.
    TooManyLocks {
        /// The setting.
        max: u32,
    },
    /// The input was refused; nothing changed.
    Invalid(Invalid),
    /// A command that has no answer was executed.
    Done,
}

/// A grant, as its holder receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The fencing token. The readers of one phase share it.
    pub token: Token,
    /// The number that names the grant, if it is shared; an exclusive one is named by its token.
    pub shared: Option<GrantId>,
    /// The slots that it holds of a semaphore. Each is a separate resource at a fence ([`slot_key`](crate::slot_key)).
    pub slots: Slots,
    /// The lease's public id.
    pub lease: LeaseId,
    /// The lease's secret.
    pub key: LeaseKey,
    /// How long the lease lasts after a renewal.
    pub ttl: Ttl,
    /// How long the grant is valid, counted by the authority's clock **from when it received this request**. A wait in
    /// the queue is included, and a repeated request gets the remaining time. The holder computes its deadline from
    /// this span.
    pub valid_for: Span,
    /// How long the request waited in the queue; part of `valid_for`.
    pub waited: Span,
    /// The wall clock at the grant.
    pub acquired_at: WallTime,
}

impl Granted {
    /// The number that names the grant.
    #[must_use]
    pub fn number(&self) -> Token {
        self.shared.map_or(self.token, |id| id.0)
    }
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// The token of the named grant, which is unchanged.
    pub token: Token,
    /// The lease's time to live.
    pub ttl: Ttl,
    /// How long the lease is valid, counted by the authority's clock from when it received the request.
    pub valid_for: Span,
    /// Whether less than a quarter of its time to live was left. Only the authority's own machine sets it; in a client
    /// it is `false`.
    pub near_deadline: bool,
    /// How many requests wait for the locks of the lease, of the first [`SET_LOCKS`](crate::limits::SET_LOCKS) of them; 0
    /// from an authority that does not say.
    pub waiters: u32,
}

/// The state of a grant, as only somebody who knows its secret may learn it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantState {
    /// It is live.
    Live {
        /// How many requests wait for its lock.
        waiters: u32,
    },
    /// It is over, and the authority remembers how it ended.
    Over(Ending),
    /// The authority knows no such grant, or the secret is not its secret.
    Unknown,
}

/// The holder of a lock, or one of several readers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The holder's client id.
    pub client: ClientId,
    /// The token of its grant.
    pub token: Token,
    /// How long until the lease expires unless it is renewed; try again after that.
    pub remaining: Span,
}

/// A waiting request that nobody may overtake: an orphan or a set for which a free lock is reserved, or the first in
/// the queue of a lock that readers hold. It holds nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// The client that made the request.
    pub client: ClientId,
    /// How long until trying again makes sense: the rest of its time in the queue, or of the lease that it waits for.
    pub remaining: Span,
}

/// A closed lock: nobody holds it, and nobody gets it, not even its last holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delayed {
    /// The token of the last grant.
    pub token: Token,
    /// How long until the lock can be granted again, by the authority's clock.
    pub remaining: Span,
}

/// How a grant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// The holder released it.
    Released,
    /// Its lease expired.
    Expired,
    /// An operator revoked it.
    Revoked,
    /// The same client acquired the lock again under another lease, with a higher token.
    Superseded,
}

/// The bound on waiting requests that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueBound {
    /// Requests waiting for this lock.
    Lock {
        /// The setting.
        max: u32,
    },
    /// Waiting requests of this client, over all locks.
    Client {
        /// The setting.
        max: u32,
    },
}

/// An effect of a command on anyone but its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A waiting request is settled.
    Settled {
        /// The principal that made the request.
        by: Principal,
        /// The request.
        request: RequestId,
        /// Its answer; never [`Outcome::Queued`].
        outcome: Outcome,
    },
    /// A change, for observers.
    Event(Event),
}

/// One change of one lock, in log order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The number of the event, from 1. An observer resumes after the last one it saw.
    pub revision: u64,
    /// The authority's clock.
    pub at: Timestamp,
    /// The wall clock of the log's entry that made the change, for people; nothing compares it (rule A11).
    pub wall: WallTime,
    /// The lock.
    pub lock: LockName,
    /// The holder, or former holder; `None` when a lock is opened, because its last holder may be forgotten.
    pub client: Option<ClientId>,
    /// The grant's fencing token; when a lock is opened, the token of its last grant.
    pub token: Token,
    /// The number that names the grant, if it is shared.
    pub shared: Option<GrantId>,
    /// The slots that it holds of a semaphore.
    pub slots: Slots,
    /// The principal of the client, or of the operator who opens the lock. For audit records; watchers do not get it.
    pub by: Principal,
    /// The lease of the grant; `None` in the same case as `client`.
    pub lease: Option<LeaseId>,
    /// How long the grant has lasted, by the wall clock; zero if that clock went back. For audit records; watchers do
    /// not get it.
    pub held: Span,
    /// For the history; watchers get only its [`options`](Detail::options).
    pub detail: Detail,
    /// The kind of change.
    pub change: Change,
}

/// The facts of a change that few readers need.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Detail {
    /// Of a revocation: the operator's principal.
    pub by: Principal,
    /// Of a grant: how long its request had waited.
    pub waited: Span,
    /// Of an end: how long ago the lease was last renewed, granted, or extended after an absence (rule A7).
    pub unrenewed: Span,
    /// Of a grant or a proclamation: the holder's metadata.
    pub metadata: Option<Box<str>>,
    /// Of an exclusive grant: its options. Watchers and audit records get them too.
    pub options: GrantOptions,
}

/// A change of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was granted.
    Granted {
        /// How long the lease lasts without renewal.
        ttl: Ttl,
    },
    /// Its holder changed its metadata.
    Proclaimed,
    /// An operator opened it; it was closed after its last grant.
    Opened {
        /// The operator's reason.
        reason: Box<str>,
    },
    /// A grant ended.
    Ended {
        /// How.
        how: Ending,
        /// The operator's reason, for a revocation.
        reason: Option<Box<str>>,
        /// How long the lock stays closed after this event, if it does.
        delayed: Option<Span>,
    },
}

/// One lock, as `palisade show` and `palisade ls` print it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockView {
    /// The lock.
    pub lock: LockName,
    /// The number of the latest event that this view includes. The higher number belongs to the later view of a lock.
    /// `None` in a listing, or if the authority does not count events.
    pub revision: Option<u64>,
    /// Its holder, if any, or the oldest of several readers.
    pub holder: Option<Holder>,
    /// How often, since its last renewal, the holder's lease was extended because the authority was not running.
    pub extensions: u32,
    /// How long it stays closed, if it is free and closed.
    pub delayed: Option<Span>,
    /// The lease of the grant.
    pub lease: Option<LeaseId>,
    /// The wall clock at the grant.
    pub acquired_at: Option<WallTime>,
    /// The holder's metadata.
    pub metadata: Option<Box<str>>,
    /// The options of an exclusive grant.
    pub options: GrantOptions,
    /// The number of readers that hold it; 0 if it is not held in shared mode.
    pub reader_count: u32,
    /// The readers, oldest first, at most [`SHOWN`](crate::limits::SHOWN); empty in a listing.
    pub readers: Vec<Reader>,
    /// The number of its permits, if it is a semaphore.
    pub permits: Option<u32>,
    /// The number of waiting requests.
    pub waiters: u32,
    /// How long the first of them has waited, from its latest attempt; only in a listing.
    pub waited: Option<Span>,
    /// The waiting requests, in their order, at most [`SHOWN`](crate::limits::SHOWN); empty in a listing.
    pub queue: Vec<Queued>,
}

/// One of several holders of a lock: a reader, or a holder of permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reader {
    /// The holder's client, token and remaining time.
    pub holder: Holder,
    /// The number that identifies its grant.
    pub id: GrantId,
    /// Whether it is in mode update.
    pub update: bool,
    /// The slots that it holds of a semaphore.
    pub slots: Slots,
    /// The wall clock at its grant.
    pub acquired_at: WallTime,
    /// Its metadata.
    pub metadata: Option<Box<str>>,
}

/// A request in a lock's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// The client that made the request.
    pub client: ClientId,
    /// The requested mode.
    pub mode: LockMode,
    /// How long it has waited since its latest attempt.
    pub waited: Span,
    /// How long until it leaves the queue.
    pub remaining: Span,
}

impl LockView {
    /// Returns the view of a lock without holder or waiters.
    #[must_use]
    pub const fn free(lock: LockName) -> LockView {
        LockView {
            lock,
            revision: None,
            holder: None,
            extensions: 0,
            delayed: None,
            lease: None,
            acquired_at: None,
            metadata: None,
            options: GrantOptions::NONE,
            reader_count: 0,
            readers: Vec::new(),
            permits: None,
            waiters: 0,
            waited: None,
            queue: Vec::new(),
        }
    }
}
