//! The commands of the machine. A command carries everything that decides its outcome, so that
//! a replay of the log ends in the same state.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Deref;

use crate::delays::Delays;
use crate::id::{LeaseKey, Principal, RequestId};
use crate::invalid::Invalid;
use crate::limits::{self, Limits};
use crate::name::{ClientId, LockName};
use crate::permits::Permits;
use crate::time::{Span, Timestamp, Ttl, WallTime};
use crate::token::Token;

/// One line of the serial log: a command and the instant at which it was ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When the authority ordered it, on the authority's own clock. Never goes back.
    pub at: Timestamp,
    /// The wall clock at that moment; printed with a grant, never compared.
    pub wall: WallTime,
    /// Who asked.
    pub by: Principal,
    /// What was asked.
    pub command: Command,
}

/// A request, or something the authority itself had to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Someone wants a lock.
    Acquire(Acquire),
    /// A holder wants its lease to last a full time to live from now.
    Renew {
        /// Which grant is meant.
        grant: GrantRef,
        /// A new time to live for the lease; `None` keeps the one it has.
        ttl: Option<Ttl>,
    },
    /// The holder of an exclusive grant says something else about itself (rule E2): the value takes the place of the
    /// metadata that it acquired with.
    Proclaim {
        /// Which grant is meant.
        grant: GrantRef,
        /// The new value, as [`metadata`](Acquire::metadata).
        value: Box<str>,
    },
    /// A holder gives up one lock.
    Release(GrantRef),
    /// An operator takes a lock away (`palisade break`).
    Revoke {
        /// The lock.
        lock: LockName,
        /// The number of the grant meant, as in [`GrantRef`]: proof that the operator looked.
        token: Token,
        /// Why, for the event stream.
        reason: Box<str>,
    },
    /// An operator opens a lock that is closed after its last grant (`palisade open`, rule D3).
    Open {
        /// The lock.
        lock: LockName,
        /// Why, for the log.
        reason: Box<str>,
    },
    /// An operator gives a semaphore another number of permits (`palisade permits`).
    Resize {
        /// The lock.
        lock: LockName,
        /// How many permits it has from now on.
        permits: u32,
    },
    /// The connection of a waiting request is gone: it leaves the queue, and a retry is welcome.
    Withdraw(RequestId),
    /// The node that sent a waiting request on is gone, or sent it for a caller that is: its caller may repeat the request
    /// at another node, so it becomes an *orphan*, as after a change of leader ([`Away::Led`]).
    Orphan(RequestId),
    /// The caller gave up: the request never takes effect from now on, and if it already has, its
    /// grant is released.
    Abandon(RequestId),
    /// Time has passed: end every lease and every wait that is due.
    Expire,
    /// The authority was away (restarted, paused, deposed): every live lease lasts its full time to live from now, within
    /// its bound (rule A7). [`Away`] says what becomes of the requests that wait.
    Grace(Away),
    /// The counter leaps, after a backup was restored (rule A5).
    Leap {
        /// How far.
        by: u64,
    },
    /// The operator's bounds changed.
    Configure(Limits),
}

/// Why the authority was away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Away {
    /// The process was started again, and the clock stood still meanwhile: nobody is connected any more.
    Restarted,
    /// As [`Restarted`](Away::Restarted), but the clock went on, and there was no process for so long.
    Down(Span),
    /// As [`Restarted`](Away::Restarted), from a backup: leases may have ended since, and others may have written. So no
    /// reader is upgraded that is there now, and nobody joins it (rule S11).
    Restored,
    /// Another node leads now: nobody is connected to it yet. As [`Restarted`](Away::Restarted), but the queues stay:
    /// every request that waits becomes an *orphan*, which keeps its place for
    /// [`ORPHAN_WINDOW`](crate::limits::ORPHAN_WINDOW) and never beyond its own deadline. Repeating the request takes
    /// the place back. Until then it is not granted, and nobody behind it is.
    Led,
    /// The process was there all the time but did not run, or could not write, for so long. Below
    /// [`STALL`](crate::limits::STALL), only leases that do not bear it ([`Ttl::bears`]) get their full time again.
    Paused(Span),
}

