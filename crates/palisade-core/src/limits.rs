//! Every bound in one place.

use crate::time::{Span, Ttl};

/// Longest lock, client or authority name in bytes.
pub const NAME_BYTES: usize = 255;

/// Longest free text that may be stored with a grant, in bytes.
pub const METADATA_BYTES: usize = 256;

/// Longest reason that may be given with a revocation, in bytes.
pub const REASON_BYTES: usize = 256;

/// Longest a request may wait in a queue: there is no unbounded wait.
pub const MAX_WAIT: Span = Span::from_millis(24 * 60 * 60 * 1000);

/// Longest lock-delay (rule D1), in milliseconds: a minute.
pub const LOCK_DELAY_MS: u32 = 60_000;

/// Longest time for which a grant may keep others out from its beginning (rule D4), in milliseconds: a day.
pub const AT_LEAST_FOR_MS: u32 = 24 * 60 * 60 * 1000;

/// An authority that was away for this long or longer gives every live lease its full time again.
pub const STALL: Span = Span::from_millis(500);

/// A shorter pause costs a lease too much when it takes more than this part of its time: a quarter. Its
/// holder renews at a third, so what is left after such a pause is enough for the renewal.
pub const PAUSE_PARTS: u64 = 4;

/// Readers, and waiting requests, that one lock is shown with.
pub const SHOWN: usize = 64;

/// Permits that a semaphore may have.
pub const PERMITS: u32 = 64;

/// Locks that one request may name (rule M1).
pub const SET_LOCKS: usize = 64;

/// How long a semaphore's name may be, in bytes: its slots' keys, with `~` and up to two digits, are names too.
pub const SEMAPHORE_NAME_BYTES: usize = NAME_BYTES - 3;
const _: () = assert!(PERMITS < 100);

/// How long a request keeps its place for a caller that lost its connection, where another node took over: longer
/// than a client needs to find the new leader and to repeat the request there.
pub const ORPHAN_WINDOW: Span = Span::from_millis(2_000);

/// How many grants and waiting requests an entry ends whose time has come, if that is all the entry does.
/// What is left is for the next one, and callers get their turn between the two.
pub const EXPIRE_ALONE: u32 = 2_048;

/// The bound for an entry that does something else. Hundreds of those are applied between two looks at the
/// clock.
pub const EXPIRE_BESIDE: u32 = 16;

/// How many answers, and how many ended grants, an authority remembers for retries.
///
/// At a steady thousand acquires a second this is two minutes of history. A retry that comes later
/// than that is treated as a new request.
pub const REMEMBERED: usize = 1 << 17;

/// The least that `restore` moves the token counter, so that no token issued after the backup can repeat.
///
/// 2^44 tokens are 203 days at a million grants a second. See [`restore_leap`].
pub const RESTORE_LEAP: u64 = 1 << 44;

/// The wall clock, in milliseconds since 1970, from which [`restore_leap`] counts: 2026 began.
pub const RESTORE_EPOCH_MS: u64 = 1_767_225_600_000;

/// How far a restore at `unix_ms`, milliseconds since 1970 by the wall clock, moves the token counter;
/// `None` if that clock is before [`RESTORE_EPOCH_MS`], so certainly wrong.
///
/// [`RESTORE_LEAP`] alone would give the same tokens again when one backup is restored twice, or an older
/// one after a newer. So a later restore leaps farther, by 256 tokens for each millisecond: beyond whatever
/// the restore before it has issued, unless that was more than 262,144 a second on average, or the wall
/// clock went back between the two. By 2030 a leap is 2^45.5, and the range has room for 180 of them.
#[must_use]
pub const fn restore_leap(unix_ms: u64) -> Option<u64> {
    match unix_ms.checked_sub(RESTORE_EPOCH_MS) {
        Some(since) => Some(RESTORE_LEAP.saturating_add(since.saturating_mul(256))),
        None => None,
    }
}

/// The bounds an operator may set. They are part of the machine's logged state, because a replay
/// under other bounds would decide otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Shortest lease granted.
    pub min_ttl: Ttl,
    /// Longest lease granted.
    pub max_ttl: Ttl,
    /// Requests that may wait for one lock.
    pub waiters_per_lock: u32,
    /// Requests of one client id that may wait, over all locks.
    pub waiters_per_client: u32,
    /// Locks held at the same time.
    pub locks: u32,
}

impl Limits {
    /// The bounds of a server started without settings.
    pub const DEFAULT: Limits = Limits {
        min_ttl: Ttl::MIN,
        max_ttl: Ttl::MAX,
        waiters_per_lock: 1_024,
        waiters_per_client: 64,
        locks: 16_000_000,
    };
}

/// What a held lock takes in memory at most, with the longest names and text, in bytes.
pub const LOCK_BYTES: u64 = 1_280;

/// As many locks as `bytes` of memory hold, within [`Limits::DEFAULT`].
#[must_use]
pub const fn locks_in(bytes: u64) -> u32 {
    let most = bytes / LOCK_BYTES;
    if most < Limits::DEFAULT.locks as u64 {
        most as u32
    } else {
        Limits::DEFAULT.locks
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}

const _: () = {
    use crate::token::Token;
    assert!(Ttl::MIN.as_millis() < Ttl::MAX.as_millis());
    assert!(0 < EXPIRE_BESIDE && EXPIRE_BESIDE < EXPIRE_ALONE);
    assert!(Ttl::MAX.span().as_nanos() <= MAX_WAIT.as_nanos());
    assert!(Limits::DEFAULT.waiters_per_client <= Limits::DEFAULT.waiters_per_lock);
    // A set waits in each of its queues.
    assert!(SET_LOCKS <= Limits::DEFAULT.waiters_per_client as usize);
    assert!(
        Token::MAX.get() / RESTORE_LEAP >= 256,
        "an authority must survive many restores"
    );
};
