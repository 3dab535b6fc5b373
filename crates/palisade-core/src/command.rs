//! The machine's commands. A command contains everything that decides its outcome, so that a replay of the log ends in
//! the same state.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Deref;

use crate::id::{LeaseKey, Principal, RequestId};
use crate::invalid::Invalid;
use crate::limits::{self, Limits};
use crate::name::{ClientId, LockName};
use crate::options::GrantOptions;
use crate::permits::Permits;
use crate::time::{Span, Timestamp, Ttl, WallTime};
use crate::token::Token;

/// One line of the serial log: a command and the instant at which it was ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When the authority ordered it, by its own clock, which never goes back.
    pub at: Timestamp,
    /// The wall clock at that instant; it is printed with a grant and never compared.
    pub wall: WallTime,
    /// The principal that made the request.
    pub by: Principal,
    /// The command.
    pub command: Command,
}

/// A request, or an event that the authority itself records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A client requests a lock.
    Acquire(Acquire),
    /// A holder renews its lease for a full time to live from now.
    Renew {
        /// Which grant is meant.
        grant: GrantRef,
        /// A new time to live for the lease; `None` keeps the present one.
        ttl: Option<Ttl>,
    },
    /// The holder of an exclusive grant replaces its metadata (rule E2).
    Proclaim {
        /// Which grant is meant.
        grant: GrantRef,
        /// The new value, as [`metadata`](Acquire::metadata).
        value: Box<str>,
    },
    /// A holder releases one lock.
    Release(GrantRef),
    /// An operator revokes a grant (`palisade break`).
    Revoke {
        /// The lock.
        lock: LockName,
        /// The grant's number (see [`GrantRef`]): proof that the operator has looked.
        token: Token,
        /// The reason, for the event stream.
        reason: Box<str>,
    },
    /// An operator opens a closed lock (`palisade open`, rule D3).
    Open {
        /// The lock.
        lock: LockName,
        /// The reason, for the log.
        reason: Box<str>,
    },
    /// An operator changes a semaphore's number of permits (`palisade permits`).
    Resize {
        /// The lock.
        lock: LockName,
        /// The new number of permits.
        permits: u32,
    },
    /// The connection of a waiting request is gone. The request leaves the queue, and may be repeated.
    Withdraw(RequestId),
    /// The node that forwarded a waiting request is gone, or the caller is. The caller may repeat the request at
    /// another node, so it becomes an *orphan*, as after a change of leader ([`Away::Led`]).
    Orphan(RequestId),
    /// The caller abandons a request. It never takes effect from now on; if it already has, its grant is released.
    Abandon(RequestId),
    /// Time has passed: end every lease and every wait that is due.
    Expire,
    /// The authority was not running (restarted, paused, deposed). Every live lease lasts its full time to live from
    /// now, within its bound (rule A7). [`Away`] decides what happens to waiting requests.
    Grace(Away),
    /// The token counter leaps, after a backup was restored (rule A5).
    Leap {
        /// How far.
        by: u64,
    },
    /// The operator's bounds changed.
    Configure(Limits),
}

/// The reason why the authority was not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Away {
    /// The process restarted, and the clock stood still meanwhile. No client is connected any more.
    Restarted,
    /// As [`Restarted`](Away::Restarted), but the clock continued; no process ran for this long.
    Down(Span),
    /// As [`Restarted`](Away::Restarted), from a backup. Leases may have ended since the backup, and others may have
    /// written. The present readers therefore cannot be upgraded, and no new reader joins them (rule S11).
    Restored,
    /// Another node leads now, to which no client is connected yet. As [`Restarted`](Away::Restarted), but the queues
    /// stay: every waiting request becomes an *orphan*, whose place in the queue is reserved for
    /// [`ORPHAN_WINDOW`](crate::limits::ORPHAN_WINDOW), and never beyond its own deadline. Repeating the request takes
    /// the place back. Until then neither it nor any request behind it is granted.
    Led,
    /// The process existed but did not run, or could not write, for this long. Below [`STALL`](crate::limits::STALL),
    /// only leases whose time to live is short compared with the pause ([`Ttl::bears`]) get their full time again.
    Paused(Span),
}

/// The mode of a grant, by the requests that it excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum LockMode {
    /// A writer, which excludes everyone.
    #[default]
    Exclusive,
    /// A reader, which excludes writers.
    Shared,
    /// A reader that may become the writer; it excludes writers and other readers in this mode (rule S8).
    Update,
    /// The upgrade of the lease's grant in mode [`Update`](LockMode::Update) to a writer's. The request goes ahead of
    /// the queue and waits only for the other readers.
    Upgrade,
    /// Permits of a semaphore, which exclude requests for more slots than are free.
    Permits(Permits),
}

