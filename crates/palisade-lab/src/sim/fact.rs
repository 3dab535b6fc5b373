//! What happens in a run, as the checkers, the hash and the trace see it.
//!
//! Numbers only: locks, clients and requests are counted from 0, instants of the authority are
//! nanoseconds of its own clock, tokens are what the clients were given.

use palisade_core::{Code, Ending};

/// One thing that happened.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub enum Fact {
    /// A message: from, to (clients from 0, then authority, resource), what, and its delay in µs.
    Sent {
        /// Who sent it.
        from: u8,
        /// Who is meant.
        to: u8,
        /// What it is.
        what: &'static str,
        /// How long it takes in microseconds; `None`: it is lost.
        delay_us: Option<u64>,
    },
    /// The nemesis struck.
    Nemesis(String),
    /// The authority put a request into its queue, or took another attempt of one that waits.
    Queued {
        /// Which.
        request: u32,
        /// For what.
        lock: u8,
        /// Whose.
        client: u8,
        /// When.
        at: u64,
        /// How long its caller wants to wait, in nanoseconds.
        wait: u64,
    },
    /// The authority decided an acquire, at once or after a wait.
    Decided {
        /// Which.
        request: u32,
        /// For which lock and client; `None` if it was decided after a wait.
        who: Option<(u8, u8)>,
        /// When.
        at: u64,
        /// The token, if it was granted.
        token: Option<u64>,
        /// For how long its holder may count on it, from now: less than a lease's whole time if the
        /// grant went under a lease that was there before.
        left: u64,
    },
    /// The authority learnt that nobody waits for a request any more.
    Gone {
        /// Which.
        request: u32,
    },
    /// A release was taken in.
    ReleaseTaken {
        /// Of which grant.
        token: u64,
    },
    /// An abandonment was taken in.
    AbandonTaken {
        /// Of which request.
        request: u32,
    },
    /// An operator's revocation was taken in.
    RevokeTaken {
        /// Of which grant.
        token: u64,
    },
    /// A lease was renewed in the log.
    Renewed {
        /// Its grant.
        token: u64,
        /// When.
        at: u64,
        /// For how long.
        ttl: u64,
    },
    /// A change was applied; a crash may still undo it.
    Applied(Turn),
    /// A change is on stable storage and may be seen.
    Published(Turn),
    /// Clients that believe they hold a lock in the moment in which it is granted to another.
    Believers {
        /// The lock.
        lock: u8,
        /// The new grant.
        token: u64,
        /// Who believes, and with which token.
        believers: Vec<(u8, u64)>,
    },
    /// The authority let an answer out that says: held.
    Acknowledged {
        /// The grant.
        token: u64,
        /// Whether to a renewal; else to an acquire.
        renewal: bool,
    },
    /// The authority started on what its disk holds.
    Recovered {
        /// Its clock.
        at: u64,
        /// Whether from a backup.
        restored: bool,
        /// The token the next grant gets.
        next: u64,
        /// The locks that are held: lock, token, client.
        live: Vec<(u8, u64, u8)>,
    },
    /// A copied directory was opened.
    CopyOpened,
    /// A directory was refused: a bit had flipped.
    Damaged,
    /// A round found no room on the disk.
    DiskFull,
    /// The authority's log failed, and the process stops.
    LogFailed {
        /// Whether the disk had no room when it was asked.
        full: bool,
    },
    /// The authority made a snapshot.
    Snapshot,
    /// The authority was away, or its disk full, for longer than it may ignore; its clock now.
    Stalled {
        /// Its clock.
        at: u64,
        /// How long, in nanoseconds, if it was too short to matter to every lease.
        pause: Option<u64>,
    },
    /// The authority gave leases their time again because it takes itself to have been away.
    Graced {
        /// Its clock.
        at: u64,
    },
    /// The resource admitted an operation; it is on stable storage.
    Admitted {
        /// Which resource.
        lock: u8,
        /// Shown by whom.
        client: u8,
        /// With which token.
        token: u64,
        /// claim, read or write.
        op: &'static str,
    },
    /// The resource's value changed, on stable storage.
    Stored {
        /// Which resource.
        lock: u8,
        /// Under which token.
        token: u64,
        /// As which write of that grant.
        sequence: u64,
        /// The set it holds now, a bit for each element.
        value: u128,
    },
    /// The resource rejected an operation.
    Rejected {
        /// Which resource.
        lock: u8,
        /// Shown by whom.
        client: u8,
        /// With which token.
        token: u64,
        /// The highest token there.
        highest: Option<u64>,
        /// Why.
        code: Code,
    },
    /// The resource started on what its disk holds.
    ResourceRecovered {
        /// Which.
        lock: u8,
        /// What it holds.
        value: u128,
        /// The highest token of its fence.
        highest: Option<u64>,
        /// Whether from a backup: then whatever came after it is gone, on purpose.
        restored: bool,
    },
    /// A resource lost its fence and not its data.
    FenceLost {
        /// Which.
        lock: u8,
    },
    /// An operator armed a resource's fence anew.
    Rearmed {
        /// Which.
        lock: u8,
        /// With this floor.
        floor: u64,
    },
    /// A client learnt that its addition was carried out.
    Added {
        /// Who.
        client: u8,
        /// At which resource.
        lock: u8,
        /// Under which token.
        token: u64,
        /// Which element.
        element: Option<u8>,
    },
    /// A client got a grant into its hands.
    Holds {
        /// Who.
        client: u8,
        /// Which lock.
        lock: u8,
        /// Its token.
        token: u64,
    },
    /// From now on nothing fails.
    Quiet,
    /// The run is over.
    Ended,
}

/// A change of one lock in the authority's log.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct Turn {
    /// The lock.
    pub lock: u8,
    /// The holder concerned.
    pub client: u8,
    /// The token concerned.
    pub token: u64,
    /// The authority's clock.
    pub at: u64,
    /// What happened.
    pub what: What,
}

/// What happened to a lock.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum What {
    /// Granted, for so many nanoseconds.
    Granted(u64),
    /// Ended so.
    Ended(Ending),
}
