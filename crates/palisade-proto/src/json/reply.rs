//! The server's answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{LockMode, PermitsBody};
use crate::Code;
use crate::options::with_options;

/// A lock that was granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AcquireReply {
    /// The lock.
    #[schema(
        example = "storage:customer-orders-bucket",
        min_length = 1,
        max_length = 255,
        pattern = "^[ -~]+$"
    )]
    pub resource_id: String,
    /// Always true.
    pub lock_acquired: bool,
    /// The lease's secret key. Anyone who has it can renew and release, so never send it to a resource.
    #[schema(pattern = "^[0-9a-f]{32}$")]
    pub lock_token: String,
    /// The number for the resource.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64, example = 34)]
    pub fencing_token: u64,
    /// Of a shared grant: the number that names it in a renew, a release or a break, because readers of one phase have
    /// one fencing token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub grant_id: Option<u64>,
    /// Of permits: the slots, rising. A fence has a ratchet for each, under `RESOURCE_ID~SLOT`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<u32>,
    /// How long the lease lasts from a renewal.
    #[schema(minimum = 100, maximum = 86_400_000)]
    pub lease_duration_ms: u64,
    /// For how long the grant is good, counted from when the authority took this request in. A holder's
    /// deadline is its own clock, read before the request was sent, plus this, less a margin for the drift
    /// of clocks.
    pub valid_for_ms: u64,
    /// How long this request waited in the lock's queue; part of `valid_for_ms`.
    pub waited_ms: u64,
    /// The time that was left at the grant: `valid_for_ms` without `waited_ms`. Less than `lease_duration_ms` in the answer
    /// to a repeated request.
    pub remaining_ms: u64,
    /// The wall clock at the grant, for people.
    #[schema(example = "2026-05-23T10:00:00.123Z")]
    pub acquired_at: String,
    /// Which authority issued the token; tokens of different authorities are never compared.
    pub authority: String,
}

/// An acquire that was denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeniedReply {
    /// The lock.
    #[schema(min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
    pub resource_id: String,
    /// Always false.
    pub lock_acquired: bool,
    /// Why.
    pub error: ErrorBody,
    /// The holder, or a request that waits before this one; only with code `held`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<HolderBody>,
}

with_options! {
    /// The holder of a lock.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    pub struct HolderBody {
        /// Its client id.
        #[schema(min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
        pub client_id: String,
        /// Its token.
        #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
        pub fencing_token: u64,
        /// How long until its lease expires if it is not renewed.
        pub remaining_ms: u64,
        /// Of a reader: the number that names its grant; only where one lock is shown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
        pub grant_id: Option<u64>,
        /// Whether a reader has the lock in mode `update`; only where one lock is shown.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub update: bool,
        /// Its slots of a semaphore; only where one lock is shown.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub slots: Vec<u32>,
        /// The wall clock at the grant, for people; only when a lock is shown or listed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub acquired_at: Option<String>,
        /// The holder's text about itself; only when a lock is shown or listed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub metadata: Option<String>,
    }
}

/// A request that has waited for its `poll_ms` and waits on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitingReply {
    /// The lock.
    #[schema(min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
    pub resource_id: String,
    /// Always false.
    pub lock_acquired: bool,
    /// Always true: ask again at once, with the same `request_id`. The place in the queue is reserved for 2 s.
    pub waiting: bool,
}

/// A lease that was renewed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RenewReply {
    /// The lock.
    #[schema(min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
    pub resource_id: String,
    /// The grant's token; a renewal never changes it.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub fencing_token: u64,
    /// The authority that answers: a client compares it with that of its grant.
    pub authority: String,
    /// How long the lease lasts from a renewal.
    #[schema(minimum = 100, maximum = 86_400_000)]
    pub lease_duration_ms: u64,
    /// For how long the lease is good, counted from when the authority took this request in; see the
    /// answer to an acquire.
    pub valid_for_ms: u64,
    /// The same: a renewal does not wait.
    pub remaining_ms: u64,
    /// How many requests wait for the locks of the lease; of a lease with more than 64 grants, for the first 64.
    #[serde(default)]
    pub waiters: u32,
}

/// The signed form of a grant's fencing token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SequencerReply {
    /// The lock.
    #[schema(min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
    pub resource_id: String,
    /// The grant's token.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub fencing_token: u64,
    /// For fences, as `X-Fencing-Sequencer`: a compact JWS.
    #[schema(max_length = 4096)]
    pub sequencer: String,
}

/// A value that is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProclaimReply {
    /// The lock.
    #[schema(min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
    pub resource_id: String,
    /// The grant's token; an announcement never changes it.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub fencing_token: u64,
    /// The number of this change. Of two announcements the one with the higher (token, revision) is the later one.
    pub revision: u64,
}

