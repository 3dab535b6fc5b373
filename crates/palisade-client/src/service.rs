//! The seam between the guard and whatever grants locks.
//!
//! Everything above this trait (the guard, renewal, retries, abandoning, `palisade run`) is written
//! once; everything below it (a Palisade server, this process, an adapter on another system) only
//! carries operations to an authority and outcomes back.
//!
//! An authority that has no fencing tokens does not fit here on purpose: [`Acquired::Granted`] cannot
//! be built without a [`Token`]. Such an authority gets a trait and a guard of its own, without
//! `token()`, so that its grant does not compile where a fence wants one; the machinery below the
//! guard (deadline, renewal, release) never looks at the token and is shared.

use std::pin::Pin;

use futures_core::Stream;
use palisade_core::{
    AuthorityId, Change, ClientId, Ending, GrantRef, Granted, Holder, LeaseKey, LockName, LockView,
    Renewed, RequestId, Span, Token, Ttl,
};

use crate::fault::Fault;

/// An operation under way. Dropping it stops waiting for the answer; the operation may still happen.
pub type Operation<'a, T> = Pin<Box<dyn Future<Output = Result<T, Fault>> + Send + 'a>>;

/// Events as they happen; ends when the authority or the connection does.
pub type Events = Pin<Box<dyn Stream<Item = Result<WatchEvent, Fault>> + Send>>;

/// What every authority offers.
///
/// # What an implementation promises
///
/// * A method call is one attempt. Retrying is the caller's business, because only the caller can
///   read its clock before each attempt. An implementation that repeats something inside a call
///   still reports how long a grant is valid so that it may be counted from the call.
/// * Everything the authority decided is a value. A [`Fault`] means that the caller knows no
///   decision, and says whether there may be one.
/// * `renew` and `release` are compare-and-act on the grant named (rule A9): repeating them, however
///   late, never touches a later grant. `acquire` and `abandon` go by the request id (rule A12).
/// * Futures are cancel-safe: dropping one leaks nothing, and blocks nobody else.
pub trait LockService: Send + Sync + 'static {
    /// Which authority this is; fences are bound to it.
    fn authority(&self) -> &AuthorityId;

    /// Asks for a lock, at once or in its queue.
    fn acquire(&self, request: AcquireRequest) -> Operation<'_, Acquired>;

    /// Makes the lease of a grant last its full time again; the token stays.
    fn renew(&self, grant: GrantRef, ttl: Option<Ttl>) -> Operation<'_, Renewal>;

    /// Gives a grant up.
    fn release(&self, grant: GrantRef) -> Operation<'_, Released>;

    /// Gives up a request whose outcome is not known: whatever it was granted is released, and it is
    /// never granted from now on. Acknowledged only when that is certain.
    fn abandon(&self, request: RequestId) -> Operation<'_, ()>;

    /// Who holds a lock.
    fn show(&self, lock: LockName) -> Operation<'_, LockView>;

    /// One page of the locks held whose names start with `prefix`.
    fn list(&self, prefix: &str, after: Option<Cursor>, limit: u32) -> Operation<'_, Page> {
        let _ = (prefix, after, limit);
        unsupported("list locks")
    }

    /// Changes of the locks whose names start with `prefix`, from now on or after a revision.
    fn watch(&self, prefix: &str, after: Option<u64>) -> Operation<'_, Events> {
        let _ = (prefix, after);
        unsupported("watch locks")
    }

    /// Takes a lock from its holder (`palisade break`). `token` is the one it must be held with.
    fn revoke(&self, lock: LockName, token: Token, reason: &str) -> Operation<'_, Revocation> {
        let _ = (lock, token, reason);
        unsupported("revoke locks")
    }

    /// What the authority says about itself.
    fn status(&self) -> Operation<'_, Status> {
        unsupported("report its status")
    }
}