/// Whom a grant keeps out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum LockMode {
    /// Everybody: a writer.
    #[default]
    Exclusive,
    /// Writers: a reader among others.
    Shared,
    /// Writers, and others in this mode: a reader that may become the writer (rule S8).
    Update,
    /// Everybody, in the place of the grant in mode [`Update`](LockMode::Update) that the lease has. The request goes ahead
    /// of the queue and waits for the other readers alone.
    Upgrade,
    /// Whoever finds no free slot: the lock is a semaphore.
    Permits(Permits),
}

impl LockMode {
    /// The permits wanted, of a request for a semaphore.
    #[must_use]
    pub const fn permits(self) -> Option<Permits> {
        match self {
            LockMode::Permits(permits) => Some(permits),
            _ => None,
        }
    }

    /// Whether a grant keeps everybody out.
    #[must_use]
    pub const fn is_exclusive(self) -> bool {
        matches!(self, LockMode::Exclusive | LockMode::Upgrade)
    }

    /// Whether a grant belongs to a shared phase.
    #[must_use]
    pub const fn is_shared(self) -> bool {
        matches!(self, LockMode::Shared | LockMode::Update)
    }
}

/// A request for a lock before it is ordered: a new lease has no secret yet.
pub type Wish<R = Option<RequestId>> = Acquire<(), R>;

/// A request for a lock: the only list of what it consists of, from the client to the log. `K` is the secret of
/// a new lease, which is drawn where the log is ordered. `R` is its id: a [`RequestId`] where every request has
/// one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire<K = LeaseKey, R = Option<RequestId>> {
    /// Which lock.
    pub lock: LockName,
    /// The other locks of a set: all are granted with one token, or none (rule M1). Their names rise, and the first is
    /// above `lock`. Empty for one lock.
    pub also: Others,
    /// The client that asks.
    pub client: ClientId,
    /// Alone or among readers. The holder of an exclusive grant that asks for a shared one under the same lease
    /// downgrades: the one takes the place of the other in one step, with a new token. So does the upgrade of a grant in
    /// mode update.
    pub mode: LockMode,
    /// The lease to put the grant under.
    pub under: Under<K>,
    /// How long to wait in the queue; `None` is a try.
    pub wait: Option<Span>,
    /// The id that makes a retry recognisable. A request that may wait always has one.
    pub request: R,
    /// Free text shown with the holder.
    pub metadata: Option<Box<str>>,
    /// How long the lock stays closed after the grant.
    pub delays: Delays,
}

impl<K, R> Acquire<K, R> {
    /// A try for an exclusive grant, without metadata. Other requests say what differs, so that a new field changes few of them.
    #[must_use]
    pub fn new(lock: LockName, client: ClientId, under: Under<K>, request: R) -> Acquire<K, R> {
        Acquire {
            lock,
            also: Others::NONE,
            client,
            mode: LockMode::Exclusive,
            under,
            wait: None,
            request,
            metadata: None,
            delays: Delays::NONE,
        }
    }

    /// As [`Acquire::new`], for several locks at once, in any order.
    ///
    /// # Errors
    /// As [`set_of`].
    pub fn of_all(
        locks: Vec<LockName>,
        client: ClientId,
        under: Under<K>,
        request: R,
    ) -> Result<Acquire<K, R>, Invalid> {
        let (lock, also) = set_of(locks)?;
        Ok(Acquire {
            also,
            ..Acquire::new(lock, client, under, request)
        })
    }

    /// Whether it is for one exclusive grant without delays, as nearly all are.
    #[must_use]
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.mode == LockMode::Exclusive && self.delays.is_none() && self.also.is_empty()
    }

    /// All the locks it is for, in the order of their names.
    pub fn locks(&self) -> impl Iterator<Item = &LockName> {
        core::iter::once(&self.lock).chain(&*self.also)
    }

    /// What is wrong with the names of a set.
    pub(crate) fn check_set(&self) -> Result<(), Invalid> {
        check_set(&self.lock, &self.also)
    }
}

