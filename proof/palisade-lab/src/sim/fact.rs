//! The events of a run, for the checkers, the hash and the trace.
//!
//! Only numbers: locks, clients and requests are counted from 0, instants of the authority are nanoseconds of its own
//! clock, tokens are those that clients got. Where a fact speaks of a grant, it names it by its number: readers of one
//! phase have one fencing token. The grants of a set have one number, and each of them is named by that and its lock.

use palisade_core::{Code, Ending, LockMode};

use super::locks::Locks;

/// One event.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub enum Fact {
    /// A message: sender, receiver (clients from 0, then authority, resource), content, and its delay in µs.
    Sent {
        /// The sender.
        from: u8,
        /// The receiver.
        to: u8,
        /// The content.
        what: &'static str,
        /// Its delay in microseconds; `None`: it is lost.
        delay_us: Option<u64>,
    },
    /// The nemesis injected a fault.
    Nemesis(String),
    /// The authority queued a request, or took another attempt of a queued one.
    Queued {
        /// The request.
        request: u32,
        /// Its locks.
        locks: Locks,
        /// Its client.
        client: u8,
        /// The time.
        at: u64,
        /// How long its caller is willing to wait, in nanoseconds.
        wait: u64,
        /// The mode that it asks for.
        mode: LockMode,
        /// How many permits it wants of a semaphore.
        wanted: u8,
    },
    /// The authority decided an acquire, at once or after a wait.
    Decided {
        /// The request.
        request: u32,
        /// Its locks and client; `None` if it was decided after a wait.
        who: Option<(Locks, u8)>,
        /// The time.
        at: u64,
        /// The grant, if it was granted.
        token: Option<u64>,
        /// Whether the grant is shared.
        shared: bool,
        /// How many locks were granted with it now: none if it was granted before.
        granted: u8,
        /// The slots that it holds of a semaphore, one bit each.
        slots: u64,
        /// For how long its holder may count on it, from now: less than a lease's whole time if it was granted under an
        /// existing lease.
        left: u64,
    },
    /// The authority learnt that the caller of a request is gone.
    Gone {
        /// The request.
        request: u32,
        /// Whether it was a single caller, not one of a session.
        single: bool,
    },
    /// The log reserves the place of a request whose caller is gone and may come back.
    Orphaned {
        /// The request.
        request: u32,
        /// Until when.
        until: u64,
    },
    /// The authority learnt that nobody will take a grant up, and that nobody can ask for it again.
    Unclaimed {
        /// The lock.
        lock: u8,
        /// The grant.
        token: u64,
    },
    /// The authority received an acquire of a client itself, not of somebody with its id.
    AcquireTaken {
        /// Its locks.
        locks: Locks,
        /// The client.
        client: u8,
        /// The request, if it has an id.
        request: Option<u32>,
        /// How many permits it wants of a semaphore.
        wanted: u8,
        /// How many it says that there are.
        of: u8,
        /// The lease that it is under, if the client has that already.
        under: Option<u64>,
        /// The lock-delay that it asks for, in nanoseconds.
        lock_delay: u64,
        /// For how long it wants the lock closed to others from the grant, in nanoseconds.
        at_least_for: u64,
    },
    /// The authority received a release.
    ReleaseTaken {
        /// The lock.
        lock: u8,
        /// The grant.
        token: u64,
    },
    /// The authority received an abandonment.
    AbandonTaken {
        /// The request.
        request: u32,
    },
    /// The authority received an operator's revocation.
    RevokeTaken {
        /// The lock.
        lock: u8,
        /// The grant.
        token: u64,
    },
    /// The authority received an operator's change of a number of permits.
    ResizeTaken {
        /// The lock.
        lock: u8,
        /// How many.
        permits: u8,
    },
    /// The log contains such a change.
    Resized {
        /// The lock.
        lock: u8,
        /// How many.
        permits: u8,
    },
    /// The authority told the operator that it is done.
    ResizeAcknowledged {
        /// The lock.
        lock: u8,
        /// How many.
        permits: u8,
    },
    /// The log contains a renewal.
    Renewed {
        /// The grant.
        token: u64,
        /// The time.
        at: u64,
        /// The time to live.
        ttl: u64,
    },
    /// A change was applied; a crash may still undo it.
    Applied(LockChange),
    /// A change is on stable storage and may be seen.
    Published(LockChange),
    /// Clients that believe they hold a lock at the moment when it is granted to another.
    Believers {
        /// The lock.
        lock: u8,
        /// The new grant.
        token: u64,
        /// The clients and their tokens.
        believers: Vec<(u8, u64)>,
    },
    /// The authority sent an answer that says: held.
    Acknowledged {
        /// The grant.
        token: u64,
        /// The fencing token that it gave, unless it answers a renewal.
        fencing: Option<u64>,
        /// Whether it answers a renewal; otherwise an acquire.
        renewal: bool,
    },
    /// The authority started from its disk.
    Recovered {
        /// Its clock, which went on for `down` while there was no process, if that is known.
        at: u64,
        /// In nanoseconds.
        down: u64,
        /// Whether from a backup.
        restored: bool,
        /// The next token.
        next: u64,
        /// The locks that are held: lock, grant, client.
        live: Vec<(u8, u64, u8)>,
        /// The locks that nobody holds and that are closed: lock, and until when.
        closed: Vec<(u8, u64)>,
        /// The semaphores that are in use: lock, and the number of permits.
        permits: Vec<(u8, u8)>,
        /// The requests that wait, in order of arrival, if another node took over and they may be repeated.
        orphans: Vec<Orphan>,
    },
    /// A copied directory was opened.
    CopyOpened,
    /// A directory was refused because of a flipped bit.
    Damaged,
    /// A round found no room on the disk.
    DiskFull,
    /// The authority's log failed, and its process stops.
    LogFailed {
        /// Whether the disk was full when the log asked for room.
        full: bool,
    },
    /// The authority made a snapshot.
    Snapshot,
    /// The authority was away, or its disk full, for longer than it may ignore.
    Stalled {
        /// Its clock.
        at: u64,
        /// How long, in nanoseconds.
        away: u64,
    },
    /// The authority is about to stop, and ends the waits of everybody; or it has done so for one batch.
    Stopping {
        /// Whether it begins.
        begins: bool,
    },
    /// The authority was busy with one thing, and noticed nothing meanwhile.
    Busy {
        /// How long, in nanoseconds.
        span: u64,
    },
    /// The authority gave leases their time again because it believes that it was away.
    Graced {
        /// Its clock.
        at: u64,
    },
    /// The resource admitted an operation, which is on stable storage.
    Admitted {
        /// The resource.
        resource: u8,
        /// The client.
        client: u8,
        /// The token.
        token: u64,
        /// claim, read or write.
        op: &'static str,
    },
    /// The resource's value changed, on stable storage.
    Stored {
        /// The resource.
        resource: u8,
        /// The token.
        token: u64,
        /// The number of the write within its grant.
        sequence: u64,
        /// The set that it contains now, one bit per element.
        value: u128,
    },
    /// The resource rejected an operation.
    Rejected {
        /// The resource.
        resource: u8,
        /// The client.
        client: u8,
        /// The token.
        token: u64,
        /// The highest token of the fence.
        highest: Option<u64>,
        /// The reason.
        code: Code,
    },
    /// The resource started from its disk.
    ResourceRecovered {
        /// The resource.
        resource: u8,
        /// Its content.
        value: u128,
        /// The highest token of its fence.
        highest: Option<u64>,
        /// Whether from a backup: then later changes are gone, on purpose.
        restored: bool,
    },
    /// A resource lost its fence but not its data.
    FenceLost {
        /// The resource.
        resource: u8,
    },
    /// An operator re-armed a resource's fence.
    Rearmed {
        /// The resource.
        resource: u8,
        /// The floor.
        floor: u64,
    },
    /// A client learnt that its addition was executed.
    Added {
        /// The client.
        client: u8,
        /// The resource.
        resource: u8,
        /// The token.
        token: u64,
        /// The element.
        element: Option<u8>,
    },
    /// A client obtained a grant.
    Holds {
        /// The client.
        client: u8,
        /// The lock.
        lock: u8,
        /// The token.
        token: u64,
    },
    /// From now on nothing fails.
    Quiet,
    /// The run is over.
    Ended,
}