fn unsupported<'a, T: 'a>(what: &'static str) -> Operation<'a, T> {
    Box::pin(async move { Err(Fault::unsupported(what)) })
}

/// A wish for a lock.
#[derive(Clone, Debug)]
pub struct AcquireRequest {
    /// Which lock.
    pub lock: LockName,
    /// Who asks.
    pub client: ClientId,
    /// The lease to put the grant under.
    pub under: Under,
    /// How long to wait in the queue; `None` is a try.
    pub wait: Option<Span>,
    /// What makes a retry recognisable, and what [`LockService::abandon`] names.
    pub request: RequestId,
    /// Free text shown with the holder.
    pub metadata: Option<Box<str>>,
}

/// The lease a grant goes under.
#[derive(Clone, Copy, Debug)]
pub enum Under {
    /// A new lease that lasts this long without renewal.
    New(Ttl),
    /// A lease the client has; the grant ends with it.
    Existing(LeaseKey),
}

/// The outcomes of an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acquired {
    /// The lock is the caller's. `valid_for` counts from no later than the call of
    /// [`LockService::acquire`] that sent this request id first, and `valid_for - waited` from no
    /// later than the one that is answered.
    Granted(Granted),
    /// Somebody else has it, and still had it when the wait was over.
    Held(Holder),
    /// Too many requests wait; the text names the bound.
    QueueFull(Box<str>),
    /// The authority holds as many locks as it may; the text names the bound.
    TooManyLocks(Box<str>),
    /// It is over: the lease named, or the grant this very request had got before its answer was
    /// lost. `None` if the authority does not remember how.
    Over(Option<Ending>),
    /// The request was abandoned before.
    Abandoned,
    /// The last token is out.
    TokensExhausted,
}

/// The outcomes of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease lasts. `valid_for` counts from no later than the call of [`LockService::renew`].
    Renewed(Renewed),
    /// The grant is over.
    Ended(Ending),
    /// Nothing is known of such a grant.
    NotHeld,
    /// The lock is held with another token.
    Stale {
        /// That token.
        highest: Token,
    },
}

/// The outcomes of a release. After each of them the caller does not hold the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// It was held, and is given up.
    Released,
    /// It was over before; [`Ending::Released`] is a repeat of a release that had worked.
    Ended(Ending),
    /// Nothing is known of such a grant.
    NotHeld,
    /// The lock is held with another token, and stays so.
    Stale {
        /// That token.
        highest: Token,
    },
}

/// The outcomes of a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// The lock was taken from its holder.
    Revoked,
    /// The grant named was over before.
    Ended(Ending),
    /// Nobody holds the lock.
    NotHeld,
    /// The lock is held with another token: look again.
    Stale {
        /// That token.
        highest: Token,
    },
}

/// Where a listing goes on. Only the authority that made it can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub Box<str>);

/// One page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The locks; possibly fewer than asked for, possibly none.
    pub locks: Vec<LockView>,
    /// Where to go on; `None` when the listing is complete.
    pub next: Option<Cursor>,
}

/// One change of one lock, as an observer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// The authority's count of events; an observer resumes after the last one it saw.
    pub revision: u64,
    /// The lock.
    pub lock: LockName,
    /// The holder concerned.
    pub client: ClientId,
    /// The token concerned.
    pub token: Token,
    /// What happened.
    pub change: Change,
    /// Events this observer was too slow for and did not get before this one.
    pub missed: u64,
}

/// What an authority says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Keeps for the authority's whole life.
    pub authority: AuthorityId,
    /// Changes with every restore from a backup.
    pub incarnation: String,
    /// The token the next grant gets; `None` when the range is exhausted.
    pub next_token: Option<Token>,
    /// Locks held.
    pub locks: u64,
    /// Live leases.
    pub leases: u64,
    /// Requests that wait.
    pub waiters: u64,
    /// What the authority runs.
    pub version: String,
    /// Whether its clock moves only when told.
    pub manual_clock: bool,
}