/// The other locks of a set. Nearly every request has none, so they take one word: the compiler moves a command of more than
/// 128 bytes by calls to `memcpy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others(Option<Box<Box<[LockName]>>>);

impl Others {
    /// The request is for one lock.
    pub const NONE: Others = Others(None);
}

impl Deref for Others {
    type Target = [LockName];

    #[inline]
    fn deref(&self) -> &[LockName] {
        self.0.as_ref().map_or(&[], |locks| locks)
    }
}

impl FromIterator<LockName> for Others {
    fn from_iter<I: IntoIterator<Item = LockName>>(locks: I) -> Others {
        let locks: Box<[LockName]> = locks.into_iter().collect();
        Others((!locks.is_empty()).then(|| Box::new(locks)))
    }
}

const _: () = assert!(size_of::<Command>() <= 128);

/// The locks of one request in the order in which the log has them: the first by name, and the others (rule M1).
///
/// # Errors
/// [`Invalid::SetSize`] for no name or too many, [`Invalid::SetTwice`] for a name that is there twice.
pub fn set_of(mut locks: Vec<LockName>) -> Result<(LockName, Others), Invalid> {
    locks.sort_unstable();
    let mut locks = locks.into_iter();
    let Some(first) = locks.next() else {
        return Err(Invalid::SetSize { given: 0 });
    };
    let others: Others = locks.collect();
    check_set(&first, &others)?;
    Ok((first, others))
}

fn check_set(first: &LockName, others: &[LockName]) -> Result<(), Invalid> {
    let given = others.len() + 1;
    if given > limits::SET_LOCKS {
        return Err(Invalid::SetSize { given });
    }
    for (lock, next) in core::iter::once(first).chain(others).zip(others) {
        if lock == next {
            return Err(Invalid::SetTwice { lock: next.clone() });
        }
        if lock > next {
            return Err(Invalid::SetOrder { lock: next.clone() });
        }
    }
    Ok(())
}

impl Wish {
    /// The request as it is logged.
    #[must_use]
    pub fn with_key(self, key: impl FnOnce() -> LeaseKey) -> Acquire {
        self.map(key, |request| request)
    }
}

impl From<Wish<RequestId>> for Wish {
    fn from(named: Wish<RequestId>) -> Wish {
        named.map(|| (), Some)
    }
}

impl<R> Wish<R> {
    fn map<K, S>(self, key: impl FnOnce() -> K, request: impl FnOnce(R) -> S) -> Acquire<K, S> {
        Acquire {
            lock: self.lock,
            also: self.also,
            client: self.client,
            mode: self.mode,
            under: match self.under {
                Under::New { key: (), ttl } => Under::New { key: key(), ttl },
                Under::Existing { key, ttl } => Under::Existing { key, ttl },
            },
            wait: self.wait,
            request: request(self.request),
            metadata: self.metadata,
            delays: self.delays,
        }
    }
}

/// The lease a new grant goes under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Under<K = LeaseKey> {
    /// A lease made for this grant.
    New {
        /// Its secret.
        key: K,
        /// How long it lasts without renewal.
        ttl: Ttl,
    },
    /// A lease the client already has.
    Existing {
        /// Its secret.
        key: LeaseKey,
        /// If given, must be what the lease has.
        ttl: Option<Ttl>,
    },
}

impl Under<()> {
    /// A new lease that lasts this long without renewal.
    #[must_use]
    pub const fn new(ttl: Ttl) -> Under<()> {
        Under::New { key: (), ttl }
    }

    /// A lease that the client has.
    #[must_use]
    pub const fn existing(key: LeaseKey) -> Under<()> {
        Under::Existing { key, ttl: None }
    }
}

/// Names one grant: the lock, the lease's secret and, where the caller has it, the token.
///
/// Compare-and-act happens in one step (rule A9), so a late retry cannot hit the next grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantRef {
    /// The lock.
    pub lock: LockName,
    /// The lease's secret.
    pub key: LeaseKey,
    /// The grant's number: its token, or its [`GrantId`](crate::GrantId) if it is shared. With it a repeat can never
    /// touch a later grant of the same lease.
    pub token: Option<Token>,
}
