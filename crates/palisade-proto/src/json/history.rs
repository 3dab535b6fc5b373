//! The history of locks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::field;

/// A page of the history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryReply {
    /// Grants: first those that last, by lock, then the others, the latest end first.
    pub grants: Vec<GrantRecord>,
    /// Pass it as `cursor` for the next page. A page may be short, or empty, and not be the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Ranges of changes that the history lacks, over all locks, the latest first; on the first page.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<GapRecord>,
}

/// One grant, from its request to its end. All times are readings of the authority's wall clock, as RFC 3339 in UTC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GrantRecord {
    /// The lock.
    pub resource_id: String,
    /// The fencing token.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub fencing_token: u64,
    /// Of a shared grant: the number that names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant_id: Option<u64>,
    /// `exclusive`, `shared` or `permits`.
    pub mode: String,
    /// The slots that it held of a semaphore.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<u32>,
    /// The holder.
    pub client_id: String,
    /// The principal of the request: its name, or the form that the log stores if the access file no longer has it.
    pub principal: String,
    /// The holder's latest text about itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
    /// The lease's time to live at the grant. Absent, as the two after it, if the history did not see the grant itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_duration_ms: Option<u64>,
    /// When the request came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_at: Option<String>,
    /// How long it waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// When it was granted.
    pub granted_at: String,
    /// How it ended; absent while it lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<EndRecord>,
    /// Writes of this holder that a resource refused because a newer one had claimed, as far as they were reported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejections: Vec<RejectionRecord>,
}

/// The end of a grant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndRecord {
    /// `released`, `expired`, `revoked` or `superseded`. `restored`: the authority was restored from a backup without the
    /// grant. `unseen`: the end is in a gap of the history.
    pub how: String,
    /// When; of `restored` and `unseen`, when that was discovered.
    pub at: String,
    /// When the lease was last renewed, granted, or extended after an absence of the authority.
    pub renewed_at: String,
    /// Of a revocation: the operator's principal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Of a revocation: the operator's reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Of a grant that its own client superseded: the new token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_fencing_token: Option<u64>,
    /// How long the lock stayed closed from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed_ms: Option<u64>,
}

/// A refused late write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RejectionRecord {
    /// When the authority first heard of it.
    pub reported_at: String,
    /// The resource that refused.
    pub resource: String,
    /// The highest token that the resource had seen.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub highest: u64,
    /// The refused operation, in the reporter's words.
    pub operation: String,
    /// The principal that reported it.
    pub reported_by: String,
    /// How often it was reported alike.
    pub times: u32,
}

/// Changes that the history lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GapRecord {
    /// The first missing change.
    pub from_revision: u64,
    /// The last one.
    pub to_revision: u64,
    /// When the gap was found.
    pub found_at: String,
    /// Why they are missing.
    pub why: String,
}

/// Reports that a resource refused a write because its token was stale.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RejectionBody {
    /// The token of the write.
    #[serde(deserialize_with = "field::fencing_token::required")]
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub fencing_token: u64,
    /// The resource that refused; at most 255 bytes.
    #[serde(deserialize_with = "field::resource::required")]
    #[schema(min_length = 1, max_length = 255)]
    pub resource: String,
    /// The highest token that it had seen.
    #[serde(deserialize_with = "field::highest::required")]
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub highest: u64,
    /// The refused operation; at most 255 bytes.
    #[serde(deserialize_with = "field::operation::required")]
    #[schema(max_length = 255)]
    pub operation: String,
}

/// The fate of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RejectionReply {
    /// Whether the history has the grant, and took the report. Anything else is counted and not kept.
    pub recorded: bool,
}
