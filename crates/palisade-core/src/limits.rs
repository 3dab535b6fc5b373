//! Every bound in one place.

use crate::time::{Span, Ttl};

/// Longest lock, client or authority name in bytes.
pub const NAME_BYTES: usize = 255;

/// Longest free text that may be stored with a grant, in bytes.
pub const METADATA_BYTES: usize = 256;

/// Longest reason that may be given with a revocation, in bytes.
pub const REASON_BYTES: usize = 256;

/// Longest wait of a request in a queue. No wait is unbounded.
pub const MAX_WAIT: Span = Span::from_millis(24 * 60 * 60 * 1000);

/// Longest lock-delay (rule D1), in milliseconds: a minute.
pub const LOCK_DELAY_MS: u32 = 60_000;

/// Longest time for which a grant may keep others out from its beginning (rule D4), in milliseconds: a day.
pub const AT_LEAST_FOR_MS: u32 = 24 * 60 * 60 * 1000;

/// An authority that did not run for this long or longer gives every live lease its full time again.
pub const STALL: Span = Span::from_millis(500);

/// A shorter pause extends only leases that lose more than a quarter of their time to it. A holder renews after a third
/// of its time, so a pause of up to a quarter leaves enough time for the renewal.
pub const PAUSE_PARTS: u64 = 4;

/// Most readers, and most waiting requests, in the view of one lock.
pub const SHOWN: usize = 64;

/// Most permits of a semaphore.
pub const PERMITS: u32 = 64;

/// Most locks in one request (rule M1).
pub const SET_LOCKS: usize = 64;

/// Longest name of a semaphore in bytes. The keys of its slots add `~` and up to two digits, and must be names too.
pub const SEMAPHORE_NAME_BYTES: usize = NAME_BYTES - 3;
const _: () = assert!(PERMITS < 100);

/// How long a request's place in a queue is reserved after another node took over. It is longer than a client needs to
/// find the new leader and repeat the request.
pub const ORPHAN_WINDOW: Span = Span::from_millis(2_000);

/// The most due grants and waiting requests that one entry ends, if it does nothing else. The next entry ends the rest,
/// and callers get their turn between the two.
pub const EXPIRE_ALONE: u32 = 2_048;

/// The same bound for an entry that also does something else. Hundreds of those are applied between two readings of the
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

/// The start of 2026, in milliseconds since 1970, from which [`restore_leap`] counts.
pub const RESTORE_EPOCH_MS: u64 = 1_767_225_600_000;

/// Returns how far a restore at `unix_ms` moves the token counter: milliseconds since 1970, by the wall clock. `None`
/// if that clock is before [`RESTORE_EPOCH_MS`], and so certainly wrong.
///
/// [`RESTORE_LEAP`] alone would issue the same tokens again when one backup is restored twice, or an older one after a
/// newer one. So a later restore leaps farther, by 256 tokens for each millisecond. It passes every token issued since
/// the restore before it, unless that authority issued more than 256,000 a second on average, or the wall clock went
/// back between the two. By 2030 a leap is 2^45.5, and the range has room for 180 of them.
#[must_use]
pub const fn restore_leap(unix_ms: u64) -> Option<u64> {
    match unix_ms.checked_sub(RESTORE_EPOCH_MS) {
        Some(since) => Some(RESTORE_LEAP.saturating_add(since.saturating_mul(256))),
        None => None,
    }
}

/// The bounds that an operator may set. They belong to the machine's logged state, because a replay under other bounds
/// would decide differently.
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

/// The most memory that a held lock takes, in bytes, with the longest names and texts.
pub const LOCK_BYTES: u64 = 1_280;

/// Returns the number of locks that fit in `bytes` of memory, within [`Limits::DEFAULT`].
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
