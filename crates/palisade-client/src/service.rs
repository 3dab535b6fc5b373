//! The trait between the guard and the authorities.
//!
//! Everything above this trait (the guard, renewal, retries, abandoning, `palisade run`) exists once.
//! Everything below it (a Palisade server, this process, an adapter on another system) only carries
//! operations to an authority and outcomes back.
//!
//! An authority without fencing tokens deliberately does not fit here: [`Acquired::Granted`] cannot be built
//! without a [`Token`]. Such an authority gets its own trait and guard, without `token()`, so that its grant
//! does not compile where a fence requires a token. The code below the guard (deadline, renewal, release)
//! never looks at the token and is shared.

use std::pin::Pin;

use futures_core::Stream;
use palisade_core::{
    Ahead, AuthorityId, Change, ClientId, Delayed, Ending, GrantId, GrantRef, Holder, LockName,
    LockView, Span, Token, Ttl, Wish,
};

use crate::fault::Fault;
use crate::random;

/// What requests and outcomes consist of, for implementations of [`LockService`].
pub use palisade_core::{Delays, Granted, Others, Renewed, RequestId, Under};

/// An operation in flight. Dropping it stops waiting for the answer; the operation may still happen.
pub type Operation<'a, T> = Pin<Box<dyn Future<Output = Result<T, Fault>> + Send + 'a>>;

/// A stream of events as they happen. It ends when the authority or the connection does.
pub type Events = Pin<Box<dyn Stream<Item = Result<Notice, Fault>> + Send>>;

/// The operations of every authority.
///
/// # Requirements for an implementation
///
/// * A method call is one attempt. The caller retries, because only the caller can read its clock before each
///   attempt. If an implementation repeats something inside a call, the reported validity of a grant must
///   still count from the call.
/// * Every decision of the authority is a value. A [`Fault`] means that the caller knows no decision, and
///   says whether one may have been made.
/// * `renew` and `release` are compare-and-act on the named grant (rule A9): repeating them, however late,
///   never affects a later grant. `acquire` and `abandon` go by the request id (rule A12).
/// * Futures are cancel-safe: dropping one leaks nothing and blocks no other caller.
pub trait LockService: Send + Sync + 'static {
    /// The id of this authority; fences are bound to it.
    fn authority(&self) -> &AuthorityId;

    /// Requests a lock, at once or in its queue.
    fn acquire(&self, request: AcquireRequest) -> Operation<'_, Acquired>;

    /// Renews a grant: its lease lasts its full time again, and the token stays the same.
    fn renew(&self, grant: GrantRef, ttl: Option<Ttl>) -> Operation<'_, Renewal>;

    /// Changes what the holder of an exclusive grant says about itself; the token stays the same. An empty value takes it
    /// back.
    fn proclaim(&self, grant: GrantRef, value: &str) -> Operation<'_, Proclamation> {
        let _ = (grant, value);
        unsupported("change what a holder says about itself")
    }

    /// Signs what the holder of a grant holds: a sequencer, for fences that believe no bare number.
    fn sequencer(&self, grant: GrantRef) -> Operation<'_, Sequencer> {
        let _ = grant;
        unsupported("sign fencing tokens")
    }

    /// Releases a grant.
    fn release(&self, grant: GrantRef) -> Operation<'_, Released>;

    /// Gives up a request whose outcome is unknown: anything it was granted is released, and it is never
    /// granted from now on. The answer comes only when both are certain.
    fn abandon(&self, request: RequestId) -> Operation<'_, ()>;

    /// Returns the holder of a lock and the number of waiters.
    fn show(&self, lock: LockName) -> Operation<'_, LockView>;

    /// Returns one page of the held locks whose names start with `prefix`.
    fn list(&self, prefix: &str, after: Option<Cursor>, limit: u32) -> Operation<'_, Page> {
        let _ = (prefix, after, limit);
        unsupported("list locks")
    }

    /// Watches changes of the locks whose names start with `prefix`, from now on or after a revision.
    fn watch(&self, prefix: &str, after: Option<u64>) -> Operation<'_, Events> {
        let _ = (prefix, after);
        unsupported("watch locks")
    }

    /// Takes a lock from its holder (`palisade break`). `token` must be the token of the current grant.
    fn revoke(&self, lock: LockName, token: Token, reason: &str) -> Operation<'_, Revocation> {
        let _ = (lock, token, reason);
        unsupported("revoke locks")
    }

    /// Opens a lock that is closed after its last grant (`palisade open`).
    fn reopen(&self, lock: LockName, reason: &str) -> Operation<'_, Reopened> {
        let _ = (lock, reason);
        unsupported("open closed locks")
    }

    /// Gives a semaphore another number of permits (`palisade permits`).
    fn resize(&self, lock: LockName, permits: u32) -> Operation<'_, Resized> {
        let _ = (lock, permits);
        unsupported("change the number of permits")
    }

    /// Whether it goes on when the Tokio runtime on which it was connected has ended, on the runtime of its next caller. A
    /// client of one that does not refuses requests from then on.
    fn outlives_runtimes(&self) -> bool {
        false
    }

    /// Returns the status that the authority reports.
    fn status(&self) -> Operation<'_, Status> {
        unsupported("report its status")
    }
}