/// A request that waits at a change of leader.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct Orphan {
    /// The request.
    pub request: u32,
    /// Its client.
    pub client: u8,
    /// Its locks.
    pub locks: Locks,
    /// Until when it waits.
    pub until: u64,
    /// The mode that it asks for.
    pub mode: LockMode,
    /// How many permits it wants of a semaphore.
    pub wanted: u8,
}

impl Orphan {
    /// When its place is lost unless its caller comes back, after a change of leader at this time.
    pub(crate) fn is_lost_at(&self, change: u64) -> u64 {
        self.until.min(change + WINDOW)
    }
}

/// How long a caller may take to come back, in nanoseconds.
const WINDOW: u64 = 2_000_000_000;

/// A change of one lock in the authority's log.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct LockChange {
    /// The lock.
    pub lock: u8,
    /// The holder.
    pub client: u8,
    /// The grant's number: its token, unless it is shared.
    pub token: u64,
    /// The lease that it is under.
    pub lease: u64,
    /// If it is shared: the token of its phase.
    pub phase: Option<u64>,
    /// Whether it is in mode update; only known for grants in the log.
    pub update: bool,
    /// The slots that the grant holds of a semaphore, one bit each.
    pub slots: u64,
    /// The authority's clock.
    pub at: u64,
    /// Until when the lock stays closed, if the grant ended so.
    pub closed: Option<u64>,
    /// The kind of change.
    pub what: ChangeKind,
}

/// The kind of change of a lock.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum ChangeKind {
    /// Granted, for so many nanoseconds.
    Granted(u64),
    /// Ended in this way.
    Ended(Ending),
}
