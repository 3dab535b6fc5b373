//! Requests of the server's interfaces (gRPC, HTTP, in-process) to the pipeline, and its answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use palisade_core::machine::Held;
use palisade_core::{
    GrantRef, GrantState, LockName, LockView, Outcome, Principal, RequestId, Span, Token, Ttl, Wish,
};

/// One question, already checked for form.
#[derive(Clone, Debug)]
pub enum Request {
    /// Wants a lock. The orderer draws the secret of a new lease.
    Acquire(Wish),
    /// Wants a lease to last its full time to live again.
    Renew {
        /// Which grant.
        grant: GrantRef,
        /// A new time to live, or `None`.
        ttl: Option<Ttl>,
    },
    /// Says something else about the holder: see [`Command::Proclaim`](palisade_core::Command::Proclaim).
    Proclaim {
        /// Which grant; an exclusive one.
        grant: GrantRef,
        /// The new value.
        value: Box<str>,
    },
    /// Gives a lock up.
    Release(GrantRef),
    /// Gives up a request that has no known answer.
    Abandon(RequestId),
    /// An operator takes a lock away.
    Revoke {
        /// The lock.
        lock: LockName,
        /// The token it must be held with.
        token: Token,
        /// Why.
        reason: Box<str>,
    },
    /// An operator opens a lock that is closed after its last grant.
    Open {
        /// The lock.
        lock: LockName,
        /// Why.
        reason: Box<str>,
    },
    /// An operator gives a semaphore another number of permits.
    Resize {
        /// The lock.
        lock: LockName,
        /// How many it has from now on.
        permits: u32,
    },
    /// Asks for the holder of a lock.
    Show(LockName),
    /// A holder asks for the state of its grants, to hear of them from then on.
    Listen(Box<[Listened]>),
    /// Asks for one page of the locks held.
    List {
        /// Only names that start with this.
        prefix: Box<str>,
        /// Where the last page ended; 0 for the first.
        cursor: u64,
        /// At most this many.
        limit: usize,
    },
    /// Asks for one page of all grants and their principals. The server's own question; no interface asks it.
    Grants {
        /// Where the last page ended; 0 for the first.
        cursor: u64,
    },
    /// Asks for the authority's status.
    Status,
    /// Moves a manual clock; refused unless the authority was started with one.
    Advance(Span),
}

/// A grant that its holder wants to hear about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listened {
    /// Which grant.
    pub grant: GrantRef,
    /// Its number, as in `grant`.
    pub number: Token,
    /// How many waiting requests the holder knows of.
    pub waiters: u32,
}

/// The kinds of requests, as metrics distinguish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// [`Request::Acquire`].
    Acquire,
    /// [`Request::Renew`].
    Renew,
    /// [`Request::Proclaim`].
    Proclaim,
    /// [`Request::Release`].
    Release,
    /// [`Request::Abandon`].
    Abandon,
    /// [`Request::Revoke`].
    Break,
    /// [`Request::Open`].
    Open,
    /// [`Request::Resize`].
    Permits,
    /// [`Request::Show`] and [`Request::Listen`].
    Show,
    /// [`Request::List`] and [`Request::Grants`].
    List,
    /// [`Request::Status`] and [`Request::Advance`].
    Status,
}

impl Operation {
    /// All of them, in the order of their numbers.
    pub const ALL: [Operation; 11] = [
        Operation::Acquire,
        Operation::Renew,
        Operation::Proclaim,
        Operation::Release,
        Operation::Abandon,
        Operation::Break,
        Operation::Open,
        Operation::Permits,
        Operation::Show,
        Operation::List,
        Operation::Status,
    ];

    /// Its name, as on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Acquire => "acquire",
            Operation::Renew => "renew",
            Operation::Proclaim => "proclaim",
            Operation::Release => "release",
            Operation::Abandon => "abandon",
            Operation::Break => "break",
            Operation::Open => "open",
            Operation::Permits => "permits",
            Operation::Show => "show",
            Operation::List => "ls",
            Operation::Status => "status",
        }
    }

    pub(super) const fn of(request: &Request) -> Operation {
        match request {
            Request::Acquire(_) => Operation::Acquire,
            Request::Renew { .. } => Operation::Renew,
            Request::Proclaim { .. } => Operation::Proclaim,
            Request::Release(_) => Operation::Release,
            Request::Abandon(_) => Operation::Abandon,
            Request::Revoke { .. } => Operation::Break,
            Request::Open { .. } => Operation::Open,
            Request::Resize { .. } => Operation::Permits,
            Request::Show(_) | Request::Listen(_) => Operation::Show,
            Request::List { .. } | Request::Grants { .. } => Operation::List,
            Request::Status | Request::Advance(_) => Operation::Status,
        }
    }
}

