//! The bodies of the HTTP interface, exactly as they go over the wire.
//!
//! Requests refuse fields they do not know, and say which field is wrong. The same types serve the
//! server, the client and the OpenAPI description.

mod cluster;
pub(crate) mod field;
mod history;
mod listen;
mod object;
mod reply;
mod request;

pub use cluster::{
    AddMemberBody, ClusterMember, ClusterReply, ClusterRole, ClusterTakeover, MemberBody,
    ReadyReply, TransferBody,
};
pub use history::{
    EndRecord, GapRecord, GrantRecord, HistoryReply, RejectionBody, RejectionRecord, RejectionReply,
};
pub use listen::{ListenBody, ListenReply, ListenedGrant, NoticeBody, NoticeEnding, NoticeEvent};
pub use object::Object;
pub use reply::{
    AbandonReply, AcquireReply, BreakReply, ClockReply, CountsBody, DeniedReply, ErrorBody,
    ErrorReply, EventBody, HealthReply, HolderBody, ListReply, LockReply, MissedBody, OpenReply,
    ProclaimReply, QueuedBody, RankingReply, ReleaseReply, RenewReply, ResizeReply, SequencerReply,
    StatusReply, WaitingReply, WhoamiReply,
};
pub use request::{
    AcquireBody, AdvanceBody, BreakBody, LockMode, Name, Nothing, OpenBody, PermitsBody,
    ProclaimBody, ReleaseBody, RenewBody, ResizeBody, SequencerBody,
};

/// Shortest and longest lease in milliseconds: 100 ms – 24 h. The authority may narrow it.
pub const LEASE_DURATION_MS: std::ops::RangeInclusive<u64> = 100..=86_400_000;

/// Longest wait in a queue in milliseconds: 24 h.
pub const MAX_WAIT_MS: u64 = 86_400_000;

/// How often a waiting request may ask for a sign of life.
pub const POLL_MS: std::ops::RangeInclusive<u64> = 1_000..=60_000;

/// Longest wait of a listening request in milliseconds, and its wait unless it says otherwise.
pub const LISTEN_MS: (u64, u64) = (60_000, 20_000);

/// Most grants in one listening request.
pub const LISTEN_GRANTS: usize = 100;

/// Largest fencing token, 2^53 - 1.
pub const MAX_FENCING_TOKEN: u64 = 9_007_199_254_740_991;

/// Furthest a manual clock may be moved in one step, in milliseconds: 365 days.
pub const MAX_ADVANCE_MS: u64 = 31_536_000_000;

/// Longest name in bytes.
pub const NAME_BYTES: usize = 255;

/// Longest metadata or reason in bytes.
pub const TEXT_BYTES: usize = 256;

/// Locks on one page of a listing: at most, and unless asked otherwise.
pub const LIST_LIMIT: (usize, usize) = (1_000, 100);
