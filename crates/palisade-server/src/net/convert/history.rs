//! The history as JSON.

use palisade_access::Access;
use palisade_core::{Principal, Slots, WallTime};
use palisade_history::{Cursor, End, Gap, GapReason, HoldMode, LateRefusal, Page, Row};
use palisade_proto::json::{EndRecord, GapRecord, GrantRecord, HistoryReply, RejectionRecord};

use super::Refusal;
use super::json::wall_time;
use crate::net::audit::name;

pub(in crate::net) fn page(page: Page, access: Option<&Access>) -> HistoryReply {
    HistoryReply {
        grants: (page.rows.into_iter())
            .map(|(row, late)| grant(row, &late, access))
            .collect(),
        next_cursor: page.next.map(|at| cursor(&at)),
        gaps: page.gaps.iter().map(gap).collect(),
    }
}

fn cursor(at: &Cursor) -> String {
    match at {
        Cursor::Ended(revision) => format!("e:{revision}"),
        Cursor::OfLock(token, revision) => format!("t:{token}:{revision}"),
        Cursor::Late(number) => format!("r:{number}"),
        Cursor::Lasting(lock, grant) => format!("l:{grant}:{lock}"),
    }
}

fn grant(row: Row, late: &[LateRefusal], access: Option<&Access>) -> GrantRecord {
    let asked = row
        .waited_ms
        .map(|waited| row.granted_ms.saturating_sub(waited));
    GrantRecord {
        grant_id: (row.mode == HoldMode::Shared).then_some(row.grant),
        mode: match row.mode {
            HoldMode::Exclusive => "exclusive",
            HoldMode::Shared => "shared",
            HoldMode::Permits => "permits",
        }
        .to_owned(),
        slots: Slots::from_bits(row.slots).iter().collect(),
        fencing_token: row.token,
        resource_id: row.lock,
        client_id: row.client,
        principal: principal(row.principal, access),
        metadata: row.metadata,
        lease_duration_ms: row.ttl_ms.map(u64::from),
        asked_at: asked.map(at),
        waited_ms: row.waited_ms,
        granted_at: at(row.granted_ms),
        ended: row.end.map(|it| end(it, access)),
        rejections: late.iter().map(|it| rejection(it, access)).collect(),
    }
}

fn end(end: End, access: Option<&Access>) -> EndRecord {
    EndRecord {
        how: end.how.word().to_owned(),
        at: at(end.at_ms),
        renewed_at: at(end.renewed_ms),
        by: end.by.map(|by| principal(by, access)),
        reason: end.reason,
        new_fencing_token: end.successor,
        delayed_ms: end.closed_ms,
    }
}

fn rejection(late: &LateRefusal, access: Option<&Access>) -> RejectionRecord {
    RejectionRecord {
        reported_at: at(late.at_ms),
        resource: late.resource.clone(),
        highest: late.highest,
        operation: late.operation.clone(),
        reported_by: principal(late.by, access),
        times: late.times,
    }
}

fn gap(gap: &Gap) -> GapRecord {
    GapRecord {
        from_revision: gap.from,
        to_revision: gap.to,
        found_at: at(gap.found_ms),
        why: match gap.why {
            GapReason::New => "the history begins after them",
            GapReason::LogDropped => "the history missed them, and the log no longer has them",
            GapReason::TooFast => "more came than the history could follow; it reads them from the log within the hour",
            GapReason::Unwritable => {
                "the history's disk took nothing, and the log no longer has them"
            }
            GapReason::Restored => {
                "the authority was restored: changes after the backup are lost, and some numbers were never used"
            }
        }
        .to_owned(),
    }
}

fn principal(by: [u8; 16], access: Option<&Access>) -> String {
    name(Principal::from_bytes(by), access).into_owned()
}

fn at(ms: u64) -> String {
    wall_time(WallTime(ms))
}

/// An instant of the wall clock in a parameter, in milliseconds since 1970.
pub(in crate::net) fn instant(what: &str, text: Option<&str>) -> Result<Option<u64>, Refusal> {
    let Some(text) = text else { return Ok(None) };
    let instant = text.parse::<jiff::Timestamp>().ok();
    // Before 1970 nothing was granted.
    let ms = instant.map(|instant| u64::try_from(instant.as_millisecond()).unwrap_or(0));
    ms.map(Some).ok_or_else(|| {
        Refusal::invalid(format!(
            "{what} must be an instant as RFC 3339, such as 2026-05-23T10:00:00Z"
        ))
    })
}