/// A lock that was given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReleaseReply {
    /// The lock.
    #[schema(min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
    pub resource_id: String,
    /// Always true.
    pub released: bool,
    /// Whether an earlier request had already done it.
    pub already_released: bool,
    /// The grant's number: the token it had, or its `grant_id` if it was shared.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub fencing_token: u64,
    /// The authority that answers: a client compares it with that of its grant.
    pub authority: String,
    /// How long nobody is granted the lock, because the grant asked for `at_least_for_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed_ms: Option<u64>,
}

/// A request that was given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AbandonReply {
    /// The request, in lower case and without hyphens.
    #[schema(pattern = "^[0-9a-f]{32}$")]
    pub request_id: String,
    /// Always true.
    pub abandoned: bool,
}

/// A lock that an operator took away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BreakReply {
    /// The lock.
    #[schema(min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
    pub resource_id: String,
    /// Always true.
    pub revoked: bool,
    /// The grant's number: the token it had, or its `grant_id` if it was shared.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub fencing_token: u64,
}

/// A lock that an operator opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OpenReply {
    /// The lock.
    #[schema(min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
    pub resource_id: String,
    /// Always true.
    pub opened: bool,
}

/// A semaphore that has another number of permits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResizeReply {
    /// The lock.
    #[schema(min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
    pub resource_id: String,
    /// How many permits it has. Holders of slots above it keep them.
    #[schema(minimum = 1, maximum = 64)]
    pub permits: u32,
}

/// One lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LockReply {
    /// The lock.
    #[schema(min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
    pub resource_id: String,
    /// The number of the latest change that this answer knows of: of two answers the one with the higher number is the
    /// later one. Only where one lock is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// The holder, of several readers the oldest; `null` when the lock is free.
    pub holder: Option<HolderBody>,
    /// How often the holder's lease was extended since its last renewal, because the authority was away; left out if it was
    /// not.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub extensions: u32,
    /// How long nobody is granted it, if it is free and closed after its last grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed_ms: Option<u64>,
    /// How many permits it has, if it is a semaphore; the readers are then its holders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 64)]
    pub permits: Option<u32>,
    /// How many readers hold it; left out if it is not held in shared mode.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reader_count: u32,
    /// The oldest readers, at most 64; only where one lock is shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub readers: Vec<HolderBody>,
    /// How many requests wait.
    pub waiters: u32,
    /// How long the first of them has waited, from its latest attempt; only where several locks are listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// The first requests that wait, at most 64; only where one lock is shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queue: Vec<QueuedBody>,
    /// The trace of the request that was granted the lock, if that had a `traceparent`; only where one lock is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[0-9a-f]{32}$")]
    pub trace_id: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A request that waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuedBody {
    /// The client that asks.
    #[schema(min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
    pub client_id: String,
    /// The mode that it asks for.
    pub mode: LockMode,
    /// With mode `permits`: how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permits: Option<PermitsBody>,
    /// How long it has waited, from its latest attempt.
    pub waited_ms: u64,
    /// How long until it leaves the queue.
    pub remaining_ms: u64,
}

/// A page of the locks that are held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListReply {
    /// The locks.
    pub locks: Vec<LockReply>,
    /// Give it as `cursor` for the next page; `null` when this is the last.
    #[schema(pattern = "^a[0-9a-f]{16}$")]
    pub next_cursor: Option<String>,
}

/// The locks that an operator looks for first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RankingReply {
    /// How long ago the locks were read: at most a few seconds, while there are a million.
    pub age_ms: u64,
    /// How many locks are held.
    pub held: u64,
    /// The 50 locks with the most waiting requests; locks without any are left out.
    pub contended: Vec<LockReply>,
    /// The 50 locks that were granted first.
    pub oldest: Vec<LockReply>,
    /// The lock whose first request has waited longest; `null` if none waits.
    pub longest_wait: Option<LockReply>,
}

/// The authority's description of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StatusReply {
    /// Which authority this is, for its whole life.
    pub authority: String,
    /// Changes with every restore from a backup.
    pub incarnation: String,
    /// The token the next grant gets; `null` when the range is used up.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub next_token: Option<u64>,
    /// Locks held.
    pub locks: u64,
    /// Live leases.
    pub leases: u64,
    /// Requests that wait.
    pub waiters: u64,
    /// The server's version.
    pub version: String,
    /// Whether the clock moves only when told.
    pub manual_clock: bool,
    /// Whether the log has no room: grants stand and can be read, but nothing new is granted.
    pub log_full: bool,
    /// The counts of the server that leads.
    pub counts: CountsBody,
}

