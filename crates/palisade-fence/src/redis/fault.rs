//! Faults, which are not rejections.

use palisade_core::fence::FloorTooLow;
use redis::RedisError;

use crate::fault::FaultKind;

/// A fault at a fence in Redis, by its effect on the data.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The name is not valid. Nothing was sent.
    #[error(transparent)]
    Invalid(#[from] crate::name::Invalid),
    /// An argument is not valid. Nothing was sent.
    #[error("{0}")]
    Argument(String),
    /// Redis refused, or the outcome is unknown because the connection broke after the script was sent.
    /// Repeat it under the same sequence number.
    #[error("Redis: {0}")]
    Redis(#[from] RedisError),
    /// The command failed, for example on a key of another type. Nothing took effect, and the fence was not
    /// raised.
    #[error("the command failed, and nothing was written: {0}")]
    Command(String),
    /// The user's own script failed. **Its earlier writes stay**, and so does the raised fence: Redis rolls
    /// nothing back. A repeat of a numbered write gets the same answer.
    #[error("the script failed; its earlier writes stay: {0}")]
    Script(String),
    /// There is data and no fence state (rule F7). Nothing took effect. An operator re-arms the resource with
    /// a floor. The same is necessary for data that existed before the fence.
    #[error(
        "{resource}: there is data without its fence state; an operator must re-arm the fence with a floor"
    )]
    Lost {
        /// The resource.
        resource: String,
    },
    /// A write without a token before the first token: it would leave data without its fence. Nothing took
    /// effect.
    #[error("{resource}: the first write must carry a fencing token")]
    Unarmed {
        /// The resource.
        resource: String,
    },
    /// A mark that no fence can have written. Nothing took effect.
    #[error("{resource}: {holds:?} is not a fence state")]
    Corrupt {
        /// The resource.
        resource: String,
        /// The stored content.
        holds: String,
    },
    /// The server may evict marks.
    #[error(
        "maxmemory-policy is {policy}: it evicts keys that never expire, fences among them; \
        set noeviction or a volatile-* policy"
    )]
    Evicting {
        /// The setting.
        policy: String,
    },
    /// The server is a replica, and its data may be old.
    #[error("this server is a replica; a fence needs the primary")]
    Replica,
    /// A re-arming that would lower the fence. It had no effect.
    #[error(transparent)]
    FloorTooLow(#[from] FloorTooLow),
    /// An answer that the script does not give.
    #[error("Redis gave an answer that the fence's script never gives: {0}")]
    Answer(String),
}

impl Fault {
    /// Returns what to do about it.
    #[must_use]
    pub const fn kind(&self) -> FaultKind {
        match self {
            Fault::Redis(_) => FaultKind::Unknown,
            Fault::Invalid(_)
            | Fault::Argument(_)
            | Fault::Command(_)
            | Fault::Script(_)
            | Fault::Unarmed { .. }
            | Fault::FloorTooLow(_) => FaultKind::Invalid,
            Fault::Lost { .. }
            | Fault::Corrupt { .. }
            | Fault::Evicting { .. }
            | Fault::Replica
            | Fault::Answer(_) => FaultKind::Operator,
        }
    }
}