/// The result of a request, as metrics report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricResult {
    /// It was carried out.
    Ok,
    /// It was denied: the lock is held, the grant is over, a bound is reached.
    Denied,
    /// It was not carried out, or that is not known.
    Failed,
}

impl MetricResult {
    /// All of them, in the order of their numbers.
    pub const ALL: [MetricResult; 3] =
        [MetricResult::Ok, MetricResult::Denied, MetricResult::Failed];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            MetricResult::Ok => "ok",
            MetricResult::Denied => "denied",
            MetricResult::Failed => "failed",
        }
    }
}

/// A question, and the principal that asks.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The principal that asks. The interfaces authenticate it before a question comes here.
    pub by: Principal,
    /// The question.
    pub request: Request,
    /// Whether its place in a queue is reserved if its caller goes away while it waits.
    pub keeps_place: KeepsPlace,
}

impl From<Request> for Asked {
    /// Nobody known asks: in process, and where there are no rules.
    fn from(request: Request) -> Asked {
        Asked {
            by: Principal::ANONYMOUS,
            request,
            keeps_place: KeepsPlace::default(),
        }
    }
}

/// Whether the place of a waiting request is reserved when its caller goes away. The interface that counts such places
/// decides at that moment. Without one it is not.
#[derive(Clone, Debug, Default)]
pub struct KeepsPlace(Option<Arc<AtomicBool>>);

impl KeepsPlace {
    /// To be decided.
    #[must_use]
    pub fn undecided() -> KeepsPlace {
        KeepsPlace(Some(Arc::default()))
    }

    /// The place is to be reserved.
    pub fn keep(&self) {
        if let Some(keeps) = &self.0 {
            keeps.store(true, Ordering::Release);
        }
    }

    pub(super) fn is_kept(&self) -> bool {
        let keeps = self.0.as_ref();
        keeps.is_some_and(|keeps| keeps.load(Ordering::Acquire))
    }
}

/// The answer to a [`Request`], given only when everything it rests on is durable.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To any request that may change state.
    Outcome(Outcome),
    /// To `Show`. Boxed, because every other answer would be moved at its size.
    Lock(Box<LockView>),
    /// To `Listen`: the state of each grant, in the order in which they were named.
    States(Box<[GrantState]>),
    /// To `List`; `next` is the cursor of the next page.
    Locks {
        /// The locks of this page.
        locks: Vec<LockView>,
        /// Where to go on, if there is more.
        next: Option<u64>,
    },
    /// To `Grants`.
    Grants {
        /// The grants of this page.
        grants: Vec<Held>,
        /// Where to go on, if there is more.
        next: Option<u64>,
    },
    /// To `Status`.
    Status(Status),
    /// To `Advance`: the authority's clock after it moved, since the authority was created.
    Clock(Span),
    /// Not carried out.
    Failed(Failure),
}

impl Answer {
    pub(super) const fn verdict(&self) -> MetricResult {
        match self {
            Answer::Outcome(
                Outcome::Granted(_)
                | Outcome::Renewed(_)
                | Outcome::Proclaimed { .. }
                | Outcome::Released { .. }
                | Outcome::Revoked { .. }
                | Outcome::Done,
            )
            | Answer::Lock(_)
            | Answer::States(_)
            | Answer::Locks { .. }
            | Answer::Grants { .. }
            | Answer::Status(_)
            | Answer::Clock(_) => MetricResult::Ok,
            Answer::Outcome(_) => MetricResult::Denied,
            Answer::Failed(_) => MetricResult::Failed,
        }
    }
}

/// The state of the authority in numbers.
#[derive(Clone, Debug)]
pub struct Status {
    /// The token the next grant gets; `None` when the range is exhausted.
    pub next_token: Option<Token>,
    /// Locks held.
    pub locks: usize,
    /// Live leases.
    pub leases: usize,
    /// Requests that wait.
    pub waiters: usize,
    /// Whether the clock moves only when it is set.
    pub manual_clock: bool,
}

/// Why a request was not carried out, by the next step that its caller may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nothing happened; trying again later is safe (for example: the disk is full).
    Unavailable(String),
    /// Another node of the cluster leads, or none does; nothing happened.
    NotLeader {
        /// The leader's URL, such as `http://10.0.0.2:7420`, if it is known.
        leader: Option<Arc<str>>,
    },
    /// It may have happened: repeat it with the same request id.
    UnknownOutcome(String),
    /// The request does not fit this authority (for example: `Advance` without a manual clock).
    Refused(String),
}

impl Failure {
    pub(super) fn stopping() -> Failure {
        Failure::Unavailable("the authority is stopping".into())
    }

    pub(super) fn lost() -> Failure {
        Failure::UnknownOutcome("the authority stopped before it answered".into())
    }
}