/// A request id that nobody can guess, from the operating system's generator: for programs that call a [`LockService`]
/// themselves, and for an authority that needs a value of its own.
///
/// # Errors
/// [`Fault::Unavailable`] if the generator fails: another client could abandon a request id that it can guess.
pub fn fresh_request_id() -> Result<RequestId, Fault> {
    random::bytes().map(RequestId::from_bytes)
}

fn unsupported<'a, T: 'a>(what: &'static str) -> Operation<'a, T> {
    Box::pin(async move { Err(Fault::unsupported(what)) })
}

/// A request for a lock. It always has an id, which makes a retry recognisable, and which
/// [`LockService::abandon`] takes.
pub type AcquireRequest = Wish<RequestId>;

/// The outcomes of an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acquired {
    /// The caller has the lock. `valid_for` counts from no earlier than the call of [`LockService::acquire`] that
    /// this answers, also where an earlier call with this request id waited already; `waited` is part of it.
    Granted(Granted),
    /// Another client has the lock, and still had it when the wait was over.
    Held(Holder),
    /// Another request waits for the lock and comes first; it holds nothing yet.
    Behind(Ahead),
    /// Nobody has the lock, and nobody is granted it for a time after its last grant.
    Delayed(Delayed),
    /// Too many requests are waiting; the text names the bound.
    QueueFull(Box<str>),
    /// The authority holds as many locks as it allows; the text names the bound.
    TooManyLocks(Box<str>),
    /// The named lease has ended, or so has the grant that this same request got before its answer was lost.
    /// `None` if the authority does not remember how.
    Over(Option<Ending>),
    /// The request was abandoned earlier.
    Abandoned,
    /// The authority has issued its last token.
    TokensExhausted,
}

/// The outcomes of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease was renewed. `valid_for` counts from no later than the call of [`LockService::renew`].
    Renewed(Renewed),
    /// The grant has ended.
    Ended(Ending),
    /// The authority knows no such grant.
    NotHeld,
    /// The lock is held with another token.
    Stale {
        /// That token.
        highest: Token,
    },
}

/// The outcomes of a change of what a holder says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proclamation {
    /// The value is in force.
    Proclaimed {
        /// The number of this event: of two announcements the one with the higher (token, revision) is the later one.
        revision: u64,
    },
    /// The grant has ended.
    Ended(Ending),
    /// The authority knows no such grant.
    NotHeld,
    /// The lock is held with another token.
    Stale {
        /// That token.
        highest: Token,
    },
}

