//! The rows of the history.

use palisade_core::{Change, Ending, Event};
use serde::{Deserialize, Serialize};

use crate::codec::{decoded, encode_behind};

/// One grant. All times are readings of the authority's wall clock, in milliseconds since 1970 (UTC), for people: that
/// clock can be set back. `T` is a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row<T = String> {
    /// The number that names the grant: of an exclusive grant its fencing token.
    pub grant: u64,
    /// The fencing token; all readers of a phase have the same.
    pub token: u64,
    /// The lock.
    pub lock: T,
    /// How it was held.
    pub mode: HoldMode,
    /// The slots of a semaphore, a bit for each.
    pub slots: u64,
    /// The client id.
    pub client: T,
    /// The principal that asked for it, as the log stores it.
    pub principal: [u8; 16],
    /// The holder's latest text about itself.
    pub metadata: Option<T>,
    /// The lease's time to live at the grant; none if the grant itself was not seen.
    pub ttl_ms: Option<u32>,
    /// How long the request had waited; none if the grant itself was not seen.
    pub waited_ms: Option<u64>,
    /// When it was granted.
    pub granted_ms: u64,
    /// How it ended; none while it lasts. It is the last part, so a row gets its end as bytes, too.
    pub end: Option<End>,
}

/// The first parts of a row.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct RowHead<'a> {
    pub(crate) grant: u64,
    pub(crate) token: u64,
    pub(crate) lock: &'a str,
}

impl RowHead<'_> {
    /// Of a row that this process encoded.
    pub(crate) fn of(row: &[u8]) -> RowHead<'_> {
        decoded(row)
    }
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HoldMode {
    /// By one client alone.
    Exclusive,
    /// By readers.
    Shared,
    /// By holders of permits of a semaphore.
    Permits,
}

/// The end of a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// When.
    pub at_ms: u64,
    /// When the lease was last renewed, or extended after an absence of the authority.
    pub renewed_ms: u64,
    /// How.
    pub how: How,
    /// Of a revocation: the operator's principal.
    pub by: Option<[u8; 16]>,
    /// Of a revocation: the operator's reason.
    pub reason: Option<String>,
    /// Of a grant that its own client superseded: the new token.
    pub successor: Option<u64>,
    /// How long the lock stayed closed from then on.
    pub closed_ms: Option<u64>,
}

/// How a grant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum How {
    /// Its holder released it.
    Released,
    /// Its lease ran out.
    Expired,
    /// An operator revoked it.
    Revoked,
    /// Its own client took the lock again.
    Superseded,
    /// The authority was restored from a backup that does not have it. The time is that of the discovery.
    Restored,
    /// Nobody knows: the end is in a gap. The time is that of the discovery.
    Unseen,
}

impl How {
    /// The word for it, as events have it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            How::Released => "released",
            How::Expired => "expired",
            How::Revoked => "revoked",
            How::Superseded => "superseded",
            How::Restored => "restored",
            How::Unseen => "unseen",
        }
    }
}

impl From<Ending> for How {
    fn from(how: Ending) -> How {
        match how {
            Ending::Released => How::Released,
            Ending::Expired => How::Expired,
            Ending::Revoked => How::Revoked,
            Ending::Superseded => How::Superseded,
        }
    }
}

/// A late write: a resource refused it because a newer holder had claimed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateRefusal {
    /// When the authority heard of it, the first time.
    pub at_ms: u64,
    /// The resource that refused.
    pub resource: String,
    /// The highest token that it had seen.
    pub highest: u64,
    /// The refused operation, in the reporter's words.
    pub operation: String,
    /// The principal that reported it, as the log stores it.
    pub by: [u8; 16],
    /// How often it was reported alike.
    pub times: u32,
}

/// Changes that the history did not see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The first change that is missing, by its revision.
    pub from: u64,
    /// The last one.
    pub to: u64,
    /// When the gap was found.
    pub found_ms: u64,
    /// Why.
    pub why: GapReason,
}

/// Why changes are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GapReason {
    /// The history begins here.
    New,
    /// The history missed them, and the log no longer has them: a snapshot took their place.
    LogDropped,
    /// More came than the history could follow, and it has not read them from the log yet.
    TooFast,
    /// The history's disk took nothing, and the log no longer has them.
    Unwritable,
    /// The authority was restored from a backup: they are those behind the backup, and numbers that were never used.
    Restored,
}

impl<'a> Row<&'a str> {
    /// The grant that an event is about, as far as the event knows it.
    pub(crate) fn of(event: &'a Event) -> Row<&'a str> {
        let mode = match (event.shared, event.slots.is_empty()) {
            (Some(_), _) => HoldMode::Shared,
            (None, true) => HoldMode::Exclusive,
            (None, false) => HoldMode::Permits,
        };
        let (ttl_ms, waited_ms) = match event.change {
            Change::Granted { ttl } => {
                (Some(ttl.as_millis()), Some(event.detail.waited.as_millis()))
            }
            _ => (None, None),
        };
        let Some(client) = &event.client else {
            unreachable!("a change of a grant has no client");
        };
        Row {
            grant: number(event),
            token: event.token.get(),
            lock: event.lock.as_str(),
            mode,
            slots: event.slots.bits(),
            client: client.as_str(),
            principal: event.by.to_bytes(),
            metadata: event.detail.metadata.as_deref(),
            ttl_ms,
            waited_ms,
            granted_ms: event.wall.0.saturating_sub(event.held.as_millis()),
            end: None,
        }
    }
}

/// Gives the row at the end of these bytes, which has no end, an end.
pub(crate) fn end_last(rows: &mut Vec<u8>, end: &End) {
    let none = rows.pop();
    assert_eq!(none, Some(0), "a row that ended ends");
    encode_behind(rows, &Some(end));
}

/// The number that names the grant of an event.
pub(crate) fn number(event: &Event) -> u64 {
    event.shared.map_or(event.token, |id| id.0).get()
}