/// Counts that only grow, from the start of one server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CountsBody {
    /// The start of the server that counts. Counts with another start are those of another server, or of another run.
    pub since: String,
    /// Grants issued.
    pub granted: u64,
    /// Leases renewed.
    pub renewed: u64,
    /// Grants whose lease expired.
    pub expired: u64,
    /// Grants revoked by an operator.
    pub revoked: u64,
    /// How often leases got their full time again because the authority was down or stalled, or another node took over.
    pub graces: u64,
    /// Refused late writes that were reported, and that the history has; left out without a history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejections_reported: Option<u64>,
    /// Reports of refused writes whose grant the history does not have; left out without a history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejections_unknown: Option<u64>,
}

/// The authority's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClockReply {
    /// Milliseconds since the authority was created, by its own clock.
    pub now_ms: u64,
}

/// Whether the server can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthReply {
    /// `serving`, or `starting` while the log is read or the other nodes of a cluster are not there.
    pub status: String,
    /// Whether the log has no room: grants stand and can be read, but nothing new is granted.
    pub log_full: bool,
    /// When this server's certificate ends; left out without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_expires_at: Option<String>,
}

/// The caller as the server knows it, and the server that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhoamiReply {
    /// The caller's principal; `null` if the server has no access file, so that everybody may do everything.
    pub principal: Option<String>,
    /// Which authority this is, for its whole life.
    pub authority: String,
    /// Changes with every restore from a backup.
    pub incarnation: String,
    /// The version of the server that answers; the nodes of a cluster may differ.
    pub version: String,
    /// The server's wall clock, as RFC 3339 in UTC.
    pub time: String,
}

/// The body of every error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorReply {
    /// The error.
    pub error: ErrorBody,
}

/// An error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// A name of the error table.
    #[schema(example = "invalid")]
    pub code: String,
    /// For people.
    pub message: String,
    /// When asking again makes sense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// For `stale`: the token the lock is held with. For `delayed`: the token of its last grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub highest: Option<u64>,
    /// For a grant that is over: its number, which is the token it had, or its `grant_id` if it was shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub fencing_token: Option<u64>,
    /// For `not_leader`: the leader's address, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "http://10.0.0.2:7420")]
    pub leader: Option<String>,
}

impl ErrorBody {
    /// A body with a code and a message.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> ErrorBody {
        ErrorBody {
            code: code.name().to_owned(),
            message: message.into(),
            ..ErrorBody::default()
        }
    }
}

with_options! {
    /// One change, as `data` of a server-sent event whose name says what happened: `granted`, `released`,
    /// `proclaimed`, `opened`, `expired`, `revoked` or `superseded`.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    pub struct EventBody {
        /// Counts the authority's changes; also the event's id.
        pub revision: u64,
        /// When it happened, by the authority's wall clock, as RFC 3339 in UTC; for people only.
        pub time: String,
        /// The lock.
        #[schema(min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
        pub resource_id: String,
        /// The holder concerned; not when the lock was opened.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
        pub client_id: Option<String>,
        /// The token concerned; when the lock was opened, that of its last grant.
        #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
        pub fencing_token: u64,
        /// Of a shared grant: the number that names it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
        pub grant_id: Option<u64>,
        /// The time to live; only when granted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(minimum = 100, maximum = 86_400_000)]
        pub lease_duration_ms: Option<u64>,
        /// The operator's reason; only when revoked or opened.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub reason: Option<String>,
        /// How long nobody is granted the lock from now on; only when a grant ended that asked for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub delayed_ms: Option<u64>,
    }
}

/// The `data` of the event `missed`: this watcher was too slow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MissedBody {
    /// How many changes, of all locks, it did not get: look at the locks afresh.
    pub missed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_has_the_shape_of_the_contract() {
        let denied = DeniedReply {
            resource_id: "x".into(),
            lock_acquired: false,
            error: ErrorBody {
                retry_after_ms: Some(4_210),
                ..ErrorBody::new(Code::Held, "b has it")
            },
            holder: Some(HolderBody {
                client_id: "b".into(),
                fencing_token: 33,
                remaining_ms: 4_210,
                ..HolderBody::default()
            }),
        };
        let shape = serde_json::json!({
            "resource_id": "x", "lock_acquired": false,
            "error": {"code": "held", "message": "b has it", "retry_after_ms": 4210},
            "holder": {"client_id": "b", "fencing_token": 33, "remaining_ms": 4210}
        });
        assert_eq!(serde_json::to_value(denied).unwrap(), shape);
    }

    #[test]
    fn a_free_lock_says_null() {
        let free = LockReply {
            resource_id: "x".into(),
            revision: None,
            holder: None,
            extensions: 0,
            delayed_ms: None,
            permits: None,
            reader_count: 0,
            readers: Vec::new(),
            waiters: 0,
            waited_ms: None,
            queue: Vec::new(),
            trace_id: None,
        };
        let shape = serde_json::json!({"resource_id": "x", "holder": null, "waiters": 0});
        assert_eq!(serde_json::to_value(free).unwrap(), shape);
    }
}
