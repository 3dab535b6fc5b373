//! The answers of the machine. A denial is a value among others.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::command::LockMode;
use crate::id::{GrantId, LeaseId, LeaseKey, Principal, RequestId};
use crate::invalid::Invalid;
use crate::name::{ClientId, LockName};
use crate::permits::Slots;
use crate::time::{Span, Timestamp, Ttl, WallTime};
use crate::token::Token;

/// The answer to one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The lock is held by the caller.
    Granted(Granted),
    /// The request waits; its answer comes later as an [`Effect::Settled`].
    Queued,
    /// Someone else has the lock.
    Held(Holder),
    /// Another request waits for the lock and comes first. Nobody may hold the lock at all: then it is kept for that request.
    Behind(Ahead),
    /// Nobody has the lock, and it is closed for a time after its last grant (rules D1 and D4).
    Delayed(Delayed),
    /// The lease lasts a full time to live again.
    Renewed(Renewed),
    /// What the holder says about itself is changed.
    Proclaimed {
        /// The token of the grant; an announcement never changes it.
        token: Token,
        /// The number of this event. Of two announcements the one with the higher (token, revision) is the later one.
        revision: u64,
    },
    /// The grant is given up.
    Released {
        /// Its number: the token it had, or its [`GrantId`] if it was shared.
        token: Token,
        /// How long the lock stays closed, if the grant asked for that (rule D4).
        delayed: Option<Span>,
    },
    /// The operator took the lock away.
    Revoked {
        /// Its number, as of a release.
        token: Token,
    },
    /// The grant meant is over, and the authority remembers how it ended. For a release that was
    /// repeated this is success (`already released`).
    Ended {
        /// Its number, as of a release.
        token: Token,
        /// How it ended.
        how: Ending,
    },
    /// The caller does not hold the lock, and nothing is known of a grant it once had.
    NotHeld,
    /// The lease named does hold the lock, by a grant with another number than the one named, of which nothing is known.
    OtherNumber {
        /// The number of the grant that it holds.
        has: Token,
    },
    /// The lease belongs to another principal, whose secret the caller has. Nothing changed.
    WrongPrincipal {
        /// The lock asked for.
        lock: LockName,
    },
    /// The lock is held with another token than the one named.
    Stale {
        /// The token, or the number of a shared grant, that was named.
        named: Token,
        /// The token it is held with.
        highest: Token,
    },
    /// Too many requests wait already.
    QueueFull(QueueBound),
    /// The request was given up by its caller before.
    Abandoned,
    /// The last token of the range is out: the authority never grants again.
    TokensExhausted,
    /// The authority holds as many locks as its settings allow.
    TooManyLocks {
        /// The setting.
        max: u32,
    },
    /// The input was refused; nothing changed.
    Invalid(Invalid),
    /// A command without a question was carried out.
    Done,
}

/// A grant, as its holder gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The fencing token. Readers of one phase have the same.
    pub token: Token,
    /// The number that names the grant, if it is shared; an exclusive one is named by its token.
    pub shared: Option<GrantId>,
    /// The slots it holds, if the lock is a semaphore: each is a resource of its own to a fence
    /// ([`slot_key`](crate::slot_key)).
    pub slots: Slots,
    /// The lease's public id.
    pub lease: LeaseId,
    /// The lease's secret.
    pub key: LeaseKey,
    /// How long the lease lasts from a renewal.
    pub ttl: Ttl,
    /// How long the grant is good for, counted by the authority's clock **from the moment it took
    /// this request in**: a wait in the queue is part of it, and a repeated request gets what is
    /// left. This is the span the holder's deadline is computed from.
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

/// A lease that was renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// The token of the grant named; a renewal never changes it.
    pub token: Token,
    /// The lease's time to live.
    pub ttl: Ttl,
    /// How long the lease is good for, from the moment the authority took the request in.
    pub valid_for: Span,
    /// Whether less than a quarter of its time to live was left. Only the authority's own machine knows; a client says
    /// `false`.
    pub near_deadline: bool,
}

/// The holder of a lock: of several readers the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The holder's client id.
    pub client: ClientId,
    /// The token of its grant.
    pub token: Token,
    /// How long until the lease expires if it is not renewed: when trying again makes sense.
    pub remaining: Span,
}

/// A request that waits and must not be overtaken: an orphan or a set that a free lock is kept for, or the first in the
/// queue of a lock that has readers. It holds nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Who asks.
    pub client: ClientId,
    /// When trying again makes sense: the rest of its time, or of the lease of whoever it waits for.
    pub remaining: Span,
}

/// A lock that is closed: nobody has it, and nobody is granted it, its last holder included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delayed {
    /// The token of the last grant.
    pub token: Token,
    /// How long until the lock is granted again, by the authority's clock.
    pub remaining: Span,
}

