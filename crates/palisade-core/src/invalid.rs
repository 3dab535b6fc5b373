//! Reasons why input is refused. Each message names the value and the range.
//!
//! This module, [`limits`], [`name`](crate::name), [`time`](crate::time) and [`token`](crate::token) import each other:
//! a bound is a value of such a type, its constructor compares with the bound, and its error contains both.

use core::fmt;

use crate::limits;
use crate::name::LockName;
use crate::options::{GrantOption, Labels};
use crate::time::Ttl;
use crate::token::Token;

/// Input that is refused before anything changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// A name that is empty, too long or not printable.
    Name {
        /// Which name.
        kind: NameKind,
        /// The reason.
        fault: NameFault,
    },
    /// A token outside `1 ..= 2^53 - 1`.
    Token {
        /// The number given.
        given: u64,
    },
    /// A time to live outside the range in force.
    Ttl {
        /// The value given, in milliseconds.
        given_ms: u64,
        /// The shortest allowed.
        min: Ttl,
        /// The longest allowed.
        max: Ttl,
    },
    /// A lease already has another time to live than the one asked for.
    TtlDiffers {
        /// The lease's own.
        lease: Ttl,
    },
    /// A wait longer than [`limits::MAX_WAIT`].
    Wait {
        /// The value given, in milliseconds.
        given_ms: u64,
    },
    /// An option of a grant above its bound ([`GrantOption::most`]).
    Option {
        /// The option.
        option: GrantOption,
        /// The value given, in the option's unit.
        given: u64,
    },
    /// An option of exclusive grants was requested with a shared grant or with permits, or a grant that has one was to
    /// be downgraded.
    OptionsOfShared,
    /// A reader or a holder of permits proclaimed a value, which only the holder of an exclusive grant may do.
    ProclaimOfShared,
    /// Not 32 hexadecimal digits.
    LeaseKey,
    /// Not 32 hexadecimal digits.
    RequestId,
    /// The request id was used before for another request.
    RequestReused,
    /// A new lease was requested with a key that already names one.
    LeaseKeyInUse,
    /// A lease that holds a lock in shared mode requested it in exclusive mode, for update or for an upgrade.
    Upgrade,
    /// A lease that holds a lock in mode update requested it in another mode than for an upgrade.
    UpdateHeld,
    /// An upgrade was requested without a grant in mode update, or by the holder of an exclusive grant.
    NotUpdate,
    /// An upgrade was requested while another one of the same grant waits.
    UpgradeWaits,
    /// An upgrade was requested for a grant from before the authority was restored from a backup.
    Restored,
    /// Not `1 ≤ wanted ≤ of ≤` [`limits::PERMITS`].
    Permits {
        /// The number of wanted permits.
        wanted: u32,
        /// The number of permits of the semaphore, by the request.
        of: u32,
    },
    /// The lock has another number of permits than the request says; `None` means that it is not a semaphore.
    PermitsDiffer {
        /// The number in the request.
        asked: Option<u32>,
        /// The lock's number.
        has: Option<u32>,
    },
    /// A semaphore's name is so long that its slots' keys ([`slot_key`](crate::slot_key)) would be too long for a fence.
    SemaphoreName {
        /// Its length in bytes; at most [`SEMAPHORE_NAME_BYTES`](limits::SEMAPHORE_NAME_BYTES) are allowed.
        bytes: usize,
    },
    /// A lease that holds permits of a semaphore requested another number of them.
    PermitsHeld {
        /// How many it has.
        held: u32,
        /// The number that it requested.
        asked: u32,
    },
    /// A set of no locks, or of more than [`limits::SET_LOCKS`].
    SetSize {
        /// The number of given names.
        given: usize,
    },
    /// A set that names a lock twice.
    SetTwice {
        /// The lock.
        lock: LockName,
    },
    /// A set whose names are not sorted.
    SetOrder {
        /// The first lock out of order.
        lock: LockName,
    },
    /// Several locks at once were requested in shared mode, with permits or with options.
    SetMode,
    /// A lease that holds some locks of a set, or all of them under several tokens, requested the set.
    SetPartlyHeld {
        /// The first lock of the set that it holds.
        lock: LockName,
    },
    /// A set would take over a lock from the client's former grant, which has an option or is reserved.
    SetDelayed {
        /// The lock.
        lock: LockName,
    },
    /// Metadata or a reason longer than allowed.
    TooLong {
        /// The text's name.
        what: &'static str,
        /// Its length in bytes.
        bytes: usize,
        /// The longest allowed.
        max: usize,
    },
}

/// The kind of name in an [`Invalid::Name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// A lock (`resource_id` in the JSON interface).
    Lock,
    /// A client (`client_id`).
    Client,
    /// An authority.
    Authority,
}

