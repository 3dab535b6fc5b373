//! The trait that every authority implements.
//!
//! Above this trait, the guard, renewal, retries, abandoning and `palisade run` exist once. Below it, each
//! implementation (a Palisade server, this process, an adapter for another system) only carries operations to an
//! authority and outcomes back.
//!
//! An authority without fencing tokens cannot implement it, because [`Acquired::Granted`] contains a [`Token`]. Such an
//! authority needs its own guard without `token()`, so that a program cannot compile if it passes that guard where a
//! fence requires a token. The deadline in [`hold`](crate::hold) serves both.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use palisade_core::{
    Ahead, AuthorityId, Change, ClientId, Delayed, Ending, GrantId, GrantRef, Holder, LockName,
    LockView, Span, Token, Ttl, WallTime, Wish,
};

use crate::fault::Fault;
use crate::random;

/// The types of requests and outcomes, for implementations of [`LockService`].
pub use palisade_core::{GrantOption, GrantOptions, Granted, Others, Renewed, RequestId, Under};

/// An operation in flight. Dropping it stops the wait for the answer; the operation may still happen.
pub type Operation<'a, T> = Pin<Box<dyn Future<Output = Result<T, Fault>> + Send + 'a>>;

/// A stream of events as they happen. It ends with the authority or the connection.
pub type Events = Pin<Box<dyn Stream<Item = Result<Notice, Fault>> + Send>>;

/// The operations of every authority.
///
/// # Requirements for an implementation
///
/// * A method call is one attempt. The caller retries, because only the caller can read its clock before each attempt.
///   If an implementation retries inside a call, the reported validity of a grant must still count from the call.
/// * Every decision of the authority is a value. A [`Fault`] means that the caller got no decision; its kind says
///   whether the authority may have made one.
/// * `renew` and `release` act only on the named grant (rule A9): a repeat, however late, never affects a later grant.
///   `acquire` and `abandon` act by the request id (rule A12).
/// * Futures are cancel-safe: dropping one leaks nothing and blocks no other caller.
pub trait LockService: Send + Sync + 'static {
    /// Returns the authority's id, to which fences are bound.
    fn authority(&self) -> &AuthorityId;

    /// Requests a lock, with or without waiting in its queue.
    fn acquire(&self, request: AcquireRequest) -> Operation<'_, Acquired>;

    /// Renews the lease of a grant for its full time to live. The token stays the same.
    fn renew(&self, grant: GrantRef, ttl: Option<Ttl>) -> Operation<'_, Renewal>;

    /// Changes the metadata of an exclusive grant; an empty value removes it. The token stays the same.
    fn proclaim(&self, grant: GrantRef, value: &str) -> Operation<'_, Proclamation> {
        let _ = (grant, value);
        unsupported("change the value that a holder publishes")
    }

    /// Signs a grant as a sequencer, for fences that do not trust bare numbers.
    fn sequencer(&self, grant: GrantRef) -> Operation<'_, SequencerAnswer> {
        let _ = grant;
        unsupported("sign fencing tokens")
    }

    /// Releases a grant.
    fn release(&self, grant: GrantRef) -> Operation<'_, Released>;

    /// Abandons a request whose outcome is unknown. Its grant, if any, is released, and the request is never granted
    /// later. The answer comes only when both are certain.
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

    /// Opens a closed lock (`palisade open`).
    fn reopen(&self, lock: LockName, reason: &str) -> Operation<'_, Reopened> {
        let _ = (lock, reason);
        unsupported("open closed locks")
    }

    /// Changes a semaphore's number of permits (`palisade permits`).
    fn resize(&self, lock: LockName, permits: u32) -> Operation<'_, Resized> {
        let _ = (lock, permits);
        unsupported("change the number of permits")
    }

    /// Tells the authority that a resource refused a late write, for its history. One attempt; nobody waits for it.
    fn report(&self, late: LateWrite) -> Operation<'_, ()> {
        let _ = late;
        unsupported("take reports of refused writes")
    }

    /// Begins to hear of grants before their renewals would tell; `None` if it cannot. Every call begins anew, without
    /// grants.
    fn listen(&self) -> Option<Box<dyn Listening>> {
        None
    }

    /// Returns whether it keeps working on its next caller's runtime after the Tokio runtime that connected it has
    /// ended. If it does not, its client refuses requests from then on.
    fn outlives_runtimes(&self) -> bool {
        false
    }

    /// Returns the status that the authority reports.
    fn status(&self) -> Operation<'_, Status> {
        unsupported("report its status")
    }
}