impl LockMode {
    /// Returns the wanted permits, if the lock is a semaphore.
    #[must_use]
    pub const fn permits(self) -> Option<Permits> {
        match self {
            LockMode::Permits(permits) => Some(permits),
            _ => None,
        }
    }

    /// Returns whether a grant excludes everyone.
    #[must_use]
    pub const fn is_exclusive(self) -> bool {
        matches!(self, LockMode::Exclusive | LockMode::Upgrade)
    }

    /// Returns whether a grant belongs to a shared phase.
    #[must_use]
    pub const fn is_shared(self) -> bool {
        matches!(self, LockMode::Shared | LockMode::Update)
    }
}

/// A request for a lock before it is ordered. A new lease has no secret yet.
pub type Wish<R = Option<RequestId>> = Acquire<(), R>;

/// A request for a lock, in the only form from the client to the log. `K` is the secret of a new lease, which the
/// ordering thread draws. `R` is the request's id: a [`RequestId`] where every request has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire<K = LeaseKey, R = Option<RequestId>> {
    /// The lock.
    pub lock: LockName,
    /// The other locks of a set, which are granted together with one token (rule M1). They are sorted by name, after
    /// `lock`; empty for one lock.
    pub also: Others,
    /// The requesting client.
    pub client: ClientId,
    /// The requested mode. If the lease already holds the lock exclusively, a request for shared mode is a downgrade:
    /// the new grant replaces the old one in one step, with a new token. The upgrade of a grant in mode update works
    /// the same way.
    pub mode: LockMode,
    /// The lease that gets the grant.
    pub under: Under<K>,
    /// How long to wait in the queue; `None` tries once.
    pub wait: Option<Span>,
    /// The id that identifies a retry. A request that may wait always has one.
    pub request: R,
    /// Free text shown with the holder.
    pub metadata: Option<Box<str>>,
    /// The options of an exclusive grant.
    pub options: GrantOptions,
}

impl<K, R> Acquire<K, R> {
    /// Creates a request that tries once for an exclusive grant, without metadata. Other requests change single fields,
    /// so that a new field affects few of them.
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
            options: GrantOptions::NONE,
        }
    }

    /// As [`Acquire::new`], for several locks at once, named in any order.
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

    /// Returns whether it asks for one exclusive grant without options, as nearly all requests do.
    #[must_use]
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.mode == LockMode::Exclusive && self.options.is_none() && self.also.is_empty()
    }

    /// Returns all requested locks, in name order.
    pub fn locks(&self) -> impl Iterator<Item = &LockName> {
        core::iter::once(&self.lock).chain(&*self.also)
    }

    /// Checks the names of a set.
    pub(crate) fn check_set(&self) -> Result<(), Invalid> {
        check_set(&self.lock, &self.also)
    }
}

/// The other locks of a set. They take one word, because nearly every request has none, and the compiler moves commands
/// of more than 128 bytes by `memcpy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others(Option<Box<Box<[LockName]>>>);

impl Others {
    /// No others: the request is for one lock.
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

/// Sorts the locks of one request as the log stores them: the first by name, and the others (rule M1).
///
/// # Errors
/// [`Invalid::SetSize`] for no name or too many, [`Invalid::SetTwice`] for a repeated name.
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
    /// Returns the request as it is logged, with the secret of a new lease.
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
            options: self.options,
        }
    }
}

/// The lease that gets a new grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Under<K = LeaseKey> {
    /// A new lease for this grant.
    New {
        /// Its secret.
        key: K,
        /// How long it lasts without renewal.
        ttl: Ttl,
    },
    /// A lease that the client already has.
    Existing {
        /// Its secret.
        key: LeaseKey,
        /// The lease's time to live; an error if it differs.
        ttl: Option<Ttl>,
    },
}

impl Under<()> {
    /// Requests a new lease that lasts this long without renewal.
    #[must_use]
    pub const fn new(ttl: Ttl) -> Under<()> {
        Under::New { key: (), ttl }
    }

    /// Requests a grant under a lease that the client has.
    #[must_use]
    pub const fn existing(key: LeaseKey) -> Under<()> {
        Under::Existing { key, ttl: None }
    }
}

/// Names one grant: the lock, the lease's secret and, if the caller knows it, the grant's number.
///
/// The authority compares and acts in one step (rule A9), so a late retry never affects the next grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantRef {
    /// The lock.
    pub lock: LockName,
    /// The lease's secret.
    pub key: LeaseKey,
    /// The grant's number: its token, or its [`GrantId`](crate::GrantId) if it is shared. With it, a repeat never
    /// affects a later grant of the same lease.
    pub token: Option<Token>,
}