/// The reasons why a name is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameFault {
    /// It has no bytes.
    Empty,
    /// It has more than [`limits::NAME_BYTES`] bytes.
    TooLong {
        /// How many it has.
        bytes: usize,
    },
    /// A byte outside space … tilde.
    NotPrintable {
        /// The offset of the first such byte.
        at: usize,
    },
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Invalid::Name { kind, fault } => write!(f, "{kind} {fault}"),
            Invalid::Token { given } => {
                write!(f, "fencing token {given} is outside 1 ..= {}", Token::MAX)
            }
            Invalid::Ttl { given_ms, min, max } => {
                write!(f, "a lease of {given_ms} ms is outside {min} ..= {max}")
            }
            Invalid::TtlDiffers { lease } => {
                write!(
                    f,
                    "the lease already lasts {lease}: leave the duration out or repeat that one"
                )
            }
            Invalid::Wait { given_ms } => write!(
                f,
                "a wait of {given_ms} ms is outside 0 ..= {} ms",
                limits::MAX_WAIT.as_millis()
            ),
            Invalid::Option { option, given } => write!(
                f,
                "{} {given}{unit} is outside 0 ..= {}{unit}",
                option.given(),
                option.most(),
                unit = option.unit()
            ),
            Invalid::ProclaimOfShared => f.write_str(
                "only the holder of an exclusive grant proclaims a value: a lock with several holders has none",
            ),
            Invalid::OptionsOfShared => write!(
                f,
                "{Labels} belong to exclusive grants: leave them out of a request for a shared grant, for update, \
                 for an upgrade or for permits, and release a grant that has one before you ask for a shared one"
            ),
            Invalid::LeaseKey => f.write_str("lock_token must be 32 hexadecimal digits"),
            Invalid::RequestId => f.write_str("request_id must be 32 hexadecimal digits"),
            Invalid::RequestReused => f.write_str(
                "this request_id was already used for another request: choose a new one",
            ),
            Invalid::LeaseKeyInUse => f.write_str("a lease with this lock_token already exists"),
            Invalid::Upgrade => f.write_str(
                "this lease has the lock in shared mode, and a reader cannot become a writer (two of \
                 them would wait for each other for ever): release the lock first, and ask for mode update \
                 if you may have to write",
            ),
            Invalid::UpdateHeld => f.write_str(
                "this lease has the lock in mode update: ask for mode upgrade to write, or release the lock first",
            ),
            Invalid::NotUpdate => f.write_str(
                "only a grant in mode update is upgraded, under its own lease, and an exclusive grant does not \
                 become one: release the lock, and ask for mode update",
            ),
            Invalid::UpgradeWaits => f.write_str(
                "an upgrade of this grant waits already: repeat it with its request_id, or wait for its answer",
            ),
            Invalid::Restored => f.write_str(
                "this grant is older than the backup from which the authority was restored, and others may have written \
                 since: release the lock, ask for it again, and read again",
            ),
            Invalid::Permits { wanted, of } => write!(
                f,
                "{wanted} of {of} permits: a semaphore has 1 ..= {} permits, and a request wants at least \
                 one and at most all of them",
                limits::PERMITS
            ),
            Invalid::PermitsDiffer { asked, has } => permits_differ(f, *asked, *has),
            Invalid::SemaphoreName { bytes } => write!(
                f,
                "the lock name has {bytes} bytes, and a semaphore's has at most {}, because the fences of \
                 its slots are called NAME~SLOT: use a shorter name",
                limits::SEMAPHORE_NAME_BYTES
            ),
            Invalid::PermitsHeld { held, asked } => write!(
                f,
                "this lease holds {held} permits of the lock and now asks for {asked}: release them \
                 first, or ask under a lease of its own"
            ),
            Invalid::SetSize { given } => write!(
                f,
                "the request names {given} locks: one request takes 1 ..= {} locks",
                limits::SET_LOCKS
            ),
            Invalid::SetTwice { lock } => write!(
                f,
                "the request names the lock {lock} twice: name each lock once"
            ),
            Invalid::SetOrder { lock } => write!(
                f,
                "the locks of a request must be in the order of their names, and {lock} is out of place"
            ),
            Invalid::SetMode => write!(
                f,
                "several locks at once are exclusive and without {Labels}: leave these out, or ask for one lock"
            ),
            Invalid::SetPartlyHeld { lock } => write!(
                f,
                "this lease already has {lock}, but not all these locks with one token: release it first, or ask \
                 only for the locks that it does not have"
            ),
            Invalid::SetDelayed { lock } => write!(
                f,
                "this client's grant of {lock} has an option ({Labels}): release it before you ask for several \
                 locks at once"
            ),
            Invalid::TooLong { what, bytes, max } => {
                write!(f, "{what} has {bytes} bytes; at most {max} are allowed")
            }
        }
    }
}

fn permits_differ(f: &mut fmt::Formatter<'_>, asked: Option<u32>, has: Option<u32>) -> fmt::Result {
    match (asked, has) {
        (Some(asked), Some(has)) => write!(
            f,
            "the request says {asked} permits, and the lock has {has}: ask with {has}, or change the number \
             with `palisade permits`"
        ),
        (Some(asked), None) => write!(
            f,
            "the request says {asked} permits, and the lock is in use without permits: use another name"
        ),
        (None, has) => write!(
            f,
            "the lock is a semaphore of {} permits: ask for permits, or use another name",
            has.unwrap_or(0)
        ),
    }
}

impl core::error::Error for Invalid {}

impl fmt::Display for NameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NameKind::Lock => "lock name",
            NameKind::Client => "client id",
            NameKind::Authority => "authority id",
        })
    }
}

impl fmt::Display for NameFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NameFault::Empty => write!(
                f,
                "is empty; 1 ..= {} bytes are allowed",
                limits::NAME_BYTES
            ),
            NameFault::TooLong { bytes } => {
                write!(
                    f,
                    "has {bytes} bytes; 1 ..= {} are allowed",
                    limits::NAME_BYTES
                )
            }
            NameFault::NotPrintable { at } => {
                write!(f, "has a byte at offset {at} that is not printable ASCII")
            }
        }
    }
}