/// A holder's ear at its authority.
///
/// What it hears is best effort, and decides nothing that a renewal does not decide too. It may miss news only when it ends.
pub trait Listening: Send {
    /// Names grants, each once, to hear of them until they end. It is called on a Tokio runtime.
    fn name(&mut self, grants: Vec<Listened>);

    /// Waits for news of a grant that was named. `None` and an error are the end: the caller begins anew, and names its
    /// grants again. After [`Fault::Invalid`] and [`Fault::Unsupported`] that is of no use for a while.
    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<GrantNews, Fault>>>;
}

/// A grant that its holder wants to hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listened {
    /// The grant, with its secret, which proves that the holder may hear of it.
    pub grant: GrantRef,
    /// Its number.
    pub number: Token,
    /// How many waiting requests the holder knows of.
    pub waiters: u32,
}

/// News of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrantNews {
    /// The grant is over.
    Ended {
        /// Its lock.
        lock: LockName,
        /// Its number.
        number: Token,
        /// How it ended; `None` if the authority knows no such grant.
        how: Option<Ending>,
        /// The operator's reason for a revocation, if the authority still has it.
        reason: Option<Box<str>>,
    },
    /// More requests wait for the grant's lock than were known, or none any more.
    Wanted {
        /// The lock.
        lock: LockName,
        /// The grant's number.
        number: Token,
        /// How many wait.
        waiters: u32,
    },
}

/// Returns an unguessable request id from the operating system's generator: for programs that call a [`LockService`]
/// themselves, and for implementations that need a random value.
///
/// # Errors
/// [`Fault::Unavailable`] if the generator fails. There is no weaker substitute: a client that guesses a request id can
/// abandon the request.
pub fn fresh_request_id() -> Result<RequestId, Fault> {
    random::bytes().map(RequestId::from_bytes)
}

fn unsupported<'a, T: 'a>(what: &'static str) -> Operation<'a, T> {
    Box::pin(async move { Err(Fault::unsupported(what)) })
}

/// A request for a lock. Its id identifies a retry, and [`LockService::abandon`] takes it.
pub type AcquireRequest = Wish<RequestId>;

/// The outcomes of an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acquired {
    /// The caller holds the lock. `valid_for` counts from no earlier than the answered call of
    /// [`LockService::acquire`], even if an earlier call with this request id already waited; it includes `waited`.
    Granted(Granted),
    /// Another client holds the lock, and still held it when the wait was over.
    Held(Holder),
    /// Another request is ahead in the queue; it holds nothing yet.
    Behind(Ahead),
    /// The lock is closed for a time after its last grant; nobody holds it.
    Delayed(Delayed),
    /// Too many requests are waiting; the text names the bound.
    QueueFull(Box<str>),
    /// The authority holds as many locks as it allows; the text names the bound.
    TooManyLocks(Box<str>),
    /// The named lease has ended, or an earlier attempt of this request got a grant that has ended. `None` if the
    /// authority does not remember how it ended.
    Over(Option<Ending>),
    /// The request was abandoned earlier.
    Abandoned,
    /// The authority has issued its last token.
    TokensExhausted,
}

/// The outcomes of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease was renewed. `valid_for` counts from no earlier than the call of [`LockService::renew`].
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