/// How a grant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// The holder gave it up.
    Released,
    /// Its time ran out.
    Expired,
    /// An operator took it.
    Revoked,
    /// The same client acquired the lock again under another lease, with a higher token.
    Superseded,
}

/// Which bound on waiting was hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueBound {
    /// Requests waiting for this lock.
    Lock {
        /// The setting.
        max: u32,
    },
    /// Requests of this client that wait, over all locks.
    Client {
        /// The setting.
        max: u32,
    },
}

/// An effect of a command on others than its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A request that waited has its answer.
    Settled {
        /// Who asked.
        by: Principal,
        /// The request.
        request: RequestId,
        /// Its answer; never [`Outcome::Queued`].
        outcome: Outcome,
    },
    /// Something an observer may want to see.
    Event(Event),
}

/// One change of one lock, in log order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Counts events from 1; an observer resumes after the last one it saw.
    pub revision: u64,
    /// The authority's clock.
    pub at: Timestamp,
    /// The lock.
    pub lock: LockName,
    /// The holder concerned; `None` when a lock is opened, because its last holder may be forgotten.
    pub client: Option<ClientId>,
    /// The grant's fencing token; when a lock is opened, that of its last grant.
    pub token: Token,
    /// The number that names the grant, if it is shared.
    pub shared: Option<GrantId>,
    /// The slots that it holds of a semaphore.
    pub slots: Slots,
    /// The principal of the client, or the one that opens the lock. For records, not for watchers.
    pub by: Principal,
    /// The lease that the grant is under, as `client`.
    pub lease: Option<LeaseId>,
    /// How long the grant has lasted, by the wall clock; no time if that went back. For records, not for watchers.
    pub held: Span,
    /// The kind of change.
    pub change: Change,
}

/// A change of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was granted.
    Granted {
        /// For how long, without renewal.
        ttl: Ttl,
    },
    /// Its holder says something else about itself.
    Proclaimed,
    /// An operator opened it: it had been closed after its last grant.
    Opened {
        /// What the operator said.
        reason: Box<str>,
    },
    /// A grant ended.
    Ended {
        /// How.
        how: Ending,
        /// What the operator said, for a revocation.
        reason: Option<Box<str>>,
        /// How long the lock stays closed from now.
        delayed: Option<Span>,
    },
}

/// One lock as `show` and `ls` see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockView {
    /// The lock.
    pub lock: LockName,
    /// The number of the latest event that this view knows of: of two views of a lock the one with the higher number
    /// is the later one. `None` where the authority counts no events, and in a listing.
    pub revision: Option<u64>,
    /// Its holder, if any; of several readers the oldest.
    pub holder: Option<Holder>,
    /// How often the holder's lease was extended since its last renewal, because the authority was away.
    pub extensions: u32,
    /// How long nobody is granted it, if it is free and closed.
    pub delayed: Option<Span>,
    /// The lease the grant is under.
    pub lease: Option<LeaseId>,
    /// The wall clock at the grant.
    pub acquired_at: Option<WallTime>,
    /// What the holder said about itself.
    pub metadata: Option<Box<str>>,
    /// How many readers hold it; 0 if it is not held in shared mode.
    pub reader_count: u32,
    /// Readers, the oldest first: where one lock is shown, and then at most
    /// [`SHOWN`](crate::limits::SHOWN) of them.
    pub readers: Vec<Reader>,
    /// How many permits it has, if it is a semaphore.
    pub permits: Option<u32>,
    /// How many requests wait.
    pub waiters: u32,
    /// Requests that wait, first come first: where one lock is shown, and then at most
    /// [`SHOWN`](crate::limits::SHOWN) of them.
    pub queue: Vec<Queued>,
}

/// One of the readers that hold a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reader {
    /// Who it is.
    pub holder: Holder,
    /// The number that names its grant.
    pub id: GrantId,
    /// Whether it is in mode update.
    pub update: bool,
    /// The slots that it holds of a semaphore.
    pub slots: Slots,
    /// The wall clock at its grant.
    pub acquired_at: WallTime,
    /// What it said about itself.
    pub metadata: Option<Box<str>>,
}

/// A request that waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Who asks.
    pub client: ClientId,
    /// What for.
    pub mode: LockMode,
    /// How long it has waited, from its latest attempt.
    pub waited: Span,
    /// How long until it leaves the queue.
    pub remaining: Span,
}

impl LockView {
    /// A lock that nobody has and nobody waits for.
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
            reader_count: 0,
            readers: Vec::new(),
            permits: None,
            waiters: 0,
            queue: Vec::new(),
        }
    }
}
