//! The lines of a history: calls, answers, and absences of the authority.

use palisade_core::{ClientId, Ending, LockMode, LockName, Slots, Timestamp, Token, Ttl};

/// The promises of the recorded authority beyond the lease model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whether one counter serves all locks, or each lock has its own.
    pub tokens: Tokens,
    /// Whether a lease ends exactly at its instant, or some time after it.
    pub expiry: Expiry,
    /// By how much the rate of the authority's clock may differ from the recorder's, in parts per million.
    pub drift_ppm: u32,
}

impl Default for Header {
    fn default() -> Header {
        Header {
            tokens: Tokens::Global,
            expiry: Expiry::Exact,
            drift_ppm: 0,
        }
    }
}

/// The scope of token order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// Grant order is token order over all locks (rule A2).
    Global,
    /// Tokens of different locks are not related.
    PerLock,
}

/// The end of an expired lease that nobody asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// It is gone from that instant on: a later renewal must fail (rule A8).
    Exact,
    /// It may live on until the authority checks.
    Lazy,
}

/// One line after the header. All instants are on one clock, the recorder's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request was sent; without an answer it is unknown whether it took effect.
    Call {
        /// Read before the request was sent.
        at: Timestamp,
        /// Identifies the call within the history.
        id: u64,
        /// The client.
        client: ClientId,
        /// The call itself.
        call: Call,
    },
    /// The answer arrived.
    Answer {
        /// Read after it arrived.
        at: Timestamp,
        /// The call it answers.
        id: u64,
        /// Its content.
        answer: Answer,
    },
    /// The authority did not run for some part of this time, and then gave every live lease its full time again (rule
    /// A7).
    Away {
        /// When it was certainly still running.
        at: Timestamp,
        /// When it was certainly running again.
        until: Timestamp,
    },
}

/// A call to the authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Request a lock, or several at once, immediately or after a wait.
    Acquire {
        /// The lock.
        lock: LockName,
        /// The other locks of a set, in any order; empty for one lock.
        also: Box<[LockName]>,
        /// The time to live of the lease that is opened for it.
        ttl: Option<Ttl>,
        /// Or the public id of the existing lease under which it is granted.
        under: Option<Token>,
        /// Attempts with the same text are one wish (rule A12).
        request: Option<Box<str>>,
        /// Alone, among readers, in mode update, as the upgrade of that, or by permits. A set is exclusive.
        mode: LockMode,
    },
    /// Renew a lease for its full time.
    Renew {
        /// The lock.
        lock: LockName,
        /// The token with which it is held.
        token: Token,
        /// A new time to live.
        ttl: Option<Ttl>,
    },
    /// Release a lock.
    Release {
        /// The lock.
        lock: LockName,
        /// The token with which it is held.
        token: Token,
    },
    /// Abandon a wish; if it was granted, the grant is released.
    Abandon {
        /// The lock.
        lock: LockName,
        /// The request text of its attempts.
        request: Box<str>,
    },
    /// Revoke a lock, as an operator.
    Revoke {
        /// The lock.
        lock: LockName,
        /// The token with which it is held.
        token: Token,
    },
    /// Show a lock's holder.
    Show {
        /// The lock.
        lock: LockName,
    },
}

impl Call {
    /// All locks of the call.
    pub fn locks(&self) -> impl Iterator<Item = &LockName> {
        let also: &[LockName] = match self {
            Call::Acquire { also, .. } => also,
            _ => &[],
        };
        std::iter::once(self.lock()).chain(also)
    }

    /// Whether it is for several locks at once.
    #[must_use]
    pub fn is_of_set(&self) -> bool {
        self.locks().nth(1).is_some()
    }

    /// The call's lock; of a set the one that it names first.
    #[must_use]
    pub fn lock(&self) -> &LockName {
        match self {
            Call::Acquire { lock, .. }
            | Call::Renew { lock, .. }
            | Call::Release { lock, .. }
            | Call::Abandon { lock, .. }
            | Call::Revoke { lock, .. }
            | Call::Show { lock } => lock,
        }
    }
}

/// An answer of the authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The lock is granted to the caller.
    Granted {
        /// The grant's number: its fencing token, unless it is shared.
        token: Token,
        /// The lease's public id: the token of its first grant.
        lease: Token,
        /// Of a shared grant: its fencing token, which is that of its phase.
        phase: Option<Token>,
        /// Of permits: the slots that it holds.
        slots: Slots,
    },
    /// Others hold the lock, or wait for it before the caller; this says nothing about them.
    Denied,
    /// Readers hold the lock, or somebody waits for it before the caller.
    HeldShared {
        /// Their fencing token.
        phase: Token,
    },
    /// Another client holds the lock.
    Held {
        /// Its token.
        token: Token,
        /// The holder.
        holder: ClientId,
    },
    /// The lock is free.
    Free,
    /// The lease has its full time again.
    Renewed {
        /// The token of the named grant.
        token: Token,
    },
    /// The grant is released.
    Released {
        /// Its token.
        token: Token,
    },
    /// The lock is revoked.
    Revoked {
        /// The token of the revoked grant.
        token: Token,
    },
    /// The grant is over.
    Ended {
        /// Its token.
        token: Token,
        /// How it ended.
        how: Ending,
    },
    /// The caller does not hold the lock; its grant is unknown.
    NotHeld,
    /// The lock is held with another token.
    Stale {
        /// The token of the holder.
        token: Token,
    },
    /// The wish was abandoned.
    Abandoned,
    /// Nothing happened: a full queue, a limit, a server that cannot serve.
    Refused,
    /// Executed, without further information.
    Done,
}