/// The outcomes of a change of a grant's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proclamation {
    /// The grant has the new value.
    Proclaimed {
        /// The number of this event. Of two announcements, the one with the higher (token, revision) is the later one.
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
pub enum SequencerAnswer {
    /// A compact JWS with authority, lock, mode, token, slots and principal. Anyone who has it can present it to a
    /// fence until a higher token comes.
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

/// The outcomes of a release. After each of them the caller's grant is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// The grant was live and is released.
    Released,
    /// The grant was live and is released, but the lock stays closed because the grant asked for it
    /// ([`LockRequest::at_least_for`](crate::LockRequest::at_least_for)).
    Delayed {
        /// How long it stays closed after the release, by the authority's clock.
        remaining: Span,
    },
    /// The grant had already ended. [`Ending::Released`] answers the repeat of a successful release.
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
    /// The outcome for a live grant; `delayed` is how long the lock stays closed, if it does.
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
    /// The lock is held with another token. Show the lock again before the next attempt.
    Stale {
        /// That token.
        highest: Token,
    },
}

/// The outcomes of opening a closed lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reopened {
    /// The lock was closed and is now open.
    Reopened,
    /// The lock was not closed: it is free or held.
    NotClosed,
}

/// The outcomes of a change of a semaphore's number of permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resized {
    /// The semaphore has the new number. Holders of slots above it keep them until their grants end.
    Resized,
    /// Nobody holds the lock or waits for it, so it has no number. The next request for permits sets it.
    NotInUse,
}

/// A write that a resource refused, because a newer holder had claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateWrite {
    /// The authority that issued the token, if that is known. No other one takes the report.
    pub authority: Option<AuthorityId>,
    /// The lock.
    pub lock: LockName,
    /// The refused token.
    pub token: Token,
    /// The resource, in at most 255 bytes.
    pub resource: Box<str>,
    /// The highest token that the resource had seen.
    pub highest: Token,
    /// The operation in a word or two, in at most 255 bytes.
    pub operation: Box<str>,
}

/// The position where a listing continues. Only the authority that created it can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub Box<str>);

/// One page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The locks; possibly fewer than requested, possibly none.
    pub locks: Vec<LockView>,
    /// The cursor of the next page; `None` when the listing is complete.
    pub next: Option<Cursor>,
}

/// A message to an observer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A lock changed.
    Change(WatchEvent),
    /// This observer missed changes, because it was disconnected or too slow. Show the locks again.
    Missed {
        /// The number of missed changes, over all locks.
        missed: u64,
        /// The revision of the last missed change.
        revision: u64,
    },
}

impl Notice {
    /// Returns the revision after which an observer resumes.
    #[must_use]
    pub fn revision(&self) -> u64 {
        match self {
            Notice::Change(event) => event.revision,
            Notice::Missed { revision, .. } => *revision,
        }
    }
}

/// One change of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// The number of the event at this authority. An observer resumes after the last one it saw.
    pub revision: u64,
    /// When it happened, by the authority's wall clock. For people: nothing may be decided by it (rule A11).
    pub time: WallTime,
    /// The lock.
    pub lock: LockName,
    /// The holder, or former holder; `None` when an operator opened the lock.
    pub client: Option<ClientId>,
    /// The token of the grant; when an operator opened the lock, the token of the last grant.
    pub token: Token,
    /// The number that identifies a shared grant.
    pub shared: Option<GrantId>,
    /// The options of an exclusive grant; only when it was granted.
    pub options: GrantOptions,
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
    /// The token of the next grant; `None` when the range is exhausted.
    pub next_token: Option<Token>,
    /// The number of held locks.
    pub locks: u64,
    /// The number of live leases.
    pub leases: u64,
    /// The number of waiting requests.
    pub waiters: u64,
    /// The version of the authority's software.
    pub version: String,
    /// Whether the authority's clock advances only on request.
    pub manual_clock: bool,
}
