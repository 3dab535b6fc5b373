//! Listening: a holder hears of its grants before the next renewal would tell.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::field;

/// Asks for news of grants, and waits for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListenBody {
    /// The grants: 1 – 100, each once.
    #[schema(min_items = 1, max_items = 100)]
    pub grants: Vec<ListenedGrant>,
    /// How long to wait until there is something to say, in milliseconds; 0 asks and is answered at once. Left out:
    /// 20,000.
    #[serde(
        default,
        deserialize_with = "field::wait_ms::optional",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(minimum = 0, maximum = 60_000, example = 20_000)]
    pub wait_ms: Option<u64>,
}

/// A grant that its holder wants to hear about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListenedGrant {
    /// The lock.
    #[serde(deserialize_with = "field::resource_id::required")]
    #[schema(min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
    pub resource_id: String,
    /// The lease's secret key, from the acquire.
    #[serde(deserialize_with = "field::lock_token::required")]
    #[schema(pattern = "^[0-9a-fA-F]{32}$")]
    pub lock_token: String,
    /// The grant's number: its `fencing_token`, or its `grant_id` if it is shared.
    #[serde(deserialize_with = "field::fencing_token::required")]
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub fencing_token: u64,
    /// How many waiting requests the caller knows of; 0 if left out.
    #[serde(
        default,
        deserialize_with = "field::waiters::optional",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(minimum = 0, maximum = 4_294_967_295_i64)]
    pub waiters: Option<u64>,
}

/// The news.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListenReply {
    /// At most one for each grant; empty if there was nothing to say.
    pub notices: Vec<NoticeBody>,
}

/// News of one grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NoticeBody {
    /// The lock.
    #[schema(min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
    pub resource_id: String,
    /// The grant's number.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub fencing_token: u64,
    /// What happened.
    pub event: NoticeEvent,
    /// Of an end: how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<NoticeEnding>,
    /// Of a revocation: the operator's reason, if there was one and the server still has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256)]
    pub reason: Option<String>,
    /// Of `wanted`: how many requests wait; 0: no longer anybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiters: Option<u32>,
}

/// What can happen to a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum NoticeEvent {
    /// It is over.
    Ended,
    /// More requests wait for its lock than the caller knew of, or none any more.
    Wanted,
}

/// How a grant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum NoticeEnding {
    /// Its holder released it.
    Released,
    /// Its lease expired.
    Expired,
    /// An operator took it.
    Revoked,
    /// The same client acquired the lock again.
    Superseded,
    /// The server knows no such grant, or the `lock_token` is not its key.
    Unknown,
}
