//! What a history says, line by line: calls, answers, and when the authority was away.

use palisade_core::{ClientId, Ending, LockName, Timestamp, Token, Ttl};

/// What the recorded authority promises beyond the lease model itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whether one counter serves all locks, or each lock has its own.
    pub tokens: Tokens,
    /// Whether a lease is over at its very instant, or some time after it.
    pub expiry: Expiry,
    /// How far the authority's clock rate may be off from the recorder's, in parts per million.
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

/// How far token order reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// Grant order is token order over all locks (rule A2).
    Global,
    /// Tokens of different locks are not related.
    PerLock,
}

/// What happens to a lease whose time is over and that nobody asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// It is gone from that instant on: a renewal that comes later must fail (rule A8).
    Exact,
    /// It may live on until the authority looks.
    Lazy,
}

/// One line after the header. All instants are of one clock, the recorder's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody asked; without an answer it is unknown whether it took effect.
    Call {
        /// Read before the request was sent.
        at: Timestamp,
        /// Names the call within the history.
        id: u64,
        /// Who asked.
        client: ClientId,
        /// What for.
        call: Call,
    },
    /// The answer came.
    Answer {
        /// Read after it was there.
        at: Timestamp,
        /// The call it answers.
        id: u64,
        /// What it says.
        answer: Answer,
    },
    /// The authority did not run for some part of this time and then gave every live lease its full
    /// time again (rule A7).
    Away {
        /// When it surely still ran.
        at: Timestamp,
        /// When it surely ran again.
        until: Timestamp,
    },
}

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// A lock, now or after a wait.
    Acquire {
        /// Which lock.
        lock: LockName,
        /// The time to live of the lease that is opened for it.
        ttl: Option<Ttl>,
        /// Or the public id of the lease it goes under.
        under: Option<Token>,
        /// Attempts with the same text are one wish (rule A12).
        request: Option<Box<str>>,
    },
    /// The full time again.
    Renew {
        /// Which lock.
        lock: LockName,
        /// With which token it is held.
        token: Token,
        /// A new time to live.
        ttl: Option<Ttl>,
    },
    /// The lock is given up.
    Release {
        /// Which lock.
        lock: LockName,
        /// With which token it is held.
        token: Token,
    },
    /// A wish is given up; if it was granted, the grant is released.
    Abandon {
        /// Which lock.
        lock: LockName,
        /// The text its attempts carried.
        request: Box<str>,
    },
    /// An operator takes the lock.
    Revoke {
        /// Which lock.
        lock: LockName,
        /// With which token it is held.
        token: Token,
    },
    /// Who holds it?
    Show {
        /// Which lock.
        lock: LockName,
    },
}

impl Call {
    /// The lock that is meant.
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

/// What can be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The lock is the caller's.
    Granted {
        /// The fencing token.
        token: Token,
        /// The lease's public id: the token of its first grant.
        lease: Token,
    },
    /// Someone has the lock.
    Held {
        /// With which token.
        token: Token,
        /// Who.
        holder: ClientId,
    },
    /// The lock is free.
    Free,
    /// The lease lasts its full time again.
    Renewed {
        /// The token of the grant named.
        token: Token,
    },
    /// The grant is given up.
    Released {
        /// The token it had.
        token: Token,
    },
    /// The operator has taken the lock.
    Revoked {
        /// The token the grant had.
        token: Token,
    },
    /// The grant is over.
    Ended {
        /// The token it had.
        token: Token,
        /// How it ended.
        how: Ending,
    },
    /// The caller does not hold the lock; nothing is known of its grant.
    NotHeld,
    /// The lock is held with another token.
    Stale {
        /// That token.
        token: Token,
    },
    /// The wish was given up before.
    Abandoned,
    /// Nothing happened: a full queue, a bound, a server that cannot.
    Refused,
    /// Carried out; says nothing more.
    Done,
}