/// The outcomes of a request for a sequencer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sequencer {
    /// A compact JWS with authority, lock, mode, token, slots and principal. Who has it can present it until a higher token
    /// comes.
    Signed(Box<str>),
    /// The grant has ended.
    Ended(Ending),
    /// The authority knows no such grant.
    NotHeld,
    /// The lock is held with another token.
    Stale {
        /// That token.
        highest: Token,
    },
}

/// The outcomes of a release. After each of them the caller does not hold the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// The grant was live, and is released.
    Released,
    /// As [`Released`](Released::Released), and nobody is granted the lock for this long, because the grant asked for it
    /// ([`LockRequest::at_least_for`](crate::LockRequest::at_least_for)).
    Delayed {
        /// How long, by the authority's clock, from the release.
        remaining: Span,
    },
    /// The grant had already ended; [`Ending::Released`] answers the repeat of a release that had succeeded.
    Ended(Ending),
    /// The authority knows no such grant.
    NotHeld,
    /// The lock is held with another token, and stays held.
    Stale {
        /// That token.
        highest: Token,
    },
}

#[cfg(any(feature = "in-process", feature = "palisade"))]
impl Released {
    /// A grant that was live and is released; the lock stays closed for a time, or does not.
    pub(crate) fn new(delayed: Option<Span>) -> Released {
        match delayed {
            None => Released::Released,
            Some(remaining) => Released::Delayed { remaining },
        }
    }
}

/// The outcomes of a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// The lock was taken from its holder.
    Revoked,
    /// The named grant had already ended.
    Ended(Ending),
    /// The lock is free.
    NotHeld,
    /// The lock is held with another token: look again before another attempt.
    Stale {
        /// That token.
        highest: Token,
    },
}

/// The outcomes of opening a closed lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reopened {
    /// It was closed, and is open.
    Reopened,
    /// It was not closed: it is free, or somebody holds it.
    NotClosed,
}

/// The outcomes of a change of a semaphore's number of permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resized {
    /// It has this number. Holders of slots above it keep them until their grants end.
    Resized,
    /// Nobody holds the lock or waits for it, so it has no number: the next request for permits says it.
    NotInUse,
}

/// The position where a listing continues. Only the authority that made it can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub Box<str>);

/// One page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The locks; possibly fewer than asked for, possibly none.
    pub locks: Vec<LockView>,
    /// The cursor of the next page; `None` when the listing is complete.
    pub next: Option<Cursor>,
}

/// What an observer is told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A lock changed.
    Change(WatchEvent),
    /// There were changes that this observer did not get, because it was away or too slow: look at the locks afresh.
    Missed {
        /// How many, of all locks.
        missed: u64,
        /// The revision of the last one.
        revision: u64,
    },
}

impl Notice {
    /// Where an observer resumes after this.
    #[must_use]
    pub fn revision(&self) -> u64 {
        match self {
            Notice::Change(event) => event.revision,
            Notice::Missed { revision, .. } => *revision,
        }
    }
}

/// One change of one lock, as an observer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// The authority's count of events; an observer resumes after the last one it saw.
    pub revision: u64,
    /// The lock.
    pub lock: LockName,
    /// The client that the change is about; `None` when an operator opened the lock.
    pub client: Option<ClientId>,
    /// The token of the grant that the change is about; when the lock was opened, of its last one.
    pub token: Token,
    /// The number that names the grant, if it is shared.
    pub shared: Option<GrantId>,
    /// The kind of change.
    pub change: Change,
}

/// The status that an authority reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The authority's id, which stays the same for its whole life.
    pub authority: AuthorityId,
    /// An id that changes with every restore from a backup.
    pub incarnation: String,
    /// The token the next grant gets; `None` when the range is exhausted.
    pub next_token: Option<Token>,
    /// Locks held.
    pub locks: u64,
    /// Live leases.
    pub leases: u64,
    /// The number of waiting requests.
    pub waiters: u64,
    /// The version of the authority's software.
    pub version: String,
    /// Whether its clock moves only on request.
    pub manual_clock: bool,
}
